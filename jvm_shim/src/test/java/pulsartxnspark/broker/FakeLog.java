package pulsartxnspark.broker;

import io.netty.buffer.ByteBuf;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;

/** A topic's log in memory, whose acknowledgements the test gives. */
final class FakeLog implements SegmentLog {
  /** An append that was not acknowledged yet. */
  record Sent(ByteBuf entry, int messages, Appended done) {}

  final List<Sent> sent = new ArrayList<>();
  volatile Object bufferLock;
  volatile boolean calledWithLock;
  volatile Position lastDispatchable; // which the topic notes; null while it is not known
  volatile long firstLedger; // what lies before was deleted
  volatile int moves; // that the topic was told of
  private Position last = PositionFactory.create(1, -1);

  @Override
  public String name() {
    return "persistent://public/default/fake";
  }

  @Override
  public synchronized Position lastConfirmed() {
    return last;
  }

  @Override
  public long firstLedger() {
    return firstLedger;
  }

  @Override
  public synchronized void append(ByteBuf entry, int messages, Appended done) {
    sent.add(new Sent(entry.copy(), messages, done));
  }

  synchronized int appends() {
    return sent.size();
  }

  @Override
  public synchronized void moved(Position before, Position now) {
    noteLock();
    moves++;
    if (now.compareTo(before) <= 0) {
      throw new AssertionError("the maximum moved back from " + before + " to " + now);
    }
    lastDispatchable = null;
  }

  @Override
  public synchronized void forgetLastDispatchable() {
    noteLock();
    lastDispatchable = null;
  }

  /** Notes a call that could wait for the topic's lock while the buffer's is held. */
  void noteLock() {
    calledWithLock |= bufferLock != null && Thread.holdsLock(bufferLock);
  }

  /** Lets an entry into the log, as a ledger's change does it: the LAC first, its callback not yet. */
  synchronized Position store() {
    last = PositionFactory.create(last.getLedgerId(), last.getEntryId() + 1);
    return last;
  }

  /** Lets an append into the log, and acknowledges it. */
  Position acknowledge(int number) {
    Position position;
    Sent one;
    synchronized (this) {
      position = store();
      one = sent.get(number);
    }
    one.done().succeeded(position);
    return position;
  }
}
