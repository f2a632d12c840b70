package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import pulsartxnspark.store.SegmentStore.Query;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.util.JedisClusterCRC16;

/** Slots of a cluster that move, and who may ask for what. */
@Tag("cluster") // waits for failovers
class RedisClusterTest {
  private static final WriterId WRITER = WriterId.ofName("ptxn-0-1-0-aa").orElseThrow();
  private static final WriterId OTHER = WriterId.ofName("ptxn-0-2-0-bb").orElseThrow();
  private static final LogPosition EARLIEST = LogPosition.EARLIEST;
  private static final LogPosition FURTHER = new LogPosition(1, 9);
  private static final int MANY = 50;
  private static final long PATIENCE_S = 20;

  private static final AtomicInteger SEGMENTS = new AtomicInteger();
  private static RedisCluster cluster;

  private TestStore store;
  private String segment; // each test has one of its own, as slots do not move back
  private String key;
  private RedisServer of;
  private RedisServer target;

  @BeforeAll
  static void startCluster() {
    cluster = new RedisCluster();
  }

  @AfterAll
  static void stopCluster() {
    cluster.close();
  }

  @BeforeEach
  void makeStore() {
    store = new TestStore(cluster);
    of = cluster.nodeOf("{meta}:birth");
    target = cluster.nodeOf("{tc0}:birth");
    do {
      segment = "s" + SEGMENTS.getAndIncrement();
      key = "{seg:" + segment + "}:birth";
    } while (cluster.nodeOf(key) != of);
    store.prepare(segment);
  }

  @AfterEach
  void closeStore() {
    store.close();
  }

  private Gate gate() {
    return store.segments.gate(segment);
  }

  private Fate fate() {
    return store.segments.fates(segment, List.of(new Query(WRITER, EARLIEST))).get(0);
  }

  private RedisCoordinatorStore coordinator() {
    return new RedisCoordinatorStore(new Scripts(store.connections), new StoreMetrics());
  }

  private void move() {
    cluster.beginToMove(key, of, target);
    cluster.moveKeys(of, target, cluster.keysOf(key, of));
    cluster.endMove(key, of, target);
  }

  private static boolean answers(Runnable request) {
    try {
      request.run();
      return true;
    } catch (StoreUnavailableException error) {
      return false;
    }
  }

  @Test
  void aSlotThatHasMovedIsFoundAtItsNewServer() throws Exception {
    store.pin(segment, WRITER);
    RedisCoordinatorStore coordinator = coordinator();
    assertTrue(coordinator.raiseTogether(segment, FURTHER).get(PATIENCE_S, TimeUnit.SECONDS));
    move();
    assertEquals(1, gate().pins().size());
    store.commit(segment, WRITER, FURTHER);
    assertEquals(new Fate.Won(), fate());
  }

  @Test
  void requestsThatAreSentTogetherFollowASlot() throws Exception {
    RedisCoordinatorStore coordinator = coordinator();
    assertTrue(coordinator.raiseTogether(segment, FURTHER).get(PATIENCE_S, TimeUnit.SECONDS));
    move();
    List<CompletableFuture<Boolean>> raised =
        IntStream.range(0, MANY)
            .mapToObj(n -> coordinator.raiseTogether(segment, new LogPosition(2, n)))
            .toList();
    for (CompletableFuture<Boolean> one : raised) {
      assertTrue(one.get(PATIENCE_S, TimeUnit.SECONDS));
    }
    try (Jedis jedis = target.client()) {
      String high = new LogPosition(2, MANY - 1).padded();
      assertEquals(high, jedis.hget("{seg:" + segment + "}:state", "high-position"));
    }
  }

  /** The target of ASK would say that nobody was dropped: the group has not arrived there. */
  @Test
  void aSlotOnItsWayDoesNotAnswer() throws Exception {
    store.pin(segment, WRITER);
    store.abort(segment, WRITER);
    store.sweep(segment, 0, 2, FURTHER, EARLIEST);
    store.pin(segment, OTHER);
    assertEquals(new Fate.Dropped(EARLIEST), fate());
    try (Jedis jedis = store.client()) {
      jedis.hset("{seg:" + segment + "}:dropped", "nobody", EARLIEST.padded() + "|0:9"); // not at the new server
      jedis.hset("{seg:" + segment + "}:floor", "1", "0");
    }
    loadScript("seg_fates", target); // it could run it
    List<String> keys = cluster.keysOf(key, of);
    List<String> groups =
        keys.stream().filter(key -> key.startsWith("{seg:" + segment + "}:dropped:")).toList();
    assertEquals(1, groups.size());
    cluster.beginToMove(key, of, target);
    keys.removeAll(groups);
    cluster.moveKeys(of, target, keys);
    StoreUnavailableException error =
        assertThrows(StoreUnavailableException.class, this::fate);
    assertTrue(error.getMessage().contains("moved"), error.getMessage());
    Throwable sent =
        assertThrows(
            Exception.class,
            () -> coordinator().raiseTogether(segment, FURTHER).get(PATIENCE_S, TimeUnit.SECONDS));
    assertTrue(sent.getCause() instanceof RuntimeException, sent.toString());
    cluster.moveKeys(of, target, groups);
    cluster.endMove(key, of, target);
    assertEquals(new Fate.Dropped(EARLIEST), fate());
  }

  private static void loadScript(String name, RedisServer server) {
    try (Jedis jedis = server.client()) {
      jedis.scriptLoad(Scripts.script(name).text());
    }
  }

  @Test
  void aSlotThatNobodyHasDoesNotAnswer() {
    try (Jedis jedis = of.client()) {
      String slot = "" + JedisClusterCRC16.getSlot(key);
      jedis.sendCommand(Protocol.Command.CLUSTER, "DELSLOTS", slot);
    }
    assertThrows(StoreUnavailableException.class, this::gate);
    assertThrows(
        Exception.class,
        () -> coordinator().raiseTogether(segment, FURTHER).get(PATIENCE_S, TimeUnit.SECONDS));
    assertEquals(Gate.PLAIN, store.segments.gate("t"));
  }

  /** Sends a script that takes longer than a request may, and tells how often it was run. */
  private int runs(Function<RedisConnections, Function<Scripts.Script, Object>> way) {
    Scripts.Script slow =
        new Scripts.Script(
            "redis.call('INCR', KEYS[1]) local start = redis.call('TIME') local passed = 0\n"
                + "while passed < 700000 do local now = redis.call('TIME')\n"
                + "passed = (now[1] - start[1]) * 1000000 + now[2] - start[2] end return {1}",
            "0123456789012345678901234567890123456789");
    String url = "redis+cluster://127.0.0.1:" + cluster.port();
    try (RedisConnections hasty =
        new RedisConnections(StoreSettings.of(url, "", "", "", 500).accepting(true, false))) {
      hasty.with(Scripts.bytes(key), jedis -> jedis.exists(key)); // it knows the slots
      assertThrows(Exception.class, () -> way.apply(hasty).apply(slow));
    }
    cluster.await(() -> answers(this::gate));
    try (Jedis jedis = store.client()) {
      String count = jedis.get("{seg:" + segment + "}:count");
      jedis.del("{seg:" + segment + "}:count");
      return Integer.parseInt(count);
    }
  }

  @Test
  void aRequestWhoseReplyIsLateIsSentOnceOnly() {
    List<byte[]> keys = List.of(Scripts.bytes("{seg:" + segment + "}:count"));
    assertEquals(
        1,
        runs(
            hasty ->
                slow ->
                    hasty.with(
                        keys.get(0),
                        jedis -> jedis.eval(Scripts.bytes(slow.text()), keys, List.of()))));
    assertEquals(1, runs(hasty -> slow -> hasty.send(slow, keys, List.of()).join()));
  }

  @Test
  void aClusterIsAskedByItsOwnSchemeOnly() {
    StoreSettings single =
        StoreSettings.of("redis://127.0.0.1:" + of.port(), "", "", "", 2_000);
    try (RedisServer alone = new RedisServer();
        RedisConnections toNode = new RedisConnections(single);
        RedisConnections toSingle =
            new RedisConnections(
                StoreSettings.of("redis+cluster://127.0.0.1:" + alone.port(), "", "", "", 2_000))) {
      Exception error =
          assertThrows(StoreUnavailableException.class, () -> new Scripts(toNode).identity());
      assertTrue(error.getMessage().contains("redis+cluster://"), error.getMessage());
      assertThrows(StoreUnavailableException.class, () -> new Scripts(toSingle).identity());
    }
  }

  @Test
  void eventsOfSegmentsOnSeveralServersAreFollowedWhereverTheyGo() throws Exception {
    store.prepare("t");
    EventFollower follower = new EventFollower(store.connections);
    Semaphore ofS = new Semaphore(0);
    Semaphore ofT = new Semaphore(0);
    Runnable pollS = ofS::release;
    Runnable pollT = ofT::release;
    follower.follow(segment, pollS);
    follower.follow("t", pollT);
    assertTrue(ofS.tryAcquire(PATIENCE_S, TimeUnit.SECONDS), "the first poll");
    assertTrue(ofT.tryAcquire(PATIENCE_S, TimeUnit.SECONDS), "the first poll");
    store.pin("t", WRITER);
    store.commit("t", WRITER, FURTHER);
    assertTrue(ofT.tryAcquire(PATIENCE_S, TimeUnit.SECONDS), "the event");
    store.pin(segment, WRITER);
    store.commit(segment, WRITER, FURTHER);
    assertTrue(ofS.tryAcquire(PATIENCE_S, TimeUnit.SECONDS), "the event");
    ofS.drainPermits();
    move();
    assertTrue(ofS.tryAcquire(PATIENCE_S, TimeUnit.SECONDS), "a poll of the new server");
    store.pin(segment, OTHER);
    store.commit(segment, OTHER, FURTHER);
    assertTrue(ofS.tryAcquire(PATIENCE_S, TimeUnit.SECONDS), "the event there");
    follower.leave(segment, pollS);
    follower.leave("t", pollT);
  }

  @Test
  void theUserOfTheExampleMayAskAClusterForItsSlots() throws Exception {
    for (RedisServer node : cluster.nodes()) {
      RedisConnectionsTest.makeUser(node);
    }
    store.pin(segment, WRITER);
    StoreSettings settings =
        StoreSettings.of(
                "redis+cluster://127.0.0.1:" + cluster.port(), "pulsar_txn", "CHANGE-ME", "", 2_000)
            .accepting(true, false);
    try (RedisConnections connections = new RedisConnections(settings)) {
      RedisSegmentStore segments =
          new RedisSegmentStore(new Scripts(connections), new StoreMetrics());
      assertEquals(1, segments.gate(segment).pins().size());
    } finally {
      for (RedisServer node : cluster.nodes()) {
        try (Jedis jedis = node.client()) {
          jedis.aclDelUser("pulsar_txn");
        }
      }
    }
  }

  @Test
  void eachServerOfAnEncryptedClusterIsReachedByItsOwnAddress(@TempDir Path folder)
      throws Exception {
    OwnCertificate certificate = new OwnCertificate(folder, "server", "EC", "ip:127.0.0.1");
    String ca = certificate.file().toString();
    StoreSettings.Tls tls = StoreSettings.Tls.of(ca, ca, certificate.keyFile().toString(), true);
    List<TlsEndpoint> endpoints = new ArrayList<>();
    try (RedisCluster encrypted = new RedisCluster();
        TestStore inside = new TestStore(encrypted)) {
      inside.prepare("s");
      inside.pin("s", WRITER);
      for (RedisServer node : encrypted.nodes()) {
        TlsEndpoint endpoint = new TlsEndpoint(certificate, node.port(), certificate);
        endpoints.add(endpoint);
      }
      encrypted.announce(endpoints.stream().map(TlsEndpoint::port).toList());
      String url = "rediss+cluster://127.0.0.1:" + endpoints.get(0).port();
      try (RedisConnections connections =
          new RedisConnections(
              StoreSettings.of(url, "", "", tls, 3_000).accepting(true, false))) {
        RedisSegmentStore segments =
            new RedisSegmentStore(new Scripts(connections), new StoreMetrics());
        assertEquals(1, segments.gate("s").pins().size());
        assertEquals(Gate.PLAIN, segments.gate("t"));
      }
    } finally {
      for (TlsEndpoint one : endpoints) {
        one.close();
      }
    }
  }
}
