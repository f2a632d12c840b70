package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;
import org.apache.bookkeeper.mledger.ManagedLedgerException.ManagedLedgerFencedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState.State;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionMetadataStoreStateException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.RedisServer;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TestStore;
import redis.clients.jedis.Jedis;

/** What a coordinator does while the store does not answer. */
class CoordinatorFaultsTest extends TransactionCoordinatorTest {
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

  private static CompletableFuture<?> unanswered(CompletableFuture<?> answer) {
    return CompletableFuture.failedFuture(new StoreUnavailableException("away", null));
  }

  @Test
  void aStepWhoseReplyIsLostIsAskedForAgainAndTakenOnce() {
    for (String step : List.of("create", "end", "ended")) {
      AtomicInteger alone = new AtomicInteger();
      MetadataTransactionCoordinator one =
          opened(TC, 0, faring(step, CoordinatorFaultsTest::lost, alone));
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

  /** A store that does not answer some calls as long as a test says. */
  private CoordinatorStore away(Predicate<Intercepted.Call> unanswered) {
    return intercepted(
        call -> {
          boolean isKnown = call.is("uuid") || call.is("coordinators"); // since it was opened
          if (isKnown || !unanswered.test(call)) {
            return call.pass();
          }
          StoreUnavailableException error = new StoreUnavailableException("away", null);
          if (call.method().getReturnType() == CompletableFuture.class) {
            return CompletableFuture.failedFuture(error);
          }
          throw error;
        });
  }

  @Test
  void clientsWaitWhileTheStoreIsAwayForAMoment() {
    patienceMs = HOUR_MS;
    AtomicLong backAt = new AtomicLong(System.nanoTime());
    MetadataTransactionCoordinator one =
        opened(TC, 0, away(call -> System.nanoTime() - backAt.get() < 0));
    Runnable goesAway = () -> backAt.set(System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(300));
    goesAway.run();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    goesAway.run();
    CompletableFuture<Void> acked =
        one.addAckedPartitionToTxn(txn, List.of(subscription(ORDINARY, "sub")));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    get(acked);
    assertEquals(2, header(txn).intents().size());
    assertInstanceOf(Fate.Pinned.class, fate(txn));
    goesAway.run();
    end(one, txn, true);
    assertInstanceOf(Fate.Won.class, fate(txn));
  }

  @Test
  void noThreadWaitsForAStoreThatIsAway() {
    patienceMs = HOUR_MS;
    ExecutorService only = Executors.newSingleThreadExecutor();
    try {
      threads = only;
      AtomicBoolean isAway = new AtomicBoolean(true);
      MetadataTransactionCoordinator one =
          opened(
              TC, 0, away(call -> call.method().getName().startsWith("create") && isAway.get()));
      CompletableFuture<TxnID> waiting = one.newTransaction(HOUR_MS, null);
      failure(TransactionNotFoundException.class, one.getTxnMeta(new TxnID(TC, 99)));
      assertFalse(waiting.isDone());
      isAway.set(false);
      get(waiting);
    } finally {
      only.shutdownNow();
    }
  }

  @Test
  void nothingWaitsForTheStoreOnceTheCoordinatorIsClosed() {
    patienceMs = HOUR_MS;
    AtomicBoolean isAway = new AtomicBoolean();
    MetadataTransactionCoordinator one = opened(TC, 0, away(call -> isAway.get()));
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    isAway.set(true);
    CompletableFuture<Void> waiting =
        one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false);
    assertFalse(waiting.isDone());
    get(one.closeAsync());
    failure(ManagedLedgerFencedException.class, waiting);
    assertEquals(Header.State.OPEN, header(txn).state());
  }

  @Test
  void aFullStoreBeginsNothingAndEndsWhatIsOpen() {
    MetadataTransactionCoordinator one = opened();
    TxnID committed = get(one.newTransaction(HOUR_MS, null));
    TxnID aborted = get(one.newTransaction(HOUR_MS, null));
    for (TxnID txn : List.of(committed, aborted)) {
      get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT, ORDINARY)));
    }
    MetadataTransactionCoordinator other;
    limitMemory("1");
    try {
      for (CompletableFuture<?> begun :
          List.of(
              one.newTransaction(HOUR_MS, null),
              one.addProducedPartitionToTxn(committed, List.of("persistent://a/b/other")))) {
        Throwable failure = failure(TransactionMetadataStoreStateException.class, begun);
        assertTrue(failure.getMessage().contains("'maxmemory'"), failure.getMessage());
      }
      other = opened(); // another broker takes it over
      end(other, committed, true);
      end(other, aborted, false);
      assertInstanceOf(Fate.Won.class, fate(committed));
      assertEquals(0, unended());
    } finally {
      limitMemory("0");
    }
    get(other.newTransaction(HOUR_MS, null));
  }

  private void limitMemory(String bytes) {
    try (Jedis jedis = server.client()) {
      jedis.configSet("maxmemory", bytes);
    }
  }

  @Test
  void whatTheStoreWasNotToldIsToldLater() {
    AtomicInteger alone = new AtomicInteger(Integer.MIN_VALUE);
    MetadataTransactionCoordinator one =
        opened(
            TC, 0, faring("ended", CoordinatorFaultsTest::unanswered, alone));
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(ORDINARY)));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTED, TxnStatus.COMMITTING, false));
    assertEquals(1, one.tellAgain()); // the client has its answer, and the header stays
    alone.set(0);
    await(() -> one.tellAgain() == 0);
    assertEquals(1, alone.get());
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
              threads,
              patienceMs,
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
