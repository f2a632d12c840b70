import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Pulsar's own transactions, which only a client for the JVM has. Run with a service URL and a
 * topic; executes the commands of its standard input line by line, and ends with it.
 */
public class NativeTransactions {
  public static void main(String[] arguments) throws Exception {
    try (PulsarClient client =
            PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
        Producer<byte[]> producer =
            client
                .newProducer()
                .topic(arguments[1])
                .sendTimeout(0, TimeUnit.SECONDS) // what a transaction asks of a producer
                .enableBatching(false)
                .create()) {
      BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
      Transaction transaction = null;
      String line;
      while ((line = commands.readLine()) != null) {
        String[] words = line.split(" ");
        String answer = "done";
        switch (words[0]) {
          case "begin" -> {
            transaction =
                client.newTransaction().withTransactionTimeout(5, TimeUnit.MINUTES).build().get();
            answer = transaction.getTxnID().toString();
          }
          case "send" -> producer.newMessage(transaction).value(words[1].getBytes()).send();
          case "plain" -> producer.send(words[1].getBytes());
          case "commit" -> transaction.commit().get();
          case "abort" -> transaction.abort().get();
          default -> throw new IllegalArgumentException(line);
        }
        System.out.println("> " + answer);
        System.out.flush();
      }
      Runtime.getRuntime().halt(0); // closing the client takes two seconds
    }
  }
}
