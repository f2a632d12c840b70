package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.mockito.ArgumentMatchers.any;
import static org.mockito.ArgumentMatchers.anyLong;
import static org.mockito.Mockito.doAnswer;
import static org.mockito.Mockito.doReturn;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.spy;

import java.util.AbstractList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisDataException;

/** Every request gets an answer, whatever becomes of those that share its round trip. */
class ExchangeTest extends StoreTest {
  private static final int MANY = 500; // more than one round trip takes
  private static final long PATIENCE_S = 20;
  private static final String UNKNOWN = "0123456789012345678901234567890123456789"; // no script's

  private CompletableFuture<List<Object>> send(String text) {
    return send(store.connections, text);
  }

  private static CompletableFuture<List<Object>> send(RedisConnections connections, String text) {
    return connections.send(new Scripts.Script(text, sha1(text)), List.of(), List.of());
  }

  private static String sha1(String text) {
    try (Jedis jedis = server.client()) {
      return jedis.scriptLoad(text);
    }
  }

  private static Throwable failure(CompletableFuture<List<Object>> reply) {
    return assertThrows(ExecutionException.class, () -> reply.get(PATIENCE_S, TimeUnit.SECONDS))
        .getCause();
  }

  private static List<Object> get(CompletableFuture<List<Object>> reply) throws Exception {
    return reply.get(PATIENCE_S, TimeUnit.SECONDS);
  }

  @Test
  void everyRequestOfManyGetsItsOwnReply() throws Exception {
    List<CompletableFuture<List<Object>>> replies =
        Stream.iterate(0, n -> n + 1).limit(MANY).map(n -> send("return {" + n + "}")).toList();
    for (int n = 0; n < MANY; n++) {
      assertEquals(List.of((long) n), get(replies.get(n)));
    }
  }

  @Test
  void aScriptThatTheServerHasForgottenIsSentWhole() throws Exception {
    assertEquals(List.of(1L), get(send("return {1}")));
    try (Jedis jedis = server.client()) {
      jedis.scriptFlush();
    }
    Scripts.Script forgotten = new Scripts.Script("return {2}", UNKNOWN);
    assertEquals(
        List.of(2L), get(store.connections.send(forgotten, List.of(), List.of())));
  }

  @Test
  void aRequestThatFailsTakesNoOtherWithIt() throws Exception {
    CompletableFuture<List<Object>> refused = send("return redis.error_reply('no')");
    CompletableFuture<List<Object>> odd = send("return 'no list'");
    CompletableFuture<List<Object>> good = send("return {3}");
    assertInstanceOf(JedisDataException.class, failure(refused));
    assertInstanceOf(ClassCastException.class, failure(odd));
    assertEquals(List.of(3L), get(good));
    for (int n = 0; n < 4; n++) { // more than there are connections
      assertInstanceOf(ClassCastException.class, failure(send("return 'no list'")));
    }
    assertEquals(List.of(4L), get(send("return {4}")));
  }

  @Test
  void aRequestThatCannotBeSentStopsNoOther() throws Exception {
    List<byte[]> unsendable =
        new AbstractList<>() {
          @Override
          public byte[] get(int index) {
            throw new OutOfMemoryError("a test's");
          }

          @Override
          public int size() {
            return 1;
          }
        };
    for (int n = 0; n < 4; n++) { // more than there are connections
      Scripts.Script any = new Scripts.Script("return {1}", UNKNOWN);
      assertInstanceOf(
          OutOfMemoryError.class, failure(store.connections.send(any, List.of(), unsendable)));
    }
    assertEquals(List.of(1L), get(send("return {1}")));
  }

  @Test
  void whoeverAsksAServerThatIsAwayHearsOfIt() throws Exception {
    assertEquals(List.of(1L), get(send("return {1}")));
    Scripts.Script any = new Scripts.Script("return {1}", UNKNOWN);
    RedisConnections connections = store.connections;
    server.stop();
    try {
      assertInstanceOf(
          StoreUnavailableException.class,
          failure(connections.send(any, List.of(), List.of())));
    } finally {
      server.start();
    }
    // Each of two connections may be an old one, once.
    CompletableFuture<List<Object>> reply = connections.send(any, List.of(), List.of());
    for (int late = 0; late < 2 && reply.handle((found, lost) -> lost != null).join(); late++) {
      reply = connections.send(any, List.of(), List.of());
    }
    assertEquals(List.of(1L), get(reply));
  }

  @Test
  void aServerThatIsNoPrimaryAnyMoreIsNotAskedOnAnOpenConnection() throws Exception {
    String write = "redis.call('DEL', 'none') return {1}";
    assertEquals(List.of(1L), get(send(write)));
    try (Jedis jedis = server.client()) {
      jedis.replicaof("127.0.0.1", 1);
      try {
        int old = 0;
        for (int n = 0; n < 6; n++) {
          Throwable lost = failure(send(write));
          assertInstanceOf(StoreUnavailableException.class, lost);
          old += lost.getMessage().contains("has the role slave") ? 0 : 1;
        }
        assertTrue(old <= 2, "each of two connections may be an old one, once: " + old);
      } finally {
        jedis.replicaofNoOne();
      }
    }
    assertEquals(List.of(1L), get(send(write)));
  }

  private static Exchange.Request request(String text, List<byte[]> args) {
    return new Exchange.Request(new Scripts.Script(text, UNKNOWN), List.of(), args);
  }

  @Test
  void aRequestWaitsNoLongerThanTheStoresTimeout() {
    ScheduledExecutorService alarms = mock(ScheduledExecutorService.class);
    BlockingQueue<Runnable> due = new LinkedBlockingQueue<>();
    Thread test = Thread.currentThread();
    doAnswer(
            call -> {
              if (Thread.currentThread() == test) { // else of a connection that is being made
                due.add(call.getArgument(0));
                assertEquals(60_000L, (long) call.getArgument(1));
              }
              return mock(ScheduledFuture.class);
            })
        .when(alarms)
        .schedule(any(Runnable.class), anyLong(), any());
    String url = "redis://127.0.0.1:" + server.port();
    StoreSettings patient = StoreSettings.of(url, "", "", "", 60_000).accepting(true, false);
    server.freeze();
    try (RedisConnections connections = new RedisConnections(patient, alarms)) {
      Scripts.Script any = new Scripts.Script("return {1}", UNKNOWN);
      CompletableFuture<List<Object>> reply = connections.send(any, List.of(), List.of());
      due.remove().run(); // before the server has let anybody in
      Throwable late = failure(reply);
      assertInstanceOf(StoreUnavailableException.class, late);
      assertTrue(late.getMessage().contains("within 60000 ms"), late.getMessage());
    } finally {
      server.thaw();
    }
  }

  @Test
  void aRequestWhoseTimeIsOverWhileItWaitsIsNeverSent() throws Exception {
    HostAndPort address = new HostAndPort("127.0.0.1", server.port());
    RedisConnections connections = spy(store.connections);
    Semaphore opening = new Semaphore(0);
    Semaphore goesOn = new Semaphore(0);
    doAnswer(
            call -> {
              opening.release();
              goesOn.acquire();
              return store.connections.open(address);
            })
        .when(connections)
        .open(any(HostAndPort.class));
    try (Exchange exchange = new Exchange(connections, address)) {
      for (int thread = 0; thread < 2; thread++) {
        exchange.send(request("return {1}", List.of()));
        opening.acquire();
      }
      String set = "redis.call('SET', 'sent', '1') return {1}";
      Exchange.Request late =
          new Exchange.Request(new Scripts.Script(set, sha1(set)), List.of(), List.of());
      Exchange.Request last = request("return {redis.call('EXISTS', 'sent')}", List.of());
      exchange.send(late);
      exchange.send(last);
      late.reply().completeExceptionally(new StoreUnavailableException("late", null));
      goesOn.release(); // one of the two: it takes them in their order
      assertEquals(List.of(0L), get(last.reply()));
      goesOn.release();
    }
  }

  /** Waits until so many threads of exchanges write to their sockets. */
  private static void awaitWriters(int threads) {
    while (Thread.getAllStackTraces().entrySet().stream()
            .filter(one -> one.getKey().getName().startsWith("pulsar-txn-spark-exchange"))
            .filter(one -> Stream.of(one.getValue()).anyMatch(ExchangeTest::isWrite))
            .count()
        < threads) {
      Thread.onSpinWait();
    }
  }

  private static boolean isWrite(StackTraceElement frame) {
    return frame.getMethodName().equals("implWrite");
  }

  @Test
  void aConnectionThatBreaksInTheMiddleOfARequestEndsNoThread() {
    HostAndPort address = new HostAndPort("127.0.0.1", server.port());
    RedisConnections connections = spy(store.connections);
    doReturn(store.connections.open(address))
        .doReturn(store.connections.open(address))
        .doThrow(new StoreUnavailableException("away", null))
        .when(connections)
        .open(any(HostAndPort.class));
    doReturn(mock(ScheduledFuture.class)).when(connections).whenTimeIsOver(any());
    List<byte[]> more = Collections.nCopies(16_000, new byte[4_000]); // than any buffers hold
    server.freeze();
    try (Exchange exchange = new Exchange(connections, address)) {
      List<Exchange.Request> broken = List.of(request("return {1}", more), request("return {2}", more));
      exchange.send(broken.get(0));
      awaitWriters(1);
      exchange.send(broken.get(1));
      awaitWriters(2);
      server.stop();
      for (Exchange.Request one : broken) {
        assertInstanceOf(StoreUnavailableException.class, failure(one.reply()));
      }
      Exchange.Request next = request("return {1}", List.of());
      exchange.send(next);
      assertEquals("away", failure(next.reply()).getMessage());
    } finally {
      server.start();
    }
  }

  @Test
  void aServerThatStandsStillHoldsNobodyForGood() throws Exception {
    HostAndPort address = new HostAndPort("127.0.0.1", server.port());
    RedisConnections connections = spy(store.connections);
    BlockingQueue<Runnable> due = new LinkedBlockingQueue<>();
    doAnswer(
            call -> {
              due.add(call.getArgument(0));
              return mock(ScheduledFuture.class);
            })
        .when(connections)
        .whenTimeIsOver(any());
    doReturn(store.connections.open(address))
        .doReturn(store.connections.open(address))
        .doThrow(new StoreUnavailableException("away", null))
        .when(connections)
        .open(any(HostAndPort.class));
    List<byte[]> more = Collections.nCopies(16_000, new byte[4_000]); // than any buffers hold
    server.freeze();
    try (Exchange exchange = new Exchange(connections, address)) {
      for (int thread = 0; thread < 2; thread++) {
        Exchange.Request stuck = request("return {1}", more);
        exchange.send(stuck);
        Runnable cut = due.take();
        awaitWriters(1);
        cut.run();
        assertInstanceOf(StoreUnavailableException.class, failure(stuck.reply()));
      }
      Exchange.Request next = request("return {1}", List.of());
      exchange.send(next);
      assertEquals("away", failure(next.reply()).getMessage());
    } finally {
      server.thaw();
    }
  }

  @Test
  void whoeverAsksOneThatIsClosedHearsOfIt() {
    RedisConnections connections = new RedisConnections(server.settings());
    connections.close();
    assertTrue(failure(send(connections, "return {1}")).getMessage().contains("closed"));
  }
}
