package pulsartxnspark.broker;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executor;
import java.util.function.Supplier;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionMetadataStoreStateException;
import pulsartxnspark.store.StoreUnavailableException;

/** How a coordinator asks the store: with others, alone, and again after a lost reply. */
final class CoordinatorSteps {
  private static final int TRIES = 3; // of a step that may be repeated

  private final Executor threads;

  /** What waits for the store. */
  interface Work<T> {
    T run() throws Exception;
  }

  /**
   * Makes one that has nothing to do.
   *
   * @param threads for whatever waits for the store
   */
  CoordinatorSteps(Executor threads) {
    this.threads = threads;
  }

  /** Takes a step that may be repeated, and repeats it while the store does not answer. */
  static <T> T patiently(Supplier<T> step) {
    for (int attempt = 1; ; attempt++) {
      try {
        return step.get();
      } catch (StoreUnavailableException error) {
        if (attempt == TRIES) {
          throw error;
        }
      }
    }
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
                    : inBackground(single));
  }

  <T> CompletableFuture<T> inBackground(Work<T> work) {
    CompletableFuture<T> done = new CompletableFuture<>();
    try {
      threads.execute(
          () -> {
            try {
              done.complete(work.run());
            } catch (StoreUnavailableException error) {
              // What came of it is not known: Pulsar asks again.
              done.completeExceptionally(
                  new TransactionMetadataStoreStateException(error.getMessage()));
            } catch (CompletionException error) {
              done.completeExceptionally(error.getCause());
            } catch (Exception | Error error) { // somebody waits for it
              done.completeExceptionally(error);
            }
          });
    } catch (RuntimeException rejected) {
      done.completeExceptionally(rejected);
    }
    return done;
  }
}
