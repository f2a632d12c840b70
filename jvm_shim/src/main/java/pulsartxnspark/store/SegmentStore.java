package pulsartxnspark.store;

import java.util.List;

/** What a transaction buffer asks of the metadata store about one segment at a time. */
public interface SegmentStore {
  /**
   * Fails unless this is the expected store.
   *
   * @param uuid of the store that the segment belongs to
   * @throws StoreException if it is another one, or does not answer
   */
  void requireIdentity(String uuid);

  /**
   * Gives the number of coordinators in the store. A store may have fewer than Pulsar.
   *
   * @return at least 1
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  int coordinators();

  /**
   * Reads the whole gate of a segment in one step. Read the LAC before.
   *
   * @param segment its id
   * @return pins, dropped writers and floor
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Gate gate(String segment);

  /**
   * Asks how some writers stand, in one step.
   *
   * @param segment its id
   * @param queries of writers
   * @return for each query its answer, in the same order
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  List<Fate> fates(String segment, List<Query> queries);

  /**
   * Relies from now on only on states of a segment that contain this one; asks nothing.
   *
   * @param segment its id
   * @param state that somebody else has seen
   */
  void raiseSeen(String segment, Seen state);

  /**
   * A question for the fate of a writer.
   *
   * @param writer which one
   * @param pinnedAt where it was pinned; null if that is not known, and {@link Fate.Unpinned} will do
   */
  record Query(WriterId writer, LogPosition pinnedAt) {}
}
