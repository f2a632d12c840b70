package pulsartxnspark.broker;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.function.Supplier;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TransactionRecoverTracker;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Answer;
import pulsartxnspark.store.CoordinatorStore.Owned;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TransactionId;

/** A broker opens a coordinator: it takes over what the one before has left. */
final class CoordinatorRecovery {
  private static final int TRIES = 3; // of a step

  private final CoordinatorParts parts;
  private final CoordinatorStore store;
  private volatile long startMs;
  private volatile long endMs;

  CoordinatorRecovery(CoordinatorParts parts) {
    this.parts = parts;
    this.store = parts.store();
  }

  long startMs() {
    return startMs;
  }

  long endMs() {
    return endMs;
  }

  /**
   * Fences whoever has served this coordinator before, and takes over what is not ended everywhere.
   *
   * @param tracker ends what is decided, and watches what is OPEN
   * @return done when the coordinator is ready
   */
  CompletableFuture<Void> recover(TransactionRecoverTracker tracker) {
    CoordinatorTerm term = parts.term();
    if (!term.begin()) {
      return CompletableFuture.failedFuture(term.notReady("recover"));
    }
    return parts
        .steps()
        .inBackground(
            () -> {
              startMs = parts.nowMs();
              // From here on nothing is created by others, so that the list is complete.
              term.setEpoch(repeated(() -> store.open(term.pulsarTc())));
              parts.live().raiseLast(repeated(() -> store.raiseCounter(term.pulsarTc(), 0)));
              for (TransactionId txn : repeated(() -> store.unended(term.pulsarTc()))) {
                takeOver(txn, tracker);
              }
              tracker.appendOpenTransactionToTimeoutTracker();
              if (!term.becomeReady()) {
                throw term.notReady("recover");
              }
              endMs = parts.nowMs();
              return null;
            });
  }

  /** Takes a step, and repeats it after a lost reply: the tracker must not be told anything twice. */
  private static <T> T repeated(Supplier<T> step) {
    for (int attempt = 1; ; attempt++) {
      try {
        return step.get();
      } catch (StoreUnavailableException error) {
        if (attempt == TRIES) {
          throw error; // Pulsar opens the coordinator anew when a client asks for it again
        }
      }
    }
  }

  private void takeOver(TransactionId txn, TransactionRecoverTracker tracker) throws Exception {
    Optional<Owned> stored = repeated(() -> store.read(txn));
    if (stored.isEmpty() || !parts.term().isOfThis(stored.get().header().nonce())) {
      return; // of another of Pulsar's coordinators
    }
    Owned owned = stored.get();
    Header header = owned.header();
    String nonce = parts.term().newNonce();
    if (header.state() == Header.State.OPEN) {
      Answer answer = repeated(() -> store.adopt(txn, header.nonce(), nonce));
      if (answer == Answer.FENCED) {
        throw parts.term().fenced();
      }
      if (answer != Answer.OK) {
        takeOver(txn, tracker); // decided in between: by whoever served it, or as expired
        return;
      }
    }
    // The intents after the decision, or after nobody else could add one.
    Header now = repeated(() -> store.read(txn)).map(Owned::header).orElse(header);
    ClientTransaction transaction = remembered(owned, now, nonce);
    parts.live().add(transaction);
    if (now.state() == Header.State.OPEN) {
      tracker.handleOpenStatusTransaction(
          txn.counter(), parts.nowMs() + Math.max(0, now.deadlineMs() - now.nowMs()));
    } else {
      // Its timeout must not find it OPEN.
      TxnStatus ending = ClientTransaction.ending(now.state());
      transaction.updateTxnStatus(ending, TxnStatus.OPEN);
      tracker.updateTransactionStatus(txn.counter(), ending);
    }
  }

  private ClientTransaction remembered(Owned owned, Header header, String nonce) {
    long openedMs = parts.nowMs() - (header.nowMs() - owned.createdMs());
    ClientTransaction transaction =
        new ClientTransaction(
            new TxnID(parts.term().pulsarTc(), header.txn().counter()),
            parts.writer(header.txn().counter()),
            nonce,
            owned.owner().isEmpty() ? null : owned.owner(),
            openedMs,
            header.deadlineMs() - owned.createdMs());
    transaction.noteIntents(header.intents());
    return transaction;
  }
}
