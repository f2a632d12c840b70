package pulsartxnspark.broker;

import io.netty.buffer.ByteBuf;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.broker.transaction.buffer.AbortedTxnProcessor;
import org.apache.pulsar.broker.transaction.buffer.TransactionBuffer;
import org.apache.pulsar.broker.transaction.buffer.TransactionBufferReader;
import org.apache.pulsar.broker.transaction.buffer.TransactionMeta;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.policies.data.TransactionBufferStats;
import org.apache.pulsar.common.policies.data.TransactionInBufferStats;
import org.apache.pulsar.common.protocol.Commands;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Gate;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.SegmentStore.Query;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/**
 * The transaction buffer of a gated segment: no consumer gets past an entry whose transaction is
 * undecided, and none gets an entry that lost. What is decided stands in the metadata store; nothing
 * is written into the topic. {@code docs/broker.md} has the states and the table of failures.
 *
 * <p>Whatever may take the topic's own lock runs without this one's: a topic that closes holds its
 * lock, and asks for this one.
 */
public final class MetadataTransactionBuffer implements TransactionBuffer {
  /** Stands in the statistics where Pulsar's own buffer names the type of its snapshots. */
  public static final String KIND = "pulsar_txn_spark";

  private static final Logger log = LoggerFactory.getLogger(MetadataTransactionBuffer.class);
  private static final long FIRST_PAUSE_MS = 100; // before the store is asked again; doubled
  private static final long LONGEST_PAUSE_MS = 5_000;
  private static final long PRUNE_INTERVAL_MS = 600_000;
  private static final int PRUNED_FROM = 1_000; // dropped writers, of about 100 bytes each

  private enum State {
    Recovering,
    Ready,
    Closed
  }

  /** What kind of refusal it is: clients of this package tell by the word in the message. */
  private enum Refusal {
    /** The writer has no pin: its transaction is decided. */
    FENCED,
    /** The store does not tell. */
    UNAVAILABLE,
    /** The entry is not one of a writer. */
    INVALID
  }

  /** Keeps consumers behind a position until one writer's fate is known. */
  private static final class Hold {
    final WriterId writer;
    final Position bound;
    final Deque<Append> waiting = new ArrayDeque<>();
    LogPosition pinnedAt; // null until the store has shown the pin: nothing is appended before

    Hold(WriterId writer, Position bound, LogPosition pinnedAt) {
      this.writer = writer;
      this.bound = bound;
      this.pinnedAt = pinnedAt;
    }
  }

  /** An entry that waits; it has been retained. */
  private record Append(
      TxnID txn, ByteBuf entry, int messages, CompletableFuture<Position> done, WriterId named) {
    TxnBits bits() {
      return new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits());
    }
  }

  private final SegmentLog topic;
  private final String segment;
  private final String storeUuid;
  private final BrokerStore store;
  private final Runnable look = this::look;
  private final CompletableFuture<Void> recovered = new CompletableFuture<>();
  private final Receipts receipts; // null where no client of Pulsar's own has transactions
  private final LongAdder committed = new LongAdder();
  private final LongAdder aborted = new LongAdder();
  private final Future<?> polling;
  private final Future<?> pruning;

  // Read without the lock, for each entry that is dispatched. A writer is put there before the
  // maximum moves past its entries.
  private final Map<TxnBits, LogPosition> dropped = new ConcurrentHashMap<>();
  private volatile Map<Integer, Long> floor = Map.of();
  private volatile Position maxReadPosition = PositionFactory.EARLIEST;
  private volatile State state = State.Recovering;
  private volatile int coordinators = 1 << 16; // of the store; until it is known, none share one

  // Guarded by this.
  private final Map<TxnBits, Hold> holds = new LinkedHashMap<>();
  private final Deque<Append> waiting = new ArrayDeque<>(); // for the end of the recovery
  // Of Pulsar's own clients: one producer may have several transactions, and takes receipts in order.
  private final Deque<Append> inOrder = new ArrayDeque<>();
  private Position announced = PositionFactory.EARLIEST; // the maximum that the topic knows of
  private boolean looking;
  private boolean lookAgain;
  private String complaint;
  private long recoverStartMs;
  private long recoverEndMs;

  /**
   * Makes a buffer, which recovers by a thread of the store's.
   *
   * @param topic what it belongs to
   * @param segment its id
   * @param storeUuid the metadata store that its transactions are in
   * @param store what it asks
   */
  MetadataTransactionBuffer(SegmentLog topic, String segment, String storeUuid, BrokerStore store) {
    this.topic = topic;
    this.segment = segment;
    this.storeUuid = storeUuid;
    this.store = store;
    this.receipts =
        store.coordinators() == null
            ? null
            : new Receipts(segment, store.coordinators(), store.threads());
    this.recoverStartMs = System.currentTimeMillis();
    // Before the gate is read: what comes between the two is looked at again.
    if (store.events() != null) {
      store.events().follow(segment, look);
    }
    store.threads().execute(() -> recover(FIRST_PAUSE_MS));
    this.polling =
        store
            .threads()
            .scheduleWithFixedDelay(
                look, store.pollIntervalMs(), store.pollIntervalMs(), TimeUnit.MILLISECONDS);
    this.pruning =
        store
            .threads()
            .scheduleWithFixedDelay(
                this::pruneIfMany, PRUNE_INTERVAL_MS, PRUNE_INTERVAL_MS, TimeUnit.MILLISECONDS);
  }

  // --- recovery -----------------------------------------------------------------------------------

  private void recover(long pauseMs) {
    if (state != State.Recovering) {
      return;
    }
    try {
      store.segments().requireIdentity(storeUuid);
      if (store.coordinators() != null) {
        coordinators = store.coordinators().coordinators();
      }
      // INV-4: the LAC first. The ledger is this broker's alone since it was opened.
      Position confirmed = topic.lastConfirmed();
      begin(confirmed, store.segments().gate(segment));
    } catch (RuntimeException error) {
      complain("is recovering and shows nothing to consumers", error);
      store
          .threads()
          .schedule(
              () -> recover(Math.min(2 * pauseMs, LONGEST_PAUSE_MS)), pauseMs, TimeUnit.MILLISECONDS);
    }
  }

  private void begin(Position confirmed, Gate gate) {
    Map<TxnBits, Hold> found = new LinkedHashMap<>();
    for (Gate.Pin pin : gate.pins()) {
      WriterId writer =
          WriterId.ofName(pin.writer())
              .orElseThrow(
                  () -> new IllegalStateException("a pin of " + pin.writer() + ", not of a writer"));
      found.put(writer.bits(), new Hold(writer, position(pin.bound()), pin.bound()));
    }
    List<Append> due;
    synchronized (this) {
      if (state != State.Recovering) {
        return;
      }
      // No entry of ours carries the bits of a name that is not a writer's.
      gate.dropped()
          .forEach((name, to) -> WriterId.ofName(name).ifPresent(one -> dropped.put(one.bits(), to)));
      floor = gate.floor();
      holds.putAll(found);
      Position lowest = lowestHold().orElse(confirmed);
      complaint = null;
      recoverEndMs = System.currentTimeMillis();
      state = State.Ready;
      moveTo(lowest.compareTo(confirmed) < 0 ? lowest : confirmed);
      due = List.copyOf(waiting);
      waiting.clear();
      due.forEach(this::appendInOrder);
      advance(); // what was appended meanwhile
    }
    announce();
    recovered.complete(null);
  }

  @Override
  public CompletableFuture<Void> checkIfTBRecoverCompletely() {
    return recovered;
  }

  // --- admission ----------------------------------------------------------------------------------

  @Override
  public CompletableFuture<Position> appendBufferToTxn(TxnID txn, long sequenceId, ByteBuf entry) {
    CompletableFuture<Position> done = new CompletableFuture<>();
    // Its index is left as it is.
    MessageMetadata metadata = Commands.peekMessageMetadata(entry, KIND, -1);
    String refusal = refusal(txn, metadata);
    if (refusal != null) {
      done.completeExceptionally(notAllowed(Refusal.INVALID, txn, refusal));
      return done;
    }
    // All producers of a transaction of Pulsar's own clients are one writer, named by its bits.
    WriterId named = WriterId.ofName(metadata.getProducerName()).orElse(null);
    int messages = metadata.hasNumMessagesInBatch() ? metadata.getNumMessagesInBatch() : 1;
    entry.retain(); // until it was appended or refused
    Append append = new Append(txn, entry, messages, done, named);
    boolean closed;
    synchronized (this) {
      closed = state == State.Closed;
      if (state == State.Recovering) {
        waiting.add(append);
      } else if (!closed) {
        appendInOrder(append);
      }
    }
    if (closed) {
      refuse(append, new ServiceUnitNotReadyException("the topic is being closed"));
    }
    return done;
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

  /** Holds consumers, then appends; called with the lock. */
  private void appendInOrder(Append append) {
    Hold hold = holdOf(append);
    if (!append.bits().isOwn()) {
      inOrder.add(append);
      appendClients();
    } else if (hold.pinnedAt == null) {
      hold.waiting.add(append);
    } else {
      appendNow(append);
    }
  }

  /** Gives the hold of an entry's writer, who asks for admission with the first one. */
  private Hold holdOf(Append append) {
    TxnBits bits = append.bits();
    Hold hold = holds.get(bits);
    if (hold != null) {
      return hold;
    }
    WriterId writer = bits.isOwn() ? append.named() : WriterId.ofPulsar(bits, coordinators);
    Optional<CoordinatorStore.Pin> known =
        bits.isOwn() || store.pins() == null
            ? Optional.empty()
            : store.pins().take(segment, writer);
    // A store that loses the pin is noticed: no pin and no dropped writer would stand for a commit.
    known.ifPresent(pin -> store.segments().raiseSeen(segment, pin.state()));
    LogPosition pinnedAt = known.map(CoordinatorStore.Pin::position).orElse(null);
    // INV-2: before the append. Between a ledger's change and the callback the LAC has moved.
    Hold fresh = new Hold(writer, topic.lastConfirmed(), pinnedAt);
    holds.put(bits, fresh);
    if (pinnedAt != null) {
      return fresh;
    }
    long deadlineMs = System.currentTimeMillis() + LONGEST_PAUSE_MS;
    store.threads().execute(() -> admit(fresh, deadlineMs));
    return fresh;
  }

  /** Appends what Pulsar's own clients have sent, up to the first one that is not admitted yet. */
  private void appendClients() {
    for (Append first = inOrder.peek(); first != null; first = inOrder.peek()) {
      if (holdOf(first).pinnedAt == null) {
        return;
      }
      appendNow(inOrder.remove());
    }
  }

  private void appendNow(Append append) {
    try {
      topic.append(
          append.entry(),
          append.messages(),
          new SegmentLog.Appended() {
            @Override
            public void succeeded(Position position) {
              topic.forgetLastDispatchable();
              if (receipts == null || append.bits().isOwn()) {
                append.done().complete(position); // the driver's decision says how far it got
              } else {
                receipts.confirm(position, append.done());
              }
            }

            @Override
            public void failed(Exception error) {
              // It may be in the log: the hold stays until the writer's fate is known.
              append.done().completeExceptionally(error);
            }
          });
    } finally {
      append.entry().release();
    }
  }

  private void admit(Hold hold, long deadlineMs) {
    Fate fate;
    try {
      fate = store.segments().fates(segment, List.of(new Query(hold.writer, null))).get(0);
    } catch (StoreUnavailableException error) {
      if (System.currentTimeMillis() < deadlineMs) {
        store
            .threads()
            .schedule(() -> admit(hold, deadlineMs), FIRST_PAUSE_MS, TimeUnit.MILLISECONDS);
      } else {
        turnAway(hold, Refusal.UNAVAILABLE, error.getMessage());
      }
      return;
    } catch (RuntimeException error) {
      turnAway(hold, Refusal.UNAVAILABLE, String.valueOf(error.getMessage()));
      return;
    }
    if (!(fate instanceof Fate.Pinned pinned)) {
      turnAway(
          hold,
          Refusal.FENCED,
          "writer "
              + hold.writer.name()
              + " has no pin in segment "
              + segment
              + ": its transaction is decided, or it was never admitted");
      return;
    }
    synchronized (this) {
      if (state == State.Closed) {
        return; // closing has refused whatever waited
      }
      hold.pinnedAt = pinned.bound();
      hold.waiting.forEach(this::appendNow);
      hold.waiting.clear();
      appendClients();
    }
  }

  /** Refuses a writer of which nothing was appended. */
  private void turnAway(Hold hold, Refusal refusal, String why) {
    List<Append> refused;
    synchronized (this) {
      TxnBits bits = hold.writer.bits();
      holds.remove(bits, hold);
      refused = new ArrayList<>(hold.waiting);
      hold.waiting.clear();
      inOrder.stream().filter(one -> one.bits().equals(bits)).forEach(refused::add);
      inOrder.removeIf(one -> one.bits().equals(bits));
      appendClients();
      advance();
    }
    announce();
    refused.forEach(one -> refuse(one, notAllowed(refusal, one.txn(), why)));
  }

  private static void refuse(Append append, Exception error) {
    append.entry().release();
    append.done().completeExceptionally(error);
  }

  /** The one error upon which the broker does not close the topic's producers. */
  private static NotAllowedException notAllowed(Refusal refusal, TxnID txn, String why) {
    return new NotAllowedException(
        KIND + " " + refusal + ": an entry of transaction " + txn + " is refused: " + why);
  }

  // --- visibility ---------------------------------------------------------------------------------

  /** Looks at the fates of the writers that hold consumers, by a thread of the store's. */
  private synchronized void look() {
    if (state != State.Ready || holds.isEmpty()) {
      return;
    }
    lookAgain = true;
    if (!looking) {
      looking = true;
      store.threads().execute(this::settle);
    }
  }

  private void settle() {
    try {
      for (List<Hold> asked = nextLook(); !asked.isEmpty(); asked = nextLook()) {
        List<Query> queries = asked.stream().map(one -> new Query(one.writer, one.pinnedAt)).toList();
        carryOut(asked, store.segments().fates(segment, queries));
      }
    } catch (RuntimeException error) {
      // Fail closed through the maximum only: what is filtered once cannot be taken back.
      complain("does not learn which transactions are decided, and shows nothing new", error);
      stopLooking();
    }
  }

  private synchronized void stopLooking() {
    looking = false;
  }

  /** Gives the writers to ask for; none ends the look. */
  private synchronized List<Hold> nextLook() {
    List<Hold> asked = List.of();
    if (state == State.Ready && lookAgain) {
      asked = holds.values().stream().filter(one -> one.pinnedAt != null).toList();
    }
    lookAgain = false;
    looking = !asked.isEmpty();
    return asked;
  }

  private void carryOut(List<Hold> asked, List<Fate> fates) {
    release(asked, fates);
    announce();
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

  private synchronized void release(List<Hold> asked, List<Fate> fates) {
    complaint = null;
    Set<TransactionId> won = new HashSet<>();
    Set<TransactionId> lost = new HashSet<>();
    for (int i = 0; i < asked.size(); i++) {
      Hold hold = asked.get(i);
      TxnBits bits = hold.writer.bits();
      TransactionId txn = hold.writer.txn();
      if (fates.get(i) instanceof Fate.Dropped drop) {
        dropped.put(bits, drop.keptTo());
        lost.add(txn);
        holds.remove(bits, hold);
      } else if (fates.get(i) instanceof Fate.Won) {
        won.add(txn);
        holds.remove(bits, hold);
      }
    }
    lost.removeAll(won);
    committed.add(won.size());
    aborted.add(lost.size());
    advance();
  }

  private Optional<Position> lowestHold() {
    return holds.values().stream().map(one -> one.bound).min(Position::compareTo);
  }

  /** Moves the maximum as far as the holds allow; called with the lock. */
  private void advance() {
    if (state == State.Ready) {
      moveTo(lowestHold().orElseGet(topic::lastConfirmed));
    }
  }

  private void moveTo(Position position) {
    if (maxReadPosition.compareTo(position) < 0) {
      maxReadPosition = position;
    }
  }

  /** Lets the topic know of a maximum that has moved; called without the lock. */
  private void announce() {
    Position before;
    Position now;
    synchronized (this) {
      before = announced;
      now = maxReadPosition;
      announced = now;
    }
    if (before.compareTo(now) < 0) {
      topic.moved(before, now);
    }
  }

  @Override
  public boolean isTxnAborted(TxnID txn, Position position) {
    TxnBits bits = new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits());
    LogPosition keptTo = dropped.get(bits);
    if (keptTo != null) {
      return position == null
          || new LogPosition(position.getLedgerId(), position.getEntryId()).compareTo(keptTo) > 0;
    }
    return isBelow(floor, bits);
  }

  private boolean isBelow(Map<Integer, Long> counters, TxnBits bits) {
    int tc = bits.isOwn() ? bits.tc() : bits.tc() % coordinators;
    return bits.least() < counters.getOrDefault(tc, 0L);
  }

  private void pruneIfMany() {
    if (dropped.size() >= PRUNED_FROM) {
      prune();
    }
  }

  /** Forgets dropped writers of which the log has deleted every entry: the floor is enough (INV-5). */
  void prune() {
    if (state != State.Ready) {
      return;
    }
    Gate gate;
    try {
      gate = store.segments().gate(segment);
    } catch (RuntimeException error) {
      complain("does not learn which dropped writers are gone", error);
      return;
    }
    Map<Integer, Long> raised = new HashMap<>(floor);
    gate.floor().forEach((tc, counter) -> raised.merge(tc, counter, Math::max));
    floor = Map.copyOf(raised); // before any name goes
    Set<TxnBits> named = new HashSet<>();
    gate.dropped().keySet().forEach(one -> WriterId.ofName(one).ifPresent(w -> named.add(w.bits())));
    // Whatever the store has shown: only what the floor filters as well may go.
    dropped
        .keySet()
        .removeIf(one -> !named.contains(one) && isBelow(raised, one));
  }

  @Override
  public void syncMaxReadPositionForNormalPublish(Position position, boolean isMarkerMessage) {
    synchronized (this) {
      if (state == State.Ready && holds.isEmpty()) {
        // Whoever had a transactional entry before this one in the log would have a hold.
        moveTo(topic.lastConfirmed());
      }
    }
    announce();
    topic.forgetLastDispatchable();
  }

  @Override
  public Position getMaxReadPosition() {
    return maxReadPosition;
  }

  // --- the end, and what others ask ---------------------------------------------------------------

  @Override
  public CompletableFuture<Void> closeAsync() {
    List<Append> refused = new ArrayList<>();
    synchronized (this) {
      state = State.Closed;
      refused.addAll(waiting);
      waiting.clear();
      refused.addAll(inOrder);
      inOrder.clear();
      for (Hold hold : holds.values()) {
        refused.addAll(hold.waiting);
        hold.waiting.clear();
      }
    }
    polling.cancel(false);
    pruning.cancel(false);
    if (store.events() != null) {
      store.events().leave(segment, look);
    }
    ServiceUnitNotReadyException closed =
        new ServiceUnitNotReadyException("the topic is being closed");
    refused.forEach(one -> refuse(one, closed));
    if (receipts != null) {
      receipts.close(closed);
    }
    recovered.completeExceptionally(closed);
    return CompletableFuture.completedFuture(null);
  }

  private synchronized void complain(String what, RuntimeException error) {
    String now = String.valueOf(error.getMessage());
    if (!now.equals(complaint)) {
      complaint = now;
      log.warn("{}: the gated segment {} {}: {}", topic.name(), segment, what, now);
    }
  }

  @Override
  public TransactionBufferStats getStats(boolean lowWaterMarks, boolean segmentStats) {
    TransactionBufferStats stats = new TransactionBufferStats();
    stats.snapshotType = KIND;
    stats.state = state.name();
    stats.maxReadPosition = maxReadPosition.toString();
    stats.ongoingTxnSize = getOngoingTxnCount();
    stats.totalAbortedTransactions = dropped.size();
    synchronized (this) {
      stats.recoverStartTime = recoverStartMs;
      stats.recoverEndTime = recoverEndMs;
    }
    if (lowWaterMarks) {
      stats.lowWaterMarks = new HashMap<>(); // of Pulsar's own transactions
    }
    return stats;
  }

  @Override
  public TransactionBufferStats getStats(boolean lowWaterMarks) {
    return getStats(lowWaterMarks, false);
  }

  @Override
  public TransactionInBufferStats getTransactionInBufferStats(TxnID txn) {
    TransactionInBufferStats stats = new TransactionInBufferStats();
    stats.aborted = isTxnAborted(txn, null);
    synchronized (this) {
      Hold hold = holds.get(new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits()));
      stats.startPosition = hold == null ? null : hold.bound.toString();
    }
    return stats;
  }

  @Override
  public synchronized long getOngoingTxnCount() {
    return holds.values().stream().map(one -> one.writer.txn()).distinct().count();
  }

  @Override
  public long getAbortedTxnCount() {
    return aborted.sum();
  }

  @Override
  public long getCommittedTxnCount() {
    return committed.sum();
  }

  /** There are no snapshots: the decisions stand in the metadata store. */
  @Override
  public AbortedTxnProcessor.SnapshotType getSnapshotType() {
    return null;
  }

  @Override
  public CompletableFuture<Void> clearSnapshot() {
    return CompletableFuture.completedFuture(null);
  }

  /**
   * Closes the buffer of a topic that is deleted. Pulsar 4.2 and newer ask for it: older ones do not
   * have it in their interface.
   *
   * @return done when the buffer is closed
   */
  public CompletableFuture<Void> clearSnapshotAndClose() {
    return closeAsync();
  }

  /** The store has the decision of its coordinator already: here it is only looked at. */
  @Override
  public CompletableFuture<Void> commitTxn(TxnID txn, long lowWaterMark) {
    look();
    return CompletableFuture.completedFuture(null);
  }

  /** The store has the decision of its coordinator already: here it is only looked at. */
  @Override
  public CompletableFuture<Void> abortTxn(TxnID txn, long lowWaterMark) {
    look();
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<Void> purgeTxns(List<Long> dataLedgers) {
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<TransactionMeta> getTransactionMeta(TxnID txn) {
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<TransactionBufferReader> openTransactionBufferReader(
      TxnID txn, long startSequenceId) {
    return CompletableFuture.failedFuture(
        notAllowed(Refusal.INVALID, txn, "entries are read from the topic"));
  }

  private static Position position(LogPosition bound) {
    return PositionFactory.create(bound.ledger(), bound.entry());
  }
}
