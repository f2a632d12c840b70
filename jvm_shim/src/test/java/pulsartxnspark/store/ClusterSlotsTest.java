package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.exceptions.JedisConnectionException;

class ClusterSlotsTest {
  private static final HostAndPort A = new HostAndPort("a", 1);
  private static final HostAndPort B = new HostAndPort("b", 2);
  private static final HostAndPort C = new HostAndPort("c", 3);
  private static final int LAST = 16_383;
  private static final long WITHIN_MS = 600;

  private final List<HostAndPort> asked = new ArrayList<>();
  private List<Object> told;
  private HostAndPort odd; // who talks nonsense
  private final AtomicLong nowMs = new AtomicLong();
  private long answersAfterMs;
  private final List<Long> given = new ArrayList<>(); // milliseconds to answer
  private final ClusterSlots slots = new ClusterSlots(List.of(A), this::ask);

  private List<Object> ask(HostAndPort server, Deadline deadline) {
    asked.add(server);
    given.add(deadline.leftMs());
    nowMs.addAndGet(Math.min(deadline.leftMs(), answersAfterMs));
    if (answersAfterMs > WITHIN_MS) {
      throw new JedisConnectionException("late");
    }
    if (server.equals(odd)) {
      return List.of(List.of(0L, 1L), "no range");
    }
    if (told == null) {
      throw new JedisConnectionException("away");
    }
    return told;
  }

  private static List<Object> range(long from, long to, HostAndPort... servers) {
    List<Object> range = new ArrayList<>(List.of(from, to));
    for (HostAndPort one : servers) {
      range.add(List.of(Scripts.bytes(one.getHost()), (long) one.getPort(), Scripts.bytes("id")));
    }
    return range;
  }

  private ClusterSlots.View refresh(HostAndPort suspect) {
    return refresh(slots.view(), suspect);
  }

  private ClusterSlots.View refresh(ClusterSlots.View seen, HostAndPort suspect) {
    return slots.refresh(seen, suspect, Deadline.in(WITHIN_MS, nowMs::get));
  }

  @Test
  void thePrimaryOfARangeHasItsSlots() {
    told = List.of(range(0, 9, A, C), range(10, LAST, B));
    assertEquals(A, refresh(null).owner(9));
    assertEquals(B, slots.view().owner(10));
    assertEquals(Set.of(A, B, C), slots.view().servers());
    assertEquals(Set.of(A, B), slots.view().allOwners());
  }

  @Test
  void whoeverHasAskedSinceIsNotRepeated() {
    told = List.of(range(0, LAST, A));
    ClusterSlots.View first = slots.view();
    assertSame(refresh(first, null), refresh(first, null));
    assertEquals(1, asked.size());
  }

  @Test
  void aSuspectIsAskedLast() {
    told = List.of(range(0, LAST, A, B, C));
    refresh(null);
    asked.clear();
    told = null;
    for (int i = 0; i < 8; i++) { // of three in any turn it would be another one
      refresh(B);
      assertEquals(3, asked.size());
      assertEquals(B, asked.get(2));
      asked.clear();
    }
    assertEquals(A, slots.view().owner(0), "what was known before");
    assertNotNull(slots.view().failure());
  }

  @Test
  void allServersTogetherAreAskedWithinTheTime() {
    told = List.of(range(0, LAST, A, B, C));
    refresh(null);
    given.clear();
    answersAfterMs = Long.MAX_VALUE;
    assertNotNull(refresh(null).failure());
    assertEquals(List.of(200L, 200L, 200L), given); // none uses up the time of the others
    assertEquals(WITHIN_MS, nowMs.get());
  }

  @Test
  void whoeverFindsThatSomebodyAsksWaitsNoLongerThanItsTime() throws Exception {
    CountDownLatch asking = new CountDownLatch(1);
    CountDownLatch answers = new CountDownLatch(1);
    ClusterSlots slow =
        new ClusterSlots(
            List.of(A),
            (server, deadline) -> {
              asking.countDown();
              try {
                answers.await();
              } catch (InterruptedException error) {
                throw new IllegalStateException(error);
              }
              return List.of(range(0, LAST, B));
            });
    ClusterSlots.View seen = slow.view();
    Deadline patient = Deadline.in(WITHIN_MS, nowMs::get);
    CompletableFuture<ClusterSlots.View> found =
        CompletableFuture.supplyAsync(() -> slow.refresh(seen, null, patient));
    asking.await();
    assertSame(seen, slow.refresh(seen, null, Deadline.in(1, nowMs::get)));
    slow.moved(7, C, A); // nor does a redirection wait
    answers.countDown();
    assertEquals(B, found.get().owner(0));
  }

  @Test
  void anotherOneIsAskedIfOneTalksNonsense() {
    told = List.of(range(0, LAST, A, B));
    refresh(null);
    odd = B;
    for (int i = 0; i < 8; i++) { // in any turn
      told = List.of(range(0, LAST, i % 2 == 0 ? C : A, B));
      assertEquals(i % 2 == 0 ? C : A, refresh(null).owner(0));
    }
    odd = A;
    told = null;
    assertNotNull(refresh(null).failure());
  }

  @Test
  void aServerWithoutANameIsWhereTheOneIsThatTellsOfIt() {
    told = List.of(range(0, 9, new HostAndPort("", 7)), range(20, LAST, new HostAndPort("?", 8)));
    assertEquals(new HostAndPort("a", 7), refresh(null).owner(0));
    assertEquals(new HostAndPort("a", 8), slots.view().owner(20));
    assertNull(slots.view().owner(10));
    slots.moved(10, new HostAndPort("", 9), B);
    assertEquals(new HostAndPort("b", 9), slots.view().owner(10));
  }
}
