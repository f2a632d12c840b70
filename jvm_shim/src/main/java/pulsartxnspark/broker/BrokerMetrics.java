package pulsartxnspark.broker;

import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executor;
import java.util.function.LongSupplier;
import org.apache.pulsar.broker.stats.prometheus.PrometheusRawMetricsProvider;
import org.apache.pulsar.common.util.SimpleTextOutputStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.StoreException;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.TransactionStore;

/**
 * PIP-471's metrics on the broker's own endpoint, and those of pending acks. Most of them are this
 * broker's. The two of operation records are read from the metadata store, in the background, so that
 * no scrape waits for it.
 */
final class BrokerMetrics implements PrometheusRawMetricsProvider {
  static final String OP_WRITES = "pulsar_txn_metadata_store_op_writes_total";
  static final String HEADER_CAS = "pulsar_txn_metadata_store_header_cas_total";
  static final String INDEX_QUERY = "pulsar_txn_metadata_store_index_query_seconds";
  static final String OUTSTANDING = "pulsar_txn_metadata_store_outstanding_op_records";
  static final String PENDING_ACKS = "pulsar_txn_metadata_store_pending_acks";
  static final String ACK_REPLAYS = "pulsar_txn_metadata_store_pending_ack_replays_total";
  static final String ACK_REFUSALS = "pulsar_txn_metadata_store_pending_ack_refusals_total";

  private static final Logger log = LoggerFactory.getLogger(BrokerMetrics.class);
  private static final long KEPT_MS = 10_000; // shorter than most intervals between scrapes

  private final String cluster;
  private final StoreMetrics own;
  private final AckMetrics acks;
  private final TransactionStore transactions;
  private final Executor threads;
  private final LongSupplier clockMs;

  // Guarded by this.
  private Map<Integer, Map<String, Long>> counts = Map.of(); // empty: not known
  private long nextReadMs = Long.MIN_VALUE;

  /**
   * Makes a provider.
   *
   * @param cluster name of the Pulsar cluster, as on the broker's other metrics
   * @param own what this broker has counted of its requests to the store
   * @param acks what it has counted of pending acks
   * @param transactions where the counts of everybody are
   * @param threads for whatever waits for the store
   * @param clockMs a clock that never goes back
   */
  BrokerMetrics(
      String cluster,
      StoreMetrics own,
      AckMetrics acks,
      TransactionStore transactions,
      Executor threads,
      LongSupplier clockMs) {
    this.cluster = cluster;
    this.own = own;
    this.acks = acks;
    this.transactions = transactions;
    this.threads = threads;
    this.clockMs = clockMs;
  }

  @Override
  public void generate(SimpleTextOutputStream stream) {
    StringBuilder text = new StringBuilder();
    Map<Integer, Map<String, Long>> known = latest();
    writeCounts(text, OP_WRITES, "counter", known);
    writeCounts(text, OUTSTANDING, "gauge", known);
    type(text, HEADER_CAS, "counter");
    own.decisions()
        .forEach(
            (decision, count) -> {
              String labels = coordinator(decision.tc()) + "," + label("result", decision.result());
              sample(text, HEADER_CAS, labels, count);
            });
    type(text, INDEX_QUERY, "histogram");
    for (StoreMetrics.Index index : StoreMetrics.Index.values()) {
      writeQueries(text, index);
    }
    writePendingAcks(text);
    stream.write(text.toString());
  }

  private void writeQueries(StringBuilder text, StoreMetrics.Index index) {
    String label = label("index", index);
    long all = 0;
    for (Map.Entry<Double, Long> bucket : own.queries(index).entrySet()) {
      double bound = bucket.getKey();
      String shown = Double.isInfinite(bound) ? "+Inf" : Double.toString(bound);
      all = bucket.getValue();
      sample(text, INDEX_QUERY + "_bucket", label + ",le=\"" + shown + "\"", all);
    }
    sample(text, INDEX_QUERY + "_sum", label, own.querySeconds(index));
    sample(text, INDEX_QUERY + "_count", label, all);
  }

  private void writePendingAcks(StringBuilder text) {
    type(text, PENDING_ACKS, "gauge");
    sample(text, PENDING_ACKS, "state=\"open\"", acks.open());
    sample(text, PENDING_ACKS, "state=\"decided\"", acks.decided());
    type(text, ACK_REPLAYS, "counter");
    for (AckMetrics.Replay result : AckMetrics.Replay.values()) {
      sample(text, ACK_REPLAYS, label("result", result), acks.replays(result));
    }
    type(text, ACK_REFUSALS, "counter");
    for (AckMetrics.Refusal cause : AckMetrics.Refusal.values()) {
      sample(text, ACK_REFUSALS, label("cause", cause), acks.refusals(cause));
    }
  }

  private static void type(StringBuilder text, String metric, String kind) {
    text.append("# TYPE ").append(metric).append(' ').append(kind).append('\n');
  }

  private static String label(String name, Enum<?> value) {
    String shown = value.name().toLowerCase(Locale.ROOT).replace('_', '-');
    return name + "=\"" + shown + "\"";
  }

  private void writeCounts(
      StringBuilder text, String metric, String kind, Map<Integer, Map<String, Long>> known) {
    type(text, metric, kind);
    known.forEach(
        (tc, values) -> sample(text, metric, coordinator(tc), values.getOrDefault(metric, 0L)));
  }

  private static String coordinator(int tc) {
    return "coordinator_id=\"" + tc + "\"";
  }

  private void sample(StringBuilder text, String name, String labels, Number value) {
    text.append(name).append("{cluster=\"").append(cluster).append("\",").append(labels);
    text.append("} ").append(value).append('\n');
  }

  /** Gives the counts that were read last, and has them read again if they are old. */
  private synchronized Map<Integer, Map<String, Long>> latest() {
    long now = clockMs.getAsLong();
    if (now >= nextReadMs) {
      nextReadMs = now + KEPT_MS;
      threads.execute(this::read);
    }
    return counts;
  }

  private void read() {
    Optional<Map<Integer, Map<String, Long>>> fresh = Optional.empty();
    try {
      fresh = Optional.of(transactions.counts());
    } catch (StoreException error) {
      log.debug("the counts of the metadata store are not known now", error);
    }
    synchronized (this) {
      counts = fresh.orElse(Map.of()); // left out rather than old
    }
  }
}
