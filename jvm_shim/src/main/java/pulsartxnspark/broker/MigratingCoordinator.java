package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.policies.data.TransactionCoordinatorStats;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStore;
import org.apache.pulsar.transaction.coordinator.TransactionSubscription;
import org.apache.pulsar.transaction.coordinator.TxnMeta;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.ReachMaxActiveTxnException;
import org.apache.pulsar.transaction.coordinator.impl.TransactionMetadataStoreStats;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;

/**
 * A coordinator on the metadata store, and beside it Pulsar's own with its log. New transactions go to
 * one of them. The other one ends what it has, so that a cluster moves over and back under its
 * clients. No number is given out by both: {@link NumberLog}.
 */
final class MigratingCoordinator implements TransactionMetadataStore {
  /** So many numbers are reserved at once: a reservation is three entries of the log. */
  static final long RESERVED_AT_ONCE = 1_000_000;

  private final MetadataTransactionCoordinator own;
  private final TransactionMetadataStore pulsars;
  private final NumberLog numbers;
  private final boolean opensOwn;
  private final long mostActive; // 0: any number

  // Guarded by this.
  private CompletableFuture<Void> reserving = CompletableFuture.completedFuture(null);
  private long reservedTo;

  /**
   * Makes one of two that are ready.
   *
   * @param own on the metadata store; none of its numbers may lie in Pulsar's log
   * @param pulsars with its log
   * @param numbers of the log
   * @param opensOwn whether new transactions are those of the metadata store
   * @param mostActive how many transactions may be active at once in both; 0 for any number
   */
  MigratingCoordinator(
      MetadataTransactionCoordinator own,
      TransactionMetadataStore pulsars,
      NumberLog numbers,
      boolean opensOwn,
      long mostActive) {
    this.own = own;
    this.pulsars = pulsars;
    this.numbers = numbers;
    this.opensOwn = opensOwn;
    this.mostActive = mostActive;
    this.reservedTo = numbers.last();
  }

  /** Makes it impossible for either to give out a number that the other one has given out. */
  CompletableFuture<MigratingCoordinator> prepare() {
    return opensOwn
        ? own.startAbove(numbers.last()).thenApply(done -> this)
        : numbers.reserve(own.getCoordinatorStats().getLeastSigBits()).thenApply(done -> this);
  }

  private TransactionMetadataStore of(TxnID txn) {
    if (own.isLive(txn)) {
      return own; // no number is given out by both
    }
    return pulsars.getTxnMeta(txn).isCompletedExceptionally() ? own : pulsars;
  }

  @Override
  public CompletableFuture<TxnMeta> getTxnMeta(TxnID txn) {
    return of(txn).getTxnMeta(txn);
  }

  @Override
  public CompletableFuture<TxnID> newTransaction(long timeoutMs, String owner) {
    if (mostActive > 0 && actives() >= mostActive) {
      return CompletableFuture.failedFuture(
          new ReachMaxActiveTxnException(
              "coordinator "
                  + getTransactionCoordinatorID()
                  + " has "
                  + mostActive
                  + " active transactions already"));
    }
    if (!opensOwn) {
      return pulsars.newTransaction(timeoutMs, owner);
    }
    // Before anybody is told of the number.
    return own.newTransaction(timeoutMs, owner)
        .thenCompose(txn -> reserved(txn.getLeastSigBits()).thenApply(done -> txn));
  }

  private synchronized CompletableFuture<Void> reserved(long number) {
    if (number <= reservedTo && !reserving.isCompletedExceptionally()) {
      return reserving; // done, mostly
    }
    reservedTo = number + RESERVED_AT_ONCE;
    long last = reservedTo;
    reserving =
        reserving.exceptionally(error -> null).thenCompose(done -> numbers.reserve(last));
    return reserving;
  }

  @Override
  public CompletableFuture<Void> addProducedPartitionToTxn(TxnID txn, List<String> partitions) {
    return of(txn).addProducedPartitionToTxn(txn, partitions);
  }

  @Override
  public CompletableFuture<Void> addAckedPartitionToTxn(
      TxnID txn, List<TransactionSubscription> partitions) {
    return of(txn).addAckedPartitionToTxn(txn, partitions);
  }

  @Override
  public CompletableFuture<Void> updateTxnStatus(
      TxnID txn, TxnStatus newStatus, TxnStatus expected, boolean isTimeout) {
    return of(txn).updateTxnStatus(txn, newStatus, expected, isTimeout);
  }

  /** Every older transaction of both is ended everywhere. */
  @Override
  public long getLowWaterMark() {
    return Stream.of(own, pulsars)
        .filter(coordinator -> coordinator.getMetadataStoreStats().getActives() > 0)
        .mapToLong(TransactionMetadataStore::getLowWaterMark)
        .min()
        .orElse(0);
  }

  @Override
  public TransactionCoordinatorID getTransactionCoordinatorID() {
    return own.getTransactionCoordinatorID();
  }

  private int actives() {
    return own.getMetadataStoreStats().getActives()
        + pulsars.getMetadataStoreStats().getActives();
  }

  @Override
  public TransactionCoordinatorStats getCoordinatorStats() {
    TransactionCoordinatorStats shown = own.getCoordinatorStats();
    shown.setOngoingTxnSize(actives());
    shown.setLowWaterMark(getLowWaterMark());
    if (!opensOwn) {
      shown.setLeastSigBits(pulsars.getCoordinatorStats().getLeastSigBits());
    }
    return shown;
  }

  @Override
  public TransactionMetadataStoreStats getMetadataStoreStats() {
    TransactionMetadataStoreStats first = own.getMetadataStoreStats();
    TransactionMetadataStoreStats second = pulsars.getMetadataStoreStats();
    TransactionMetadataStoreStats sum = new TransactionMetadataStoreStats();
    sum.setCoordinatorId(first.getCoordinatorId());
    sum.setActives(first.getActives() + second.getActives());
    sum.setCreatedCount(first.getCreatedCount() + second.getCreatedCount());
    sum.setCommittedCount(first.getCommittedCount() + second.getCommittedCount());
    sum.setAbortedCount(first.getAbortedCount() + second.getAbortedCount());
    sum.setTimeoutCount(first.getTimeoutCount() + second.getTimeoutCount());
    sum.setAppendLogCount(first.getAppendLogCount() + second.getAppendLogCount());
    sum.setExecutionLatencyBuckets(
        (opensOwn ? first : second).getExecutionLatencyBuckets());
    return sum;
  }

  @Override
  public List<TxnMeta> getSlowTransactions(long timeout) {
    List<TxnMeta> all = new ArrayList<>(own.getSlowTransactions(timeout));
    all.addAll(pulsars.getSlowTransactions(timeout));
    return all;
  }

  @Override
  public CompletableFuture<Void> closeAsync() {
    return CompletableFuture.allOf(own.closeAsync(), pulsars.closeAsync());
  }
}
