package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.Gate;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.SegmentStore;

/** What a broker finds when it loads a segment. */
class BufferRecoveryTest extends TransactionBufferTest {
  @Test
  void nothingIsVisibleUntilTheBufferHasRecovered() throws Exception {
    store.pin("s", WRITER);
    topic.store();
    PausedStore paused = new PausedStore(store.segments, true);
    MetadataTransactionBuffer buffer = open(paused, null, NEVER_MS);
    assertTrue(paused.asked.await(PATIENCE_MS, TimeUnit.MILLISECONDS));
    assertEquals(PositionFactory.EARLIEST, buffer.getMaxReadPosition());
    CompletableFuture<Position> done = append(buffer, WRITER);
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(PositionFactory.EARLIEST, buffer.getMaxReadPosition());
    assertEquals("Recovering", buffer.getStats(false).state);
    paused.goOn.countDown();
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    done.get();
    // The bound of its pin: before everything.
    assertEquals(PositionFactory.EARLIEST, buffer.getMaxReadPosition());
  }

  @Test
  void recoveryKnowsWhatIsOpenAndWhatLost() throws Exception {
    store.pin("s", WRITER);
    store.abort("s", WRITER);
    topic.store();
    store.pin("s", OTHER);
    MetadataTransactionBuffer buffer = ready();
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(0)));
    assertEquals(PositionFactory.EARLIEST, buffer.getMaxReadPosition());
    store.commit("s", OTHER, new LogPosition(1, 0));
    await(() -> buffer.getMaxReadPosition().equals(at(0)));
    assertFalse(buffer.isTxnAborted(txn(OTHER), at(0)));
  }

  @Test
  void theFloorHoldsForPulsarsTransactionsWhereTheirCoordinatorsAreTakenOut() throws Exception {
    Gate raised = new Gate(List.of(), Map.of(), Map.of(1, 100L));
    SegmentStore swept =
        Intercepted.store(
            SegmentStore.class,
            store.segments,
            call -> call.is("gate") ? raised : call.pass());
    MetadataTransactionBuffer buffer = open(swept, null, NEVER_MS);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    // The store has four coordinators: number 5 of Pulsar shares its number 1.
    assertTrue(buffer.isTxnAborted(new TxnID(5, 50), at(0)));
    assertFalse(buffer.isTxnAborted(new TxnID(5, 100), at(0)));
    assertFalse(buffer.isTxnAborted(new TxnID(6, 50), at(0)));
  }

  @Test
  void aSegmentOfAnotherStoreStaysUnreadable() {
    BrokerStore shared = new BrokerStore(store.segments, null, null, threads, NEVER_MS, nowMs::get);
    MetadataTransactionBuffer buffer =
        new MetadataTransactionBuffer(topic, "s", "another store", shared);
    opened.add(buffer);
    MetadataTransactionBuffer right = open(store.segments, null, NEVER_MS);
    await(() -> right.checkIfTBRecoverCompletely().isDone());
    assertEquals(PositionFactory.EARLIEST, buffer.getMaxReadPosition());
    assertFalse(buffer.checkIfTBRecoverCompletely().isDone());
  }
}
