package pulsartxnspark.store;

import java.util.EnumMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;

/** What this broker has counted of its requests to the metadata store: PIP-471's metrics. */
public final class StoreMetrics {
  /** Upper bounds of the buckets of a query's time, in seconds; as in the Python package. */
  static final double[] BOUNDS_S = {
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0
  };

  private final Map<Index, Times> queries = new EnumMap<>(Index.class);
  private final Map<Decision, LongAdder> decisions = new ConcurrentHashMap<>();

  /** What is asked for by an index. */
  public enum Index {
    /** Pins and fates of writers. */
    WRITES_BY_SEGMENT,
    /** Records of acknowledgements. */
    ACKS_BY_SEGMENT_SUBSCRIPTION
  }

  /** The times of queries of one index. */
  private static final class Times {
    private final LongAdder[] buckets = new LongAdder[BOUNDS_S.length + 1]; // the last one: slower
    private final LongAdder nanos = new LongAdder();

    Times() {
      for (int i = 0; i < buckets.length; i++) {
        buckets[i] = new LongAdder();
      }
    }

    private void count(long took) {
      int bucket = 0;
      while (bucket < BOUNDS_S.length && took > BOUNDS_S[bucket] * TimeUnit.SECONDS.toNanos(1)) {
        bucket++;
      }
      buckets[bucket].increment();
      nanos.add(took);
    }
  }

  /** What came of a compare-and-set on a header. */
  public enum Result {
    /** It has decided. */
    OK,
    /** It was decided before. */
    CONFLICT,
    /** It may not be decided so. */
    REJECT
  }

  /**
   * Which compare-and-sets are counted together.
   *
   * @param tc id of the coordinator
   * @param result what came of them
   */
  public record Decision(int tc, Result result) implements Comparable<Decision> {
    @Override
    public int compareTo(Decision other) {
      int byTc = Integer.compare(tc, other.tc);
      return byTc != 0 ? byTc : result.compareTo(other.result);
    }
  }

  /** Makes counters that stand at 0. */
  public StoreMetrics() {
    for (Index index : Index.values()) {
      queries.put(index, new Times());
    }
  }

  /**
   * Counts a query of an index.
   *
   * @param index which one
   * @param nanos how long it took, round trip included, in nanoseconds
   */
  void countQuery(Index index, long nanos) {
    queries.get(index).count(nanos);
  }

  /**
   * Counts a compare-and-set on a header.
   *
   * @param tc id of its coordinator
   * @param result what came of it
   */
  void countDecision(int tc, Result result) {
    decisions.computeIfAbsent(new Decision(tc, result), key -> new LongAdder()).increment();
  }

  /**
   * Gives the times of queries.
   *
   * @param index of which one
   * @return upper bound in seconds to how many took no longer; the last bound is infinite
   */
  public Map<Double, Long> queries(Index index) {
    Map<Double, Long> all = new TreeMap<>();
    LongAdder[] buckets = queries.get(index).buckets;
    long sum = 0;
    for (int i = 0; i < buckets.length; i++) {
      sum += buckets[i].sum();
      all.put(i < BOUNDS_S.length ? BOUNDS_S[i] : Double.POSITIVE_INFINITY, sum);
    }
    return all;
  }

  /**
   * Gives the time of all queries together.
   *
   * @param index of which one
   * @return seconds
   */
  public double querySeconds(Index index) {
    return queries.get(index).nanos.sum() / (double) TimeUnit.SECONDS.toNanos(1);
  }

  /**
   * Gives the compare-and-sets.
   *
   * @return how many there were, in a fixed order
   */
  public Map<Decision, Long> decisions() {
    Map<Decision, Long> all = new TreeMap<>();
    decisions.forEach((decision, count) -> all.put(decision, count.sum()));
    return all;
  }
}
