package pulsartxnspark.store;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/**
 * Runs the store's Lua scripts, and remembers which state of each tag was seen: the same texts, and the
 * same checks of identity, epoch and history, as in {@code pulsar_txn_spark/store/redis/scripts.py}.
 *
 * <p>It never makes a store, and a tag only for {@link #runOrMake}: what is missing there was never
 * written, or is lost.
 */
public final class Scripts {
  private static final String SCHEMA_VERSION = "1";
  private static final String REGISTERED = "+";
  private static final String BORN = "born";
  private static final String CREATING = "creating";
  private static final Map<String, List<String>> INCLUDED =
      Map.of(
          "seg_materialize", List.of("_prelude", "_ranges"),
          "txn_intend", List.of("_prelude", "_open_txn"),
          "tag_create", List.of());
  private static final List<String> PRELUDE = List.of("_prelude");
  private static final Map<String, Script> LOADED = new ConcurrentHashMap<>();

  private final RedisConnections connections;
  private final Map<String, Map<String, Long>> seen = new HashMap<>();
  private Identity identity;

  /**
   * Makes a runner; asks nothing yet.
   *
   * @param connections to the store
   */
  public Scripts(RedisConnections connections) {
    this.connections = connections;
  }

  /**
   * What tells one store from another.
   *
   * @param uuid of the store
   * @param epoch of the store
   * @param coordinators how many there are
   */
  public record Identity(String uuid, String epoch, int coordinators) {}

  /**
   * One script call on one tag.
   *
   * @param script its name
   * @param tag whose keys it touches
   * @param keys after the tag's own record, without the tag
   * @param args after identity and states, texts or bytes
   */
  public record Call(String script, String tag, List<String> keys, List<?> args) {}

  private record Script(String text, String sha1) {}

  /**
   * Reads the store's identity; the first answer counts from then on.
   *
   * @return uuid and epoch
   * @throws StoreException if there is none, or no answer
   */
  public synchronized Identity identity() {
    if (identity == null) {
      List<String> record =
          connections.with(jedis -> jedis.hmget("{meta}:birth", "uuid", "epoch", "schema", "coordinators"));
      if (record.get(0) == null) {
        throw new StoreRolledBackException(
            "the metadata store has no identity: it is empty or was wiped. Nothing was read; let"
                + " pulsarTxnSparkStoreUrl name the store of the topics, or restore it");
      }
      if (!SCHEMA_VERSION.equals(record.get(2))) {
        throw new StoreRolledBackException(
            "the metadata store has schema version "
                + record.get(2)
                + ", expected "
                + SCHEMA_VERSION
                + ": use the jar of the version of pulsar_txn_spark that made the store");
      }
      identity = new Identity(record.get(0), record.get(1), Integer.parseInt(record.get(3)));
    }
    return identity;
  }

  /**
   * Runs a script.
   *
   * @param call what to run
   * @return its reply, or null if nothing was ever written under the tag
   * @throws StoreException if no answer came, or the tag is lost, another store's or too old
   */
  public List<Object> run(Call call) {
    List<Object> reply = runRaw(call);
    return reply == null ? null : reply.stream().map(Scripts::decoded).toList();
  }

  /**
   * Runs a script, like {@link #run}, and leaves the bulk strings of its reply as bytes; but not its
   * first two values, the tag's state and the code.
   *
   * @param call what to run
   * @return its reply, or null if nothing was ever written under the tag
   * @throws StoreException as {@link #run} does
   */
  public List<Object> runRaw(Call call) {
    return run(call, false);
  }

  /**
   * Runs a script, like {@link #run}, and makes the tag if nothing was ever written under it.
   *
   * @param call what to run
   * @return its reply
   * @throws StoreException as {@link #run} does
   */
  public List<Object> runOrMake(Call call) {
    List<Object> reply = run(call);
    if (reply != null) {
      return reply;
    }
    tagState(call.tag(), CREATING);
    Call create = new Call("tag_create", call.tag(), List.of(), List.of());
    List<Object> made = ask(create, identity(), Map.of(), false);
    if (!"OK".equals(made.get(1))) {
      throw otherStore(call.tag(), made);
    }
    tagState(call.tag(), BORN);
    return run(call);
  }

  /**
   * Tells which state of a tag was seen last.
   *
   * @param tag which one
   * @return by history, the highest number; one, but for a tag that was not asked since others were
   *     heard of
   */
  public List<Seen> seen(String tag) {
    return seenOf(tag).entrySet().stream().map(one -> new Seen(one.getValue(), one.getKey())).toList();
  }

  /**
   * Refuses from now on any tag whose past lacks a state that others have seen of it.
   *
   * @param states by tag
   */
  public synchronized void raiseSeen(Map<String, Seen> states) {
    states.forEach(
        (tag, state) ->
            seen.computeIfAbsent(tag, of -> new HashMap<>())
                .merge(state.history(), state.seq(), Math::max));
  }

  private static Object decoded(Object value) {
    if (value instanceof List<?> list) {
      return list.stream().map(Scripts::decoded).toList();
    }
    return value instanceof byte[] bytes ? new String(bytes, StandardCharsets.UTF_8) : value;
  }

  private List<Object> run(Call call, boolean registered) {
    Identity own = identity();
    Map<String, Long> compared = seenOf(call.tag());
    List<Object> reply = ask(call, own, compared, registered);
    switch (String.valueOf(reply.get(1))) {
      case "NO_TAG_RECORD" -> {
        if (compared.isEmpty() && !BORN.equals(tagState(call.tag(), ""))) {
          return null;
        }
        // It may have been initialized between the two looks.
        reply = ask(call, own, seenOf(call.tag()), registered);
        if ("NO_TAG_RECORD".equals(reply.get(1))) {
          throw new StoreRolledBackException(
              "tag {"
                  + call.tag()
                  + "} is gone, although the metadata store knows that it was there: keys were"
                  + " deleted or evicted. Nothing was read; restore the store");
        }
        return run(call, registered);
      }
      case "UNREGISTERED" -> {
        if (registered) {
          throw new IllegalStateException("tag {" + call.tag() + "} does not take its registration");
        }
        tagState(call.tag(), BORN);
        return run(call, true);
      }
      case "OTHER_STORE" -> throw otherStore(call.tag(), reply);
      case "BEHIND", "OVERTAKEN" -> throw new StoreRolledBackException(
          "tag {"
              + call.tag()
              + "} is at step "
              + Seen.of(reply.get(0)).seq()
              + ", and a state that was seen before ("
              + compared
              + ") is not in its past: the metadata store lost acknowledged writes. Nothing was"
              + " read; restore the newest state of the store");
      default -> {
        note(call.tag(), compared, Seen.of(reply.get(0)));
        return reply;
      }
    }
  }

  private StoreRolledBackException otherStore(String tag, List<Object> reply) {
    Identity own = identity();
    return new StoreRolledBackException(
        "tag {"
            + tag
            + "} belongs to store "
            + decoded(reply.get(2))
            + " epoch "
            + decoded(reply.get(3))
            + ", expected "
            + own.uuid()
            + " epoch "
            + own.epoch()
            + ": part of the metadata store was replaced. Nothing was read; restore the store");
  }

  private String tagState(String tag, String state) {
    Call call = new Call("tag_state", "meta", List.of("tags"), List.of(tag, state));
    Identity own = identity();
    List<Object> reply = ask(call, own, seenOf("meta"), true);
    if (!"OK".equals(reply.get(1))) {
      throw new StoreRolledBackException(
          "the metadata store's own record does not answer as expected ("
              + reply.get(1)
              + "): it was wiped, replaced or rolled back while in use. Nothing was read; restore"
              + " the store");
    }
    note("meta", Map.of(), Seen.of(reply.get(0)));
    return String.valueOf(decoded(reply.get(2)));
  }

  private List<Object> ask(Call call, Identity own, Map<String, Long> states, boolean registered) {
    Script script = LOADED.computeIfAbsent(call.script(), Scripts::load);
    String prefix = "{" + call.tag() + "}:";
    List<String> keys = new ArrayList<>(List.of(prefix + "birth"));
    call.keys().forEach(key -> keys.add(prefix + key));
    List<String> known = new ArrayList<>(registered ? List.of(REGISTERED) : List.of());
    states.forEach((history, seq) -> known.add(seq + " " + (history.isEmpty() ? "-" : history)));
    List<Object> args = new ArrayList<>(List.of(own.uuid(), own.epoch(), String.join(" ", known)));
    args.addAll(call.args());
    return connections.with(
        jedis -> {
          Object reply;
          try {
            reply = jedis.evalsha(bytes(script.sha1()), bytes(keys), bytes(args));
          } catch (JedisNoScriptException unknown) {
            reply = jedis.eval(bytes(script.text()), bytes(keys), bytes(args));
          }
          List<Object> values = new ArrayList<>((List<?>) reply);
          values.set(0, decoded(values.get(0)));
          values.set(1, decoded(values.get(1)));
          return values;
        });
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static List<byte[]> bytes(List<?> values) {
    return values.stream()
        .map(value -> value instanceof byte[] raw ? raw : bytes(String.valueOf(value)))
        .toList();
  }

  private synchronized Map<String, Long> seenOf(String tag) {
    return Map.copyOf(seen.getOrDefault(tag, Map.of()));
  }

  /** The state that a reply shows contains all that were compared for it. */
  private synchronized void note(String tag, Map<String, Long> compared, Seen state) {
    Map<String, Long> known = seen.computeIfAbsent(tag, of -> new HashMap<>());
    compared.forEach((history, seq) -> known.remove(history, seq)); // unless another thread has seen more since
    known.merge(state.history(), state.seq(), Math::max);
  }

  private static Script load(String name) {
    StringBuilder text = new StringBuilder();
    for (String part : INCLUDED.getOrDefault(name, PRELUDE)) {
      text.append(resource(part));
    }
    text.append(resource(name));
    try {
      MessageDigest sha1 = MessageDigest.getInstance("SHA-1");
      byte[] digest = sha1.digest(text.toString().getBytes(StandardCharsets.UTF_8));
      return new Script(text.toString(), HexFormat.of().formatHex(digest));
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException("every Java has SHA-1", error);
    }
  }

  private static String resource(String name) {
    try (InputStream file = Scripts.class.getResourceAsStream("/pulsartxnspark/lua/" + name + ".lua")) {
      if (file == null) {
        throw new IllegalStateException("the jar has no script " + name);
      }
      return new String(file.readAllBytes(), StandardCharsets.UTF_8);
    } catch (IOException error) {
      throw new IllegalStateException("the jar cannot be read", error);
    }
  }
}
