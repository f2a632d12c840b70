package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The metadata store on Redis: the tag {@code {seg:<id>}}. */
public final class RedisSegmentStore implements SegmentStore {
  private static final int ASKED_AT_ONCE = 500; // writers in one step: it must not block the server
  private static final String ALL_PINS = "0"; // ZRANGE 0 -1

  private final Scripts scripts;
  private final StoreMetrics metrics;

  /**
   * Makes a store.
   *
   * @param scripts that it runs
   * @param metrics what it counts into
   */
  public RedisSegmentStore(Scripts scripts, StoreMetrics metrics) {
    this.scripts = scripts;
    this.metrics = metrics;
  }

  /** Queries the index of writes by segment. */
  private List<Object> query(Scripts.Call call) {
    long began = System.nanoTime();
    List<Object> reply = scripts.run(call);
    metrics.countQuery(StoreMetrics.Index.WRITES_BY_SEGMENT, System.nanoTime() - began);
    return reply;
  }

  @Override
  public void requireIdentity(String uuid) {
    String actual = scripts.identity().uuid();
    if (!actual.equals(uuid)) {
      throw new StoreRolledBackException(
          "the segment belongs to metadata store "
              + uuid
              + ", but pulsarTxnSparkStoreUrl names store "
              + actual
              + ": its decisions say nothing about this segment. Nothing was read; correct the URL");
    }
  }

  @Override
  public int coordinators() {
    return scripts.identity().coordinators();
  }

  @Override
  public Gate gate(String segment) {
    String tag = "seg:" + segment;
    List<String> keys =
        List.of("pins", "pin-order", "dropped", "floor", "state", "dropped-groups", "dropped-floors");
    List<String> args = List.of(ALL_PINS, "", "", "{" + tag + "}:dropped:");
    List<Object> reply = query(new Scripts.Call("seg_gate", tag, keys, args));
    if (reply == null || "PLAIN".equals(reply.get(1))) {
      return Gate.PLAIN;
    }
    List<String> flat = texts(reply.get(2));
    List<Gate.Pin> pins = new ArrayList<>();
    for (int i = 0; i < flat.size(); i += 3) {
      pins.add(new Gate.Pin(flat.get(i + 1), LogPosition.ofPadded(flat.get(i))));
    }
    List<String> names = texts(reply.get(3));
    Map<String, LogPosition> dropped = new HashMap<>();
    for (int i = 0; i < names.size(); i += 2) {
      dropped.put(names.get(i), LogPosition.ofPadded(names.get(i + 1).split("\\|", 2)[0]));
    }
    List<String> counters = texts(reply.get(4));
    Map<Integer, Long> floor = new HashMap<>();
    for (int i = 0; i < counters.size(); i += 2) {
      floor.put(Integer.parseInt(counters.get(i)), Long.parseLong(counters.get(i + 1)));
    }
    return new Gate(List.copyOf(pins), Map.copyOf(dropped), Map.copyOf(floor));
  }

  @Override
  public List<Fate> fates(String segment, List<Query> queries) {
    List<Fate> fates = new ArrayList<>();
    for (int from = 0; from < queries.size(); from += ASKED_AT_ONCE) {
      int to = Math.min(queries.size(), from + ASKED_AT_ONCE);
      fates.addAll(fatesAtOnce(segment, queries.subList(from, to)));
    }
    return fates;
  }

  @Override
  public void raiseSeen(String segment, Seen state) {
    scripts.raiseSeen(Map.of("seg:" + segment, state));
  }

  private List<Fate> fatesAtOnce(String segment, List<Query> queries) {
    String tag = "seg:" + segment;
    List<String> keys = List.of("pins", "dropped", "floor", "dropped-groups", "dropped-floors");
    List<String> args = new ArrayList<>(List.of("{" + tag + "}:dropped:"));
    for (Query query : queries) {
      args.add(query.writer().name());
      args.add(Integer.toString(query.writer().tc()));
      args.add(Long.toString(query.writer().counter()));
      args.add(query.pinnedAt() == null ? "" : query.pinnedAt().padded());
    }
    List<Object> reply = query(new Scripts.Call("seg_fates", tag, keys, args));
    List<Fate> fates = new ArrayList<>();
    for (int i = 0; i < queries.size(); i++) {
      if (reply == null || "DELETED".equals(reply.get(1))) {
        // Nothing says any more who has won: what waits goes on waiting, and nothing is added.
        LogPosition pinnedAt = queries.get(i).pinnedAt();
        fates.add(pinnedAt == null ? new Fate.Unpinned() : new Fate.Pinned(pinnedAt));
      } else {
        fates.add(fate(String.valueOf(reply.get(2 + 2 * i)), String.valueOf(reply.get(3 + 2 * i))));
      }
    }
    return fates;
  }

  private static Fate fate(String name, String bound) {
    return switch (name) {
      case "PINNED" -> new Fate.Pinned(LogPosition.ofPadded(bound));
      case "DROPPED" -> new Fate.Dropped(LogPosition.ofPadded(bound));
      case "WON" -> new Fate.Won();
      case "UNPINNED" -> new Fate.Unpinned();
      default -> throw new IllegalStateException("seg_fates.lua knows no fate " + name);
    };
  }

  private static List<String> texts(Object list) {
    return ((List<?>) list).stream().map(String::valueOf).toList();
  }
}
