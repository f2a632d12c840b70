package pulsartxnspark.broker;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.function.LongSupplier;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.policies.data.TransactionCoordinatorStats;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStore;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState.State;
import org.apache.pulsar.transaction.coordinator.TransactionRecoverTracker;
import org.apache.pulsar.transaction.coordinator.TransactionSubscription;
import org.apache.pulsar.transaction.coordinator.TransactionTimeoutTracker;
import org.apache.pulsar.transaction.coordinator.TxnMeta;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.impl.TransactionMetadataStoreStats;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.StoreException;

/**
 * One transaction coordinator of Pulsar's, on the metadata store (PIP-471's). What a client opens is
 * a header there. What it produces to is an intent and a pin, and its commit is the header's
 * compare-and-set. {@code docs/broker-transactions.md} has the states and the table of failures.
 */
final class MetadataTransactionCoordinator implements TransactionMetadataStore {
  private final CoordinatorTerm term;
  private final LiveTransactions live;
  private final CoordinatorCounts counts = new CoordinatorCounts();
  private final CoordinatorRecovery recovery;
  private final CoordinatorOpenings openings;
  private final CoordinatorParticipants participants;
  private final CoordinatorDecision decision;
  private final CoordinatorEnd end;
  private final CoordinatorLookups lookups;

  /**
   * Makes a coordinator that has asked nothing yet.
   *
   * @param id Pulsar's id of it
   * @param store where its transactions are
   * @param gated tells gated segments from other topics
   * @param pins where the segments of this broker find those that are made here
   * @param timeouts aborts what takes too long
   * @param mostActive how many transactions may be active at once; 0 for any number
   * @param threads for whatever waits for the store
   * @param patienceMs for how long a step is repeated while the store does not answer, in
   *     milliseconds; once at least
   * @param clockMs the broker's clock
   * @param makeRoom run once if another broker is found to have opened the coordinator: this one is
   *     of no use any more
   */
  MetadataTransactionCoordinator(
      TransactionCoordinatorID id,
      CoordinatorStore store,
      GatedSegments gated,
      KnownPins pins,
      TransactionTimeoutTracker timeouts,
      long mostActive,
      Executor threads,
      long patienceMs,
      LongSupplier clockMs,
      Runnable makeRoom) {
    live = new LiveTransactions(Math.toIntExact(id.getId()), pins);
    term =
        new CoordinatorTerm(
            id,
            () -> {
              timeouts.close();
              live.clear();
            },
            makeRoom);
    CoordinatorParts parts =
        new CoordinatorParts(
            term,
            live,
            new CoordinatorSteps(threads, term, patienceMs),
            store,
            pins,
            counts,
            clockMs);
    recovery = new CoordinatorRecovery(parts);
    openings = new CoordinatorOpenings(parts, timeouts, mostActive);
    participants = new CoordinatorParticipants(parts, gated);
    decision = new CoordinatorDecision(parts);
    end = new CoordinatorEnd(parts, decision);
    lookups = new CoordinatorLookups(parts);
  }

  /**
   * Fences whoever has served this coordinator before, and takes over what is not ended everywhere.
   *
   * @param tracker ends what is decided, and watches what is OPEN
   * @return this, ready
   */
  CompletableFuture<TransactionMetadataStore> recover(TransactionRecoverTracker tracker) {
    return recovery.recover(tracker).thenApply(done -> this);
  }

  State getState() {
    return term.getState();
  }

  @Override
  public CompletableFuture<TxnID> newTransaction(long timeoutMs, String owner) {
    return openings.open(timeoutMs, owner);
  }

  /**
   * Gives out no number up to one that Pulsar's own log has.
   *
   * @param last the highest one there
   * @return done when the store knows
   */
  CompletableFuture<Void> startAbove(long last) {
    return openings.startAbove(last);
  }

  @Override
  public CompletableFuture<Void> addProducedPartitionToTxn(TxnID txnId, List<String> partitions) {
    return participants.addProduced(txnId, partitions);
  }

  @Override
  public CompletableFuture<Void> addAckedPartitionToTxn(
      TxnID txnId, List<TransactionSubscription> subscriptions) {
    return participants.addAcked(txnId, subscriptions);
  }

  @Override
  public CompletableFuture<Void> updateTxnStatus(
      TxnID txnId, TxnStatus newStatus, TxnStatus expected, boolean isTimeout) {
    try {
      term.requireReady("update the status of a transaction");
      ClientTransaction transaction = live.get(txnId.getLeastSigBits());
      if (transaction == null && (newStatus == TxnStatus.COMMITTED || newStatus == TxnStatus.ABORTED)) {
        return CompletableFuture.completedFuture(null); // it was ended, and somebody has asked again
      }
      transaction = live.require(txnId);
      if (transaction.status() == newStatus) {
        return CompletableFuture.completedFuture(null);
      }
      switch (newStatus) {
        case COMMITTING -> {
          return decision.decide(transaction, true, isTimeout);
        }
        case ABORTING -> {
          return decision.decide(transaction, false, isTimeout);
        }
        case COMMITTED, ABORTED -> {
          end.finish(transaction, newStatus, expected);
          return CompletableFuture.completedFuture(null);
        }
        default -> throw new InvalidTxnStatusException(txnId, newStatus, transaction.status());
      }
    } catch (Exception error) {
      return CompletableFuture.failedFuture(error);
    }
  }

  /**
   * Tells the store of what was ended while it did not answer. To be called from time to time.
   *
   * @return how many transactions the store is still to be told of
   */
  int tellAgain() {
    return end.tellAgain();
  }

  /**
   * Finds what is OPEN here, but was decided by others: an administrator, or whoever found its lease
   * over.
   *
   * @return what has to be ended in Pulsar's own topics
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  List<TxnID> decidedByOthers() {
    return lookups.decidedByOthers();
  }

  @Override
  public CompletableFuture<TxnMeta> getTxnMeta(TxnID txnId) {
    return lookups.find(txnId);
  }

  /** Tells whether a transaction is active here, and not decided. */
  boolean isOpen(long counter) {
    return live.isOpen(counter);
  }

  /** Tells whether a transaction is active here. */
  boolean isLive(TxnID txnId) {
    return live.get(txnId) != null;
  }

  /** Every older transaction is ended everywhere. */
  @Override
  public long getLowWaterMark() {
    return live.lowWaterMark();
  }

  @Override
  public TransactionCoordinatorID getTransactionCoordinatorID() {
    return term.id();
  }

  @Override
  public TransactionCoordinatorStats getCoordinatorStats() {
    TransactionCoordinatorStats shown = new TransactionCoordinatorStats();
    shown.setState(getState().name());
    shown.setLeastSigBits(live.last());
    shown.setLowWaterMark(getLowWaterMark());
    shown.setOngoingTxnSize(live.size());
    shown.setRecoverStartTime(recovery.startMs());
    shown.setRecoverEndTime(recovery.endMs());
    return shown;
  }

  @Override
  public TransactionMetadataStoreStats getMetadataStoreStats() {
    return counts.shown(term.id().getId(), live.size());
  }

  @Override
  public List<TxnMeta> getSlowTransactions(long timeout) {
    return live.all().stream()
        .filter(transaction -> transaction.getTimeoutAt() > timeout)
        .map(TxnMeta.class::cast)
        .toList();
  }

  @Override
  public CompletableFuture<Void> closeAsync() {
    term.close();
    return CompletableFuture.completedFuture(null);
  }
}
