package pulsartxnspark.broker;

import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicLong;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.StoreUnavailableException;

/** A store of acknowledgements, with what may go wrong on the way there. */
final class FaultyAckStore implements AckStore {
  volatile boolean loses; // the reply, not the request
  volatile boolean isAway;
  volatile CompletableFuture<Void> gate = CompletableFuture.completedFuture(null);
  volatile CompletableFuture<Void> opening = CompletableFuture.completedFuture(null);
  final AtomicLong asks = new AtomicLong();
  final AtomicLong opens = new AtomicLong();
  private final AckStore asked;

  FaultyAckStore(AckStore asked) {
    this.asked = asked;
  }

  @Override
  public void note(Subscription subscription, String cursor) {
    awaitOpening();
    requireThere();
    asked.note(subscription, cursor);
  }

  @Override
  public Opened open(Subscription subscription, String cursor) {
    awaitOpening();
    requireThere();
    return asked.open(subscription, cursor);
  }

  @Override
  public Answer write(Subscription subscription, long owner, Step step) {
    asks.incrementAndGet();
    requireThere();
    Answer answer = asked.write(subscription, owner, step);
    if (loses) {
      loses = false;
      throw new StoreUnavailableException("the reply is lost", null);
    }
    return answer;
  }

  @Override
  public CompletableFuture<Optional<Answer>> writeTogether(
      Subscription subscription, long owner, Step step) {
    return loses || isAway
        ? CompletableFuture.completedFuture(Optional.empty())
        : gate.thenCompose(open -> asked.writeTogether(subscription, owner, step));
  }

  private void awaitOpening() {
    CompletableFuture<Void> delayed = opening;
    opening = CompletableFuture.completedFuture(null);
    opens.incrementAndGet();
    if (delayed.handle((done, error) -> error != null).join()) {
      throw new StoreUnavailableException("the store was away", null);
    }
  }

  private void requireThere() {
    if (isAway) {
      throw new StoreUnavailableException("the store is away", null);
    }
  }
}
