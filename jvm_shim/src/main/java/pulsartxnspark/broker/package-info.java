/**
 * What a Pulsar broker loads: providers, which {@code broker.conf} names, and what they make.
 *
 * <p>The names of classes begin with their subject: {@code Buffer} for the transaction buffer of a
 * gated segment. They begin with {@code Coordinator} for the transaction coordinator, and with
 * {@code Ack} for pending acks.
 */
package pulsartxnspark.broker;
