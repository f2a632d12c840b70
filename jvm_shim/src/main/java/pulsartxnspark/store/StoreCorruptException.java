package pulsartxnspark.store;

/** A record of the metadata store makes no sense: what it says is not guessed. */
public final class StoreCorruptException extends StoreException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes an exception.
   *
   * @param message what is wrong with which record, and what to do
   * @param cause what could not be read, or null
   */
  public StoreCorruptException(String message, Throwable cause) {
    super(message, cause);
  }
}
