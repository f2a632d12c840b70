package pulsartxnspark.broker;

import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Ending;
import pulsartxnspark.store.RedisAckStore;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreTest;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;
import redis.clients.jedis.Jedis;

/** Tests of the pending acks of a subscription, under Pulsar's own handle and in a real Redis. */
@Tag("acks")
abstract class PendingAckTest extends StoreTest {
  static final int TC = 5; // the store has four coordinators: it shares that of 1
  static final long HOUR_MS = 3_600_000;
  static final long PATIENCE_MS = 10_000; // of requests, by the clock of the test
  static final long POLL_MS = 5;
  static final String RECORDS = "{seg:s}:broker-acks:service";
  static final String OWNER = "{seg:s}:broker-acks-owner:service";

  final AckedSubscription.Cursor cursor = new AckedSubscription.Cursor();
  final List<TransactionId> inTheWay = new CopyOnWriteArrayList<>();
  final AtomicLong clockMs = new AtomicLong();
  final PulsarsOwnAcks pulsars = new PulsarsOwnAcks();
  final ScheduledExecutorService pool = Executors.newScheduledThreadPool(4);
  Executor threads = pool;
  ScheduledExecutorService timer = pool;
  FaultyAckStore faults;
  Map<String, String> marks = Marks.of(TestStore.UUID);
  boolean takesNew = true;
  AckMetrics metrics = new AckMetrics();
  private final List<AckedSubscription> loaded = new ArrayList<>();
  private CoordinatorStore coordinators;
  private int begun;

  @BeforeEach
  void begin() {
    Scripts scripts = new Scripts(store.connections);
    coordinators = new RedisCoordinatorStore(scripts, store.metrics);
    faults = new FaultyAckStore(new RedisAckStore(scripts, store.metrics));
  }

  @AfterEach
  void end() {
    loaded.forEach(AckedSubscription::close);
    pool.shutdownNow();
  }

  // --- a subscription -----------------------------------------------------------------------------

  /** Begins to load the subscription; it polls headers as often as is said. */
  AckedSubscription loading(long pollIntervalMs) {
    AckEnvironment environment =
        new AckEnvironment(
            faults,
            Decisions.of(store.transactions, coordinators),
            inTheWay::addAll,
            threads,
            timer,
            pollIntervalMs,
            PATIENCE_MS,
            clockMs::get,
            takesNew,
            metrics);
    AckedSubscription one =
        new AckedSubscription(
            cursor,
            marks,
            new MetadataPendingAckStoreProvider(
                pulsars, new MetadataPendingAckStoreProvider.Shared(environment, coordinators)));
    loaded.add(one);
    return one;
  }

  AckedSubscription loading() {
    return loading(HOUR_MS);
  }

  /** Loads the subscription, and waits until it takes consumers. */
  AckedSubscription load() {
    return ready(loading());
  }

  /** The same, by a broker that polls headers often. */
  AckedSubscription loadPolling() {
    return ready(loading(POLL_MS));
  }

  static AckedSubscription ready(AckedSubscription one) {
    get(one.handle.pendingAckHandleFuture());
    return one;
  }

  void close(AckedSubscription one) {
    one.close();
    loaded.remove(one);
  }

  void crash(AckedSubscription one) {
    one.crash();
    loaded.remove(one);
  }

  /** A broker dies, and another one loads the subscription. */
  AckedSubscription afterCrash(AckedSubscription before) {
    crash(before);
    return load();
  }

  // --- transactions -------------------------------------------------------------------------------

  TxnID newTransaction() {
    String nonce = "pulsar-" + TC + "-" + coordinators.open(TC) + "-" + begun++;
    return new TxnID(TC, coordinators.create(TC, nonce, "", HOUR_MS).orElseThrow().counter());
  }

  /** Begins a transaction that acknowledges messages. */
  TxnID acknowledged(AckedSubscription one, Position... positions) {
    TxnID txn = newTransaction();
    get(one.acknowledge(txn, positions));
    return txn;
  }

  /** Begins a transaction that acknowledges everything up to a message. */
  TxnID acknowledgedUpTo(AckedSubscription one, Position position) {
    TxnID txn = newTransaction();
    get(one.acknowledgeUpTo(txn, position));
    return txn;
  }

  static WriterId writer(TxnID txn) {
    return WriterId.ofPulsar(new TxnBits(txn.getMostSigBits(), txn.getLeastSigBits()), 4);
  }

  /** Gives the name of the decision beside a transaction's records. */
  static String name(TxnID txn) {
    return txn.getMostSigBits() + ":" + txn.getLeastSigBits();
  }

  /** Decides by the header's compare-and-set alone. */
  void decide(TxnID txn, boolean commit) {
    WriterId writer = writer(txn);
    String nonce = store.transactions.read(writer.txn()).orElseThrow().nonce();
    coordinators.end(new Ending(writer.txn(), nonce, writer, commit ? List.of() : null, false));
  }

  void commit(AckedSubscription one, TxnID txn) {
    decide(txn, true);
    get(one.commit(txn));
  }

  void abort(AckedSubscription one, TxnID txn) {
    decide(txn, false);
    get(one.abort(txn));
  }

  // --- the store ----------------------------------------------------------------------------------

  <T> T inStore(Function<Jedis, T> what) {
    try (Jedis jedis = store.client()) {
      return what.apply(jedis);
    }
  }

  void removeHeader(TxnID txn) {
    inStore(jedis -> jedis.del("{tc1}:txn:" + writer(txn).txn().key()));
  }

  Map<String, String> records() {
    return inStore(jedis -> jedis.hgetAll(RECORDS));
  }

  String cursorId() {
    return cursor.properties.get(MetadataPendingAckStoreProvider.CURSOR_PROPERTY);
  }

  // --- time ---------------------------------------------------------------------------------------

  /** Waits for something that takes time by the clock of the test. */
  void awaitOverTime(long stepMs, BooleanSupplier condition) {
    await(
        () -> {
          clockMs.addAndGet(stepMs);
          return condition.getAsBoolean();
        });
  }

  void awaitOverTime(BooleanSupplier condition) {
    awaitOverTime(2 * POLL_MS, condition);
  }

  /** Lets time go by, whenever the request has begun to wait. */
  void refusedInTheEnd(CompletableFuture<?> future) {
    awaitOverTime(PATIENCE_MS / 100, future::isDone);
    failure(ServiceUnitNotReadyException.class, future);
  }
}
