package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.junit.jupiter.api.Test;

/** What readers are told of the last entry, while the topic searches for it. */
class BufferLastEntryTest {
  private static final Position BEFORE = PositionFactory.create(1, 0);

  private final FakeLog topic = new FakeLog();
  private final HandTimer clock = new HandTimer();
  private final BufferLastEntry last = new BufferLastEntry(topic, clock.asked, 1_000);

  /** Lets a search end that began before the move: a PersistentTopic notes what it has found. */
  private Position afterASearch() {
    topic.lastDispatchable = BEFORE;
    clock.tick();
    return topic.lastDispatchable;
  }

  @Test
  void aSearchThatBeganBeforeAMoveIsNotBelieved() {
    BufferWriters writers = new BufferWriters(topic, last);
    topic.store();
    writers.becomeReady(topic.store());
    writers.announce();
    for (int times = 0; times < BufferLastEntry.TIMES; times++) {
      assertNull(afterASearch());
    }
    assertEquals(BEFORE, afterASearch()); // nothing is asked of a topic that rests
    last.moved();
    assertNull(afterASearch());
  }

  @Test
  void aMoveEndsTheRunOfTheOneBefore() {
    last.moved();
    last.moved();
    clock.tick();
    last.moved(); // the next of the first run cannot be cancelled any more
    for (int times = 0; times < BufferLastEntry.TIMES; times++) {
      assertNull(afterASearch());
    }
    assertEquals(BEFORE, afterASearch());
  }

  @Test
  void nothingIsForgottenOnceTheBufferIsClosed() {
    last.moved();
    last.close();
    assertEquals(BEFORE, afterASearch());
    last.moved();
    assertEquals(BEFORE, afterASearch());
  }
}
