package pulsartxnspark.broker;

import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import pulsartxnspark.store.Gate;

/** Keeps the filter of a segment small. */
final class BufferPruning {
  private static final long INTERVAL_MS = 600_000;
  private static final int PRUNED_FROM = 1_000; // dropped writers, of about 100 bytes each

  private final BufferParts parts;
  private volatile Future<?> pruning; // null until it begins

  BufferPruning(BufferParts parts) {
    this.parts = parts;
  }

  void begin() {
    pruning =
        parts
            .store()
            .threads()
            .scheduleWithFixedDelay(
                this::pruneIfMany, INTERVAL_MS, INTERVAL_MS, TimeUnit.MILLISECONDS);
  }

  void close() {
    pruning.cancel(false);
  }

  private void pruneIfMany() {
    if (parts.filter().size() >= PRUNED_FROM) {
      prune();
    }
  }

  /** Asks the store what is gone, and forgets it. */
  void prune() {
    if (parts.writers().state() != BufferWriters.State.Ready) {
      return;
    }
    Gate gate;
    try {
      gate = parts.store().segments().gate(parts.segment());
    } catch (RuntimeException error) {
      parts.complaints().complain("does not learn which dropped writers are gone", error);
      return;
    }
    parts.filter().prune(gate, parts.topic().firstLedger());
  }
}
