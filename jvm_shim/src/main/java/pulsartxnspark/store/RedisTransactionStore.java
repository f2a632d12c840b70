package pulsartxnspark.store;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;

/** The metadata store on Redis: the tags {@code {tc<N>}}, and {@code {seg:<id>}} of participants. */
public final class RedisTransactionStore implements TransactionStore {
  private static final String RECORDS_AT_ONCE = "512"; // deleted in one step: it must stay short

  private final Scripts scripts;
  private final StoreMetrics metrics;

  /**
   * Makes a store.
   *
   * @param scripts that it runs
   * @param metrics what it counts into
   */
  public RedisTransactionStore(Scripts scripts, StoreMetrics metrics) {
    this.scripts = scripts;
    this.metrics = metrics;
  }

  @Override
  public Optional<Header> read(TransactionId txn) {
    List<String> keys = List.of("txn:" + txn.key(), "intents:" + txn.key());
    List<Object> reply = scripts.runRaw(new Scripts.Call("txn_read", tag(txn), keys, List.of()));
    if (reply == null || "ABSENT".equals(text(reply.get(1)))) {
      return Optional.empty();
    }
    return Optional.of(header(txn, fields(reply), reply));
  }

  /** Gives the fields of a header in a reply of txn_read.lua. */
  static Map<String, byte[]> fields(List<Object> reply) {
    List<?> flat = (List<?>) reply.get(3);
    Map<String, byte[]> fields = new HashMap<>();
    for (int i = 0; i < flat.size(); i += 2) {
      fields.put(text(flat.get(i)), (byte[]) flat.get(i + 1));
    }
    return fields;
  }

  /** Reads the reply of txn_read.lua. */
  static Header header(TransactionId txn, Map<String, byte[]> fields, List<Object> reply) {
    byte[] outcome = fields.get("outcome");
    return new Header(
            txn,
            Header.State.valueOf(text(fields.get("state"))),
            text(fields.get("nonce")),
            number(fields.get("deadline_ms")),
            fields.containsKey("finalized_ms") ? number(fields.get("finalized_ms")) : 0,
            number(reply.get(2)),
            outcome == null ? Outcome.NONE : Outcome.parse(outcome),
            ((List<?>) reply.get(4)).stream().map(RedisTransactionStore::text).toList());
  }

  @Override
  public void abortExpired(TransactionId txn) {
    List<String> keys =
        List.of(
            "txn:" + txn.key(),
            "idx:txn-by-deadline",
            "idx:txn-open",
            "idx:txn-by-final-state",
            "idx:txn-unmaterialized",
            "events",
            "metrics");
    byte[] outcome = Outcome.abortRecord("its lease was over");
    List<String> args =
        List.of(
            txn.key(),
            "ABORTED",
            new String(outcome, StandardCharsets.UTF_8), // all of it is ASCII
            "expired",
            "",
            "pulsar_txn_metadata_store_header_cas_total|" + txn.tc() + "|ok",
            "1",
            "pulsar_txn_aborts_total|" + txn.tc() + "|lease-over",
            "1");
    List<Object> reply = scripts.run(new Scripts.Call("txn_end", tag(txn), keys, args));
    String code = reply == null ? "ABSENT" : String.valueOf(reply.get(1));
    metrics.countDecision(
        txn.tc(),
        switch (code) {
          case "OK" -> StoreMetrics.Result.OK;
          case "DECIDED" -> StoreMetrics.Result.CONFLICT;
          default -> StoreMetrics.Result.REJECT;
        });
  }

  @Override
  public Map<Integer, Map<String, Long>> counts() {
    Map<Integer, Map<String, Long>> all = new TreeMap<>();
    List<String> keys =
        List.of("idx:txn-open", "idx:txn-by-final-state", "idx:txn-unmaterialized", "metrics");
    for (int tc = 0; tc < scripts.identity().coordinators(); tc++) {
      String tag = "tc" + tc;
      Map<String, Long> counts = new HashMap<>();
      List<Object> reply =
          scripts.run(new Scripts.Call("tc_state", tag, keys, List.of("{" + tag + "}:txn:", "0")));
      List<?> flat = reply == null ? List.of() : (List<?>) reply.get(8);
      for (int i = 0; i < flat.size(); i += 2) {
        counts.put(text(flat.get(i)), number(flat.get(i + 1)));
      }
      all.put(tc, counts);
    }
    return all;
  }

  @Override
  public void materialize(Header header) {
    if (header.state() == Header.State.OPEN) {
      throw new IllegalArgumentException(
          "transaction " + header.txn() + " is not decided: there is nothing to materialize");
    }
    scripts.raiseSeen(header.outcome().seen());
    List<Scripts.Call> calls = segmentCalls(header);
    requireNoOtherMark(header, calls);
    boolean everywhere = true;
    for (Scripts.Call call : calls) {
      everywhere &= materialize(header, call);
    }
    if (everywhere) {
      forgetOperations(header);
    }
  }

  /**
   * Refuses a decision that a segment cannot take, before any other materializes it. A single
   * segment refuses by itself. Where one server holds all tags, they go back together.
   */
  private void requireNoOtherMark(Header header, List<Scripts.Call> calls) {
    if (calls.size() < 2 || scripts.oneServer()) {
      return;
    }
    List<List<Object>> marks =
        scripts.runAll(calls.stream().map(RedisTransactionStore::markCall).toList());
    for (int i = 0; i < calls.size(); i++) {
      if (marks.get(i) != null && isOther(marks.get(i), calls.get(i))) {
        throw decidedTwice(header, calls.get(i));
      }
    }
  }

  /** Gives the step that asks for the mark of a segment that is to materialize a decision. */
  static Scripts.Call markCall(Scripts.Call materialize) {
    List<String> keys = List.of("closed", "resolved");
    return new Scripts.Call(
        "seg_is_materialized", materialize.tag(), keys, materialize.args().subList(0, 3));
  }

  /** Tells whether a segment's mark names the other decision than its call does. */
  static boolean isOther(List<Object> mark, Scripts.Call materialize) {
    return "RESOLVED".equals(mark.get(1)) && !text(mark.get(2)).equals(materialize.args().get(3));
  }

  private static StoreRolledBackException decidedTwice(Header header, Scripts.Call materialize) {
    return new StoreRolledBackException(
        "transaction " + header.txn() + " is " + header.state() + " in its header, but segment "
            + materialize.tag().substring("seg:".length())
            + " has materialized the other decision. Tag {" + tag(header.txn())
            + "} lost that decision, in a failover to a replica that lagged. Restore the newest "
            + "state of the store");
  }

  /** Tells whether the segment knows the decision now. */
  private boolean materialize(Header header, Scripts.Call call) {
    List<Object> reply = scripts.run(call);
    // It ends: nothing is added any more, as the first pass notes the transaction as resolved.
    while (reply != null && "MORE".equals(reply.get(1))) {
      reply = scripts.run(call);
    }
    if (reply != null && "CONFLICT".equals(reply.get(1))) {
      throw decidedTwice(header, call);
    }
    // This plug-in makes no tag. Where there is none yet, a sweep notes the decision.
    return reply != null;
  }

  /** Gives the steps that materialize a decision in all segments, and then forget its operations. */
  static List<Scripts.Call> materializeCalls(Header header) {
    List<Scripts.Call> calls = segmentCalls(header);
    calls.add(forgetCall(header, "0"));
    return calls;
  }

  private static List<Scripts.Call> segmentCalls(Header header) {
    Participants participants = Participants.of(header);
    List<Scripts.Call> calls = new ArrayList<>();
    for (String segment : participants.segments()) {
      calls.add(materializeCall(header, segment, participants));
    }
    return calls;
  }

  private static Scripts.Call materializeCall(
      Header header, String segment, Participants participants) {
    TransactionId txn = header.txn();
    String tag = "seg:" + segment;
    List<String> keys =
        List.of("pins", "pin-order", "dropped", "closed", "resolved", "state", "events",
            "resolved-order:" + txn.tc(), "dropped-from");
    List<String> args = new ArrayList<>(List.of(
        txn.key(), "" + txn.tc(), "" + txn.counter(), header.state().name()));
    List<String> fates = new ArrayList<>();
    LogPosition high = null;
    for (String writer : participants.writersOf(segment)) {
      Outcome.Winner winner = participants.winner(segment, writer);
      LogPosition keptTo = winner == null ? LogPosition.EARLIEST : winner.bound();
      fates.add(writer);
      fates.add(keptTo == null ? "WON" : keptTo.padded());
      LogPosition last = winner == null ? null : winner.last();
      high = last != null && (high == null || high.compareTo(last) < 0) ? last : high;
    }
    args.add(high == null ? "" : high.padded());
    args.add("" + fates.size() / 2);
    args.addAll(fates);
    List<String> subscriptions = participants.subscriptionsOf(segment);
    args.add("" + subscriptions.size());
    for (String name : subscriptions) {
      for (String key :
          List.of("cursor:", "pending-acks:", "ack-ranges:", "pending-ranges:")) {
        args.add("{" + tag + "}:" + key + name);
      }
      args.set(args.size() - 1, args.get(args.size() - 1) + ":" + txn.key());
    }
    return new Scripts.Call("seg_materialize", tag, keys, args);
  }

  private void forgetOperations(Header header) {
    String cursor = "0";
    while (cursor != null) {
      List<Object> reply = scripts.run(forgetCall(header, cursor));
      boolean pending = reply != null && "PENDING".equals(reply.get(1));
      cursor = pending ? String.valueOf(reply.get(2)) : null;
    }
  }

  private static Scripts.Call forgetCall(Header header, String cursor) {
    TransactionId txn = header.txn();
    List<String> keys =
        List.of("txn:" + txn.key(), "txn-op:" + txn.key(), "stage:" + header.nonce(),
            "idx:txn-unmaterialized", "idx:stages", "metrics");
    List<String> args =
        List.of("materialized", txn.key(), "{" + tag(txn) + "}:op-batch:", cursor, RECORDS_AT_ONCE);
    return new Scripts.Call("txn_forget_ops", tag(txn), keys, args);
  }

  static String tag(TransactionId txn) {
    return "tc" + txn.tc();
  }

  static String text(Object value) {
    return value instanceof byte[] bytes
        ? new String(bytes, StandardCharsets.UTF_8)
        : String.valueOf(value);
  }

  static long number(Object value) {
    return Long.parseLong(text(value));
  }

  /** The intents of a transaction, sorted out. */
  private record Participants(
      Map<String, List<String>> writers,
      Map<String, List<String>> subscriptions,
      Map<List<String>, Outcome.Winner> winners) {
    static Participants of(Header header) {
      Map<String, List<String>> writers = new TreeMap<>();
      Map<String, List<String>> subscriptions = new TreeMap<>();
      for (String intent : header.intents()) {
        String[] parts = intent.split("\\|", 3);
        switch (parts[0]) {
          case "W" -> writers.computeIfAbsent(parts[1], of -> new ArrayList<>()).add(parts[2]);
          case "A" -> subscriptions.computeIfAbsent(parts[1], of -> new ArrayList<>()).add(parts[2]);
          case "P" -> { } // a sink's pointer: sweeps tell it the decision
          case "N" -> { } // a topic or subscription of Pulsar's own: the coordinator ends it there
          default -> throw new StoreCorruptException(
              "transaction "
                  + header.txn()
                  + " has an intent of an unknown kind: "
                  + intent
                  + ". Use the jar of the version of pulsar_txn_spark that wrote it",
              null);
        }
      }
      Map<List<String>, Outcome.Winner> winners = new HashMap<>();
      if (header.state() == Header.State.COMMITTED) {
        header.outcome().winners().forEach(winner -> winners.put(List.of(winner.segment(), winner.writer()), winner));
      }
      return new Participants(writers, subscriptions, winners);
    }

    TreeSet<String> segments() {
      TreeSet<String> all = new TreeSet<>(writers.keySet());
      all.addAll(subscriptions.keySet());
      return all;
    }

    List<String> writersOf(String segment) {
      return writers.getOrDefault(segment, List.of());
    }

    List<String> subscriptionsOf(String segment) {
      return subscriptions.getOrDefault(segment, List.of());
    }

    Outcome.Winner winner(String segment, String writer) {
      return winners.get(List.of(segment, writer));
    }
  }
}
