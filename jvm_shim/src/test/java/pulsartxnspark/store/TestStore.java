package pulsartxnspark.store;

import com.google.protobuf.CodedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import redis.clients.jedis.Jedis;

/** A metadata store with what drivers and sweeps do in it, by the same scripts. */
public final class TestStore implements AutoCloseable {
  /** Uuid of the store. */
  public static final String UUID = "0123456789abcdef0123456789abcdef";

  /** Connections as the plug-in has them. */
  public final RedisConnections connections;

  /** What the plug-in asks. */
  public final RedisSegmentStore segments;

  /** What the plug-in has counted. */
  public final StoreMetrics metrics = new StoreMetrics();

  /** What the plug-in does with transactions. */
  public final RedisTransactionStore transactions;

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
    Scripts scripts = new Scripts(connections);
    segments = new RedisSegmentStore(scripts, metrics);
    transactions = new RedisTransactionStore(scripts, metrics);
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
    makeTag("seg:" + segment);
  }

  private void makeTag(String tag) {
    try (Jedis jedis = server.client()) {
      String key = "{" + tag + "}:birth";
      jedis.hset(key, "uuid", UUID);
      jedis.hset(key, "epoch", "1");
      jedis.hset(key, "seq", "1");
      jedis.hset(key, "registered", "1");
      jedis.hset("{meta}:tags", tag, "born");
    }
  }

  /** Opens a transaction of the coordinator 0 with an intent of one writer, and names the writer. */
  public WriterId begin(String nonce, long timeoutMs, String... segments) {
    try (Jedis jedis = server.client()) {
      if (!jedis.exists("{tc0}:birth")) {
        makeTag("tc0");
      }
    }
    List<String> keys = List.of("txn-counter", "nonces", "idx:txn-by-deadline", "idx:txn-open");
    List<String> args =
        List.of("{tc0}:txn:", "{tc0}:intents:", "0", nonce, "", "", "", "", "" + timeoutMs);
    List<Object> reply = writers.run(new Scripts.Call("txn_create", "tc0", keys, args));
    String key = String.valueOf(reply.get(2));
    WriterId writer =
        WriterId.ofName("ptxn-" + key.replace(':', '-') + "-0-" + nonce).orElseThrow();
    for (String segment : segments) {
      intend(writer.txn(), nonce, timeoutMs, "W|" + segment + "|" + writer.name());
    }
    return writer;
  }

  /** Extends a lease, and records an intent if one is given. */
  public void intend(TransactionId txn, String nonce, long timeoutMs, String... intents) {
    List<String> keys = List.of("txn:" + txn.key(), "intents:" + txn.key(), "idx:txn-by-deadline");
    List<String> args = new ArrayList<>(List.of(nonce, txn.key(), "" + timeoutMs));
    args.addAll(List.of(intents));
    Scripts.Call call = new Scripts.Call("txn_intend", "tc0", keys, args);
    if (!"OK".equals(code(writers.run(call)))) {
      throw new AssertionError("the transaction " + txn + " takes no intent");
    }
  }

  /** Commits a transaction as its owner, who dies before the decision is materialized. */
  public void end(TransactionId txn, String nonce, byte[] outcome) {
    String record = new String(outcome, StandardCharsets.US_ASCII); // short lengths, small numbers
    if (!Arrays.equals(record.getBytes(StandardCharsets.US_ASCII), outcome)) {
      throw new AssertionError("the outcome is no text, and cannot be sent as such");
    }
    List<String> keys =
        List.of("txn:" + txn.key(), "idx:txn-by-deadline", "idx:txn-open",
            "idx:txn-by-final-state", "idx:txn-unmaterialized", "events", "metrics");
    List<String> args = List.of(txn.key(), "COMMITTED", record, "nonce", nonce);
    String code = code(writers.run(new Scripts.Call("txn_end", "tc0", keys, args)));
    if (!"OK".equals(code)) {
      throw new AssertionError("the transaction " + txn + " is not committed: " + code);
    }
  }

  /** The record of a decision for one winner, with fields that a later version may add. */
  public static byte[] outcome(String segment, WriterId winner, LogPosition bound, LogPosition last) {
    return record(
        out -> {
          byte[] one =
              record(
                  inner -> {
                    inner.writeString(1, segment);
                    inner.writeString(2, winner.name());
                    if (bound != null) {
                      inner.writeByteArray(3, position(bound));
                    }
                    inner.writeByteArray(4, position(last));
                    inner.writeString(15, "of a later version");
                  });
          out.writeByteArray(1, one);
          out.writeString(15, "of a later version");
        });
  }

  /** The record of a decision that has seen a segment's tag. */
  public static byte[] outcomeThatHasSeen(String segment, long seq) {
    return record(
        out ->
            out.writeByteArray(
                2,
                record(
                    entry -> {
                      entry.writeString(1, "seg:" + segment);
                      entry.writeUInt64(2, seq);
                    })));
  }

  private static byte[] position(LogPosition position) {
    return record(
        out -> {
          out.writeSInt64(1, position.ledger());
          out.writeSInt64(2, position.entry());
        });
  }

  private interface Fields {
    void write(CodedOutputStream out) throws IOException;
  }

  private static byte[] record(Fields fields) {
    ByteArrayOutputStream record = new ByteArrayOutputStream();
    CodedOutputStream out = CodedOutputStream.newInstance(record);
    try {
      fields.write(out);
      out.flush();
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
    return record.toByteArray();
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

  /** Copies all keys of a tag. */
  public Map<String, byte[]> copy(String tag) {
    try (Jedis jedis = server.client()) {
      return jedis.keys("{" + tag + "}:*").stream()
          .collect(Collectors.toMap(key -> key, jedis::dump));
    }
  }

  /** Gives a tag the keys that it had before, and no others: what was written since is lost. */
  public void restore(String tag, Map<String, byte[]> keys) {
    try (Jedis jedis = server.client()) {
      jedis.keys("{" + tag + "}:*").forEach(jedis::del);
      keys.forEach((key, value) -> jedis.restore(key, 0, value));
    }
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
