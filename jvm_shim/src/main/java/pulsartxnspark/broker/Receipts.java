package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.LogPosition;

/**
 * Gives the receipts of transactions that clients of Pulsar's own have opened, once the metadata store
 * knows how far the segment goes. A driver names its last positions in its decision; such a client
 * does not. So every acknowledged entry lies at or before the store's high-position, whatever an older
 * owner of the topic says of its end (INV-5).
 *
 * <p>One request is under way at a time. What comes meanwhile shares the next one.
 */
final class Receipts {
  private static final Logger log = LoggerFactory.getLogger(Receipts.class);
  private static final long FIRST_PAUSE_MS = 100; // before the store is asked again; doubled
  private static final long LONGEST_PAUSE_MS = 5_000;

  private final String segment;
  private final CoordinatorStore store;
  private final ScheduledExecutorService threads;

  // Guarded by this.
  private final List<Receipt> waiting = new ArrayList<>();
  private boolean asking;
  private Exception closed;

  private record Receipt(Position position, CompletableFuture<Position> done) {}

  /**
   * Makes one that has nothing to confirm.
   *
   * @param segment its id
   * @param store what learns of the positions
   * @param threads for whatever waits for the store
   */
  Receipts(String segment, CoordinatorStore store, ScheduledExecutorService threads) {
    this.segment = segment;
    this.store = store;
    this.threads = threads;
  }

  /**
   * Gives a receipt when the store knows its position; returns at once.
   *
   * @param position of an entry that is in the log
   * @param done the receipt
   */
  void confirm(Position position, CompletableFuture<Position> done) {
    Exception refused;
    boolean begins = false;
    synchronized (this) {
      refused = closed;
      if (refused == null) {
        waiting.add(new Receipt(position, done));
        begins = !asking;
        asking = true;
      }
    }
    if (refused != null) {
      done.completeExceptionally(refused);
    } else if (begins) {
      threads.execute(this::raise);
    }
  }

  private void raise() {
    List<Receipt> some = next();
    if (!some.isEmpty()) {
      Position highest = some.stream().map(Receipt::position).max(Position::compareTo).orElseThrow();
      LogPosition last = new LogPosition(highest.getLedgerId(), highest.getEntryId());
      raise(some, last);
    }
  }

  private synchronized List<Receipt> next() {
    List<Receipt> some = List.copyOf(waiting);
    waiting.clear();
    asking = !some.isEmpty();
    return some;
  }

  private void raise(List<Receipt> some, LogPosition highest) {
    store
        .raiseTogether(segment, highest)
        .exceptionally(unknown -> false)
        .thenAccept(
            known -> {
              if (known) {
                give(some);
              } else {
                threads.execute(() -> raiseAlone(some, highest, FIRST_PAUSE_MS));
              }
            });
  }

  private void raiseAlone(List<Receipt> some, LogPosition highest, long pauseMs) {
    try {
      store.raise(segment, highest);
    } catch (RuntimeException error) {
      Exception refused;
      synchronized (this) {
        refused = closed;
      }
      if (refused != null) {
        some.forEach(receipt -> receipt.done().completeExceptionally(refused));
        return;
      }
      if (pauseMs == FIRST_PAUSE_MS) {
        log.warn("Segment {}: receipts wait for the metadata store: {}", segment, error.getMessage());
      }
      threads.schedule(
          () -> raiseAlone(some, highest, Math.min(2 * pauseMs, LONGEST_PAUSE_MS)),
          pauseMs,
          TimeUnit.MILLISECONDS);
      return;
    }
    give(some);
  }

  private void give(List<Receipt> some) {
    some.forEach(receipt -> receipt.done().complete(receipt.position()));
    raise();
  }

  /**
   * Gives no more receipts.
   *
   * @param why what those get that wait
   */
  void close(Exception why) {
    List<Receipt> refused;
    synchronized (this) {
      closed = why;
      refused = List.copyOf(waiting);
      waiting.clear();
    }
    refused.forEach(receipt -> receipt.done().completeExceptionally(why));
  }
}
