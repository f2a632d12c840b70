package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.transaction.pendingack.PendingAckStore;
import org.apache.pulsar.broker.transaction.pendingack.TransactionPendingAckStoreProvider;
import org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckReplyCallBack;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.broker.transaction.pendingack.proto.PendingAckMetadataEntry;
import org.apache.pulsar.broker.transaction.pendingack.proto.PendingAckOp;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;

/** Pulsar's own store of pending acks, as far as it matters beside another one. */
final class PulsarsOwnAcks implements TransactionPendingAckStoreProvider, PendingAckStore {
  final List<String> told = new CopyOnWriteArrayList<>();
  final AtomicInteger closes = new AtomicInteger();
  boolean exists;
  volatile CompletableFuture<Void> opening = CompletableFuture.completedFuture(null);
  private final List<PendingAckMetadataEntry> replayed = new ArrayList<>();

  /** Has an entry of a cumulative acknowledgement in its log from before. */
  PendingAckMetadataEntry add(PendingAckOp what, TxnID txn) {
    exists = true;
    PendingAckMetadataEntry entry =
        new PendingAckMetadataEntry()
            .setPendingAckOp(what)
            .setAckType(AckType.Cumulative)
            .setTxnidMostBits(txn.getMostSigBits())
            .setTxnidLeastBits(txn.getLeastSigBits());
    replayed.add(entry);
    return entry;
  }

  @Override
  public CompletableFuture<PendingAckStore> newPendingAckStore(PersistentSubscription of) {
    exists = true;
    told.add("open");
    return opening.thenApply(done -> this);
  }

  @Override
  public CompletableFuture<Boolean> checkInitializedBefore(PersistentSubscription of) {
    return CompletableFuture.completedFuture(exists);
  }

  @Override
  public void replayAsync(PendingAckHandleImpl handle, ExecutorService executor) {
    executor.execute(
        () -> {
          MLPendingAckReplyCallBack callBack = new MLPendingAckReplyCallBack(handle);
          replayed.forEach(callBack::handleMetadataEntry);
          callBack.replayComplete();
        });
  }

  @Override
  public CompletableFuture<Void> closeAsync() {
    closes.incrementAndGet();
    return CompletableFuture.completedFuture(null);
  }

  private CompletableFuture<Void> note(String what) {
    told.add(what);
    return CompletableFuture.completedFuture(null);
  }

  @Override
  public CompletableFuture<Void> appendIndividualAck(
      TxnID txn, List<MutablePair<Position, Integer>> positions) {
    return note("individual");
  }

  @Override
  public CompletableFuture<Void> appendCumulativeAck(TxnID txn, Position position) {
    return note("cumulative");
  }

  @Override
  public CompletableFuture<Void> appendCommitMark(TxnID txn, AckType type) {
    return note("commit");
  }

  @Override
  public CompletableFuture<Void> appendAbortMark(TxnID txn, AckType type) {
    return note("abort");
  }
}
