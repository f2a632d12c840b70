package pulsartxnspark.store;

/**
 * Id of a transaction.
 *
 * @param tc id of its coordinator, 16 bits
 * @param counter of the transaction in there, never used again
 */
public record TransactionId(int tc, long counter) {
  /**
   * Gives the form in which it stands in the store.
   *
   * @return coordinator and counter
   */
  public String key() {
    return tc + ":" + counter;
  }

  @Override
  public String toString() {
    return "(" + tc + "," + counter + ")";
  }
}
