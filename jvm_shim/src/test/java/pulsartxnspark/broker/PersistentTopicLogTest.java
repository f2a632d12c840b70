package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;

import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.junit.jupiter.api.Test;

/** Where the last entry of a topic is, by what its managed ledger says. */
class PersistentTopicLogTest {
  private final ManagedLedger ledger = mock(ManagedLedger.class);
  private final PersistentTopic topic = mock(PersistentTopic.class);

  private Position lastConfirmed(Position lac, Position previous) {
    when(topic.getManagedLedger()).thenReturn(ledger);
    when(ledger.getLastConfirmedEntry()).thenReturn(lac);
    when(ledger.getPreviousPosition(lac)).thenReturn(previous);
    return new PersistentTopicLog(topic).lastConfirmed();
  }

  private static Position at(long ledger, long entry) {
    return PositionFactory.create(ledger, entry);
  }

  @Test
  void theLacIsTheLastEntry() {
    assertEquals(at(3, 0), lastConfirmed(at(3, 0), at(2, 9)));
  }

  @Test
  void aLedgerWithoutEntriesWhereALogWasSealedIsPassedOver() {
    assertEquals(at(2, 9), lastConfirmed(at(3, -1), at(2, 9)));
  }

  @Test
  void aLogWithoutEntriesHasNoLastOne() {
    assertEquals(at(3, -1), lastConfirmed(at(3, -1), at(3, -1)));
  }
}
