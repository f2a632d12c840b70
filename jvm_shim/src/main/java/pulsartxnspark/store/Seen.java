package pulsartxnspark.store;

/**
 * A state of a tag that somebody has seen.
 *
 * @param seq the tag's sequence number then
 * @param history that the number belongs to; empty if that is not known
 */
public record Seen(long seq, String history) {
  /** Reads the form in which scripts return it. */
  static Seen of(Object value) {
    String text = String.valueOf(value);
    int blank = text.indexOf(' ');
    return blank < 0
        ? new Seen(Long.parseLong(text), "")
        : new Seen(Long.parseLong(text.substring(0, blank)), text.substring(blank + 1));
  }
}
