package pulsartxnspark.store;

/** How a writer stands in a segment. */
public sealed interface Fate {
  /**
   * Its transaction is not decided, or the decision not materialized.
   *
   * @param bound the position before everything that it appends
   */
  record Pinned(LogPosition bound) implements Fate {}

  /**
   * It has lost what it appended behind a position.
   *
   * @param keptTo the last position that counts
   */
  record Dropped(LogPosition keptTo) implements Fate {}

  /** All that it has appended counts. */
  record Won() implements Fate {}

  /** It is not pinned; whether it ever was was not asked. */
  record Unpinned() implements Fate {}
}
