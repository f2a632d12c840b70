package pulsartxnspark.broker;

import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * Has readers told anew which entry is the last, after the maximum has moved.
 *
 * <p>The topic searches for that entry when a reader asks, and notes it at the search's end. A search
 * that began before a move may end after it: what the move shows would never be announced. So what is
 * noted is forgotten again: soon, as most searches are over by then, and after growing pauses.
 */
final class BufferLastEntry {
  static final int TIMES = 7;
  private static final long SOON_MS = 20;

  private final SegmentLog topic;
  private final ScheduledExecutorService threads;
  private final long pollIntervalMs;

  // Guarded by this.
  private int round; // a new one begins with a move, and the older one ends
  private int times; // of this round
  private Future<?> due; // null while the last move was long ago
  private boolean closed;

  BufferLastEntry(SegmentLog topic, ScheduledExecutorService threads, long pollIntervalMs) {
    this.topic = topic;
    this.threads = threads;
    this.pollIntervalMs = pollIntervalMs;
  }

  /** Begins anew; called without the monitor of the writers. */
  synchronized void moved() {
    if (closed || (due != null && times == 0)) {
      return; // one that is due soon is enough for many moves
    }
    if (due != null) {
      due.cancel(false);
    }
    times = 0;
    int fresh = ++round;
    due = threads.schedule(() -> forget(fresh), SOON_MS, TimeUnit.MILLISECONDS);
  }

  private void forget(int of) {
    synchronized (this) {
      if (closed || of != round) {
        return;
      }
      times++;
      long pauseMs = pollIntervalMs << (times - 1);
      due =
          times < TIMES
              ? threads.schedule(() -> forget(of), pauseMs, TimeUnit.MILLISECONDS)
              : null;
    }
    topic.forgetLastDispatchable(); // may wait for the topic's lock
  }

  synchronized void close() {
    closed = true;
    if (due != null) {
      due.cancel(false);
    }
  }
}
