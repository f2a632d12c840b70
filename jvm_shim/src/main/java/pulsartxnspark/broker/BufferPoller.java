package pulsartxnspark.broker;

import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import pulsartxnspark.broker.BufferWriters.OngoingWriter;
import pulsartxnspark.broker.BufferWriters.State;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.SegmentStore.Query;
import pulsartxnspark.store.TransactionId;

/** Polls the fates of the writers that block consumers: upon events, and from time to time. */
final class BufferPoller {
  private final BufferParts parts;
  private final BrokerStore store;
  private final BufferWriters writers;
  private final Runnable poll = this::poll;
  private final LongAdder committed = new LongAdder();
  private final LongAdder aborted = new LongAdder();
  private volatile Future<?> polling; // null until it begins

  // Guarded by the monitor of the writers.
  private boolean isPolling;
  private boolean pollAgain;

  BufferPoller(BufferParts parts) {
    this.parts = parts;
    this.store = parts.store();
    this.writers = parts.writers();
  }

  /** Polls from now on. */
  void begin() {
    if (store.events() != null) {
      store.events().follow(parts.segment(), poll);
    }
    polling =
        store
            .threads()
            .scheduleWithFixedDelay(
                poll, store.pollIntervalMs(), store.pollIntervalMs(), TimeUnit.MILLISECONDS);
  }

  void close() {
    polling.cancel(false);
    if (store.events() != null) {
      store.events().leave(parts.segment(), poll);
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

  /** Polls by a thread of the store's. */
  void poll() {
    synchronized (writers) {
      if (writers.state() != State.Ready || writers.all().isEmpty()) {
        return;
      }
      pollAgain = true;
      if (!isPolling) {
        isPolling = true;
        store.threads().execute(this::settle);
      }
    }
  }

  private void settle() {
    try {
      for (List<OngoingWriter> polled = nextPoll(); !polled.isEmpty(); polled = nextPoll()) {
        List<Query> queries =
            polled.stream().map(writer -> new Query(writer.id, writer.pinnedAt)).toList();
        apply(polled, store.segments().fates(parts.segment(), queries));
      }
    } catch (RuntimeException | Error error) {
      // Fail closed through the maximum only: what is filtered once cannot be taken back.
      parts
          .complaints()
          .complain("does not learn which transactions are decided, and shows nothing new", error);
      stopPolling();
    }
  }

  private void stopPolling() {
    synchronized (writers) {
      isPolling = false;
    }
  }

  /** Gives the writers to ask for; none ends the poll. */
  private List<OngoingWriter> nextPoll() {
    synchronized (writers) {
      List<OngoingWriter> polled = List.of();
      if (writers.state() == State.Ready && pollAgain) {
        polled = writers.all().stream().filter(writer -> writer.pinnedAt != null).toList();
      }
      pollAgain = false;
      isPolling = !polled.isEmpty();
      return polled;
    }
  }

  private void apply(List<OngoingWriter> polled, List<Fate> fates) {
    release(polled, fates);
    writers.announce();
    if (store.helper() != null) {
      Set<TransactionId> pinned = new LinkedHashSet<>();
      for (int i = 0; i < polled.size(); i++) {
        if (fates.get(i) instanceof Fate.Pinned) {
          pinned.add(polled.get(i).id.txn());
        }
      }
      store.helper().inTheWay(pinned);
    }
  }

  private void release(List<OngoingWriter> polled, List<Fate> fates) {
    Set<TransactionId> won = new HashSet<>();
    Set<TransactionId> lost = new HashSet<>();
    synchronized (writers) {
      parts.complaints().clear();
      for (int i = 0; i < polled.size(); i++) {
        OngoingWriter writer = polled.get(i);
        TransactionId txn = writer.id.txn();
        if (fates.get(i) instanceof Fate.Dropped drop) {
          parts.filter().drop(writer.id.bits(), drop.keptTo());
          lost.add(txn);
          writers.remove(writer);
        } else if (fates.get(i) instanceof Fate.Won) {
          won.add(txn);
          writers.remove(writer);
        }
      }
      lost.removeAll(won);
      committed.add(won.size());
      aborted.add(lost.size());
      writers.advance();
    }
  }
}
