package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.await;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.protocol.Commands;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Ending;
import pulsartxnspark.store.EventFollower;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.RedisServer;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.Seen;
import pulsartxnspark.store.SegmentStore;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.StoreRolledBackException;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TestStore;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;
import redis.clients.jedis.Jedis;

/** What clients of Pulsar's own write in a gated segment. */
class ClientTransactionsInBufferTest {
  private static final long NEVER_MS = 3_600_000;
  private static final long PATIENCE_MS = 20_000;
  private static final TxnID TXN = new TxnID(5, 42); // the store has four coordinators
  private static final WriterId WRITER = WriterId.ofPulsar(new TxnBits(5, 42), 4);
  private static final CoordinatorStore.Pin PIN =
      new CoordinatorStore.Pin(LogPosition.EARLIEST, new Seen(1, ""));

  private static RedisServer server;

  private final FakeLog topic = new FakeLog();
  private final KnownPins pins = new KnownPins(System::currentTimeMillis);
  private final ScheduledExecutorService threads = Executors.newScheduledThreadPool(2);
  private TestStore store;
  private RedisConnections connections;
  private CoordinatorStore coordinators;
  private SegmentStore segments;
  private MetadataTransactionBuffer buffer;

  @BeforeAll
  static void startServer() {
    server = new RedisServer();
  }

  @AfterAll
  static void stopServer() {
    server.close();
  }

  @BeforeEach
  void makeStore() {
    store = new TestStore(server);
    store.prepare("s");
    segments = store.segments;
    connections = new RedisConnections(server.settings());
    coordinators = new RedisCoordinatorStore(new Scripts(connections), new StoreMetrics());
    coordinators.uuid(); // known since the segment was loaded: a broker has one connection for both
  }

  @AfterEach
  void close() {
    if (buffer != null) {
      buffer.closeAsync();
    }
    threads.shutdownNow();
    connections.close();
    store.close();
    assertFalse(topic.calledWithLock);
  }

  private void open() throws Exception {
    open(null, 5);
  }

  private void open(EventFollower events, long pollMs) throws Exception {
    BrokerStore shared =
        new BrokerStore(segments, events, null, threads, pollMs, coordinators, pins, System::currentTimeMillis);
    buffer = new MetadataTransactionBuffer(topic, "s", TestStore.UUID, shared);
    topic.bufferLock = buffer.lock();
    buffer.checkIfTBRecoverCompletely().get(PATIENCE_MS, TimeUnit.MILLISECONDS);
  }

  private CompletableFuture<Position> append(String producer, TxnID bits) {
    return append(producer, bits, bits);
  }

  /** Sends an entry whose bits in the command may be others than those in its metadata. */
  private CompletableFuture<Position> append(String producer, TxnID command, TxnID bits) {
    MessageMetadata metadata =
        new MessageMetadata()
            .setProducerName(producer)
            .setSequenceId(0)
            .setPublishTime(1)
            .setTxnidMostBits(bits.getMostSigBits())
            .setTxnidLeastBits(bits.getLeastSigBits());
    ByteBuf payload = Unpooled.wrappedBuffer(new byte[] {1});
    ByteBuf entry =
        Commands.serializeMetadataAndPayload(Commands.ChecksumType.Crc32c, metadata, payload);
    CompletableFuture<Position> done = buffer.appendBufferToTxn(command, 0, entry);
    entry.release();
    done.whenComplete((position, error) -> topic.noteLock());
    return done;
  }

  private void assertRefused(String word, CompletableFuture<Position> done) {
    ExecutionException error =
        assertThrows(
            ExecutionException.class, () -> done.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
    assertInstanceOf(NotAllowedException.class, error.getCause());
    assertTrue(error.getMessage().contains(word), error.getMessage());
    assertEquals(0, topic.appends());
  }

  private static Position at(long entry) {
    return PositionFactory.create(1, entry);
  }

  private String highPosition() {
    try (Jedis jedis = server.client()) {
      return jedis.hget("{seg:s}:state", "high-position");
    }
  }

  @Test
  void aRefusalWaitsForTheReceiptsOfWhatItsProducerHasSentBefore() throws Exception {
    open();
    store.pin("s", WRITER);
    TxnID decided = new TxnID(5, 44); // it has no pin
    CompletableFuture<Position> first = append("p", TXN);
    await(() -> topic.appends() == 1);
    CompletableFuture<Position> second = append("p", decided);
    CompletableFuture<Position> another = append("q", decided);
    assertThrows(ExecutionException.class, () -> another.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
    CompletableFuture<Position> third = append("p", decided, TXN); // bits that contradict
    assertFalse(second.isDone() || third.isDone(), "Java's client would overlook it");
    topic.acknowledge(0);
    assertEquals(at(0), first.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
    for (CompletableFuture<Position> refused : List.of(second, third)) {
      ExecutionException error =
          assertThrows(
              ExecutionException.class, () -> refused.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
      assertInstanceOf(NotAllowedException.class, error.getCause());
    }
  }

  @Test
  void allProducersOfATransactionAreHeldAndDecidedTogether() throws Exception {
    open();
    store.pin("s", WRITER);
    append("standalone-0-1", TXN);
    await(() -> topic.appends() == 1);
    append("another", TXN);
    await(() -> topic.appends() == 2);
    topic.acknowledge(0);
    CompletableFuture<Position> last = CompletableFuture.completedFuture(topic.acknowledge(1));
    assertEquals(at(-1), buffer.getMaxReadPosition());
    assertEquals(1, buffer.getOngoingTxnCount());
    store.commit("s", WRITER, null);
    await(() -> buffer.getMaxReadPosition().equals(at(1)));
    assertFalse(buffer.isTxnAborted(TXN, last.join()));
  }

  @Test
  void aReceiptIsGivenWhenTheStoreKnowsHowFarTheSegmentGoes() throws Exception {
    open();
    store.pin("s", WRITER);
    CompletableFuture<Position> first = append("p", TXN);
    await(() -> topic.appends() == 1);
    server.stop();
    topic.acknowledge(0);
    CompletableFuture<Position> second = append("p", TXN);
    topic.acknowledge(1);
    assertFalse(first.isDone() || second.isDone());
    server.start();
    try (TestStore again = new TestStore(server)) { // the test's server keeps nothing
      again.prepare("s");
      assertEquals(at(0), first.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
      assertEquals(at(1), second.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
      assertEquals(new LogPosition(1, 1).padded(), highPosition());
    }
  }

  @Test
  void aTopicThatClosesGivesNoReceipt() throws Exception {
    open();
    store.pin("s", WRITER);
    CompletableFuture<Position> first = append("p", TXN);
    await(() -> topic.appends() == 1);
    server.stop();
    topic.acknowledge(0);
    buffer.closeAsync();
    assertThrows(ExecutionException.class, () -> first.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
    server.start();
  }

  @Test
  void oneProducersEntriesStayInOrderWhateverTheirTransactions() throws Exception {
    WriterId known = WriterId.ofPulsar(new TxnBits(5, 43), 4);
    CountDownLatch asked = new CountDownLatch(1);
    List<SegmentStore.Query> admission = List.of(new SegmentStore.Query(WRITER, null));
    segments =
        Intercepted.store(
            SegmentStore.class,
            store.segments,
            call -> {
              if (call.is("fates") && call.arguments()[1].equals(admission)) {
                asked.await();
              }
              return call.pass();
            });
    open();
    store.pin("s", WRITER);
    store.pin("s", known);
    append("p", new TxnID(5, 43));
    await(() -> topic.appends() == 1);
    append("p", TXN);
    append("p", new TxnID(5, 43)); // admitted already
    append("p", new TxnID(5, 44)); // never admitted
    assertEquals(1, topic.appends());
    asked.countDown();
    await(() -> topic.appends() == 3);
    List<Long> order =
        topic.sent.stream()
            .map(one -> Commands.parseMessageMetadata(one.entry()).getTxnidLeastBits())
            .toList();
    assertEquals(List.of(43L, 42L, 43L), order);
  }

  @Test
  void aPinThatThisBrokerHasJustMadeAdmitsTheFirstEntryAtOnce() throws Exception {
    open();
    store.pin("s", WRITER);
    pins.note("s", WRITER, PIN);
    append("p", TXN);
    assertEquals(1, topic.appends()); // nobody was asked
    assertEquals(1, buffer.getOngoingTxnCount());
    Position stored = topic.acknowledge(0);
    assertEquals(at(-1), buffer.getMaxReadPosition()); // it is held like any other
    store.abort("s", WRITER);
    await(() -> buffer.getOngoingTxnCount() == 0);
    assertTrue(buffer.isTxnAborted(TXN, stored));
  }

  @Test
  void aPinThatTheStoreHasLostIsNoticedAndItsRowsStayHidden() throws Exception {
    open();
    String nonce = "pulsar-5-" + coordinators.open(5) + "-a";
    TransactionId txn = coordinators.create(5, nonce, "", PATIENCE_MS).orElseThrow();
    TxnID shown = new TxnID(5, txn.counter());
    WriterId writer = WriterId.ofPulsar(new TxnBits(5, txn.counter()), 4);
    segments.gate("s");
    Map<String, byte[]> before = store.copy("seg:s");
    List<String> intents = List.of("W|s|" + writer.name());
    CoordinatorStore.Pin pin =
        coordinators
            .admitTogether(txn, nonce, PATIENCE_MS, intents, List.of("s"), writer)
            .get()
            .orElseThrow()
            .get(0);
    store.restore("seg:s", before);
    pins.note("s", writer, pin);
    append("p", shown);
    topic.acknowledge(0);
    StoreRolledBackException lost =
        assertThrows(StoreRolledBackException.class, () -> segments.gate("s"));
    assertTrue(lost.getMessage().contains("{seg:s}"), lost.getMessage());
    assertEquals(at(-1), buffer.getMaxReadPosition());
    assertEquals(1, buffer.getOngoingTxnCount());
  }

  @Test
  void aCoordinatorsDecisionIsSeenByItsEventAlone() throws Exception {
    open(new EventFollower(connections), NEVER_MS);
    segments.gate("s");
    String nonce = "pulsar-5-" + coordinators.open(5) + "-a";
    for (int number = 0; number < 3; number++) {
      TransactionId txn = coordinators.create(5, nonce + number, "", PATIENCE_MS).orElseThrow();
      WriterId writer = WriterId.ofPulsar(new TxnBits(5, txn.counter()), 4);
      List<String> intents = List.of("W|s|" + writer.name());
      List<String> all = List.of("s");
      coordinators
          .admitTogether(txn, nonce + number, PATIENCE_MS, intents, all, writer)
          .get()
          .orElseThrow();
      append("p", new TxnID(5, txn.counter()));
      int appends = number + 1;
      await(() -> topic.appends() == appends);
      Position stored = topic.acknowledge(number);
      Ending commit = new Ending(txn, nonce + number, writer, all, false);
      coordinators.endTogether(commit, intents, true).get().orElseThrow();
      await(() -> buffer.getMaxReadPosition().equals(stored)); // Pulsar has told nobody
    }
  }

  @Test
  void aPinThatIsKnownForLongIsAskedForAgain() {
    AtomicLong now = new AtomicLong();
    KnownPins known = new KnownPins(now::get);
    known.note("s", WRITER, PIN);
    now.set(4_999);
    assertEquals(Optional.of(PIN), known.take("s", WRITER));
    known.note("s", WRITER, PIN);
    now.addAndGet(5_000);
    assertEquals(Optional.empty(), known.take("s", WRITER));
  }

  /** Lets a store answer questions for fates as a test says. */
  private void interceptFates(Intercepted.Answers answers) {
    segments =
        Intercepted.store(
            SegmentStore.class,
            store.segments,
            call -> call.is("fates") ? answers.answer(call) : call.pass());
  }

  @Test
  void whatClientsSendWaitsForTheStore() throws Exception {
    AtomicBoolean away = new AtomicBoolean(true);
    AtomicInteger asked = new AtomicInteger();
    interceptFates(
        call -> {
          if (!away.get()) {
            return call.pass();
          }
          throw asked.incrementAndGet() % 2 == 0
              ? new StoreRolledBackException("it is older")
              : new StoreUnavailableException("no answer", null);
        });
    open();
    store.pin("s", WRITER);
    CompletableFuture<Position> done = append("p", TXN);
    await(() -> asked.get() >= 3);
    assertFalse(done.isDone());
    assertEquals(at(-1), buffer.getMaxReadPosition());
    away.set(false);
    await(() -> topic.appends() == 1);
    topic.acknowledge(0);
    assertEquals(at(0), done.get(PATIENCE_MS, TimeUnit.MILLISECONDS));
  }

  @Test
  void nothingIsAskedForWhatWaitsOnceTheTopicIsClosed() throws Exception {
    AtomicInteger asked = new AtomicInteger();
    CountDownLatch closed = new CountDownLatch(1);
    interceptFates(
        call -> {
          asked.incrementAndGet();
          closed.await();
          throw new StoreUnavailableException("no answer", null);
        });
    open();
    CompletableFuture<Position> done = append("p", TXN);
    await(() -> asked.get() == 1);
    buffer.closeAsync();
    closed.countDown();
    assertThrows(ExecutionException.class, done::get);
    threads.schedule(() -> {}, 3 * BufferParts.FIRST_PAUSE_MS, TimeUnit.MILLISECONDS).get();
    assertEquals(1, asked.get());
    assertEquals(0, topic.appends());
  }

  @Test
  void theLogsEndIsKnownBeforeAClientIsToldOfWhatItSendsAgain() throws Exception {
    store.pin("s", WRITER);
    topic.store(); // without a receipt: the broker has died
    AtomicBoolean failed = new AtomicBoolean();
    CoordinatorStore real = coordinators;
    coordinators =
        Intercepted.store(
            CoordinatorStore.class,
            real,
            call -> {
              if (call.is("raise") && failed.compareAndSet(false, true)) {
                throw new StoreUnavailableException("no answer", null);
              }
              return call.pass();
            });
    open();
    assertTrue(failed.get());
    assertEquals(new LogPosition(1, 0).padded(), highPosition());
    // Its decision names no positions, and whoever had the topic before knows of no entry.
    store.commit("s", WRITER, null);
    store.sweep("s", 1, 43, LogPosition.EARLIEST, LogPosition.EARLIEST);
    buffer.closeAsync();
    open();
    assertFalse(buffer.isTxnAborted(TXN, at(0)));
  }

  @Test
  void aSegmentWithoutClientsIsLoadedWithoutAWrite() throws Exception {
    store.pin("s", WriterId.ofName("ptxn-1-7-0-aa").orElseThrow());
    topic.store();
    open();
    assertNull(highPosition());
  }

  @Test
  void aTransactionWithoutAPinIsRefused() throws Exception {
    open();
    assertRefused("FENCED", append("p", TXN));
    assertEquals(at(-1), buffer.getMaxReadPosition());
  }

  @Test
  void nobodyWritesUnderAWritersNameWithTheBitsOfAClient() throws Exception {
    open();
    store.pin("s", WRITER);
    assertRefused("INVALID", append(WRITER.name(), TXN));
    assertRefused("INVALID", append("p", TXN, new TxnID(5, 43)));
  }

  @Test
  void withoutTheCoordinatorNoClientOfPulsarsWritesHere() throws Exception {
    coordinators = null;
    open();
    store.pin("s", WRITER);
    assertRefused("transactionMetadataStoreProviderClassName", append("p", TXN));
  }

  @Test
  void whatWasDecidedIsFilteredAfterTheTopicWasLoadedAgain() throws Exception {
    store.pin("s", WRITER);
    WriterId open = WriterId.ofPulsar(new TxnBits(9, 43), 4);
    store.pin("s", open);
    store.abort("s", WRITER);
    open();
    assertTrue(buffer.isTxnAborted(TXN, at(0)));
    assertFalse(buffer.isTxnAborted(new TxnID(9, 43), at(0)));
    assertEquals(1, buffer.getOngoingTxnCount());
    // Pulsar tells the topic of the decision: it looks at once.
    store.commit("s", open, null);
    buffer.commitTxn(new TxnID(9, 43), 0).get();
    await(() -> buffer.getOngoingTxnCount() == 0);
  }

  @Test
  void theFloorIsOfTheCoordinatorThatPulsarsShare() throws Exception {
    store.pin("s", WRITER);
    store.abort("s", WRITER);
    store.sweep("s", 1, 43, new LogPosition(1, 5), new LogPosition(1, 5));
    open();
    assertTrue(buffer.isTxnAborted(TXN, at(9)));
    assertTrue(buffer.isTxnAborted(new TxnID(5, 41), at(9))); // whose name nobody knows
    assertTrue(buffer.isTxnAborted(new TxnID(1, 42), at(9)));
    assertFalse(buffer.isTxnAborted(new TxnID(4, 42), at(9)));
    assertFalse(buffer.isTxnAborted(new TxnID(5, 43), at(9)));
  }
}
