package pulsartxnspark.broker;

import java.io.IOException;
import java.security.SecureRandom;
import java.util.Collections;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.WeakHashMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.broker.transaction.pendingack.PendingAckStore;
import org.apache.pulsar.broker.transaction.pendingack.TransactionPendingAckStoreProvider;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.broker.Decisions.Decision;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.AckStore.Opened;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.RedisAckStore;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.RedisTransactionStore;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreException;
import pulsartxnspark.store.StoreRolledBackException;
import pulsartxnspark.store.StoreSettings;
import pulsartxnspark.store.TransactionStore;

/**
 * Gives subscriptions of gated segments a {@link MetadataPendingAckStore}, and all others the store
 * that they would have without this plug-in. Named in a broker's {@code
 * transactionPendingAckStoreProviderClassName}.
 */
public final class MetadataPendingAckStoreProvider implements TransactionPendingAckStoreProvider {
  /**
   * Property of a cursor whose pending acks are in the metadata store: the id by which it has them.
   * Nobody takes it away who sets the properties of a subscription.
   */
  static final String CURSOR_PROPERTY =
      ManagedCursor.CURSOR_INTERNAL_PROPERTY_PREFIX + "pulsar_txn_spark.acks";

  private static final Logger log = LoggerFactory.getLogger(MetadataPendingAckStoreProvider.class);
  private static final SecureRandom RANDOM = new SecureRandom();
  private static final int THREADS = 4; // each waits for the store most of its time

  private static final LongSupplier CLOCK_MS =
      () -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime());

  private TransactionPendingAckStoreProvider pulsars; // null until a subscription is loaded
  // Those that wait for the store, with the ids that their cursors are to get. Pulsar opens them again,
  // where it is told that there is something.
  private final Map<PersistentSubscription, String> waiting =
      Collections.synchronizedMap(new WeakHashMap<>());
  private Shared shared;

  /** What the subscriptions of a broker share. */
  record Shared(AckEnvironment environment, CoordinatorStore coordinators) {}

  /**
   * Made by the broker when it starts, through reflection.
   *
   * @throws IllegalStateException if the release of the broker is not supported
   */
  public MetadataPendingAckStoreProvider() {
    this(null, null);
    BrokerRelease.require(PendingAckStore.class, MetadataPendingAckStore.class);
    PendingAckHandles.require();
  }

  /**
   * Makes a provider.
   *
   * @param pulsars makes the stores of all other subscriptions; null for what the settings say
   * @param shared what the subscriptions share; null for what the broker's settings say
   */
  MetadataPendingAckStoreProvider(TransactionPendingAckStoreProvider pulsars, Shared shared) {
    this.pulsars = pulsars;
    this.shared = shared;
  }

  private static Optional<GatedSegments.Segment> segment(PersistentSubscription subscription) {
    PersistentTopic topic = (PersistentTopic) subscription.getTopic();
    return MetadataTransactionBufferProvider.gatedSegment(topic.getManagedLedger().getProperties());
  }

  private static String cursorId(PersistentSubscription subscription) {
    Map<String, String> properties = subscription.getCursor().getCursorProperties();
    return properties == null ? null : properties.get(CURSOR_PROPERTY);
  }

  private static PulsarService pulsar(PersistentSubscription subscription) {
    return subscription.getTopic().getBrokerService().getPulsar();
  }

  /** Gives who makes the stores that all subscriptions would have without this plug-in. */
  private synchronized TransactionPendingAckStoreProvider pulsars(
      PersistentSubscription subscription) {
    if (pulsars == null) {
      String name =
          MetadataTransactionBufferProvider.setting(
              pulsar(subscription).getConfiguration().getProperties(),
              "DelegatePendingAckProviderClassName",
              new ServiceConfiguration().getTransactionPendingAckStoreProviderClassName());
      try {
        pulsars = TransactionPendingAckStoreProvider.newProvider(name);
      } catch (IOException error) {
        throw new IllegalArgumentException(
            "pulsarTxnSparkDelegatePendingAckProviderClassName: there is no provider " + name,
            error);
      }
    }
    return pulsars;
  }

  @Override
  public CompletableFuture<Boolean> checkInitializedBefore(PersistentSubscription subscription) {
    return cursorId(subscription) != null || waiting.containsKey(subscription)
        ? CompletableFuture.completedFuture(true)
        : pulsars(subscription).checkInitializedBefore(subscription);
  }

  @Override
  public CompletableFuture<PendingAckStore> newPendingAckStore(
      PersistentSubscription subscription) {
    Optional<GatedSegments.Segment> segment = segment(subscription);
    boolean isKnown = cursorId(subscription) != null;
    Shared store;
    try {
      if (segment.isEmpty() && isKnown) {
        throw new IllegalStateException(
            "subscription "
                + subscription.getName()
                + " has pending acks in the metadata store, but its topic has not the properties of a"
                + " segment: restore them");
      }
      if (segment.isEmpty()
          || !subscription.getCursor().isDurable()
          || !isKnown && !takesNew(pulsar(subscription))) {
        return pulsars(subscription).newPendingAckStore(subscription);
      }
      store = shared(pulsar(subscription));
    } catch (RuntimeException error) {
      return CompletableFuture.failedFuture(error);
    }
    return opened(subscription, segment.get(), store)
        .whenComplete(
            (opened, error) -> {
              if (error == null) {
                waiting.remove(subscription);
              }
            });
  }

  private CompletableFuture<PendingAckStore> opened(
      PersistentSubscription subscription, GatedSegments.Segment segment, Shared store) {
    AckStore.Subscription name =
        new AckStore.Subscription(segment.id(), subscription.getName());
    CompletableFuture<PendingAckStore> result =
        named(subscription, segment, name, store)
            .thenApplyAsync(
                id -> open(subscription, segment, name, id, store), store.environment().threads())
            .thenCompose(
                records ->
                    beside(subscription)
                        .thenApply(
                            beside ->
                                new MetadataPendingAckStore(
                                    subscription,
                                    name,
                                    records,
                                    store.environment(),
                                    beside.orElse(null),
                                    () -> pulsars(subscription).newPendingAckStore(subscription))));
    return result.exceptionallyCompose(
        error -> {
          Throwable cause = error.getCause() == null ? error : error.getCause();
          store.environment().metrics().count(AckMetrics.Replay.FAILED);
          log.warn("The pending acks of {} are not opened yet", subscription, cause);
          return CompletableFuture.failedFuture(shown(subscription, cause, store));
        });
  }

  /** Gives an error as Pulsar takes it: it asks again after that of a managed ledger. */
  private static Throwable shown(
      PersistentSubscription subscription, Throwable cause, Shared store) {
    if (cause instanceof ManagedLedgerException.BadVersionException) {
      // The cursor in this broker is not what is stored, and takes no change until it is read again.
      HandledSubscription.reload(subscription, store.environment().threads());
      return new ServiceUnitNotReadyException("its cursor was changed elsewhere");
    }
    return cause instanceof StoreException
        ? new ManagedLedgerException(cause.getMessage())
        : cause;
  }

  /**
   * Gives the id that the cursor has. A new one is noted first, then the cursor gets it by its own
   * compare-and-set. Nothing that the store has of the subscription is touched before.
   */
  private CompletableFuture<String> named(
      PersistentSubscription subscription,
      GatedSegments.Segment segment,
      AckStore.Subscription name,
      Shared store) {
    String known = cursorId(subscription);
    if (known != null) {
      return CompletableFuture.completedFuture(known);
    }
    String id = waiting.computeIfAbsent(subscription, key -> newId());
    return CompletableFuture.runAsync(
            () -> {
              requireStore(segment, store);
              requireOpen(subscription);
              store.environment().acks().note(name, id);
              requireOpen(subscription);
            },
            store.environment().threads())
        .thenCompose(done -> subscription.getCursor().putCursorProperty(CURSOR_PROPERTY, id))
        .thenApply(done -> id);
  }

  private static AckReplay.Found open(
      PersistentSubscription subscription,
      GatedSegments.Segment segment,
      AckStore.Subscription name,
      String id,
      Shared store) {
    requireStore(segment, store);
    requireOpen(subscription);
    Opened opened = store.environment().acks().open(name, id);
    requireOpen(subscription);
    Map<TxnID, Decision> decisions = new HashMap<>();
    for (TxnID txn : AckTransactions.undecided(opened.records())) {
      decisions.put(txn, store.environment().decisions().of(txn));
    }
    return new AckReplay.Found(opened, decisions);
  }

  /**
   * Refuses a subscription that was unloaded. Pulsar's handle opens it again nevertheless, if the
   * store did not answer before; and whoever has it now would be fenced.
   */
  private static void requireOpen(PersistentSubscription subscription) {
    if (subscription.getCursor().isClosed()) {
      throw new CompletionException(
          new ServiceUnitNotReadyException(
              "subscription " + subscription.getName() + " is closed, and is not opened again"));
    }
  }

  private static void requireStore(GatedSegments.Segment segment, Shared store) {
    String actual = store.coordinators().uuid();
    if (!actual.equals(segment.storeUuid())) {
      throw new StoreRolledBackException(
          "the segment belongs to metadata store "
              + segment.storeUuid()
              + ", but pulsarTxnSparkStoreUrl names store "
              + actual
              + ": correct the URL");
    }
  }

  private static String newId() {
    byte[] random = new byte[8];
    RANDOM.nextBytes(random);
    return HexFormat.of().formatHex(random);
  }

  /** Opens what Pulsar's own store has of the subscription. */
  private CompletableFuture<Optional<PendingAckStore>> beside(PersistentSubscription subscription) {
    TransactionPendingAckStoreProvider others = pulsars(subscription);
    return others
        .checkInitializedBefore(subscription)
        .thenCompose(
            has ->
                has
                    ? others.newPendingAckStore(subscription).thenApply(Optional::of)
                    : CompletableFuture.completedFuture(Optional.empty()));
  }

  /** Tells whether transactions may have their pending acks in the metadata store from now on. */
  private synchronized boolean takesNew(PulsarService pulsar) {
    return shared == null ? isEnabled(pulsar) : shared.environment().takesNew();
  }

  private static boolean isEnabled(PulsarService pulsar) {
    return MetadataTransactionBufferProvider.coordinates(pulsar)
        && MetadataTransactionBufferProvider.flag(
            pulsar.getConfiguration().getProperties(), "PendingAcksEnabled", true);
  }

  /** The first subscription connects. */
  private synchronized Shared shared(PulsarService pulsar) {
    if (shared == null) {
      Properties settings = pulsar.getConfiguration().getProperties();
      StoreSettings store = MetadataTransactionBufferProvider.storeSettings(settings);
      long pollIntervalMs = MetadataTransactionBufferProvider.pollIntervalMs(settings);
      boolean helps = MetadataTransactionBufferProvider.flag(settings, "HelperEnabled", true);
      Scripts scripts = new Scripts(new RedisConnections(store));
      TransactionStore transactions =
          new RedisTransactionStore(scripts, MetadataTransactionBufferProvider.METRICS);
      CoordinatorStore coordinators =
          new RedisCoordinatorStore(scripts, MetadataTransactionBufferProvider.METRICS);
      Executor threads =
          Executors.newFixedThreadPool(
              THREADS, MetadataTransactionBufferProvider.daemons("pulsar-txn-spark-acks-"));
      TransactionHelper helper =
          new TransactionHelper(transactions, threads, pollIntervalMs, CLOCK_MS);
      shared =
          new Shared(
              new AckEnvironment(
                  new RedisAckStore(scripts, MetadataTransactionBufferProvider.METRICS),
                  Decisions.of(transactions, coordinators),
                  helps ? helper::inTheWay : open -> { },
                  threads,
                  timer(),
                  pollIntervalMs,
                  2L * store.timeoutMs(),
                  CLOCK_MS,
                  isEnabled(pulsar),
                  MetadataTransactionBufferProvider.ACK_METRICS),
              coordinators);
    }
    return shared;
  }

  private static ScheduledExecutorService timer() {
    ScheduledThreadPoolExecutor timer =
        new ScheduledThreadPoolExecutor(
            1, MetadataTransactionBufferProvider.daemons("pulsar-txn-spark-acks-timer-"));
    timer.setRemoveOnCancelPolicy(true);
    return timer;
  }
}
