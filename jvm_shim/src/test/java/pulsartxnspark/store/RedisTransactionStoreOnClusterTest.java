package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

@OnCluster
class RedisTransactionStoreOnClusterTest extends RedisTransactionStoreTest {
  @Test
  void aDecisionIsMaterializedNowhereIfOneSegmentHasTheOtherOne() {
    WriterId writer = begin();
    store.abort("t", writer);
    store.end(writer.txn(), "n", new byte[0]); // whose header has lost the abort
    assertTrue(refused(writer).contains("segment t has materialized the other decision"));
    assertEquals(new Fate.Pinned(LogPosition.EARLIEST), fate("s", writer));
  }

  @Test
  void aDecisionIsMaterializedNowhereIfOneSegmentLostWhatItHasSeen() {
    WriterId writer = begin();
    store.end(writer.txn(), "n", TestStore.outcomeThatHasSeen("t", 100));
    assertTrue(refused(writer).contains("lost acknowledged writes"));
    assertEquals(new Fate.Pinned(LogPosition.EARLIEST), fate("s", writer));
  }

  private WriterId begin() {
    WriterId writer = store.begin("n", 3_600_000, "s", "t");
    store.pin("s", writer);
    store.pin("t", writer);
    return writer;
  }

  private String refused(WriterId writer) {
    Header decided = header(writer);
    return assertThrows(
            StoreRolledBackException.class, () -> store.transactions.materialize(decided))
        .getMessage();
  }
}
