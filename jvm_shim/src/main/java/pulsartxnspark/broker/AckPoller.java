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

  static String headless(Txn txn) {
    return "transaction " + txn.id + " has pending acks, but no header: they stay pending";
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
    for (Txn txn : parts.txns().all()) {
      if (txn.decision == Decision.OPEN) {
        if (!txn.isAsked && now - txn.polledMs >= parts.environment().pollIntervalMs()) {
          due.add(txn);
        }
      } else if (txn.isNoted && !txn.isApplied) {
        parts.subscription().end(txn.id, txn.decision == Decision.COMMITTED);
      } else if (txn.isNoted && !txn.isForgotten && isPersistent(txn, persistent)) {
        AckForget.all(parts, txn);
      }
    }
    List<Txn> next =
        due.stream()
            .sorted(Comparator.comparingLong(txn -> txn.polledMs)) // so that each is polled
            .limit(MOST_ASKED)
            .toList();
    for (Txn txn : next) {
      txn.isAsked = true;
      txn.polledMs = now;
    }
    if (!next.isEmpty()) {
      parts.environment().threads().execute(() -> ask(next));
    }
    parts.steps().pump();
  }

  /** Tells whether the cursor, as it would be found after a crash, has all of a transaction. */
  private static boolean isPersistent(Txn txn, Position persistent) {
    return txn.decision == Decision.ABORTED
        || persistent != null
            && txn.records.values().stream()
                .filter(record -> !record.entries().isEmpty()) // as earlier versions wrote them
                .allMatch(record -> record.last().compareTo(persistent) <= 0);
  }

  private void ask(List<Txn> polled) {
    Map<Txn, Decision> answers = new LinkedHashMap<>();
    Decisions decisions = parts.environment().decisions();
    try {
      List<TransactionId> open = new ArrayList<>();
      for (Txn txn : polled) {
        Decision header = decisions.of(txn.id);
        answers.put(txn, header);
        if (header == Decision.OPEN) {
          open.add(decisions.writer(txn.id).txn());
        }
      }
      parts.environment().inTheWay().accept(open);
    } catch (RuntimeException | Error error) {
      parts.subscription().complain(String.valueOf(error.getMessage()));
    }
    parts
        .subscription()
        .run(
            () -> {
              polled.forEach(txn -> txn.isAsked = false);
              answers.forEach(this::learn);
              parts.steps().pump();
            });
  }

  private void learn(Txn txn, Decision header) {
    boolean isKnown = txn.decision != Decision.OPEN || parts.txns().get(txn.id) != txn;
    if (isKnown || header == Decision.OPEN) {
      return;
    }
    if (header == Decision.ABSENT) {
      parts.subscription().complain(headless(txn));
    } else {
      log.info("transaction {} is {}, and is ended in {}", txn.id, header, parts.subscription());
      parts.steps().add(AckEnd.found(parts, txn.id, header));
    }
  }
}
