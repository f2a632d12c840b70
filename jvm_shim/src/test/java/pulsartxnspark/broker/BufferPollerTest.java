package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.EventFollower;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.WriterId;
import redis.clients.jedis.Jedis;

/** How a buffer learns of decisions. */
class BufferPollerTest extends TransactionBufferTest {
  @Test
  void aDecisionIsSeenByItsEventWithoutAPoll() throws Exception {
    EventFollower events = new EventFollower(store.connections);
    MetadataTransactionBuffer buffer = open(store.segments, events, NEVER_MS);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    for (int number = 1; number <= 3; number++) {
      WriterId writer = WriterId.ofName("ptxn-0-" + number + "-0-aa").orElseThrow();
      store.pin("s", writer);
      append(buffer, writer);
      int appends = number;
      await(() -> topic.appends() == appends);
      topic.acknowledge(number - 1);
      store.commit("s", writer, new LogPosition(1, number - 1));
      Position end = at(number - 1);
      await(() -> buffer.getMaxReadPosition().equals(end));
    }
  }

  @Test
  void aStoreThatIsGoneShowsNothingNewAndHidesNothingOld() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    server.stop();
    CompletableFuture<Position> refused = append(buffer, OTHER);
    nowMs.addAndGet(BufferParts.LONGEST_PAUSE_MS);
    assertRefused("UNAVAILABLE", refused);
    assertEquals(at(0), buffer.getMaxReadPosition());
    // It comes back without what it knew: the decision is not guessed.
    server.start();
    assertRefused("UNAVAILABLE", append(buffer, OTHER));
    assertEquals(at(0), buffer.getMaxReadPosition());
    assertEquals(1, buffer.getOngoingTxnCount());
  }

  @Test
  void aDeadDriversTransactionBlocksConsumersNoLongerThanItsLease() throws Exception {
    helper = new TransactionHelper(store.transactions, threads, 5, System::currentTimeMillis);
    MetadataTransactionBuffer buffer = ready();
    WriterId dead = store.begin("dead", 1, "s");
    store.pin("s", dead);
    append(buffer, dead);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    WriterId alive = store.begin("alive", NEVER_MS, "s");
    store.pin("s", alive);
    append(buffer, alive);
    await(() -> topic.appends() == 2);
    topic.acknowledge(1);
    await(() -> buffer.getMaxReadPosition().equals(at(0)));
    assertTrue(buffer.isTxnAborted(txn(dead), at(0)));
    assertEquals(Header.State.OPEN, store.transactions.read(alive.txn()).orElseThrow().state());
    store.end(alive.txn(), "alive", TestStore.outcome("s", alive, null, new LogPosition(1, 1)));
    await(() -> buffer.getMaxReadPosition().equals(at(1)));
    assertFalse(buffer.isTxnAborted(txn(alive), at(1)));
  }

  @Test
  void aTransactionOfPulsarsOwnEndsWithoutATrace() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    buffer.commitTxn(new TxnID(0, 1), 0).get();
    buffer.abortTxn(new TxnID(0, 2), 0).get();
    assertEquals(0, topic.appends());
    try (Jedis jedis = store.client()) {
      assertEquals("1", jedis.hget("{seg:s}:birth", "seq"));
    }
  }
}
