package pulsartxnspark.store;

import java.util.Collection;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * What a broker keeps in the metadata store of the acknowledgements that transactions make in a
 * subscription of Pulsar's own. They are records by their names, which one owner at a time writes.
 * Each step may be repeated after a lost reply.
 */
public interface AckStore {
  /**
   * A subscription.
   *
   * @param segment id of the segment that it reads
   * @param name its name in Pulsar
   */
  record Subscription(String segment, String name) {}

  /**
   * What its owner has found.
   *
   * @param owner number of the owner; whoever has a lower one is fenced
   * @param records by their names
   */
  record Opened(long owner, Map<String, String> records) {}

  /** What came of a step. */
  enum Answer {
    /** It was taken, now or before. */
    OK,
    /** Another broker has opened the subscription since. */
    FENCED,
    /** The segment was deleted. */
    RETIRED,
    /** Nothing was written, and never will be by this step: the server is full. */
    FULL
  }

  /**
   * A change of records.
   *
   * @param number 1 for an owner's first one; the same when it is repeated
   * @param written records by their names
   * @param removed names of records
   */
  record Step(long number, Map<String, String> written, Collection<String> removed) {}

  /**
   * Notes the id that a cursor is about to get; changes nothing else.
   *
   * @param subscription which one
   * @param cursor id for its cursor
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  void note(Subscription subscription, String cursor);

  /**
   * Opens a subscription: whoever has opened it before writes nothing more. If the id was only noted
   * before, nothing is left of what the store has of another cursor.
   *
   * @param subscription which one
   * @param cursor id that its cursor has
   * @return all records
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Opened open(Subscription subscription, String cursor);

  /**
   * Takes a step.
   *
   * @param subscription which one
   * @param owner number of its owner
   * @param step what to change
   * @return what came of it
   * @throws StoreException if the store does not answer, or is not to be relied on; it may be taken or
   *     not
   */
  Answer write(Subscription subscription, long owner, Step step);

  /**
   * Takes a step together with those of others; returns at once.
   *
   * @param subscription which one
   * @param owner number of its owner
   * @param step what to change
   * @return what came of it; nothing, or an error, where only {@link #write} tells
   */
  CompletableFuture<Optional<Answer>> writeTogether(
      Subscription subscription, long owner, Step step);
}
