package pulsartxnspark.broker;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What a segment's buffer suffers from, said in the broker's log once. */
final class BufferComplaints {
  private static final Logger log = LoggerFactory.getLogger(MetadataTransactionBuffer.class);

  private final SegmentLog topic;
  private final String segment;
  private String known; // null if all is well

  BufferComplaints(SegmentLog topic, String segment) {
    this.topic = topic;
    this.segment = segment;
  }

  synchronized void complain(String what, Throwable error) {
    String now = String.valueOf(error.getMessage());
    if (!now.equals(known)) {
      known = now;
      log.warn("{}: the gated segment {} {}: {}", topic.name(), segment, what, now);
    }
  }

  /** All is well again. */
  synchronized void clear() {
    known = null;
  }
}
