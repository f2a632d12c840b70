package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import java.util.concurrent.TimeUnit;
import org.apache.pulsar.common.policies.data.TransactionBufferStats;
import org.junit.jupiter.api.Test;

/** What a broker asks of a buffer beside appends and reads. */
class MetadataTransactionBufferTest extends TransactionBufferTest {
  @Test
  void theBufferOfATopicThatIsDeletedIsClosed() throws Exception {
    MetadataTransactionBuffer buffer = open(store.segments, null, NEVER_MS);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    buffer.clearSnapshotAndClose().get();
    assertEquals("Closed", buffer.getStats(false).state);
  }

  @Test
  void statisticsNameTheBufferAndItsMaximum() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    TransactionBufferStats stats = buffer.getStats(true, true);
    assertEquals("pulsar_txn_spark", stats.snapshotType);
    assertEquals("Ready", stats.state);
    assertEquals("1:-1", stats.maxReadPosition);
    assertEquals(1, stats.ongoingTxnSize);
    assertTrue(stats.recoverEndTime >= stats.recoverStartTime);
    assertEquals("1:-1", buffer.getTransactionInBufferStats(txn(WRITER)).startPosition);
    assertFalse(buffer.getTransactionInBufferStats(txn(WRITER)).aborted);
  }
}
