package pulsartxnspark.broker;

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
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.protocol.Commands;
import org.junit.jupiter.api.AfterEach;
import pulsartxnspark.store.EventFollower;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Gate;
import pulsartxnspark.store.Seen;
import pulsartxnspark.store.SegmentStore;
import pulsartxnspark.store.StoreTest;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.WriterId;

/** A segment with its buffer, and what comes to it from producers. */
abstract class TransactionBufferTest extends StoreTest {
  static final long NEVER_MS = 3_600_000;
  static final long PATIENCE_MS = 20_000;
  static final WriterId WRITER = WriterId.ofName("ptxn-0-1-0-aa").orElseThrow();
  static final WriterId OTHER = WriterId.ofName("ptxn-0-2-0-bb").orElseThrow();

  final FakeLog topic = new FakeLog();
  final List<MetadataTransactionBuffer> opened = new ArrayList<>();
  final ScheduledExecutorService threads = Executors.newScheduledThreadPool(2);
  final AtomicLong nowMs = new AtomicLong(); // stands still but for what a test says
  TransactionHelper helper; // null where nobody helps

  @AfterEach
  void close() {
    opened.forEach(MetadataTransactionBuffer::closeAsync);
    threads.shutdownNow();
    // A topic that closes holds its own lock, and waits for the buffer's.
    assertFalse(topic.calledWithLock);
  }

  MetadataTransactionBuffer open(SegmentStore segments, EventFollower events, long pollMs) {
    BrokerStore shared = new BrokerStore(segments, events, helper, threads, pollMs, nowMs::get);
    MetadataTransactionBuffer buffer =
        new MetadataTransactionBuffer(topic, "s", TestStore.UUID, shared);
    opened.add(buffer);
    topic.bufferLock = buffer.lock();
    return buffer;
  }

  /** A buffer that is ready, and polls the store often. */
  MetadataTransactionBuffer ready() throws Exception {
    MetadataTransactionBuffer buffer = open(store.segments, null, 5);
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    return buffer;
  }

  static Position at(long entry) {
    return PositionFactory.create(1, entry);
  }

  static TxnID txn(WriterId writer) {
    return new TxnID(writer.bits().most(), writer.bits().least());
  }

  static ByteBuf entry(WriterId writer, TxnID bits) {
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

  CompletableFuture<Position> append(MetadataTransactionBuffer buffer, WriterId writer) {
    ByteBuf entry = entry(writer, txn(writer));
    CompletableFuture<Position> done = buffer.appendBufferToTxn(txn(writer), 0, entry);
    entry.release();
    done.whenComplete((position, error) -> topic.noteLock());
    return done;
  }

  static void assertRefused(String kind, CompletableFuture<Position> done) {
    ExecutionException error =
        assertThrows(
            ExecutionException.class, () -> done.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
    assertInstanceOf(NotAllowedException.class, error.getCause());
    String message = error.getCause().getMessage();
    assertTrue(message.startsWith("pulsar_txn_spark " + kind + ": "), message);
  }

  /** A store in which a test may stop at a question. */
  static final class PausedStore implements SegmentStore {
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
    public int coordinators() {
      return store.coordinators();
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
}
