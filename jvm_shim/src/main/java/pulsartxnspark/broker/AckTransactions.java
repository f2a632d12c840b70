package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongSupplier;
import org.apache.pulsar.client.api.transaction.TxnID;
import pulsartxnspark.broker.Decisions.Decision;

/** The transactions that have records of acknowledgements in a subscription. */
final class AckTransactions {
  /** A transaction, with its records by their numbers. */
  static final class Txn {
    final TxnID id;
    final Map<Long, AckRecord> records = new TreeMap<>();
    Decision decision = Decision.OPEN;
    boolean isNoted; // the store has the decision beside the records
    boolean isApplied; // the handle knows it
    boolean isForgotten; // its records are being removed
    boolean isAsked;
    long polledMs;

    Txn(TxnID id, long nowMs) {
      this.id = id;
      this.polledMs = nowMs;
    }

    String name() {
      return id.getMostSigBits() + ":" + id.getLeastSigBits();
    }

    String name(long number) {
      return name() + ":" + number;
    }

    List<String> names() {
      return new ArrayList<>(records.keySet().stream().map(this::name).toList());
    }

    /** Takes out what a later cumulative acknowledgement stands for; returns the names. */
    private List<String> removeCumulative() {
      List<Long> numbers =
          records.keySet().stream().filter(number -> records.get(number).cumulative()).toList();
      numbers.forEach(records::remove);
      return numbers.stream().map(this::name).toList();
    }
  }

  /**
   * A record that is new.
   *
   * @param name by which the store is to know it
   * @param replaced names of those that it stands for as well
   */
  record Added(String name, List<String> replaced) {}

  private final LongSupplier clockMs;
  private final Map<TxnID, Txn> all = new LinkedHashMap<>();
  private final AtomicLong open = new AtomicLong(); // records; read by those who ask for metrics
  private final AtomicLong decided = new AtomicLong();
  private long lastNumber; // the newest of two that lock one message is right

  AckTransactions(LongSupplier clockMs) {
    this.clockMs = clockMs;
  }

  /** Gives the transactions among records that have no decision beside them. */
  static Set<TxnID> undecided(Map<String, String> records) {
    Set<TxnID> all = new LinkedHashSet<>();
    records.keySet().forEach(name -> all.add(txn(name)));
    all.removeIf(txn -> records.containsKey(txn.getMostSigBits() + ":" + txn.getLeastSigBits()));
    return all;
  }

  private static TxnID txn(String recordName) {
    String[] parts = recordName.split(":");
    return new TxnID(Long.parseLong(parts[0]), Long.parseLong(parts[1]));
  }

  /** Takes over the records that the store has, and the decisions beside them. */
  void load(Map<String, String> records) {
    records.forEach(
        (recordName, text) -> {
          Txn state = made(txn(recordName));
          String[] parts = recordName.split(":");
          if (parts.length < 3) {
            state.decision = Decision.valueOf(text);
            state.isNoted = true;
          } else {
            long number = Long.parseLong(parts[2]);
            state.records.put(number, AckRecord.parse(text));
            lastNumber = Math.max(lastNumber, number);
          }
        });
    all.values().forEach(state -> count(state, 1));
  }

  private void count(Txn state, int sign) {
    (state.decision == Decision.OPEN ? open : decided).addAndGet((long) sign * state.records.size());
  }

  /** Gives how many records open transactions have; in any thread. */
  long open() {
    return open.get();
  }

  /** Gives how many records decided transactions have; in any thread. */
  long decided() {
    return decided.get();
  }

  private Txn made(TxnID txn) {
    return all.computeIfAbsent(txn, id -> new Txn(id, clockMs.getAsLong()));
  }

  /** Gives a transaction; null if it has no records here. */
  Txn get(TxnID txn) {
    return all.get(txn);
  }

  List<Txn> all() {
    return List.copyOf(all.values());
  }

  /** Adds a record; a cumulative one stands for those of the transaction before it. */
  Added add(TxnID txn, AckRecord record) {
    Txn state = made(txn);
    count(state, -1);
    List<String> replaced = record.cumulative() ? state.removeCumulative() : List.of();
    long number = ++lastNumber;
    state.records.put(number, record);
    count(state, 1);
    return new Added(state.name(number), replaced);
  }

  /** Takes a record out again that was not written. */
  void takeBack(TxnID txn, String recordName) {
    Txn state = all.get(txn);
    if (state == null) {
      return;
    }
    count(state, -1);
    state.records.remove(Long.parseLong(recordName.split(":")[2]));
    count(state, 1);
    if (state.records.isEmpty() && !state.isNoted) {
      all.remove(txn);
    }
  }

  void decide(Txn state, Decision decision) {
    count(state, -1);
    state.decision = decision;
    count(state, 1);
  }

  void remove(TxnID txn) {
    Txn state = all.remove(txn);
    if (state != null) {
      count(state, -1);
    }
  }
}
