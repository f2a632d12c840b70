package pulsartxnspark.store;

import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * When the time of a request is over, however many servers it asks.
 *
 * @param atMs by the clock, in milliseconds
 * @param clockMs a clock that never goes back
 */
record Deadline(long atMs, LongSupplier clockMs) {
  static final LongSupplier CLOCK_MS = () -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime());

  /** Begins a time of so many milliseconds. */
  static Deadline in(long ms, LongSupplier clockMs) {
    return new Deadline(clockMs.getAsLong() + ms, clockMs);
  }

  /** Gives how many milliseconds are left; 0 if it is over. */
  long leftMs() {
    return Math.max(0, atMs - clockMs.getAsLong());
  }

  boolean isOver() {
    return leftMs() == 0;
  }

  /** Gives an earlier one, after an equal part of what is left; at least 1 ms from now. */
  Deadline share(int parts) {
    return in(Math.max(1, leftMs() / parts), clockMs);
  }
}
