package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.impl.AckSetStateUtil;
import org.apache.bookkeeper.mledger.util.PositionAckSetUtil;
import org.apache.pulsar.broker.service.persistent.PersistentDispatcherSingleActiveConsumer;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.apache.pulsar.common.api.proto.TxnAction;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A subscription with Pulsar's own handle of its pending acks: what they know of messages, and what
 * they are to do. All of it in the one thread of the handle, but {@link #run}, {@link #later} and
 * {@link #complain}.
 */
final class HandledSubscription {
  private static final Logger log = LoggerFactory.getLogger(HandledSubscription.class);

  private final PersistentSubscription subscription;
  private final AckEnvironment environment;
  private PendingAckHandleImpl handle; // null until it is replayed
  private volatile Executor executor; // the thread of the handle; null until then
  private String complaint;

  /**
   * Makes one; it is to be given its handle first.
   *
   * @param subscription of Pulsar's
   * @param environment what all subscriptions share
   */
  HandledSubscription(PersistentSubscription subscription, AckEnvironment environment) {
    this.subscription = subscription;
    this.environment = environment;
  }

  @Override
  public String toString() {
    return String.valueOf(subscription);
  }

  // --- its thread -----------------------------------------------------------------------------------

  /** Pulsar begins the replay. */
  void begin(PendingAckHandleImpl replayed, Executor its) {
    handle = replayed;
    executor = its;
  }

  /** Runs a task in the thread of the handle. */
  void run(Runnable task) {
    Executor known = executor;
    if (known == null) {
      return; // nothing is replayed, and nothing waits
    }
    try {
      known.execute(task);
    } catch (RejectedExecutionException closing) {
      log.debug("The broker is closing", closing);
    }
  }

  /** Runs a task in the thread of the handle, after a pause. */
  void later(long pauseMs, Runnable task) {
    try {
      environment.timer().schedule(() -> run(task), pauseMs, TimeUnit.MILLISECONDS);
    } catch (RejectedExecutionException closing) {
      log.debug("The broker is closing", closing);
    }
  }

  /** Logs what is the matter, once; null if nothing is any more. */
  synchronized void complain(String why) {
    if (why != null && !why.equals(complaint)) {
      log.warn("Pending acks of {}: {}", subscription, why);
    }
    complaint = why;
  }

  /** Closes its topic, so that it is loaded anew where it belongs. */
  void reload() {
    reload(subscription, environment.threads());
  }

  /** Closes the topic of a subscription, so that it is loaded anew where it belongs. */
  static void reload(PersistentSubscription subscription, Executor threads) {
    log.warn("The topic of {} is closed, to be loaded anew", subscription);
    threads.execute(
        () ->
            subscription
                .getTopic()
                .close(false)
                .exceptionally(
                    error -> {
                      log.warn("The topic of {} is not closed", subscription, error);
                      return null;
                    }));
  }

  // --- its replay -----------------------------------------------------------------------------------

  /** Tells whether the handle is replayed now: it is not closed, and nothing has failed. */
  boolean isReplayed() {
    return PendingAckHandles.isReplayed(handle);
  }

  /** Lets the handle take acknowledgements from clients. */
  void complete() {
    PendingAckHandles.complete(handle);
  }

  /** Lets the handle begin anew. */
  void failReplay(Exception error) {
    handle.exceptionHandleFuture(new ManagedLedgerException(error));
  }

  /** Locks what nobody else has locked, as the handle does it in a replay. */
  void lock(TxnID txn, AckRecord record) {
    for (AckRecord.Entry entry : record.entries()) {
      if (record.cumulative()) {
        PendingAckHandles.lockCumulative(handle, txn, entry.position());
      } else if (!conflicts(entry)) {
        PendingAckHandles.lockIndividual(handle, txn, entry);
      }
    }
  }

  // --- what is locked, and acknowledged -------------------------------------------------------------

  boolean isCursorClosed() {
    return subscription.getCursor().isClosed();
  }

  /** Tells whether everything up to a position is acknowledged, as far as this broker knows. */
  boolean isBehind(Position position) {
    return position.compareTo(subscription.getCursor().getMarkDeletedPosition()) <= 0;
  }

  /** Gives the position up to which everything is acknowledged after a crash; may be null. */
  Position persistent() {
    return subscription.getCursor().getPersistentMarkDeletedPosition();
  }

  /** Gives what is locked up to a position; null if nothing is. */
  PendingAckHandles.UpTo lockedUpTo() {
    return PendingAckHandles.cumulative(handle);
  }

  boolean hasLockedUpTo(TxnID txn) {
    PendingAckHandles.UpTo locked = lockedUpTo();
    return locked != null && locked.txn().equals(txn);
  }

  /** Lets the handle lock up to a position what it had locked before; null for nothing. */
  void restoreUpTo(PendingAckHandles.UpTo before) {
    PendingAckHandles.restoreCumulative(handle, before);
  }

  /** Tells whether the handle would refuse what a transaction acknowledges. */
  boolean refuses(TxnID txn, AckRecord record) {
    if (!record.cumulative()) {
      return conflicts(record);
    }
    PendingAckHandles.UpTo locked = lockedUpTo();
    Position position = record.entries().get(0).position();
    return locked != null
        && (!locked.txn().equals(txn)
            || PositionAckSetUtil.compareToWithAckSet(position, locked.position()) <= 0);
  }

  boolean conflicts(AckRecord record) {
    return record.entries().stream().anyMatch(this::conflicts);
  }

  /** Tells whether a message is acknowledged, or locked by a transaction. */
  private boolean conflicts(AckRecord.Entry entry) {
    Position key = entry.key();
    if (subscription.getCursor().isMessageDeleted(key)) {
      return true;
    }
    Position locked = handle.getPositionInPendingAck(key);
    if (entry.left() == null) {
      return locked != null;
    }
    if (locked != null && !AckSetStateUtil.hasAckSet(locked)) {
      return true;
    }
    return overlap(entry, subscription.getCursor().getBatchPositionAckSet(key))
        || locked != null && overlap(entry, AckSetStateUtil.getAckSetArrayOrNull(locked));
  }

  private static boolean overlap(AckRecord.Entry entry, long[] left) {
    if (left == null) {
      return false;
    }
    BitSet both = acknowledged(entry.left(), entry.batchSize());
    both.and(acknowledged(left, entry.batchSize()));
    return !both.isEmpty();
  }

  /** Without the batch's size (0) nobody knows which bits are messages; the handle takes none then. */
  private static BitSet acknowledged(long[] left, int batchSize) {
    BitSet bits = BitSet.valueOf(left);
    bits.flip(0, batchSize);
    return bits.get(0, batchSize);
  }

  // --- what is done ---------------------------------------------------------------------------------

  @SuppressWarnings("deprecation") // later releases have another method beside it
  void acknowledge(List<Position> positions, AckType type) {
    subscription.acknowledgeMessage(positions, type, Map.of());
  }

  /** Delivers messages again that nobody has locked, to whom Pulsar does so after an abort. */
  void redeliver(AckRecord record) {
    List<Position> free =
        record.entries().stream()
            .filter(entry -> !conflicts(entry))
            .map(AckRecord.Entry::key)
            .collect(Collectors.toCollection(ArrayList::new));
    subscription.redeliverUnacknowledgedMessages(
        subscription.getDispatcher() instanceof PersistentDispatcherSingleActiveConsumer dispatcher
            ? dispatcher.getActiveConsumer()
            : null,
        free);
  }

  /** Lets the handle end a transaction, as if the coordinator had asked for it. */
  void end(TxnID txn, boolean commit) {
    int action = commit ? TxnAction.COMMIT_VALUE : TxnAction.ABORT_VALUE;
    subscription
        .endTxn(txn.getMostSigBits(), txn.getLeastSigBits(), action, 0)
        .exceptionally(
            later -> {
              complain("transaction " + txn + " is ended later: " + later.getMessage());
              return null;
            });
  }
}
