package pulsartxnspark.broker;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.function.Supplier;
import org.apache.bookkeeper.mledger.Position;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.transaction.pendingack.PendingAckStore;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.store.AckStore;

/**
 * The pending acks of a subscription of Pulsar's, in the metadata store. What becomes of them is what
 * the header of their transaction says, whoever tells the subscription of it. {@code
 * docs/broker-transactions.md} has the states and the table of failures.
 *
 * <p>Everything is done by the one thread of Pulsar's handle, but what waits for the store.
 */
final class MetadataPendingAckStore implements PendingAckStore {
  private static final Logger log = LoggerFactory.getLogger(MetadataPendingAckStore.class);

  private final AckParts parts;
  private final AckReplay replay;
  private final AckPoller poller;

  /**
   * Makes a store; it is to be replayed first.
   *
   * @param subscription what it belongs to
   * @param name by which the metadata store knows it
   * @param records what was found there
   * @param environment what it asks
   * @param pulsars the pending acks that Pulsar's own store has; null if it has none
   * @param opensPulsars makes such a store
   */
  MetadataPendingAckStore(
      PersistentSubscription subscription,
      AckStore.Subscription name,
      AckReplay.Found records,
      AckEnvironment environment,
      PendingAckStore pulsars,
      Supplier<CompletableFuture<PendingAckStore>> opensPulsars) {
    HandledSubscription handled = new HandledSubscription(subscription, environment);
    parts =
        new AckParts(
            handled,
            new AckTransactions(environment.clockMs()),
            new AckSteps(handled, name, records.opened().owner(), environment),
            new PulsarsPendingAcks(pulsars, opensPulsars),
            environment);
    replay = new AckReplay(parts, records);
    poller = new AckPoller(parts);
  }

  @Override
  public void replayAsync(PendingAckHandleImpl handle, ExecutorService executor) {
    parts.subscription().begin(handle, executor);
    if (!parts.pulsars().replay(handle, executor, this::tryReplay)) {
      executor.execute(
          () -> {
            if (tryReplay()) {
              parts.subscription().complete();
            }
          });
    }
  }

  /** Replays; tells whether the handle may be completed. If not, all begins anew. */
  private boolean tryReplay() {
    if (!parts.subscription().isReplayed()) {
      return true; // it is closed, or Pulsar's own replay has failed
    }
    AckMetrics metrics = parts.environment().metrics();
    try {
      replay.replay();
      poller.begin();
      parts.steps().pump();
      metrics.count(AckMetrics.Replay.OK);
      metrics.load(parts.txns());
      if (parts.steps().isOver()) {
        metrics.unload(parts.txns()); // it was closed meanwhile
      }
      return true;
    } catch (RuntimeException error) {
      metrics.count(AckMetrics.Replay.FAILED);
      log.error("The pending acks of {} are not replayed", parts.subscription(), error);
      parts.subscription().failReplay(error);
      return false;
    }
  }

  @Override
  public CompletableFuture<Void> appendIndividualAck(
      TxnID txnId, List<MutablePair<Position, Integer>> positions) {
    if (positions.isEmpty()) { // clients send one for a list without messages
      return CompletableFuture.completedFuture(null);
    }
    return parts
        .steps()
        .take(new AckAppend(parts, txnId, AckRecord.individual(positions), positions));
  }

  @Override
  public CompletableFuture<Void> appendCumulativeAck(TxnID txnId, Position position) {
    return parts.steps().take(new AckAppend(parts, txnId, AckRecord.cumulative(position), null));
  }

  @Override
  public CompletableFuture<Void> appendCommitMark(TxnID txnId, AckType type) {
    return parts.steps().take(AckEnd.told(parts, txnId, true, type));
  }

  @Override
  public CompletableFuture<Void> appendAbortMark(TxnID txnId, AckType type) {
    return parts.steps().take(AckEnd.told(parts, txnId, false, type));
  }

  @Override
  public CompletableFuture<Void> closeAsync() {
    poller.close();
    parts.steps().close();
    parts.environment().metrics().unload(parts.txns());
    return parts.pulsars().close();
  }
}
