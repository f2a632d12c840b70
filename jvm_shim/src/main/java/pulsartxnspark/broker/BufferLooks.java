package pulsartxnspark.broker;

import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import pulsartxnspark.broker.BufferHolds.Hold;
import pulsartxnspark.broker.BufferHolds.State;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.SegmentStore.Query;
import pulsartxnspark.store.TransactionId;

/** Looks at the fates of the writers that hold consumers: upon events, and from time to time. */
final class BufferLooks {
  private final BufferParts parts;
  private final BrokerStore store;
  private final BufferHolds holds;
  private final Runnable look = this::look;
  private final LongAdder committed = new LongAdder();
  private final LongAdder aborted = new LongAdder();
  private volatile Future<?> polling; // null until it begins

  // Guarded by the holds' monitor.
  private boolean looking;
  private boolean lookAgain;

  BufferLooks(BufferParts parts) {
    this.parts = parts;
    this.store = parts.store();
    this.holds = parts.holds();
  }

  /** Looks from now on. */
  void begin() {
    if (store.events() != null) {
      store.events().follow(parts.segment(), look);
    }
    polling =
        store
            .threads()
            .scheduleWithFixedDelay(
                look, store.pollIntervalMs(), store.pollIntervalMs(), TimeUnit.MILLISECONDS);
  }

  void close() {
    polling.cancel(false);
    if (store.events() != null) {
      store.events().leave(parts.segment(), look);
    }
  }

  /** Gives how many transactions of this segment were seen to be committed. */
  long committed() {
    return committed.sum();
  }

  /** Gives how many transactions of this segment were seen to be aborted. */
  long aborted() {
    return aborted.sum();
  }

  /** Looks by a thread of the store's. */
  void look() {
    synchronized (holds) {
      if (holds.state() != State.Ready || holds.all().isEmpty()) {
        return;
      }
      lookAgain = true;
      if (!looking) {
        looking = true;
        store.threads().execute(this::settle);
      }
    }
  }

  private void settle() {
    try {
      for (List<Hold> asked = nextLook(); !asked.isEmpty(); asked = nextLook()) {
        List<Query> queries = asked.stream().map(one -> new Query(one.writer, one.pinnedAt)).toList();
        carryOut(asked, store.segments().fates(parts.segment(), queries));
      }
    } catch (RuntimeException error) {
      // Fail closed through the maximum only: what is filtered once cannot be taken back.
      parts
          .complaints()
          .complain("does not learn which transactions are decided, and shows nothing new", error);
      stopLooking();
    }
  }

  private void stopLooking() {
    synchronized (holds) {
      looking = false;
    }
  }

  /** Gives the writers to ask for; none ends the look. */
  private List<Hold> nextLook() {
    synchronized (holds) {
      List<Hold> asked = List.of();
      if (holds.state() == State.Ready && lookAgain) {
        asked = holds.all().stream().filter(one -> one.pinnedAt != null).toList();
      }
      lookAgain = false;
      looking = !asked.isEmpty();
      return asked;
    }
  }

  private void carryOut(List<Hold> asked, List<Fate> fates) {
    release(asked, fates);
    holds.announce();
    if (store.helper() != null) {
      Set<TransactionId> pinned = new LinkedHashSet<>();
      for (int i = 0; i < asked.size(); i++) {
        if (fates.get(i) instanceof Fate.Pinned) {
          pinned.add(asked.get(i).writer.txn());
        }
      }
      store.helper().inTheWay(pinned);
    }
  }

  private void release(List<Hold> asked, List<Fate> fates) {
    Set<TransactionId> won = new HashSet<>();
    Set<TransactionId> lost = new HashSet<>();
    synchronized (holds) {
      parts.complaints().clear();
      for (int i = 0; i < asked.size(); i++) {
        Hold hold = asked.get(i);
        TransactionId txn = hold.writer.txn();
        if (fates.get(i) instanceof Fate.Dropped drop) {
          parts.filter().drop(hold.writer.bits(), drop.keptTo());
          lost.add(txn);
          holds.remove(hold);
        } else if (fates.get(i) instanceof Fate.Won) {
          won.add(txn);
          holds.remove(hold);
        }
      }
      lost.removeAll(won);
      committed.add(won.size());
      aborted.add(lost.size());
      holds.advance();
    }
  }
}
