package pulsartxnspark.broker;

import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.Position;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.common.exception.TransactionConflictException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import pulsartxnspark.broker.AckMetrics.Refusal;
import pulsartxnspark.broker.Decisions.Decision;

/** A client acknowledges in a transaction. */
final class AckAppend extends AckRequest {
  private final AckRecord record;
  private final List<MutablePair<Position, Integer>> positions; // Pulsar's; null if it is cumulative
  private String name; // of the record that is written; null if none is
  private CompletableFuture<Void> elsewhere; // in Pulsar's own store; null if it is here

  /**
   * Makes a request.
   *
   * @param parts of the subscription
   * @param txn of whom
   * @param record what it acknowledges
   * @param positions as Pulsar has them, which locks what is left of them; null if it is cumulative
   */
  AckAppend(
      AckParts parts, TxnID txn, AckRecord record, List<MutablePair<Position, Integer>> positions) {
    super(parts, txn, parts.environment().deadlineMs());
    this.record = record;
    this.positions = positions;
  }

  @Override
  boolean needsDecision() {
    return parts.txns().get(txn) == null;
  }

  @Override
  boolean joins(AckBatch batch) {
    if (batch.ends) {
      return false;
    }
    AckTransactions.Txn known = parts.txns().get(txn);
    if (known == null && !parts.steps().knowsDecision(this)) {
      return false;
    }
    if (batch.touches(record)) {
      return false; // the handle is asked when it knows of the other one
    }
    batch.touch(record);
    batch.appending.add(txn);
    Decision now = known == null ? decision : known.decision;
    // A transaction of Pulsar's own coordinator has its pending acks in Pulsar's own store.
    boolean isElsewhere =
        known == null
            && (now == Decision.ABSENT
                || now == Decision.OPEN && !parts.environment().takesNew());
    if (!isElsewhere && now != Decision.OPEN) {
      why = Refusal.LATE;
      refusal = new InvalidTxnStatusException("transaction " + txn + " is " + now);
    } else if (parts.subscription().refuses(txn, record)) {
      why = Refusal.CONFLICT;
      refusal = conflict();
    } else if (isElsewhere) {
      elsewhere = appendElsewhere();
    } else if (!isBehind()) { // the handle refuses it otherwise
      write(batch);
    }
    return true;
  }

  private boolean isBehind() {
    return record.cumulative() && parts.subscription().isBehind(record.last());
  }

  private CompletableFuture<Void> appendElsewhere() {
    return parts
        .pulsars()
        .opened()
        .thenCompose(
            opened ->
                record.cumulative()
                    ? opened.appendCumulativeAck(txn, record.entries().get(0).position())
                    : opened.appendIndividualAck(txn, positions));
  }

  @Override
  CompletableFuture<Void> tellPulsars() {
    return elsewhere;
  }

  private void write(AckBatch batch) {
    AckTransactions.Added added = parts.txns().add(txn, record);
    name = added.name();
    batch.removed.addAll(added.replaced());
    batch.written.put(added.name(), record.text());
  }

  @Override
  void notWritten(Exception error) {
    if (name != null) {
      parts.txns().takeBack(txn, name);
      name = null;
      refusal = error;
    }
  }

  private TransactionConflictException conflict() {
    return new TransactionConflictException(
        "transaction "
            + txn
            + " acknowledges what is acknowledged already, or pending in another transaction: "
            + record.text());
  }

  @Override
  void finish() {
    if (refusal != null && elsewhere == null) {
      refuse();
    } else if (done.isDone()) {
      return;
    } else if (refusal != null) {
      fail(refusal);
    } else {
      done.complete(null);
    }
  }

  /** The handle locks what is refused, for it does not know why. So nothing is left to lock. */
  private void refuse() {
    if (done.isDone()) {
      return;
    }
    PendingAckHandles.UpTo locked = parts.subscription().lockedUpTo();
    lockNothing();
    answer(refusal);
    if (record.cumulative()) {
      parts.subscription().restoreUpTo(locked);
    } else if (why == Refusal.LATE) {
      parts.subscription().redeliver(record);
    }
  }

  private void lockNothing() {
    if (positions != null) {
      positions.clear();
    }
  }

  @Override
  void fail(Exception error) {
    if (refusal != null && elsewhere == null) {
      refuse(); // whatever the store says
      return;
    }
    if (name == null && parts.subscription().conflicts(record)) {
      lockNothing(); // it would be taken away from who has locked it
    }
    answer(error);
  }
}
