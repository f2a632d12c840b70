package pulsartxnspark.broker;

import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.LongSupplier;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.broker.transaction.buffer.TransactionBuffer;
import org.apache.pulsar.broker.transaction.buffer.TransactionBufferProvider;
import pulsartxnspark.store.EventFollower;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.RedisSegmentStore;
import pulsartxnspark.store.RedisTransactionStore;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreMetrics;
import pulsartxnspark.store.StoreSettings;
import pulsartxnspark.store.TransactionStore;

/**
 * Gives gated segments a {@link MetadataTransactionBuffer}, and every other topic the buffer that it
 * would have without this plug-in. Named in a broker's {@code transactionBufferProviderClassName}.
 */
public final class MetadataTransactionBufferProvider implements TransactionBufferProvider {
  /** Topic property with the segment's id. */
  public static final String SEGMENT_PROPERTY = "pulsar_txn_spark.segment";

  /** Topic property that says who gates the segment. */
  public static final String GATE_PROPERTY = "pulsar_txn_spark.gate";

  /** Topic property with the uuid of the segment's metadata store. */
  public static final String STORE_PROPERTY = "pulsar_txn_spark.store";

  private static final String GATED_BY_BROKER = "broker";
  private static final String PREFIX = "pulsarTxnSpark";
  private static final int THREADS = 4; // each waits for the store most of its time

  /** What this broker has counted, its coordinators included. */
  static final StoreMetrics METRICS = new StoreMetrics();

  /** What it has counted of pending acks. */
  static final AckMetrics ACK_METRICS = new AckMetrics();

  /** What the coordinators of this broker tell its segments. */
  static final KnownPins PINS =
      new KnownPins(() -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime()));

  private TransactionBufferProvider others;
  private BrokerStore store;

  /**
   * Made by the broker when it starts, through reflection.
   *
   * @throws IllegalStateException if the release of the broker is not supported
   */
  public MetadataTransactionBufferProvider() {
    BrokerRelease.require(TransactionBuffer.class, MetadataTransactionBuffer.class);
  }

  @Override
  public TransactionBuffer newTransactionBuffer(Topic topic) {
    PersistentTopic persistent = (PersistentTopic) topic;
    PulsarService pulsar = persistent.getBrokerService().getPulsar();
    Properties settings = pulsar.getConfiguration().getProperties();
    Map<String, String> marks = persistent.getManagedLedger().getProperties();
    Optional<GatedSegments.Segment> segment = gatedSegment(marks);
    if (segment.isEmpty()) {
      return others(settings).newTransactionBuffer(topic);
    }
    return new MetadataTransactionBuffer(
        new PersistentTopicLog(persistent),
        segment.get().id(),
        segment.get().storeUuid(),
        store(pulsar, settings));
  }

  /**
   * Reads the marks of a topic.
   *
   * @param marks properties of its managed ledger
   * @return the segment that it is, or nothing for any other topic
   */
  static Optional<GatedSegments.Segment> gatedSegment(Map<String, String> marks) {
    String segment = marks.get(SEGMENT_PROPERTY);
    if (segment == null || !GATED_BY_BROKER.equals(marks.get(GATE_PROPERTY))) {
      return Optional.empty();
    }
    return Optional.of(
        new GatedSegments.Segment(segment, marks.getOrDefault(STORE_PROPERTY, "")));
  }

  private synchronized TransactionBufferProvider others(Properties settings) {
    if (others == null) {
      String name =
          setting(
              settings,
              "DelegateProviderClassName",
              new ServiceConfiguration().getTransactionBufferProviderClassName());
      try {
        others = TransactionBufferProvider.newProvider(name);
      } catch (IOException error) {
        throw new IllegalArgumentException(
            PREFIX + "DelegateProviderClassName: there is no provider " + name, error);
      }
    }
    return others;
  }

  /** The first gated segment connects; a broker without any never asks the store for anything. */
  private synchronized BrokerStore store(PulsarService pulsar, Properties settings) {
    if (store == null) {
      RedisConnections connections = new RedisConnections(storeSettings(settings));
      ScheduledThreadPoolExecutor threads =
          new ScheduledThreadPoolExecutor(THREADS, daemons("pulsar-txn-spark-"));
      threads.setRemoveOnCancelPolicy(true);
      Scripts scripts = new Scripts(connections);
      long pollIntervalMs = pollIntervalMs(settings);
      TransactionStore transactions = new RedisTransactionStore(scripts, METRICS);
      LongSupplier clockMs = () -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
      TransactionHelper helper =
          new TransactionHelper(transactions, threads, pollIntervalMs, clockMs);
      String cluster = pulsar.getConfiguration().getClusterName();
      pulsar.addPrometheusRawMetricsProvider(
          new BrokerMetrics(
              cluster,
              METRICS,
              ACK_METRICS,
              transactions,
              threads,
              clockMs));
      store =
          new BrokerStore(
              new RedisSegmentStore(scripts, METRICS),
              new EventFollower(connections),
              flag(settings, "HelperEnabled", true) ? helper : null,
              threads,
              pollIntervalMs,
              coordinates(pulsar) ? new RedisCoordinatorStore(scripts, METRICS) : null,
              PINS,
              clockMs);
    }
    return store;
  }

  /** Tells whether the broker's coordinators are on the metadata store. */
  static boolean coordinates(PulsarService pulsar) {
    return MetadataTransactionCoordinatorProvider.class
        .getName()
        .equals(pulsar.getConfiguration().getTransactionMetadataStoreProviderClassName());
  }

  /**
   * Reads how often to poll without an event.
   *
   * @param settings as they are in broker.conf
   * @return milliseconds
   */
  static long pollIntervalMs(Properties settings) {
    return positive(settings, "PollIntervalMs", 1_000);
  }

  /**
   * Reads the settings of a broker.
   *
   * @param settings as they are in broker.conf
   * @return where the metadata store is
   * @throws IllegalArgumentException if one is missing or malformed
   */
  static StoreSettings storeSettings(Properties settings) {
    String url = setting(settings, "StoreUrl", "");
    if (url.isEmpty()) {
      throw new IllegalArgumentException(
          PREFIX + "StoreUrl is not set: expected the metadata store's URL in broker.conf");
    }
    return StoreSettings.of(
            url,
            setting(settings, "StoreUsername", ""),
            setting(settings, "StorePassword", ""),
            StoreSettings.Tls.of(
                setting(settings, "StoreTlsCaFile", ""),
                setting(settings, "StoreTlsCertFile", ""),
                setting(settings, "StoreTlsKeyFile", ""),
                flag(settings, "StoreTlsVerifyHost", true)),
            positive(settings, "StoreTimeoutMs", 5_000))
        .accepting(
            flag(settings, "StoreAcceptDataLoss", false),
            flag(settings, "StoreAssumeDurable", false));
  }

  /**
   * Reads a setting.
   *
   * @param settings as they are in broker.conf
   * @param name without the prefix
   * @param otherwise where it is not set
   * @return its value
   */
  static String setting(Properties settings, String name, String otherwise) {
    String value = settings.getProperty(PREFIX + name, "").trim();
    return value.isEmpty() ? otherwise : value;
  }

  private static int positive(Properties settings, String name, int otherwise) {
    String value = setting(settings, name, Integer.toString(otherwise));
    try {
      int number = Integer.parseInt(value);
      if (number > 0) {
        return number;
      }
    } catch (NumberFormatException error) {
      // Said below.
    }
    throw new IllegalArgumentException(
        PREFIX + name + ": expected a positive number, found '" + value + "'");
  }

  /**
   * Reads a setting that is on or off.
   *
   * @param settings as they are in broker.conf
   * @param name without the prefix
   * @param otherwise where it is not set
   * @return whether it is on
   * @throws IllegalArgumentException if it is neither
   */
  static boolean flag(Properties settings, String name, boolean otherwise) {
    String value = setting(settings, name, Boolean.toString(otherwise));
    if (!value.equals("true") && !value.equals("false")) {
      throw new IllegalArgumentException(
          PREFIX + name + ": expected true or false, found '" + value + "'");
    }
    return value.equals("true");
  }

  static ThreadFactory daemons(String prefix) {
    AtomicInteger number = new AtomicInteger();
    return task -> {
      Thread thread = new Thread(task, prefix + number.getAndIncrement());
      thread.setDaemon(true);
      return thread;
    };
  }
}
