package pulsartxnspark.broker;

import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import java.util.function.LongSupplier;
import org.apache.bookkeeper.mledger.ManagedLedgerException.MetadataNotFoundException;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.util.FutureUtil;

/** Tells which topics are gated segments, whichever broker they are loaded by. */
final class GatedSegments {
  private static final int MOST_REMEMBERED = 10_000;
  private static final long ORDINARY_MS = 60_000; // then its properties are read again

  private final Function<String, CompletableFuture<Map<String, String>>> properties;
  // A segment's marks are made with its topic, and a topic of its name is never made again.
  private final Map<String, Segment> known = new ConcurrentHashMap<>();
  // Whoever takes a segment for one of these is refused there, as its transaction has no pin.
  private final Map<String, Long> ordinary = new ConcurrentHashMap<>();
  private final LongSupplier clockMs;

  /**
   * A gated segment.
   *
   * @param id of the segment
   * @param storeUuid of the metadata store that its transactions are in
   */
  record Segment(String id, String storeUuid) {}

  /**
   * Makes a look-up.
   *
   * @param properties gives the properties of a managed ledger
   * @param clockMs a clock that never goes back
   */
  GatedSegments(
      Function<String, CompletableFuture<Map<String, String>>> properties, LongSupplier clockMs) {
    this.properties = properties;
    this.clockMs = clockMs;
  }

  /**
   * Looks a topic up.
   *
   * @param topic its name
   * @return the segment that it is, or nothing for any other topic
   */
  CompletableFuture<Optional<Segment>> find(String topic) {
    Segment segment = known.get(topic);
    long now = clockMs.getAsLong();
    if (segment != null || ordinary.getOrDefault(topic, now) > now) {
      return CompletableFuture.completedFuture(Optional.ofNullable(segment));
    }
    TopicName name = TopicName.get(topic);
    if (!name.isPersistent()) {
      return CompletableFuture.completedFuture(Optional.empty());
    }
    return properties
        .apply(name.getPersistenceNamingEncoding())
        .thenApply(marks -> note(topic, marks, now))
        .exceptionally(
            error -> {
              if (FutureUtil.unwrapCompletionException(error) instanceof MetadataNotFoundException) {
                return Optional.empty(); // it has no ledger yet
              }
              throw FutureUtil.wrapToCompletionException(error);
            });
  }

  private Optional<Segment> note(String topic, Map<String, String> marks, long now) {
    Optional<Segment> segment = MetadataTransactionBufferProvider.gatedSegment(marks);
    if (segment.isPresent() && known.size() < MOST_REMEMBERED) {
      known.put(topic, segment.get());
    } else if (segment.isEmpty()) {
      if (ordinary.size() >= MOST_REMEMBERED) {
        ordinary.clear();
      }
      ordinary.put(topic, now + ORDINARY_MS);
    }
    return segment;
  }
}
