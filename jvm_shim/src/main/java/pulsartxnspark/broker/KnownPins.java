package pulsartxnspark.broker;

import java.util.Collection;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongSupplier;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.WriterId;

/**
 * Pins that the coordinators of this broker have just made, for the segments that the same broker
 * serves. With its first entry, a writer need not be asked for again. A segment of another broker
 * asks the store.
 *
 * <p>A pin is forgotten before the decision is asked for, so that no entry is admitted by it
 * afterwards. What others decide meanwhile filters the entry as it does that of any zombie. It is
 * hidden until its writer's fate is known.
 */
final class KnownPins {
  private static final int MOST = 10_000;
  private static final long LIFE_MS = 5_000; // later ones are asked for

  private final Map<Key, Known> pins = new ConcurrentHashMap<>();
  private final LongSupplier clockMs;

  private record Key(String segment, WriterId writer) {}

  private record Known(CoordinatorStore.Pin pin, long endsMs) {}

  /**
   * Makes one that knows none.
   *
   * @param clockMs a clock that never goes back
   */
  KnownPins(LongSupplier clockMs) {
    this.clockMs = clockMs;
  }

  /**
   * Notes a pin that the store has just confirmed.
   *
   * @param segment where
   * @param writer who
   * @param pin where, and in which state of the segment
   */
  void note(String segment, WriterId writer, CoordinatorStore.Pin pin) {
    if (pins.size() < MOST) {
      pins.put(new Key(segment, writer), new Known(pin, clockMs.getAsLong() + LIFE_MS));
    }
  }

  /**
   * Gives a pin, once.
   *
   * @param segment where
   * @param writer who
   * @return the pin; nothing if it is not known
   */
  Optional<CoordinatorStore.Pin> take(String segment, WriterId writer) {
    return Optional.ofNullable(pins.remove(new Key(segment, writer)))
        .filter(known -> clockMs.getAsLong() < known.endsMs)
        .map(Known::pin);
  }

  /**
   * Forgets the pins of a writer.
   *
   * @param segments where
   * @param writer who
   */
  void forget(Collection<String> segments, WriterId writer) {
    segments.forEach(segment -> pins.remove(new Key(segment, writer)));
  }
}
