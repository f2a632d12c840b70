package pulsartxnspark.broker;

import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.transaction.TxnID;
import pulsartxnspark.broker.Decisions.Decision;

/** Something that is asked of the pending acks of a subscription, and may change its records. */
abstract class AckRequest {
  final AckParts parts;
  final TxnID txn;
  final CompletableFuture<Void> done = new CompletableFuture<>();
  final long deadlineMs;
  Decision decision; // null until the header was read
  boolean isAsked;
  Exception refusal;
  AckMetrics.Refusal why = AckMetrics.Refusal.UNAVAILABLE; // it is refused

  AckRequest(AckParts parts, TxnID txn, long deadlineMs) {
    this.parts = parts;
    this.txn = txn;
    this.deadlineMs = deadlineMs;
  }

  /** Joins a batch; false if it has to wait. */
  abstract boolean joins(AckBatch batch);

  /** Is called when the batch is written; the handle does its part in here. */
  abstract void finish();

  /** Tells Pulsar's own store, if it is to know; null if not. */
  CompletableFuture<Void> tellPulsars() {
    return null;
  }

  /** Learns that nothing of it was written, nor will be. */
  void notWritten(Exception error) {}

  /** Gives up; it may be written nevertheless, later. */
  abstract void fail(Exception error);

  /** Tells the handle that it is refused, unless it was told something before. */
  final void answer(Exception error) {
    if (done.completeExceptionally(error)) {
      parts.environment().metrics().count(why);
    }
  }

  /** Tells whether it will ask for the header. */
  boolean needsDecision() {
    return false;
  }
}
