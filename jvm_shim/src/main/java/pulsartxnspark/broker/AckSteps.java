package pulsartxnspark.broker;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.broker.service.BrokerServiceException.ServiceUnitNotReadyException;
import pulsartxnspark.broker.Decisions.Decision;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.AckStore.Answer;

/**
 * Takes requests in the order in which they come, and writes what they change in numbered steps. What
 * follows a request is taken up when the handle has done its part of it.
 */
final class AckSteps {
  private static final int MOST_AT_ONCE = 200; // requests in one step: it must not block the server

  private final HandledSubscription subscription;
  private final AckStore.Subscription name;
  private final long owner;
  private final AckEnvironment environment;
  private final Deque<AckRequest> queue = new ArrayDeque<>();
  private AckBatch sending;
  private boolean isFenced;
  private volatile boolean isClosed;
  private long lastStep;

  /**
   * Makes one that has taken no step.
   *
   * @param subscription what Pulsar has
   * @param name by which the metadata store knows the subscription
   * @param owner number of its owner
   * @param environment what it asks
   */
  AckSteps(
      HandledSubscription subscription,
      AckStore.Subscription name,
      long owner,
      AckEnvironment environment) {
    this.subscription = subscription;
    this.name = name;
    this.owner = owner;
    this.environment = environment;
  }

  /** Tells whether nothing will be written any more. */
  boolean isOver() {
    return isClosed || isFenced;
  }

  /** Takes a request; its future tells what came of it. */
  CompletableFuture<Void> take(AckRequest request) {
    if (isOver()) {
      request.fail(unavailable("it is being closed"));
    } else {
      queue.add(request);
      if (request.needsDecision()) {
        knowsDecision(request); // while others are written
      }
      pump();
    }
    return request.done;
  }

  /** Adds a request that {@link #pump} is to take. */
  void add(AckRequest request) {
    queue.add(request);
  }

  private ServiceUnitNotReadyException unavailable(String why) {
    return new ServiceUnitNotReadyException(
        "the pending acks of subscription " + name.name() + " cannot be written now: " + why);
  }

  /** Writes what waits, unless something is being written. */
  void pump() {
    while (sending == null && !isOver()) {
      AckBatch batch = new AckBatch();
      while (batch.requests.size() < MOST_AT_ONCE
          && !queue.isEmpty()
          && queue.peek().joins(batch)) {
        batch.requests.add(queue.remove());
      }
      if (batch.requests.isEmpty()) {
        return;
      }
      sending = batch;
      if (batch.writes()) {
        batch.number(++lastStep);
        send(batch);
      } else {
        subscription.run(() -> tellPulsars(batch)); // the handle waits for its future first
      }
    }
  }

  private void send(AckBatch batch) {
    CompletableFuture<Optional<Answer>> together;
    try {
      together = environment.acks().writeTogether(name, owner, batch.step());
    } catch (RuntimeException error) {
      together = CompletableFuture.failedFuture(error);
    }
    together
        .exceptionally(unknown -> Optional.empty())
        .thenCompose(
            answer ->
                answer.isPresent()
                    ? CompletableFuture.completedFuture(answer.get())
                    : CompletableFuture.supplyAsync(
                        () -> environment.acks().write(name, owner, batch.step()),
                        environment.threads()))
        .whenComplete((answer, error) -> subscription.run(() -> answered(batch, answer, error)));
  }

  private void answered(AckBatch batch, Answer answer, Throwable error) {
    if (isOver()) {
      return;
    }
    if (error != null) {
      // It may be written: the same step is asked for until the store says so.
      giveUp(cause(error));
      subscription.later(batch.nextPauseMs(), () -> send(batch));
    } else if (answer == Answer.OK) {
      subscription.complain(null);
      tellPulsars(batch);
    } else if (answer == Answer.FULL) {
      String why = "the metadata store is full";
      subscription.complain(why);
      batch.requests.forEach(request -> request.notWritten(unavailable(why)));
      tellPulsars(batch);
    } else {
      isFenced = true;
      refuseAll(unavailable("another broker has taken over, or the segment was deleted"));
      if (answer == Answer.FENCED) {
        subscription.reload(); // it may belong here nevertheless
      }
    }
  }

  private static Exception cause(Throwable error) {
    Throwable cause = error.getCause() == null ? error : error.getCause();
    return cause instanceof Exception exception ? exception : new IllegalStateException(cause);
  }

  /** Waits for what Pulsar's own store is told; it has what transactions had from before. */
  private void tellPulsars(AckBatch batch) {
    List<CompletableFuture<?>> answers = new ArrayList<>();
    for (AckRequest request : batch.requests) {
      CompletableFuture<Void> answer = request.tellPulsars();
      if (answer != null) {
        answers.add(
            answer.handle(
                (done, error) -> {
                  request.refusal = error == null ? null : cause(error);
                  return done;
                }));
      }
    }
    if (answers.isEmpty()) {
      finish(batch);
    } else {
      CompletableFuture.allOf(answers.toArray(CompletableFuture<?>[]::new))
          .thenRun(() -> subscription.run(() -> finish(batch)));
    }
  }

  private void finish(AckBatch batch) {
    batch.requests.forEach(AckRequest::finish);
    sending = null;
    if (!queue.isEmpty()) {
      subscription.run(this::pump);
    }
  }

  /** Tells whether the header of a request's transaction was read; if not, it will be. */
  boolean knowsDecision(AckRequest request) {
    if (request.decision == null && !request.isAsked) {
      request.isAsked = true;
      environment.threads().execute(() -> ask(request));
    }
    return request.decision != null;
  }

  private void ask(AckRequest request) {
    try {
      Decision header = environment.decisions().of(request.txn);
      subscription.run(
          () -> {
            request.decision = header;
            pump();
          });
    } catch (RuntimeException | Error error) {
      subscription.run(
          () -> {
            request.isAsked = false;
            giveUp(cause(error));
            subscription.later(AckBatch.FIRST_PAUSE_MS, this::pump);
          });
    }
  }

  /** Gives those that have not been finished. */
  private List<AckRequest> waiting() {
    List<AckRequest> all = new ArrayList<>(sending == null ? List.of() : sending.requests);
    all.addAll(queue);
    all.removeIf(request -> request.done.isDone());
    return all;
  }

  private void giveUp(Exception error) {
    String why = String.valueOf(error.getMessage());
    subscription.complain(why);
    refuseOverdue(why);
  }

  /** Refuses what has waited for too long. It is pending for the handle, whatever becomes of it. */
  void refuseOverdue(String why) {
    long now = environment.nowMs();
    for (AckRequest request : waiting()) {
      if (request.deadlineMs <= now) {
        queue.remove(request);
        request.fail(unavailable(why));
      }
    }
  }

  private void refuseAll(Exception error) {
    List<AckRequest> all = waiting();
    queue.clear();
    all.forEach(request -> request.fail(error));
  }

  /** Refuses what waits, and whatever comes; called by Pulsar. */
  void close() {
    isClosed = true;
    subscription.run(() -> refuseAll(unavailable("it is being closed")));
  }
}
