package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** The coordinator's steps on Redis: the scripts that drivers and clients run, and a few more. */
public final class RedisCoordinatorStore implements CoordinatorStore {
  private static final int LISTED_AT_ONCE = 1_000; // in one step: it must not block the server
  private static final String PULSAR_INDEX = "idx:txn-pulsar";

  private final Scripts scripts;
  private final StoreMetrics metrics;
  private final RedisTransactionStore transactions;

  /**
   * Makes a store.
   *
   * @param scripts that it runs
   * @param metrics what it counts into
   */
  public RedisCoordinatorStore(Scripts scripts, StoreMetrics metrics) {
    this.scripts = scripts;
    this.metrics = metrics;
    this.transactions = new RedisTransactionStore(scripts, metrics);
  }

  @Override
  public int coordinators() {
    return scripts.identity().coordinators();
  }

  @Override
  public String uuid() {
    return scripts.identity().uuid();
  }

  private int tcOf(int pulsarTc) {
    return pulsarTc % coordinators();
  }

  private String tagOf(int pulsarTc) {
    return "tc" + tcOf(pulsarTc);
  }

  @Override
  public long open(int pulsarTc) {
    List<Object> reply =
        scripts.runOrMake(
            new Scripts.Call(
                "tc_open", tagOf(pulsarTc), List.of("pulsar-epochs"), List.of("" + pulsarTc)));
    return RedisTransactionStore.number(reply.get(2));
  }

  @Override
  public Optional<TransactionId> create(int pulsarTc, String nonce, String owner, long timeoutMs) {
    String tag = tagOf(pulsarTc);
    List<String> keys =
        List.of(
            "txn-counter",
            "nonces",
            "idx:txn-by-deadline",
            "idx:txn-open",
            PULSAR_INDEX,
            "pulsar-epochs");
    List<String> args =
        List.of(
            "{" + tag + "}:txn:",
            "{" + tag + "}:intents:",
            "" + tcOf(pulsarTc),
            nonce,
            owner,
            "", // no sink, query or batch
            "",
            "",
            "" + timeoutMs);
    List<Object> reply = scripts.runOrMake(new Scripts.Call("txn_create", tag, keys, args));
    if ("FENCED".equals(reply.get(1))) {
      return Optional.empty();
    }
    return Optional.of(id(String.valueOf(reply.get(2))));
  }

  @Override
  public List<TransactionId> unended(int pulsarTc) {
    return list(tagOf(pulsarTc), PULSAR_INDEX, 0);
  }

  @Override
  public List<Long> open(int pulsarTc, long fromCounter) {
    return list(tagOf(pulsarTc), "idx:txn-open", fromCounter).stream()
        .map(TransactionId::counter)
        .toList();
  }

  /** Lists an index whose scores are counters, page by page. */
  private List<TransactionId> list(String tag, String index, long fromCounter) {
    List<TransactionId> all = new ArrayList<>();
    String from = Long.toString(fromCounter);
    int found = LISTED_AT_ONCE;
    while (found == LISTED_AT_ONCE) {
      List<String> args = List.of("+inf", "" + LISTED_AT_ONCE, from);
      List<Object> reply = scripts.run(new Scripts.Call("txn_list", tag, List.of(index), args));
      found = reply == null ? 0 : (reply.size() - 3) / 2;
      for (int i = 0; i < found; i++) {
        all.add(id(String.valueOf(reply.get(3 + 2 * i))));
      }
      from = found == 0 ? from : "(" + all.get(all.size() - 1).counter();
    }
    return all;
  }

  private static TransactionId id(String key) {
    int colon = key.indexOf(':');
    return new TransactionId(
        Integer.parseInt(key.substring(0, colon)), Long.parseLong(key.substring(colon + 1)));
  }

  @Override
  public Optional<Owned> read(TransactionId txn) {
    List<String> keys = List.of("txn:" + txn.key(), "intents:" + txn.key());
    List<Object> reply =
        scripts.runRaw(
            new Scripts.Call("txn_read", RedisTransactionStore.tag(txn), keys, List.of()));
    if (reply == null || "ABSENT".equals(reply.get(1))) {
      return Optional.empty();
    }
    Map<String, byte[]> fields = RedisTransactionStore.fields(reply);
    return Optional.of(
        new Owned(
            RedisTransactionStore.header(txn, fields, reply),
            RedisTransactionStore.text(fields.get("owner")),
            RedisTransactionStore.number(fields.get("created_ms"))));
  }

  @Override
  public Answer adopt(TransactionId txn, String before, String after) {
    List<String> keys = List.of("txn:" + txn.key(), "nonces");
    return ownersAnswer("txn_adopt", txn, keys, List.of(txn.key(), before, after));
  }

  @Override
  public Answer intend(TransactionId txn, String nonce, long leftMs, Collection<String> intents) {
    List<String> keys = List.of("txn:" + txn.key(), "intents:" + txn.key(), "idx:txn-by-deadline");
    List<String> args = new ArrayList<>(List.of(nonce, txn.key(), "" + leftMs));
    args.addAll(intents);
    return ownersAnswer("txn_intend", txn, keys, args);
  }

  private Answer ownersAnswer(String script, TransactionId txn, List<String> keys, List<?> args) {
    List<Object> reply =
        scripts.run(new Scripts.Call(script, RedisTransactionStore.tag(txn), keys, args));
    String code = reply == null ? "ABSENT" : String.valueOf(reply.get(1));
    return Answer.valueOf("DECIDED".equals(code) ? String.valueOf(reply.get(2)) : code);
  }

  @Override
  public Answer pin(String segment, WriterId writer) {
    List<String> keys = List.of("pins", "pin-order", "dropped", "closed", "resolved", "state");
    List<String> args =
        List.of(
            writer.name(),
            writer.txn().key(),
            "" + writer.tc(),
            "" + writer.counter(),
            LogPosition.EARLIEST.padded());
    List<Object> reply =
        scripts.runOrMake(new Scripts.Call("seg_pin", "seg:" + segment, keys, args));
    return switch (String.valueOf(reply.get(1))) {
      case "OK", "PINNED" -> Answer.OK;
      default -> Answer.CLOSED;
    };
  }

  @Override
  public Answer end(
      TransactionId txn,
      String nonce,
      WriterId writer,
      Collection<String> segments,
      boolean timedOut) {
    boolean commit = segments != null;
    byte[] outcome =
        commit
            ? Outcome.commitRecord(writer.name(), segments, seen(segments))
            : Outcome.abortRecord(
                timedOut ? "its timeout was over" : "its client of Pulsar's own aborted it");
    List<String> keys =
        List.of(
            "txn:" + txn.key(),
            "idx:txn-by-deadline",
            "idx:txn-open",
            "idx:txn-by-final-state",
            "idx:txn-unmaterialized",
            "events",
            "metrics");
    String counted =
        commit
            ? "pulsar_txn_commits_total|" + txn.tc()
            : "pulsar_txn_aborts_total|" + txn.tc() + "|" + (timedOut ? "lease-over" : "owner");
    List<Object> args =
        List.of(
            txn.key(),
            commit ? "COMMITTED" : "ABORTED",
            outcome,
            "nonce",
            nonce,
            "pulsar_txn_metadata_store_header_cas_total|" + txn.tc() + "|ok",
            "1",
            counted,
            "1");
    Answer answer = ownersAnswer("txn_end", txn, keys, args);
    metrics.countDecision(
        txn.tc(),
        switch (answer) {
          case OK -> StoreMetrics.Result.OK;
          case COMMITTED, ABORTED -> StoreMetrics.Result.CONFLICT;
          default -> StoreMetrics.Result.REJECT;
        });
    return answer;
  }

  private Map<String, Seen> seen(Collection<String> segments) {
    Map<String, Seen> seen = new HashMap<>();
    for (String segment : segments) {
      String tag = "seg:" + segment;
      List<Seen> states = scripts.seen(tag);
      if (states.size() == 1) { // else the next step on the tag compares them
        seen.put(tag, states.get(0));
      }
    }
    return seen;
  }

  @Override
  public void materialize(Header header) {
    transactions.materialize(header);
  }

  @Override
  public void ended(TransactionId txn) {
    List<String> keys = List.of("txn:" + txn.key(), PULSAR_INDEX);
    scripts.run(
        new Scripts.Call(
            "txn_ended", RedisTransactionStore.tag(txn), keys, List.of(txn.key())));
  }

  @Override
  public long raiseCounter(int pulsarTc, long last) {
    List<Object> reply =
        scripts.runOrMake(
            new Scripts.Call("tc_raise", tagOf(pulsarTc), List.of("txn-counter"), List.of("" + last)));
    return RedisTransactionStore.number(reply.get(2));
  }

  @Override
  public void raise(String segment, LogPosition position) {
    List<String> args = List.of(position.padded(), "quiet");
    scripts.runOrMake(
        new Scripts.Call("seg_raise", "seg:" + segment, List.of("state", "events"), args));
  }
}
