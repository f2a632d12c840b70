package pulsartxnspark.broker;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.Position;

/**
 * Answers the messages of each producer in the order in which they came, receipts and refusals alike.
 * Java's client overlooks the refusal of any message but its oldest one: nobody would ever answer that
 * message again.
 */
final class OrderedAnswers {
  private record Answer(CompletableFuture<Position> known, CompletableFuture<Position> reply) {
    void pass() {
      known.whenComplete(
          (position, error) -> {
            if (error == null) {
              reply.complete(position);
            } else {
              reply.completeExceptionally(error);
            }
          });
    }
  }

  private static final class Producer {
    final Deque<Answer> waiting = new ArrayDeque<>();
    boolean isTelling; // one thread at a time, so that the order stays
  }

  private final Map<String, Producer> producers = new HashMap<>(); // guarded by this

  /**
   * Takes the next message of a producer.
   *
   * @param producer its name
   * @param reply the answer to its client
   * @return what to complete as soon as the answer is known
   */
  CompletableFuture<Position> next(String producer, CompletableFuture<Position> reply) {
    CompletableFuture<Position> known = new CompletableFuture<>();
    synchronized (this) {
      Producer own = producers.computeIfAbsent(producer, name -> new Producer());
      own.waiting.add(new Answer(known, reply));
    }
    known.whenComplete((position, error) -> tell(producer));
    return known;
  }

  private void tell(String producer) {
    for (Answer first = begin(producer); first != null; first = following(producer)) {
      first.pass();
    }
  }

  /** Gives the first answer that is known, null if there is none, or another thread tells it. */
  private synchronized Answer begin(String producer) {
    Producer own = producers.get(producer);
    if (own == null || own.isTelling) {
      return null;
    }
    own.isTelling = true;
    return following(producer);
  }

  private synchronized Answer following(String producer) {
    Producer own = producers.get(producer);
    Answer first = own.waiting.peek();
    if (first != null && first.known.isDone()) {
      return own.waiting.remove();
    }
    own.isTelling = false;
    if (first == null) {
      producers.remove(producer);
    }
    return null;
  }
}
