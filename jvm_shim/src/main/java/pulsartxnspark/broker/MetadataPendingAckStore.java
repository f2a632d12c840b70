package pulsartxnspark.broker;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.impl.AckSetStateUtil;
import org.apache.bookkeeper.mledger.util.PositionAckSetUtil;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.broker.service.persistent.PersistentDispatcherSingleActiveConsumer;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.transaction.pendingack.PendingAckStore;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.apache.pulsar.common.api.proto.TxnAction;
import org.apache.pulsar.transaction.common.exception.TransactionConflictException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.broker.Decisions.Decision;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.AckStore.Answer;
import pulsartxnspark.store.AckStore.Opened;
import pulsartxnspark.store.AckStore.Step;
import pulsartxnspark.store.TransactionId;

/**
 * The pending acks of a subscription of Pulsar's, in the metadata store. What becomes of them is what
 * the header of their transaction says, whoever tells the subscription of it. {@code
 * docs/broker-transactions.md} has the states and the table of failures.
 *
 * <p>Requests are taken in the order in which they come, by the one thread of Pulsar's handle: what
 * follows a request is looked at when the handle has done its part of it.
 */
final class MetadataPendingAckStore implements PendingAckStore {
  private static final Logger log = LoggerFactory.getLogger(MetadataPendingAckStore.class);
  private static final long FIRST_PAUSE_MS = 50; // before the store is asked again; doubled
  private static final long LONGEST_PAUSE_MS = 1_000;
  private static final int MOST_AT_ONCE = 200; // requests in one step: it must not block the server
  private static final int MOST_REMOVED = 500; // records in one step
  private static final int MOST_ASKED = 100; // headers in one look

  /**
   * What the stores of a broker's subscriptions share.
   *
   * @param acks where the records are
   * @param decisions what headers say
   * @param inTheWay is told of the transactions that hold messages, and completes expired ones
   * @param threads for whatever waits for the store
   * @param pollIntervalMs how often headers are looked at without an event
   * @param patienceMs how long a request waits for the store
   * @param clockMs a clock that never goes back
   * @param takesNew whether transactions of the metadata store have their pending acks there
   */
  record Environment(
      AckStore acks,
      Decisions decisions,
      Consumer<Collection<TransactionId>> inTheWay,
      ScheduledExecutorService threads,
      long pollIntervalMs,
      long patienceMs,
      LongSupplier clockMs,
      boolean takesNew) {}

  /** A transaction that has records. */
  private static final class Txn {
    final TxnID id;
    final Map<Long, AckRecord> records = new TreeMap<>();
    Decision decision = Decision.OPEN;
    boolean isNoted; // the store has the decision beside the records
    boolean isApplied; // the handle knows it
    boolean isForgotten; // its records are being removed
    boolean isAsked;
    long lookedMs;

    Txn(TxnID id, long nowMs) {
      this.id = id;
      this.lookedMs = nowMs;
    }

    String name() {
      return id.getMostSigBits() + ":" + id.getLeastSigBits();
    }

    String name(long number) {
      return name() + ":" + number;
    }

    List<String> names() {
      return new ArrayList<>(records.keySet().stream().map(this::name).toList());
    }
  }

  /** What is written in one step. */
  private static final class Batch {
    final List<Request> requests = new ArrayList<>();
    final Map<String, String> written = new LinkedHashMap<>();
    final Set<String> removed = new LinkedHashSet<>();
    final Set<Position> touched = new HashSet<>();
    final Set<TxnID> appending = new HashSet<>();
    boolean touchesCumulative;
    boolean ends; // the handle releases messages: what follows is looked at afterwards
    Step step;
    long pauseMs = FIRST_PAUSE_MS;

    boolean writes() {
      return !written.isEmpty() || !removed.isEmpty();
    }
  }

  /** Something that is asked of this store. */
  private abstract class Request {
    final TxnID txn;
    final CompletableFuture<Void> done = new CompletableFuture<>();
    final long deadlineMs;
    Decision decision; // null until the header was read
    boolean isAsked;
    Exception refusal;

    Request(TxnID txn, long deadlineMs) {
      this.txn = txn;
      this.deadlineMs = deadlineMs;
    }

    /** Joins a batch; false if it has to wait. */
    abstract boolean joins(Batch batch);

    /** Is called when the batch is written; the handle does its part in here. */
    abstract void finish();

    /** Tells Pulsar's own store, if it is to know; null if not. */
    CompletableFuture<Void> tellPulsars() {
      return null;
    }

    /** Gives up; it may be written nevertheless, later. */
    abstract void fail(Exception error);

    /** Tells whether it will ask for the header. */
    boolean needsDecision() {
      return false;
    }

    /** Tells whether the header was read; if not, it will be. */
    final boolean knowsDecision() {
      if (decision == null && !isAsked) {
        isAsked = true;
        ask(this);
      }
      return decision != null;
    }
  }

  private final PersistentSubscription subscription;
  private final AckStore.Subscription name;
  private final Opened opened;
  private final Map<TxnID, Decision> found; // when it was opened
  private final Environment environment;
  private final Supplier<CompletableFuture<PendingAckStore>> opensPulsars;

  private volatile boolean isClosed;
  private volatile Future<?> looking;
  private volatile ExecutorService executor;
  private volatile PendingAckStore pulsars; // null where it has none

  // Touched by the one thread of the handle alone.
  private PendingAckHandleImpl handle;
  private final Map<TxnID, Txn> txns = new LinkedHashMap<>();
  private final Deque<Request> queue = new ArrayDeque<>();
  private Batch sending;
  private boolean isFenced;
  private long lastStep;
  private long lastNumber;
  private CompletableFuture<PendingAckStore> opening; // of Pulsar's own store
  private String complaint;

  /**
   * Makes a store; it is to be replayed first.
   *
   * @param subscription what it belongs to
   * @param name by which the metadata store knows it
   * @param opened what was found there
   * @param found what the headers said of the transactions among that
   * @param environment what it asks
   * @param pulsars the pending acks that Pulsar's own store has; null if it has none
   * @param opensPulsars makes such a store
   */
  MetadataPendingAckStore(
      PersistentSubscription subscription,
      AckStore.Subscription name,
      Opened opened,
      Map<TxnID, Decision> found,
      Environment environment,
      PendingAckStore pulsars,
      Supplier<CompletableFuture<PendingAckStore>> opensPulsars) {
    this.subscription = subscription;
    this.name = name;
    this.opened = opened;
    this.found = found;
    this.environment = environment;
    this.pulsars = pulsars;
    this.opensPulsars = opensPulsars;
  }

  /** Gives the transactions among records that have no decision beside them. */
  static Set<TxnID> undecided(Map<String, String> records) {
    Set<TxnID> all = new LinkedHashSet<>();
    records.keySet().forEach(one -> all.add(txn(one)));
    all.removeIf(one -> records.containsKey(one.getMostSigBits() + ":" + one.getLeastSigBits()));
    return all;
  }

  private static TxnID txn(String recordName) {
    String[] parts = recordName.split(":");
    return new TxnID(Long.parseLong(parts[0]), Long.parseLong(parts[1]));
  }

  // --- replay -------------------------------------------------------------------------------------

  @Override
  public void replayAsync(PendingAckHandleImpl pendingAckHandle, ExecutorService executorService) {
    executor = executorService;
    handle = pendingAckHandle;
    if (pulsars == null) {
      executor.execute(
          () -> {
            if (replay()) {
              PendingAckHandles.complete(pendingAckHandle);
            }
          });
    } else {
      // Pulsar's first: its replay takes any cumulative acknowledgement that is there for its own. The
      // handle is completed by a task behind this one.
      pulsars.replayAsync(pendingAckHandle, new Followed(executorService, this::replay));
    }
  }

  /** Tells whether the handle may be completed; if not, all begins anew. */
  private boolean replay() {
    if (!PendingAckHandles.isReplayed(handle)) {
      return true; // it is closed, or Pulsar's own replay has failed
    }
    try {
      load();
      txns.values().stream().filter(one -> one.decision == Decision.COMMITTED).forEach(this::apply);
      hold();
      looking =
          environment
              .threads()
              .scheduleWithFixedDelay(
                  () -> run(this::look),
                  environment.pollIntervalMs(),
                  environment.pollIntervalMs(),
                  TimeUnit.MILLISECONDS);
      pump();
      return true;
    } catch (RuntimeException error) {
      log.error("The pending acks of {} are not replayed", subscription, error);
      handle.exceptionHandleFuture(new ManagedLedgerException(error)); // it begins anew
      return false;
    }
  }

  private void load() {
    long now = environment.clockMs().getAsLong();
    opened
        .records()
        .forEach(
            (recordName, text) -> {
              Txn one = txns.computeIfAbsent(txn(recordName), id -> new Txn(id, now));
              String[] parts = recordName.split(":");
              if (parts.length < 3) {
                one.decision = Decision.valueOf(text);
                one.isNoted = true;
              } else {
                long number = Long.parseLong(parts[2]);
                one.records.put(number, AckRecord.parse(text));
                lastNumber = Math.max(lastNumber, number);
              }
            });
    for (Txn one : txns.values()) {
      Decision header = one.isNoted ? one.decision : found.get(one.id);
      if (header == Decision.ABSENT) {
        complain("transaction " + one.id + " has pending acks, but no header: they are held");
      } else if (!one.isNoted && header != Decision.OPEN) {
        // The header may go as soon as Pulsar was told that the subscription knows.
        one.decision = header;
        queue.add(new End(one.id, header == Decision.COMMITTED, null, Long.MAX_VALUE));
      }
      one.isApplied = one.decision != Decision.OPEN;
    }
  }

  /** Acknowledges what a committed transaction has: once more, if the cursor knows it already. */
  private void apply(Txn one) {
    List<Position> individual = new ArrayList<>();
    for (AckRecord record : one.records.values()) {
      for (AckRecord.Entry entry : record.entries()) {
        if (!record.cumulative()) {
          individual.add(entry.position());
        } else if (entry.key().compareTo(subscription.getCursor().getMarkDeletedPosition()) > 0) {
          acknowledge(List.of(entry.position()), AckType.Cumulative);
        }
      }
    }
    if (!individual.isEmpty()) {
      acknowledge(individual, AckType.Individual);
    }
  }

  @SuppressWarnings("deprecation") // later releases have another method beside it
  private void acknowledge(List<Position> positions, AckType type) {
    subscription.acknowledgeMessage(positions, type, Map.of());
  }

  /**
   * Lets the handle hold what undecided transactions have. The newest first: what it refused, it did
   * not hold any more when a newer one came.
   */
  private void hold() {
    Map<Long, Txn> all = new TreeMap<>(Comparator.reverseOrder());
    txns.values().stream()
        .filter(one -> one.decision == Decision.OPEN)
        .forEach(one -> one.records.keySet().forEach(number -> all.put(number, one)));
    all.forEach(
        (number, one) -> {
          AckRecord record = one.records.get(number);
          for (AckRecord.Entry entry : record.entries()) {
            if (record.cumulative()) {
              PendingAckHandles.holdCumulative(handle, one.id, entry.position());
            } else if (!conflicts(entry)) {
              PendingAckHandles.holdIndividual(handle, one.id, entry);
            }
          }
        });
  }

  /** Runs a task behind each that it gets, in the same thread. */
  private static final class Followed extends AbstractExecutorService {
    private final ExecutorService executor;
    private final Runnable follows;

    Followed(ExecutorService executor, Runnable follows) {
      this.executor = executor;
      this.follows = follows;
    }

    @Override
    public void execute(Runnable task) {
      executor.execute(
          () -> {
            task.run();
            follows.run();
          });
    }

    @Override
    public void shutdown() {}

    @Override
    public List<Runnable> shutdownNow() {
      return List.of();
    }

    @Override
    public boolean isShutdown() {
      return executor.isShutdown();
    }

    @Override
    public boolean isTerminated() {
      return executor.isTerminated();
    }

    @Override
    public boolean awaitTermination(long timeout, TimeUnit unit) {
      return false;
    }
  }

  // --- acknowledgements ---------------------------------------------------------------------------

  @Override
  public CompletableFuture<Void> appendIndividualAck(
      TxnID txnId, List<MutablePair<Position, Integer>> positions) {
    return taken(new Append(txnId, AckRecord.individual(positions), positions));
  }

  @Override
  public CompletableFuture<Void> appendCumulativeAck(TxnID txnId, Position position) {
    return taken(new Append(txnId, AckRecord.cumulative(position), null));
  }

  private final class Append extends Request {
    final AckRecord record;
    final List<MutablePair<Position, Integer>> positions; // Pulsar's; null if it is cumulative
    boolean isLate;
    boolean isWritten;
    CompletableFuture<Void> elsewhere; // in Pulsar's own store; null if it is here

    Append(TxnID txn, AckRecord record, List<MutablePair<Position, Integer>> positions) {
      super(txn, environment.clockMs().getAsLong() + environment.patienceMs());
      this.record = record;
      this.positions = positions;
    }

    @Override
    boolean needsDecision() {
      return !txns.containsKey(txn);
    }

    @Override
    boolean joins(Batch batch) {
      if (batch.ends) {
        return false;
      }
      Txn known = txns.get(txn);
      if (known == null && !knowsDecision()) {
        return false;
      }
      if (record.cumulative()
          ? batch.touchesCumulative
          : record.entries().stream().anyMatch(one -> batch.touched.contains(one.key()))) {
        return false; // the handle is asked when it knows of the other one
      }
      batch.touchesCumulative |= record.cumulative();
      record.entries().forEach(one -> batch.touched.add(one.key()));
      batch.appending.add(txn);
      Decision now = known == null ? decision : known.decision;
      // A transaction of Pulsar's own coordinator has its pending acks in Pulsar's own store.
      boolean isElsewhere =
          known == null
              && (now == Decision.ABSENT || now == Decision.OPEN && !environment.takesNew());
      if (!isElsewhere && now != Decision.OPEN) {
        isLate = true;
        refusal = new InvalidTxnStatusException("transaction " + txn + " is " + now);
      } else if (conflicts()) {
        refusal = conflict();
      } else if (isElsewhere) {
        elsewhere = appendElsewhere();
      } else if (!isBehind()) { // the handle refuses it otherwise
        write(batch);
      }
      return true;
    }

    private boolean isBehind() {
      return record.cumulative()
          && record.last().compareTo(subscription.getCursor().getMarkDeletedPosition()) <= 0;
    }

    private boolean conflicts() {
      if (!record.cumulative()) {
        return MetadataPendingAckStore.this.conflicts(record);
      }
      PendingAckHandles.UpTo held = PendingAckHandles.cumulative(handle);
      Position position = record.entries().get(0).position();
      return held != null
          && (!held.txn().equals(txn)
              || PositionAckSetUtil.compareToWithAckSet(position, held.position()) <= 0);
    }

    private CompletableFuture<Void> appendElsewhere() {
      return pulsars()
          .thenCompose(
              one ->
                  record.cumulative()
                      ? one.appendCumulativeAck(txn, record.entries().get(0).position())
                      : one.appendIndividualAck(txn, positions));
    }

    @Override
    CompletableFuture<Void> tellPulsars() {
      return elsewhere;
    }

    private void write(Batch batch) {
      Txn one = txns.computeIfAbsent(txn, id -> new Txn(id, environment.clockMs().getAsLong()));
      if (record.cumulative()) {
        for (long number : List.copyOf(one.records.keySet())) {
          if (one.records.get(number).cumulative()) {
            one.records.remove(number);
            batch.removed.add(one.name(number));
          }
        }
      }
      isWritten = true;
      long number = ++lastNumber;
      one.records.put(number, record);
      batch.written.put(one.name(number), record.text());
    }

    private TransactionConflictException conflict() {
      return new TransactionConflictException(
          "transaction "
              + txn
              + " acknowledges what is acknowledged already, or pending in another transaction: "
              + record.text());
    }

    @Override
    void finish() {
      if (refusal != null && elsewhere == null) {
        refuse();
      } else if (done.isDone()) {
        return;
      } else if (refusal != null) {
        fail(refusal);
      } else {
        done.complete(null);
      }
    }

    /** The handle holds what is refused, for it does not know why. So nothing is left to hold. */
    private void refuse() {
      if (done.isDone()) {
        return;
      }
      PendingAckHandles.UpTo held = PendingAckHandles.cumulative(handle);
      holdNothing();
      done.completeExceptionally(refusal);
      if (record.cumulative()) {
        PendingAckHandles.restoreCumulative(handle, held);
      } else if (isLate) {
        redeliver(record);
      }
    }

    private void holdNothing() {
      if (positions != null) {
        positions.clear();
      }
    }

    @Override
    void fail(Exception error) {
      if (refusal != null && elsewhere == null) {
        refuse(); // whatever the store says
        return;
      }
      if (!isWritten && MetadataPendingAckStore.this.conflicts(record)) {
        holdNothing(); // it would be taken away from who holds it
      }
      done.completeExceptionally(error);
    }
  }

  /** Delivers messages again that nobody holds, to whom Pulsar does so after an abort. */
  private void redeliver(AckRecord record) {
    List<Position> free =
        record.entries().stream()
            .filter(one -> !conflicts(one))
            .map(AckRecord.Entry::key)
            .collect(Collectors.toCollection(ArrayList::new));
    subscription.redeliverUnacknowledgedMessages(
        subscription.getDispatcher() instanceof PersistentDispatcherSingleActiveConsumer one
            ? one.getActiveConsumer()
            : null,
        free);
  }

  private boolean holdsUpTo(TxnID txn) {
    PendingAckHandles.UpTo held = PendingAckHandles.cumulative(handle);
    return held != null && held.txn().equals(txn);
  }

  private boolean conflicts(AckRecord record) {
    return record.entries().stream().anyMatch(this::conflicts);
  }

  /** Tells whether a message is acknowledged, or held by a transaction. */
  private boolean conflicts(AckRecord.Entry entry) {
    Position key = entry.key();
    if (subscription.getCursor().isMessageDeleted(key)) {
      return true;
    }
    Position held = handle.getPositionInPendingAck(key);
    if (entry.left() == null) {
      return held != null;
    }
    if (held != null && !AckSetStateUtil.hasAckSet(held)) {
      return true;
    }
    return overlap(entry, subscription.getCursor().getBatchPositionAckSet(key))
        || held != null && overlap(entry, AckSetStateUtil.getAckSetArrayOrNull(held));
  }

  private static boolean overlap(AckRecord.Entry entry, long[] left) {
    if (left == null) {
      return false;
    }
    BitSet both = acknowledged(entry.left(), entry.batchSize());
    both.and(acknowledged(left, entry.batchSize()));
    return !both.isEmpty();
  }

  private static BitSet acknowledged(long[] left, int batchSize) {
    BitSet bits = BitSet.valueOf(left);
    bits.flip(0, batchSize > 0 ? batchSize : Math.max(1, left.length) * Long.SIZE);
    return batchSize > 0 ? bits.get(0, batchSize) : bits;
  }

  /** Gives Pulsar's own store. What it had was replayed; a new one has nothing. */
  private CompletableFuture<PendingAckStore> pulsars() {
    if (pulsars != null) {
      return CompletableFuture.completedFuture(pulsars);
    }
    if (opening == null || opening.isCompletedExceptionally()) {
      opening =
          opensPulsars
              .get()
              .thenApply(
                  one -> {
                    pulsars = one;
                    if (isClosed) {
                      one.closeAsync();
                    }
                    return one;
                  });
    }
    return opening;
  }

  private static Exception cause(Throwable error) {
    Throwable cause = error.getCause() == null ? error : error.getCause();
    return cause instanceof Exception exception ? exception : new IllegalStateException(cause);
  }

  // --- ends of transactions -----------------------------------------------------------------------

  @Override
  public CompletableFuture<Void> appendCommitMark(TxnID txnId, AckType type) {
    return taken(end(txnId, true, type));
  }

  @Override
  public CompletableFuture<Void> appendAbortMark(TxnID txnId, AckType type) {
    return taken(end(txnId, false, type));
  }

  private End end(TxnID txn, boolean commit, AckType type) {
    return new End(
        txn, commit, type, environment.clockMs().getAsLong() + environment.patienceMs());
  }

  private final class End extends Request {
    final boolean commit;
    final AckType type; // null if this store has found out by itself
    boolean isNoted;
    boolean removes; // all that the transaction has

    End(TxnID txn, boolean commit, AckType type, long deadlineMs) {
      super(txn, deadlineMs);
      this.commit = commit;
      this.type = type;
    }

    private Decision wanted() {
      return commit ? Decision.COMMITTED : Decision.ABORTED;
    }

    /**
     * Tells whether the handle does its part for all that a transaction has. It leaves out what is
     * individual while it holds anything up to a position.
     */
    private boolean completes(Txn known) {
      if (type == AckType.Individual) {
        return !holdsUpTo(txn);
      }
      return type != null
          && holdsUpTo(txn)
          && known.records.values().stream().allMatch(AckRecord::cumulative);
    }

    @Override
    boolean needsDecision() {
      Txn known = txns.get(txn);
      return type != null && known != null && known.decision == Decision.OPEN;
    }

    @Override
    boolean joins(Batch batch) {
      Txn known = txns.get(txn);
      if (known == null) {
        batch.ends = true;
        return true;
      }
      if (batch.appending.contains(txn)) {
        return false; // the handle is to hold that first
      }
      boolean isKnown = type == null || known.decision != Decision.OPEN;
      if (!isKnown && !knowsDecision()) {
        return false;
      }
      Decision header = type == null ? wanted() : isKnown ? known.decision : decision;
      if (header != wanted()) {
        refusal =
            new ServiceUnitNotReadyException(
                "transaction "
                    + txn
                    + " is to be "
                    + wanted()
                    + " in subscription "
                    + name.name()
                    + ", but its header says "
                    + header);
        return true;
      }
      isNoted = true;
      batch.ends = true;
      if (known.isNoted) {
        return true;
      }
      boolean isOver = !commit && (known.isApplied || completes(known));
      removes = isOver && known.records.size() <= MOST_REMOVED;
      if (removes) {
        batch.removed.addAll(known.names());
      } else {
        batch.written.put(known.name(), wanted().name());
      }
      return true;
    }

    @Override
    void finish() {
      if (refusal != null) {
        if (!done.isDone()) {
          done.completeExceptionally(refusal);
        }
        return;
      }
      Txn known = txns.get(txn);
      if (known != null && isNoted) {
        known.isApplied |= !done.isDone() && completes(known);
        if (removes) {
          txns.remove(txn);
        }
        known.decision = wanted();
        known.isNoted = true;
      }
      if (commit && type == AckType.Cumulative && !holdsUpTo(txn)) {
        // Pulsar would acknowledge what another transaction holds by now.
        done.completeExceptionally(
            new ServiceUnitNotReadyException("transaction " + txn + " was committed meanwhile"));
      }
      done.complete(null);
      if (type == null && known != null && !known.isApplied) {
        end(txn, commit);
      }
    }

    @Override
    CompletableFuture<Void> tellPulsars() {
      if (pulsars == null || type == null || refusal != null) {
        return null;
      }
      if (type == AckType.Cumulative && !holdsUpTo(txn)) {
        return null; // Pulsar's replay would end the cumulative one of another
      }
      return commit ? pulsars.appendCommitMark(txn, type) : pulsars.appendAbortMark(txn, type);
    }

    @Override
    void fail(Exception error) {
      done.completeExceptionally(error);
    }
  }

  /** Lets the handle do its part, as if the coordinator had asked for it. */
  private void end(TxnID txn, boolean commit) {
    int action = commit ? TxnAction.COMMIT_VALUE : TxnAction.ABORT_VALUE;
    subscription
        .endTxn(txn.getMostSigBits(), txn.getLeastSigBits(), action, 0)
        .exceptionally(
            later -> {
              complain("transaction " + txn + " is ended later: " + later.getMessage());
              return null;
            });
  }

  /** Removes records that nobody needs any more. */
  private final class Forget extends Request {
    final List<String> names;
    final boolean isLast;

    Forget(TxnID txn, List<String> names, boolean isLast) {
      super(txn, Long.MAX_VALUE);
      this.names = names;
      this.isLast = isLast;
    }

    @Override
    boolean joins(Batch batch) {
      if (batch.removed.size() + names.size() > 2 * MOST_REMOVED) {
        return false;
      }
      batch.removed.addAll(names);
      return true;
    }

    @Override
    void finish() {
      if (isLast) {
        txns.remove(txn);
      }
    }

    @Override
    void fail(Exception error) {}
  }

  private void forget(Txn one) {
    one.isForgotten = true;
    List<String> names = one.names();
    names.add(one.name()); // the decision last: what is left of the others needs it
    for (int from = 0; from < names.size(); from += MOST_REMOVED) {
      int to = Math.min(names.size(), from + MOST_REMOVED);
      queue.add(new Forget(one.id, names.subList(from, to), to == names.size()));
    }
  }

  // --- looks --------------------------------------------------------------------------------------

  /** Looks for decisions that nobody has told, and for records that nobody needs. */
  private void look() {
    if (isClosed || isFenced || subscription.getCursor().isClosed()) {
      looking.cancel(false);
      return;
    }
    long now = environment.clockMs().getAsLong();
    Position persistent = subscription.getCursor().getPersistentMarkDeletedPosition();
    List<Txn> asked = new ArrayList<>();
    for (Txn one : List.copyOf(txns.values())) {
      boolean isDue = now - one.lookedMs >= environment.pollIntervalMs();
      if (one.decision == Decision.OPEN) {
        if (isDue && !one.isAsked) {
          asked.add(one);
        }
      } else if (one.isNoted && !one.isApplied) {
        end(one.id, one.decision == Decision.COMMITTED);
      } else if (one.isNoted && !one.isForgotten && isPersistent(one, persistent)) {
        forget(one);
      }
    }
    List<Txn> next =
        asked.stream()
            .sorted(Comparator.comparingLong(one -> one.lookedMs)) // so that each has its turn
            .limit(MOST_ASKED)
            .toList();
    for (Txn one : next) {
      one.isAsked = true;
      one.lookedMs = now;
    }
    if (!next.isEmpty()) {
      environment.threads().execute(() -> lookAt(next));
    }
    pump();
  }

  /** Tells whether the cursor, as it would be found after a crash, has all of a transaction. */
  private static boolean isPersistent(Txn one, Position persistent) {
    return one.decision == Decision.ABORTED
        || persistent != null
            && one.records.values().stream()
                .allMatch(record -> record.last().compareTo(persistent) <= 0);
  }

  private void lookAt(List<Txn> asked) {
    Map<Txn, Decision> answers = new LinkedHashMap<>();
    try {
      List<TransactionId> open = new ArrayList<>();
      for (Txn one : asked) {
        Decision header = environment.decisions().of(one.id);
        answers.put(one, header);
        if (header == Decision.OPEN) {
          open.add(environment.decisions().writer(one.id).txn());
        }
      }
      environment.inTheWay().accept(open);
    } catch (RuntimeException error) {
      complain(String.valueOf(error.getMessage()));
    }
    run(
        () -> {
          asked.forEach(one -> one.isAsked = false);
          answers.forEach(this::learn);
          pump();
        });
  }

  private void learn(Txn one, Decision header) {
    if (one.decision != Decision.OPEN || txns.get(one.id) != one || header == Decision.OPEN) {
      return;
    }
    if (header == Decision.ABSENT) {
      complain("transaction " + one.id + " has pending acks, but no header: they are held");
    } else {
      log.info("transaction {} is {}, and is ended in {}", one.id, header, subscription);
      queue.add(new End(one.id, header == Decision.COMMITTED, null, Long.MAX_VALUE));
    }
  }

  // --- steps --------------------------------------------------------------------------------------

  private CompletableFuture<Void> taken(Request request) {
    if (isClosed || isFenced) {
      request.fail(unavailable("it is being closed"));
    } else {
      queue.add(request);
      if (request.needsDecision()) {
        request.knowsDecision(); // while others are written
      }
      pump();
    }
    return request.done;
  }

  private ServiceUnitNotReadyException unavailable(String why) {
    return new ServiceUnitNotReadyException(
        "the pending acks of subscription " + name.name() + " cannot be written now: " + why);
  }

  private void pump() {
    while (sending == null && !isClosed && !isFenced) {
      Batch batch = new Batch();
      while (batch.requests.size() < MOST_AT_ONCE
          && !queue.isEmpty()
          && queue.peek().joins(batch)) {
        batch.requests.add(queue.remove());
      }
      if (batch.requests.isEmpty()) {
        return;
      }
      sending = batch;
      if (batch.writes()) {
        batch.step = new Step(++lastStep, batch.written, batch.removed);
        send(batch);
      } else {
        run(() -> tellPulsars(batch)); // the handle waits for its future first
      }
    }
  }

  private void send(Batch batch) {
    CompletableFuture<Optional<Answer>> together;
    try {
      together = environment.acks().writeTogether(name, opened.owner(), batch.step);
    } catch (RuntimeException error) {
      together = CompletableFuture.failedFuture(error);
    }
    together
        .exceptionally(unknown -> Optional.empty())
        .thenCompose(
            answer ->
                answer.isPresent()
                    ? CompletableFuture.completedFuture(answer.get())
                    : CompletableFuture.supplyAsync(
                        () -> environment.acks().write(name, opened.owner(), batch.step),
                        environment.threads()))
        .whenComplete((answer, error) -> run(() -> answered(batch, answer, error)));
  }

  private void answered(Batch batch, Answer answer, Throwable error) {
    if (isClosed || isFenced) {
      return;
    }
    if (error != null) {
      // It may be written: the same step is asked for until the store says so.
      giveUp(cause(error));
      later(batch.pauseMs, () -> send(batch));
      batch.pauseMs = Math.min(2 * batch.pauseMs, LONGEST_PAUSE_MS);
    } else if (answer == Answer.OK) {
      complain(null);
      tellPulsars(batch);
    } else {
      isFenced = true;
      refuseAll(unavailable("another broker has taken over, or the segment was deleted"));
      if (answer == Answer.FENCED) {
        reload(subscription, environment.threads()); // it may belong here nevertheless
      }
    }
  }

  /** Closes the topic of a subscription, so that it is loaded anew where it belongs. */
  static void reload(PersistentSubscription subscription, ExecutorService threads) {
    log.warn("The topic of {} is closed, to be loaded anew", subscription);
    threads.execute(
        () ->
            subscription
                .getTopic()
                .close(false)
                .exceptionally(
                    error -> {
                      log.warn("The topic of {} is not closed", subscription, error);
                      return null;
                    }));
  }

  /** Waits for what Pulsar's own store is told; it has what transactions had from before. */
  private void tellPulsars(Batch batch) {
    List<CompletableFuture<?>> told = new ArrayList<>();
    for (Request request : batch.requests) {
      CompletableFuture<Void> one = request.tellPulsars();
      if (one != null) {
        told.add(
            one.handle(
                (done, error) -> {
                  request.refusal = error == null ? null : cause(error);
                  return done;
                }));
      }
    }
    if (told.isEmpty()) {
      finish(batch);
    } else {
      CompletableFuture.allOf(told.toArray(CompletableFuture<?>[]::new))
          .thenRun(() -> run(() -> finish(batch)));
    }
  }

  private void finish(Batch batch) {
    batch.requests.forEach(Request::finish);
    sending = null;
    if (!queue.isEmpty()) {
      run(this::pump);
    }
  }

  private void ask(Request request) {
    environment
        .threads()
        .execute(
            () -> {
              try {
                Decision header = environment.decisions().of(request.txn);
                run(
                    () -> {
                      request.decision = header;
                      pump();
                    });
              } catch (RuntimeException error) {
                run(
                    () -> {
                      request.isAsked = false;
                      giveUp(error);
                      later(FIRST_PAUSE_MS, this::pump);
                    });
              }
            });
  }

  /** Refuses what has waited for too long. It is pending for the handle, whatever becomes of it. */
  private void giveUp(Exception error) {
    complain(String.valueOf(error.getMessage()));
    long now = environment.clockMs().getAsLong();
    List<Request> waiting = new ArrayList<>(sending == null ? List.of() : sending.requests);
    waiting.addAll(queue);
    for (Request one : waiting) {
      if (one.deadlineMs <= now && !one.done.isDone()) {
        queue.remove(one);
        one.fail(unavailable(String.valueOf(error.getMessage())));
      }
    }
  }

  private void refuseAll(Exception error) {
    List<Request> all = new ArrayList<>(sending == null ? List.of() : sending.requests);
    all.addAll(queue);
    queue.clear();
    all.stream().filter(one -> !one.done.isDone()).forEach(one -> one.fail(error));
  }

  private void later(long pauseMs, Runnable task) {
    try {
      environment.threads().schedule(() -> run(task), pauseMs, TimeUnit.MILLISECONDS);
    } catch (RejectedExecutionException closing) {
      log.debug("The broker is closing", closing);
    }
  }

  /** Runs a task in the thread of the handle. */
  private void run(Runnable task) {
    try {
      executor.execute(task);
    } catch (RejectedExecutionException closing) {
      log.debug("The broker is closing", closing);
    }
  }

  private synchronized void complain(String why) {
    if (why != null && !why.equals(complaint)) {
      log.warn("Pending acks of {}: {}", subscription, why);
    }
    complaint = why;
  }

  @Override
  public CompletableFuture<Void> closeAsync() {
    isClosed = true;
    if (looking != null) {
      looking.cancel(false);
    }
    if (executor != null) {
      run(() -> refuseAll(unavailable("it is being closed")));
    }
    PendingAckStore beside = pulsars;
    return beside == null ? CompletableFuture.completedFuture(null) : beside.closeAsync();
  }
}
