package pulsartxnspark.broker;

import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TransactionTimeoutTracker;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.ReachMaxActiveTxnException;
import pulsartxnspark.store.CoordinatorStore;

/** Clients open transactions, up to a limit. */
final class CoordinatorOpenings {
  private final CoordinatorParts parts;
  private final CoordinatorStore store;
  private final TransactionTimeoutTracker timeouts;
  private final long mostActive; // 0: any number

  /**
   * Makes one that has opened nothing.
   *
   * @param parts of the coordinator
   * @param timeouts aborts what takes too long
   * @param mostActive how many transactions may be active at once; 0 for any number
   */
  CoordinatorOpenings(
      CoordinatorParts parts, TransactionTimeoutTracker timeouts, long mostActive) {
    this.parts = parts;
    this.store = parts.store();
    this.timeouts = timeouts;
    this.mostActive = mostActive;
  }

  /** Opens a transaction; the owner is null if nobody has authenticated. */
  CompletableFuture<TxnID> open(long timeoutMs, String owner) {
    CoordinatorTerm term = parts.term();
    LiveTransactions live = parts.live();
    if (mostActive > 0 && live.size() >= mostActive) {
      return CompletableFuture.failedFuture(
          new ReachMaxActiveTxnException(
              "coordinator "
                  + term.id()
                  + " has "
                  + mostActive
                  + " active transactions already"));
    }
    if (owner != null && owner.isBlank()) {
      return CompletableFuture.failedFuture(new IllegalArgumentException("the owner is blank"));
    }
    if (!term.isReady()) {
      return CompletableFuture.failedFuture(term.notReady("new transaction"));
    }
    Object ticket = live.beginCreating();
    String nonce = term.newNonce();
    long openedMs = parts.nowMs();
    String role = owner == null ? "" : owner;
    // One nonce gets one transaction, however often it asks.
    return parts
        .steps()
        .take(
            store.createTogether(term.pulsarTc(), nonce, role, timeoutMs),
            () -> {
              term.requireReady("new transaction");
              return store
                  .create(term.pulsarTc(), nonce, role, timeoutMs)
                  .orElseThrow(term::fence);
            })
        .thenApply(
            txn -> {
              long counter = txn.counter();
              TxnID shown = new TxnID(term.pulsarTc(), counter);
              live.add(
                  new ClientTransaction(
                      shown, parts.writer(counter), nonce, owner, openedMs, timeoutMs));
              live.raiseLast(counter);
              timeouts.addTransaction(counter, timeoutMs);
              parts.counts().created.increment();
              return shown;
            })
        .whenComplete((txn, error) -> live.endCreating(ticket));
  }

  /** Gives out no number up to one that Pulsar's own log has. */
  CompletableFuture<Void> startAbove(long last) {
    return parts
        .steps()
        .patiently(
            () -> {
              int pulsarTc = parts.term().pulsarTc();
              parts.live().raiseLast(store.raiseCounter(pulsarTc, Math.max(0, last)));
              return null;
            });
  }
}
