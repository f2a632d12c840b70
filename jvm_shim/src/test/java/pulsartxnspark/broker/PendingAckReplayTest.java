package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.AckedSubscription.at;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.common.exception.TransactionConflictException;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.StoreRolledBackException;

/** What a broker finds when it loads a subscription, and how it opens it. */
class PendingAckReplayTest extends PendingAckTest {
  private static final AckStore.Subscription SERVICE = new AckStore.Subscription("s", "service");

  @Test
  void theNextBrokerLocksWhatIsUndecided() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0), at(1));
    AckedSubscription next = afterCrash(one);
    assertTrue(next.isLocked(0) && next.isLocked(1));
    failure(TransactionConflictException.class, next.acknowledge(newTransaction(), at(1)));
    get(next.acknowledge(txn, at(2)));
    commit(next, txn);
    assertEquals(at(2), cursor.markDeleted());
  }

  @Test
  void aDecisionThatNobodyHasToldIsFoundInTheHeader() {
    AckedSubscription one = load();
    TxnID kept = acknowledged(one, at(0));
    TxnID lost = acknowledged(one, at(1));
    decide(kept, true);
    decide(lost, false);
    AckedSubscription next = afterCrash(one);
    assertEquals(at(0), cursor.markDeleted());
    assertFalse(next.isLocked(1));
    get(next.commit(kept)); // its coordinator tells it later
    get(next.abort(lost));
    assertEquals("COMMITTED", records().get(name(kept)));
    assertFalse(records().containsKey(name(lost)));
    removeHeader(kept); // it may go now, as the subscription knows
    AckedSubscription last = afterCrash(next);
    assertEquals(at(0), cursor.markDeleted());
    acknowledged(last, at(1));
  }

  @Test
  void whatWasRefusedIsNotHeldByTheNextBroker() {
    AckedSubscription one = load();
    TxnID first = acknowledged(one, at(0));
    TxnID refused = newTransaction();
    failure(TransactionConflictException.class, one.acknowledge(refused, at(0)));
    assertEquals(1, records().size());
    abort(one, first);
    TxnID last = acknowledged(one, at(0));
    AckedSubscription next = afterCrash(one);
    commit(next, refused);
    assertFalse(cursor.isDeleted(at(0)));
    commit(next, last);
    assertTrue(cursor.isDeleted(at(0)));
  }

  @Test
  void theNewestHolderOfAMessageIsTheRightOne() {
    close(load());
    TxnID older = newTransaction();
    TxnID newer = newTransaction();
    // The handle refused the older one in between: a message of it was acknowledged plainly.
    Map<String, String> found =
        Map.of(name(older) + ":3", "I 7:0:0:- 7:1:0:-", name(newer) + ":10", "I 7:1:0:-");
    inStore(jedis -> jedis.hset(RECORDS, found));
    inStore(jedis -> jedis.hset(OWNER, "cursor", "known"));
    cursor.properties.put(MetadataPendingAckStoreProvider.CURSOR_PROPERTY, "known");
    cursor.acknowledge(at(0));
    AckedSubscription one = load();
    commit(one, older);
    assertFalse(cursor.isDeleted(at(1)));
    commit(one, newer);
    assertTrue(cursor.isDeleted(at(1)));
  }

  @Test
  void whatHasNoHeaderIsHeldAndNotGuessed() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    removeHeader(txn);
    AckedSubscription next = afterCrash(one);
    assertTrue(next.isLocked(0));
    failure(ServiceUnitNotReadyException.class, next.commit(txn));
    failure(ServiceUnitNotReadyException.class, next.abort(txn));
    assertTrue(next.isLocked(0));
    assertFalse(cursor.isDeleted(at(0)));
  }

  @Test
  void aSubscriptionThatWasMadeAnewHasNothingOfTheOneBefore() {
    AckedSubscription one = load();
    commit(one, acknowledged(one, at(0)));
    cursor.properties.clear(); // deleted, and made anew under its name
    AckedSubscription next = afterCrash(one);
    acknowledged(next, at(1));
    assertFalse(cursor.isDeleted(at(0)));
    assertEquals(1, records().size());
    assertFalse(afterCrash(next).isLocked(0));
  }

  // --- opening while something is the matter ------------------------------------------------------

  /** A broker dies and something goes wrong: the next one locks the message when it is repaired. */
  private void opensOnceItIsRepaired(AckedSubscription one, Runnable breaks, Runnable repairs) {
    crash(one);
    breaks.run();
    faults.opens.set(0);
    AckedSubscription next = loading();
    await(() -> faults.opens.get() > 1);
    assertFalse(next.handle.pendingAckHandleFuture().isDone());
    repairs.run();
    assertTrue(ready(next).isLocked(0));
  }

  @Test
  void aSubscriptionOpensWhenTheStoreIsThere() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    crash(one);
    faults.isAway = true;
    AckedSubscription next = loading();
    CompletableFuture<Void> early = next.acknowledge(txn, at(1));
    assertFalse(next.handle.pendingAckHandleFuture().isDone());
    faults.isAway = false;
    assertTrue(ready(next).isLocked(0));
    get(early);
  }

  @Test
  void aStoreThatLacksWhatACursorKnowsIsNotReliedOn() {
    AckedSubscription one = load();
    acknowledged(one, at(0));
    Map<String, String> owner = inStore(jedis -> jedis.hgetAll(OWNER));
    opensOnceItIsRepaired(
        one,
        () -> {
          inStore(jedis -> jedis.del(OWNER));
          assertThrows(StoreRolledBackException.class, () -> faults.open(SERVICE, cursorId()));
        },
        () -> inStore(jedis -> jedis.hset(OWNER, owner)));
  }

  @Test
  void recordsThatCannotBeReadAreReadAgainWhenTheyAreRepaired() {
    AckedSubscription one = load();
    acknowledged(one, at(0));
    Map<String, String> right = records();
    String name = right.keySet().iterator().next();
    opensOnceItIsRepaired(
        one,
        () -> inStore(jedis -> jedis.hset(RECORDS, name, "I 7:x")),
        () -> inStore(jedis -> jedis.hset(RECORDS, right)));
  }

  @Test
  void aSegmentThatLostItsPropertiesIsNotTakenForAnOrdinaryTopic() {
    AckedSubscription one = load();
    acknowledged(one, at(0));
    crash(one);
    marks = Map.of();
    AckedSubscription next = loading();
    await(() -> next.handle.pendingAckHandleFuture().isCompletedExceptionally());
    assertEquals(List.of(), pulsars.told);
  }

  @Test
  void aSegmentOfAnotherStoreTakesNoAcknowledgements() {
    marks = Marks.of("another");
    AckedSubscription one = load();
    failure(ManagedLedgerException.class, one.provider.newPendingAckStore(one.loaded));
    assertEquals(Map.of(), cursor.properties);
  }

  // --- several brokers open it --------------------------------------------------------------------

  @Test
  void aFirstOpeningThatGoesOnAfterItsUnloadingTouchesNothing() {
    AckedSubscription former = load();
    CompletableFuture<Void> hanging = new CompletableFuture<>();
    faults.opening = hanging;
    CompletableFuture<Void> lost = former.acknowledge(newTransaction(), at(9));
    await(() -> faults.opens.get() > 0);
    former.unload();
    hanging.completeExceptionally(new IllegalStateException());
    AckedSubscription owner = load();
    TxnID txn = acknowledged(owner, at(0));
    failure(ServiceUnitNotReadyException.class, lost); // it has asked again
    get(owner.acknowledge(txn, at(1)));
    assertEquals(2, records().size());
    assertEquals(0, owner.closes.get());
    AckedSubscription next = afterCrash(owner);
    assertTrue(next.isLocked(0) && next.isLocked(1));
  }

  @Test
  void ofTwoThatOpenASubscriptionFirstTheCursorChoosesOne() {
    AckedSubscription former = load(); // it is not told that it was unloaded
    AckedSubscription owner = load();
    TxnID txn = acknowledged(owner, at(0));
    CompletableFuture<Void> lost = former.acknowledge(newTransaction(), at(1));
    failure(ServiceUnitNotReadyException.class, lost);
    await(() -> former.closes.get() == 1);
    get(owner.acknowledge(txn, at(2)));
    assertEquals(2, records().size());
    assertEquals(0, owner.closes.get());
  }

  @Test
  void anOpeningThatGoesOnAfterItsUnloadingFencesNobody() {
    AckedSubscription first = load();
    TxnID txn = acknowledged(first, at(0));
    close(first);
    CompletableFuture<Void> hanging = new CompletableFuture<>();
    faults.opening = hanging;
    faults.opens.set(0);
    AckedSubscription former = loading();
    await(() -> faults.opens.get() > 0);
    former.unload();
    hanging.completeExceptionally(new IllegalStateException());
    AckedSubscription owner = load();
    await(() -> former.handle.pendingAckHandleFuture().isCompletedExceptionally());
    get(owner.acknowledge(txn, at(1)));
    assertEquals(0, owner.closes.get());
  }

  @Test
  void aLostReplyOfTheCursorDoesNotLockTheSubscription() {
    cursor.losesReply = true;
    AckedSubscription one = load();
    TxnID txn = newTransaction();
    failure(ServiceUnitNotReadyException.class, one.acknowledge(txn, at(0)));
    await(() -> one.closes.get() == 1);
    close(one);
    AckedSubscription next = load();
    get(next.acknowledge(txn, at(0)));
    assertTrue(afterCrash(next).isLocked(0));
  }

  @Test
  void aTopicWhoseSubscriptionWasFencedIsLoadedAnew() {
    AckedSubscription one = load();
    TxnID txn = acknowledged(one, at(0));
    faults.open(SERVICE, cursorId()); // a late request of its own
    failure(ServiceUnitNotReadyException.class, one.acknowledge(txn, at(1)));
    await(() -> one.closes.get() == 1);
    close(one);
    AckedSubscription next = load();
    get(next.acknowledge(txn, at(1)));
    commit(next, txn);
    assertEquals(at(1), cursor.markDeleted());
  }
}
