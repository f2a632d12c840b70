package pulsartxnspark.broker;

import java.util.concurrent.ScheduledExecutorService;
import java.util.function.LongSupplier;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.EventFollower;
import pulsartxnspark.store.SegmentStore;

/**
 * What the buffers of a broker share.
 *
 * @param segments the metadata store
 * @param events who follows its events; null where nobody does
 * @param helper completes what dead drivers have left; null where nobody does
 * @param threads for whatever waits for the store
 * @param pollIntervalMs how often transactions in the way are polled without an event
 * @param coordinators the store of transactions that clients of Pulsar's own open; null where Pulsar
 *     has them
 * @param pins that this broker's coordinators have just made; null as with the coordinators
 * @param clockMs a clock that never goes back, in milliseconds
 */
record BrokerStore(
    SegmentStore segments,
    EventFollower events,
    TransactionHelper helper,
    ScheduledExecutorService threads,
    long pollIntervalMs,
    CoordinatorStore coordinators,
    KnownPins pins,
    LongSupplier clockMs) {
  /** Makes one whose buffers take no transactions of Pulsar's own clients. */
  BrokerStore(
      SegmentStore segments,
      EventFollower events,
      TransactionHelper helper,
      ScheduledExecutorService threads,
      long pollIntervalMs,
      LongSupplier clockMs) {
    this(segments, events, helper, threads, pollIntervalMs, null, null, clockMs);
  }
}
