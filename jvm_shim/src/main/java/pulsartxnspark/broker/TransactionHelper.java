package pulsartxnspark.broker;

import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Executor;
import java.util.function.LongSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.TransactionStore;

/**
 * Completes transactions on behalf of drivers that died, where they block the consumers of this
 * broker: aborts what is expired, and materializes what is decided. So do sweeps and readers, with
 * the same scripts; whoever comes first wins. Nothing depends on it but how long consumers wait.
 *
 * <p>It deals with one transaction at a time, and reads each at most once in a poll interval.
 */
final class TransactionHelper {
  private static final Logger log = LoggerFactory.getLogger(TransactionHelper.class);
  private static final int MOST_WAITING = 1_000; // others are named again by the next poll
  // An OPEN one is read before its lease is over too: it may be decided, and its driver dead.
  private static final int MOST_INTERVALS = 10;

  private final TransactionStore transactions;
  private final Executor threads;
  private final long pollIntervalMs;
  private final LongSupplier clockMs;

  // Guarded by this.
  private final Map<TransactionId, Known> known = new HashMap<>();
  private final Set<TransactionId> waiting = new LinkedHashSet<>();
  private boolean working;

  /**
   * What is remembered of a transaction.
   *
   * @param nextLookMs when its header is read again
   * @param missing whether it had no header when it was looked for last
   * @param complaint what the broker's log says of it already
   */
  private record Known(long nextLookMs, boolean missing, String complaint) {}

  /**
   * Makes a helper; it does nothing by itself.
   *
   * @param transactions what it asks and changes
   * @param threads for whatever waits for the store
   * @param pollIntervalMs least time between two reads of a transaction, in milliseconds
   * @param clockMs a clock that never goes back; leases are measured by the store's
   */
  TransactionHelper(
      TransactionStore transactions, Executor threads, long pollIntervalMs, LongSupplier clockMs) {
    this.transactions = transactions;
    this.threads = threads;
    this.pollIntervalMs = pollIntervalMs;
    this.clockMs = clockMs;
  }

  /**
   * Notes which transactions block a segment's consumers now; returns at once.
   *
   * @param txns as the store has just shown them
   */
  void inTheWay(Collection<TransactionId> txns) {
    long now = clockMs.getAsLong();
    synchronized (this) {
      forgetBefore(now - 2 * MOST_INTERVALS * pollIntervalMs);
      for (TransactionId txn : txns) {
        Known unfinished = known.get(txn);
        if (unfinished == null) {
          // Most are over until then, and cost nothing.
          known.put(txn, new Known(now + pollIntervalMs, false, null));
        } else if (unfinished.nextLookMs <= now && waiting.size() < MOST_WAITING) {
          waiting.add(txn);
        }
      }
      if (working || waiting.isEmpty()) {
        return;
      }
      working = true;
    }
    threads.execute(this::work);
  }

  /** Forgets those that nobody has named for long. */
  private void forgetBefore(long limitMs) {
    for (Iterator<Map.Entry<TransactionId, Known>> all = known.entrySet().iterator();
        all.hasNext(); ) {
      Map.Entry<TransactionId, Known> entry = all.next();
      if (entry.getValue().nextLookMs < limitMs && !waiting.contains(entry.getKey())) {
        all.remove();
      }
    }
  }

  private void work() {
    for (TransactionId txn = next(); txn != null; txn = next()) {
      try {
        Optional<Header> header = transactions.read(txn);
        if (header.isPresent()) {
          settle(txn, complete(header.get()), false, null);
        } else {
          // A header goes after its pins: the next poll tells whether the pin is still there.
          settle(txn, pollIntervalMs, true, wasMissing(txn) ? "it has a pin, but no header" : null);
        }
      } catch (StoreUnavailableException error) {
        settle(txn, pollIntervalMs, false, error.getMessage());
        postponeOthers(); // they would wait as long
      } catch (RuntimeException | Error error) { // else nobody would ever work again
        settle(txn, MOST_INTERVALS * pollIntervalMs, false, String.valueOf(error.getMessage()));
      }
    }
  }

  /** Does what is due, and returns after how long to do so again, in milliseconds. */
  private long complete(Header header) {
    if (header.state() == Header.State.OPEN) {
      if (!header.expired()) {
        return untilExpired(header);
      }
      transactions.abortExpired(header.txn());
      // What was decided, and by whom, only the header says. Its intents are all there are now.
      Header after = transactions.read(header.txn()).orElse(header);
      if (after.state() == Header.State.OPEN) {
        return untilExpired(after); // its owner came back in between
      }
      log.info("transaction {} was expired, and is {} now", after.txn(), after.state());
      transactions.materialize(after);
    } else if (header.nowMs() - header.finalizedMs() >= pollIntervalMs) {
      // Whether the header says so or not: what still is in the way is not materialized.
      transactions.materialize(header);
    }
    return pollIntervalMs;
  }

  private long untilExpired(Header header) {
    long leaseMs = header.deadlineMs() - header.nowMs();
    return Math.max(pollIntervalMs, Math.min(leaseMs, MOST_INTERVALS * pollIntervalMs));
  }

  private synchronized TransactionId next() {
    Iterator<TransactionId> first = waiting.iterator();
    working = first.hasNext();
    return working ? first.next() : null;
  }

  private synchronized boolean wasMissing(TransactionId txn) {
    return known.get(txn).missing;
  }

  private void settle(TransactionId txn, long pauseMs, boolean missing, String complaint) {
    boolean isNew;
    synchronized (this) {
      waiting.remove(txn);
      isNew = complaint != null && !complaint.equals(known.get(txn).complaint);
      known.put(txn, new Known(clockMs.getAsLong() + pauseMs, missing, complaint));
    }
    if (isNew) {
      log.warn("transaction {} is not completed, and blocks consumers: {}", txn, complaint);
    }
  }

  private synchronized void postponeOthers() {
    waiting.clear();
  }
}
