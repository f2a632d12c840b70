import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.PulsarStandaloneStarter;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Loads what short-lived brokers and clients load, in one JVM, which ends with status 0. Arguments: a
 * service URL, then those of the standalone broker. A line on standard input says that it answers, and
 * the end of the input ends the program.
 */
public class LoadClasses {
  private static final String TOPIC = "persistent://public/default/classes";

  private static final CountDownLatch IS_READY = new CountDownLatch(1);

  public static void main(String[] arguments) throws Exception {
    String[] ofBroker = Arrays.copyOfRange(arguments, 1, arguments.length);
    for (Runnable work : List.<Runnable>of(LoadClasses::followInput, () -> start(ofBroker))) {
      Thread thread = new Thread(work);
      thread.setDaemon(true);
      thread.start();
    }
    int status = 1;
    try {
      IS_READY.await();
      use(arguments[0]);
      status = 0;
    } catch (Exception error) {
      error.printStackTrace();
    } finally {
      Runtime.getRuntime().halt(status); // the data is not needed
    }
  }

  private static void followInput() {
    try {
      while (System.in.read() >= 0) {
        IS_READY.countDown();
      }
    } catch (IOException error) {
      error.printStackTrace();
    }
    Runtime.getRuntime().halt(1); // who has started this program has died
  }

  private static void start(String[] arguments) {
    try {
      PulsarStandaloneStarter.main(arguments);
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }

  private static void use(String serviceUrl) throws Exception {
    try (PulsarClient client =
        PulsarClient.builder().serviceUrl(serviceUrl).enableTransaction(true).build()) {
      try (Producer<byte[]> batches =
          client.newProducer().topic(TOPIC).compressionType(CompressionType.LZ4).create()) {
        batches.newMessage().key("k").value(new byte[100]).property("p", "v").send();
      }
      try (Producer<byte[]> single =
          client
              .newProducer()
              .topic(TOPIC)
              .enableBatching(false)
              .sendTimeout(0, TimeUnit.SECONDS)
              .create()) {
        for (boolean isKept : new boolean[] {true, false}) {
          Transaction transaction =
              client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
          single.newMessage(transaction).value(new byte[1]).send();
          (isKept ? transaction.commit() : transaction.abort()).get();
        }
      }
      for (SubscriptionType type : SubscriptionType.values()) {
        consume(client, type);
      }
      try (Producer<String> texts = client.newProducer(Schema.STRING).topic(TOPIC + "-s").create();
          Reader<String> reader =
              client
                  .newReader(Schema.STRING)
                  .topic(TOPIC + "-s")
                  .startMessageId(MessageId.earliest)
                  .create()) {
        texts.send("value");
        reader.readNext();
      }
    }
  }

  private static void consume(PulsarClient client, SubscriptionType type) throws Exception {
    try (Consumer<byte[]> consumer =
        client
            .newConsumer()
            .topic(TOPIC)
            .subscriptionName(type.name())
            .subscriptionType(type)
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
            .enableBatchIndexAcknowledgment(true)
            .subscribe()) {
      Message<byte[]> message = consumer.receive();
      Transaction transaction =
          client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
      consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
      transaction.commit().get();
      consumer.acknowledge(consumer.receive());
    }
  }
}
