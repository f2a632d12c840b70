package pulsartxnspark.broker;

import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/**
 * The writers of a segment whose fate is not known, and how far consumers may read for their sake.
 *
 * <p>Whatever may take the topic's own lock runs without this one's monitor: a topic that closes holds
 * its lock, and asks for the monitor.
 */
final class BufferHolds {
  /** How far the buffer is. */
  enum State {
    Recovering,
    Ready,
    Closed
  }

  /** Keeps consumers behind a position until one writer's fate is known. */
  static final class Hold {
    final WriterId writer;
    final Position bound;
    final Deque<BufferAppend> waiting = new ArrayDeque<>();
    LogPosition pinnedAt; // null until the store has shown the pin: nothing is appended before

    Hold(WriterId writer, Position bound, LogPosition pinnedAt) {
      this.writer = writer;
      this.bound = bound;
      this.pinnedAt = pinnedAt;
    }
  }

  private final SegmentLog topic;
  private final BufferLastEntry last;

  // Read without the monitor.
  private volatile Position maxReadPosition = PositionFactory.EARLIEST;
  private volatile State state = State.Recovering;

  // Guarded by this.
  private final Map<TxnBits, Hold> holds = new LinkedHashMap<>();
  private Position announced = PositionFactory.EARLIEST; // the maximum that the topic knows of

  BufferHolds(SegmentLog topic, BufferLastEntry last) {
    this.topic = topic;
    this.last = last;
  }

  State state() {
    return state;
  }

  Position maxReadPosition() {
    return maxReadPosition;
  }

  /** Gives the hold of a writer; null if it has none. Called with the monitor, as those below. */
  Hold get(TxnBits bits) {
    return holds.get(bits);
  }

  Collection<Hold> all() {
    return holds.values();
  }

  void add(Hold hold) {
    holds.put(hold.writer.bits(), hold);
  }

  void remove(Hold hold) {
    holds.remove(hold.writer.bits(), hold);
  }

  /** Ends the recovery: consumers may read what was there, up to the lowest hold. */
  void becomeReady(Position confirmed) {
    Position lowest = lowest().orElse(confirmed);
    state = State.Ready;
    moveTo(lowest.compareTo(confirmed) < 0 ? lowest : confirmed);
  }

  void close() {
    state = State.Closed;
  }

  private Optional<Position> lowest() {
    return holds.values().stream().map(one -> one.bound).min(Position::compareTo);
  }

  /** Moves the maximum as far as the holds allow. */
  void advance() {
    if (state == State.Ready) {
      moveTo(lowest().orElseGet(topic::lastConfirmed));
    }
  }

  private void moveTo(Position position) {
    if (maxReadPosition.compareTo(position) < 0) {
      maxReadPosition = position;
    }
  }

  /** Moves the maximum behind an entry that is in no transaction; called without the monitor. */
  void published() {
    synchronized (this) {
      if (holds.isEmpty()) {
        // Whoever had a transactional entry before this one in the log would have a hold.
        advance();
      }
    }
    announce();
  }

  /** Lets the topic know of a maximum that has moved; called without the monitor. */
  void announce() {
    Position before;
    Position now;
    synchronized (this) {
      before = announced;
      now = maxReadPosition;
      announced = now;
    }
    if (before.compareTo(now) < 0) {
      topic.moved(before, now);
      last.moved();
    }
  }

  /** Gives where a writer's hold is, for statistics; null if it has none. */
  synchronized Position bound(TxnBits bits) {
    Hold hold = holds.get(bits);
    return hold == null ? null : hold.bound;
  }

  /** Gives how many transactions hold consumers, for statistics. */
  synchronized long transactions() {
    return holds.values().stream().map(one -> one.writer.txn()).distinct().count();
  }
}
