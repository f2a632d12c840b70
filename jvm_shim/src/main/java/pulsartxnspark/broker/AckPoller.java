package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Position;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import pulsartxnspark.broker.AckTransactions.Txn;
import pulsartxnspark.broker.Decisions.Decision;
import pulsartxnspark.store.TransactionId;

/** Polls for decisions that nobody has told, for records that nobody needs, and for late answers. */
final class AckPoller {
  private static final Logger log = LoggerFactory.getLogger(AckPoller.class);
  private static final int MOST_ASKED = 100; // headers in one poll

  private final AckParts parts;
  private volatile Future<?> polling; // null until it begins

  AckPoller(AckParts parts) {
    this.parts = parts;
  }

  /** Polls from now on. */
  void begin() {
    AckEnvironment environment = parts.environment();
    polling =
        environment
            .timer()
            .scheduleWithFixedDelay(
                () -> parts.subscription().run(this::poll),
                environment.pollIntervalMs(),
                environment.pollIntervalMs(),
                TimeUnit.MILLISECONDS);
  }

  /** Polls no more; called by Pulsar. */
  void close() {
    Future<?> known = polling;
    if (known != null) {
      known.cancel(false);
    }
  }

  static String headless(Txn one) {
    return "transaction " + one.id + " has pending acks, but no header: they stay pending";
  }

  private void poll() {
    if (parts.steps().isOver() || parts.subscription().isCursorClosed()) {
      close();
      return;
    }
    parts.steps().refuseOverdue("the metadata store has not answered in time");
    long now = parts.environment().nowMs();
    Position persistent = parts.subscription().persistent();
    List<Txn> due = new ArrayList<>();
    for (Txn one : parts.txns().all()) {
      if (one.decision == Decision.OPEN) {
        if (!one.isAsked && now - one.polledMs >= parts.environment().pollIntervalMs()) {
          due.add(one);
        }
      } else if (one.isNoted && !one.isApplied) {
        parts.subscription().end(one.id, one.decision == Decision.COMMITTED);
      } else if (one.isNoted && !one.isForgotten && isPersistent(one, persistent)) {
        AckForget.all(parts, one);
      }
    }
    List<Txn> next =
        due.stream()
            .sorted(Comparator.comparingLong(one -> one.polledMs)) // so that each is polled
            .limit(MOST_ASKED)
            .toList();
    for (Txn one : next) {
      one.isAsked = true;
      one.polledMs = now;
    }
    if (!next.isEmpty()) {
      parts.environment().threads().execute(() -> ask(next));
    }
    parts.steps().pump();
  }

  /** Tells whether the cursor, as it would be found after a crash, has all of a transaction. */
  private static boolean isPersistent(Txn one, Position persistent) {
    return one.decision == Decision.ABORTED
        || persistent != null
            && one.records.values().stream()
                .allMatch(record -> record.last().compareTo(persistent) <= 0);
  }

  private void ask(List<Txn> polled) {
    Map<Txn, Decision> answers = new LinkedHashMap<>();
    Decisions decisions = parts.environment().decisions();
    try {
      List<TransactionId> open = new ArrayList<>();
      for (Txn one : polled) {
        Decision header = decisions.of(one.id);
        answers.put(one, header);
        if (header == Decision.OPEN) {
          open.add(decisions.writer(one.id).txn());
        }
      }
      parts.environment().inTheWay().accept(open);
    } catch (RuntimeException error) {
      parts.subscription().complain(String.valueOf(error.getMessage()));
    }
    parts
        .subscription()
        .run(
            () -> {
              polled.forEach(one -> one.isAsked = false);
              answers.forEach(this::learn);
              parts.steps().pump();
            });
  }

  private void learn(Txn one, Decision header) {
    boolean isKnown = one.decision != Decision.OPEN || parts.txns().get(one.id) != one;
    if (isKnown || header == Decision.OPEN) {
      return;
    }
    if (header == Decision.ABSENT) {
      parts.subscription().complain(headless(one));
    } else {
      log.info("transaction {} is {}, and is ended in {}", one.id, header, parts.subscription());
      parts.steps().add(AckEnd.found(parts, one.id, header));
    }
  }
}
