package pulsartxnspark.broker;

import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import pulsartxnspark.broker.AckMetrics.Refusal;
import pulsartxnspark.broker.AckTransactions.Txn;
import pulsartxnspark.broker.Decisions.Decision;

/** A transaction ends in a subscription. */
final class AckEnd extends AckRequest {
  private final boolean commit;
  private final AckType type; // null if this broker has found out by itself
  private boolean isNoted;
  private boolean removes; // all that the transaction has

  private AckEnd(AckParts parts, TxnID txn, boolean commit, AckType type, long deadlineMs) {
    super(parts, txn, deadlineMs);
    this.commit = commit;
    this.type = type;
  }

  /** Pulsar's handle ends a transaction. */
  static AckEnd told(AckParts parts, TxnID txn, boolean commit, AckType type) {
    return new AckEnd(parts, txn, commit, type, parts.environment().deadlineMs());
  }

  /** This broker has found the decision in the header. */
  static AckEnd found(AckParts parts, TxnID txn, Decision header) {
    return new AckEnd(parts, txn, header == Decision.COMMITTED, null, Long.MAX_VALUE);
  }

  private Decision wanted() {
    return commit ? Decision.COMMITTED : Decision.ABORTED;
  }

  private boolean hasLockedUpTo() {
    return parts.subscription().hasLockedUpTo(txn);
  }

  /**
   * Tells whether the handle does its part for all that a transaction has. It leaves out what is
   * individual while it has locked anything up to a position.
   */
  private boolean completes(Txn known) {
    if (type == AckType.Individual) {
      return !hasLockedUpTo();
    }
    return type != null
        && hasLockedUpTo()
        && known.records.values().stream().allMatch(AckRecord::cumulative);
  }

  @Override
  boolean needsDecision() {
    Txn known = parts.txns().get(txn);
    return type != null && known != null && known.decision == Decision.OPEN;
  }

  @Override
  boolean joins(AckBatch batch) {
    Txn known = parts.txns().get(txn);
    if (known == null) {
      batch.ends = true;
      return true;
    }
    if (batch.appending.contains(txn)) {
      return false; // the handle is to lock that first
    }
    boolean isKnown = type == null || known.decision != Decision.OPEN;
    if (!isKnown && !parts.steps().knowsDecision(this)) {
      return false;
    }
    Decision header = type == null ? wanted() : isKnown ? known.decision : decision;
    if (header != wanted()) {
      why = Refusal.CONTRADICTION;
      refusal = contradiction(header);
      return true;
    }
    isNoted = true;
    batch.ends = true;
    if (known.isNoted) {
      return true;
    }
    boolean isOver = !commit && (known.isApplied || completes(known));
    removes = isOver && known.records.size() <= AckForget.MOST_REMOVED;
    if (removes) {
      batch.removed.addAll(known.names());
    } else {
      batch.written.put(known.name(), wanted().name());
    }
    return true;
  }

  private ServiceUnitNotReadyException contradiction(Decision header) {
    return new ServiceUnitNotReadyException(
        "transaction "
            + txn
            + " is to be "
            + wanted()
            + " in subscription "
            + parts.subscription()
            + ", but its header says "
            + header);
  }

  @Override
  void finish() {
    if (refusal != null) {
      answer(refusal);
      return;
    }
    Txn known = parts.txns().get(txn);
    if (known != null && isNoted) {
      known.isApplied |= !done.isDone() && completes(known);
      parts.txns().decide(known, wanted());
      known.isNoted = true;
      if (removes) {
        parts.txns().remove(txn);
      }
    }
    if (type == AckType.Cumulative && isOverMeanwhile()) {
      why = Refusal.CONTRADICTION;
      answer(new ServiceUnitNotReadyException("transaction " + txn + " was ended meanwhile"));
    }
    done.complete(null);
    if (type == null && known != null && !known.isApplied) {
      parts.subscription().end(txn, commit);
    }
  }

  /**
   * Tells whether the handle would do something else than end the transaction. With a commit it
   * acknowledges what another one has locked by now. With an abort it fails if nobody has locked
   * anything; Pulsar's coordinator gives up upon that.
   */
  private boolean isOverMeanwhile() {
    return commit ? !hasLockedUpTo() : parts.subscription().lockedUpTo() == null;
  }

  @Override
  CompletableFuture<Void> tellPulsars() {
    if (type == null || refusal != null) {
      return null;
    }
    if (type == AckType.Cumulative && !hasLockedUpTo()) {
      return null; // Pulsar's replay would end the cumulative one of another
    }
    return parts.pulsars().tellEnd(txn, commit, type);
  }

  @Override
  void fail(Exception error) {
    if (type != null) { // else nobody waits for it
      answer(error);
    }
  }
}
