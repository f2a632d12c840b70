package pulsartxnspark.store;

import com.google.protobuf.CodedInputStream;
import com.google.protobuf.CodedOutputStream;
import com.google.protobuf.WireFormat;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * What was decided with a transaction: the record {@code Outcome} of {@code
 * pulsar_txn_spark/store/metadata.proto}, as far as its materialization needs it.
 *
 * @param winners writers that count; all others of the transaction lost
 * @param seen by tag, its state at the decision: it has to be in the tag's past
 */
public record Outcome(List<Winner> winners, Map<String, Seen> seen) {
  /** Nothing counts. */
  public static final Outcome NONE = new Outcome(List.of(), Map.of());

  private static final int WINNERS = 1;
  private static final int LAST_SEEN = 2;
  private static final int CAUSE = 3;
  private static final int HISTORIES = 60;

  /**
   * A writer of which the entries in a segment count.
   *
   * @param segment its id
   * @param writer its name
   * @param bound the last position that counts; null if all of them do
   * @param last its highest receipt; null if it has none
   */
  public record Winner(String segment, String writer, LogPosition bound, LogPosition last) {}

  /**
   * Reads a record. Fields that it does not know are left out.
   *
   * @param record as it stands in a header
   * @return the outcome
   * @throws StoreException if it is no such record
   */
  public static Outcome parse(byte[] record) {
    List<Winner> winners = new ArrayList<>();
    Map<String, Long> numbers = new HashMap<>();
    Map<String, String> histories = new HashMap<>();
    CodedInputStream in = CodedInputStream.newInstance(record);
    try {
      for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
        switch (WireFormat.getTagFieldNumber(tag)) {
          case WINNERS -> winners.add(winner(in.readByteArray()));
          case LAST_SEEN -> readEntry(in.readByteArray(), value -> value.readUInt64(), numbers);
          case HISTORIES ->
              readEntry(in.readByteArray(), value -> value.readStringRequireUtf8(), histories);
          default -> in.skipField(tag);
        }
      }
    } catch (IOException error) {
      throw new StoreCorruptException(
          "the outcome of a transaction cannot be read: restore the metadata store", error);
    }
    Map<String, Seen> seen = new HashMap<>();
    numbers.forEach((tag, number) -> seen.put(tag, new Seen(number, histories.getOrDefault(tag, ""))));
    return new Outcome(List.copyOf(winners), Map.copyOf(seen));
  }

  /** Reads one value of a map. */
  private interface Value<T> {
    T read(CodedInputStream in) throws IOException;
  }

  private static <T> void readEntry(byte[] record, Value<T> reader, Map<String, T> into)
      throws IOException {
    CodedInputStream in = CodedInputStream.newInstance(record);
    String key = "";
    T value = null;
    for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
      switch (WireFormat.getTagFieldNumber(tag)) {
        case 1 -> key = in.readStringRequireUtf8();
        case 2 -> value = reader.read(in);
        default -> in.skipField(tag);
      }
    }
    if (value != null) { // left out is a default, which says nothing here
      into.put(key, value);
    }
  }

  private static Winner winner(byte[] record) throws IOException {
    CodedInputStream in = CodedInputStream.newInstance(record);
    String segment = "";
    String writer = "";
    LogPosition bound = null;
    LogPosition last = null;
    for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
      switch (WireFormat.getTagFieldNumber(tag)) {
        case 1 -> segment = in.readStringRequireUtf8();
        case 2 -> writer = in.readStringRequireUtf8();
        case 3 -> bound = position(in.readByteArray());
        case 4 -> last = position(in.readByteArray());
        default -> in.skipField(tag);
      }
    }
    return new Winner(segment, writer, bound, last);
  }

  private static LogPosition position(byte[] record) throws IOException {
    CodedInputStream in = CodedInputStream.newInstance(record);
    long ledger = 0;
    long entry = 0;
    for (int tag = in.readTag(); tag != 0; tag = in.readTag()) {
      switch (WireFormat.getTagFieldNumber(tag)) {
        case 1 -> ledger = in.readSInt64();
        case 2 -> entry = in.readSInt64();
        default -> in.skipField(tag);
      }
    }
    return new LogPosition(ledger, entry);
  }

  /**
   * Makes the record of a commit in which one writer counts, with all its entries.
   *
   * @param writer its name
   * @param segments where it has written
   * @param seen states of their tags, by tag: what is decided is refused where they are not known
   * @return the record
   */
  static byte[] commitRecord(String writer, Collection<String> segments, Map<String, Seen> seen) {
    return record(
        out -> {
          for (String segment : segments) {
            byte[] winner =
                record(
                    nested -> {
                      nested.writeString(1, segment);
                      nested.writeString(2, writer);
                    });
            out.writeByteArray(WINNERS, winner);
          }
          for (Map.Entry<String, Seen> state : seen.entrySet()) {
            String tag = state.getKey();
            out.writeByteArray(LAST_SEEN, entry(tag, nested -> nested.writeUInt64(2, state.getValue().seq())));
            String history = state.getValue().history();
            if (!history.isEmpty()) {
              out.writeByteArray(HISTORIES, entry(tag, nested -> nested.writeString(2, history)));
            }
          }
        });
  }

  /** Writes the fields of a record. */
  private interface Fields {
    void writeTo(CodedOutputStream out) throws IOException;
  }

  private static byte[] entry(String key, Fields value) {
    return record(
        out -> {
          out.writeString(1, key);
          value.writeTo(out);
        });
  }

  private static byte[] record(Fields fields) {
    ByteArrayOutputStream record = new ByteArrayOutputStream();
    CodedOutputStream out = CodedOutputStream.newInstance(record);
    try {
      fields.writeTo(out);
      out.flush();
    } catch (IOException error) {
      throw new IllegalStateException("memory takes every byte", error);
    }
    return record.toByteArray();
  }

  /**
   * Makes the record of an abort.
   *
   * @param cause stands in the header, for people
   * @return an outcome without winners
   */
  static byte[] abortRecord(String cause) {
    return record(out -> out.writeString(CAUSE, cause));
  }
}
