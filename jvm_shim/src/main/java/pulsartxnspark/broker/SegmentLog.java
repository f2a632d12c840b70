package pulsartxnspark.broker;

import io.netty.buffer.ByteBuf;
import org.apache.bookkeeper.mledger.Position;

/** What a transaction buffer needs of the topic that it belongs to. */
interface SegmentLog {
  /** The topic's name, for messages. */
  String name();

  /** The LAC: where the last entry is. Where there is none, its entry is -1. */
  Position lastConfirmed();

  /** The id of the first ledger that the log has; the highest number where it has none. */
  long firstLedger();

  /**
   * Appends an entry; entries get into the log in the order of the calls.
   *
   * @param entry is retained as long as need be
   * @param messages in the entry
   * @param done is called once, by any thread
   */
  void append(ByteBuf entry, int messages, Appended done);

  /** Notes that consumers may read further, or that what was last in the log has changed. */
  void moved(Position before, Position now);

  /** Notes that the last entry that may be dispatched is not known any more. */
  void forgetLastDispatchable();

  /** What came of an append. */
  interface Appended {
    /** The entry is in the log. */
    void succeeded(Position position);

    /** The entry may be in the log or not. */
    void failed(Exception error);
  }
}
