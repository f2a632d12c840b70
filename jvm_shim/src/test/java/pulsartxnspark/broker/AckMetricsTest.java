package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static pulsartxnspark.broker.AckedSubscription.at;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.common.exception.TransactionConflictException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.junit.jupiter.api.Test;
import pulsartxnspark.broker.AckMetrics.Refusal;
import pulsartxnspark.broker.AckMetrics.Replay;
import pulsartxnspark.store.StoreMetrics.Index;

/** What a broker counts of the pending acks of its subscriptions. */
class AckMetricsTest extends PendingAckTest {
  private void assertRecords(long open, long decided) {
    assertEquals(open, metrics.open());
    assertEquals(decided, metrics.decided());
  }

  @Test
  void recordsAreCountedWhileTheirSubscriptionIsLoaded() {
    AckedSubscription one = loadPolling();
    TxnID kept = acknowledged(one, at(0), at(1)); // one record
    get(one.acknowledge(kept, at(2)));
    TxnID lost = acknowledged(one, at(4));
    assertRecords(3, 0);
    abort(one, lost);
    assertRecords(2, 0);
    commit(one, kept);
    acknowledgedUpTo(one, at(3));
    assertRecords(1, 2); // until the cursor is written
    crash(one);
    metrics = new AckMetrics(); // of another broker
    AckedSubscription next = loadPolling();
    assertRecords(1, 2);
    cursor.flush();
    await(() -> metrics.decided() == 0);
    close(next);
    assertRecords(0, 0);
  }

  @Test
  void refusalsAreCountedByTheirCause() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    failure(TransactionConflictException.class, one.acknowledge(newTransaction(), at(0)));
    failure(ServiceUnitNotReadyException.class, one.commit(txn));
    commit(one, txn);
    failure(InvalidTxnStatusException.class, one.acknowledge(txn, at(1)));
    faults.isAway = true;
    TxnID unwritten = newTransaction();
    refusedInTheEnd(one.acknowledge(unwritten, at(2)));
    faults.isAway = false;
    await(() -> records().size() == 3);
    for (Refusal each : Refusal.values()) {
      assertEquals(1, metrics.refusals(each), each.name());
    }
  }

  @Test
  void replaysAreCountedWithTheirResult() {
    AckedSubscription one = load();
    acknowledged(one, at(0));
    assertReplays(1, 0);
    Map<Double, Long> times = store.metrics.queries(Index.ACKS_BY_SEGMENT_SUBSCRIPTION);
    assertEquals(1, times.get(Double.POSITIVE_INFINITY));
    Map<String, String> right = records();
    String name = right.keySet().iterator().next();
    crash(one);
    inStore(jedis -> jedis.hset(RECORDS, name, "I 7:x"));
    AckedSubscription next = loading();
    await(() -> metrics.replays(Replay.FAILED) == 1);
    inStore(jedis -> jedis.hset(RECORDS, right));
    ready(next);
    assertReplays(2, 1);
  }

  @Test
  void anOpeningThatFailsIsAReplayThatFails() {
    AckedSubscription one = load();
    faults.isAway = true;
    CompletableFuture<Void> early = one.acknowledge(newTransaction(), at(0));
    await(() -> metrics.replays(Replay.FAILED) == 1);
    faults.isAway = false;
    get(early);
    assertReplays(1, 1);
  }

  private void assertReplays(long ok, long failed) {
    assertEquals(ok, metrics.replays(Replay.OK));
    assertEquals(failed, metrics.replays(Replay.FAILED));
  }
}
