package pulsartxnspark.broker;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.stream.Stream;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Progress;

/** A transaction is ended everywhere: Pulsar has told every topic, and the store is told. */
final class CoordinatorEnd {
  private static final Logger log = LoggerFactory.getLogger(MetadataTransactionCoordinator.class);
  private static final int TOLD_AT_ONCE = 100;

  private final CoordinatorParts parts;
  private final CoordinatorStore store;
  private final CoordinatorDecision decision;

  // Pulsar has ended these; the store is still to be told.
  private final ConcurrentNavigableMap<Long, ClientTransaction> untold =
      new ConcurrentSkipListMap<>();
  private volatile long lastTold = -1;

  /**
   * Makes one that has ended nothing.
   *
   * @param parts of the coordinator
   * @param decision materializes what was not materialized when it was decided
   */
  CoordinatorEnd(CoordinatorParts parts, CoordinatorDecision decision) {
    this.parts = parts;
    this.store = parts.store();
    this.decision = decision;
  }

  /** Ends a transaction at once: whoever opens the coordinator has Pulsar tell every topic again. */
  void finish(ClientTransaction transaction, TxnStatus newStatus, TxnStatus expected)
      throws InvalidTxnStatusException {
    transaction.updateTxnStatus(newStatus, expected);
    parts.counts().steps.increment();
    if (!transaction.reached(Progress.ENDED)) {
      untold.put(transaction.txn().counter(), transaction);
    }
    parts.live().remove(transaction);
    parts
        .counts()
        .ended(newStatus == TxnStatus.COMMITTED, parts.nowMs() - transaction.getOpenTimestamp());
    if (!transaction.reached(Progress.ENDED)) {
      tell(transaction);
    }
  }

  private void tell(ClientTransaction transaction) {
    if (!transaction.beginTelling()) {
      return;
    }
    CompletableFuture<Optional<Boolean>> together =
        transaction.reached(Progress.MATERIALIZED)
            ? store.endedTogether(transaction.txn()).thenApply(done -> Optional.of(done).filter(ended -> ended))
            : CompletableFuture.completedFuture(Optional.empty());
    parts
        .steps()
        .take(together, () -> tellAlone(transaction))
        .whenComplete(
            (done, later) -> {
              if (later == null) {
                untold.remove(transaction.txn().counter(), transaction);
              } else {
                log.info(
                    "transaction {} is ended, and the store is told later: {}",
                    transaction.txn(),
                    later.getMessage());
              }
              transaction.endTelling();
            });
  }

  private boolean tellAlone(ClientTransaction transaction) {
    if (!transaction.reached(Progress.MATERIALIZED)) {
      decision.materialize(transaction); // the store was away after it, or another broker decided
    }
    store.ended(transaction.txn());
    return true;
  }

  /**
   * Tells the store of some of what was ended while it did not answer.
   *
   * @return how many transactions the store is still to be told of
   */
  int tellAgain() {
    if (parts.term().isReady()) {
      // On from where the last call ended: some that fail for good must not keep others from it.
      List<ClientTransaction> some =
          Stream.concat(
                  untold.tailMap(lastTold, false).values().stream(),
                  untold.headMap(lastTold, true).values().stream())
              .limit(TOLD_AT_ONCE)
              .toList();
      some.forEach(
          transaction -> {
            lastTold = transaction.txn().counter();
            tell(transaction);
          });
    }
    return untold.size();
  }
}
