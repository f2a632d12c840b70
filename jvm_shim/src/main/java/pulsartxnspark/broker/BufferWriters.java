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
final class BufferWriters {
  /** How far the buffer is. */
  enum State {
    Recovering,
    Ready,
    Closed
  }

  /** A writer that blocks consumers at its bound until its fate is known. */
  static final class OngoingWriter {
    final WriterId id;
    final Position bound;
    final Deque<BufferAppend> waiting = new ArrayDeque<>();
    LogPosition pinnedAt; // null until the store has shown the pin: nothing is appended before

    OngoingWriter(WriterId id, Position bound, LogPosition pinnedAt) {
      this.id = id;
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
  private final Map<TxnBits, OngoingWriter> writers = new LinkedHashMap<>();
  private Position announced = PositionFactory.EARLIEST; // the maximum that the topic knows of

  BufferWriters(SegmentLog topic, BufferLastEntry last) {
    this.topic = topic;
    this.last = last;
  }

  State state() {
    return state;
  }

  Position maxReadPosition() {
    return maxReadPosition;
  }

  /** Gives a writer by its bits; null if it is not ongoing. Called with the monitor, as those below. */
  OngoingWriter get(TxnBits bits) {
    return writers.get(bits);
  }

  Collection<OngoingWriter> all() {
    return writers.values();
  }

  void add(OngoingWriter writer) {
    writers.put(writer.id.bits(), writer);
  }

  void remove(OngoingWriter writer) {
    writers.remove(writer.id.bits(), writer);
  }

  /** Ends the recovery: consumers may read what was there, up to the lowest bound. */
  void becomeReady(Position confirmed) {
    Position lowest = lowest().orElse(confirmed);
    state = State.Ready;
    moveTo(lowest.compareTo(confirmed) < 0 ? lowest : confirmed);
  }

  void close() {
    state = State.Closed;
  }

  private Optional<Position> lowest() {
    return writers.values().stream().map(writer -> writer.bound).min(Position::compareTo);
  }

  /** Moves the maximum as far as the writers allow. */
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

  /**
   * Moves the maximum behind an entry that is in no transaction; called without the monitor. The topic
   * is not told of a marker of Pulsar's own, as nobody reads it. Each snapshot of replicated
   * subscriptions is one, and a topic that is told of it writes the next.
   */
  void published(boolean isMarker) {
    synchronized (this) {
      if (writers.isEmpty()) {
        // Whoever had a transactional entry before this one in the log would be ongoing.
        advance();
      }
    }
    if (!isMarker) {
      announce();
    }
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

  /** Gives where a writer blocks consumers, for statistics; null if it does not. */
  synchronized Position bound(TxnBits bits) {
    OngoingWriter writer = writers.get(bits);
    return writer == null ? null : writer.bound;
  }

  /** Gives how many transactions block consumers, for statistics. */
  synchronized long transactions() {
    return writers.values().stream().map(writer -> writer.id.txn()).distinct().count();
  }
}
