package pulsartxnspark.store;

import java.util.List;
import java.util.Map;

/**
 * What decides how much of a segment may be read, as it stands in one step of the store (INV-4).
 *
 * @param pins all of them
 * @param dropped writer's name to the last position that counts
 * @param floor TC id to the counter below which nothing is read
 */
public record Gate(List<Pin> pins, Map<String, LogPosition> dropped, Map<Integer, Long> floor) {
  /** Of a segment to which no transaction has ever written. */
  public static final Gate PLAIN = new Gate(List.of(), Map.of(), Map.of());

  /**
   * A writer that is not resolved.
   *
   * @param writer its name
   * @param bound the position before everything that it appends
   */
  public record Pin(String writer, LogPosition bound) {}
}
