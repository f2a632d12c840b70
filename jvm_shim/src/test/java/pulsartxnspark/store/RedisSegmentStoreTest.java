package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.SegmentStore.Query;
import redis.clients.jedis.Jedis;

class RedisSegmentStoreTest extends StoreTest {
  private static final WriterId WRITER = WriterId.ofName("ptxn-0-1-0-aa").orElseThrow();
  private static final WriterId OTHER = WriterId.ofName("ptxn-0-2-0-bb").orElseThrow();
  private static final LogPosition EARLIEST = LogPosition.EARLIEST;

  private Fate fate(WriterId writer, LogPosition pinnedAt) {
    return store.segments.fates("s", List.of(new Query(writer, pinnedAt))).get(0);
  }

  @Test
  void aWriterIsPinnedUntilItsTransactionIsMaterialized() {
    assertEquals(new Fate.Unpinned(), fate(WRITER, null));
    assertEquals("OK", store.pin("s", WRITER));
    assertEquals(new Fate.Pinned(EARLIEST), fate(WRITER, null));
    store.commit("s", WRITER, new LogPosition(1, 4));
    assertEquals(new Fate.Won(), fate(WRITER, EARLIEST));
    assertEquals(new Fate.Unpinned(), fate(WRITER, null));
  }

  @Test
  void aWriterThatLostIsToldFromOneThatWon() {
    store.pin("s", WRITER);
    store.pin("s", OTHER);
    store.abort("s", WRITER);
    store.decide("s", OTHER, "COMMITTED", new LogPosition(1, 2), new LogPosition(1, 2));
    List<Query> queries = List.of(new Query(OTHER, EARLIEST), new Query(WRITER, EARLIEST));
    assertEquals(
        List.of(new Fate.Dropped(new LogPosition(1, 2)), new Fate.Dropped(EARLIEST)),
        store.segments.fates("s", queries));
  }

  @Test
  void aDroppedWriterIsFoundInTheGroupThatASweepHasPutItInto() {
    store.pin("s", WRITER);
    store.abort("s", WRITER);
    store.sweep("s", 0, 2, new LogPosition(1, 9), EARLIEST);
    try (Jedis jedis = store.client()) {
      assertEquals(0, jedis.hlen("{seg:s}:dropped"));
    }
    assertEquals(new Fate.Dropped(EARLIEST), fate(WRITER, EARLIEST));
    assertEquals(Map.of(WRITER.name(), EARLIEST), store.segments.gate("s").dropped());
  }

  @Test
  void whoIsBelowTheFloorHasNotWon() {
    store.pin("s", WRITER);
    store.abort("s", WRITER);
    store.sweep("s", 0, 2, new LogPosition(1, 9), EARLIEST);
    store.sweep("s", 0, 2, new LogPosition(1, 9), new LogPosition(1, 9));
    assertEquals(Map.of(0, 2L), store.segments.gate("s").floor());
    assertEquals(new Fate.Dropped(EARLIEST), fate(WRITER, EARLIEST));
  }

  @Test
  void whoWasPinnedWhereAGroupEndsIsToldByItsCounters() {
    LogPosition group = new LogPosition(1, 9);
    store.pin("s", WRITER);
    store.abort("s", WRITER);
    store.sweep("s", 0, 3, group, EARLIEST);
    assertEquals(new Fate.Dropped(group), fate(OTHER, group));
  }

  @Test
  void theGateHasAllPins() {
    for (int number = 0; number < 100; number++) {
      store.pin("s", WriterId.ofName("ptxn-0-" + number + "-0-aa").orElseThrow());
    }
    assertEquals(100, store.segments.gate("s").pins().size());
  }

  @Test
  void nothingWasEverWrittenToASegmentWithoutATag() {
    assertEquals(Gate.PLAIN, store.segments.gate("new"));
    Query query = new Query(WRITER, null);
    assertEquals(List.of(new Fate.Unpinned()), store.segments.fates("new", List.of(query)));
  }

  @Test
  void aStoreWithoutAnIdentityIsRefused() {
    try (Jedis jedis = store.client()) {
      jedis.flushAll();
    }
    StoreException error =
        assertThrows(StoreRolledBackException.class, () -> store.segments.gate("s"));
    assertTrue(error.getMessage().contains("no identity"), error.getMessage());
  }

  @Test
  void anotherStoreThanTheSegmentsIsRefused() {
    store.segments.requireIdentity(TestStore.UUID);
    assertThrows(StoreRolledBackException.class, () -> store.segments.requireIdentity("other"));
  }

  @Test
  void aTagThatIsGoneIsNotTakenForANewOne() {
    store.pin("s", WRITER);
    store.segments.gate("s");
    try (Jedis jedis = store.client()) {
      jedis.del("{seg:s}:birth");
    }
    assertThrows(StoreRolledBackException.class, () -> store.segments.gate("s"));
  }

  @Test
  void aTagThatWentBeforeItWasEverSeenHereIsMissed() {
    try (Jedis jedis = store.client()) {
      jedis.del("{seg:s}:birth");
    }
    assertThrows(StoreRolledBackException.class, () -> store.segments.gate("s"));
  }

  @Test
  void aTagOfAnotherStoreIsRefused() {
    try (Jedis jedis = store.client()) {
      jedis.hset("{seg:s}:birth", "uuid", "other");
    }
    assertThrows(StoreRolledBackException.class, () -> store.segments.gate("s"));
  }

  @Test
  void aTagThatIsOlderThanWhatWasSeenIsRefused() {
    store.pin("s", WRITER);
    store.segments.gate("s");
    try (Jedis jedis = store.client()) {
      jedis.hset("{seg:s}:birth", "seq", "1");
    }
    assertThrows(StoreRolledBackException.class, () -> store.segments.gate("s"));
  }

  @Test
  void aTagOfAnotherHistoryIsRefusedThoughItsNumberIsHigher() {
    store.pin("s", WRITER);
    store.segments.gate("s");
    try (Jedis jedis = store.client()) {
      jedis.hset("{seg:s}:birth", "seq", "99");
      jedis.hset("{seg:s}:birth", "history", "feedfeedfeedfeed");
    }
    assertThrows(StoreRolledBackException.class, () -> store.segments.gate("s"));
  }

  @Test
  void aTagThatTheStoreDoesNotListIsRegisteredBeforeItIsReliedOn() {
    try (Jedis jedis = store.client()) {
      jedis.hdel("{seg:s}:birth", "registered");
      jedis.hset("{meta}:tags", "seg:s", "creating");
    }
    assertEquals(Gate.PLAIN, store.segments.gate("s"));
    try (Jedis jedis = store.client()) {
      assertEquals("born", jedis.hget("{meta}:tags", "seg:s"));
    }
  }

  @Test
  void aReplicaIsNotAsked() {
    try (RedisServer replica = new RedisServer();
        RedisConnections connections = new RedisConnections(replica.settings())) {
      try (Jedis jedis = replica.client()) {
        jedis.replicaof("127.0.0.1", 1);
      }
      RedisSegmentStore lagging = new RedisSegmentStore(new Scripts(connections), store.metrics);
      StoreException error =
          assertThrows(StoreUnavailableException.class, () -> lagging.gate("s"));
      assertTrue(error.getMessage().contains("slave"), error.getMessage());
    }
  }
}
