package pulsartxnspark.broker;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.mledger.Position;
import pulsartxnspark.store.Gate;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/**
 * What consumers of a segment never get: entries of dropped writers, and those below the floor.
 *
 * <p>The floor rises when the log has deleted everything that committed below it. Readers of a
 * compacted topic still get what compaction has kept of those ledgers, at its old positions. Compaction
 * itself has read what consumers get: so the floor says nothing of what lies before the log.
 */
final class BufferFilter {
  private final SharedCoordinators coordinators;

  // Read for each entry that is dispatched. A writer is put there before the maximum moves past its
  // entries.
  private final Map<TxnBits, LogPosition> dropped = new ConcurrentHashMap<>();
  private volatile Floor floor = new Floor(Map.of(), 0);

  /**
   * Below which counters nothing counts, and from where on.
   *
   * @param counters TC id to the counter
   * @param firstLedger of the log, read after the counters: what they were raised for lies before it
   */
  private record Floor(Map<Integer, Long> counters, long firstLedger) {
    boolean holdsAt(Position position) {
      return position.getLedgerId() >= firstLedger;
    }
  }

  BufferFilter(SharedCoordinators coordinators) {
    this.coordinators = coordinators;
  }

  /**
   * Takes over what the store has.
   *
   * @param gate of the segment
   * @param firstLedger of its log, read after the gate
   */
  void load(Gate gate, long firstLedger) {
    // No entry of ours carries the bits of a name that is not a writer's.
    gate.dropped()
        .forEach((name, to) -> WriterId.ofName(name).ifPresent(writer -> drop(writer.bits(), to)));
    floor = new Floor(gate.floor(), firstLedger);
  }

  /** Leaves out what a writer has behind a position. */
  void drop(TxnBits bits, LogPosition keptTo) {
    dropped.put(bits, keptTo);
  }

  int size() {
    return dropped.size();
  }

  /** Tells whether an entry is left out; without a position, whether any of its writer is. */
  boolean leavesOut(TxnBits bits, Position position) {
    LogPosition keptTo = dropped.get(bits);
    if (keptTo != null) {
      return position == null
          || new LogPosition(position.getLedgerId(), position.getEntryId()).compareTo(keptTo) > 0;
    }
    Floor known = floor;
    return isBelow(known, bits) && (position == null || known.holdsAt(position));
  }

  private boolean isBelow(Floor known, TxnBits bits) {
    return bits.least() < known.counters().getOrDefault(coordinators.tc(bits), 0L);
  }

  /**
   * Forgets dropped writers whose entries the log has deleted: the floor is enough (INV-5). A name goes
   * one call later than the floor is learnt. Until then somebody may still read a ledger that was
   * deleted, and the floor says nothing of that.
   *
   * @param gate of the segment
   * @param firstLedger of its log, read after the gate
   */
  void prune(Gate gate, long firstLedger) {
    Floor before = floor;
    Map<Integer, Long> raised = new HashMap<>(before.counters());
    gate.floor().forEach((tc, counter) -> raised.merge(tc, counter, Math::max));
    floor = new Floor(Map.copyOf(raised), firstLedger);
    Set<TxnBits> named = new HashSet<>();
    gate.dropped().keySet().forEach(name -> WriterId.ofName(name).ifPresent(w -> named.add(w.bits())));
    // Whatever the store has shown: only what the floor filters as well may go.
    dropped.keySet().removeIf(bits -> !named.contains(bits) && isBelow(before, bits));
  }
}
