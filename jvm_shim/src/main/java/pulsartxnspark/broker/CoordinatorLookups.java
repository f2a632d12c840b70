package pulsartxnspark.broker;

import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TxnMeta;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Owned;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.WriterId;

/** Looks in the store for what the coordinator does not know of transactions. */
final class CoordinatorLookups {
  private final CoordinatorParts parts;
  private final CoordinatorStore store;

  CoordinatorLookups(CoordinatorParts parts) {
    this.parts = parts;
    this.store = parts.store();
  }

  /** Gives a transaction, also if it was ended before. */
  CompletableFuture<TxnMeta> find(TxnID txnId) {
    CoordinatorTerm term = parts.term();
    ClientTransaction transaction = parts.live().get(txnId);
    if (transaction != null) {
      return CompletableFuture.completedFuture(transaction);
    }
    if (txnId.getMostSigBits() != term.pulsarTc() || txnId.getLeastSigBits() < 0) {
      return CompletableFuture.failedFuture(new TransactionNotFoundException(txnId));
    }
    if (!term.isReady()) {
      return CompletableFuture.failedFuture(term.notReady("look for a transaction"));
    }
    return parts.steps().patiently(() -> ended(txnId));
  }

  /** Whoever asks again after a lost reply gets the same answer again. Nothing is left to do. */
  private TxnMeta ended(TxnID txnId) throws Exception {
    WriterId writer = parts.writer(txnId.getLeastSigBits());
    Owned owned =
        store
            .read(writer.txn())
            .filter(stored -> parts.term().isOfThis(stored.header().nonce()))
            .orElseThrow(() -> new TransactionNotFoundException(txnId));
    Header header = owned.header();
    if (parts.term().isBefore(header.nonce())) {
      throw parts.term().fence();
    }
    if (header.state() == Header.State.OPEN) {
      throw new TransactionNotFoundException(txnId); // nobody was told of it
    }
    ClientTransaction over =
        new ClientTransaction(
            txnId,
            writer,
            header.nonce(),
            owned.owner().isEmpty() ? null : owned.owner(),
            owned.createdMs(),
            header.deadlineMs() - owned.createdMs());
    return over.updateTxnStatus(ClientTransaction.ending(header.state()), TxnStatus.OPEN);
  }

  /**
   * Finds what is OPEN here, but was aborted by others: an administrator, or whoever found its lease
   * over.
   *
   * @return what has to be ended in Pulsar's own topics
   */
  List<TxnID> decidedByOthers() {
    ClientTransaction first = parts.live().first();
    if (!parts.term().isReady() || first == null) {
      return List.of();
    }
    List<ClientTransaction> before = List.copyOf(parts.live().all());
    Set<Long> open = new HashSet<>(store.open(parts.term().pulsarTc(), first.txn().counter()));
    return before.stream()
        .filter(transaction -> !open.contains(transaction.txn().counter()))
        .filter(transaction -> transaction.status() == TxnStatus.OPEN && !isCommittedHere(transaction))
        .map(ClientTransaction::id)
        .toList();
  }

  /** Tells whether the store has a commit of this coordinator's, whose reply is under way. */
  private boolean isCommittedHere(ClientTransaction transaction) {
    return store
        .read(transaction.txn())
        .map(Owned::header)
        .filter(header -> header.state() == Header.State.COMMITTED)
        .filter(header -> header.nonce().equals(transaction.nonce()))
        .isPresent();
  }
}
