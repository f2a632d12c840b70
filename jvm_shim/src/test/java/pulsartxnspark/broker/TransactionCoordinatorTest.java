package pulsartxnspark.broker;

import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.get;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongSupplier;
import org.apache.bookkeeper.mledger.ManagedLedgerException.MetadataNotFoundException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionRecoverTracker;
import org.apache.pulsar.transaction.coordinator.TransactionSubscription;
import org.apache.pulsar.transaction.coordinator.TransactionTimeoutTracker;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.RedisServer;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.SegmentStore.Query;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;
import redis.clients.jedis.Jedis;

/** A store with coordinators of one broker or several. */
abstract class TransactionCoordinatorTest {
  static final int TC = 5; // the store has four coordinators: it shares that of 1
  static final long HOUR_MS = 3_600_000;
  static final LongSupplier CLOCK_MS = System::currentTimeMillis;
  static final String SEGMENT = "persistent://public/default/segment";
  static final String FOREIGN = "persistent://public/default/foreign";
  static final String ORDINARY = "persistent://public/default/a|b";

  static RedisServer server;

  final Map<String, Map<String, String>> ledgers = new TreeMap<>();
  final Map<Long, Long> timeouts = new TreeMap<>();
  final Map<Long, Object> recovered = new TreeMap<>();
  final List<RedisConnections> connections = new ArrayList<>();
  final KnownPins pins = new KnownPins(CLOCK_MS);
  final AtomicInteger removals = new AtomicInteger(); // of coordinators that were fenced
  TestStore store;
  Executor threads = Runnable::run; // of coordinators that are opened then
  long patienceMs; // of their steps while the store does not answer
  boolean watching;

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

  CompletableFuture<Map<String, String>> properties(String ledger) {
    return ledgers.containsKey(ledger)
        ? CompletableFuture.completedFuture(ledgers.get(ledger))
        : CompletableFuture.failedFuture(new MetadataNotFoundException("no " + ledger));
  }

  RedisCoordinatorStore coordinatorStore() {
    RedisConnections own = new RedisConnections(server.settings());
    connections.add(own);
    return new RedisCoordinatorStore(new Scripts(own), new StoreMetrics());
  }

  CoordinatorStore intercepted(Intercepted.Answers answers) {
    return Intercepted.store(CoordinatorStore.class, coordinatorStore(), answers);
  }

  /** A coordinator as a broker opens it; its steps are taken at once, unless a test says otherwise. */
  MetadataTransactionCoordinator opened(
      int pulsarTc, long mostActive, CoordinatorStore asked) {
    MetadataTransactionCoordinator one = unopened(pulsarTc, mostActive, asked);
    get(one.recover(new Tracker()));
    return one;
  }

  MetadataTransactionCoordinator unopened(
      int pulsarTc, long mostActive, CoordinatorStore asked) {
    return new MetadataTransactionCoordinator(
        new TransactionCoordinatorID(pulsarTc),
        asked,
        new GatedSegments(this::properties, CLOCK_MS),
        pins,
        new Timeouts(),
        mostActive,
        threads,
        patienceMs,
        System::currentTimeMillis,
        removals::incrementAndGet);
  }

  MetadataTransactionCoordinator opened() {
    return opened(TC, 0, coordinatorStore());
  }

  final class Timeouts implements TransactionTimeoutTracker {
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

  final class Tracker implements TransactionRecoverTracker {
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

  static TransactionSubscription subscription(String topic, String name) {
    return TransactionSubscription.builder().topic(topic).subscription(name).build();
  }

  static WriterId writer(TxnID txn) {
    return WriterId.ofPulsar(new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits()), 4);
  }

  Header header(TxnID txn) {
    return store.transactions.read(writer(txn).txn()).orElseThrow();
  }

  Fate fate(TxnID txn) {
    return store.segments.fates("s", List.of(new Query(writer(txn), LogPosition.EARLIEST))).get(0);
  }

  static void end(MetadataTransactionCoordinator one, TxnID txn, boolean commit) {
    TxnStatus ending = commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING;
    get(one.updateTxnStatus(txn, ending, TxnStatus.OPEN, false));
    finish(one, txn, commit);
  }

  static void finish(MetadataTransactionCoordinator one, TxnID txn, boolean commit) {
    TxnStatus ending = commit ? TxnStatus.COMMITTING : TxnStatus.ABORTING;
    get(one.updateTxnStatus(txn, commit ? TxnStatus.COMMITTED : TxnStatus.ABORTED, ending, false));
    await(() -> one.tellAgain() == 0);
  }

  long unended() {
    try (Jedis jedis = server.client()) {
      return jedis.zcard("{tc1}:idx:txn-pulsar");
    }
  }
}
