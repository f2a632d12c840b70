package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.LogPosition;

/** How far consumers may read. */
class BufferWritersTest extends TransactionBufferTest {
  @Test
  void rowsOutsideOfTransactionsAreVisibleAtOnce() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    assertEquals(at(-1), buffer.getMaxReadPosition());
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(at(0), buffer.getMaxReadPosition());
  }

  @Test
  void anOpenTransactionBlocksConsumersBeforeItsFirstEntry() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    store.pin("s", WRITER);
    CompletableFuture<Position> done = append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    assertEquals(3, topic.sent.get(0).messages());
    assertEquals(at(1), topic.acknowledge(0));
    assertEquals(at(1), done.get());
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(at(0), buffer.getMaxReadPosition());
    assertEquals(1, buffer.getOngoingTxnCount());
    store.commit("s", WRITER, new LogPosition(1, 1));
    await(() -> buffer.getMaxReadPosition().equals(at(2)));
    assertFalse(buffer.isTxnAborted(txn(WRITER), at(1)));
    assertEquals(1, buffer.getCommittedTxnCount());
    assertEquals(0, buffer.getOngoingTxnCount());
  }

  @Test
  void consumersAreBlockedBeforeTheEntryIsThere() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    // A ledger's change: the LAC has the entry, its callback has not come.
    topic.store();
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(at(-1), buffer.getMaxReadPosition());
  }

  @Test
  void aRowThatIsOnItsWayToThePinsCheckIsHeldToo() throws Exception {
    PausedStore paused = new PausedStore(store.segments, false);
    MetadataTransactionBuffer buffer = open(paused, null, NEVER_MS);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    store.pin("s", WRITER);
    append(buffer, WRITER);
    append(buffer, WRITER);
    assertTrue(paused.asked.await(PATIENCE_MS, TimeUnit.MILLISECONDS));
    assertEquals(0, topic.appends());
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(at(-1), buffer.getMaxReadPosition());
    paused.goOn.countDown();
    await(() -> topic.appends() == 2);
  }

  @Test
  void anAppendThatFailsKeepsConsumersBlocked() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    CompletableFuture<Position> done = append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    topic.sent.get(0).done().failed(new IllegalStateException("the ledger is gone"));
    assertThrows(ExecutionException.class, done::get);
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(at(-1), buffer.getMaxReadPosition());
  }

  @Test
  void theTopicIsNotToldOfMarkers() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    await(() -> topic.moves == 1); // the recovery's
    topic.lastDispatchable = at(-1);
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), true);
    assertEquals(at(0), buffer.getMaxReadPosition());
    assertEquals(1, topic.moves);
    assertEquals(at(-1), topic.lastDispatchable);
    // The LAC has both when the marker is confirmed, and the topic is told of the row.
    topic.store();
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), true);
    buffer.syncMaxReadPositionForNormalPublish(at(2), false);
    assertEquals(2, topic.moves);
    assertNull(topic.lastDispatchable);
  }

  @Test
  void theLastDispatchablePositionIsForgottenAfterEachPublish() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    topic.lastDispatchable = at(0);
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertNull(topic.lastDispatchable);
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    topic.lastDispatchable = at(0);
    topic.acknowledge(0);
    assertNull(topic.lastDispatchable);
  }
}
