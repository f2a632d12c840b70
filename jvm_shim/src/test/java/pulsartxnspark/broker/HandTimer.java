package pulsartxnspark.broker;

import static org.mockito.Mockito.mock;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;

/** A timer that is in the hands of a test. */
final class HandTimer {
  private final List<Runnable> once = new CopyOnWriteArrayList<>();
  private final List<Runnable> repeated = new CopyOnWriteArrayList<>();

  /** What others ask. */
  final ScheduledExecutorService asked =
      mock(
          ScheduledExecutorService.class,
          call -> {
            boolean isOnce = call.getMethod().getName().equals("schedule");
            (isOnce ? once : repeated).add(call.getArgument(0));
            return mock(ScheduledFuture.class);
          });

  /** Lets the time of each task come, once. */
  void tick() {
    List<Runnable> due = new ArrayList<>(once);
    once.removeAll(due);
    due.addAll(repeated);
    due.forEach(Runnable::run);
  }
}
