package pulsartxnspark.broker;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Answer;
import pulsartxnspark.store.CoordinatorStore.Ending;
import pulsartxnspark.store.CoordinatorStore.Progress;

/** A transaction is decided by the header's compare-and-set, and the segments learn of it. */
final class CoordinatorDecision {
  private static final Logger log = LoggerFactory.getLogger(MetadataTransactionCoordinator.class);

  private final CoordinatorParts parts;
  private final CoordinatorStore store;

  CoordinatorDecision(CoordinatorParts parts) {
    this.parts = parts;
    this.store = parts.store();
  }

  /** Decides an OPEN transaction; done when it is decided. */
  CompletableFuture<Void> decide(ClientTransaction transaction, boolean commit, boolean isTimeout)
      throws Exception {
    if (transaction.status() != TxnStatus.OPEN) {
      throw new InvalidTxnStatusException(transaction.id(), TxnStatus.OPEN, transaction.status());
    }
    if (!transaction.beginEnding()) {
      // Asked again soon.
      throw parts.term().notReady("end a transaction while participants are registered");
    }
    List<String> segments = transaction.segments();
    // Before the decision: nothing is admitted by them after it.
    parts.pins().forget(segments, transaction.writer());
    parts.counts().steps.increment();
    Ending ending =
        new Ending(transaction.txn(), transaction.nonce(), transaction.writer(), commit ? segments : null, isTimeout);
    return parts
        .steps()
        .take(
            store.endTogether(ending, transaction.intents(), !transaction.hasPulsars()),
            () -> decideAlone(transaction, ending))
        .thenAccept(reached -> decided(transaction, commit, isTimeout, reached));
  }

  private Progress decideAlone(ClientTransaction transaction, Ending ending) throws Exception {
    boolean commit = ending.segments() != null;
    Answer wanted = commit ? Answer.COMMITTED : Answer.ABORTED;
    // A lost reply may have decided: asked again, the store says what.
    Answer answer = store.end(ending);
    if (answer == Answer.FENCED) {
      throw parts.term().fence();
    }
    if (answer == Answer.ABSENT) {
      parts.live().remove(transaction);
      throw new TransactionNotFoundException(transaction.id());
    }
    if (answer != Answer.OK && answer != wanted) {
      throw new InvalidTxnStatusException(
          transaction.id(),
          commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING,
          ClientTransaction.over(answer));
    }
    return Progress.DECIDED;
  }

  private void decided(
      ClientTransaction transaction, boolean commit, boolean isTimeout, Progress reached) {
    transaction.note(reached);
    transaction.noteDecided(commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING);
    if (isTimeout) {
      parts.counts().timedOut.increment();
    }
    if (!transaction.reached(Progress.MATERIALIZED)) {
      parts
          .steps()
          .patiently(() -> materialize(transaction))
          .exceptionally(
              later -> {
                log.info(
                    "transaction {} is decided, and materialized later: {}",
                    transaction.txn(),
                    later.getMessage());
                return false;
              });
    }
  }

  /** Materializes a decision in every segment; waits for the store. */
  boolean materialize(ClientTransaction transaction) {
    store.read(transaction.txn()).ifPresent(owned -> store.materialize(owned.header()));
    transaction.note(Progress.MATERIALIZED);
    return true;
  }
}
