package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.SegmentStore.Query;
import pulsartxnspark.store.StoreMetrics.Decision;
import pulsartxnspark.store.StoreMetrics.Result;
import redis.clients.jedis.Jedis;

class RedisTransactionStoreTest extends StoreTest {
  private static final long LONG_MS = 3_600_000;
  private static final LogPosition EARLIEST = LogPosition.EARLIEST;

  @BeforeEach
  void prepareAnotherSegment() {
    store.prepare("t");
  }

  protected Header header(WriterId writer) {
    return store.transactions.read(writer.txn()).orElseThrow();
  }

  protected Fate fate(String segment, WriterId writer) {
    return store.segments.fates(segment, List.of(new Query(writer, EARLIEST))).get(0);
  }

  private String field(String key, String field) {
    try (Jedis jedis = server.client()) {
      return jedis.hget(key, field);
    }
  }

  @Test
  void aHeaderIsReadWithItsIntentsAndTheStoresClock() {
    WriterId writer = store.begin("n", LONG_MS, "s", "t");
    Header header = header(writer);
    assertEquals(Header.State.OPEN, header.state());
    assertEquals("n", header.nonce());
    assertEquals(2, header.intents().size());
    assertFalse(header.expired());
    assertTrue(header.deadlineMs() - header.nowMs() <= LONG_MS);
    assertEquals(Optional.empty(), store.transactions.read(new TransactionId(0, 99)));
    assertEquals(Optional.empty(), store.transactions.read(new TransactionId(7, 1)));
  }

  @Test
  void anExpiredTransactionIsAbortedAndCountedOnce() throws Exception {
    WriterId writer = store.begin("n", 1, "s");
    while (!header(writer).expired()) {
      Thread.onSpinWait();
    }
    store.transactions.abortExpired(writer.txn());
    store.transactions.abortExpired(writer.txn());
    Header header = header(writer);
    assertEquals(Header.State.ABORTED, header.state());
    assertEquals(Outcome.NONE, header.outcome());
    assertTrue(header.finalizedMs() > 0);
    assertEquals("1", field("{tc0}:metrics", "pulsar_txn_aborts_total|0|lease-over"));
    String decisions = "pulsar_txn_metadata_store_header_cas_total|0|ok";
    assertEquals("1", field("{tc0}:metrics", decisions));
    store.transactions.abortExpired(new TransactionId(0, 99));
    assertEquals(
        Map.of(
            new Decision(0, Result.OK), 1L,
            new Decision(0, Result.CONFLICT), 1L,
            new Decision(0, Result.REJECT), 1L),
        store.metrics.decisions());
    assertEquals(List.of(0, 1, 2, 3), List.copyOf(store.transactions.counts().keySet()));
    assertEquals(1L, store.transactions.counts().get(0).get(decisions));
    assertEquals("\32\22its lease was over", field("{tc0}:txn:0:1", "outcome"));
  }

  @Test
  void aTransactionWhoseLeaseRunsIsNotAborted() {
    WriterId writer = store.begin("n", LONG_MS, "s");
    store.transactions.abortExpired(writer.txn());
    assertEquals(Header.State.OPEN, header(writer).state());
  }

  @Test
  void aCommitIsMaterializedAsItsOutcomeSays() {
    WriterId winner = store.begin("n", LONG_MS, "s", "t");
    WriterId loser = WriterId.ofName("ptxn-0-1-1-loser").orElseThrow();
    store.intend(winner.txn(), "n", LONG_MS, "W|s|" + loser.name(), "P|query|sink");
    for (WriterId writer : List.of(winner, loser)) {
      store.pin("s", writer);
    }
    store.pin("t", winner); // where it does not win
    LogPosition bound = new LogPosition(3, 7);
    store.end(winner.txn(), "n", TestStore.outcome("s", winner, bound, new LogPosition(3, 9)));
    store.transactions.materialize(header(winner));
    assertEquals(new Fate.Dropped(bound), fate("s", winner));
    assertEquals(new Fate.Dropped(EARLIEST), fate("s", loser));
    assertEquals(new Fate.Dropped(EARLIEST), fate("t", winner));
    assertEquals(new LogPosition(3, 9).padded(), field("{seg:s}:state", "high-position"));
    assertEquals("1", field("{tc0}:txn:0:1", "materialized"));
    try (Jedis jedis = server.client()) {
      assertEquals(0, jedis.zcard("{tc0}:idx:txn-unmaterialized"));
    }
    // Again, as if a sweep had come first.
    store.transactions.materialize(header(winner));
    assertEquals(new Fate.Dropped(bound), fate("s", winner));
  }

  @Test
  void aWinnerWithoutABoundWinsWithAllItsEntries() {
    WriterId winner = store.begin("n", LONG_MS, "s");
    store.pin("s", winner);
    store.end(winner.txn(), "n", TestStore.outcome("s", winner, null, new LogPosition(1, 0)));
    store.transactions.materialize(header(winner));
    assertEquals(new Fate.Won(), fate("s", winner));
  }

  @Test
  void acknowledgementsOfACommitMoveTheirCursors() {
    WriterId writer = store.begin("n", LONG_MS);
    store.intend(writer.txn(), "n", LONG_MS, "A|s|sub");
    String last = new LogPosition(1, 5).padded();
    try (Jedis jedis = server.client()) {
      jedis.hset("{seg:s}:cursor:sub", "generation", "g");
      jedis.hset(
          "{seg:s}:pending-acks:sub",
          "0:1",
          "{\"generation\":\"g\",\"last\":\"" + last + "\",\"start\":\"" + EARLIEST.padded()
              + "\",\"sink\":\"\",\"batch\":\"\"}");
    }
    store.end(writer.txn(), "n", new byte[0]);
    store.transactions.materialize(header(writer));
    assertEquals(last, field("{seg:s}:cursor:sub", "position"));
    assertNull(field("{seg:s}:pending-acks:sub", "0:1"));
  }

  @Test
  void aSegmentWithoutATagIsLeftToASweep() {
    WriterId writer = store.begin("n", LONG_MS, "s", "unknown");
    store.pin("s", writer);
    store.end(writer.txn(), "n", new byte[0]);
    store.transactions.materialize(header(writer));
    assertEquals(new Fate.Dropped(EARLIEST), fate("s", writer));
    assertNull(field("{tc0}:txn:0:1", "materialized"));
  }

  @Test
  void anOpenTransactionIsNeverMaterialized() {
    Header open = header(store.begin("n", LONG_MS, "s"));
    assertThrows(IllegalArgumentException.class, () -> store.transactions.materialize(open));
  }

  @Test
  void aSegmentThatLacksWhatADecisionHasSeenIsRefused() {
    WriterId writer = store.begin("n", LONG_MS, "s");
    store.pin("s", writer);
    store.end(writer.txn(), "n", TestStore.outcomeThatHasSeen("s", 100));
    Header decided = header(writer);
    assertThrows(
        StoreRolledBackException.class, () -> store.transactions.materialize(decided));
    assertThrows(StoreRolledBackException.class, () -> fate("s", writer));
  }

  @Test
  void aSegmentThatHasMaterializedTheOtherDecisionIsRefused() {
    WriterId writer = store.begin("n", LONG_MS, "s");
    store.pin("s", writer);
    store.abort("s", writer);
    store.end(writer.txn(), "n", new byte[0]); // whose header has lost the abort
    Header decided = header(writer);
    StoreRolledBackException error =
        assertThrows(
            StoreRolledBackException.class, () -> store.transactions.materialize(decided));
    assertTrue(error.getMessage().contains("has materialized the other decision"));
    assertNull(field("{tc0}:txn:0:1", "materialized"));
  }

  @Test
  void whatIsNoOutcomeOrNoIntentIsNotGuessed() {
    WriterId writer = store.begin("n", LONG_MS, "s");
    store.intend(writer.txn(), "n", LONG_MS, "X|s|y");
    store.end(writer.txn(), "n", new byte[0]);
    Header decided = header(writer);
    assertThrows(StoreCorruptException.class, () -> store.transactions.materialize(decided));
    WriterId other = store.begin("m", LONG_MS, "s");
    store.end(other.txn(), "m", new byte[] {10, 100});
    assertThrows(StoreCorruptException.class, () -> header(other));
  }
}
