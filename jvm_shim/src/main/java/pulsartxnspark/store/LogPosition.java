package pulsartxnspark.store;

import java.util.Locale;

/**
 * An entry of a segment's log, ordered by ledger and entry.
 *
 * @param ledger ledger id; -1 stands before every ledger
 * @param entry entry id; -1 stands before the ledger's first entry
 */
public record LogPosition(long ledger, long entry) implements Comparable<LogPosition> {
  /** Before every entry. */
  public static final LogPosition EARLIEST = new LogPosition(-1, -1);

  /**
   * Reads the form in which the store sorts positions as text.
   *
   * @param text two numbers of 20 digits, each greater by one than what it stands for
   * @return the position
   */
  public static LogPosition ofPadded(String text) {
    int colon = text.indexOf(':');
    return new LogPosition(
        Long.parseLong(text.substring(0, colon)) - 1, Long.parseLong(text.substring(colon + 1)) - 1);
  }

  /**
   * Gives the form in which the store sorts positions as text.
   *
   * @return the inverse of {@link #ofPadded}
   */
  public String padded() {
    // Some locales have digits of their own, which the store does not order.
    return String.format(Locale.ROOT, "%020d:%020d", ledger + 1, entry + 1);
  }

  @Override
  public int compareTo(LogPosition other) {
    int byLedger = Long.compare(ledger, other.ledger);
    return byLedger != 0 ? byLedger : Long.compare(entry, other.entry);
  }

  @Override
  public String toString() {
    return ledger + ":" + entry;
  }
}
