package pulsartxnspark.broker;

import io.netty.util.Timer;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import org.apache.bookkeeper.mledger.ManagedLedgerConfig;
import org.apache.bookkeeper.mledger.ManagedLedgerFactory;
import org.apache.pulsar.broker.TransactionMetadataStoreService;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.TxnAction;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStore;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreProvider;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState.State;
import org.apache.pulsar.transaction.coordinator.TransactionRecoverTracker;
import org.apache.pulsar.transaction.coordinator.TransactionTimeoutTracker;
import org.apache.pulsar.transaction.coordinator.impl.MLTransactionMetadataStoreProvider;
import org.apache.pulsar.transaction.coordinator.impl.MLTransactionSequenceIdGenerator;
import org.apache.pulsar.transaction.coordinator.impl.TxnLogBufferedWriterConfig;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.RedisConnections;
import pulsartxnspark.store.RedisCoordinatorStore;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreSettings;

/**
 * Puts the transaction coordinators of a broker on the metadata store: transactions of Pulsar's own
 * clients and of this package's are of one kind. Named in a broker's {@code
 * transactionMetadataStoreProviderClassName}.
 */
public final class MetadataTransactionCoordinatorProvider
    implements TransactionMetadataStoreProvider {
  private static final Logger log =
      LoggerFactory.getLogger(MetadataTransactionCoordinatorProvider.class);
  private static final int THREADS = 8; // each waits for the store most of its time

  private static final LongSupplier CLOCK_MS =
      () -> TimeUnit.NANOSECONDS.toMillis(System.nanoTime());

  private ScheduledExecutorService threads;
  private CoordinatorStore store;
  private long patienceMs; // of a step: as of one request

  /**
   * Made by the broker when it starts, through reflection.
   *
   * @throws IllegalStateException if the release of the broker is not supported
   */
  public MetadataTransactionCoordinatorProvider() {
    BrokerRelease.require(TransactionMetadataStore.class, MetadataTransactionCoordinator.class);
    BrokerRelease.require(TransactionMetadataStore.class, MigratingCoordinator.class);
  }

  @Override
  public CompletableFuture<TransactionMetadataStore> openStore(
      TransactionCoordinatorID id,
      ManagedLedgerFactory ledgers,
      ManagedLedgerConfig ledgerConfig,
      TransactionTimeoutTracker timeouts,
      TransactionRecoverTracker tracker,
      long mostActive,
      TxnLogBufferedWriterConfig logConfig,
      Timer timer) {
    try {
      BrokerInternals broker = BrokerInternals.of(tracker);
      Properties settings = broker.pulsar().getConfiguration().getProperties();
      connect(settings);
      Timeouts watching = new Timeouts(id, broker.service(), timer);
      MetadataTransactionCoordinator coordinator =
          new MetadataTransactionCoordinator(
              id,
              store,
              new GatedSegments(ledgers::getManagedLedgerPropertiesAsync, CLOCK_MS),
              MetadataTransactionBufferProvider.PINS,
              watching,
              0, // of both coordinators together
              threads,
              patienceMs,
              System::currentTimeMillis,
              () -> broker.service().removeTransactionMetadataStore(id));
      watching.coordinator = coordinator;
      boolean opensOwn =
          MetadataTransactionBufferProvider.flag(settings, "CoordinatorEnabled", true);
      // Whoever has Pulsar's own log open elsewhere is fenced by that.
      return new MLTransactionMetadataStoreProvider()
          .openStore(id, ledgers, ledgerConfig, timeouts, tracker, mostActive, logConfig, timer)
          .thenCompose(
              pulsars ->
                  coordinator
                      .recover(tracker)
                      .thenCompose(
                          ready ->
                              new MigratingCoordinator(
                                      coordinator,
                                      pulsars,
                                      NumberLog.of(pulsars, numbers(ledgerConfig)),
                                      opensOwn,
                                      mostActive)
                                  .prepare())
                      .whenComplete(
                          (ready, error) -> {
                            if (error != null) {
                              coordinator.closeAsync();
                              pulsars.closeAsync();
                            }
                          }))
          .thenApply(
              ready -> {
                long pollIntervalMs = MetadataTransactionBufferProvider.pollIntervalMs(settings);
                new Poller(coordinator, broker.service(), threads, pollIntervalMs, opensOwn).begin();
                return ready;
              });
    } catch (RuntimeException error) {
      log.error("The transaction coordinator {} is not opened", id, error);
      return CompletableFuture.failedFuture(error);
    }
  }

  /** Gives what Pulsar's provider has made to number the transactions of a log. */
  private static MLTransactionSequenceIdGenerator numbers(ManagedLedgerConfig ledgerConfig) {
    return (MLTransactionSequenceIdGenerator) ledgerConfig.getManagedLedgerInterceptor();
  }

  /** Aborts what takes too long. Nobody asks for what has ended before. */
  private static final class Timeouts implements TransactionTimeoutTracker {
    private final TransactionCoordinatorID id;
    private final TransactionMetadataStoreService service;
    private final Timer timer;
    private MetadataTransactionCoordinator coordinator;

    Timeouts(
        TransactionCoordinatorID id, TransactionMetadataStoreService service, Timer timer) {
      this.id = id;
      this.service = service;
      this.timer = timer;
    }

    @Override
    public void addTransaction(long counter, long timeoutMs) {
      timer.newTimeout(
          timeout -> {
            if (coordinator.isOpen(counter)) {
              service.endTransactionForTimeout(new TxnID(id.getId(), counter));
            }
          },
          timeoutMs,
          TimeUnit.MILLISECONDS);
    }

    /** Those that are recovered are in Pulsar's own tracker. */
    @Override
    public void replayAddTransaction(long counter, long deadlineMs) {}

    @Override
    public void start() {}

    @Override
    public void close() {}
  }

  private synchronized void connect(Properties settings) {
    if (store == null) {
      ScheduledThreadPoolExecutor pool =
          new ScheduledThreadPoolExecutor(
              THREADS, MetadataTransactionBufferProvider.daemons("pulsar-txn-spark-tc-"));
      pool.setRemoveOnCancelPolicy(true);
      threads = pool;
      StoreSettings storeSettings = MetadataTransactionBufferProvider.storeSettings(settings);
      patienceMs = storeSettings.timeoutMs();
      RedisConnections connections = new RedisConnections(storeSettings);
      store =
          new RedisCoordinatorStore(
              new Scripts(connections), MetadataTransactionBufferProvider.METRICS);
    }
  }

  /** Polls for what others have decided, as long as a coordinator is open. */
  private static final class Poller implements Runnable {
    private final MetadataTransactionCoordinator coordinator;
    private final TransactionMetadataStoreService service;
    private final ScheduledExecutorService threads;
    private final long intervalMs;
    private boolean tells; // once, when nothing is left
    private Future<?> polling;
    private String complaint;

    Poller(
        MetadataTransactionCoordinator coordinator,
        TransactionMetadataStoreService service,
        ScheduledExecutorService threads,
        long intervalMs,
        boolean opensOwn) {
      this.tells = !opensOwn;
      this.coordinator = coordinator;
      this.service = service;
      this.threads = threads;
      this.intervalMs = intervalMs;
    }

    synchronized void begin() {
      polling =
          threads.scheduleWithFixedDelay(this, intervalMs, intervalMs, TimeUnit.MILLISECONDS);
    }

    @Override
    public synchronized void run() {
      if (coordinator.getState() != State.Ready) {
        polling.cancel(false);
        return;
      }
      try {
        int untold = coordinator.tellAgain();
        for (TxnID txn : coordinator.decidedByOthers()) {
          log.info("transaction {} was aborted by others, and is ended now", txn);
          // Only an owner commits, and the owner is here.
          service.endTransaction(txn, TxnAction.ABORT_VALUE, false);
        }
        if (tells && untold == 0 && coordinator.getMetadataStoreStats().getActives() == 0) {
          tells = false;
          log.info(
              "Coordinator {}: every transaction of the metadata store is ended."
                  + " transactionMetadataStoreProviderClassName may be taken out",
              coordinator.getTransactionCoordinatorID());
        }
        complaint = null;
      } catch (RuntimeException error) { // any: who polls no more lets others wait for ever
        if (!String.valueOf(error.getMessage()).equals(complaint)) {
          complaint = String.valueOf(error.getMessage());
          log.warn("The coordinator does not learn what others have decided", error);
        }
      }
    }
  }
}
