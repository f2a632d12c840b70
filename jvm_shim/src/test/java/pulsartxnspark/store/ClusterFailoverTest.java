package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Servers of a cluster that die, and replicas that take their place. */
@Tag("cluster") // waits for failovers
class ClusterFailoverTest {
  private static final WriterId WRITER = WriterId.ofName("ptxn-0-1-0-aa").orElseThrow();
  private static final WriterId OTHER = WriterId.ofName("ptxn-0-2-0-bb").orElseThrow();
  private static final LogPosition FURTHER = new LogPosition(1, 9);
  private static final long PATIENCE_S = 20;

  private RedisCluster cluster;
  private TestStore store;
  private RedisServer of; // the server of the segment "s"

  @BeforeEach
  void makeStore() {
    cluster = new RedisCluster();
    store = new TestStore(cluster);
    store.prepare("s");
    of = cluster.nodeOf("{seg:s}:birth");
  }

  @AfterEach
  void close() {
    store.close();
    cluster.close();
  }

  private Gate gate() {
    return store.segments.gate("s");
  }

  private RedisCoordinatorStore coordinator() {
    return new RedisCoordinatorStore(new Scripts(store.connections), new StoreMetrics());
  }

  private boolean answers() {
    try {
      gate();
      return true;
    } catch (StoreUnavailableException error) {
      return false;
    }
  }

  @Test
  void aServerThatDiesDoesNotAnswerUntilItIsBack() {
    store.pin("s", WRITER);
    gate();
    of.stop();
    assertThrows(StoreUnavailableException.class, this::gate);
    assertThrows(
        Exception.class,
        () -> coordinator().raiseTogether("s", FURTHER).get(PATIENCE_S, TimeUnit.SECONDS));
    of.start();
    cluster.await(this::answers);
    assertEquals(1, gate().pins().size());
  }

  @Test
  void aReplicaThatTakesOverIsAsked() {
    RedisServer replica = cluster.addReplica(of);
    store.pin("s", WRITER);
    gate();
    cluster.promote(replica);
    assertEquals(1, gate().pins().size());
    of.stop();
    store.pin("s", OTHER);
    assertEquals(2, gate().pins().size());
  }

  @Test
  void aReplicaTakesThePlaceOfAServerThatDied() {
    cluster.addReplica(of);
    store.pin("s", WRITER);
    RedisCoordinatorStore coordinator = coordinator();
    coordinator.raiseTogether("s", FURTHER).join();
    cluster.awaitReplica(of, "{seg:s}:test");
    of.stop();
    cluster.await(this::answers);
    assertEquals(1, gate().pins().size());
    cluster.await(
        () -> coordinator.raiseTogether("s", FURTHER).exceptionally(lost -> false).join());
  }

  @Test
  void aReplicaTakesThePlaceOfAServerThatStandsStill() {
    cluster.addReplica(of);
    store.pin("s", WRITER);
    gate();
    cluster.awaitReplica(of, "{seg:s}:test");
    of.freeze(); // it lets everybody in, and says nothing: that takes all the time there is
    assertThrows(StoreUnavailableException.class, this::gate);
    cluster.await(this::answers);
    assertEquals(1, gate().pins().size());
  }

  @Test
  void aReplicaThatLacksWhatWasSeenIsRefused() {
    RedisServer replica = cluster.addReplica(of);
    replica.stop();
    store.pin("s", WRITER);
    assertEquals(1, gate().pins().size());
    of.stop();
    replica.start();
    cluster.promote(replica, "TAKEOVER");
    StoreException[] found = new StoreException[1];
    cluster.await(
        () -> {
          try {
            gate();
          } catch (StoreException error) {
            found[0] = error;
          }
          return found[0] instanceof StoreRolledBackException;
        });
  }
}
