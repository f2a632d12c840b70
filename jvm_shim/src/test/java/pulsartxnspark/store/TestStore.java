package pulsartxnspark.store;

import java.util.List;
import redis.clients.jedis.Jedis;

/** A metadata store with what drivers and sweeps do in it, by the same scripts. */
public final class TestStore implements AutoCloseable {
  /** Uuid of the store. */
  public static final String UUID = "0123456789abcdef0123456789abcdef";

  /** Connections as the plug-in has them. */
  public final RedisConnections connections;

  /** What the plug-in asks. */
  public final RedisSegmentStore segments;

  private final RedisServer server;
  private final Scripts writers;

  /** Empties a server, and makes a store there. */
  public TestStore(RedisServer server) {
    this.server = server;
    try (Jedis jedis = server.client()) {
      jedis.flushAll();
    }
    create();
    connections = new RedisConnections(server.settings());
    segments = new RedisSegmentStore(new Scripts(connections));
    writers = new Scripts(connections);
  }

  private void create() {
    try (Jedis jedis = server.client()) {
      for (String[] field : new String[][] {{"uuid", UUID}, {"epoch", "1"}, {"seq", "1"},
          {"schema", "1"}, {"coordinators", "4"}, {"registered", "1"}}) {
        jedis.hset("{meta}:birth", field[0], field[1]);
      }
    }
  }

  /** Makes the tag of a segment. */
  public void prepare(String segment) {
    try (Jedis jedis = server.client()) {
      String key = "{seg:" + segment + "}:birth";
      jedis.hset(key, "uuid", UUID);
      jedis.hset(key, "epoch", "1");
      jedis.hset(key, "seq", "1");
      jedis.hset(key, "registered", "1");
      jedis.hset("{meta}:tags", "seg:" + segment, "born");
    }
  }

  /** Pins a writer, as it does before its first row. */
  public String pin(String segment, WriterId writer) {
    List<String> keys = List.of("pins", "pin-order", "dropped", "closed", "resolved", "state");
    List<String> args =
        List.of(
            writer.name(),
            writer.tc() + ":" + writer.counter(),
            "" + writer.tc(),
            "" + writer.counter(),
            LogPosition.EARLIEST.padded());
    return code(writers.run(new Scripts.Call("seg_pin", "seg:" + segment, keys, args)));
  }

  /** Materializes the decision over one writer: it wins (null), or keeps what lies up to a position. */
  public void decide(String segment, WriterId writer, String state, LogPosition keptTo, LogPosition high) {
    List<String> keys =
        List.of("pins", "pin-order", "dropped", "closed", "resolved", "state", "events",
            "resolved-order:" + writer.tc(), "dropped-from");
    List<String> args =
        List.of(
            writer.tc() + ":" + writer.counter(),
            "" + writer.tc(),
            "" + writer.counter(),
            state,
            high == null ? "" : high.padded(),
            "1",
            writer.name(),
            keptTo == null ? "WON" : keptTo.padded(),
            "0");
    writers.run(new Scripts.Call("seg_materialize", "seg:" + segment, keys, args));
  }

  /** Commits a transaction with its one writer as the winner. */
  public void commit(String segment, WriterId writer, LogPosition high) {
    decide(segment, writer, "COMMITTED", null, high);
  }

  /** Aborts a transaction with its one writer. */
  public void abort(String segment, WriterId writer) {
    decide(segment, writer, "ABORTED", LogPosition.EARLIEST, null);
  }

  /** Closes a segment for what is older, and groups its dropped writers or raises its floor. */
  public void sweep(String segment, int tc, long below, LogPosition confirmed, LogPosition deleted) {
    List<String> closing =
        List.of("pins", "closed", "resolved", "subscriptions", "resolved-order:" + tc);
    String tag = "seg:" + segment;
    writers.run(
        new Scripts.Call(
            "seg_close", tag, closing, List.of("" + tc, "" + below, "{" + tag + "}:pending-acks:", "512")));
    List<String> keys =
        List.of("closed", "floor", "floor-pair", "dropped", "state", "dropped-groups",
            "dropped-floors", "dropped-from");
    List<String> args =
        List.of("" + tc, "" + below, confirmed.padded(), deleted.padded(),
            "{" + tag + "}:dropped:", "1", "0", "1024");
    writers.run(new Scripts.Call("seg_floor", tag, keys, args));
  }

  private static String code(List<Object> reply) {
    return String.valueOf(reply.get(1));
  }

  /** Opens a connection to the server. */
  public Jedis client() {
    return server.client();
  }

  @Override
  public void close() {
    connections.close();
  }
}
