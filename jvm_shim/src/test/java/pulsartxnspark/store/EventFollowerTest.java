package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.Appender;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.Logger;
import org.apache.logging.log4j.core.appender.AbstractAppender;
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

  @Test
  void aReadThatIsRefusedAgainAndAgainIsLoggedOnce() throws Exception {
    RedisConnectionsTest.makeUser(server, "-xread");
    StoreSettings settings =
        StoreSettings.of("redis://127.0.0.1:" + server.port(), "pulsar_txn", "CHANGE-ME", "", 2_000)
            .accepting(true, false);
    Queue<String> logged = new ConcurrentLinkedQueue<>();
    Appender appender =
        new AbstractAppender("of a test", null, null, true, null) {
          @Override
          public void append(LogEvent event) {
            logged.add(event.getMessage().getFormattedMessage());
          }
        };
    appender.start();
    Logger log = (Logger) LogManager.getLogger(EventFollower.class);
    log.addAppender(appender);
    Semaphore polls = new Semaphore(0);
    Runnable poll = polls::release;
    try (RedisConnections connections = new RedisConnections(settings)) {
      EventFollower follower = new EventFollower(connections);
      follower.follow("s", poll);
      for (int i = 0; i < 4; i++) { // each before the read, which is refused
        assertTrue(isTold(polls));
      }
      follower.leave("s", poll);
    } finally {
      log.removeAppender(appender);
    }
    assertEquals(1, logged.size(), logged.toString());
    assertTrue(logged.element().contains("'xread'"), logged.toString());
  }
}
