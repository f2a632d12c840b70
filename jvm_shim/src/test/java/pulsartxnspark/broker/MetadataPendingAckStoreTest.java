package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.AckedSubscription.at;
import static pulsartxnspark.broker.AckedSubscription.batch;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.transaction.pendingack.PendingAckStore;
import org.apache.pulsar.broker.transaction.pendingack.TransactionPendingAckStoreProvider;
import org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckReplyCallBack;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.broker.transaction.pendingack.proto.PendingAckMetadataEntry;
import org.apache.pulsar.broker.transaction.pendingack.proto.PendingAckOp;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.apache.pulsar.transaction.common.exception.TransactionConflictException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Ending;
import pulsartxnspark.store.RedisAckStore;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.StoreRolledBackException;
import pulsartxnspark.store.StoreTest;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;
import redis.clients.jedis.Jedis;

/** The pending acks of a subscription, under Pulsar's own handle and in a real Redis. */
@Tag("acks")
class MetadataPendingAckStoreTest extends StoreTest {
  private static final int TC = 5; // the store has four coordinators: it shares that of 1
  private static final long HOUR_MS = 3_600_000;
  private static final String RECORDS = "{seg:s}:broker-acks:service";

  private final AckedSubscription.Cursor cursor = new AckedSubscription.Cursor();
  private final List<AckedSubscription> loaded = new ArrayList<>();
  private final List<TransactionId> inTheWay = new CopyOnWriteArrayList<>();
  private final AtomicLong clockMs = new AtomicLong();
  private final Pulsars pulsars = new Pulsars();
  private ScheduledExecutorService threads;
  private CoordinatorStore coordinators;
  private Faults faults;
  private Map<String, String> marks;
  private boolean takesNew = true;

  /** The records in Redis, with what may go wrong on the way there. */
  private final class Faults implements AckStore {
    private final AckStore asked;
    private volatile boolean loses; // the reply, not the request
    private volatile boolean isAway;
    private volatile CompletableFuture<Void> gate = CompletableFuture.completedFuture(null);
    private volatile CompletableFuture<Void> opening = CompletableFuture.completedFuture(null);
    private final AtomicLong asks = new AtomicLong();
    private final AtomicLong opens = new AtomicLong();

    Faults(AckStore asked) {
      this.asked = asked;
    }

    @Override
    public void note(Subscription subscription, String cursor) {
      awaitOpening();
      requireThere();
      asked.note(subscription, cursor);
    }

    @Override
    public Opened open(Subscription subscription, String cursor) {
      awaitOpening();
      requireThere();
      return asked.open(subscription, cursor);
    }

    @Override
    public Answer write(Subscription subscription, long owner, Step step) {
      asks.incrementAndGet();
      requireThere();
      Answer answer = asked.write(subscription, owner, step);
      if (loses) {
        loses = false;
        throw new StoreUnavailableException("the reply is lost", null);
      }
      return answer;
    }

    @Override
    public CompletableFuture<Optional<Answer>> writeTogether(
        Subscription subscription, long owner, Step step) {
      return loses || isAway
          ? CompletableFuture.completedFuture(Optional.empty())
          : gate.thenCompose(open -> asked.writeTogether(subscription, owner, step));
    }

    private void awaitOpening() {
      CompletableFuture<Void> held = opening;
      opening = CompletableFuture.completedFuture(null);
      opens.incrementAndGet();
      if (held.handle((done, error) -> error != null).join()) {
        throw new StoreUnavailableException("the store was away", null);
      }
    }

    private void requireThere() {
      if (isAway) {
        throw new StoreUnavailableException("the store is away", null);
      }
    }
  }

  /** Pulsar's own store, as far as it matters here. */
  private static final class Pulsars implements TransactionPendingAckStoreProvider, PendingAckStore {
    final List<String> told = new CopyOnWriteArrayList<>();
    final List<PendingAckMetadataEntry> replayed = new ArrayList<>();
    boolean exists;
    volatile CompletableFuture<Void> opening = CompletableFuture.completedFuture(null);

    @Override
    public CompletableFuture<PendingAckStore> newPendingAckStore(PersistentSubscription of) {
      exists = true;
      told.add("open");
      return opening.thenApply(done -> this);
    }

    @Override
    public CompletableFuture<Boolean> checkInitializedBefore(PersistentSubscription of) {
      return CompletableFuture.completedFuture(exists);
    }

    @Override
    public void replayAsync(PendingAckHandleImpl handle, ExecutorService executor) {
      executor.execute(
          () -> {
            MLPendingAckReplyCallBack callBack = new MLPendingAckReplyCallBack(handle);
            replayed.forEach(callBack::handleMetadataEntry);
            callBack.replayComplete();
          });
    }

    @Override
    public CompletableFuture<Void> closeAsync() {
      return CompletableFuture.completedFuture(null);
    }

    private CompletableFuture<Void> note(String what) {
      told.add(what);
      return CompletableFuture.completedFuture(null);
    }

    @Override
    public CompletableFuture<Void> appendIndividualAck(
        TxnID txn, List<MutablePair<Position, Integer>> positions) {
      return note("individual");
    }

    @Override
    public CompletableFuture<Void> appendCumulativeAck(TxnID txn, Position position) {
      return note("cumulative");
    }

    @Override
    public CompletableFuture<Void> appendCommitMark(TxnID txn, AckType type) {
      return note("commit");
    }

    @Override
    public CompletableFuture<Void> appendAbortMark(TxnID txn, AckType type) {
      return note("abort");
    }
  }

  @BeforeEach
  void begin() {
    threads = Executors.newScheduledThreadPool(4);
    Scripts scripts = new Scripts(store.connections);
    coordinators = new RedisCoordinatorStore(scripts, new StoreMetrics());
    faults = new Faults(new RedisAckStore(scripts));
    marks =
        Map.of(
            MetadataTransactionBufferProvider.SEGMENT_PROPERTY, "s",
            MetadataTransactionBufferProvider.GATE_PROPERTY, "broker",
            MetadataTransactionBufferProvider.STORE_PROPERTY, TestStore.UUID);
  }

  @AfterEach
  void end() {
    loaded.forEach(AckedSubscription::close);
    threads.shutdownNow();
  }

  private AckedSubscription load(long pollIntervalMs) {
    AckEnvironment environment =
        new AckEnvironment(
            faults,
            Decisions.of(store.transactions, coordinators),
            inTheWay::addAll,
            threads,
            pollIntervalMs,
            10_000,
            clockMs::get,
            takesNew);
    AckedSubscription one =
        new AckedSubscription(
            cursor,
            marks,
            new MetadataPendingAckStoreProvider(
                pulsars, new MetadataPendingAckStoreProvider.Shared(environment, coordinators)));
    loaded.add(one);
    return one;
  }

  /** Loads the subscription, and waits until it takes consumers. */
  private AckedSubscription load() {
    AckedSubscription one = load(HOUR_MS);
    get(one.handle.pendingAckHandleFuture());
    return one;
  }

  /** A broker dies, and another one loads the subscription. */
  private AckedSubscription afterCrash(AckedSubscription before) {
    before.crash();
    loaded.remove(before);
    return load();
  }

  private TxnID begin(String name) {
    long epoch = coordinators.open(TC);
    String nonce = "pulsar-" + TC + "-" + epoch + "-" + name;
    return new TxnID(TC, coordinators.create(TC, nonce, "", HOUR_MS).orElseThrow().counter());
  }

  private static WriterId writer(TxnID txn) {
    return WriterId.ofPulsar(new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits()), 4);
  }

  /** Decides by the header's compare-and-set alone. */
  private void decide(TxnID txn, boolean commit) {
    WriterId writer = writer(txn);
    String nonce = store.transactions.read(writer.txn()).orElseThrow().nonce();
    coordinators.end(new Ending(writer.txn(), nonce, writer, commit ? List.of() : null, false));
  }

  private void removeHeader(TxnID txn) {
    try (Jedis jedis = store.client()) {
      jedis.del("{tc1}:txn:" + writer(txn).txn().key());
    }
  }

  private Map<String, String> records() {
    try (Jedis jedis = store.client()) {
      return jedis.hgetAll(RECORDS);
    }
  }

  private static <T> T get(CompletableFuture<T> future) {
    try {
      return future.get(20, TimeUnit.SECONDS);
    } catch (ExecutionException error) {
      throw new AssertionError(error.getCause());
    } catch (Exception error) {
      throw new AssertionError(error);
    }
  }

  private static void refused(Class<? extends Throwable> type, CompletableFuture<?> future) {
    Throwable error =
        assertThrows(ExecutionException.class, () -> future.get(20, TimeUnit.SECONDS)).getCause();
    while (error.getCause() != null) {
      error = error.getCause();
    }
    assertInstanceOf(type, error);
  }

  /** Lets time go by, whenever the request has begun to wait. */
  private void refusedInTheEnd(CompletableFuture<?> future) {
    await(
        () -> {
          clockMs.addAndGet(100);
          return future.isDone();
        });
    refused(ServiceUnitNotReadyException.class, future);
  }

  private static void await(BooleanSupplier condition) {
    long deadline = System.currentTimeMillis() + 20_000;
    while (!condition.getAsBoolean()) {
      assertTrue(System.currentTimeMillis() < deadline, "it did not come to pass");
      LockSupport.parkNanos(1_000_000);
    }
  }

  // --- what a transaction does --------------------------------------------------------------------

  @Test
  void messagesAreHeldWhileTheirTransactionIsOpenAndAcknowledgedWhenItIsCommitted() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0), at(1)));
    get(one.acknowledge(txn, at(2)));
    assertTrue(one.isHeld(0));
    assertFalse(cursor.isDeleted(at(0)));
    assertEquals(2, records().size());
    decide(txn, true);
    get(one.commit(txn));
    assertEquals(at(2), cursor.markDeleted());
    get(one.commit(txn)); // asked again, after a lost reply
  }

  @Test
  void messagesOfAnAbortedTransactionAreDeliveredAgain() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0), at(1)));
    decide(txn, false);
    get(one.abort(txn));
    assertEquals(List.of(0L, 1L), one.redelivered().stream().sorted().toList());
    assertFalse(one.isHeld(0));
    assertEquals(Map.of(), records());
    get(one.abort(txn));
    TxnID next = begin("b");
    get(one.acknowledge(next, at(0)));
  }

  @Test
  void messagesOfABatchAreHeldOneByOne() {
    AckedSubscription one = load();
    TxnID first = begin("a");
    TxnID second = begin("b");
    get(one.acknowledge(first, batch(0, 2, 3, 4, 5, 6, 7)));
    get(one.acknowledge(second, batch(0, 0, 1, 4, 5, 6, 7)));
    refused(
        TransactionConflictException.class, one.acknowledge(second, batch(0, 0, 2, 3, 4, 5, 6, 7)));
    AckedSubscription next = afterCrash(one);
    refused(
        TransactionConflictException.class, next.acknowledge(second, batch(0, 0, 2, 3, 4, 5, 6, 7)));
    decide(first, true);
    get(next.commit(first));
    assertEquals(BitSet.valueOf(new long[] {0b1111_1100}), cursor.left(0));
    AckedSubscription last = afterCrash(next);
    assertEquals(BitSet.valueOf(new long[] {0b1111_1100}), cursor.left(0));
    decide(second, false);
    get(last.abort(second));
    get(last.acknowledge(begin("c"), batch(0, 0, 1, 4, 5, 6, 7)));
  }

  @Test
  void aCumulativeAcknowledgementKeepsItsPlaceInABatchOverACrash() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledgeUpTo(txn, at(1)));
    get(one.acknowledgeUpTo(txn, batch(3, 4, 5, 6, 7)));
    assertEquals(1, records().size()); // the last one stands for both
    refused(TransactionConflictException.class, one.acknowledgeUpTo(begin("b"), at(5)));
    AckedSubscription next = afterCrash(one);
    refused(TransactionConflictException.class, next.acknowledgeUpTo(begin("c"), at(5)));
    assertEquals(1, records().size());
    decide(txn, true);
    get(next.commit(txn));
    assertEquals(at(2), cursor.markDeleted());
    assertEquals(BitSet.valueOf(new long[] {0b1111_0000}), cursor.left(3));
    AckedSubscription last = afterCrash(next);
    assertEquals(at(2), cursor.markDeleted());
    assertEquals(BitSet.valueOf(new long[] {0b1111_0000}), cursor.left(3));
    TxnID later = begin("d");
    get(last.acknowledgeUpTo(later, at(5)));
    decide(later, false);
    get(last.abort(later));
    assertEquals(at(2), cursor.markDeleted());
    get(last.acknowledgeUpTo(begin("e"), at(5)));
  }

  // --- replay -------------------------------------------------------------------------------------

  @Test
  void theNextBrokerHoldsWhatIsUndecided() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0), at(1)));
    AckedSubscription next = afterCrash(one);
    assertTrue(next.isHeld(0) && next.isHeld(1));
    refused(TransactionConflictException.class, next.acknowledge(begin("b"), at(1)));
    get(next.acknowledge(txn, at(2)));
    decide(txn, true);
    get(next.commit(txn));
    assertEquals(at(2), cursor.markDeleted());
  }

  @Test
  void aDecisionThatNobodyHasToldIsFoundInTheHeader() {
    AckedSubscription one = load();
    TxnID kept = begin("a");
    TxnID lost = begin("b");
    get(one.acknowledge(kept, at(0)));
    get(one.acknowledge(lost, at(1)));
    decide(kept, true);
    decide(lost, false);
    AckedSubscription next = afterCrash(one);
    assertEquals(at(0), cursor.markDeleted());
    assertFalse(next.isHeld(1));
    get(next.commit(kept)); // its coordinator tells it later
    get(next.abort(lost));
    assertEquals(1, records().keySet().stream().filter(name -> name.split(":").length == 2).count());
    removeHeader(kept); // it may go now, as the subscription knows
    AckedSubscription last = afterCrash(next);
    assertEquals(at(0), cursor.markDeleted());
    get(last.acknowledge(begin("c"), at(1)));
  }

  @Test
  void aCommitIsRepeatedUntilTheCursorIsWritten() {
    AckedSubscription one = load(5);
    TxnID txn = begin("a");
    TxnID other = begin("b");
    get(one.acknowledge(txn, at(0)));
    get(one.acknowledge(txn, at(2)));
    get(one.acknowledge(other, at(9)));
    decide(txn, true);
    get(one.commit(txn));
    removeHeader(txn);
    awaitLooks();
    cursor.flush(); // as far as the first of the two
    one.crash();
    loaded.remove(one);
    assertFalse(cursor.isDeleted(at(2)));
    AckedSubscription next = load(5);
    get(next.handle.pendingAckHandleFuture());
    assertTrue(cursor.isDeleted(at(2)));
    next.acknowledgePlainly(at(1));
    awaitLooks();
    assertEquals(4, records().size()); // two, a decision, and the other one's
    cursor.flush();
    await(() -> records().size() == 1);
  }

  /** Waits until the broker has looked at what is pending, and has written what it found. */
  private void awaitLooks() {
    for (int look = 0; look < 3; look++) {
      inTheWay.clear();
      await(
          () -> {
            clockMs.addAndGet(10);
            return !inTheWay.isEmpty();
          });
    }
  }

  @Test
  void whatWasRefusedIsNotHeldByTheNextBroker() {
    AckedSubscription one = load();
    TxnID first = begin("a");
    TxnID refused = begin("b");
    TxnID last = begin("c");
    get(one.acknowledge(first, at(0)));
    refused(TransactionConflictException.class, one.acknowledge(refused, at(0)));
    assertEquals(1, records().size());
    decide(first, false);
    get(one.abort(first));
    get(one.acknowledge(last, at(0)));
    AckedSubscription next = afterCrash(one);
    decide(refused, true);
    get(next.commit(refused));
    assertFalse(cursor.isDeleted(at(0)));
    decide(last, true);
    get(next.commit(last));
    assertTrue(cursor.isDeleted(at(0)));
  }

  @Test
  void ofTwoThatWantAMessageAtOnceOneHasARecord() {
    AckedSubscription one = load();
    TxnID first = begin("a");
    TxnID second = begin("b");
    get(one.acknowledge(first, at(0)));
    get(one.acknowledge(second, at(1)));
    faults.gate = new CompletableFuture<>();
    CompletableFuture<Void> written = one.acknowledge(first, at(2));
    CompletableFuture<Void> wins = one.acknowledge(first, at(3));
    CompletableFuture<Void> loses = one.acknowledge(second, at(3));
    CompletableFuture<Void> winsToo = one.acknowledge(second, batch(4, 1, 2, 3, 4, 5, 6, 7));
    CompletableFuture<Void> losesToo = one.acknowledge(first, batch(4, 2, 3, 4, 5, 6, 7));
    faults.gate.complete(null);
    get(written);
    get(wins);
    get(winsToo);
    refused(TransactionConflictException.class, loses);
    refused(TransactionConflictException.class, losesToo);
    assertEquals(5, records().size());
    AckedSubscription next = afterCrash(one);
    decide(second, true);
    get(next.commit(second));
    assertFalse(cursor.isDeleted(at(3)));
  }

  @Test
  void anEndThatComesTwiceNeverAppliesWhatAnotherTransactionAcknowledgedMeanwhile() {
    AckedSubscription one = load();
    TxnID first = begin("a");
    TxnID second = begin("b");
    get(one.acknowledgeUpTo(first, at(1)));
    decide(first, true);
    faults.gate = new CompletableFuture<>();
    CompletableFuture<Void> ended = one.commit(first);
    CompletableFuture<Void> pending = one.acknowledgeUpTo(second, at(5));
    CompletableFuture<Void> again = one.commit(first);
    faults.gate.complete(null);
    get(ended);
    get(pending);
    refused(ServiceUnitNotReadyException.class, again);
    assertEquals(at(1), cursor.markDeleted());
    get(one.commit(first)); // Pulsar asks again
    decide(second, false);
    get(one.abort(second));
    assertEquals(at(1), cursor.markDeleted());
  }

  @Test
  void bothKindsOfAcknowledgementsOfATransactionAreEndedInTheEnd() {
    AckedSubscription one = load(5);
    get(one.handle.pendingAckHandleFuture());
    TxnID txn = begin("a");
    TxnID other = begin("b");
    get(one.acknowledge(txn, at(7)));
    get(one.acknowledgeUpTo(txn, at(1)));
    get(one.acknowledge(other, at(9)));
    decide(txn, true);
    get(one.commit(txn));
    await(() -> cursor.isDeleted(at(7)));
    assertEquals(at(1), cursor.markDeleted());
    TxnID lost = begin("c");
    get(one.acknowledge(lost, at(6)));
    get(one.acknowledgeUpTo(lost, at(3)));
    decide(lost, false);
    get(one.abort(lost));
    await(() -> !one.isHeld(6));
    assertEquals(List.of(6L), one.redelivered());
    assertEquals(at(1), cursor.markDeleted());
  }

  @Test
  void anEndThatPulsarsHandleLeavesOutIsMadeUpForLater() {
    AckedSubscription one = load(5);
    get(one.handle.pendingAckHandleFuture());
    TxnID cumulative = begin("a");
    TxnID individual = begin("b");
    get(one.acknowledgeUpTo(cumulative, at(0)));
    get(one.acknowledge(individual, at(5)));
    decide(individual, true);
    get(one.commit(individual)); // Pulsar does nothing: another one has a cumulative one
    assertFalse(cursor.isDeleted(at(5)));
    String name = individual.getMostSigBits() + ":" + individual.getLeastSigBits();
    await(
        () -> {
          clockMs.addAndGet(10);
          return "COMMITTED".equals(records().get(name));
        });
    removeHeader(individual); // it may go now
    assertFalse(cursor.isDeleted(at(5)));
    decide(cumulative, false);
    get(one.abort(cumulative));
    await(() -> cursor.isDeleted(at(5)));
    assertEquals(at(-1), cursor.markDeleted());
  }

  @Test
  void manyRecordsOfATransactionGoInSeveralSteps() {
    AckedSubscription one = load(5);
    get(one.handle.pendingAckHandleFuture());
    TxnID txn = begin("a");
    List<CompletableFuture<Void>> all = new ArrayList<>();
    for (int entry = 0; entry < 1_200; entry++) {
      all.add(one.acknowledge(txn, at(entry)));
    }
    all.forEach(MetadataPendingAckStoreTest::get);
    assertEquals(1_200, records().size());
    decide(txn, false);
    get(one.abort(txn));
    assertEquals(1_200, one.redelivered().size());
    await(() -> records().isEmpty());
  }

  @Test
  void theNewestHolderOfAMessageIsTheRightOne() {
    load().close();
    loaded.clear();
    TxnID older = begin("a");
    TxnID newer = begin("b");
    try (Jedis jedis = store.client()) {
      // The handle refused the older one in between: a message of it was acknowledged plainly.
      jedis.hset(RECORDS, older.getMostSigBits() + ":" + older.getLeastSigBits() + ":3", "I 7:0:0:- 7:1:0:-");
      jedis.hset(RECORDS, newer.getMostSigBits() + ":" + newer.getLeastSigBits() + ":10", "I 7:1:0:-");
      jedis.hset("{seg:s}:broker-acks-owner:service", "cursor", "known");
    }
    cursor.properties.put(MetadataPendingAckStoreProvider.CURSOR_PROPERTY, "known");
    cursor.acknowledge(at(0));
    AckedSubscription one = load();
    decide(older, true);
    get(one.commit(older));
    assertFalse(cursor.isDeleted(at(1)));
    decide(newer, true);
    get(one.commit(newer));
    assertTrue(cursor.isDeleted(at(1)));
  }

  @Test
  void whatHasNoHeaderIsHeldAndNotGuessed() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    removeHeader(txn);
    AckedSubscription next = afterCrash(one);
    assertTrue(next.isHeld(0));
    refused(ServiceUnitNotReadyException.class, next.commit(txn));
    refused(ServiceUnitNotReadyException.class, next.abort(txn));
    assertTrue(next.isHeld(0));
    assertFalse(cursor.isDeleted(at(0)));
  }

  @Test
  void aSubscriptionThatWasMadeAnewHasNothingOfTheOneBefore() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    decide(txn, true);
    get(one.commit(txn));
    cursor.properties.clear(); // deleted, and made anew under its name
    AckedSubscription next = afterCrash(one);
    get(next.acknowledge(begin("b"), at(1)));
    assertFalse(cursor.isDeleted(at(0)));
    assertEquals(1, records().size());
    assertFalse(afterCrash(next).isHeld(0));
  }

  // --- what the header says -----------------------------------------------------------------------

  @Test
  void nobodyEndsATransactionOtherwiseThanItsHeaderSays() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    refused(ServiceUnitNotReadyException.class, one.commit(txn)); // it is OPEN
    decide(txn, true);
    refused(ServiceUnitNotReadyException.class, one.abort(txn));
    assertTrue(one.isHeld(0));
    get(one.commit(txn));
    assertTrue(cursor.isDeleted(at(0)));
  }

  @Test
  void anAcknowledgementAfterTheDecisionIsRefusedAndItsMessageDeliveredAgain() {
    AckedSubscription one = load();
    TxnID aborted = begin("a");
    TxnID committed = begin("b");
    get(one.acknowledge(committed, at(1)));
    decide(aborted, false);
    decide(committed, true);
    get(one.commit(committed));
    refused(InvalidTxnStatusException.class, one.acknowledge(aborted, at(0)));
    refused(InvalidTxnStatusException.class, one.acknowledge(committed, at(2)));
    await(() -> one.redelivered().size() == 2);
    assertEquals(List.of(0L, 2L), one.redelivered().stream().sorted().toList());
    assertFalse(one.isHeld(0) || one.isHeld(2));
    assertTrue(cursor.isDeleted(at(1)));
    get(one.acknowledge(begin("c"), at(0), at(2)));
  }

  @Test
  void aLateAcknowledgementIsRefusedAlsoWherePulsarsLogLiesBeside() {
    pulsars.exists = true;
    AckedSubscription one = load();
    TxnID aborted = begin("a");
    TxnID committed = begin("b");
    decide(aborted, false);
    decide(committed, true);
    refused(InvalidTxnStatusException.class, one.acknowledge(aborted, at(0)));
    refused(InvalidTxnStatusException.class, one.acknowledge(committed, at(1)));
    await(() -> one.redelivered().size() == 2);
    assertFalse(one.isHeld(0) || one.isHeld(1));
    get(one.acknowledge(begin("c"), at(0), at(1)));
    refused(InvalidTxnStatusException.class, one.acknowledgeUpTo(committed, at(7)));
    TxnID next = begin("d");
    get(one.acknowledgeUpTo(next, at(3)));
    refused(InvalidTxnStatusException.class, one.acknowledgeUpTo(aborted, at(8)));
    decide(next, true);
    get(one.commit(next));
    assertEquals(at(3), cursor.markDeleted());
    assertEquals(List.of("open", "commit"), pulsars.told);
  }

  @Test
  void aLateAcknowledgementTakesNothingFromWhoHoldsTheMessage() {
    AckedSubscription one = load();
    TxnID holder = begin("a");
    TxnID aborted = begin("b");
    get(one.acknowledge(holder, at(0)));
    decide(aborted, false);
    refused(InvalidTxnStatusException.class, one.acknowledge(aborted, at(0), at(1)));
    await(() -> !one.redelivered().isEmpty());
    assertEquals(List.of(1L), one.redelivered());
    refused(TransactionConflictException.class, one.acknowledge(begin("c"), at(0)));
    decide(holder, true);
    get(one.commit(holder));
    assertEquals(at(0), cursor.markDeleted());
  }

  @Test
  void aLateAcknowledgementIsNotAppliedWithWhatItsTransactionHasFromBefore() {
    AckedSubscription one = load(5);
    get(one.handle.pendingAckHandleFuture());
    TxnID cumulative = begin("a");
    TxnID committed = begin("b");
    get(one.acknowledgeUpTo(cumulative, at(0)));
    get(one.acknowledge(committed, at(5)));
    decide(committed, true);
    String name = committed.getMostSigBits() + ":" + committed.getLeastSigBits();
    await(
        () -> {
          clockMs.addAndGet(10);
          return "COMMITTED".equals(records().get(name));
        });
    refused(InvalidTxnStatusException.class, one.acknowledge(committed, at(6)));
    decide(cumulative, false);
    get(one.abort(cumulative));
    await(() -> cursor.isDeleted(at(5)));
    assertFalse(cursor.isDeleted(at(6)) || one.isHeld(6));
    await(() -> List.of(6L).equals(one.redelivered()));
  }

  @Test
  void whatOthersDecideIsFoundWithoutBeingTold() {
    AckedSubscription one = load(5);
    get(one.handle.pendingAckHandleFuture());
    TxnID kept = begin("a");
    TxnID lost = begin("b");
    get(one.acknowledge(kept, at(0)));
    get(one.acknowledge(lost, at(1)));
    clockMs.addAndGet(10);
    await(() -> inTheWay.contains(writer(kept).txn()) && inTheWay.contains(writer(lost).txn()));
    decide(kept, true);
    decide(lost, false);
    await(
        () -> {
          clockMs.addAndGet(10);
          return cursor.isDeleted(at(0)) && !one.redelivered().isEmpty();
        });
    assertEquals(List.of(1L), one.redelivered());
    cursor.flush();
    await(() -> records().isEmpty());
  }

  @Test
  void aHeaderOfAnotherOfPulsarsCoordinatorsDecidesNothing() {
    AckedSubscription one = load();
    TxnID txn = begin("a"); // of the coordinator 5, which shares the store's 1
    get(one.acknowledge(new TxnID(1, txn.getLeastSigBits()), at(0)));
    assertEquals(List.of("open", "individual"), pulsars.told);
    assertEquals(Map.of(), records());
  }

  // --- faults -------------------------------------------------------------------------------------

  @Test
  void theBrokerThatHadTheSubscriptionBeforeWritesNothingMore() {
    AckedSubscription former = load();
    TxnID txn = begin("a");
    get(former.acknowledge(txn, at(0)));
    AckedSubscription owner = load(); // while the former one has not noticed
    refused(ServiceUnitNotReadyException.class, former.acknowledge(txn, at(1)));
    assertEquals(1, records().size());
    decide(txn, false);
    refused(ServiceUnitNotReadyException.class, former.abort(txn));
    assertEquals(1, records().size());
    get(owner.abort(txn));
    assertEquals(Map.of(), records());
  }

  @Test
  void aStepWhoseReplyIsLostIsTakenOnce() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    faults.loses = true;
    get(one.acknowledge(txn, at(1)));
    assertTrue(faults.asks.get() > 0);
    assertEquals(2, records().size());
    decide(txn, true);
    faults.loses = true;
    get(one.commit(txn));
    assertEquals(at(1), cursor.markDeleted());
    AckStore.Subscription name = new AckStore.Subscription("s", "own");
    faults.note(name, "c");
    long owner = faults.open(name, "c").owner();
    AckStore.Step step = new AckStore.Step(1, Map.of("5:1:1", "I 7:0:0:-"), List.of());
    assertEquals(AckStore.Answer.OK, faults.write(name, owner, step));
    AckStore.Step next = new AckStore.Step(2, Map.of(), List.of("5:1:1"));
    assertEquals(AckStore.Answer.OK, faults.write(name, owner, next));
    assertEquals(AckStore.Answer.OK, faults.write(name, owner, next));
    assertThrows(StoreRolledBackException.class, () -> faults.write(name, owner, step));
    assertEquals(Map.of(), faults.open(name, "c").records());
  }

  @Test
  void whileTheStoreIsAwayNothingIsAcknowledgedAndNothingDeliveredAgain() {
    AckedSubscription one = load();
    TxnID holder = begin("a");
    TxnID txn = begin("b");
    get(one.acknowledge(holder, at(0)));
    get(one.acknowledge(txn, at(1)));
    faults.isAway = true;
    CompletableFuture<Void> waiting = one.acknowledge(txn, at(2));
    CompletableFuture<Void> conflicting = one.acknowledge(txn, at(0));
    await(() -> faults.asks.get() > 0);
    assertFalse(waiting.isDone());
    refusedInTheEnd(waiting);
    refusedInTheEnd(conflicting);
    assertTrue(one.isHeld(2)); // nobody knows whether it is written
    decide(txn, false);
    refusedInTheEnd(one.abort(txn));
    assertEquals(List.of(), one.redelivered());
    faults.isAway = false;
    get(one.abort(txn)); // Pulsar asks again
    assertEquals(List.of(1L, 2L), one.redelivered().stream().sorted().toList());
    assertTrue(one.isHeld(0)); // it is the holder's, whatever another one wanted
    assertEquals(1, records().size());
  }

  @Test
  void aSubscriptionOpensWhenTheStoreIsThere() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    one.crash();
    loaded.remove(one);
    faults.isAway = true;
    AckedSubscription next = load(HOUR_MS);
    CompletableFuture<Void> early = next.acknowledge(txn, at(1));
    assertFalse(next.handle.pendingAckHandleFuture().isDone());
    faults.isAway = false;
    get(next.handle.pendingAckHandleFuture());
    get(early);
    assertTrue(next.isHeld(0));
  }

  @Test
  void aStoreThatLacksWhatACursorKnowsIsNotReliedOn() {
    AckedSubscription one = load();
    get(one.acknowledge(begin("a"), at(0)));
    Map<String, String> owner;
    try (Jedis jedis = store.client()) {
      owner = jedis.hgetAll("{seg:s}:broker-acks-owner:service");
      jedis.del("{seg:s}:broker-acks-owner:service");
    }
    one.crash();
    loaded.remove(one);
    AckedSubscription next = load(HOUR_MS);
    AckStore.Subscription name = new AckStore.Subscription("s", "service");
    String id = cursor.properties.get(MetadataPendingAckStoreProvider.CURSOR_PROPERTY);
    assertThrows(StoreRolledBackException.class, () -> faults.open(name, id));
    assertFalse(next.handle.pendingAckHandleFuture().isDone());
    try (Jedis jedis = store.client()) {
      jedis.hset("{seg:s}:broker-acks-owner:service", owner); // it is restored
    }
    get(next.handle.pendingAckHandleFuture());
    assertTrue(next.isHeld(0));
  }

  @Test
  void recordsThatCannotBeReadAreReadAgainWhenTheyAreRepaired() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    one.crash();
    loaded.remove(one);
    Map<String, String> right = records();
    String name = right.keySet().iterator().next();
    faults.opens.set(0);
    try (Jedis jedis = store.client()) {
      jedis.hset(RECORDS, name, "I 7:x");
      AckedSubscription next = load(HOUR_MS);
      await(() -> faults.opens.get() > 1);
      assertFalse(next.handle.pendingAckHandleFuture().isDone());
      jedis.hset(RECORDS, name, right.get(name));
      get(next.handle.pendingAckHandleFuture());
      assertTrue(next.isHeld(0));
    }
  }

  @Test
  void aStoreThatIsOlderThanWhatWasSeenTakesNothing() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    String seq;
    try (Jedis jedis = store.client()) {
      seq = jedis.hget("{seg:s}:birth", "seq");
      jedis.hset("{seg:s}:birth", "seq", "1");
    }
    CompletableFuture<Void> waiting = one.acknowledge(txn, at(1));
    await(() -> faults.asks.get() > 0);
    refusedInTheEnd(waiting);
    assertEquals(1, records().size());
    try (Jedis jedis = store.client()) {
      jedis.hset("{seg:s}:birth", "seq", seq); // it is restored
    }
    await(() -> records().size() == 2);
  }

  // --- opening --------------------------------------------------------------------------------------

  @Test
  void aFirstOpeningThatGoesOnAfterItsUnloadingTouchesNothing() {
    AckedSubscription former = load();
    CompletableFuture<Void> hanging = new CompletableFuture<>();
    faults.opening = hanging;
    CompletableFuture<Void> lost = former.acknowledge(begin("a"), at(9));
    await(() -> faults.opens.get() > 0);
    former.unload();
    hanging.completeExceptionally(new IllegalStateException());
    AckedSubscription owner = load();
    TxnID txn = begin("b");
    get(owner.acknowledge(txn, at(0)));
    refused(ServiceUnitNotReadyException.class, lost); // it has asked again
    get(owner.acknowledge(txn, at(1)));
    assertEquals(2, records().size());
    assertEquals(0, owner.closes.get());
    AckedSubscription next = afterCrash(owner);
    assertTrue(next.isHeld(0) && next.isHeld(1));
  }

  @Test
  void ofTwoThatOpenASubscriptionFirstTheCursorChoosesOne() {
    AckedSubscription former = load(); // it is not told that it was unloaded
    AckedSubscription owner = load();
    TxnID txn = begin("a");
    get(owner.acknowledge(txn, at(0)));
    CompletableFuture<Void> lost = former.acknowledge(begin("b"), at(1));
    refused(ServiceUnitNotReadyException.class, lost);
    await(() -> former.closes.get() == 1);
    get(owner.acknowledge(txn, at(2)));
    assertEquals(2, records().size());
    assertEquals(0, owner.closes.get());
  }

  @Test
  void anOpeningThatGoesOnAfterItsUnloadingFencesNobody() {
    AckedSubscription first = load();
    TxnID txn = begin("a");
    get(first.acknowledge(txn, at(0)));
    first.close();
    loaded.remove(first);
    CompletableFuture<Void> hanging = new CompletableFuture<>();
    faults.opening = hanging;
    faults.opens.set(0);
    AckedSubscription former = load(HOUR_MS);
    await(() -> faults.opens.get() > 0);
    former.unload();
    hanging.completeExceptionally(new IllegalStateException());
    AckedSubscription owner = load();
    await(() -> former.handle.pendingAckHandleFuture().isCompletedExceptionally());
    get(owner.acknowledge(txn, at(1)));
    assertEquals(0, owner.closes.get());
  }

  @Test
  void aLostReplyOfTheCursorDoesNotLockTheSubscription() {
    cursor.losesReply = true;
    AckedSubscription one = load();
    TxnID txn = begin("a");
    refused(ServiceUnitNotReadyException.class, one.acknowledge(txn, at(0)));
    await(() -> one.closes.get() == 1);
    one.close();
    loaded.remove(one);
    AckedSubscription next = load();
    get(next.acknowledge(txn, at(0)));
    assertTrue(afterCrash(next).isHeld(0));
  }

  @Test
  void aTopicWhoseSubscriptionWasFencedIsLoadedAnew() {
    AckedSubscription one = load();
    TxnID txn = begin("a");
    get(one.acknowledge(txn, at(0)));
    String id = cursor.properties.get(MetadataPendingAckStoreProvider.CURSOR_PROPERTY);
    faults.open(new AckStore.Subscription("s", "service"), id); // a late request of its own
    refused(ServiceUnitNotReadyException.class, one.acknowledge(txn, at(1)));
    await(() -> one.closes.get() == 1);
    one.close();
    loaded.remove(one);
    AckedSubscription next = load();
    get(next.acknowledge(txn, at(1)));
    decide(txn, true);
    get(next.commit(txn));
    assertEquals(at(1), cursor.markDeleted());
  }

  // --- beside Pulsar's own store ------------------------------------------------------------------

  @Test
  void aTransactionOfPulsarsOwnCoordinatorHasItsPendingAcksInPulsarsStore() {
    AckedSubscription one = load();
    TxnID ours = begin("a");
    TxnID stock = new TxnID(TC, 999);
    get(one.acknowledge(ours, at(0)));
    assertEquals(List.of(), pulsars.told);
    get(one.acknowledge(stock, at(1)));
    refused(TransactionConflictException.class, one.acknowledge(stock, at(0)));
    assertEquals(1, records().size());
    get(one.commit(stock));
    assertTrue(cursor.isDeleted(at(1)));
    assertEquals(List.of("open", "individual", "commit"), pulsars.told);
    decide(ours, true);
    get(one.commit(ours));
    assertEquals(at(1), cursor.markDeleted());
  }

  @Test
  void whatPulsarsStoreHasIsReplayedFirstAndEndedThere() {
    AckedSubscription one = load();
    TxnID ours = begin("a");
    get(one.acknowledgeUpTo(ours, at(5)));
    // Pulsar's replay takes any cumulative acknowledgement for that of the transaction.
    pulsars.exists = true;
    pulsars.replayed.add(
        new PendingAckMetadataEntry()
            .setPendingAckOp(PendingAckOp.COMMIT)
            .setAckType(AckType.Cumulative)
            .setTxnidMostBits(TC)
            .setTxnidLeastBits(999));
    AckedSubscription next = afterCrash(one);
    assertEquals(at(-1), cursor.markDeleted());
    refused(TransactionConflictException.class, next.acknowledgeUpTo(begin("b"), at(6)));
    decide(ours, true);
    get(next.commit(ours));
    assertEquals(at(5), cursor.markDeleted());
    assertEquals(List.of("open", "commit"), pulsars.told);
  }

  @Test
  void aCumulativeAcknowledgementConflictsWithOneInPulsarsLogBeforeItIsWritten() {
    load().close();
    loaded.clear();
    pulsars.exists = true;
    PendingAckMetadataEntry stock =
        new PendingAckMetadataEntry()
            .setPendingAckOp(PendingAckOp.ACK)
            .setAckType(AckType.Cumulative)
            .setTxnidMostBits(TC)
            .setTxnidLeastBits(999);
    stock.addPendingAckMetadata().setLedgerId(AckedSubscription.LEDGER).setEntryId(3);
    pulsars.replayed.add(stock);
    AckedSubscription one = load();
    await(one.handle::checkIfReady);
    refused(TransactionConflictException.class, one.acknowledgeUpTo(begin("a"), at(5)));
    assertEquals(Map.of(), records());
    get(one.abort(new TxnID(TC, 999)));
    get(one.acknowledgeUpTo(begin("b"), at(5)));
  }

  @Test
  void pulsarsStoreIsOpenedOnce() {
    AckedSubscription one = load();
    TxnID before = begin("a");
    get(one.acknowledge(before, at(0)));
    takesNew = false;
    AckedSubscription next = afterCrash(one);
    faults.gate = new CompletableFuture<>();
    List<CompletableFuture<Void>> all = new ArrayList<>();
    all.add(next.acknowledge(before, at(1)));
    all.add(next.acknowledge(begin("b"), at(2)));
    all.add(next.acknowledge(begin("c"), at(3)));
    pulsars.opening = new CompletableFuture<>();
    faults.gate.complete(null);
    await(() -> pulsars.told.contains("open"));
    pulsars.opening.complete(null);
    all.forEach(MetadataPendingAckStoreTest::get);
    assertEquals(List.of("open", "individual", "individual"), pulsars.told);
  }

  @Test
  void aSegmentThatLostItsPropertiesIsNotTakenForAnOrdinaryTopic() {
    AckedSubscription one = load();
    get(one.acknowledge(begin("a"), at(0)));
    one.crash();
    loaded.remove(one);
    marks = Map.of();
    AckedSubscription next = load(HOUR_MS);
    await(() -> next.handle.pendingAckHandleFuture().isCompletedExceptionally());
    assertEquals(List.of(), pulsars.told);
  }

  @Test
  void onTheWayBackNewTransactionsHaveTheirPendingAcksInPulsarsStore() {
    AckedSubscription one = load();
    TxnID before = begin("a");
    get(one.acknowledge(before, at(0)));
    takesNew = false;
    AckedSubscription next = afterCrash(one);
    TxnID after = begin("b");
    get(next.acknowledge(after, at(1)));
    get(next.acknowledge(before, at(2)));
    assertEquals(List.of("open", "individual"), pulsars.told);
    assertEquals(2, records().size());
    decide(before, true);
    get(next.commit(before));
    assertTrue(cursor.isDeleted(at(0)) && cursor.isDeleted(at(2)));
  }

  @Test
  void allOtherSubscriptionsHavePulsarsStore() {
    Map<String, String> gated = marks;
    marks = Map.of();
    get(load().acknowledge(begin("a"), at(0)));
    marks = gated;
    cursor.durable = false;
    get(load().acknowledge(begin("b"), at(1)));
    cursor.durable = true;
    takesNew = false;
    get(load().acknowledge(begin("c"), at(2)));
    assertEquals(3, pulsars.told.stream().filter("individual"::equals).count());
    assertEquals(Map.of(), cursor.properties);
    assertNull(cursor.left(0));
  }

  @Test
  void aSegmentOfAnotherStoreTakesNoAcknowledgements() {
    marks =
        Map.of(
            MetadataTransactionBufferProvider.SEGMENT_PROPERTY, "s",
            MetadataTransactionBufferProvider.GATE_PROPERTY, "broker",
            MetadataTransactionBufferProvider.STORE_PROPERTY, "another");
    AckedSubscription one = load();
    refused(ManagedLedgerException.class, one.provider.newPendingAckStore(one.loaded));
    assertEquals(Map.of(), cursor.properties);
  }
}
