package pulsartxnspark.store;

/** The metadata store is another one than expected, or has lost acknowledged writes (INV-11, INV-14). */
public final class StoreRolledBackException extends StoreException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message what was expected and found, and what to do
   */
  public StoreRolledBackException(String message) {
    super(message, null);
  }
}
