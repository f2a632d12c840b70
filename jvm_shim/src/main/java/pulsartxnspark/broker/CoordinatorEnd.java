package pulsartxnspark.broker;

import static pulsartxnspark.broker.CoordinatorSteps.patiently;

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
  void finish(ClientTransaction one, TxnStatus newStatus, TxnStatus expected)
      throws InvalidTxnStatusException {
    one.updateTxnStatus(newStatus, expected);
    parts.counts().steps.increment();
    if (!one.reached(Progress.ENDED)) {
      untold.put(one.txn().counter(), one);
    }
    parts.live().remove(one);
    parts
        .counts()
        .ended(newStatus == TxnStatus.COMMITTED, parts.nowMs() - one.getOpenTimestamp());
    if (!one.reached(Progress.ENDED)) {
      tell(one);
    }
  }

  private void tell(ClientTransaction one) {
    if (!one.beginTelling()) {
      return;
    }
    CompletableFuture<Optional<Boolean>> together =
        one.reached(Progress.MATERIALIZED)
            ? store.endedTogether(one.txn()).thenApply(done -> Optional.of(done).filter(told -> told))
            : CompletableFuture.completedFuture(Optional.empty());
    parts
        .steps()
        .take(together, () -> tellAlone(one))
        .whenComplete(
            (done, later) -> {
              if (later == null) {
                untold.remove(one.txn().counter(), one);
              } else {
                log.info(
                    "transaction {} is ended, and the store is told later: {}",
                    one.txn(),
                    later.getMessage());
              }
              one.endTelling();
            });
  }

  private boolean tellAlone(ClientTransaction one) {
    if (!one.reached(Progress.MATERIALIZED)) {
      decision.materialize(one); // the store was away after it, or another broker decided
    }
    return patiently(
        () -> {
          store.ended(one.txn());
          return true;
        });
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
          one -> {
            lastTold = one.txn().counter();
            tell(one);
          });
    }
    return untold.size();
  }
}
