package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import io.netty.buffer.ByteBuf;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.SegmentStore;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.WriterId;

/** Who may append, and what becomes of an entry. */
class BufferAppendsTest extends TransactionBufferTest {
  @Test
  void aWriterWithoutAPinIsRefusedAndBlocksNobody() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    assertRefused("FENCED", append(buffer, WRITER));
    assertEquals(0, topic.appends());
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(at(0), buffer.getMaxReadPosition());
  }

  @Test
  void aLateWriteOfADecidedTransactionIsRefused() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    store.abort("s", WRITER);
    await(() -> buffer.getOngoingTxnCount() == 0);
    assertRefused("FENCED", append(buffer, WRITER));
    assertEquals(1, topic.appends());
  }

  @Test
  void bitsThatAreNotThoseOfTheWriterAreRefused() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    assertRefused("INVALID", buffer.appendBufferToTxn(txn(WRITER), 0, entry(WRITER, null)));
    assertRefused("INVALID", buffer.appendBufferToTxn(txn(OTHER), 0, entry(WRITER, txn(OTHER))));
    assertRefused("INVALID", buffer.appendBufferToTxn(txn(WRITER), 0, entry(WRITER, txn(OTHER))));
    TxnID pulsars = new TxnID(0, 1);
    assertRefused("INVALID", buffer.appendBufferToTxn(pulsars, 0, entry(WRITER, pulsars)));
    assertEquals(0, topic.appends());
  }

  @Test
  void entriesAreReleasedWhateverComesOfThem() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    List<ByteBuf> entries = new ArrayList<>();
    for (WriterId writer : List.of(WRITER, OTHER, WRITER)) {
      ByteBuf entry = entry(writer, txn(writer));
      entries.add(entry);
      buffer.appendBufferToTxn(txn(writer), 0, entry);
      await(() -> entry.refCnt() == 1);
    }
    assertEquals(2, topic.appends());
    entries.forEach(ByteBuf::release);
  }

  /** A store whose first answers about writers are lost, each after all of the time has passed. */
  private SegmentStore silent(AtomicInteger asked, int times) {
    return Intercepted.store(
        SegmentStore.class,
        store.segments,
        call -> {
          if (call.is("fates") && asked.getAndIncrement() < times) {
            nowMs.addAndGet(BufferParts.LONGEST_PAUSE_MS);
            throw new StoreUnavailableException("no answer in time", null);
          }
          return call.pass();
        });
  }

  /** A buffer that is ready, and has to ask whether the writer is pinned. */
  private MetadataTransactionBuffer recovered(SegmentStore segments) throws Exception {
    MetadataTransactionBuffer buffer = open(segments, null, NEVER_MS);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    store.pin("s", WRITER);
    return buffer;
  }

  @Test
  void aConnectionThatWasLostUnnoticedCostsNoWriterItsEntry() throws Exception {
    MetadataTransactionBuffer buffer = recovered(silent(new AtomicInteger(), 1));
    CompletableFuture<Position> done = append(buffer, WRITER);
    await(() -> topic.appends() == 1 || done.isDone());
    assertEquals(1, topic.appends());
    topic.acknowledge(0);
    assertEquals(at(0), done.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
  }

  @Test
  void aWriterIsTurnedAwayOnceTheStoreIsSilentForTooLong() throws Exception {
    AtomicInteger asked = new AtomicInteger();
    MetadataTransactionBuffer buffer = recovered(silent(asked, Integer.MAX_VALUE));
    assertRefused("UNAVAILABLE", append(buffer, WRITER));
    assertEquals(2, asked.get());
    assertEquals(0, topic.appends());
  }

  @Test
  void closingRefusesWhatWaits() throws Exception {
    PausedStore paused = new PausedStore(store.segments, false);
    MetadataTransactionBuffer buffer = open(paused, null, NEVER_MS);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    store.pin("s", WRITER);
    CompletableFuture<Position> waiting = append(buffer, WRITER);
    assertTrue(paused.asked.await(PATIENCE_MS, TimeUnit.MILLISECONDS));
    buffer.closeAsync().get();
    assertThrows(ExecutionException.class, waiting::get);
    assertThrows(ExecutionException.class, () -> append(buffer, OTHER).get());
    paused.goOn.countDown();
    threads.shutdown();
    assertTrue(threads.awaitTermination(PATIENCE_MS, TimeUnit.MILLISECONDS));
    assertEquals(0, topic.appends());
  }
}
