package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongSupplier;
import java.util.function.UnaryOperator;
import org.apache.bookkeeper.mledger.ManagedLedgerException.ManagedLedgerFencedException;
import org.apache.bookkeeper.mledger.ManagedLedgerException.MetadataNotFoundException;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.policies.data.TransactionCoordinatorStats;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState.State;
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
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Answer;
import pulsartxnspark.store.CoordinatorStore.Ending;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.RedisServer;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.SegmentStore.Query;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;
import redis.clients.jedis.Jedis;

class MetadataTransactionCoordinatorTest {
  private static final int TC = 5; // the store has four coordinators: it shares that of 1
  private static final long HOUR_MS = 3_600_000;
  private static final LongSupplier CLOCK_MS = System::currentTimeMillis;
  private static final String SEGMENT = "persistent://public/default/segment";
  private static final String FOREIGN = "persistent://public/default/foreign";
  private static final String ORDINARY = "persistent://public/default/a|b";

  private static RedisServer server;

  private final Map<String, Map<String, String>> ledgers = new TreeMap<>();
  private final Map<Long, Long> timeouts = new TreeMap<>();
  private final Map<Long, Object> recovered = new TreeMap<>();
  private final List<RedisConnections> connections = new ArrayList<>();
  private final KnownPins pins = new KnownPins(CLOCK_MS);
  private final AtomicInteger removals = new AtomicInteger(); // of coordinators that were fenced
  private TestStore store;
  private boolean watching;

  @BeforeAll
  static void startServer(TestInfo tests) {
    server = RedisServer.of(tests);
  }

  @AfterAll
  static void stopServer() {
    server.close();
  }

  @BeforeEach
  void makeStore() {
    store = new TestStore(server);
    ledgers.put("public/default/persistent/segment", Marks.of(TestStore.UUID));
    ledgers.put("public/default/persistent/foreign", Marks.of("another"));
  }

  @AfterEach
  void close() {
    connections.forEach(RedisConnections::close);
    store.close();
  }

  private CompletableFuture<Map<String, String>> properties(String ledger) {
    return ledgers.containsKey(ledger)
        ? CompletableFuture.completedFuture(ledgers.get(ledger))
        : CompletableFuture.failedFuture(new MetadataNotFoundException("no " + ledger));
  }

  private RedisCoordinatorStore coordinatorStore() {
    RedisConnections own = new RedisConnections(server.settings());
    connections.add(own);
    return new RedisCoordinatorStore(new Scripts(own), new StoreMetrics());
  }

  private CoordinatorStore intercepted(Intercepted.Answers answers) {
    return Intercepted.store(CoordinatorStore.class, coordinatorStore(), answers);
  }

  /** A coordinator as a broker opens it; its steps are taken at once. */
  private MetadataTransactionCoordinator opened(
      int pulsarTc, long mostActive, CoordinatorStore asked) {
    MetadataTransactionCoordinator one = unopened(pulsarTc, mostActive, asked);
    get(one.recover(new Tracker()));
    return one;
  }

  private MetadataTransactionCoordinator unopened(
      int pulsarTc, long mostActive, CoordinatorStore asked) {
    return new MetadataTransactionCoordinator(
        new TransactionCoordinatorID(pulsarTc),
        asked,
        new GatedSegments(this::properties, CLOCK_MS),
        pins,
        new Timeouts(),
        mostActive,
        Runnable::run,
        System::currentTimeMillis,
        removals::incrementAndGet);
  }

  private MetadataTransactionCoordinator opened() {
    return opened(TC, 0, coordinatorStore());
  }

  private final class Timeouts implements TransactionTimeoutTracker {
    @Override
    public void addTransaction(long counter, long timeoutMs) {
      timeouts.put(counter, timeoutMs);
    }

    @Override
    public void replayAddTransaction(long counter, long timeoutMs) {
      timeouts.put(counter, timeoutMs);
    }

    @Override
    public void start() {}

    @Override
    public void close() {
      timeouts.clear();
    }
  }

  private final class Tracker implements TransactionRecoverTracker {
    @Override
    public void updateTransactionStatus(long counter, TxnStatus status) {
      recovered.put(counter, status);
    }

    @Override
    public void handleOpenStatusTransaction(long counter, long deadlineMs) {
      recovered.put(counter, deadlineMs);
    }

    @Override
    public void appendOpenTransactionToTimeoutTracker() {
      watching = true;
    }

    @Override
    public void handleCommittingAndAbortingTransaction() {}
  }

  private static TransactionSubscription subscription(String topic, String name) {
    return TransactionSubscription.builder().topic(topic).subscription(name).build();
  }

  private static WriterId writer(TxnID txn) {
    return WriterId.ofPulsar(new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits()), 4);
  }

  private Header header(TxnID txn) {
    return store.transactions.read(writer(txn).txn()).orElseThrow();
  }

  private Fate fate(TxnID txn) {
    return store.segments.fates("s", List.of(new Query(writer(txn), LogPosition.EARLIEST))).get(0);
  }

  private static void end(MetadataTransactionCoordinator one, TxnID txn, boolean commit) {
    TxnStatus ending = commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING;
    get(one.updateTxnStatus(txn, ending, TxnStatus.OPEN, false));
    finish(one, txn, commit);
  }

  private static void finish(MetadataTransactionCoordinator one, TxnID txn, boolean commit) {
    TxnStatus ending = commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING;
    get(one.updateTxnStatus(txn, commit ? TxnStatus.COMMITTED : TxnStatus.ABORTED, ending, false));
    await(() -> one.tellAgain() == 0);
  }

  private long unended() {
    try (Jedis jedis = server.client()) {
      return jedis.zcard("{tc1}:idx:txn-pulsar");
    }
  }

  @Test
  void aTransactionIsAHeaderItsPartitionAnIntentAndAPinItsCommitTheCompareAndSet() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    assertEquals(TC, txn.getMostSigBits());
    assertEquals(Map.of(txn.getLeastSigBits(), HOUR_MS), timeouts);
    Header open = header(txn);
    assertEquals(Header.State.OPEN, open.state());
    assertTrue(open.nonce().startsWith("pulsar-5-1-"), open.nonce());
    assertEquals(new TransactionId(1, txn.getLeastSigBits()), open.txn());
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    assertEquals(List.of("W|s|" + writer(txn).name()), header(txn).intents());
    assertInstanceOf(Fate.Pinned.class, fate(txn));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    // Consumers need not wait until Pulsar has told all topics.
    assertEquals(Header.State.COMMITTED, header(txn).state());
    assertInstanceOf(Fate.Won.class, fate(txn));
    assertEquals(TxnStatus.COMMITTING, get(one.getTxnStatus(txn)));
    assertEquals(0, unended()); // nobody else has to be told
    finish(one, txn, true);
    try (Jedis jedis = server.client()) {
      assertEquals("1", jedis.hget("{tc1}:metrics", "pulsar_txn_commits_total|1"));
    }
  }

  @Test
  void whatAnotherBrokerHasDecidedIsMaterializedBeforeItIsEnded() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    // It dies behind the compare-and-set.
    String nonce = header(txn).nonce();
    coordinatorStore()
        .end(new Ending(writer(txn).txn(), nonce, writer(txn), List.of("s"), false));
    assertInstanceOf(Fate.Pinned.class, fate(txn));
    MetadataTransactionCoordinator next = opened();
    finish(next, txn, true);
    assertInstanceOf(Fate.Won.class, fate(txn));
    assertEquals(0, unended());
  }

  @Test
  void anAbortDropsWhatWasWritten() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    end(one, txn, false);
    assertEquals(Header.State.ABORTED, header(txn).state());
    assertEquals(new Fate.Dropped(LogPosition.EARLIEST), fate(txn));
    assertEquals(0, unended());
  }

  @Test
  void participantsOfPulsarsOwnAreIntentsAndAreToldByPulsar() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(ORDINARY, SEGMENT)));
    get(one.addAckedPartitionToTxn(txn, List.of(subscription(ORDINARY, "x|y"))));
    TxnMeta meta = get(one.getTxnMeta(txn));
    assertEquals(List.of(ORDINARY, SEGMENT), meta.producedPartitions());
    assertEquals(List.of(subscription(ORDINARY, "x|y")), meta.ackedPartitions());
    String encoded = "N|persistent%3A%2F%2Fpublic%2Fdefault%2Fa%7Cb|";
    assertTrue(header(txn).intents().containsAll(List.of(encoded, encoded + "x|y")));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    // The broker dies here: whoever opens the coordinator goes on with all of them.
    MetadataTransactionCoordinator next = opened();
    assertEquals(Map.of(txn.getLeastSigBits(), TxnStatus.COMMITTING), recovered);
    TxnMeta again = get(next.getTxnMeta(txn));
    assertEquals(meta.producedPartitions().get(0), again.producedPartitions().get(0));
    assertEquals(meta.ackedPartitions(), again.ackedPartitions());
    finish(next, txn, true);
    assertEquals(0, unended());
  }

  @Test
  void aSegmentOfAnotherStoreIsRefused() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    failure(NotAllowedException.class, one.addProducedPartitionToTxn(txn, List.of(FOREIGN)));
    assertEquals(List.of(), header(txn).intents());
  }

  @Test
  void nothingIsRegisteredAfterTheDecision() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    failure(
        InvalidTxnStatusException.class, one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    finish(one, txn, true);
    failure(
        TransactionNotFoundException.class, one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }

  @Test
  void aTransactionIsNotDecidedWhileAParticipantIsRegistered() throws Exception {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    ClientTransaction meta = (ClientTransaction) get(one.getTxnMeta(txn));
    meta.beginRegistering();
    failure(
        TransactionMetadataStoreStateException.class, // Pulsar asks again after this one
        one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    assertEquals(Header.State.OPEN, header(txn).state());
    meta.endRegistering();
    end(one, txn, true);
  }

  @Test
  void ofACommitAndAnAbortTheFirstOneCounts() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.updateTxnStatus(txn, TxnStatus.ABORTING, TxnStatus.OPEN, true));
    failure(
        InvalidTxnStatusException.class,
        one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    assertEquals(1, one.getMetadataStoreStats().getTimeoutCount());
    try (Jedis jedis = server.client()) {
      assertEquals("1", jedis.hget("{tc1}:metrics", "pulsar_txn_aborts_total|1|lease-over"));
    }
  }

  @Test
  void whoAsksAgainAfterALostReplyGetsTheSameAnswer() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, "role"));
    end(one, txn, true);
    TxnMeta meta = get(one.getTxnMeta(txn));
    assertEquals(TxnStatus.COMMITTING, meta.status()); // so a commit is legal, and an abort is not
    assertEquals("role", meta.getOwner());
    assertEquals(List.of(), meta.producedPartitions());
    finish(one, txn, true);
    failure(TransactionNotFoundException.class, one.getTxnMeta(new TxnID(TC, 99)));
    failure(TransactionNotFoundException.class, one.getTxnMeta(new TxnID(1, txn.getLeastSigBits())));
  }

  @Test
  void aTransactionOfADriverIsNotOneOfPulsarsClients() {
    WriterId driver = store.begin("0123456789abcdef", HOUR_MS, "s"); // of the coordinator 0
    MetadataTransactionCoordinator one = opened(0, 0, coordinatorStore());
    TxnID taken = new TxnID(0, driver.counter());
    failure(TransactionNotFoundException.class, one.getTxnMeta(taken));
    failure(
        TransactionNotFoundException.class,
        one.updateTxnStatus(taken, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    assertEquals(Map.of(), recovered);
  }

  @Test
  void whoOpensTheCoordinatorTakesOverAndFencesWhoHadIt() {
    MetadataTransactionCoordinator former = opened();
    TxnID open = get(former.newTransaction(HOUR_MS, "role"));
    get(former.addProducedPartitionToTxn(open, List.of(SEGMENT)));
    TxnID aborting = get(former.newTransaction(HOUR_MS, null));
    get(former.addProducedPartitionToTxn(aborting, List.of(ORDINARY)));
    get(former.updateTxnStatus(aborting, TxnStatus.ABORTING, TxnStatus.OPEN, false));
    MetadataTransactionCoordinator sharing = opened(9, 0, coordinatorStore()); // the store's
    TxnID other = get(sharing.newTransaction(HOUR_MS, null));
    recovered.clear();

    MetadataTransactionCoordinator now = opened();
    assertTrue(watching);
    assertEquals(2, recovered.size());
    assertEquals(TxnStatus.ABORTING, recovered.get(aborting.getLeastSigBits()));
    long left = (Long) recovered.get(open.getLeastSigBits()) - System.currentTimeMillis();
    assertTrue(left > HOUR_MS / 2 && left <= HOUR_MS, "left " + left);
    assertEquals("role", get(now.getTxnMeta(open)).getOwner());
    assertNull(get(now.getTxnMeta(aborting)).getOwner());
    failure(TransactionNotFoundException.class, now.getTxnMeta(new TxnID(TC, other.getLeastSigBits())));

    failure(
        ManagedLedgerFencedException.class,
        former.updateTxnStatus(open, TxnStatus.ABORTING, TxnStatus.OPEN, true));
    assertEquals(State.Close, former.getState());
    assertEquals(Header.State.OPEN, header(open).state());
    // The segment from before is known, without anybody naming it again.
    end(now, open, true);
    assertInstanceOf(Fate.Won.class, fate(open));
    finish(now, aborting, false);
  }

  @Test
  void whoWasFencedOpensNothing() {
    MetadataTransactionCoordinator former = opened();
    MetadataTransactionCoordinator now = opened();
    failure(ManagedLedgerFencedException.class, former.newTransaction(HOUR_MS, null));
    assertEquals(1, removals.get());
    assertEquals(0, unended());
    TxnID txn = get(now.newTransaction(HOUR_MS, null));
    MetadataTransactionCoordinator late = opened();
    failure(
        ManagedLedgerFencedException.class, now.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    assertEquals(2, removals.get());
    get(late.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }

  @Test
  void whoWasFencedSaysSoEachTimeAndMakesRoomOnce() {
    MetadataTransactionCoordinator former = opened();
    TxnID open = get(former.newTransaction(HOUR_MS, null));
    opened();
    failure(
        ManagedLedgerFencedException.class, former.addProducedPartitionToTxn(open, List.of(SEGMENT)));
    failure(ManagedLedgerFencedException.class, former.newTransaction(HOUR_MS, null));
    failure(
        ManagedLedgerFencedException.class, former.addProducedPartitionToTxn(open, List.of(SEGMENT)));
    failure(
        ManagedLedgerFencedException.class,
        former.updateTxnStatus(open, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    failure(ManagedLedgerFencedException.class, former.getTxnMeta(open)); // it is there, elsewhere
    assertEquals(1, removals.get());
  }

  @Test
  void aCoordinatorThatWasGivenAwayMakesNoRoom() {
    MetadataTransactionCoordinator former = opened();
    TxnID open = get(former.newTransaction(HOUR_MS, null));
    get(former.closeAsync());
    failure(ManagedLedgerFencedException.class, former.getTxnMeta(open));
    assertEquals(0, removals.get()); // what the broker has is another one, or none
  }

  @Test
  void whoOpensSlowlyAdoptsNothingFromWhoHasOpenedSince() {
    MetadataTransactionCoordinator first = opened();
    TxnID txn = get(first.newTransaction(HOUR_MS, null));
    MetadataTransactionCoordinator[] newest = new MetadataTransactionCoordinator[1];
    CoordinatorStore slow =
        intercepted(
            call -> {
              if (call.is("read") && newest[0] == null) {
                newest[0] = opened();
              }
              return call.pass();
            });
    MetadataTransactionCoordinator late = unopened(TC, 0, slow);
    failure(ManagedLedgerFencedException.class, late.recover(new Tracker()));
    get(newest[0].addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }

  @Test
  void aParticipantOfABadNameIsRefusedAndTheTransactionCanStillBeEnded() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    failure(IllegalArgumentException.class, one.addProducedPartitionToTxn(txn, List.of("a/b")));
    end(one, txn, false);
    assertEquals(0, unended());
  }

  @Test
  void itLooksForWhatOthersHaveDecidedWhileTheLastTransactionEnds() throws Exception {
    MetadataTransactionCoordinator one = opened();
    CompletableFuture<Void> looks =
        CompletableFuture.runAsync(
            () -> {
              for (int i = 0; i < 20_000 && !Thread.interrupted(); i++) {
                one.decidedByOthers();
              }
            });
    while (!looks.isDone()) {
      end(one, get(one.newTransaction(HOUR_MS, null)), false);
    }
    looks.get(); // raises what it met
  }

  @Test
  void whatOthersHaveAbortedIsEndedInPulsarsOwnTopics() {
    MetadataTransactionCoordinator one = opened();
    TxnID expired = get(one.newTransaction(1, null));
    TxnID alive = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(expired, List.of(ORDINARY)));
    assertEquals(List.of(), one.decidedByOthers());
    while (!header(expired).expired()) {
      Thread.onSpinWait();
    }
    store.transactions.abortExpired(writer(expired).txn());
    assertEquals(List.of(expired), one.decidedByOthers());
    failure(
        InvalidTxnStatusException.class,
        one.updateTxnStatus(expired, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    // The header is kept until Pulsar's topics know.
    assertEquals(2, unended());
    end(one, expired, false);
    assertEquals(List.of(), one.decidedByOthers());
    assertEquals(1, unended());
    assertEquals(TxnStatus.OPEN, get(one.getTxnStatus(alive)));
  }

  /** A store whose steps of some names fare as the test says. */
  private CoordinatorStore faring(
      String name, UnaryOperator<CompletableFuture<?>> fate, AtomicInteger alone) {
    return intercepted(
        call -> {
          if (call.is(name) && alone.get() < 0) {
            throw new StoreUnavailableException("away", null);
          }
          Object answer = call.pass();
          if (call.is(name)) {
            alone.incrementAndGet();
          }
          return call.is(name + "Together") ? fate.apply((CompletableFuture<?>) answer) : answer;
        });
  }

  private static CompletableFuture<?> lost(CompletableFuture<?> answer) {
    get(answer);
    return CompletableFuture.failedFuture(new StoreUnavailableException("the reply is lost", null));
  }

  @Test
  void aStepWhoseReplyIsLostIsAskedForAgainAndTakenOnce() {
    for (String step : List.of("create", "end", "ended")) {
      AtomicInteger alone = new AtomicInteger();
      MetadataTransactionCoordinator one =
          opened(TC, 0, faring(step, MetadataTransactionCoordinatorTest::lost, alone));
      TxnID txn = get(one.newTransaction(HOUR_MS, null));
      get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT, ORDINARY)));
      end(one, txn, true);
      assertEquals(1, alone.get(), step);
      assertInstanceOf(Fate.Won.class, fate(txn));
      assertEquals(0, unended());
    }
    try (Jedis jedis = server.client()) {
      assertEquals("3", jedis.get("{tc1}:txn-counter"));
      assertEquals("3", jedis.hget("{tc1}:metrics", "pulsar_txn_commits_total|1"));
    }
  }

  @Test
  void whatTheStoreWasNotToldIsToldLater() {
    AtomicInteger alone = new AtomicInteger(Integer.MIN_VALUE);
    MetadataTransactionCoordinator one =
        opened(
            TC, 0, faring("ended", MetadataTransactionCoordinatorTest::unanswered, alone));
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(ORDINARY)));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTED, TxnStatus.COMMITTING, false));
    assertEquals(1, one.tellAgain()); // the client has its answer, and the header stays
    alone.set(0);
    await(() -> one.tellAgain() == 0);
    assertEquals(1, alone.get());
  }

  private static CompletableFuture<?> unanswered(CompletableFuture<?> answer) {
    return CompletableFuture.failedFuture(new StoreUnavailableException("away", null));
  }

  @Test
  void aParticipantThatTheCoordinatorDoesNotKnowIsMaterializedToo() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    // The reply to these was lost, and the client does not ask again.
    List<String> unknown = List.of("W|t|" + writer(txn).name());
    CoordinatorStore before = coordinatorStore();
    String nonce = header(txn).nonce();
    assertEquals(
        Answer.OK, before.intend(writer(txn).txn(), nonce, HOUR_MS, unknown));
    assertEquals(Answer.OK, before.pin("t", writer(txn)));
    end(one, txn, true);
    Query query = new Query(writer(txn), LogPosition.EARLIEST);
    assertEquals(
        List.of(new Fate.Dropped(LogPosition.EARLIEST)), store.segments.fates("t", List.of(query)));
    assertInstanceOf(Fate.Won.class, fate(txn));
    assertEquals(0, unended());
  }

  @Test
  void aSegmentThatTakesNothingMoreIsNoParticipant() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    store.abort("s", writer(txn)); // as expired, by whoever was held by it
    failure(
        InvalidTxnStatusException.class, one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }

  @Test
  void aPinIsKnownToTheSegmentsOfTheBrokerUntilTheDecision() {
    store.prepare("s");
    MetadataTransactionCoordinator one = opened();
    TxnID first = get(one.newTransaction(HOUR_MS, null));
    TxnID second = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(first, List.of(SEGMENT)));
    get(one.addProducedPartitionToTxn(second, List.of(SEGMENT)));
    assertEquals(
        Optional.of(LogPosition.EARLIEST),
        pins.take("s", writer(first)).map(CoordinatorStore.Pin::position));
    assertEquals(Optional.empty(), pins.take("s", writer(first)));
    get(one.updateTxnStatus(second, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    assertEquals(Optional.empty(), pins.take("s", writer(second)));
  }

  @Test
  void whatIsBeingOpenedIsNotBelowTheLowWaterMark() throws Exception {
    CountDownLatch created = new CountDownLatch(1);
    CompletableFuture<Void> answered = new CompletableFuture<>();
    CoordinatorStore slow =
        intercepted(
            call -> {
              Object answer = call.pass();
              if (call.is("createTogether") && created.getCount() > 0) {
                created.countDown();
                Object reply = get((CompletableFuture<?>) answer);
                return answered.thenApply(now -> reply);
              }
              return answer;
            });
    MetadataTransactionCoordinator one = opened(TC, 0, slow);
    CompletableFuture<TxnID> first = one.newTransaction(HOUR_MS, null);
    created.await();
    TxnID second = get(one.newTransaction(HOUR_MS, null));
    // A topic that took it for ended would abort what it is going to have there.
    assertTrue(one.getLowWaterMark() < second.getLeastSigBits() - 1);
    answered.complete(null);
    assertEquals(get(first).getLeastSigBits() - 1, one.getLowWaterMark());
  }

  @Test
  void limitsAndStatisticsAreThoseOfPulsarsOwnStore() {
    MetadataTransactionCoordinator one = opened(TC, 2, coordinatorStore());
    failure(IllegalArgumentException.class, one.newTransaction(HOUR_MS, " "));
    TxnID first = get(one.newTransaction(HOUR_MS, null));
    TxnID second = get(one.newTransaction(1_000, null));
    failure(ReachMaxActiveTxnException.class, one.newTransaction(HOUR_MS, null));
    assertEquals(1, one.getSlowTransactions(1_000).size());
    TransactionCoordinatorStats shown = one.getCoordinatorStats();
    assertEquals("Ready", shown.getState());
    assertEquals(2, shown.getOngoingTxnSize());
    assertEquals(second.getLeastSigBits(), shown.getLeastSigBits());
    assertEquals(first.getLeastSigBits() - 1, shown.getLowWaterMark());
    assertTrue(shown.recoverEndTime >= shown.recoverStartTime && shown.recoverStartTime > 0);
    end(one, first, true);
    end(one, second, false);
    assertEquals(0, one.getLowWaterMark());
    TransactionMetadataStoreStats stats = one.getMetadataStoreStats();
    assertEquals(TC, stats.getCoordinatorId());
    assertEquals(
        List.of(2L, 1L, 1L, 0L, 0L),
        List.of(
            stats.getCreatedCount(),
            stats.getCommittedCount(),
            stats.getAbortedCount(),
            stats.getTimeoutCount(),
            (long) stats.getActives()));
    stats.executionLatencyBuckets.refresh();
    assertEquals(2, stats.executionLatencyBuckets.getCount());
  }

  @Test
  void aStoreThatIsAwayIsAskedAgainByPulsar() {
    RedisServer away = new RedisServer();
    try (TestStore gone = new TestStore(away)) {
      gone.prepare("s");
      RedisConnections own = new RedisConnections(away.settings());
      connections.add(own);
      MetadataTransactionCoordinator one =
          new MetadataTransactionCoordinator(
              new TransactionCoordinatorID(0),
              new RedisCoordinatorStore(new Scripts(own), new StoreMetrics()),
              new GatedSegments(this::properties, CLOCK_MS),
              pins,
              new Timeouts(),
              0,
              Runnable::run,
              System::currentTimeMillis,
              () -> {});
      get(one.recover(new Tracker()));
      TxnID txn = get(one.newTransaction(HOUR_MS, null));
      away.close();
      failure(
          TransactionMetadataStoreStateException.class,
          one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
      assertEquals(TxnStatus.OPEN, get(one.getTxnStatus(txn)));
      assertThrows(StoreUnavailableException.class, one::decidedByOthers);
      get(one.closeAsync());
      assertFalse(one.getState() == State.Ready);
      failure(ManagedLedgerFencedException.class, one.newTransaction(HOUR_MS, null));
      assertEquals(List.of(), one.decidedByOthers());
    }
  }
}
