package pulsartxnspark.broker;

import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import java.util.stream.Stream;
import org.apache.bookkeeper.mledger.ManagedLedgerException.ManagedLedgerFencedException;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.policies.data.TransactionCoordinatorStats;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStore;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState;
import org.apache.pulsar.transaction.coordinator.TransactionRecoverTracker;
import org.apache.pulsar.transaction.coordinator.TransactionSubscription;
import org.apache.pulsar.transaction.coordinator.TransactionTimeoutTracker;
import org.apache.pulsar.transaction.coordinator.TxnMeta;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.ReachMaxActiveTxnException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionMetadataStoreStateException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.impl.TransactionMetadataStoreStats;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Answer;
import pulsartxnspark.store.CoordinatorStore.Ending;
import pulsartxnspark.store.CoordinatorStore.Owned;
import pulsartxnspark.store.CoordinatorStore.Progress;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.StoreException;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/**
 * One transaction coordinator of Pulsar's, on the metadata store (PIP-471's): what a client opens is a
 * header there, what it produces to is an intent and a pin, and its commit is the header's
 * compare-and-set. {@code docs/broker-transactions.md} has the states and the table of failures.
 */
final class MetadataTransactionCoordinator extends TransactionMetadataStoreState
    implements TransactionMetadataStore {
  /** Begins the nonces of coordinators; those of this package's clients are hexadecimal. */
  static final String NONCE_PREFIX = "pulsar-";

  private static final Logger log = LoggerFactory.getLogger(MetadataTransactionCoordinator.class);
  private static final SecureRandom RANDOM = new SecureRandom();
  private static final int TRIES = 3; // of a step that may be repeated
  private static final int TOLD_AT_ONCE = 100;

  private final TransactionCoordinatorID id;
  private final int pulsarTc;
  private final CoordinatorStore store;
  private final GatedSegments gated;
  private final KnownPins pins;
  private final TransactionTimeoutTracker timeouts;
  private final long mostActive; // 0: any number
  private final Executor threads;
  private final LongSupplier clockMs;

  private final ConcurrentNavigableMap<Long, ClientTransaction> live = new ConcurrentSkipListMap<>();
  // Pulsar has ended these; the store is still to be told.
  private final ConcurrentNavigableMap<Long, ClientTransaction> untold =
      new ConcurrentSkipListMap<>();
  private volatile long lastTold = -1;
  private final TransactionMetadataStoreStats stats = new TransactionMetadataStoreStats();
  private final LongAdder created = new LongAdder();
  private final LongAdder committed = new LongAdder();
  private final LongAdder aborted = new LongAdder();
  private final LongAdder timedOut = new LongAdder();
  private final LongAdder steps = new LongAdder();

  private final Runnable makeRoom; // for a coordinator that is opened anew

  private volatile long epoch;
  private final AtomicLong lastCounter = new AtomicLong();
  // What is being created lies above these, and is not among the live ones yet.
  private final Map<Object, Long> creating = new ConcurrentHashMap<>();
  private volatile long recoverStartMs;
  private volatile long recoverEndMs;

  /**
   * Makes a coordinator that has asked nothing yet.
   *
   * @param id Pulsar's id of it
   * @param store where its transactions are
   * @param gated tells gated segments from other topics
   * @param pins where the segments of this broker find those that are made here
   * @param timeouts aborts what takes too long
   * @param mostActive how many transactions may be active at once; 0 for any number
   * @param threads for whatever waits for the store
   * @param clockMs the broker's clock
   * @param makeRoom run once if another broker is found to have opened the coordinator: this one is
   *     of no use any more
   */
  MetadataTransactionCoordinator(
      TransactionCoordinatorID id,
      CoordinatorStore store,
      GatedSegments gated,
      KnownPins pins,
      TransactionTimeoutTracker timeouts,
      long mostActive,
      Executor threads,
      LongSupplier clockMs,
      Runnable makeRoom) {
    super(State.None);
    this.id = id;
    this.pulsarTc = Math.toIntExact(id.getId());
    this.store = store;
    this.gated = gated;
    this.pins = pins;
    this.timeouts = timeouts;
    this.mostActive = mostActive;
    this.threads = threads;
    this.clockMs = clockMs;
    this.makeRoom = makeRoom;
  }

  // --- recovery -----------------------------------------------------------------------------------

  /**
   * Fences whoever has served this coordinator before, and takes over what is not ended everywhere.
   *
   * @param tracker ends what is decided, and watches what is OPEN
   * @return this, ready
   */
  CompletableFuture<TransactionMetadataStore> recover(TransactionRecoverTracker tracker) {
    if (!changeToInitializingState()) {
      return CompletableFuture.failedFuture(notReady("recover"));
    }
    return inBackground(
        () -> {
          recoverStartMs = clockMs.getAsLong();
          // From here on nothing is created by others, so that the list is complete.
          epoch = patiently(() -> store.open(pulsarTc));
          lastCounter.set(patiently(() -> store.raiseCounter(pulsarTc, 0)));
          for (TransactionId txn : patiently(() -> store.unended(pulsarTc))) {
            takeOver(txn, tracker);
          }
          tracker.appendOpenTransactionToTimeoutTracker();
          if (!changeToReadyState()) {
            throw notReady("recover");
          }
          recoverEndMs = clockMs.getAsLong();
          return this;
        });
  }

  private void takeOver(TransactionId txn, TransactionRecoverTracker tracker)
      throws Exception {
    Optional<Owned> found = patiently(() -> store.read(txn));
    if (found.isEmpty() || !isOfThis(found.get().header().nonce())) {
      return; // of another of Pulsar's coordinators
    }
    Owned owned = found.get();
    Header header = owned.header();
    String nonce = newNonce();
    if (header.state() == Header.State.OPEN) {
      Answer answer = patiently(() -> store.adopt(txn, header.nonce(), nonce));
      if (answer == Answer.FENCED) {
        throw fenced();
      }
      if (answer != Answer.OK) {
        takeOver(txn, tracker); // decided in between: by whoever served it, or as expired
        return;
      }
    }
    // The intents after the decision, or after nobody else could add one.
    Header now = patiently(() -> store.read(txn)).map(Owned::header).orElse(header);
    ClientTransaction one = remembered(owned, now, nonce);
    live.put(txn.counter(), one);
    if (now.state() == Header.State.OPEN) {
      tracker.handleOpenStatusTransaction(
          txn.counter(), clockMs.getAsLong() + Math.max(0, now.deadlineMs() - now.nowMs()));
    } else {
      // Its timeout must not find it OPEN.
      TxnStatus ending = ending(now.state());
      one.updateTxnStatus(ending, TxnStatus.OPEN);
      tracker.updateTransactionStatus(txn.counter(), ending);
    }
  }

  private ClientTransaction remembered(Owned owned, Header header, String nonce) {
    long openedMs = clockMs.getAsLong() - (header.nowMs() - owned.createdMs());
    ClientTransaction one =
        new ClientTransaction(
            new TxnID(pulsarTc, header.txn().counter()),
            writer(header.txn().counter()),
            nonce,
            owned.owner().isEmpty() ? null : owned.owner(),
            openedMs,
            header.deadlineMs() - owned.createdMs());
    one.noteIntents(header.intents());
    return one;
  }

  private static TxnStatus ending(Header.State state) {
    return state == Header.State.COMMITTED ? TxnStatus.COMMITTING : TxnStatus.ABORTING;
  }

  private boolean isOfThis(String nonce) {
    return nonce.startsWith(NONCE_PREFIX + pulsarTc + "-");
  }

  private String newNonce() {
    byte[] random = new byte[8];
    RANDOM.nextBytes(random);
    return NONCE_PREFIX + pulsarTc + "-" + epoch + "-" + HexFormat.of().formatHex(random);
  }

  private WriterId writer(long counter) {
    return WriterId.ofPulsar(new TxnBits(pulsarTc, counter), store.coordinators());
  }

  // --- opening, and participants ------------------------------------------------------------------

  @Override
  public CompletableFuture<TxnID> newTransaction(long timeoutMs, String owner) {
    if (mostActive > 0 && live.size() >= mostActive) {
      return CompletableFuture.failedFuture(
          new ReachMaxActiveTxnException(
              "coordinator " + id + " has " + mostActive + " active transactions already"));
    }
    if (owner != null && owner.isBlank()) {
      return CompletableFuture.failedFuture(new IllegalArgumentException("the owner is blank"));
    }
    if (!checkIfReady()) {
      return CompletableFuture.failedFuture(notReady("new transaction"));
    }
    Object ticket = new Object();
    creating.put(ticket, lastCounter.get());
    String nonce = newNonce();
    long openedMs = clockMs.getAsLong();
    String role = owner == null ? "" : owner;
    // One nonce gets one transaction, however often it asks.
    return step(
            store.createTogether(pulsarTc, nonce, role, timeoutMs),
            () -> {
              requireReady("new transaction");
              return patiently(() -> store.create(pulsarTc, nonce, role, timeoutMs))
                  .orElseThrow(this::fence);
            })
        .thenApply(
            txn -> {
              long counter = txn.counter();
              TxnID shown = new TxnID(pulsarTc, counter);
              live.put(
                  counter,
                  new ClientTransaction(
                      shown, writer(counter), nonce, owner, openedMs, timeoutMs));
              lastCounter.accumulateAndGet(counter, Math::max);
              timeouts.addTransaction(counter, timeoutMs);
              created.increment();
              return shown;
            })
        .whenComplete((txn, error) -> creating.remove(ticket));
  }

  /**
   * Gives out no number up to one that Pulsar's own log has.
   *
   * @param last the highest one there
   * @return done when the store knows
   */
  CompletableFuture<Void> startAbove(long last) {
    return inBackground(
        () -> {
          lastCounter.accumulateAndGet(
              patiently(() -> store.raiseCounter(pulsarTc, Math.max(0, last))), Math::max);
          return null;
        });
  }

  @Override
  public CompletableFuture<Void> addProducedPartitionToTxn(TxnID txnId, List<String> partitions) {
    return registering(
        txnId,
        one ->
            found(partitions)
                .thenCompose(
                    segments -> {
                      List<String> intents = new ArrayList<>();
                      for (String partition : partitions) {
                        GatedSegments.Segment segment = segments.get(partition);
                        // An ordinary topic ends it by Pulsar's own markers; so the header waits
                        // for that.
                        intents.add(
                            segment == null
                                ? ClientTransaction.intent(partition)
                                : one.segmentIntent(segment.id()));
                      }
                      List<String> ids =
                          segments.values().stream().map(GatedSegments.Segment::id).toList();
                      return admitted(one, intents, ids)
                          .thenRun(() -> one.note(partitions, ids));
                    }));
  }

  /** Finds the gated segments among some topics; fails if one is of another store. */
  private CompletableFuture<Map<String, GatedSegments.Segment>> found(List<String> partitions) {
    Map<String, CompletableFuture<Optional<GatedSegments.Segment>>> asked = new LinkedHashMap<>();
    partitions.forEach(partition -> asked.put(partition, gated.find(partition)));
    return CompletableFuture.allOf(asked.values().toArray(CompletableFuture<?>[]::new))
        .thenCompose(
            done -> {
              Map<String, GatedSegments.Segment> segments = new LinkedHashMap<>();
              asked.forEach(
                  (partition, one) -> one.join().ifPresent(seg -> segments.put(partition, seg)));
              try {
                requireThisStore(segments);
              } catch (NotAllowedException error) {
                return CompletableFuture.failedFuture(error);
              }
              return CompletableFuture.completedFuture(segments);
            });
  }

  /** Records intents, then pins (INV-6, INV-2). */
  private CompletableFuture<Void> admitted(
      ClientTransaction one, List<String> intents, List<String> segments) {
    steps.increment();
    return step(
            store.admitTogether(
                one.txn(),
                one.nonce(),
                one.leftMs(clockMs.getAsLong()),
                intents,
                segments,
                one.writer()),
            () -> {
              intend(one, intents);
              for (String segment : segments) {
                if (patiently(() -> store.pin(segment, one.writer())) != Answer.OK) {
                  throw new InvalidTxnStatusException(
                      "segment " + segment + " takes nothing more of transaction " + one.id());
                }
              }
              return List.<CoordinatorStore.Pin>of();
            })
        .thenAccept(
            made -> {
              one.noteIntended(intents);
              for (int i = 0; i < made.size(); i++) {
                pins.note(segments.get(i), one.writer(), made.get(i));
              }
            });
  }

  private void requireThisStore(Map<String, GatedSegments.Segment> segments)
      throws NotAllowedException {
    for (Map.Entry<String, GatedSegments.Segment> one : segments.entrySet()) {
      if (!one.getValue().storeUuid().equals(store.uuid())) {
        throw new NotAllowedException(
            one.getKey()
                + " is a segment of metadata store "
                + one.getValue().storeUuid()
                + ", but pulsarTxnSparkStoreUrl names store "
                + store.uuid()
                + ": the transaction cannot write there");
      }
    }
  }

  @Override
  public CompletableFuture<Void> addAckedPartitionToTxn(
      TxnID txnId, List<TransactionSubscription> subscriptions) {
    return registering(
        txnId,
        one ->
            admitted(
                    one,
                    subscriptions.stream().map(ClientTransaction::intent).toList(),
                    List.of())
                .thenRun(() -> one.note(subscriptions)));
  }

  /** Registers participants of a transaction. */
  private interface Registration {
    CompletableFuture<Void> of(ClientTransaction one);
  }

  private CompletableFuture<Void> registering(TxnID txnId, Registration registration) {
    ClientTransaction one;
    try {
      requireReady("add participants");
      one = require(txnId);
      one.beginRegistering();
    } catch (Exception error) {
      return CompletableFuture.failedFuture(error);
    }
    CompletableFuture<Void> registered;
    try {
      registered = registration.of(one);
    } catch (RuntimeException malformed) { // such as a topic's name
      registered = CompletableFuture.failedFuture(malformed);
    }
    return registered.whenComplete((done, error) -> one.endRegistering());
  }

  private void intend(ClientTransaction one, List<String> intents) throws Exception {
    Answer answer =
        patiently(
            () -> store.intend(one.txn(), one.nonce(), one.leftMs(clockMs.getAsLong()), intents));
    switch (answer) {
      case OK -> { }
      case FENCED -> throw fence();
      case ABSENT -> throw new TransactionNotFoundException(one.id());
      default -> throw new InvalidTxnStatusException(one.id(), TxnStatus.OPEN, over(answer));
    }
  }

  private static TxnStatus over(Answer answer) {
    return answer == Answer.COMMITTED ? TxnStatus.COMMITTED : TxnStatus.ABORTED;
  }

  private ClientTransaction require(TxnID txnId) throws TransactionNotFoundException {
    ClientTransaction one = live.get(txnId.getLeastSigBits());
    if (one == null || txnId.getMostSigBits() != pulsarTc) {
      throw new TransactionNotFoundException(txnId);
    }
    return one;
  }

  // --- the decision -------------------------------------------------------------------------------

  @Override
  public CompletableFuture<Void> updateTxnStatus(
      TxnID txnId, TxnStatus newStatus, TxnStatus expected, boolean isTimeout) {
    try {
      requireReady("update the status of a transaction");
      ClientTransaction one = live.get(txnId.getLeastSigBits());
      if (one == null && (newStatus == TxnStatus.COMMITTED || newStatus == TxnStatus.ABORTED)) {
        return CompletableFuture.completedFuture(null); // it was ended, and somebody has asked again
      }
      one = require(txnId);
      if (one.status() == newStatus) {
        return CompletableFuture.completedFuture(null);
      }
      return switch (newStatus) {
        case COMMITTING -> decide(one, true, isTimeout);
        case ABORTING -> decide(one, false, isTimeout);
        case COMMITTED, ABORTED -> finish(one, newStatus, expected);
        default -> throw new InvalidTxnStatusException(txnId, newStatus, one.status());
      };
    } catch (Exception error) {
      return CompletableFuture.failedFuture(error);
    }
  }

  private CompletableFuture<Void> decide(
      ClientTransaction one, boolean commit, boolean isTimeout) throws Exception {
    if (one.status() != TxnStatus.OPEN) {
      throw new InvalidTxnStatusException(one.id(), TxnStatus.OPEN, one.status());
    }
    if (!one.beginEnding()) {
      throw notReady("end a transaction while participants are registered"); // asked again soon
    }
    List<String> segments = one.segments();
    pins.forget(segments, one.writer()); // before the decision: nothing is admitted by them after it
    steps.increment();
    Ending ending =
        new Ending(one.txn(), one.nonce(), one.writer(), commit ? segments : null, isTimeout);
    return step(
            store.endTogether(ending, one.intents(), !one.hasPulsars()),
            () -> decideAlone(one, ending))
        .thenAccept(
            reached -> {
              one.note(reached);
              one.noteDecided(commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING);
              if (isTimeout) {
                timedOut.increment();
              }
              if (!one.reached(Progress.MATERIALIZED)) {
                inBackground(() -> materialize(one))
                    .exceptionally(
                        later -> {
                          log.info(
                              "transaction {} is decided, and materialized later: {}",
                              one.txn(),
                              later.getMessage());
                          return false;
                        });
              }
            });
  }

  private Progress decideAlone(ClientTransaction one, Ending ending) throws Exception {
    boolean commit = ending.segments() != null;
    Answer wanted = commit ? Answer.COMMITTED : Answer.ABORTED;
    // A lost reply may have decided: asked again, the store says what.
    Answer answer = patiently(() -> store.end(ending));
    if (answer == Answer.FENCED) {
      throw fence();
    }
    if (answer == Answer.ABSENT) {
      live.remove(one.txn().counter());
      throw new TransactionNotFoundException(one.id());
    }
    if (answer != Answer.OK && answer != wanted) {
      throw new InvalidTxnStatusException(
          one.id(), commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING, over(answer));
    }
    return Progress.DECIDED;
  }

  private boolean materialize(ClientTransaction one) {
    Optional<Owned> decided = patiently(() -> store.read(one.txn()));
    decided.ifPresent(found -> patiently(() -> materialized(found.header())));
    one.note(Progress.MATERIALIZED);
    return true;
  }

  private boolean materialized(Header header) {
    store.materialize(header);
    return true;
  }

  /** Answers at once: Pulsar has told every topic, and whoever opens the coordinator does so again. */
  private CompletableFuture<Void> finish(
      ClientTransaction one, TxnStatus newStatus, TxnStatus expected) throws Exception {
    one.updateTxnStatus(newStatus, expected);
    steps.increment();
    if (!one.reached(Progress.ENDED)) {
      untold.put(one.txn().counter(), one);
    }
    live.remove(one.txn().counter());
    (newStatus == TxnStatus.COMMITTED ? committed : aborted).increment();
    stats.addTransactionExecutionLatencySample(clockMs.getAsLong() - one.getOpenTimestamp());
    if (!one.reached(Progress.ENDED)) {
      tell(one);
    }
    return CompletableFuture.completedFuture(null);
  }

  /** Tells the store that a transaction is ended everywhere. */
  private void tell(ClientTransaction one) {
    if (!one.beginTelling()) {
      return;
    }
    CompletableFuture<Optional<Boolean>> together =
        one.reached(Progress.MATERIALIZED)
            ? store.endedTogether(one.txn()).thenApply(done -> Optional.of(done).filter(told -> told))
            : CompletableFuture.completedFuture(Optional.empty());
    step(together, () -> tellAlone(one))
        .whenComplete(
            (done, later) -> {
              if (later == null) {
                untold.remove(one.txn().counter(), one);
              } else {
                log.info(
                    "transaction {} is ended, and the store is told later: {}",
                    one.txn(),
                    later.getMessage());
              }
              one.endTelling();
            });
  }

  private boolean tellAlone(ClientTransaction one) {
    if (!one.reached(Progress.MATERIALIZED)) {
      materialize(one); // the store was away after the decision, or another broker decided
    }
    return patiently(
        () -> {
          store.ended(one.txn());
          return true;
        });
  }

  /**
   * Tells the store of what was ended while it did not answer. To be called from time to time.
   *
   * @return how many transactions the store is still to be told of
   */
  int tellAgain() {
    if (checkIfReady()) {
      // On from where the last call ended: some that fail for good must not keep others from it.
      List<ClientTransaction> some =
          Stream.concat(
                  untold.tailMap(lastTold, false).values().stream(),
                  untold.headMap(lastTold, true).values().stream())
              .limit(TOLD_AT_ONCE)
              .toList();
      some.forEach(
          one -> {
            lastTold = one.txn().counter();
            tell(one);
          });
    }
    return untold.size();
  }

  /**
   * Finds what is OPEN here, but was decided by others: an administrator, or whoever found its lease
   * over.
   *
   * @return what has to be ended in Pulsar's own topics
   */
  List<TxnID> decidedByOthers() {
    Map.Entry<Long, ClientTransaction> first = live.firstEntry();
    if (!checkIfReady() || first == null) {
      return List.of();
    }
    List<ClientTransaction> before = List.copyOf(live.values());
    Set<Long> open = new HashSet<>(store.open(pulsarTc, first.getKey()));
    return before.stream()
        .filter(one -> one.status() == TxnStatus.OPEN && !open.contains(one.txn().counter()))
        .map(ClientTransaction::id)
        .toList();
  }

  // --- what others ask ----------------------------------------------------------------------------

  @Override
  public CompletableFuture<TxnMeta> getTxnMeta(TxnID txnId) {
    ClientTransaction one = live.get(txnId.getLeastSigBits());
    if (one != null && txnId.getMostSigBits() == pulsarTc) {
      return CompletableFuture.completedFuture(one);
    }
    if (txnId.getMostSigBits() != pulsarTc || txnId.getLeastSigBits() < 0) {
      return CompletableFuture.failedFuture(new TransactionNotFoundException(txnId));
    }
    if (!checkIfReady()) {
      return CompletableFuture.failedFuture(notReady("look for a transaction"));
    }
    return inBackground(
        () -> {
          WriterId writer = writer(txnId.getLeastSigBits());
          Owned owned =
              patiently(() -> store.read(writer.txn()))
                  .filter(found -> isOfThis(found.header().nonce()))
                  .orElseThrow(() -> new TransactionNotFoundException(txnId));
          Header header = owned.header();
          if (epochOf(header.nonce()) > epoch) {
            throw fence();
          }
          if (header.state() == Header.State.OPEN) {
            throw new TransactionNotFoundException(txnId); // nobody was told of it
          }
          // Whoever asks again after a lost reply gets the same answer again. Nothing is left to do.
          ClientTransaction over =
              new ClientTransaction(
                  txnId,
                  writer,
                  header.nonce(),
                  owned.owner().isEmpty() ? null : owned.owner(),
                  owned.createdMs(),
                  header.deadlineMs() - owned.createdMs());
          return over.updateTxnStatus(ending(header.state()), TxnStatus.OPEN);
        });
  }

  private static long epochOf(String nonce) {
    return Long.parseLong(nonce.split("-", 4)[2]);
  }

  /** Tells whether a transaction is active here, and not decided. */
  boolean isOpen(long counter) {
    ClientTransaction one = live.get(counter);
    return one != null && one.status() == TxnStatus.OPEN;
  }

  /** Tells whether a transaction is active here. */
  boolean isLive(TxnID txnId) {
    return txnId.getMostSigBits() == pulsarTc && live.containsKey(txnId.getLeastSigBits());
  }

  /** Every older transaction is ended everywhere. */
  @Override
  public long getLowWaterMark() {
    // In this order: what is created meanwhile has a higher number, or is in one of the two.
    long last = lastCounter.get();
    long below = creating.values().stream().min(Long::compare).orElse(last);
    Map.Entry<Long, ClientTransaction> first = live.firstEntry();
    return first == null ? 0 : Math.min(Math.min(below, last), first.getKey() - 1);
  }

  @Override
  public TransactionCoordinatorID getTransactionCoordinatorID() {
    return id;
  }

  @Override
  public TransactionCoordinatorStats getCoordinatorStats() {
    TransactionCoordinatorStats shown = new TransactionCoordinatorStats();
    shown.setState(getState().name());
    shown.setLeastSigBits(lastCounter.get());
    shown.setLowWaterMark(getLowWaterMark());
    shown.setOngoingTxnSize(live.size());
    shown.setRecoverStartTime(recoverStartMs);
    shown.setRecoverEndTime(recoverEndMs);
    return shown;
  }

  @Override
  public TransactionMetadataStoreStats getMetadataStoreStats() {
    stats.setCoordinatorId(id.getId());
    stats.setActives(live.size());
    stats.setCreatedCount(created.sum());
    stats.setCommittedCount(committed.sum());
    stats.setAbortedCount(aborted.sum());
    stats.setTimeoutCount(timedOut.sum());
    stats.setAppendLogCount(created.sum() + steps.sum());
    return stats;
  }

  @Override
  public List<TxnMeta> getSlowTransactions(long timeout) {
    return live.values().stream()
        .filter(one -> one.getTimeoutAt() > timeout)
        .map(TxnMeta.class::cast)
        .toList();
  }

  @Override
  public CompletableFuture<Void> closeAsync() {
    close();
    return CompletableFuture.completedFuture(null);
  }

  /** Returns false if it was closed before. */
  private boolean close() {
    if (!changeToClosingState()) {
      return false;
    }
    timeouts.close();
    live.values().forEach(one -> pins.forget(one.segments(), one.writer()));
    live.clear();
    changeToCloseState();
    return true;
  }

  // --- asking the store ---------------------------------------------------------------------------

  private void requireReady(String what) throws Exception {
    if (!checkIfReady()) {
      throw notReady(what);
    }
  }

  /** Pulsar asks again after this error; but for a coordinator that was closed, which is elsewhere. */
  private Exception notReady(String what) {
    State state = getState();
    return state == State.Closing || state == State.Close
        ? fenced()
        : new TransactionMetadataStoreStateException(id, State.Ready, state, what);
  }

  /** A client that gets this error asks which broker has the coordinator now. */
  private ManagedLedgerFencedException fenced() {
    return new ManagedLedgerFencedException(
        new IllegalStateException("the coordinator " + id + " was opened anew, or elsewhere"));
  }

  /** Pulsar opens none while it has this one, and does not remove it by itself. */
  private ManagedLedgerFencedException fence() {
    if (close()) {
      makeRoom.run();
    }
    return fenced();
  }

  private static <T> T patiently(Supplier<T> step) {
    for (int attempt = 1; ; attempt++) {
      try {
        return step.get();
      } catch (StoreUnavailableException error) {
        if (attempt == TRIES) {
          throw error;
        }
      }
    }
  }

  /** What waits for the store. */
  private interface Work<T> {
    T run() throws Exception;
  }

  /**
   * Takes a step with those of others; where that does not tell what came of it, alone. Every step may
   * be repeated.
   */
  private <T> CompletableFuture<T> step(
      CompletableFuture<Optional<T>> together, Work<T> alone) {
    return together
        .exceptionally(unknown -> Optional.empty())
        .thenCompose(
            found ->
                found.isPresent()
                    ? CompletableFuture.completedFuture(found.get())
                    : inBackground(alone));
  }

  private <T> CompletableFuture<T> inBackground(Work<T> work) {
    CompletableFuture<T> done = new CompletableFuture<>();
    try {
      threads.execute(
          () -> {
            try {
              done.complete(work.run());
            } catch (StoreUnavailableException error) {
              // What came of it is not known: Pulsar asks again.
              done.completeExceptionally(
                  new TransactionMetadataStoreStateException(error.getMessage()));
            } catch (CompletionException error) {
              done.completeExceptionally(error.getCause());
            } catch (Exception error) {
              done.completeExceptionally(error);
            }
          });
    } catch (RuntimeException rejected) {
      done.completeExceptionally(rejected);
    }
    return done;
  }
}
