package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.client.api.transaction.TxnID;
import pulsartxnspark.store.AckStore.Step;

/** Requests that are written in one step. */
final class AckBatch {
  static final long FIRST_PAUSE_MS = 50; // before the store is asked again; doubled
  private static final long LONGEST_PAUSE_MS = 1_000;

  final List<AckRequest> requests = new ArrayList<>();
  final Map<String, String> written = new LinkedHashMap<>();
  final Set<String> removed = new LinkedHashSet<>();
  final Set<TxnID> appending = new HashSet<>();
  boolean ends; // the handle releases messages: what follows is taken up afterwards
  private final Set<Position> touched = new HashSet<>();
  private boolean touchesCumulative;
  private Step step;
  private long pauseMs = FIRST_PAUSE_MS;

  boolean writes() {
    return !written.isEmpty() || !removed.isEmpty();
  }

  /** Tells whether a request in here acknowledges what another one does. */
  boolean touches(AckRecord record) {
    return record.cumulative()
        ? touchesCumulative
        : record.entries().stream().anyMatch(entry -> touched.contains(entry.key()));
  }

  /** Lets requests that acknowledge the same wait. */
  void touch(AckRecord record) {
    touchesCumulative |= record.cumulative();
    record.entries().forEach(entry -> touched.add(entry.key()));
  }

  /** Numbers the step: it stays the same when it is repeated. */
  void number(long number) {
    step = new Step(number, written, removed);
  }

  Step step() {
    return step;
  }

  /** Gives the pause until the step is repeated. */
  long nextPauseMs() {
    long now = pauseMs;
    pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
    return now;
  }
}
