package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;

/** The coordinator's steps on Redis: the scripts that drivers and clients run, and a few more. */
public final class RedisCoordinatorStore implements CoordinatorStore {
  private static final int LISTED_AT_ONCE = 1_000; // in one step: it must not block the server
  private static final String PULSAR_INDEX = "idx:txn-pulsar";
  private static final Set<Object> PINNED = Set.of("OK", "PINNED");

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
    List<Object> reply = scripts.runOrMake(createCall(pulsarTc, nonce, owner, timeoutMs));
    if ("FENCED".equals(reply.get(1))) {
      return Optional.empty();
    }
    return Optional.of(id(String.valueOf(reply.get(2))));
  }

  @Override
  public CompletableFuture<Optional<TransactionId>> createTogether(
      int pulsarTc, String nonce, String owner, long timeoutMs) {
    return scripts
        .together("", List.of(createCall(pulsarTc, nonce, owner, timeoutMs)))
        .thenApply(
            taken ->
                taken
                    .map(replies -> replies.get(0))
                    .filter(reply -> "OK".equals(reply.get(1)))
                    .map(reply -> id(RedisTransactionStore.text(reply.get(2)))));
  }

  private Scripts.Call createCall(int pulsarTc, String nonce, String owner, long timeoutMs) {
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
    return new Scripts.Call("txn_create", tag, keys, args);
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
    int count = LISTED_AT_ONCE;
    while (count == LISTED_AT_ONCE) {
      List<String> args = List.of("+inf", "" + LISTED_AT_ONCE, from);
      List<Object> reply = scripts.run(new Scripts.Call("txn_list", tag, List.of(index), args));
      count = reply == null ? 0 : (reply.size() - 3) / 2;
      for (int i = 0; i < count; i++) {
        all.add(id(String.valueOf(reply.get(3 + 2 * i))));
      }
      from = count == 0 ? from : "(" + all.get(all.size() - 1).counter();
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
    List<String> keys = List.of("txn:" + txn.key(), "nonces", "pulsar-epochs");
    List<String> args = List.of(txn.key(), before, after);
    return ownersAnswer(
        new Scripts.Call("txn_adopt", RedisTransactionStore.tag(txn), keys, args));
  }

  @Override
  public Answer intend(TransactionId txn, String nonce, long leftMs, Collection<String> intents) {
    return ownersAnswer(intendCall(txn, nonce, leftMs, intents));
  }

  private static Scripts.Call intendCall(
      TransactionId txn, String nonce, long leftMs, Collection<String> intents) {
    List<String> keys = List.of("txn:" + txn.key(), "intents:" + txn.key(), "idx:txn-by-deadline");
    List<String> args = new ArrayList<>(List.of(nonce, txn.key(), "" + leftMs));
    args.addAll(intents);
    return new Scripts.Call("txn_intend", RedisTransactionStore.tag(txn), keys, args);
  }

  @Override
  public CompletableFuture<Optional<List<Pin>>> admitTogether(
      TransactionId txn,
      String nonce,
      long leftMs,
      List<String> intents,
      List<String> segments,
      WriterId writer) {
    List<Scripts.Call> calls = new ArrayList<>();
    calls.add(intendCall(txn, nonce, leftMs, intents));
    segments.forEach(segment -> calls.add(pinCall(segment, writer)));
    return scripts
        .together("txn_admit", calls)
        .thenApply(taken -> taken.flatMap(replies -> pins(replies, calls.size())));
  }

  /** Gives all pins; nothing if a step was refused. */
  private static Optional<List<Pin>> pins(List<List<Object>> replies, int steps) {
    List<Pin> pins = new ArrayList<>();
    for (List<Object> reply : replies.subList(1, replies.size())) {
      if (PINNED.contains(reply.get(1))) {
        LogPosition position = LogPosition.ofPadded(RedisTransactionStore.text(reply.get(2)));
        pins.add(new Pin(position, Seen.of(reply.get(0))));
      }
    }
    boolean whole = "OK".equals(replies.get(0).get(1)) && pins.size() == steps - 1;
    return whole ? Optional.of(pins) : Optional.empty();
  }

  private Answer ownersAnswer(Scripts.Call call) {
    List<Object> reply = scripts.run(call);
    String code = reply == null ? "ABSENT" : String.valueOf(reply.get(1));
    return Answer.valueOf("DECIDED".equals(code) ? String.valueOf(reply.get(2)) : code);
  }

  @Override
  public Answer pin(String segment, WriterId writer) {
    List<Object> reply = scripts.runOrMake(pinCall(segment, writer));
    return PINNED.contains(reply.get(1)) ? Answer.OK : Answer.CLOSED;
  }

  private static Scripts.Call pinCall(String segment, WriterId writer) {
    List<String> keys = List.of("pins", "pin-order", "dropped", "closed", "resolved", "state");
    List<String> args =
        List.of(
            writer.name(),
            writer.txn().key(),
            "" + writer.tc(),
            "" + writer.counter(),
            LogPosition.EARLIEST.padded());
    return new Scripts.Call("seg_pin", "seg:" + segment, keys, args);
  }

  @Override
  public Answer end(Ending ending) {
    Answer answer = ownersAnswer(endCall(ending, outcome(ending)));
    metrics.countDecision(
        ending.txn().tc(),
        switch (answer) {
          case OK -> StoreMetrics.Result.OK;
          case COMMITTED, ABORTED -> StoreMetrics.Result.CONFLICT;
          default -> StoreMetrics.Result.REJECT;
        });
    return answer;
  }

  private byte[] outcome(Ending ending) {
    if (ending.segments() == null) {
      return Outcome.abortRecord(
          ending.timedOut() ? "its timeout was over" : "its client of Pulsar's own aborted it");
    }
    return Outcome.commitRecord(
        ending.writer().name(), ending.segments(), seen(ending.segments()));
  }

  private static Header.State decision(Ending ending) {
    return ending.segments() == null ? Header.State.ABORTED : Header.State.COMMITTED;
  }

  private static Scripts.Call endCall(Ending ending, byte[] outcome) {
    TransactionId txn = ending.txn();
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
        ending.segments() != null
            ? "pulsar_txn_commits_total|" + txn.tc()
            : "pulsar_txn_aborts_total|"
                + txn.tc()
                + "|"
                + (ending.timedOut() ? "lease-over" : "owner");
    List<Object> args =
        List.of(
            txn.key(),
            decision(ending).name(),
            outcome,
            "nonce",
            ending.nonce(),
            "pulsar_txn_metadata_store_header_cas_total|" + txn.tc() + "|ok",
            "1",
            counted,
            "1");
    return new Scripts.Call("txn_end", RedisTransactionStore.tag(txn), keys, args);
  }

  @Override
  public CompletableFuture<Optional<Progress>> endTogether(
      Ending ending, Collection<String> intents, boolean everywhere) {
    TransactionId txn = ending.txn();
    byte[] outcome = outcome(ending);
    List<Scripts.Call> calls = new ArrayList<>();
    calls.add(endCall(ending, outcome));
    List<String> read = List.of("txn:" + txn.key(), "intents:" + txn.key());
    calls.add(
        new Scripts.Call(
            "txn_read", RedisTransactionStore.tag(txn), read, List.copyOf(intents)));
    Header decided =
        new Header(
            txn, decision(ending), ending.nonce(), 0, 0, 0, Outcome.parse(outcome),
            List.copyOf(intents));
    calls.addAll(RedisTransactionStore.materializeCalls(decided));
    if (everywhere) {
      calls.add(endedCall(txn));
    }
    return scripts
        .together("txn_commit", calls)
        .thenApply(
            taken ->
                taken
                    .filter(replies -> "OK".equals(replies.get(0).get(1)))
                    .map(replies -> progress(txn, replies, calls.size(), everywhere)));
  }

  private Progress progress(
      TransactionId txn, List<List<Object>> replies, int steps, boolean everywhere) {
    metrics.countDecision(txn.tc(), StoreMetrics.Result.OK);
    Object last = replies.get(replies.size() - 1).get(1);
    if (replies.size() < steps || !("OK".equals(last) || "ALREADY".equals(last))) {
      return Progress.DECIDED;
    }
    return everywhere ? Progress.ENDED : Progress.MATERIALIZED;
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
    scripts.run(endedCall(txn));
  }

  @Override
  public CompletableFuture<Boolean> endedTogether(TransactionId txn) {
    return noted(endedCall(txn));
  }

  private static Scripts.Call endedCall(TransactionId txn) {
    List<String> keys = List.of("txn:" + txn.key(), PULSAR_INDEX);
    return new Scripts.Call(
        "txn_ended", RedisTransactionStore.tag(txn), keys, List.of(txn.key()));
  }

  /** Takes a step that is done if it is not refused. */
  private CompletableFuture<Boolean> noted(Scripts.Call call) {
    return scripts
        .together("", List.of(call))
        .thenApply(
            taken ->
                taken
                    .map(replies -> replies.get(0).get(1))
                    .filter(code -> "OK".equals(code) || "ALREADY".equals(code))
                    .isPresent());
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
    scripts.runOrMake(raiseCall(segment, position));
  }

  @Override
  public CompletableFuture<Boolean> raiseTogether(String segment, LogPosition position) {
    return noted(raiseCall(segment, position));
  }

  private static Scripts.Call raiseCall(String segment, LogPosition position) {
    List<String> args = List.of(position.padded(), "quiet");
    return new Scripts.Call("seg_raise", "seg:" + segment, List.of("state", "events"), args);
  }
}
