package pulsartxnspark.broker;

import io.netty.buffer.ByteBuf;
import java.util.HashMap;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.broker.transaction.buffer.AbortedTxnProcessor;
import org.apache.pulsar.broker.transaction.buffer.TransactionBuffer;
import org.apache.pulsar.broker.transaction.buffer.TransactionBufferReader;
import org.apache.pulsar.broker.transaction.buffer.TransactionMeta;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.policies.data.TransactionBufferStats;
import org.apache.pulsar.common.policies.data.TransactionInBufferStats;
import pulsartxnspark.broker.BufferAppend.Refusal;
import pulsartxnspark.store.WriterId.TxnBits;

/**
 * The transaction buffer of a gated segment: no consumer gets past an entry whose transaction is
 * undecided, and none gets an entry that lost. What is decided stands in the metadata store; nothing
 * is written into the topic. {@code docs/broker.md} has the states and the table of failures.
 */
public final class MetadataTransactionBuffer implements TransactionBuffer {
  /** Stands in the statistics where Pulsar's own buffer names the type of its snapshots. */
  public static final String KIND = "pulsar_txn_spark";

  private final SegmentLog topic;
  private final BufferLastEntry last;
  private final BufferWriters writers;
  private final BufferFilter filter;
  private final BufferAppends appends;
  private final BufferRecovery recovery;
  private final BufferPoller poller;
  private final BufferPruning pruning;

  /**
   * Makes a buffer, which recovers by a thread of the store's.
   *
   * @param topic what it belongs to
   * @param segment its id
   * @param storeUuid the metadata store that its transactions are in
   * @param store what it asks
   */
  MetadataTransactionBuffer(SegmentLog topic, String segment, String storeUuid, BrokerStore store) {
    this.topic = topic;
    SharedCoordinators coordinators = new SharedCoordinators();
    last = new BufferLastEntry(topic, store.threads(), store.pollIntervalMs());
    writers = new BufferWriters(topic, last);
    filter = new BufferFilter(coordinators);
    BufferComplaints complaints = new BufferComplaints(topic, segment);
    BufferParts parts =
        new BufferParts(topic, segment, store, coordinators, writers, filter, complaints);
    appends = new BufferAppends(parts);
    recovery = new BufferRecovery(parts, storeUuid, appends);
    poller = new BufferPoller(parts);
    pruning = new BufferPruning(parts);
    poller.begin(); // before the gate is read: what comes between the two is polled again
    recovery.begin();
    pruning.begin();
  }

  /** Gives whose monitor nobody may hold who waits for the topic's own lock. */
  Object lock() {
    return writers;
  }

  @Override
  public CompletableFuture<Void> checkIfTBRecoverCompletely() {
    return recovery.recovered();
  }

  @Override
  public CompletableFuture<Position> appendBufferToTxn(TxnID txn, long sequenceId, ByteBuf entry) {
    return appends.take(txn, entry);
  }

  @Override
  public void syncMaxReadPositionForNormalPublish(Position position, boolean isMarkerMessage) {
    writers.published(isMarkerMessage);
    if (!isMarkerMessage) {
      topic.forgetLastDispatchable();
    }
  }

  @Override
  public Position getMaxReadPosition() {
    return writers.maxReadPosition();
  }

  private static TxnBits bits(TxnID txn) {
    return new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits());
  }

  @Override
  public boolean isTxnAborted(TxnID txn, Position position) {
    return filter.leavesOut(bits(txn), position);
  }

  /** Forgets dropped writers of which the log has deleted every entry. */
  void prune() {
    pruning.prune();
  }

  /** The store has the decision of its coordinator already: here it is only polled. */
  @Override
  public CompletableFuture<Void> commitTxn(TxnID txn, long lowWaterMark) {
    poller.poll();
    return CompletableFuture.completedFuture(null);
  }

  /** The store has the decision of its coordinator already: here it is only polled. */
  @Override
  public CompletableFuture<Void> abortTxn(TxnID txn, long lowWaterMark) {
    poller.poll();
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<Void> closeAsync() {
    ServiceUnitNotReadyException closed =
        new ServiceUnitNotReadyException("the topic is being closed");
    appends.close(closed);
    poller.close();
    pruning.close();
    last.close();
    recovery.recovered().completeExceptionally(closed);
    return CompletableFuture.completedFuture(null);
  }

  /**
   * Closes the buffer of a topic that is deleted. Pulsar 4.2 and newer ask for it: older ones do not
   * have it in their interface.
   *
   * @return done when the buffer is closed
   */
  public CompletableFuture<Void> clearSnapshotAndClose() {
    return closeAsync();
  }

  @Override
  public TransactionBufferStats getStats(boolean lowWaterMarks, boolean segmentStats) {
    TransactionBufferStats stats = new TransactionBufferStats();
    stats.snapshotType = KIND;
    stats.state = writers.state().name();
    stats.maxReadPosition = writers.maxReadPosition().toString();
    stats.ongoingTxnSize = getOngoingTxnCount();
    stats.totalAbortedTransactions = filter.size();
    stats.recoverStartTime = recovery.startMs();
    stats.recoverEndTime = recovery.endMs();
    if (lowWaterMarks) {
      stats.lowWaterMarks = new HashMap<>(); // of Pulsar's own transactions
    }
    return stats;
  }

  @Override
  public TransactionBufferStats getStats(boolean lowWaterMarks) {
    return getStats(lowWaterMarks, false);
  }

  @Override
  public TransactionInBufferStats getTransactionInBufferStats(TxnID txn) {
    TransactionInBufferStats stats = new TransactionInBufferStats();
    stats.aborted = isTxnAborted(txn, null);
    Position bound = writers.bound(bits(txn));
    stats.startPosition = bound == null ? null : bound.toString();
    return stats;
  }

  @Override
  public long getOngoingTxnCount() {
    return writers.transactions();
  }

  @Override
  public long getAbortedTxnCount() {
    return poller.aborted();
  }

  @Override
  public long getCommittedTxnCount() {
    return poller.committed();
  }

  /** There are no snapshots: the decisions stand in the metadata store. */
  @Override
  public AbortedTxnProcessor.SnapshotType getSnapshotType() {
    return null;
  }

  @Override
  public CompletableFuture<Void> clearSnapshot() {
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<Void> purgeTxns(List<Long> dataLedgers) {
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<TransactionMeta> getTransactionMeta(TxnID txn) {
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<TransactionBufferReader> openTransactionBufferReader(
      TxnID txn, long startSequenceId) {
    return CompletableFuture.failedFuture(
        Refusal.INVALID.of(txn, "entries are read from the topic"));
  }
}
