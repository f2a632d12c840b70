package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import org.junit.jupiter.api.function.Executable;

/** Waits for what is to come to pass, and no longer than a test has patience. */
final class Await {
  private static final long PATIENCE_MS = 20_000;

  private Await() {}

  static <T> T get(CompletableFuture<T> future) {
    try {
      return future.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    } catch (ExecutionException error) {
      throw new AssertionError(error.getCause());
    } catch (Exception error) {
      throw new AssertionError(error);
    }
  }

  /** Gives the error that a future ends with, or the one behind it. */
  static <T extends Throwable> T failure(Class<T> type, CompletableFuture<?> future) {
    Executable getting = () -> future.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    Throwable error = assertThrows(ExecutionException.class, getting).getCause();
    while (!type.isInstance(error) && error.getCause() != null) {
      error = error.getCause();
    }
    return assertInstanceOf(type, error);
  }

  static void await(BooleanSupplier condition) {
    long deadline = System.currentTimeMillis() + PATIENCE_MS;
    while (!condition.getAsBoolean()) {
      assertTrue(System.currentTimeMillis() < deadline, "it did not come to pass");
      LockSupport.parkNanos(1_000_000);
    }
  }
}
