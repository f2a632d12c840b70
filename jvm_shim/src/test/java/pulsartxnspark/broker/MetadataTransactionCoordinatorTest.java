package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.policies.data.TransactionCoordinatorStats;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState.State;
import org.apache.pulsar.transaction.coordinator.TxnMeta;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.ReachMaxActiveTxnException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionMetadataStoreStateException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.impl.TransactionMetadataStoreStats;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;
import redis.clients.jedis.Jedis;

/** Transactions from their opening to their end, and what is shown of them. */
class MetadataTransactionCoordinatorTest extends TransactionCoordinatorTest {
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
  void itPollsForWhatOthersHaveDecidedWhileTheLastTransactionEnds() throws Exception {
    MetadataTransactionCoordinator one = opened();
    CompletableFuture<Void> polls =
        CompletableFuture.runAsync(
            () -> {
              for (int i = 0; i < 20_000 && !Thread.interrupted(); i++) {
                one.decidedByOthers();
              }
            });
    while (!polls.isDone()) {
      end(one, get(one.newTransaction(HOUR_MS, null)), false);
    }
    polls.get(); // raises what it met
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

  @Test
  void aCommitWhoseReplyIsUnderWayIsNotTakenForAnAbortByOthers() {
    CompletableFuture<Void> answered = new CompletableFuture<>();
    CoordinatorStore slow =
        intercepted(
            call -> {
              Object answer = call.pass();
              if (!call.is("endTogether")) {
                return answer;
              }
              Object reply = get((CompletableFuture<?>) answer);
              return answered.thenApply(now -> reply);
            });
    MetadataTransactionCoordinator one = opened(TC, 0, slow);
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(ORDINARY))); // which keeps the header
    CompletableFuture<Void> committed =
        one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false);
    assertEquals(Header.State.COMMITTED, header(txn).state());
    assertEquals(List.of(), one.decidedByOthers());
    answered.complete(null);
    get(committed);
    finish(one, txn, true);
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
}
