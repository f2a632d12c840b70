package pulsartxnspark.store;

/** The metadata store did not answer, or what it answered must not be relied on. */
public sealed class StoreException extends RuntimeException
    permits StoreUnavailableException, StoreRolledBackException, StoreCorruptException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message what happened, what was expected, and what to do; without secrets
   * @param cause what the client library said, or null
   */
  protected StoreException(String message, Throwable cause) {
    super(message, cause);
  }
}
