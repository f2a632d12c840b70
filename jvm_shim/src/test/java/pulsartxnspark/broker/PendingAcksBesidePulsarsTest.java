package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.AckedSubscription.at;
import static pulsartxnspark.broker.Await.await;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.broker.transaction.pendingack.PendingAckStore;
import org.apache.pulsar.broker.transaction.pendingack.proto.PendingAckOp;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.common.exception.TransactionConflictException;
import org.junit.jupiter.api.Test;

/** What Pulsar's own store has beside, and gets. */
class PendingAcksBesidePulsarsTest extends PendingAckTest {
  private static final TxnID STOCK = new TxnID(TC, 999); // of Pulsar's own coordinator

  @Test
  void aTransactionOfPulsarsOwnCoordinatorHasItsPendingAcksInPulsarsStore() {
    AckedSubscription one = load();
    TxnID ours = acknowledged(one, at(0));
    assertEquals(List.of(), pulsars.told);
    get(one.acknowledge(STOCK, at(1)));
    failure(TransactionConflictException.class, one.acknowledge(STOCK, at(0)));
    assertEquals(1, records().size());
    get(one.commit(STOCK));
    assertTrue(cursor.isDeleted(at(1)));
    assertEquals(List.of("open", "individual", "commit"), pulsars.told);
    commit(one, ours);
    assertEquals(at(1), cursor.markDeleted());
  }

  @Test
  void whatPulsarsStoreHasIsReplayedFirstAndEndedThere() {
    AckedSubscription one = load();
    TxnID ours = acknowledgedUpTo(one, at(5));
    // Pulsar's replay takes any cumulative acknowledgement for that of the transaction.
    pulsars.add(PendingAckOp.COMMIT, STOCK);
    AckedSubscription next = afterCrash(one);
    assertEquals(at(-1), cursor.markDeleted());
    failure(TransactionConflictException.class, next.acknowledgeUpTo(newTransaction(), at(6)));
    commit(next, ours);
    assertEquals(at(5), cursor.markDeleted());
    assertEquals(List.of("open", "commit"), pulsars.told);
  }

  @Test
  void aCumulativeAcknowledgementConflictsWithOneInPulsarsLogBeforeItIsWritten() {
    close(load());
    pulsars
        .add(PendingAckOp.ACK, STOCK)
        .addPendingAckMetadata()
        .setLedgerId(AckedSubscription.LEDGER)
        .setEntryId(3);
    AckedSubscription one = load();
    await(one.handle::checkIfReady);
    failure(TransactionConflictException.class, one.acknowledgeUpTo(newTransaction(), at(5)));
    assertEquals(Map.of(), records());
    get(one.abort(STOCK));
    acknowledgedUpTo(one, at(5));
  }

  @Test
  void pulsarsStoreIsOpenedOnce() {
    AckedSubscription one = load();
    TxnID before = acknowledged(one, at(0));
    takesNew = false;
    AckedSubscription next = afterCrash(one);
    faults.gate = new CompletableFuture<>();
    List<CompletableFuture<Void>> all =
        List.of(
            next.acknowledge(before, at(1)),
            next.acknowledge(newTransaction(), at(2)),
            next.acknowledge(newTransaction(), at(3)));
    pulsars.opening = new CompletableFuture<>();
    faults.gate.complete(null);
    await(() -> pulsars.told.contains("open"));
    pulsars.opening.complete(null);
    all.forEach(Await::get);
    assertEquals(List.of("open", "individual", "individual"), pulsars.told);
  }

  @Test
  void whoeverWaitsForPulsarsStoreWaitsForTheSameOne() {
    AtomicInteger opens = new AtomicInteger();
    CompletableFuture<PendingAckStore> opening = new CompletableFuture<>();
    PulsarsPendingAcks beside =
        new PulsarsPendingAcks(
            null,
            () -> {
              opens.incrementAndGet();
              return opening;
            });
    List<CompletableFuture<PendingAckStore>> waiting = List.of(beside.opened(), beside.opened());
    opening.complete(pulsars);
    waiting.forEach(one -> assertSame(pulsars, get(one)));
    assertEquals(1, opens.get());
  }

  @Test
  void pulsarsStoreThatIsOpenedAfterTheUnloadingIsClosed() {
    AckedSubscription one = load();
    acknowledged(one, at(0));
    pulsars.opening = new CompletableFuture<>();
    one.acknowledge(STOCK, at(1));
    await(() -> pulsars.told.contains("open"));
    one.unload();
    assertEquals(0, pulsars.closes.get());
    pulsars.opening.complete(null);
    await(() -> pulsars.closes.get() == 1);
  }

  // --- who has what -------------------------------------------------------------------------------

  @Test
  void onTheWayBackNewTransactionsHaveTheirPendingAcksInPulsarsStore() {
    AckedSubscription one = load();
    TxnID before = acknowledged(one, at(0));
    takesNew = false;
    AckedSubscription next = afterCrash(one);
    acknowledged(next, at(1));
    get(next.acknowledge(before, at(2)));
    assertEquals(List.of("open", "individual"), pulsars.told);
    assertEquals(2, records().size());
    commit(next, before);
    assertTrue(cursor.isDeleted(at(0)) && cursor.isDeleted(at(2)));
  }

  @Test
  void allOtherSubscriptionsHavePulsarsStore() {
    Map<String, String> gated = marks;
    marks = Map.of();
    acknowledged(load(), at(0));
    marks = gated;
    cursor.durable = false;
    acknowledged(load(), at(1));
    cursor.durable = true;
    takesNew = false;
    acknowledged(load(), at(2));
    assertEquals(3, pulsars.told.stream().filter("individual"::equals).count());
    assertEquals(Map.of(), cursor.properties);
    assertNull(cursor.left(0));
  }
}
