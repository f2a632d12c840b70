package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Gate;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.Seen;
import pulsartxnspark.store.SegmentStore;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.WriterId;

/** What consumers never get. */
class BufferFilterTest extends TransactionBufferTest {
  @Test
  void anAbortedTransactionIsFilteredAlsoAtTheEndOfTheLog() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    store.abort("s", WRITER);
    await(() -> buffer.getMaxReadPosition().equals(at(0)));
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(0)));
    assertEquals(1, buffer.getAbortedTxnCount());
    assertFalse(buffer.isTxnAborted(txn(OTHER), at(0)));
    assertFalse(buffer.isTxnAborted(new TxnID(0, 1), at(0)));
  }

  @Test
  void aWriterCountsUpToItsBound() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    append(buffer, WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 2);
    topic.acknowledge(0);
    topic.acknowledge(1);
    store.decide("s", WRITER, "COMMITTED", new LogPosition(1, 0), new LogPosition(1, 0));
    await(() -> buffer.getMaxReadPosition().equals(at(1)));
    assertFalse(buffer.isTxnAborted(txn(WRITER), at(0)));
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(1)));
  }

  @Test
  void aLoserOfACommittedTransactionIsToldFromTheWinner() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    WriterId loser = WriterId.ofName("ptxn-0-1-1-cc").orElseThrow();
    store.pin("s", WRITER);
    store.pin("s", loser);
    append(buffer, WRITER);
    append(buffer, loser);
    await(() -> topic.appends() == 2);
    topic.acknowledge(0);
    topic.acknowledge(1);
    store.decide("s", loser, "COMMITTED", LogPosition.EARLIEST, null);
    store.commit("s", WRITER, new LogPosition(1, 1));
    await(() -> buffer.getMaxReadPosition().equals(at(1)));
    assertTrue(buffer.isTxnAborted(txn(loser), at(0)));
    assertFalse(buffer.isTxnAborted(txn(WRITER), at(1)));
  }

  @Test
  void whatIsBelowTheFloorIsNeverRead() throws Exception {
    store.pin("s", WRITER);
    store.abort("s", WRITER);
    store.sweep("s", 0, 2, new LogPosition(1, 9), LogPosition.EARLIEST);
    store.sweep("s", 0, 2, new LogPosition(1, 9), new LogPosition(1, 9));
    MetadataTransactionBuffer buffer = ready();
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(20)));
    assertFalse(buffer.isTxnAborted(txn(OTHER), at(20)));
  }

  /** Lets the log delete its first ledger, and raises the floor over the first transaction. */
  private void trim() {
    topic.firstLedger = 2;
    store.sweep("s", 0, 2, new LogPosition(1, 9), new LogPosition(1, 9));
  }

  @Test
  void whatCompactionHasKeptOfDeletedLedgersIsNotBelowTheFloor() throws Exception {
    store.pin("s", WRITER);
    store.commit("s", WRITER, new LogPosition(1, 0));
    trim();
    MetadataTransactionBuffer buffer = ready();
    assertFalse(buffer.isTxnAborted(txn(WRITER), at(0)));
    // It wrote nothing there that counts: the log has deleted that.
    assertTrue(buffer.isTxnAborted(txn(WRITER), PositionFactory.create(2, 0)));
  }

  @Test
  void whatIsDeletedWhileTheTopicIsLoadedIsNotBelowTheFloorThatIsLearntThen() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    store.pin("s", WRITER);
    store.commit("s", WRITER, new LogPosition(1, 0));
    trim();
    buffer.prune();
    assertFalse(buffer.isTxnAborted(txn(WRITER), at(0)));
    assertTrue(buffer.isTxnAborted(txn(WRITER), PositionFactory.create(2, 0)));
  }

  @Test
  void whoStillReadsADeletedLedgerSeesNothingOfADroppedWriter() throws Exception {
    MetadataTransactionBuffer buffer = withDropped(store.segments);
    trim();
    trim(); // so that the store forgets its name
    buffer.prune();
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(0)));
    buffer.prune();
    assertEquals(0, buffer.getStats(false).totalAbortedTransactions);
  }

  /** A buffer that knows of an aborted transaction. */
  private MetadataTransactionBuffer withDropped(SegmentStore segments) throws Exception {
    MetadataTransactionBuffer buffer = open(segments, null, 5);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    store.abort("s", WRITER);
    await(() -> buffer.getMaxReadPosition().equals(at(0)));
    assertEquals(1, buffer.getStats(false).totalAbortedTransactions);
    return buffer;
  }

  /** A store of which a segment is deleted while its buffer is in use, or that goes away. */
  private static final class ForgetfulStore implements SegmentStore {
    volatile boolean forgotten;
    volatile boolean away;
    private final SegmentStore store;

    ForgetfulStore(SegmentStore store) {
      this.store = store;
    }

    @Override
    public void requireIdentity(String uuid) {
      store.requireIdentity(uuid);
    }

    @Override
    public int coordinators() {
      return store.coordinators();
    }

    @Override
    public Gate gate(String segment) {
      if (away) {
        throw new StoreUnavailableException("no answer", null);
      }
      return forgotten ? Gate.PLAIN : store.gate(segment);
    }

    @Override
    public List<Fate> fates(String segment, List<Query> queries) {
      return store.fates(segment, queries);
    }

    @Override
    public void raiseSeen(String segment, Seen state) {
      store.raiseSeen(segment, state);
    }
  }

  @Test
  void droppedWritersAreForgottenOnceTheFloorFiltersThem() throws Exception {
    MetadataTransactionBuffer buffer = withDropped(store.segments);
    buffer.prune();
    assertEquals(1, buffer.getStats(false).totalAbortedTransactions);
    store.sweep("s", 0, 2, new LogPosition(1, 9), LogPosition.EARLIEST);
    buffer.prune(); // they are in a group now
    assertEquals(1, buffer.getStats(false).totalAbortedTransactions);
    store.sweep("s", 0, 2, new LogPosition(1, 9), new LogPosition(1, 9));
    buffer.prune(); // the floor is learnt
    assertEquals(1, buffer.getStats(false).totalAbortedTransactions);
    buffer.prune();
    assertEquals(0, buffer.getStats(false).totalAbortedTransactions);
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(0)));
    assertFalse(buffer.isTxnAborted(txn(OTHER), at(0)));
  }

  @Test
  void aStoreThatHasForgottenTheSegmentTakesNoDroppedWriterAway() throws Exception {
    ForgetfulStore forgetful = new ForgetfulStore(store.segments);
    MetadataTransactionBuffer buffer = withDropped(forgetful);
    forgetful.forgotten = true;
    buffer.prune();
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(0)));
    forgetful.away = true;
    buffer.prune();
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(0)));
  }
}
