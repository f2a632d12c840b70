import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.zip.CRC32;
import org.apache.pulsar.client.api.*;

/**
 * Observes topics with every kind of consumer that Pulsar's own client has. Run with a service URL;
 * executes the commands of its standard input line by line, and ends with it: "open TAB topic",
 * "rows TAB topic", "seal TAB topic", "interrupt TAB topic", "close TAB topic". An answer is a line
 * per observer, "> kind TAB row TAB ...", and a line "> ." behind them; a row is "key=value".
 */
public class Observe {
  private static final long SHORTEST_LONG = 100; // longer values are shown by length and checksum
  private static final int SOON_S = 60;

  /**
   * What one observer has seen, each message once. That one comes again is an error, until a
   * connection may be lost, and acknowledgements with it.
   */
  private static class Seen {
    private final Set<String> ids = new HashSet<>();
    private final Set<String> deliveries = new HashSet<>();
    private final List<String> rows = new ArrayList<>();
    private boolean interrupted;

    /** Notes a message that was delivered to a consumer; "" stands for all of a subscription. */
    synchronized void add(String consumer, Message<byte[]> message) {
      String id = message.getMessageId().toString();
      if (ids.add(id)) {
        rows.add(row(message.getKey(), message.getData()));
      }
      if (!deliveries.add(consumer + " " + id) && !interrupted) {
        complain("delivered twice: " + id);
      }
    }

    synchronized void interrupt() {
      interrupted = true;
    }

    synchronized void complain(String what) {
      rows.add("ERROR=" + what);
    }

    synchronized List<String> rows() {
      return List.copyOf(rows);
    }
  }

  private interface Observer {
    List<String> rows();

    void interrupt();

    void close() throws IOException;
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, Map<String, Observer>> topics = new LinkedHashMap<>();
    try (PulsarClient client =
        PulsarClient.builder()
            .serviceUrl(arguments[0])
            .maxBackoffInterval(1, TimeUnit.SECONDS)
            .build()) {
      BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
      for (String line = commands.readLine(); line != null; line = commands.readLine()) {
        String[] words = line.split("\t");
        switch (words[0]) {
          case "open" -> topics.put(words[1], all(client, words[1]));
          case "rows" ->
              topics
                  .get(words[1])
                  .forEach(
                      (kind, one) ->
                          System.out.println(
                              "> " + kind + "\t" + String.join("\t", one.rows())));
          case "seal" -> {} // whoever has read to the end is told, and stays
          case "interrupt" -> topics.get(words[1]).values().forEach(Observer::interrupt);
          case "close" -> {
            for (Observer one : topics.remove(words[1]).values()) {
              one.close();
            }
          }
          default -> throw new IllegalArgumentException(line);
        }
        System.out.println("> .");
        System.out.flush();
      }
      Runtime.getRuntime().halt(0); // closing the client takes two seconds
    }
  }

  private static Map<String, Observer> all(PulsarClient client, String topic) throws Exception {
    Map<String, Observer> all = new LinkedHashMap<>();
    for (SubscriptionType type : SubscriptionType.values()) {
      int count =
          switch (type) {
            case Exclusive, Shared -> 1; // of several, Shared keeps no order
            case Failover -> 2;
            case Key_Shared -> 3;
          };
      all.put("Java " + type, subscribed(client, topic, type, count));
    }
    all.put("Java Reader", read(client, topic, false));
    all.put("Java compacted Reader", read(client, topic, true));
    all.put("Java TableView", viewed(client, topic));
    return all;
  }

  private static Observer subscribed(
      PulsarClient client, String topic, SubscriptionType type, int count) throws Exception {
    Seen seen = new Seen();
    String name = "java-" + java.util.UUID.randomUUID();
    // What the active one has not acknowledged comes again to the one that becomes active.
    boolean each = type == SubscriptionType.Failover;
    List<Consumer<byte[]>> consumers = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      consumers.add(
          client
              .newConsumer()
              .topic(topic)
              .subscriptionName(name)
              .subscriptionType(type)
              .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
              .messageListener(
                  (consumer, message) -> {
                    seen.add(each ? consumer.getConsumerName() : "", message);
                    consumer.acknowledgeAsync(message);
                  })
              .subscribe());
    }
    return new Observer() {
      @Override
      public List<String> rows() {
        return seen.rows();
      }

      @Override
      public void interrupt() {
        seen.interrupt();
      }

      @Override
      public void close() throws IOException {
        for (Consumer<byte[]> one : consumers) {
          one.close();
        }
      }
    };
  }

  private static Observer read(PulsarClient client, String topic, boolean compacted)
      throws Exception {
    Seen seen = new Seen();
    Reader<byte[]> reader =
        client
            .newReader()
            .topic(topic)
            .startMessageId(MessageId.earliest)
            .readCompacted(compacted)
            .create();
    Thread thread = new Thread(() -> readOn(reader, seen, () -> !Thread.interrupted()));
    thread.setDaemon(true);
    thread.start();
    return new Observer() {
      @Override
      public List<String> rows() {
        return seen.rows();
      }

      @Override
      public void interrupt() {
        seen.interrupt();
      }

      @Override
      public void close() throws IOException {
        thread.interrupt();
        reader.close();
      }
    };
  }

  /** Reads as programs do that want all that is there: what is announced has to come. */
  private static void readOn(Reader<byte[]> reader, Seen seen, BooleanSupplier goOn) {
    while (goOn.getAsBoolean()) {
      try {
        if (reader.hasMessageAvailable()) {
          Message<byte[]> message = reader.readNext(SOON_S, TimeUnit.SECONDS);
          if (message == null) {
            seen.complain("hasMessageAvailable has announced what does not come");
            return;
          }
          seen.add("", message);
        } else {
          Thread.sleep(10);
        }
      } catch (PulsarClientException.AlreadyClosedException | InterruptedException end) {
        return;
      } catch (PulsarClientException lost) {
        // The broker is away: hasMessageAvailable does not wait for it.
        java.util.concurrent.locks.LockSupport.parkNanos(50_000_000);
      }
    }
  }

  private static Observer viewed(PulsarClient client, String topic) throws Exception {
    TableView<byte[]> view = client.newTableViewBuilder(Schema.BYTES).topic(topic).create();
    return new Observer() {
      @Override
      public List<String> rows() {
        List<String> rows = new ArrayList<>();
        view.forEach((key, value) -> rows.add(row(key, value)));
        return rows;
      }

      @Override
      public void interrupt() {} // it has one value of each key, however often that comes

      @Override
      public void close() throws IOException {
        view.close();
      }
    };
  }

  private static String row(String key, byte[] value) {
    String shown = value == null ? "" : new String(value, StandardCharsets.UTF_8);
    if (value != null && value.length >= SHORTEST_LONG) {
      CRC32 checksum = new CRC32();
      checksum.update(value);
      shown = value.length + ":" + checksum.getValue();
    }
    return key + "=" + shown;
  }
}
