package pulsartxnspark.broker;

import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import org.apache.bookkeeper.mledger.ManagedLedgerException.MetadataNotFoundException;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.util.FutureUtil;

/** Tells which topics are gated segments, whichever broker they are loaded by. */
final class GatedSegments {
  private static final int MOST_REMEMBERED = 10_000;

  private final Function<String, CompletableFuture<Map<String, String>>> properties;
  // A segment's marks are made with its topic, and a topic of its name is never made again.
  private final Map<String, Segment> known = new ConcurrentHashMap<>();

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
   */
  GatedSegments(Function<String, CompletableFuture<Map<String, String>>> properties) {
    this.properties = properties;
  }

  /**
   * Looks a topic up.
   *
   * @param topic its name
   * @return the segment that it is, or nothing for any other topic
   */
  CompletableFuture<Optional<Segment>> find(String topic) {
    Segment found = known.get(topic);
    TopicName name = TopicName.get(topic);
    if (found != null || !name.isPersistent()) {
      return CompletableFuture.completedFuture(Optional.ofNullable(found));
    }
    return properties
        .apply(name.getPersistenceNamingEncoding())
        .exceptionally(
            error -> {
              if (FutureUtil.unwrapCompletionException(error) instanceof MetadataNotFoundException) {
                return Map.of(); // it has no ledger yet
              }
              throw FutureUtil.wrapToCompletionException(error);
            })
        .thenApply(marks -> note(topic, marks));
  }

  private Optional<Segment> note(String topic, Map<String, String> marks) {
    Optional<Segment> found = MetadataTransactionBufferProvider.gatedSegment(marks);
    if (found.isPresent() && known.size() < MOST_REMEMBERED) {
      known.put(topic, found.get());
    }
    return found;
  }
}
