package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import pulsartxnspark.broker.BufferWriters.OngoingWriter;
import pulsartxnspark.broker.BufferWriters.State;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.Gate;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.WriterId;

/** A buffer learns what is open and what is dropped. Until then it shows nothing to consumers. */
final class BufferRecovery {
  private final BufferParts parts;
  private final String storeUuid;
  private final BufferAppends appends;
  private final CompletableFuture<Void> recovered = new CompletableFuture<>();
  private final long startMs = System.currentTimeMillis();
  private volatile long endMs;

  /**
   * Makes one that has not begun.
   *
   * @param parts of the buffer
   * @param storeUuid the metadata store that the segment's transactions are in
   * @param appends what waits for the end of the recovery
   */
  BufferRecovery(BufferParts parts, String storeUuid, BufferAppends appends) {
    this.parts = parts;
    this.storeUuid = storeUuid;
    this.appends = appends;
  }

  long startMs() {
    return startMs;
  }

  long endMs() {
    return endMs;
  }

  /** Is done when the buffer is ready, and fails when it is closed before. */
  CompletableFuture<Void> recovered() {
    return recovered;
  }

  /** Recovers by a thread of the store's. */
  void begin() {
    parts.store().threads().execute(() -> recover(BufferParts.FIRST_PAUSE_MS));
  }

  private void recover(long pauseMs) {
    if (parts.writers().state() != State.Recovering) {
      return;
    }
    BrokerStore store = parts.store();
    try {
      store.segments().requireIdentity(storeUuid);
      // Also where Pulsar has the coordinators now: the floor is for what they had in the store (INV-5).
      parts.coordinators().learn(store.segments());
      // INV-4: the LAC first. The ledger is this broker's alone since it was opened.
      Position confirmed = parts.topic().lastConfirmed();
      Gate gate = store.segments().gate(parts.segment());
      List<OngoingWriter> ongoing = ongoing(gate);
      raiseForClients(ongoing, confirmed);
      begin(confirmed, gate, ongoing);
    } catch (RuntimeException | Error error) {
      parts.complaints().complain("is recovering and shows nothing to consumers", error);
      store
          .threads()
          .schedule(
              () -> recover(Math.min(2 * pauseMs, BufferParts.LONGEST_PAUSE_MS)),
              pauseMs,
              TimeUnit.MILLISECONDS);
    }
  }

  private static List<OngoingWriter> ongoing(Gate gate) {
    List<OngoingWriter> ongoing = new ArrayList<>();
    for (Gate.Pin pin : gate.pins()) {
      WriterId id =
          WriterId.ofName(pin.writer())
              .orElseThrow(
                  () -> new IllegalStateException("a pin of " + pin.writer() + ", not of a writer"));
      ongoing.add(new OngoingWriter(id, position(pin.bound()), pin.bound()));
    }
    return ongoing;
  }

  /**
   * Lets the store know how far the log goes, if clients of Pulsar's own may have entries there without
   * receipts. They send those again, and deduplication acknowledges them unseen by {@link Receipts}. The
   * decision names no positions, and the floor would rise over what committed (INV-5).
   */
  private void raiseForClients(List<OngoingWriter> ongoing, Position confirmed) {
    CoordinatorStore coordinators = parts.store().coordinators();
    boolean ofClients = ongoing.stream().anyMatch(writer -> !writer.id.bits().isOwn());
    if (coordinators != null && ofClients && confirmed.getEntryId() >= 0) {
      LogPosition last = new LogPosition(confirmed.getLedgerId(), confirmed.getEntryId());
      coordinators.raise(parts.segment(), last);
    }
  }

  private void begin(Position confirmed, Gate gate, List<OngoingWriter> ongoing) {
    long firstLedger = parts.topic().firstLedger();
    BufferWriters writers = parts.writers();
    synchronized (writers) {
      if (writers.state() != State.Recovering) {
        return;
      }
      parts.filter().load(gate, firstLedger);
      ongoing.forEach(writers::add);
      parts.complaints().clear();
      endMs = System.currentTimeMillis();
      writers.becomeReady(confirmed);
      appends.begin();
      writers.advance(); // what was appended meanwhile
    }
    writers.announce();
    recovered.complete(null);
  }

  private static Position position(LogPosition bound) {
    return PositionFactory.create(bound.ledger(), bound.entry());
  }
}
