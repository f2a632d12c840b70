import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * A client that knows nothing of this package. It publishes, consumes, and tells when messages
 * arrive. Each line of the input is a question in JSON; the argument is the service URL.
 */
public class PlainClient {
  private static final int VALUE_BYTES = 100;
  private static final int ENTRY_ROWS = 100;
  private static final int TIMEOUT_S = 60;

  private final PulsarClient client;
  private final BlockingQueue<Long> arrivals = new LinkedBlockingQueue<>();
  private Consumer<byte[]> listening;

  private PlainClient(PulsarClient client) {
    this.client = client;
  }

  public static void main(String[] arguments) throws Exception {
    ObjectMapper json = new ObjectMapper();
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    try (PulsarClient client =
        PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build()) {
      PlainClient plain = new PlainClient(client);
      for (String line; (line = questions.readLine()) != null; ) {
        Map<String, Object> answer;
        try {
          answer = plain.answer(json.readTree(line));
        } catch (Exception error) {
          answer = Map.of("error", error.toString());
        }
        System.out.println("answer " + json.writeValueAsString(answer));
      }
    }
  }

  private Map<String, Object> answer(JsonNode question) throws Exception {
    String topic = question.path("topic").asText();
    int rows = question.path("rows").asInt();
    return switch (question.get("do").asText()) {
      case "publish" -> publish(topic, rows);
      case "consume" -> consume(topic, rows);
      case "transactions" -> transactions(topic, rows, question.get("parallel").asInt());
      case "listen" -> listen(topic);
      case "arrival" -> arrival();
      case "stop" -> stop();
      default -> throw new IllegalArgumentException("unknown: " + question);
    };
  }

  private Map<String, Object> publish(String topic, int rows) throws Exception {
    byte[] value = new byte[VALUE_BYTES];
    // Entries of one size, however fast this client is: the broker's work is one per entry.
    try (Producer<byte[]> producer =
        client
            .newProducer()
            .topic(topic)
            .blockIfQueueFull(true)
            .batchingMaxMessages(ENTRY_ROWS)
            .batchingMaxPublishDelay(1, TimeUnit.SECONDS)
            .create()) {
      long began = System.nanoTime();
      for (int i = 0; i < rows; i++) {
        producer.sendAsync(value);
      }
      producer.flush();
      long passed = System.nanoTime() - began;
      if (producer.getStats().getTotalSendFailed() > 0) {
        throw new IllegalStateException("messages were not stored");
      }
      return Map.of("seconds", passed / 1e9);
    }
  }

  private Map<String, Object> consume(String topic, int rows) throws Exception {
    try (Consumer<byte[]> consumer = subscription(topic).subscribe()) {
      long began = System.nanoTime();
      for (int i = 0; i < rows; i++) {
        Message<byte[]> message = consumer.receive(TIMEOUT_S, TimeUnit.SECONDS);
        if (message == null) {
          throw new IllegalStateException(i + " messages came, expected " + rows);
        }
        consumer.acknowledgeAsync(message);
      }
      return Map.of("seconds", (System.nanoTime() - began) / 1e9);
    }
  }

  /** Commits transactions, so many at a time: of a message each, or of none without a topic. */
  private Map<String, Object> transactions(String topic, int count, int parallel) throws Exception {
    byte[] value = new byte[VALUE_BYTES];
    Semaphore free = new Semaphore(parallel);
    AtomicReference<Throwable> failed = new AtomicReference<>();
    Queue<Long> commits = new ConcurrentLinkedQueue<>();
    try (Producer<byte[]> producer =
        topic.isEmpty()
            ? null
            : client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create()) {
      long began = System.nanoTime();
      for (int i = 0; i < count; i++) {
        free.acquire();
        client
            .newTransaction()
            .withTransactionTimeout(TIMEOUT_S, TimeUnit.SECONDS)
            .build()
            .thenCompose(txn -> sent(producer, txn, value).thenCompose(id -> commit(txn, commits)))
            .whenComplete(
                (done, error) -> {
                  if (error != null) {
                    failed.set(error);
                  }
                  free.release();
                });
      }
      free.acquire(parallel);
      long passed = System.nanoTime() - began;
      if (failed.get() != null) {
        throw new IllegalStateException(failed.get());
      }
      return Map.of("seconds", passed / 1e9, "commits", commits);
    }
  }

  /** Commits, and notes the nanoseconds until the answer is there. */
  private static CompletableFuture<Void> commit(Transaction txn, Queue<Long> commits) {
    long began = System.nanoTime();
    return txn.commit().thenRun(() -> commits.add(System.nanoTime() - began));
  }

  private static CompletableFuture<MessageId> sent(
      Producer<byte[]> producer, Transaction txn, byte[] value) {
    return producer == null
        ? CompletableFuture.completedFuture(null)
        : producer.newMessage(txn).value(value).sendAsync();
  }

  private Map<String, Object> listen(String topic) throws Exception {
    listening =
        subscription(topic)
            .messageListener(
                (consumer, message) -> {
                  arrivals.add(System.nanoTime());
                  consumer.acknowledgeAsync(message);
                })
            .subscribe();
    return Map.of("nanoseconds", System.nanoTime());
  }

  private Map<String, Object> arrival() throws Exception {
    Long nanoseconds = arrivals.poll(TIMEOUT_S, TimeUnit.SECONDS);
    if (nanoseconds == null) {
      throw new IllegalStateException("no message came");
    }
    return Map.of("nanoseconds", nanoseconds);
  }

  private Map<String, Object> stop() throws Exception {
    listening.close();
    if (!arrivals.isEmpty()) {
      throw new IllegalStateException("more messages came than expected");
    }
    return Map.of();
  }

  private ConsumerBuilder<byte[]> subscription(String topic) {
    return client
        .newConsumer()
        .topic(topic)
        .subscriptionName("plain")
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
  }
}
