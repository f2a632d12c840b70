package pulsartxnspark.broker;

import java.util.Optional;
import org.apache.pulsar.client.api.transaction.TxnID;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.StoreException;
import pulsartxnspark.store.TransactionStore;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/** What became of transactions of Pulsar's clients: their headers say. */
interface Decisions {
  /** What a header says. */
  enum Decision {
    /** Nothing yet. */
    OPEN,
    /** It counts. */
    COMMITTED,
    /** Nothing of it counts. */
    ABORTED,
    /** There is no header: the transaction is not one of the metadata store, or over long ago. */
    ABSENT
  }

  /**
   * Reads what became of a transaction.
   *
   * @param txn Pulsar's id of it
   * @return what its header says
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Decision of(TxnID txn);

  /**
   * Gives the id by which the store knows a transaction.
   *
   * @param txn Pulsar's id of it
   * @return its writer, with the id
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  WriterId writer(TxnID txn);

  /** Reads headers in the metadata store. */
  static Decisions of(TransactionStore transactions, CoordinatorStore coordinators) {
    return new Decisions() {
      @Override
      public Decision of(TxnID txn) {
        TxnBits bits = new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits());
        if (bits.isOwn()) {
          return Decision.ABSENT; // of this package's writers, which acknowledge nothing here
        }
        // A coordinator of the store may have those of several of Pulsar's.
        String nonces = CoordinatorTerm.NONCE_PREFIX + bits.tc() + "-";
        Optional<Header> header =
            transactions.read(writer(txn).txn()).filter(stored -> stored.nonce().startsWith(nonces));
        return header.map(stored -> Decision.valueOf(stored.state().name())).orElse(Decision.ABSENT);
      }

      @Override
      public WriterId writer(TxnID txn) {
        return WriterId.ofPulsar(
            new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits()), coordinators.coordinators());
      }
    };
  }
}
