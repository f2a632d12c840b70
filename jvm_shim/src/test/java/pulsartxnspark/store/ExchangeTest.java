package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.AbstractList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
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
    String sha1;
    try (Jedis jedis = server.client()) {
      sha1 = jedis.scriptLoad(text);
    }
    return connections.send(new Scripts.Script(text, sha1), List.of(), List.of());
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
  void whoeverAsksOneThatIsClosedHearsOfIt() {
    RedisConnections connections = new RedisConnections(server.settings());
    connections.close();
    assertTrue(failure(send(connections, "return {1}")).getMessage().contains("closed"));
  }
}
