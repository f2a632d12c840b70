package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.AckedSubscription.at;
import static pulsartxnspark.broker.AckedSubscription.batch;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.common.exception.TransactionConflictException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** What transactions acknowledge, and what becomes of it. */
class PendingAcksTest extends PendingAckTest {
  private static final BitSet ALL_BUT_TWO = BitSet.valueOf(new long[] {0b1111_1100});
  private static final BitSet LAST_FOUR = BitSet.valueOf(new long[] {0b1111_0000});

  @Test
  void messagesAreHeldWhileTheirTransactionIsOpenAndAcknowledgedWhenItIsCommitted() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0), at(1));
    get(one.acknowledge(txn, at(2)));
    assertTrue(one.isLocked(0));
    assertFalse(cursor.isDeleted(at(0)));
    assertEquals(2, records().size());
    commit(one, txn);
    assertEquals(at(2), cursor.markDeleted());
    get(one.commit(txn)); // asked again, after a lost reply
  }

  @Test
  void messagesOfAnAbortedTransactionAreDeliveredAgain() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0), at(1));
    abort(one, txn);
    assertEquals(List.of(0L, 1L), one.redelivered());
    assertFalse(one.isLocked(0));
    assertEquals(Map.of(), records());
    get(one.abort(txn));
    acknowledged(one, at(0));
  }

  @Test
  void messagesOfABatchAreHeldOneByOne() {
    AckedSubscription one = load();
    TxnID first = acknowledged(one, batch(0, 2, 3, 4, 5, 6, 7));
    TxnID second = acknowledged(one, batch(0, 0, 1, 4, 5, 6, 7));
    failure(
        TransactionConflictException.class, one.acknowledge(second, batch(0, 0, 2, 3, 4, 5, 6, 7)));
    AckedSubscription next = afterCrash(one);
    failure(
        TransactionConflictException.class, next.acknowledge(second, batch(0, 0, 2, 3, 4, 5, 6, 7)));
    commit(next, first);
    assertEquals(ALL_BUT_TWO, cursor.left(0));
    AckedSubscription last = afterCrash(next);
    assertEquals(ALL_BUT_TWO, cursor.left(0));
    abort(last, second);
    acknowledged(last, batch(0, 0, 1, 4, 5, 6, 7));
  }

  @Test
  void messagesOfABatchOfUnknownSizeAreHeldTogetherAndByDifferentTransactions() {
    AckedSubscription one = load();
    TxnID first = newTransaction();
    get(
        one.acknowledgeUnsized(
            first, batch(0, 1, 2, 3, 4, 5, 6, 7), batch(0, 0, 2, 3, 4, 5, 6, 7)));
    get(one.acknowledgeUnsized(first, batch(0, 0, 1, 3, 4, 5, 6, 7)));
    commit(one, first);
    TxnID second = newTransaction();
    get(one.acknowledgeUnsized(second, batch(0, 0, 1, 2, 4, 5, 6, 7)));
    abort(one, second);
    TxnID third = newTransaction();
    get(one.acknowledgeUnsized(third, batch(0, 0, 1, 2, 4, 5, 6, 7)));
    commit(one, third);
    assertEquals(LAST_FOUR, cursor.left(0));
  }

  @Test
  void allMessagesOfABatchOfUnknownSizeAreHeldAfterACrash() {
    AckedSubscription one = load();
    TxnID txn = newTransaction();
    get(
        one.acknowledgeUnsized(
            txn, batch(0, 1, 2, 3, 4, 5, 6, 7), batch(0, 0, 2, 3, 4, 5, 6, 7)));
    AckedSubscription next = afterCrash(one);
    commit(next, txn);
    assertEquals(ALL_BUT_TWO, cursor.left(0));
  }

  @Test
  void anAcknowledgementOfNothingLeavesNothing() {
    AckedSubscription one = load();
    TxnID txn = newTransaction();
    get(one.acknowledge(txn));
    assertEquals(Map.of(), records());
    commit(one, txn);
  }

  @Test
  void aCumulativeAcknowledgementKeepsItsPlaceInABatchOverACrash() {
    AckedSubscription one = load();
    TxnID txn = acknowledgedUpTo(one, at(1));
    get(one.acknowledgeUpTo(txn, batch(3, 4, 5, 6, 7)));
    assertEquals(1, records().size()); // the last one stands for both
    failure(TransactionConflictException.class, one.acknowledgeUpTo(newTransaction(), at(5)));
    AckedSubscription next = afterCrash(one);
    failure(TransactionConflictException.class, next.acknowledgeUpTo(newTransaction(), at(5)));
    assertEquals(1, records().size());
    commit(next, txn);
    assertEquals(at(2), cursor.markDeleted());
    assertEquals(LAST_FOUR, cursor.left(3));
    AckedSubscription last = afterCrash(next);
    assertEquals(at(2), cursor.markDeleted());
    assertEquals(LAST_FOUR, cursor.left(3));
    abort(last, acknowledgedUpTo(last, at(5)));
    assertEquals(at(2), cursor.markDeleted());
    acknowledgedUpTo(last, at(5));
  }

  @Test
  void ofTwoThatWantAMessageAtOnceOneHasARecord() {
    AckedSubscription one = load();
    TxnID first = acknowledged(one, at(0));
    TxnID second = acknowledged(one, at(1));
    faults.gate = new CompletableFuture<>();
    CompletableFuture<Void> written = one.acknowledge(first, at(2));
    CompletableFuture<Void> wins = one.acknowledge(first, at(3));
    CompletableFuture<Void> loses = one.acknowledge(second, at(3));
    CompletableFuture<Void> winsToo = one.acknowledge(second, batch(4, 1, 2, 3, 4, 5, 6, 7));
    CompletableFuture<Void> losesToo = one.acknowledge(first, batch(4, 2, 3, 4, 5, 6, 7));
    faults.gate.complete(null);
    List.of(written, wins, winsToo).forEach(Await::get);
    failure(TransactionConflictException.class, loses);
    failure(TransactionConflictException.class, losesToo);
    assertEquals(5, records().size());
    AckedSubscription next = afterCrash(one);
    commit(next, second);
    assertFalse(cursor.isDeleted(at(3)));
  }

  // --- what the header says -----------------------------------------------------------------------

  @Test
  void nobodyEndsATransactionOtherwiseThanItsHeaderSays() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    failure(ServiceUnitNotReadyException.class, one.commit(txn)); // it is OPEN
    decide(txn, true);
    failure(ServiceUnitNotReadyException.class, one.abort(txn));
    assertTrue(one.isLocked(0));
    get(one.commit(txn));
    assertTrue(cursor.isDeleted(at(0)));
  }

  @Test
  void anEndThatComesTwiceNeverAppliesWhatAnotherTransactionAcknowledgedMeanwhile() {
    AckedSubscription one = load();
    TxnID first = acknowledgedUpTo(one, at(1));
    TxnID second = newTransaction();
    decide(first, true);
    faults.gate = new CompletableFuture<>();
    CompletableFuture<Void> ended = one.commit(first);
    CompletableFuture<Void> pending = one.acknowledgeUpTo(second, at(5));
    CompletableFuture<Void> again = one.commit(first);
    faults.gate.complete(null);
    get(ended);
    get(pending);
    failure(ServiceUnitNotReadyException.class, again);
    assertEquals(at(1), cursor.markDeleted());
    get(one.commit(first)); // Pulsar asks again
    abort(one, second);
    assertEquals(at(1), cursor.markDeleted());
  }

  @Test
  void aHeaderOfAnotherOfPulsarsCoordinatorsDecidesNothing() {
    AckedSubscription one = load();
    TxnID txn = newTransaction(); // of the coordinator 5, which shares the store's 1
    get(one.acknowledge(new TxnID(1, txn.getLeastSigBits()), at(0)));
    assertEquals(List.of("open", "individual"), pulsars.told);
    assertEquals(Map.of(), records());
  }

  // --- acknowledgements that come after the decision ----------------------------------------------

  @ParameterizedTest(name = "Pulsar''s log beside: {0}")
  @ValueSource(booleans = {false, true})
  void anAcknowledgementAfterTheDecisionIsRefusedAndItsMessageDeliveredAgain(boolean beside) {
    pulsars.exists = beside;
    AckedSubscription one = load();
    TxnID aborted = newTransaction();
    TxnID unused = newTransaction();
    TxnID committed = acknowledged(one, at(0));
    decide(aborted, false);
    decide(unused, true);
    commit(one, committed);
    failure(InvalidTxnStatusException.class, one.acknowledge(aborted, at(1)));
    failure(InvalidTxnStatusException.class, one.acknowledge(unused, at(2)));
    failure(InvalidTxnStatusException.class, one.acknowledge(committed, at(3)));
    await(() -> one.redelivered().size() == 3);
    assertEquals(List.of(1L, 2L, 3L), one.redelivered());
    assertFalse(one.isLocked(1) || one.isLocked(2) || one.isLocked(3));
    assertEquals(at(0), cursor.markDeleted());
    acknowledged(one, at(1), at(2), at(3));
    failure(InvalidTxnStatusException.class, one.acknowledgeUpTo(committed, at(7)));
    TxnID next = acknowledgedUpTo(one, at(5));
    failure(InvalidTxnStatusException.class, one.acknowledgeUpTo(aborted, at(8)));
    commit(one, next);
    assertEquals(at(5), cursor.markDeleted());
    assertEquals(beside ? List.of("open", "commit", "commit") : List.of(), pulsars.told);
  }

  @Test
  void aLateAcknowledgementTakesNothingFromWhoHasLockedTheMessage() {
    AckedSubscription one = load();
    TxnID holder = acknowledged(one, at(0));
    TxnID aborted = newTransaction();
    decide(aborted, false);
    failure(InvalidTxnStatusException.class, one.acknowledge(aborted, at(0), at(1)));
    await(() -> !one.redelivered().isEmpty());
    assertEquals(List.of(1L), one.redelivered());
    failure(TransactionConflictException.class, one.acknowledge(newTransaction(), at(0)));
    commit(one, holder);
    assertEquals(at(0), cursor.markDeleted());
  }
}
