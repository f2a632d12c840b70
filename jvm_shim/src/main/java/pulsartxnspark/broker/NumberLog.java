package pulsartxnspark.broker;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStore;
import org.apache.pulsar.transaction.coordinator.impl.MLTransactionSequenceIdGenerator;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;

/**
 * The numbers of transactions in Pulsar's own log of a coordinator. A topic of Pulsar's own remembers
 * which numbers were aborted, so that none may ever be given out twice, whoever gives them out.
 */
interface NumberLog {
  /** After which an entry is ended by its timeout, if its broker died before it ended it. */
  long ENDS_BY_ITSELF_MS = 3_600_000;

  /**
   * Gives the highest number that is given out or reserved.
   *
   * @return 0 or -1 if there is none
   */
  long last();

  /**
   * Reserves numbers, durably: whoever opens the log gives out higher ones.
   *
   * @param last the highest of them
   * @return done when it is in the log
   */
  CompletableFuture<Void> reserve(long last);

  /**
   * Gives the numbers of a log that is open.
   *
   * @param store of the log
   * @param numbers what gives them out
   * @return the numbers
   */
  static NumberLog of(TransactionMetadataStore store, MLTransactionSequenceIdGenerator numbers) {
    return new NumberLog() {
      @Override
      public long last() {
        return store.getCoordinatorStats().getLeastSigBits();
      }

      @Override
      public CompletableFuture<Void> reserve(long last) {
        if (last <= last()) {
          return CompletableFuture.completedFuture(null);
        }
        // A number stands in the log with the next entry: a transaction that nobody is told of.
        numbers.onManagedLedgerPropertiesInitialize(
            Map.of(MLTransactionSequenceIdGenerator.MAX_LOCAL_TXN_ID, Long.toString(last)));
        return store
            .newTransaction(ENDS_BY_ITSELF_MS, null)
            .thenCompose(
                txn ->
                    store
                        .updateTxnStatus(txn, TxnStatus.ABORTING, TxnStatus.OPEN, false)
                        .thenCompose(
                            done ->
                                store.updateTxnStatus(
                                    txn, TxnStatus.ABORTED, TxnStatus.ABORTING, false)));
      }
    };
  }
}
