package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.AckSetStateUtil;
import org.apache.commons.lang3.tuple.MutablePair;

/**
 * One acknowledgement of a transaction, as a client has sent it.
 *
 * @param cumulative whether it stands for everything up to its one position
 * @param entries what it acknowledges
 */
record AckRecord(boolean cumulative, List<Entry> entries) {
  private static final int HEXADECIMAL = 16;

  /**
   * An entry of the topic, or some messages of its batch.
   *
   * @param ledger id of the ledger
   * @param entry number of the entry in there
   * @param batchSize number of messages in it; 0 if the client has not said
   * @param left bits of the messages that are not acknowledged, lowest word first; null for all of it
   */
  record Entry(long ledger, long entry, int batchSize, long[] left) {
    static Entry of(Position position, int batchSize) {
      long[] left = AckSetStateUtil.getAckSetArrayOrNull(position);
      return new Entry(
          position.getLedgerId(), position.getEntryId(), batchSize, left == null ? null : left.clone());
    }

    /** Gives the position as Pulsar has it: a new one, as Pulsar changes what it gets. */
    Position position() {
      return left == null
          ? PositionFactory.create(ledger, entry)
          : AckSetStateUtil.createPositionWithAckSet(ledger, entry, left.clone());
    }

    /** Gives the position without its batch. */
    Position key() {
      return PositionFactory.create(ledger, entry);
    }

    private String text() {
      String words =
          left == null
              ? "-"
              : Arrays.stream(left).mapToObj(Long::toHexString).collect(Collectors.joining("."));
      return ledger + ":" + entry + ":" + batchSize + ":" + words;
    }

    private static Entry parse(String text) {
      String[] parts = text.split(":", -1);
      long[] left = null;
      if (!"-".equals(parts[3])) {
        left =
            Arrays.stream(parts[3].split("\\."))
                .filter(word -> !word.isEmpty())
                .mapToLong(word -> Long.parseUnsignedLong(word, HEXADECIMAL))
                .toArray();
      }
      return new Entry(
          Long.parseLong(parts[0]), Long.parseLong(parts[1]), Integer.parseInt(parts[2]), left);
    }
  }

  static AckRecord individual(List<MutablePair<Position, Integer>> positions) {
    return new AckRecord(
        false, positions.stream().map(position -> Entry.of(position.getLeft(), position.getRight())).toList());
  }

  static AckRecord cumulative(Position position) {
    return new AckRecord(true, List.of(Entry.of(position, 0)));
  }

  /** Gives the last position. */
  Position last() {
    return entries.stream().map(Entry::key).max(Position::compareTo).orElseThrow();
  }

  /** Gives the record as it stands in the store. */
  String text() {
    List<String> words = new ArrayList<>(List.of(cumulative ? "C" : "I"));
    entries.forEach(entry -> words.add(entry.text()));
    return String.join(" ", words);
  }

  static AckRecord parse(String text) {
    List<String> words = List.of(text.split(" "));
    return new AckRecord(
        "C".equals(words.get(0)), words.stream().skip(1).map(Entry::parse).toList());
  }
}
