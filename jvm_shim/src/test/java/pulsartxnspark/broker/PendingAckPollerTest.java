package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.AckedSubscription.at;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.TransactionId;

/** What a broker finds by itself while it has a subscription. */
class PendingAckPollerTest extends PendingAckTest {
  @Test
  void whatOthersDecideIsFoundWithoutBeingTold() {
    AckedSubscription one = loadPolling();
    TxnID kept = acknowledged(one, at(0));
    TxnID lost = acknowledged(one, at(1));
    clockMs.addAndGet(2 * POLL_MS);
    await(() -> inTheWay.contains(writer(kept).txn()) && inTheWay.contains(writer(lost).txn()));
    decide(kept, true);
    decide(lost, false);
    awaitOverTime(() -> cursor.isDeleted(at(0)) && !one.redelivered().isEmpty());
    assertEquals(List.of(1L), one.redelivered());
    cursor.flush();
    await(() -> records().isEmpty());
  }

  @Test
  void anEmptyRecordOfAnEarlierVersionStopsNoPoll() {
    AckedSubscription one = loadPolling();
    TxnID txn = acknowledged(one, at(0));
    inStore(jedis -> jedis.hset(RECORDS, name(txn) + ":2", "I"));
    crash(one);
    loadPolling();
    decide(txn, true);
    awaitOverTime(() -> cursor.isDeleted(at(0)));
    cursor.flush();
    await(() -> records().isEmpty());
  }

  @Test
  void eachTransactionHasItsTurnHoweverManyThereAre() {
    threads = Runnable::run;
    HandTimer clock = new HandTimer();
    timer = clock.asked;
    AckedSubscription one = ready(loading(POLL_MS));
    Set<TransactionId> all = new HashSet<>();
    for (int entry = 0; entry < 101; entry++) {
      all.add(writer(acknowledged(one, at(entry))).txn());
    }
    for (int poll = 1; poll <= 2; poll++) { // 100 of them at once
      clockMs.addAndGet(POLL_MS);
      clock.tick();
      one.settle();
      assertEquals(100 * poll, inTheWay.size());
    }
    assertEquals(all, new HashSet<>(inTheWay));
  }

  /** Waits until the broker has polled what is pending, and has written what it found. */
  private void awaitPolls() {
    for (int poll = 0; poll < 3; poll++) {
      inTheWay.clear();
      awaitOverTime(() -> !inTheWay.isEmpty());
    }
  }

  @Test
  void aCommitIsRepeatedUntilTheCursorIsWritten() {
    AckedSubscription one = loadPolling();
    TxnID txn = acknowledged(one, at(0));
    get(one.acknowledge(txn, at(2)));
    acknowledged(one, at(9));
    commit(one, txn);
    removeHeader(txn);
    awaitPolls();
    cursor.flush(); // as far as the first of the two
    crash(one);
    assertFalse(cursor.isDeleted(at(2)));
    AckedSubscription next = loadPolling();
    assertTrue(cursor.isDeleted(at(2)));
    next.acknowledgePlainly(at(1));
    awaitPolls();
    assertEquals(4, records().size()); // two, a decision, and the other one's
    cursor.flush();
    await(() -> records().size() == 1);
  }

  @Test
  void manyRecordsOfATransactionGoInSeveralSteps() {
    AckedSubscription one = loadPolling();
    TxnID txn = newTransaction();
    List<CompletableFuture<Void>> all = new ArrayList<>();
    for (int entry = 0; entry < 1_200; entry++) {
      all.add(one.acknowledge(txn, at(entry)));
    }
    all.forEach(Await::get);
    assertEquals(1_200, records().size());
    abort(one, txn);
    assertEquals(1_200, one.redelivered().size());
    await(() -> records().isEmpty());
  }

  // --- both kinds of acknowledgements -------------------------------------------------------------

  @Test
  void bothKindsOfAcknowledgementsOfATransactionAreEndedInTheEnd() {
    AckedSubscription one = loadPolling();
    TxnID txn = acknowledged(one, at(7));
    get(one.acknowledgeUpTo(txn, at(1)));
    acknowledged(one, at(9));
    commit(one, txn);
    await(() -> cursor.isDeleted(at(7)));
    assertEquals(at(1), cursor.markDeleted());
    TxnID lost = acknowledged(one, at(6));
    get(one.acknowledgeUpTo(lost, at(3)));
    abort(one, lost);
    await(() -> List.of(6L).equals(one.redelivered()));
    assertFalse(one.isLocked(6));
    assertEquals(at(1), cursor.markDeleted());
  }

  /** Waits until a decision that nobody has told stands beside the records. */
  private void awaitCommitted(TxnID txn) {
    awaitOverTime(() -> "COMMITTED".equals(records().get(name(txn))));
  }

  @Test
  void anEndThatPulsarsHandleLeavesOutIsMadeUpForLater() {
    AckedSubscription one = loadPolling();
    TxnID cumulative = acknowledgedUpTo(one, at(0));
    TxnID individual = acknowledged(one, at(5));
    commit(one, individual); // Pulsar does nothing: another one has a cumulative one
    assertFalse(cursor.isDeleted(at(5)));
    awaitCommitted(individual);
    removeHeader(individual); // it may go now
    assertFalse(cursor.isDeleted(at(5)));
    abort(one, cumulative);
    await(() -> cursor.isDeleted(at(5)));
    assertEquals(at(-1), cursor.markDeleted());
  }

  @Test
  void aLateAcknowledgementIsNotAppliedWithWhatItsTransactionHasFromBefore() {
    AckedSubscription one = loadPolling();
    TxnID cumulative = acknowledgedUpTo(one, at(0));
    TxnID committed = acknowledged(one, at(5));
    decide(committed, true);
    awaitCommitted(committed);
    failure(InvalidTxnStatusException.class, one.acknowledge(committed, at(6)));
    abort(one, cumulative);
    await(() -> cursor.isDeleted(at(5)));
    assertFalse(cursor.isDeleted(at(6)) || one.isLocked(6));
    await(() -> List.of(6L).equals(one.redelivered()));
  }
}
