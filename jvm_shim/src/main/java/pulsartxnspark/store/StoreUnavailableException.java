package pulsartxnspark.store;

/** No answer came from the metadata store: asking again is safe, and may help. */
public final class StoreUnavailableException extends StoreException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message what happened and what to do; without secrets
   * @param cause what the client library said, or null
   */
  public StoreUnavailableException(String message, Throwable cause) {
    super(message, cause);
  }
}
