package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.AckedSubscription.at;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.RedisCluster;
import pulsartxnspark.store.RedisServer;
import pulsartxnspark.store.StoreRolledBackException;
import redis.clients.jedis.Jedis;

/** Steps that are refused, lost, or not answered. */
class PendingAckFaultsTest extends PendingAckTest {
  @Test
  void theBrokerThatHadTheSubscriptionBeforeWritesNothingMore() {
    AckedSubscription former = load();
    TxnID txn = acknowledged(former, at(0));
    AckedSubscription owner = load(); // while the former one has not noticed
    failure(ServiceUnitNotReadyException.class, former.acknowledge(txn, at(1)));
    assertEquals(1, records().size());
    decide(txn, false);
    failure(ServiceUnitNotReadyException.class, former.abort(txn));
    assertEquals(1, records().size());
    get(owner.abort(txn));
    assertEquals(Map.of(), records());
  }

  @Test
  void aStepWhoseReplyIsLostIsTakenOnce() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    faults.loses = true;
    get(one.acknowledge(txn, at(1)));
    assertTrue(faults.asks.get() > 0);
    assertEquals(2, records().size());
    faults.loses = true;
    commit(one, txn);
    assertEquals(at(1), cursor.markDeleted());
  }

  @Test
  void aStepThatIsRepeatedIsTakenOnceAndNoneThatIsLate() {
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
  void onAFullServerWhatIsRefusedIsNotPendingAndWhatIsOpenEnds() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    TxnID other = acknowledged(one, at(1));
    decide(txn, true);
    try {
      limitMemory("1");
      failure(ServiceUnitNotReadyException.class, one.acknowledge(other, at(2)));
      assertFalse(one.isLocked(2));
      get(one.commit(txn));
    } finally {
      limitMemory("0");
    }
    get(one.acknowledge(other, at(2)));
    decide(other, true);
    commit(one, other);
    assertEquals(at(2), cursor.markDeleted());
  }

  @Test
  void twoAbortsOfACumulativeAcknowledgementAtOnceEndIt() {
    AckedSubscription one = load();
    TxnID txn = acknowledgedUpTo(one, at(1));
    decide(txn, false);
    faults.gate = new CompletableFuture<>();
    CompletableFuture<Void> first = one.abort(txn);
    CompletableFuture<Void> second = one.abort(txn);
    faults.gate.complete(null);
    get(first);
    failure(ServiceUnitNotReadyException.class, second); // Pulsar asks again
    get(one.abort(txn));
    assertEquals(Map.of(), records());
  }

  @Test
  void whileTheStoreIsAwayNothingIsAcknowledgedAndNothingDeliveredAgain() {
    AckedSubscription one = load();
    acknowledged(one, at(0));
    TxnID txn = acknowledged(one, at(1));
    faults.isAway = true;
    CompletableFuture<Void> waiting = one.acknowledge(txn, at(2));
    CompletableFuture<Void> conflicting = one.acknowledge(txn, at(0));
    await(() -> faults.asks.get() > 0);
    assertFalse(waiting.isDone());
    refusedInTheEnd(waiting);
    refusedInTheEnd(conflicting);
    assertTrue(one.isLocked(2)); // nobody knows whether it is written
    decide(txn, false);
    refusedInTheEnd(one.abort(txn));
    assertEquals(List.of(), one.redelivered());
    faults.isAway = false;
    get(one.abort(txn)); // Pulsar asks again
    assertEquals(List.of(1L, 2L), one.redelivered());
    assertTrue(one.isLocked(0)); // it is the holder's, whatever another one wanted
    assertEquals(1, records().size());
  }

  @Test
  void aRequestIsRefusedInTimeAlsoWhileEveryThreadWaitsForTheStore() {
    AtomicBoolean areBusy = new AtomicBoolean();
    List<Runnable> waiting = new CopyOnWriteArrayList<>();
    threads =
        task -> {
          if (areBusy.get()) {
            waiting.add(task);
          } else {
            pool.execute(task);
          }
        };
    HandTimer clock = new HandTimer();
    timer = clock.asked;
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    areBusy.set(true);
    faults.isAway = true;
    CompletableFuture<Void> written = one.acknowledge(txn, at(1));
    CompletableFuture<Void> unasked = one.acknowledge(newTransaction(), at(2));
    await(() -> waiting.size() == 2); // the step, and the question for a header
    clockMs.addAndGet(PATIENCE_MS - 1);
    clock.tick();
    one.settle();
    assertFalse(written.isDone() || unasked.isDone());
    clockMs.addAndGet(1);
    clock.tick();
    failure(ServiceUnitNotReadyException.class, written);
    failure(ServiceUnitNotReadyException.class, unasked);
    assertEquals(1, records().size());
    faults.isAway = false;
    areBusy.set(false);
    waiting.forEach(pool::execute);
    await(() -> records().size() == 2); // the step is asked for until the store says so
  }

  @Test
  void aStoreThatIsOlderThanWhatWasSeenTakesNothing() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    String seq = inStore(jedis -> jedis.hget("{seg:s}:birth", "seq"));
    inStore(jedis -> jedis.hset("{seg:s}:birth", "seq", "1"));
    CompletableFuture<Void> waiting = one.acknowledge(txn, at(1));
    await(() -> faults.asks.get() > 0);
    refusedInTheEnd(waiting);
    assertEquals(1, records().size());
    inStore(jedis -> jedis.hset("{seg:s}:birth", "seq", seq)); // it is restored
    await(() -> records().size() == 2);
  }

  private void limitMemory(String bytes) {
    RedisServer own = server instanceof RedisCluster cluster ? cluster.nodeOf(RECORDS) : server;
    try (Jedis jedis = own.client()) {
      jedis.configSet("maxmemory", bytes);
    }
  }
}
