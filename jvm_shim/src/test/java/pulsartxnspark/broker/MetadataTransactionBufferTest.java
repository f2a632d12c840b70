package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.policies.data.TransactionBufferStats;
import org.apache.pulsar.common.protocol.Commands;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.EventFollower;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Gate;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.Seen;
import pulsartxnspark.store.SegmentStore;
import pulsartxnspark.store.StoreTest;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.WriterId;
import redis.clients.jedis.Jedis;

class MetadataTransactionBufferTest extends StoreTest {
  private static final long NEVER_MS = 3_600_000;
  private static final long PATIENCE_MS = 20_000;
  private static final WriterId WRITER = WriterId.ofName("ptxn-0-1-0-aa").orElseThrow();
  private static final WriterId OTHER = WriterId.ofName("ptxn-0-2-0-bb").orElseThrow();

  private final FakeLog topic = new FakeLog();
  private final List<MetadataTransactionBuffer> opened = new ArrayList<>();
  private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(2);
  private TransactionHelper helper; // null where nobody helps

  @AfterEach
  void close() {
    opened.forEach(MetadataTransactionBuffer::closeAsync);
    threads.shutdownNow();
    // A topic that closes holds its own lock, and waits for the buffer's.
    assertFalse(topic.calledWithLock);
  }

  private MetadataTransactionBuffer open(SegmentStore segments, EventFollower events, long pollMs) {
    BrokerStore shared = new BrokerStore(segments, events, helper, threads, pollMs);
    MetadataTransactionBuffer buffer =
        new MetadataTransactionBuffer(topic, "s", TestStore.UUID, shared);
    opened.add(buffer);
    topic.bufferLock = buffer;
    return buffer;
  }

  /** A buffer that is ready, and looks at the store often. */
  private MetadataTransactionBuffer ready() throws Exception {
    MetadataTransactionBuffer buffer = open(store.segments, null, 5);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    return buffer;
  }

  private static Position at(long entry) {
    return PositionFactory.create(1, entry);
  }

  private static TxnID txn(WriterId writer) {
    return new TxnID(writer.bits().most(), writer.bits().least());
  }

  private static ByteBuf entry(WriterId writer, TxnID bits) {
    MessageMetadata metadata =
        new MessageMetadata()
            .setProducerName(writer.name())
            .setSequenceId(0)
            .setPublishTime(1)
            .setNumMessagesInBatch(3);
    if (bits != null) {
      metadata.setTxnidMostBits(bits.getMostSigBits()).setTxnidLeastBits(bits.getLeastSigBits());
    }
    ByteBuf payload = Unpooled.wrappedBuffer(new byte[] {1});
    return Commands.serializeMetadataAndPayload(Commands.ChecksumType.Crc32c, metadata, payload);
  }

  private CompletableFuture<Position> append(MetadataTransactionBuffer buffer, WriterId writer) {
    ByteBuf entry = entry(writer, txn(writer));
    CompletableFuture<Position> done = buffer.appendBufferToTxn(txn(writer), 0, entry);
    entry.release();
    done.whenComplete((position, error) -> topic.noteLock());
    return done;
  }

  private static void assertRefused(String kind, CompletableFuture<Position> done) {
    ExecutionException error =
        assertThrows(
            ExecutionException.class, () -> done.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
    assertInstanceOf(NotAllowedException.class, error.getCause());
    String message = error.getCause().getMessage();
    assertTrue(message.startsWith("pulsar_txn_spark " + kind + ": "), message);
  }

  /** A store in which a test may stop at a question. */
  private static final class PausedStore implements SegmentStore {
    final CountDownLatch asked = new CountDownLatch(1);
    final CountDownLatch goOn = new CountDownLatch(1);
    private final SegmentStore store;
    private final boolean pausesGate;

    PausedStore(SegmentStore store, boolean pausesGate) {
      this.store = store;
      this.pausesGate = pausesGate;
    }

    private void pause() {
      asked.countDown();
      try {
        assertTrue(goOn.await(PATIENCE_MS, TimeUnit.MILLISECONDS));
      } catch (InterruptedException error) {
        throw new IllegalStateException(error);
      }
    }

    @Override
    public void requireIdentity(String uuid) {
      store.requireIdentity(uuid);
    }

    @Override
    public Gate gate(String segment) {
      if (pausesGate) {
        pause();
      }
      return store.gate(segment);
    }

    @Override
    public List<Fate> fates(String segment, List<Query> queries) {
      if (!pausesGate) {
        pause();
      }
      return store.fates(segment, queries);
    }

    @Override
    public void raiseSeen(String segment, Seen state) {
      store.raiseSeen(segment, state);
    }
  }

  @Test
  void rowsOutsideOfTransactionsAreVisibleAtOnce() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    assertEquals(at(-1), buffer.getMaxReadPosition());
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(at(0), buffer.getMaxReadPosition());
  }

  @Test
  void anOpenTransactionHoldsConsumersBeforeItsFirstEntry() throws Exception {
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
  void theHoldIsThereBeforeTheEntryIs() throws Exception {
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
  void aWriterWithoutAPinIsRefusedAndHoldsNobody() throws Exception {
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
  void whatIsBelowTheFloorIsNeverRead() throws Exception {
    store.pin("s", WRITER);
    store.abort("s", WRITER);
    store.sweep("s", 0, 2, new LogPosition(1, 9), LogPosition.EARLIEST);
    store.sweep("s", 0, 2, new LogPosition(1, 9), new LogPosition(1, 9));
    MetadataTransactionBuffer buffer = ready();
    assertTrue(buffer.isTxnAborted(txn(WRITER), at(20)));
    assertFalse(buffer.isTxnAborted(txn(OTHER), at(20)));
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

  @Test
  void droppedWritersAreForgottenOnceTheFloorFiltersThem() throws Exception {
    MetadataTransactionBuffer buffer = withDropped(store.segments);
    buffer.prune();
    assertEquals(1, buffer.getStats(false).totalAbortedTransactions);
    store.sweep("s", 0, 2, new LogPosition(1, 9), LogPosition.EARLIEST);
    buffer.prune(); // they are in a group now
    assertEquals(1, buffer.getStats(false).totalAbortedTransactions);
    store.sweep("s", 0, 2, new LogPosition(1, 9), new LogPosition(1, 9));
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
  void aSegmentOfAnotherStoreStaysUnreadable() {
    BrokerStore shared = new BrokerStore(store.segments, null, null, threads, NEVER_MS);
    MetadataTransactionBuffer buffer =
        new MetadataTransactionBuffer(topic, "s", "another store", shared);
    opened.add(buffer);
    MetadataTransactionBuffer right = open(store.segments, null, NEVER_MS);
    await(() -> right.checkIfTBRecoverCompletely().isDone());
    assertEquals(PositionFactory.EARLIEST, buffer.getMaxReadPosition());
    assertFalse(buffer.checkIfTBRecoverCompletely().isDone());
  }

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
    assertRefused("UNAVAILABLE", refused);
    assertEquals(at(0), buffer.getMaxReadPosition());
    // It comes back without what it knew: the decision is not guessed.
    server.start();
    assertRefused("UNAVAILABLE", append(buffer, OTHER));
    assertEquals(at(0), buffer.getMaxReadPosition());
    assertEquals(1, buffer.getOngoingTxnCount());
  }

  @Test
  void anAppendThatFailsKeepsItsHold() throws Exception {
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

  @Test
  void theBufferOfATopicThatIsDeletedIsClosed() throws Exception {
    MetadataTransactionBuffer buffer = open(store.segments, null, NEVER_MS);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    buffer.clearSnapshotAndClose().get();
    assertEquals("Closed", buffer.getStats(false).state);
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

  @Test
  void theLastDispatchablePositionIsForgottenAfterEachPublish() throws Exception {
    MetadataTransactionBuffer buffer = ready();
    buffer.syncMaxReadPositionForNormalPublish(topic.store(), false);
    assertEquals(1, topic.forgotten());
    store.pin("s", WRITER);
    append(buffer, WRITER);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    assertEquals(2, topic.forgotten());
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

  @Test
  void aDeadDriversTransactionHoldsConsumersNoLongerThanItsLease() throws Exception {
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
