package pulsartxnspark.broker;

import io.netty.buffer.ByteBuf;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.protocol.Commands;
import pulsartxnspark.broker.BufferAppend.Refusal;
import pulsartxnspark.broker.BufferWriters.OngoingWriter;
import pulsartxnspark.broker.BufferWriters.State;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.SegmentStore.Query;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/** Producers write to a segment in transactions: consumers are blocked, then the entry is appended. */
final class BufferAppends {
  private final BufferParts parts;
  private final BrokerStore store;
  private final BufferWriters writers;
  private final Receipts receipts; // null where no client of Pulsar's own has transactions
  private final OrderedAnswers answers = new OrderedAnswers(); // to clients of Pulsar's own

  // Guarded by the monitor of the writers.
  private final Deque<BufferAppend> waiting = new ArrayDeque<>(); // for the end of the recovery
  // Of Pulsar's own clients: one producer may have several transactions, and takes receipts in order.
  private final Deque<BufferAppend> inOrder = new ArrayDeque<>();

  BufferAppends(BufferParts parts) {
    this.parts = parts;
    this.store = parts.store();
    this.writers = parts.writers();
    this.receipts =
        store.coordinators() == null
            ? null
            : new Receipts(parts.segment(), store.coordinators(), store.threads());
  }

  /** Appends an entry, or refuses it. */
  CompletableFuture<Position> take(TxnID txn, ByteBuf entry) {
    CompletableFuture<Position> reply = new CompletableFuture<>();
    // Its index is left as it is.
    MessageMetadata metadata =
        Commands.peekMessageMetadata(entry, MetadataTransactionBuffer.KIND, -1);
    boolean isOwn = new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits()).isOwn();
    CompletableFuture<Position> done =
        isOwn || metadata == null ? reply : answers.next(metadata.getProducerName(), reply);
    String refusal = refusal(txn, metadata);
    if (refusal != null) {
      done.completeExceptionally(Refusal.INVALID.of(txn, refusal));
      return reply;
    }
    // All producers of a transaction of Pulsar's own clients are one writer, named by its bits.
    WriterId named = WriterId.ofName(metadata.getProducerName()).orElse(null);
    int messages = metadata.hasNumMessagesInBatch() ? metadata.getNumMessagesInBatch() : 1;
    entry.retain(); // until it was appended or refused
    BufferAppend append = new BufferAppend(txn, entry, messages, done, named);
    boolean closed;
    synchronized (writers) {
      closed = writers.state() == State.Closed;
      if (writers.state() == State.Recovering) {
        waiting.add(append);
      } else if (!closed) {
        appendInOrder(append);
      }
    }
    if (closed) {
      append.refuse(new ServiceUnitNotReadyException("the topic is being closed"));
    }
    return reply;
  }

  /** Says why the bits of an entry are not those of its writer, null if they are. */
  private String refusal(TxnID txn, MessageMetadata metadata) {
    TxnBits bits = new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits());
    if (!bits.isOwn() && store.coordinators() == null) {
      return "a transaction of Pulsar's own cannot write to a gated segment: the broker's"
          + " transactionMetadataStoreProviderClassName is not that of pulsar_txn_spark";
    }
    if (metadata == null || !metadata.hasTxnidMostBits() || !metadata.hasTxnidLeastBits()) {
      return "the entry's metadata has no transaction bits: every consumer would see it";
    }
    TxnBits stored = new TxnBits(metadata.getTxnidMostBits(), metadata.getTxnidLeastBits());
    Optional<WriterId> writer = WriterId.ofName(metadata.getProducerName());
    boolean agrees = bits.isOwn() ? writer.isPresent() && writer.get().bits().equals(bits)
        : writer.isEmpty();
    if (!stored.equals(bits) || !agrees) {
      return "the transaction bits are not those of the producer " + metadata.getProducerName();
    }
    return null;
  }

  /** Appends what has waited for the end of the recovery; called with the monitor. */
  void begin() {
    List<BufferAppend> due = List.copyOf(waiting);
    waiting.clear();
    due.forEach(this::appendInOrder);
  }

  /** Blocks consumers, then appends; called with the monitor. */
  private void appendInOrder(BufferAppend append) {
    OngoingWriter writer = writerOf(append);
    if (!append.bits().isOwn()) {
      inOrder.add(append);
      appendClients();
    } else if (writer.pinnedAt == null) {
      writer.waiting.add(append);
    } else {
      appendNow(append);
    }
  }

  /** Gives an entry's writer, who asks for admission with the first one. */
  private OngoingWriter writerOf(BufferAppend append) {
    TxnBits bits = append.bits();
    OngoingWriter ongoing = writers.get(bits);
    if (ongoing != null) {
      return ongoing;
    }
    WriterId id = bits.isOwn() ? append.named() : parts.coordinators().writer(bits);
    Optional<CoordinatorStore.Pin> known =
        bits.isOwn() || store.pins() == null
            ? Optional.empty()
            : store.pins().take(parts.segment(), id);
    // A store that loses the pin is noticed: no pin and no dropped writer would stand for a commit.
    known.ifPresent(pin -> store.segments().raiseSeen(parts.segment(), pin.state()));
    LogPosition pinnedAt = known.map(CoordinatorStore.Pin::position).orElse(null);
    // INV-2: before the append. Between a ledger's change and the callback the LAC has moved.
    OngoingWriter fresh = new OngoingWriter(id, parts.topic().lastConfirmed(), pinnedAt);
    writers.add(fresh);
    if (pinnedAt != null) {
      return fresh;
    }
    long deadlineMs = store.clockMs().getAsLong() + BufferParts.LONGEST_PAUSE_MS;
    store.threads().execute(() -> admit(fresh, deadlineMs, BufferParts.FIRST_PAUSE_MS, true));
    return fresh;
  }

  /** Appends what Pulsar's own clients have sent, up to the first one that is not admitted yet. */
  private void appendClients() {
    for (BufferAppend first = inOrder.peek(); first != null; first = inOrder.peek()) {
      if (writerOf(first).pinnedAt == null) {
        return;
      }
      appendNow(inOrder.remove());
    }
  }

  private void appendNow(BufferAppend append) {
    try {
      parts
          .topic()
          .append(
              append.entry(),
              append.messages(),
              new SegmentLog.Appended() {
                @Override
                public void succeeded(Position position) {
                  parts.topic().forgetLastDispatchable();
                  if (receipts == null || append.bits().isOwn()) {
                    append.done().complete(position); // the driver's decision says how far it got
                  } else {
                    receipts.confirm(position, append.done());
                  }
                }

                @Override
                public void failed(Exception error) {
                  // It may be in the log: consumers stay blocked until the writer's fate is known.
                  append.done().completeExceptionally(error);
                }
              });
    } finally {
      append.entry().release();
    }
  }

  /**
   * Asks the store for a writer's pin, until it answers. A writer of this package waits until a deadline:
   * its task sends the rows again. The store is asked twice at least. Where a connection was lost
   * unnoticed, the first question takes all of the time; the next one gets another connection. A client of
   * Pulsar's own waits without limit, and the broker bounds what it has under way: its receipts wait for
   * the store as well.
   */
  private void admit(OngoingWriter writer, long deadlineMs, long pauseMs, boolean isFirst) {
    if (writers.state() == State.Closed) {
      return; // closing has refused whatever waited
    }
    Fate fate;
    try {
      Query query = new Query(writer.id, null);
      fate = store.segments().fates(parts.segment(), List.of(query)).get(0);
    } catch (RuntimeException error) {
      if (!writer.id.bits().isOwn()) {
        parts.complaints().complain("lets messages of clients wait for the metadata store", error);
        admitLater(writer, deadlineMs, pauseMs, Math.min(2 * pauseMs, BufferParts.LONGEST_PAUSE_MS));
      } else if (error instanceof StoreUnavailableException
          && (isFirst || store.clockMs().getAsLong() < deadlineMs)) {
        admitLater(writer, deadlineMs, pauseMs, pauseMs);
      } else {
        turnAway(writer, Refusal.UNAVAILABLE, String.valueOf(error.getMessage()));
      }
      return;
    }
    if (!(fate instanceof Fate.Pinned pinned)) {
      turnAway(
          writer,
          Refusal.FENCED,
          "writer "
              + writer.id.name()
              + " has no pin in segment "
              + parts.segment()
              + ": its transaction is decided, or it was never admitted");
      return;
    }
    synchronized (writers) {
      if (writers.state() == State.Closed) {
        return; // closing has refused whatever waited
      }
      writer.pinnedAt = pinned.bound();
      writer.waiting.forEach(this::appendNow);
      writer.waiting.clear();
      appendClients();
    }
  }

  private void admitLater(OngoingWriter writer, long deadlineMs, long pauseMs, long nextPauseMs) {
    store
        .threads()
        .schedule(
            () -> admit(writer, deadlineMs, nextPauseMs, false), pauseMs, TimeUnit.MILLISECONDS);
  }

  /** Refuses a writer of which nothing was appended. */
  private void turnAway(OngoingWriter writer, Refusal refusal, String why) {
    List<BufferAppend> refused;
    synchronized (writers) {
      TxnBits bits = writer.id.bits();
      writers.remove(writer);
      refused = new ArrayList<>(writer.waiting);
      writer.waiting.clear();
      inOrder.stream().filter(append -> append.bits().equals(bits)).forEach(refused::add);
      inOrder.removeIf(append -> append.bits().equals(bits));
      appendClients();
      writers.advance();
    }
    writers.announce();
    refused.forEach(append -> append.refuse(refusal.of(append.txn(), why)));
  }

  /** Closes the writers, and refuses whatever waits. */
  void close(Exception closed) {
    List<BufferAppend> refused = new ArrayList<>();
    synchronized (writers) {
      writers.close();
      refused.addAll(waiting);
      waiting.clear();
      refused.addAll(inOrder);
      inOrder.clear();
      for (OngoingWriter writer : writers.all()) {
        refused.addAll(writer.waiting);
        writer.waiting.clear();
      }
    }
    refused.forEach(append -> append.refuse(closed));
    if (receipts != null) {
      receipts.close(closed);
    }
  }
}
