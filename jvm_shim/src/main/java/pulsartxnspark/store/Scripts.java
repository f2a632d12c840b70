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
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/**
 * Runs the store's Lua scripts, and remembers which state of each tag was seen. They are the same
 * texts, with the same checks of identity, epoch and history, as in {@code
 * pulsar_txn_spark/store/redis/scripts.py}.
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
          "txn_op", List.of("_prelude", "_open_txn"),
          "tag_create", List.of());
  private static final List<String> PRELUDE = List.of("_prelude");
  // Steps of several tags that one script takes, where one server holds all tags: as in scripts.py.
  private static final Map<String, List<String>> MERGED =
      Map.of(
          "txn_admit", List.of("txn_intend", "seg_pin"),
          "txn_commit",
              List.of(
                  "txn_op", "txn_end", "txn_read", "seg_materialize", "txn_forget_ops", "txn_ended"));
  private static final Set<Object> FAULTS =
      Set.of("NO_TAG_RECORD", "UNREGISTERED", "OTHER_STORE", "BEHIND", "OVERTAKEN");
  private static final int MERGED_AT_ONCE = 160; // calls of a merged script: all others wait for it
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

  /** A script as the server knows it. */
  record Script(String text, String sha1) {}

  /**
   * Reads the store's identity; the first answer counts from then on.
   *
   * @return uuid and epoch
   * @throws StoreException if there is none, or no answer
   */
  public synchronized Identity identity() {
    if (identity == null) {
      List<String> record =
          connections.with(
              bytes("{meta}:birth"),
              jedis -> jedis.hmget("{meta}:birth", "uuid", "epoch", "schema", "coordinators"));
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
   * Runs scripts, like {@link #run}, all of them at once. Not for a thread that brings replies.
   *
   * @param calls what to run; each may be repeated
   * @return their replies, in the same order
   * @throws StoreException as {@link #run} does
   */
  public List<List<Object>> runAll(List<Call> calls) {
    List<CompletableFuture<Optional<List<Object>>>> sent = calls.stream().map(this::step).toList();
    List<List<Object>> replies = new ArrayList<>();
    for (int i = 0; i < calls.size(); i++) {
      Optional<List<Object>> reply =
          sent.get(i).exceptionally(lost -> Optional.empty()).join();
      // No reply, or its tag is not as it is known: by itself it tells why.
      replies.add(
          reply.isPresent()
              ? reply.get().stream().map(Scripts::decoded).toList()
              : run(calls.get(i)));
    }
    return replies;
  }

  /**
   * Tells whether one server holds all tags.
   *
   * @return whether it is so; else the tags of a cluster may go back one without another
   */
  public boolean oneServer() {
    return connections.oneServer();
  }

  /**
   * Runs a script, like {@link #run}, and leaves the bulk strings of its reply as bytes. Its first two
   * values are not: the tag's state and the code.
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
    return seenOf(tag).entrySet().stream().map(entry -> new Seen(entry.getValue(), entry.getKey())).toList();
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

  /**
   * Takes a step together with those of other callers, or several steps of several tags as one;
   * returns at once. In a cluster no server has all tags: there the steps are taken one by one.
   *
   * @param merged name of the merged script; not used for a single call
   * @param calls the step, or the steps
   * @return the replies of the scripts, up to the first behind which nothing may follow; their bulk
   *     strings are bytes, but for the first two. Nothing if a tag is not as it is known, or not
   *     there: nothing was written then, and {@link #run} tells why. A lost reply is an error. Of
   *     steps that are taken one by one, this is so for the first; the replies end before another
   */
  public CompletableFuture<Optional<List<List<Object>>>> together(String merged, List<Call> calls) {
    if (calls.size() > MERGED_AT_ONCE) {
      return CompletableFuture.completedFuture(Optional.empty());
    }
    if (calls.size() > 1 && !connections.oneServer()) {
      return SingleSteps.take(calls, this::step);
    }
    Identity own = identity();
    boolean single = calls.size() == 1;
    List<Map<String, Long>> compared = new ArrayList<>();
    List<byte[]> keys = new ArrayList<>();
    List<byte[]> args = new ArrayList<>();
    if (!single) {
      args.add(bytes("" + calls.size()));
    }
    for (Call call : calls) {
      Map<String, Long> states = seenOf(call.tag());
      List<byte[]> ownKeys = keys(call);
      List<byte[]> ownArgs = args(call, own, states, false);
      if (!single) {
        args.addAll(bytes(List.of(call.script(), ownKeys.size(), ownArgs.size())));
      }
      compared.add(states);
      keys.addAll(ownKeys);
      args.addAll(ownArgs);
    }
    Script script = script(single ? calls.get(0).script() : merged);
    return connections
        .send(script, keys, args)
        .thenApply(reply -> single ? Optional.of(List.of(reply)) : replies(reply))
        .thenApply(taken -> taken.filter(replies -> noted(calls, compared, replies)));
  }

  private CompletableFuture<Optional<List<Object>>> step(Call call) {
    return together("", List.of(call)).thenApply(taken -> taken.map(replies -> replies.get(0)));
  }

  private static Optional<List<List<Object>>> replies(List<Object> reply) {
    if (!"OK".equals(decoded(reply.get(0)))) {
      return Optional.empty();
    }
    List<List<Object>> replies = new ArrayList<>();
    reply.subList(1, reply.size()).forEach(item -> replies.add(new ArrayList<>((List<?>) item)));
    return Optional.of(replies);
  }

  /** Notes the states that replies show; false if one shows that its tag is not as it is known. */
  private boolean noted(
      List<Call> calls, List<Map<String, Long>> compared, List<List<Object>> replies) {
    for (int i = 0; i < replies.size(); i++) {
      List<Object> reply = replies.get(i);
      reply.set(0, decoded(reply.get(0)));
      reply.set(1, decoded(reply.get(1)));
      if (FAULTS.contains(reply.get(1))) {
        return false;
      }
      note(calls.get(i).tag(), compared.get(i), Seen.of(reply.get(0)));
    }
    return true;
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
        // It may have been initialized between the two requests.
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
    Script script = script(call.script());
    List<byte[]> keys = keys(call);
    List<byte[]> args = args(call, own, states, registered);
    return connections.with(
        keys.get(0),
        jedis -> {
          Object reply;
          try {
            reply = jedis.evalsha(bytes(script.sha1()), keys, args);
          } catch (JedisNoScriptException unknown) {
            reply = jedis.eval(bytes(script.text()), keys, args);
          }
          List<Object> values = new ArrayList<>((List<?>) reply);
          values.set(0, decoded(values.get(0)));
          values.set(1, decoded(values.get(1)));
          return values;
        });
  }

  private static List<byte[]> keys(Call call) {
    String prefix = "{" + call.tag() + "}:";
    List<byte[]> keys = new ArrayList<>(List.of(bytes(prefix + "birth")));
    call.keys().forEach(key -> keys.add(bytes(prefix + key)));
    return keys;
  }

  private static List<byte[]> args(
      Call call, Identity own, Map<String, Long> states, boolean registered) {
    List<String> known = new ArrayList<>(registered ? List.of(REGISTERED) : List.of());
    states.forEach((history, seq) -> known.add(seq + " " + (history.isEmpty() ? "-" : history)));
    List<byte[]> args =
        new ArrayList<>(bytes(List.of(own.uuid(), own.epoch(), String.join(" ", known))));
    args.addAll(bytes(call.args()));
    return args;
  }

  static byte[] bytes(String text) {
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

  /** Gives a script's text and digest. */
  static Script script(String name) {
    return LOADED.computeIfAbsent(name, Scripts::load);
  }

  private static Script load(String name) {
    String text = MERGED.containsKey(name) ? merged(MERGED.get(name)) : text(name);
    try {
      MessageDigest sha1 = MessageDigest.getInstance("SHA-1");
      byte[] digest = sha1.digest(text.getBytes(StandardCharsets.UTF_8));
      return new Script(text, HexFormat.of().formatHex(digest));
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException("every Java has SHA-1", error);
    }
  }

  private static String text(String name) {
    StringBuilder text = new StringBuilder();
    INCLUDED.getOrDefault(name, PRELUDE).forEach(part -> text.append(resource(part)));
    return text.append(resource(name)).toString();
  }

  /** Makes a script in which each of several scripts is a function. */
  private static String merged(List<String> names) {
    StringBuilder text = new StringBuilder(resource("_once")).append("local scripts = {}\n");
    for (String name : names) {
      text.append("scripts.").append(name).append(" = function(KEYS, ARGV)\n");
      text.append(text(name)).append("\nend\n");
    }
    text.append("local function identity(KEYS, ARGV)\n").append(resource("_without_writes"));
    return text.append(resource("_prelude")).append("\nend\n").append(resource("_merged")).toString();
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
