/** The metadata store, as a broker reads it: identity, history and scripts of its tags. */
package pulsartxnspark.store;
