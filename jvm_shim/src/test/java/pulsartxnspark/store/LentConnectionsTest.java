package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.mockito.Mockito.mock;
import static org.mockito.Mockito.never;
import static org.mockito.Mockito.verify;

import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.RedisConnections.Own;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

class LentConnectionsTest {
  private static final int MOST = 8;
  private static final Deadline NOW = Deadline.in(0, () -> 0);

  private final List<Own> made = new ArrayList<>();
  private boolean away;
  private final LentConnections lent = new LentConnections(this::open);

  private Own open(Deadline deadline) {
    if (away) {
      throw new JedisException("away");
    }
    made.add(new Own(mock(Jedis.class), new Socket()));
    return made.get(made.size() - 1);
  }

  private List<Own> taken() {
    List<Own> taken = new ArrayList<>();
    for (int n = 0; n < MOST; n++) {
      taken.add(lent.take(NOW));
    }
    return taken;
  }

  @Test
  void aConnectionIsLentToOneAtATimeAndTheNewestFirst() {
    Own first = lent.take(NOW);
    Own second = lent.take(NOW);
    lent.giveBack(first, true);
    lent.giveBack(second, true);
    assertSame(second, lent.take(NOW));
    assertSame(first, lent.take(NOW));
  }

  @Test
  void whoeverGetsNoneUntilTheDeadlineIsTold() {
    List<Own> taken = taken();
    assertThrows(JedisException.class, () -> lent.take(NOW));
    lent.giveBack(taken.get(0), true);
    assertSame(taken.get(0), lent.take(NOW));
  }

  @Test
  void oneThatIsNotSoundIsClosedAndAnotherOneMade() {
    Own broken = lent.take(NOW);
    lent.giveBack(broken, false);
    verify(broken.jedis()).close();
    taken();
    assertEquals(MOST + 1, made.size());
  }

  @Test
  void oneThatCouldNotBeMadeTakesNoPlace() {
    away = true;
    for (int n = 0; n <= MOST; n++) {
      assertThrows(JedisException.class, () -> lent.take(NOW));
    }
    away = false;
    taken();
  }

  @Test
  void thoseThatNobodyHasAreClosedWithTheServersLoss() {
    Own used = lent.take(NOW);
    Own idle = lent.take(NOW);
    lent.giveBack(idle, true);
    lent.clear();
    verify(idle.jedis()).close();
    verify(used.jedis(), never()).close();
  }

  @Test
  void atTheEndTheOthersAreClosedWhenTheyAreGivenBack() {
    Own used = lent.take(NOW);
    lent.close();
    lent.giveBack(used, true);
    verify(used.jedis()).close();
  }
}
