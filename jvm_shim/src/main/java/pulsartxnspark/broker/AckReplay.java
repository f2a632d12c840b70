package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import pulsartxnspark.broker.AckTransactions.Txn;
import pulsartxnspark.broker.Decisions.Decision;
import pulsartxnspark.store.AckStore.Opened;

/** Lets the handle know what the store had of its subscription when the broker opened it. */
final class AckReplay {
  /**
   * What was found when a subscription was opened.
   *
   * @param opened the records, with their owner
   * @param decisions what headers said of the transactions without a decision beside their records
   */
  record Found(Opened opened, Map<TxnID, Decision> decisions) {}

  private final AckParts parts;
  private final Found loaded;

  AckReplay(AckParts parts, Found loaded) {
    this.parts = parts;
    this.loaded = loaded;
  }

  /** Acknowledges what committed transactions have, and locks what undecided ones have. */
  void replay() {
    parts.txns().load(loaded.opened().records());
    parts.txns().all().forEach(this::decide);
    parts.txns().all().stream()
        .filter(txn -> txn.decision == Decision.COMMITTED)
        .forEach(this::apply);
    lock();
  }

  private void decide(Txn txn) {
    Decision header = txn.isNoted ? txn.decision : loaded.decisions().get(txn.id);
    if (header == Decision.ABSENT) {
      parts.subscription().complain(AckPoller.headless(txn));
    } else if (!txn.isNoted && header != Decision.OPEN) {
      // The header may go as soon as Pulsar was told that the subscription knows.
      parts.txns().decide(txn, header);
      parts.steps().add(AckEnd.found(parts, txn.id, header));
    }
    txn.isApplied = txn.decision != Decision.OPEN;
  }

  /** Acknowledges what a committed transaction has: once more, if the cursor knows it already. */
  private void apply(Txn txn) {
    List<Position> individual = new ArrayList<>();
    for (AckRecord record : txn.records.values()) {
      for (AckRecord.Entry entry : record.entries()) {
        if (!record.cumulative()) {
          individual.add(entry.position());
        } else if (!parts.subscription().isBehind(entry.key())) {
          parts.subscription().acknowledge(List.of(entry.position()), AckType.Cumulative);
        }
      }
    }
    if (!individual.isEmpty()) {
      parts.subscription().acknowledge(individual, AckType.Individual);
    }
  }

  /**
   * Lets the handle lock what undecided transactions have. The newest first: what it refused, it had
   * not locked any more when a newer one came.
   */
  private void lock() {
    Map<Long, Txn> all = new TreeMap<>(Comparator.reverseOrder());
    parts.txns().all().stream()
        .filter(txn -> txn.decision == Decision.OPEN)
        .forEach(txn -> txn.records.keySet().forEach(number -> all.put(number, txn)));
    all.forEach((number, txn) -> parts.subscription().lock(txn.id, txn.records.get(number)));
  }
}
