package pulsartxnspark.store;

import java.util.Map;
import java.util.Optional;

/**
 * What a broker does with transactions on behalf of drivers that died. It never commits: which
 * writers count is known to the owner alone.
 */
public interface TransactionStore {
  /**
   * Reads a header and its intents in one step.
   *
   * @param txn which transaction
   * @return its header; nothing if there is none
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Optional<Header> read(TransactionId txn);

  /**
   * Aborts a transaction that is OPEN if its lease is over by the store's clock (INV-1). Read the
   * header afterwards: it says what is decided, whoever did it.
   *
   * @param txn which transaction
   * @throws StoreException if the store does not answer: it may be aborted or not
   */
  void abortExpired(TransactionId txn);

  /**
   * Reads what scripts and processes have counted of transactions.
   *
   * @return by coordinator, the counts by their fields
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Map<Integer, Map<String, Long>> counts();

  /**
   * Materializes a decision in every segment of its transaction, each in one step (INV-3).
   *
   * @param header as it was read after the decision
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  void materialize(Header header);
}
