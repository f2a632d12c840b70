package pulsartxnspark.broker;

import java.util.Map;

/** Properties by which brokers know a topic as a gated segment. */
final class Marks {
  private Marks() {}

  /** Gives those of the segment "s" of a store. */
  static Map<String, String> of(String uuid) {
    return Map.of(
        MetadataTransactionBufferProvider.SEGMENT_PROPERTY, "s",
        MetadataTransactionBufferProvider.GATE_PROPERTY, "broker",
        MetadataTransactionBufferProvider.STORE_PROPERTY, uuid);
  }
}
