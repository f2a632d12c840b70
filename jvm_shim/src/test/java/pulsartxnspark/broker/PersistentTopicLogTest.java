package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.when;

import java.util.List;
import java.util.NavigableMap;
import java.util.TreeMap;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.proto.MLDataFormats.ManagedLedgerInfo.LedgerInfo;
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

  private long firstLedger(Long... ledgers) {
    NavigableMap<Long, LedgerInfo> known = new TreeMap<>();
    List.of(ledgers).forEach(id -> known.put(id, LedgerInfo.getDefaultInstance()));
    when(topic.getManagedLedger()).thenReturn(ledger);
    when(ledger.getLedgersInfo()).thenReturn(known);
    return new PersistentTopicLog(topic).firstLedger();
  }

  @Test
  void whatLiesBeforeTheFirstLedgerWasDeleted() {
    assertEquals(3, firstLedger(7L, 3L));
    assertEquals(Long.MAX_VALUE, firstLedger());
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
