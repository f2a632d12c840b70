package pulsartxnspark.broker;

import io.netty.buffer.ByteBuf;
import java.util.Map;
import org.apache.bookkeeper.mledger.AsyncCallbacks;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;

/** The log of a topic of the broker. */
final class PersistentTopicLog implements SegmentLog {
  private final PersistentTopic topic;

  PersistentTopicLog(PersistentTopic topic) {
    this.topic = topic;
  }

  @Override
  public String name() {
    return topic.getName();
  }

  /**
   * Gives the position of the last entry. The LAC of a segment that was sealed behind a rollover is in
   * a ledger without entries. A broker that looks for the last message there finds none.
   */
  @Override
  public Position lastConfirmed() {
    ManagedLedger ledger = topic.getManagedLedger();
    Position confirmed = ledger.getLastConfirmedEntry();
    return confirmed.getEntryId() < 0 ? ledger.getPreviousPosition(confirmed) : confirmed;
  }

  @Override
  public long firstLedger() {
    Map.Entry<Long, ?> first = topic.getManagedLedger().getLedgersInfo().firstEntry();
    return first == null ? Long.MAX_VALUE : first.getKey();
  }

  @Override
  public void append(ByteBuf entry, int messages, Appended done) {
    AsyncCallbacks.AddEntryCallback callback =
        new AsyncCallbacks.AddEntryCallback() {
          @Override
          public void addComplete(Position position, ByteBuf data, Object context) {
            done.succeeded(position);
          }

          @Override
          public void addFailed(ManagedLedgerException error, Object context) {
            done.failed(error);
          }
        };
    topic.getManagedLedger().asyncAddEntry(entry, messages, callback, null);
  }

  @Override
  public void moved(Position before, Position now) {
    topic.getMaxReadPositionCallBack().maxReadPositionMovedForward(before, now);
    topic.updateLastDispatchablePosition(null);
  }

  @Override
  public void forgetLastDispatchable() {
    topic.updateLastDispatchablePosition(null);
  }
}
