import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Several transactions of Pulsar's own client, over any topics and subscriptions. Run with a service
 * URL; executes the commands of its standard input line by line, and ends with it.
 */
public class Coordinated {
  private static final int PATIENCE_S = 60;

  private final PulsarClient client;
  private final Map<String, Producer<byte[]>> producers = new HashMap<>();
  private final Map<String, Consumer<byte[]>> consumers = new HashMap<>();
  private final Map<String, Transaction> transactions = new HashMap<>();

  private Coordinated(PulsarClient client) {
    this.client = client;
  }

  public static void main(String[] arguments) throws Exception {
    try (PulsarClient client =
        PulsarClient.builder()
            .serviceUrl(arguments[0])
            .enableTransaction(true)
            // By default it waits up to a minute before it connects again, and gives up before that.
            .maxBackoffInterval(1, TimeUnit.SECONDS)
            .operationTimeout(PATIENCE_S, TimeUnit.SECONDS)
            .build()) {
      Coordinated program = new Coordinated(client);
      BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
      String line;
      while ((line = commands.readLine()) != null) {
        System.out.println("> " + program.answer(line.split(" ")));
        System.out.flush();
      }
      Runtime.getRuntime().halt(0); // closing the client takes two seconds
    }
  }

  private String answer(String[] words) throws Exception {
    try {
      return carryOut(words);
    } catch (ExecutionException error) {
      return error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage();
    } catch (PulsarClientException | TimeoutException error) {
      return error.getClass().getSimpleName() + ": " + error.getMessage();
    }
  }

  private String carryOut(String[] words) throws Exception {
    switch (words[0]) {
      case "begin" -> { // a name, and milliseconds
        Transaction transaction =
            client
                .newTransaction()
                .withTransactionTimeout(Long.parseLong(words[2]), TimeUnit.MILLISECONDS)
                .build()
                .get(PATIENCE_S, TimeUnit.SECONDS);
        transactions.put(words[1], transaction);
        return transaction.getTxnID().toString();
      }
      case "send" -> // a transaction, a topic and a value
        producer(words[2])
            .newMessage(transactions.get(words[1]))
            .key("k")
            .value(words[3].getBytes())
            .sendAsync()
            .get(PATIENCE_S, TimeUnit.SECONDS);
      case "receive" -> { // a topic and a subscription
        Message<byte[]> message = consumer(words[1], words[2]).receive(PATIENCE_S, TimeUnit.SECONDS);
        return new String(message.getValue());
      }
      case "subscribe" -> { // a topic, a subscription and its type
        Consumer<byte[]> consumer =
            subscribing(words[1], words[2])
                .subscriptionType(SubscriptionType.valueOf(words[3]))
                .subscribe();
        consumers.put(words[1] + words[2], consumer);
      }
      case "acknowledge", "acknowledgeUpTo" -> { // a transaction, a topic and a subscription
        Consumer<byte[]> consumer = consumer(words[2], words[3]);
        // One more message; with a time in milliseconds, there may be none.
        long patienceMs = words.length > 4 ? Long.parseLong(words[4]) : PATIENCE_S * 1_000;
        Message<byte[]> message =
            consumer.receive(Math.toIntExact(patienceMs), TimeUnit.MILLISECONDS);
        if (message == null && words.length > 4) {
          return "none";
        }
        if (words[0].equals("acknowledgeUpTo")) {
          consumer
              .acknowledgeCumulativeAsync(message.getMessageId(), transactions.get(words[1]))
              .get(PATIENCE_S, TimeUnit.SECONDS);
          return new String(message.getValue());
        }
        consumer
            .acknowledgeAsync(message.getMessageId(), transactions.get(words[1]))
            .get(PATIENCE_S, TimeUnit.SECONDS);
        return new String(message.getValue());
      }
      case "leave" -> consumers.remove(words[1] + words[2]).close();
      case "commit" -> transactions.get(words[1]).commit().get(PATIENCE_S, TimeUnit.SECONDS);
      case "abort" -> transactions.get(words[1]).abort().get(PATIENCE_S, TimeUnit.SECONDS);
      default -> throw new IllegalArgumentException(words[0]);
    }
    return "done";
  }

  private Producer<byte[]> producer(String topic) throws PulsarClientException {
    Producer<byte[]> known = producers.get(topic);
    if (known == null) {
      known = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS).create();
      producers.put(topic, known);
    }
    return known;
  }

  private Consumer<byte[]> consumer(String topic, String subscription) throws PulsarClientException {
    Consumer<byte[]> known = consumers.get(topic + subscription);
    if (known == null) {
      known = subscribing(topic, subscription).subscribe();
      consumers.put(topic + subscription, known);
    }
    return known;
  }

  private ConsumerBuilder<byte[]> subscribing(String topic, String subscription) {
    return client
        .newConsumer()
        .topic(topic)
        .subscriptionName(subscription)
        .enableBatchIndexAcknowledgment(true)
        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
  }
}
