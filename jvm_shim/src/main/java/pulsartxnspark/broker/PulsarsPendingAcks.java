package pulsartxnspark.broker;

import java.util.List;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.pulsar.broker.transaction.pendingack.PendingAckStore;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;

/** Pulsar's own store beside: it has what is no transaction of the metadata store, or from before. */
final class PulsarsPendingAcks {
  private final Supplier<CompletableFuture<PendingAckStore>> opens;
  private volatile PendingAckStore store; // null where it has none
  private volatile boolean isClosed;
  private CompletableFuture<PendingAckStore> opening;

  /**
   * Makes one.
   *
   * @param store with what it has of the subscription; null if it has nothing
   * @param opens makes such a store
   */
  PulsarsPendingAcks(PendingAckStore store, Supplier<CompletableFuture<PendingAckStore>> opens) {
    this.store = store;
    this.opens = opens;
  }

  /**
   * Lets it replay what it has; called by Pulsar. Its replay takes any cumulative acknowledgement that
   * is there for its own, so another replay has to follow.
   *
   * @return whether it has anything; if so, it completes the handle by a task behind the other replay
   */
  boolean replay(PendingAckHandleImpl handle, ExecutorService executor, Runnable follows) {
    PendingAckStore known = store;
    if (known != null) {
      known.replayAsync(handle, new Followed(executor, follows));
    }
    return known != null;
  }

  /** Runs a task behind each that it gets, in the same thread. */
  private static final class Followed extends AbstractExecutorService {
    private final ExecutorService executor;
    private final Runnable follows;

    Followed(ExecutorService executor, Runnable follows) {
      this.executor = executor;
      this.follows = follows;
    }

    @Override
    public void execute(Runnable task) {
      executor.execute(
          () -> {
            task.run();
            follows.run();
          });
    }

    @Override
    public void shutdown() {}

    @Override
    public List<Runnable> shutdownNow() {
      return List.of();
    }

    @Override
    public boolean isShutdown() {
      return executor.isShutdown();
    }

    @Override
    public boolean isTerminated() {
      return executor.isTerminated();
    }

    @Override
    public boolean awaitTermination(long timeout, TimeUnit unit) {
      return false;
    }
  }

  /** Gives the store. What it had was replayed; a new one has nothing. */
  CompletableFuture<PendingAckStore> opened() {
    if (store != null) {
      return CompletableFuture.completedFuture(store);
    }
    if (opening == null || opening.isCompletedExceptionally()) {
      opening =
          opens
              .get()
              .thenApply(
                  opened -> {
                    store = opened;
                    if (isClosed) {
                      opened.closeAsync();
                    }
                    return opened;
                  });
    }
    return opening;
  }

  /** Tells it of the end of a transaction; null if there is nothing to be told. */
  CompletableFuture<Void> tellEnd(TxnID txn, boolean commit, AckType type) {
    if (store == null) {
      return null;
    }
    return commit ? store.appendCommitMark(txn, type) : store.appendAbortMark(txn, type);
  }

  /** Closes it; called by Pulsar. */
  CompletableFuture<Void> close() {
    isClosed = true;
    PendingAckStore beside = store;
    return beside == null ? CompletableFuture.completedFuture(null) : beside.closeAsync();
  }
}
