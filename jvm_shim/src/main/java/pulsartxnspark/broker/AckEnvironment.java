package pulsartxnspark.broker;

import java.util.Collection;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.TransactionId;

/**
 * What the pending acks of a broker's subscriptions share.
 *
 * @param acks where the records are
 * @param decisions what headers say
 * @param inTheWay is told of the transactions that lock messages, and completes expired ones
 * @param threads for whatever waits for the store
 * @param timer whose tasks wait for nothing, so that they begin in time whatever the store does
 * @param pollIntervalMs how often headers are polled without an event
 * @param patienceMs how long a request waits for the store
 * @param clockMs a clock that never goes back
 * @param takesNew whether transactions of the metadata store have their pending acks there
 * @param metrics what is counted of all of them
 */
record AckEnvironment(
    AckStore acks,
    Decisions decisions,
    Consumer<Collection<TransactionId>> inTheWay,
    Executor threads,
    ScheduledExecutorService timer,
    long pollIntervalMs,
    long patienceMs,
    LongSupplier clockMs,
    boolean takesNew,
    AckMetrics metrics) {
  long nowMs() {
    return clockMs.getAsLong();
  }

  /** Gives the time until which a request that comes now waits for the store. */
  long deadlineMs() {
    return nowMs() + patienceMs;
  }
}
