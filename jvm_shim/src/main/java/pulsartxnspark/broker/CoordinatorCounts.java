package pulsartxnspark.broker;

import java.util.concurrent.atomic.LongAdder;
import org.apache.pulsar.transaction.coordinator.impl.TransactionMetadataStoreStats;

/** What Pulsar shows of the transactions that a coordinator had. */
final class CoordinatorCounts {
  final LongAdder created = new LongAdder();
  final LongAdder timedOut = new LongAdder();
  final LongAdder steps = new LongAdder(); // but for the creations
  private final LongAdder committed = new LongAdder();
  private final LongAdder aborted = new LongAdder();
  private final TransactionMetadataStoreStats stats = new TransactionMetadataStoreStats();

  /** Counts a transaction that Pulsar has ended. */
  void ended(boolean isCommitted, long tookMs) {
    (isCommitted ? committed : aborted).increment();
    stats.addTransactionExecutionLatencySample(tookMs);
  }

  /**
   * Gives what was counted so far.
   *
   * @param id of the coordinator
   * @param actives how many transactions it has now
   */
  TransactionMetadataStoreStats shown(long id, int actives) {
    stats.setCoordinatorId(id);
    stats.setActives(actives);
    stats.setCreatedCount(created.sum());
    stats.setCommittedCount(committed.sum());
    stats.setAbortedCount(aborted.sum());
    stats.setTimeoutCount(timedOut.sum());
    stats.setAppendLogCount(created.sum() + steps.sum());
    return stats;
  }
}
