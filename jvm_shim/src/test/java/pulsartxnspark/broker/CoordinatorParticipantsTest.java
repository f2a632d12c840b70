package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static pulsartxnspark.broker.Await.failure;
import static pulsartxnspark.broker.Await.get;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TxnMeta;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Answer;
import pulsartxnspark.store.Fate;
import pulsartxnspark.store.LogPosition;
import pulsartxnspark.store.SegmentStore.Query;

/** What takes part in a transaction. */
class CoordinatorParticipantsTest extends TransactionCoordinatorTest {
  @Test
  void participantsOfPulsarsOwnAreIntentsAndAreToldByPulsar() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(ORDINARY, SEGMENT)));
    get(one.addAckedPartitionToTxn(txn, List.of(subscription(ORDINARY, "x|y"))));
    TxnMeta meta = get(one.getTxnMeta(txn));
    assertEquals(List.of(ORDINARY, SEGMENT), meta.producedPartitions());
    assertEquals(List.of(subscription(ORDINARY, "x|y")), meta.ackedPartitions());
    String encoded = "N|persistent%3A%2F%2Fpublic%2Fdefault%2Fa%7Cb|";
    assertTrue(header(txn).intents().containsAll(List.of(encoded, encoded + "x|y")));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    // The broker dies here: whoever opens the coordinator goes on with all of them.
    MetadataTransactionCoordinator next = opened();
    assertEquals(Map.of(txn.getLeastSigBits(), TxnStatus.COMMITTING), recovered);
    TxnMeta again = get(next.getTxnMeta(txn));
    // A gated segment learns the decision from the store.
    assertEquals(List.of(ORDINARY), meta.producedPartitions());
    assertEquals(List.of(ORDINARY), again.producedPartitions());
    assertEquals(meta.ackedPartitions(), again.ackedPartitions());
    finish(next, txn, true);
    assertEquals(0, unended());
  }

  @Test
  void aSegmentOfAnotherStoreIsRefused() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    failure(NotAllowedException.class, one.addProducedPartitionToTxn(txn, List.of(FOREIGN)));
    assertEquals(List.of(), header(txn).intents());
  }

  @Test
  void nothingIsRegisteredAfterTheDecision() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.updateTxnStatus(txn, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    failure(
        InvalidTxnStatusException.class, one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    finish(one, txn, true);
    failure(
        TransactionNotFoundException.class, one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }

  @Test
  void aParticipantOfABadNameIsRefusedAndTheTransactionCanStillBeEnded() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    failure(IllegalArgumentException.class, one.addProducedPartitionToTxn(txn, List.of("a/b")));
    end(one, txn, false);
    assertEquals(0, unended());
  }

  @Test
  void aParticipantThatTheCoordinatorDoesNotKnowIsMaterializedToo() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    // The reply to these was lost, and the client does not ask again.
    List<String> unknown = List.of("W|t|" + writer(txn).name());
    CoordinatorStore before = coordinatorStore();
    String nonce = header(txn).nonce();
    assertEquals(
        Answer.OK, before.intend(writer(txn).txn(), nonce, HOUR_MS, unknown));
    assertEquals(Answer.OK, before.pin("t", writer(txn)));
    end(one, txn, true);
    Query query = new Query(writer(txn), LogPosition.EARLIEST);
    assertEquals(
        List.of(new Fate.Dropped(LogPosition.EARLIEST)), store.segments.fates("t", List.of(query)));
    assertInstanceOf(Fate.Won.class, fate(txn));
    assertEquals(0, unended());
  }

  @Test
  void aSegmentThatTakesNothingMoreIsNoParticipant() {
    MetadataTransactionCoordinator one = opened();
    TxnID txn = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
    store.abort("s", writer(txn)); // as expired, by whoever was held by it
    failure(
        InvalidTxnStatusException.class, one.addProducedPartitionToTxn(txn, List.of(SEGMENT)));
  }

  @Test
  void aPinIsKnownToTheSegmentsOfTheBrokerUntilTheDecision() {
    store.prepare("s");
    MetadataTransactionCoordinator one = opened();
    TxnID first = get(one.newTransaction(HOUR_MS, null));
    TxnID second = get(one.newTransaction(HOUR_MS, null));
    get(one.addProducedPartitionToTxn(first, List.of(SEGMENT)));
    get(one.addProducedPartitionToTxn(second, List.of(SEGMENT)));
    assertEquals(
        Optional.of(LogPosition.EARLIEST),
        pins.take("s", writer(first)).map(CoordinatorStore.Pin::position));
    assertEquals(Optional.empty(), pins.take("s", writer(first)));
    get(one.updateTxnStatus(second, TxnStatus.COMMITTING, TxnStatus.OPEN, false));
    assertEquals(Optional.empty(), pins.take("s", writer(second)));
  }
}
