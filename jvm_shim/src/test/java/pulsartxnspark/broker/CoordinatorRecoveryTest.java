package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.List;
import org.apache.bookkeeper.mledger.ManagedLedgerException.ManagedLedgerFencedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState.State;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Ending;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.Header;

/** Which broker has a coordinator, and what it takes over. */
class CoordinatorRecoveryTest extends TransactionCoordinatorTest {
  @Test
  void whatAnotherBrokerHasDecidedIsMaterializedBeforeItIsEnded() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    // It dies behind the compare-and-set.
    String nonce = header(txn).nonce();
    coordinatorStore()
        .end(new Ending(writer(txn).txn(), nonce, writer(txn), List.of("s"), false));
    assertInstanceOf(Fate.Pinned.class, fate(txn));
    MetadataTransactionCoordinator next = opened();
    finish(next, txn, true);
    assertInstanceOf(Fate.Won.class, fate(txn));
    assertEquals(0, unended());
  }

  @Test
  void whoOpensTheCoordinatorTakesOverAndFencesWhoHadIt() {
    MetadataTransactionCoordinator former = opened();
    TxnID open = get(former.newTransaction(HOUR_MS, "role"));
    get(former.addProducedPartitionToTxn(open, List.of(SEGMENT)));
    TxnID aborting = get(former.newTransaction(HOUR_MS, null));
    get(former.addProducedPartitionToTxn(aborting, List.of(ORDINARY)));
    get(former.updateTxnStatus(aborting, TxnStatus.ABORTING, TxnStatus.OPEN, false));
    MetadataTransactionCoordinator sharing = opened(9, 0, coordinatorStore()); // the store's
    TxnID other = get(sharing.newTransaction(HOUR_MS, null));
    recovered.clear();

    MetadataTransactionCoordinator now = opened();
    assertTrue(watching);
    assertEquals(2, recovered.size());
    assertEquals(TxnStatus.ABORTING, recovered.get(aborting.getLeastSigBits()));
    long left = (Long) recovered.get(open.getLeastSigBits()) - System.currentTimeMillis();
    assertTrue(left > HOUR_MS / 2 && left <= HOUR_MS, "left " + left);
    assertEquals("role", get(now.getTxnMeta(open)).getOwner());
    assertNull(get(now.getTxnMeta(aborting)).getOwner());
    failure(TransactionNotFoundException.class, now.getTxnMeta(new TxnID(TC, other.getLeastSigBits())));

    failure(
        ManagedLedgerFencedException.class,
        former.updateTxnStatus(open, TxnStatus.ABORTING, TxnStatus.OPEN, true));
    assertEquals(State.Close, former.getState());
    assertEquals(Header.State.OPEN, header(open).state());
    // The segment from before is known, without anybody naming it again.
    end(now, open, true);
    assertInstanceOf(Fate.Won.class, fate(open));
    finish(now, aborting, false);
  }

  @Test
  void whoWasFencedOpensNothing() {
    MetadataTransactionCoordinator former = opened();
    MetadataTransactionCoordinator now = opened();
    failure(ManagedLedgerFencedException.class, former.newTransaction(HOUR_MS, null));
    assertEquals(1, removals.get());
    assertEquals(0, unended());
    TxnID txn = get(now.newTransaction(HOUR_MS, null));
    MetadataTransactionCoordinator late = opened();
    failure(
        ManagedLedgerFencedException.class, now.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    assertEquals(2, removals.get());
    get(late.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }

  @Test
  void whoWasFencedSaysSoEachTimeAndMakesRoomOnce() {
    MetadataTransactionCoordinator former = opened();
    TxnID open = get(former.newTransaction(HOUR_MS, null));
    opened();
    failure(
        ManagedLedgerFencedException.class, former.addProducedPartitionToTxn(open, List.of(SEGMENT)));
    failure(ManagedLedgerFencedException.class, former.newTransaction(HOUR_MS, null));
    failure(
        ManagedLedgerFencedException.class, former.addProducedPartitionToTxn(open, List.of(SEGMENT)));
    failure(
        ManagedLedgerFencedException.class,
        former.updateTxnStatus(open, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    failure(ManagedLedgerFencedException.class, former.getTxnMeta(open)); // it is there, elsewhere
    assertEquals(1, removals.get());
  }

  @Test
  void aCoordinatorThatWasGivenAwayMakesNoRoom() {
    MetadataTransactionCoordinator former = opened();
    TxnID open = get(former.newTransaction(HOUR_MS, null));
    get(former.closeAsync());
    failure(ManagedLedgerFencedException.class, former.getTxnMeta(open));
    assertEquals(0, removals.get()); // what the broker has is another one, or none
  }

  @Test
  void whoOpensSlowlyAdoptsNothingFromWhoHasOpenedSince() {
    MetadataTransactionCoordinator first = opened();
    TxnID txn = get(first.newTransaction(HOUR_MS, null));
    MetadataTransactionCoordinator[] newest = new MetadataTransactionCoordinator[1];
    CoordinatorStore slow =
        intercepted(
            call -> {
              if (call.is("read") && newest[0] == null) {
                newest[0] = opened();
              }
              return call.pass();
            });
    MetadataTransactionCoordinator late = unopened(TC, 0, slow);
    failure(ManagedLedgerFencedException.class, late.recover(new Tracker()));
    get(newest[0].addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }
}
