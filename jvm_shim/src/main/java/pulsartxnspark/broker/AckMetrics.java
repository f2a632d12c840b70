package pulsartxnspark.broker;

import java.util.EnumMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.LongAdder;

/** What this broker has counted of the pending acks that are in the metadata store. */
final class AckMetrics {
  /** What came of a replay. */
  enum Replay {
    /** The subscription takes consumers. */
    OK,
    /** It is tried again. */
    FAILED
  }

  /** Why a request of a client or of a coordinator was refused. */
  enum Refusal {
    /** Another transaction has locked the message, or it is acknowledged. */
    CONFLICT,
    /** An end is not what the header says, or came twice. */
    CONTRADICTION,
    /** The transaction was decided before. */
    LATE,
    /** The store has not answered in time, or the subscription goes to another broker. */
    UNAVAILABLE
  }

  private final Map<Replay, LongAdder> replays = new EnumMap<>(Replay.class);
  private final Map<Refusal, LongAdder> refusals = new EnumMap<>(Refusal.class);
  private final Set<AckTransactions> loaded = ConcurrentHashMap.newKeySet();

  AckMetrics() {
    for (Replay replay : Replay.values()) {
      replays.put(replay, new LongAdder());
    }
    for (Refusal refusal : Refusal.values()) {
      refusals.put(refusal, new LongAdder());
    }
  }

  void count(Replay replay) {
    replays.get(replay).increment();
  }

  void count(Refusal refusal) {
    refusals.get(refusal).increment();
  }

  /** Counts the records of a subscription from now on. */
  void load(AckTransactions txns) {
    loaded.add(txns);
  }

  /** Counts the records of a subscription no more. */
  void unload(AckTransactions txns) {
    loaded.remove(txns);
  }

  /** Gives how many replays there were, with each result. */
  long replays(Replay result) {
    return replays.get(result).sum();
  }

  /** Gives how many requests were refused, for each reason. */
  long refusals(Refusal why) {
    return refusals.get(why).sum();
  }

  /** Gives how many records of open transactions the subscriptions have that are loaded now. */
  long open() {
    return loaded.stream().mapToLong(AckTransactions::open).sum();
  }

  /** Gives how many records of decided transactions they have, which wait for the cursor. */
  long decided() {
    return loaded.stream().mapToLong(AckTransactions::decided).sum();
  }
}
