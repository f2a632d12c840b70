/** What a Pulsar broker loads: the transaction buffer of gated segments and its provider. */
package pulsartxnspark.broker;
