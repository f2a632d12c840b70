package pulsartxnspark.broker;

import java.util.List;
import org.apache.pulsar.client.api.transaction.TxnID;
import pulsartxnspark.broker.AckTransactions.Txn;

/** Records of an ended transaction that nobody needs any more are removed. */
final class AckForget extends AckRequest {
  static final int MOST_REMOVED = 500; // records in one step

  private final List<String> names;
  private final boolean isLast;

  private AckForget(AckParts parts, TxnID txn, List<String> names, boolean isLast) {
    super(parts, txn, Long.MAX_VALUE);
    this.names = names;
    this.isLast = isLast;
  }

  /** Has all records of a transaction removed, in as many steps as it takes. */
  static void all(AckParts parts, Txn txn) {
    txn.isForgotten = true;
    List<String> names = txn.names();
    names.add(txn.name()); // the decision last: what is left of the others needs it
    for (int from = 0; from < names.size(); from += MOST_REMOVED) {
      int to = Math.min(names.size(), from + MOST_REMOVED);
      boolean isLast = to == names.size();
      parts.steps().add(new AckForget(parts, txn.id, names.subList(from, to), isLast));
    }
  }

  @Override
  boolean joins(AckBatch batch) {
    if (batch.removed.size() + names.size() > 2 * MOST_REMOVED) {
      return false;
    }
    batch.removed.addAll(names);
    return true;
  }

  @Override
  void finish() {
    if (isLast) {
      parts.txns().remove(txn);
    }
  }

  @Override
  void fail(Exception error) {}
}
