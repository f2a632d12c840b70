package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;

/** Whoever follows a segment is told once at the beginning, whoever has followed it before. */
class EventFollowerTest extends StoreTest {
  private static final long PATIENCE_S = 20;

  private static boolean isTold(Semaphore polls) throws InterruptedException {
    return polls.tryAcquire(PATIENCE_S, TimeUnit.SECONDS);
  }

  @Test
  void aSuccessorIsToldThoughNothingHappens() throws Exception {
    EventFollower follower = new EventFollower(store.connections);
    Semaphore first = new Semaphore(0);
    Semaphore second = new Semaphore(0);
    Runnable lookFirst = first::release;
    Runnable pollSecond = second::release;
    follower.follow("s", lookFirst);
    assertTrue(isTold(first));
    follower.follow("s", pollSecond);
    assertTrue(isTold(second));
    follower.leave("s", pollSecond);
  }

  @Test
  void aLookThatFailsEndsNobody() throws Exception {
    EventFollower follower = new EventFollower(store.connections);
    AtomicBoolean fails = new AtomicBoolean(true);
    Semaphore told = new Semaphore(0);
    Runnable poll =
        () -> {
          if (fails.getAndSet(false)) {
            throw new AssertionError("a test's");
          }
          told.release();
        };
    follower.follow("s", poll);
    assertTrue(isTold(told));
    follower.leave("s", poll);
  }
}
