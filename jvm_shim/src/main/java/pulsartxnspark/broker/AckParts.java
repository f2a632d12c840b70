package pulsartxnspark.broker;

/**
 * The parts of the pending acks of one subscription. Their methods are called in the one thread of
 * Pulsar's handle, unless they say otherwise.
 *
 * @param subscription what Pulsar has
 * @param txns what is pending
 * @param steps what is being written
 * @param pulsars Pulsar's own store beside
 * @param environment what all subscriptions share
 */
record AckParts(
    HandledSubscription subscription,
    AckTransactions txns,
    AckSteps steps,
    PulsarsPendingAcks pulsars,
    AckEnvironment environment) {}
