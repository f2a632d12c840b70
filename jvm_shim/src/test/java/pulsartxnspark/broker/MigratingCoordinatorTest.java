package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.get;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStore;
import org.apache.pulsar.transaction.coordinator.TransactionRecoverTracker;
import org.apache.pulsar.transaction.coordinator.TransactionTimeoutTracker;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.ReachMaxActiveTxnException;
import org.apache.pulsar.transaction.coordinator.impl.InMemTransactionMetadataStoreProvider;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.RedisServer;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.TestStore;

class MigratingCoordinatorTest {
  private static final TransactionCoordinatorID TC = new TransactionCoordinatorID(2);
  private static final long HOUR_MS = 3_600_000;

  private static RedisServer server;

  private final List<RedisConnections> connections = new ArrayList<>();
  private final List<Long> reserved = new CopyOnWriteArrayList<>();
  private CompletableFuture<Void> reserving = CompletableFuture.completedFuture(null);
  private long last = -1;
  private TestStore store;
  private MetadataTransactionCoordinator own;
  private TransactionMetadataStore pulsars;

  /** The numbers of a log, as far as the test says. */
  private final NumberLog numbers =
      new NumberLog() {
        @Override
        public long last() {
          return last;
        }

        @Override
        public CompletableFuture<Void> reserve(long to) {
          reserved.add(to);
          return reserving;
        }
      };

  private static final class Nothing implements TransactionTimeoutTracker, TransactionRecoverTracker {
    @Override
    public void addTransaction(long counter, long timeoutMs) {}

    @Override
    public void replayAddTransaction(long counter, long timeoutMs) {}

    @Override
    public void start() {}

    @Override
    public void close() {}

    @Override
    public void updateTransactionStatus(long counter, TxnStatus status) {}

    @Override
    public void handleOpenStatusTransaction(long counter, long deadlineMs) {}

    @Override
    public void appendOpenTransactionToTimeoutTracker() {}

    @Override
    public void handleCommittingAndAbortingTransaction() {}
  }

  @BeforeAll
  static void startServer() {
    server = new RedisServer();
  }

  @AfterAll
  static void stopServer() {
    server.close();
  }

  @BeforeEach
  void makeStore() {
    store = new TestStore(server);
    pulsars =
        get(
            new InMemTransactionMetadataStoreProvider()
                .openStore(TC, null, null, null, null, 0, null, null));
  }

  @AfterEach
  void close() {
    connections.forEach(RedisConnections::close);
    store.close();
  }

  private MigratingCoordinator opened(boolean opensOwn, long mostActive) {
    RedisConnections connected = new RedisConnections(server.settings());
    connections.add(connected);
    own =
        new MetadataTransactionCoordinator(
            TC,
            new RedisCoordinatorStore(new Scripts(connected), new StoreMetrics()),
            new GatedSegments(
                ledger -> CompletableFuture.completedFuture(Map.of()), System::currentTimeMillis),
            new KnownPins(System::currentTimeMillis),
            new Nothing(),
            0,
            Runnable::run,
            0,
            System::currentTimeMillis,
            () -> {});
    get(own.recover(new Nothing()));
    return get(new MigratingCoordinator(own, pulsars, numbers, opensOwn, mostActive).prepare());
  }

  private static void end(MigratingCoordinator both, TxnID txn) {
    get(both.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    get(both.updateTxnStatus(txn, TxnStatus.COMMITTED, TxnStatus.COMMITTING, false));
  }

  @Test
  void whatPulsarsOwnHasIsEndedThereAndNewOnesAreNumberedAboveIt() {
    TxnID old = get(pulsars.newTransaction(HOUR_MS, null));
    last = 7;
    MigratingCoordinator both = opened(true, 0);
    TxnID fresh = get(both.newTransaction(HOUR_MS, null));
    assertEquals(new TxnID(2, 8), fresh);
    assertEquals(fresh, get(own.getTxnMeta(fresh)).id());
    assertEquals(2, both.getCoordinatorStats().getOngoingTxnSize());
    assertEquals(2, both.getMetadataStoreStats().getActives());
    // An older one is not ended yet: no topic may take it for dead.
    assertTrue(both.getLowWaterMark() < old.getLeastSigBits());
    get(both.addProducedPartitionToTxn(old, List.of("persistent://a/b/c")));
    assertEquals(
        List.of("persistent://a/b/c"), get(pulsars.getTxnMeta(old)).producedPartitions());
    end(both, old);
    assertEquals(TxnStatus.COMMITTED, get(pulsars.getTxnMeta(old)).status());
    end(both, fresh);
    assertEquals(1, both.getMetadataStoreStats().getCommittedCount());
  }

  @Test
  void nobodyIsToldOfANumberThatIsNotReserved() {
    last = 7;
    MigratingCoordinator both = opened(true, 0);
    reserving = new CompletableFuture<>();
    CompletableFuture<TxnID> first = both.newTransaction(HOUR_MS, null);
    CompletableFuture<TxnID> second = both.newTransaction(HOUR_MS, null);
    while (own.getMetadataStoreStats().getCreatedCount() < 2 || reserved.isEmpty()) {
      assertFalse(first.isDone() || second.isDone());
      Thread.onSpinWait();
    }
    assertFalse(first.isDone() || second.isDone());
    assertEquals(1, reserved.size());
    assertTrue(reserved.get(0) >= 8 + MigratingCoordinator.RESERVED_AT_ONCE);
    CompletableFuture<Void> failing = reserving;
    reserving = CompletableFuture.completedFuture(null);
    failing.completeExceptionally(new IllegalStateException("the log is fenced"));
    // Whoever comes behind the failure asks again: one of the two may be that late.
    assertTrue(fails(first) | fails(second));
    // So does the next one, and later ones need not.
    get(both.newTransaction(HOUR_MS, null));
    get(both.newTransaction(HOUR_MS, null));
    assertEquals(2, reserved.size());
  }

  private static boolean fails(CompletableFuture<TxnID> transaction) {
    return transaction.handle((txn, error) -> error != null).join();
  }

  @Test
  void onTheWayBackOursAreEndedAndPulsarsAreNumberedAboveThem() {
    TxnID ours = get(opened(true, 0).newTransaction(HOUR_MS, null));
    reserved.clear();
    MigratingCoordinator back = opened(false, 0);
    assertEquals(List.of(ours.getLeastSigBits()), reserved);
    TxnID theirs = get(back.newTransaction(HOUR_MS, null));
    assertEquals(theirs, get(pulsars.getTxnMeta(theirs)).id());
    assertEquals(0, own.getMetadataStoreStats().getCreatedCount());
    end(back, ours);
    assertEquals(0, own.getMetadataStoreStats().getActives());
  }

  @Test
  void theLimitIsOneOfBothTogether() {
    get(pulsars.newTransaction(HOUR_MS, null));
    MigratingCoordinator both = opened(true, 2);
    get(both.newTransaction(HOUR_MS, null));
    ExecutionException error =
        assertThrows(
            ExecutionException.class, () -> both.newTransaction(HOUR_MS, null).get());
    assertInstanceOf(ReachMaxActiveTxnException.class, error.getCause());
    get(both.closeAsync());
  }
}
