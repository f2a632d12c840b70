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

/** What consumers of a segment never get: entries of dropped writers, and those below the floor. */
final class BufferFilter {
  private final SharedCoordinators coordinators;

  // Read for each entry that is dispatched. A writer is put there before the maximum moves past its
  // entries.
  private final Map<TxnBits, LogPosition> dropped = new ConcurrentHashMap<>();
  private volatile Map<Integer, Long> floor = Map.of();

  BufferFilter(SharedCoordinators coordinators) {
    this.coordinators = coordinators;
  }

  /** Takes over what the store has. */
  void load(Gate gate) {
    // No entry of ours carries the bits of a name that is not a writer's.
    gate.dropped()
        .forEach((name, to) -> WriterId.ofName(name).ifPresent(writer -> drop(writer.bits(), to)));
    floor = gate.floor();
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
    return isBelow(floor, bits);
  }

  private boolean isBelow(Map<Integer, Long> counters, TxnBits bits) {
    return bits.least() < counters.getOrDefault(coordinators.tc(bits), 0L);
  }

  /** Forgets dropped writers whose entries the log has deleted: the floor is enough (INV-5). */
  void prune(Gate gate) {
    Map<Integer, Long> raised = new HashMap<>(floor);
    gate.floor().forEach((tc, counter) -> raised.merge(tc, counter, Math::max));
    floor = Map.copyOf(raised); // before any name goes
    Set<TxnBits> named = new HashSet<>();
    gate.dropped().keySet().forEach(name -> WriterId.ofName(name).ifPresent(w -> named.add(w.bits())));
    // Whatever the store has shown: only what the floor filters as well may go.
    dropped.keySet().removeIf(bits -> !named.contains(bits) && isBelow(raised, bits));
  }
}
