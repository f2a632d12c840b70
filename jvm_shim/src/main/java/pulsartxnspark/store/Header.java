package pulsartxnspark.store;

import java.util.List;

/**
 * The header of a transaction, read in one step with its intents. Times are those of the store's
 * clock, in milliseconds since 1970.
 *
 * @param txn whose it is
 * @param state whether it is decided, and how
 * @param nonce of its owner
 * @param deadlineMs when its lease ends
 * @param finalizedMs when it was decided; 0 if it is OPEN
 * @param nowMs when it was read
 * @param outcome which writers count; {@link Outcome#NONE} if it is OPEN
 * @param intents its participants; all of them, once it is decided
 */
public record Header(
    TransactionId txn,
    State state,
    String nonce,
    long deadlineMs,
    long finalizedMs,
    long nowMs,
    Outcome outcome,
    List<String> intents) {
  /** OPEN is left once, to one of the two others. */
  public enum State {
    /** Not decided. */
    OPEN,
    /** Decided: its winners count. */
    COMMITTED,
    /** Decided: nothing of it counts. */
    ABORTED
  }

  /**
   * Tells whether the lease was over at the reading.
   *
   * @return whether anybody may abort it, if it is OPEN
   */
  public boolean expired() {
    return deadlineMs <= nowMs;
  }
}
