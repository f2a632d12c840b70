package pulsartxnspark.broker;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionMetadataStoreStateException;
import pulsartxnspark.store.StoreUnavailableException;

/** How a coordinator asks the store: with others, alone, and again while it does not answer. */
final class CoordinatorSteps {
  private static final long FIRST_PAUSE_MS = 100; // before the store is asked again; doubled
  private static final long LONGEST_PAUSE_MS = 1_000;

  private final Executor threads;
  private final CoordinatorTerm term;
  private final long patienceMs;

  /** What waits for the store. */
  interface Work<T> {
    T run() throws Exception;
  }

  /**
   * Makes one that has nothing to do.
   *
   * @param threads for whatever waits for the store
   * @param term of the coordinator: nothing is begun anew after its end
   * @param patienceMs for how long work is begun anew while the store does not answer, in
   *     milliseconds; once at least
   */
  CoordinatorSteps(Executor threads, CoordinatorTerm term, long patienceMs) {
    this.threads = threads;
    this.term = term;
    this.patienceMs = patienceMs;
  }

  /**
   * Takes a step with those of others; where that does not tell what came of it, alone. Every step may
   * be repeated.
   */
  <T> CompletableFuture<T> take(CompletableFuture<Optional<T>> together, Work<T> single) {
    return together
        .exceptionally(unknown -> Optional.empty())
        .thenCompose(
            reply ->
                reply.isPresent()
                    ? CompletableFuture.completedFuture(reply.get())
                    : patiently(single));
  }

  /**
   * Does work in the background, and begins it anew while the store does not answer: Pulsar's clients
   * do not ask again for most of it. All of it may be repeated. No thread waits in between.
   */
  <T> CompletableFuture<T> patiently(Work<T> work) {
    CompletableFuture<T> done = new CompletableFuture<>();
    begin(work, done, nowMs() + patienceMs, FIRST_PAUSE_MS);
    return done;
  }

  /** Does work in the background, once. */
  <T> CompletableFuture<T> inBackground(Work<T> work) {
    CompletableFuture<T> done = new CompletableFuture<>();
    begin(work, done, Long.MIN_VALUE, LONGEST_PAUSE_MS);
    return done;
  }

  private <T> void begin(Work<T> work, CompletableFuture<T> done, long untilMs, long pauseMs) {
    try {
      threads.execute(
          () -> {
            try {
              done.complete(work.run());
            } catch (StoreUnavailableException error) {
              // The first failure may have taken all of the time: a connection was lost unnoticed.
              if (pauseMs == FIRST_PAUSE_MS || nowMs() < untilMs) {
                beginLater(work, done, untilMs, pauseMs);
              } else {
                // What came of it is not known: Pulsar asks again.
                done.completeExceptionally(
                    new TransactionMetadataStoreStateException(error.getMessage()));
              }
            } catch (CompletionException error) {
              done.completeExceptionally(error.getCause());
            } catch (Exception | Error error) { // somebody waits for it
              done.completeExceptionally(error);
            }
          });
    } catch (RuntimeException rejected) {
      done.completeExceptionally(rejected);
    }
  }

  private <T> void beginLater(
      Work<T> work, CompletableFuture<T> done, long untilMs, long pauseMs) {
    long nextPauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
    Work<T> repeated =
        () -> {
          term.requireReady("ask the metadata store again");
          return work.run();
        };
    CompletableFuture.delayedExecutor(pauseMs, TimeUnit.MILLISECONDS, Runnable::run)
        .execute(() -> begin(repeated, done, untilMs, nextPauseMs));
  }

  private static long nowMs() {
    return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
  }
}
