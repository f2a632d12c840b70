package pulsartxnspark.broker;

/**
 * What the parts of one segment's buffer share.
 *
 * @param topic what it belongs to
 * @param segment its id
 * @param store what it asks
 * @param coordinators of the store
 * @param writers who block consumers; its monitor guards what the other parts have, too
 * @param filter what consumers never get
 * @param complaints what the broker's log says
 */
record BufferParts(
    SegmentLog topic,
    String segment,
    BrokerStore store,
    SharedCoordinators coordinators,
    BufferWriters writers,
    BufferFilter filter,
    BufferComplaints complaints) {
  static final long FIRST_PAUSE_MS = 100; // before the store is asked again; doubled
  static final long LONGEST_PAUSE_MS = 5_000;
}
