import java.util.Base64;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/**
 * Reads topics to their ends, and prints each message as Produce.java does. Arguments: service URL,
 * topics; one with "json:" in front is read by its schema, and prints "topic TAB name TAB number".
 */
public class Consume {
  private static final Base64.Encoder BASE64 = Base64.getEncoder();
  private static final String JSON = "json:";

  public static void main(String[] arguments) throws Exception {
    try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
      for (int i = 1; i < arguments.length; i++) {
        if (arguments[i].startsWith(JSON)) {
          flights(client, arguments[i].substring(JSON.length()));
        } else {
          bytes(client, arguments[i]);
        }
      }
      System.out.flush();
      Runtime.getRuntime().halt(0); // closing the client takes two seconds
    }
  }

  private static void flights(PulsarClient client, String topic) throws Exception {
    try (Reader<Flight> reader =
        client
            .newReader(Schema.JSON(Flight.class))
            .topic(topic)
            .startMessageId(MessageId.earliest)
            .create()) {
      while (reader.hasMessageAvailable()) {
        Flight flight = next(reader).getValue();
        System.out.println(topic + "\t" + flight.name + "\t" + flight.number);
      }
    }
  }

  private static void bytes(PulsarClient client, String topic) throws Exception {
    try (Reader<byte[]> reader =
        client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
      while (reader.hasMessageAvailable()) {
        print(topic, next(reader));
      }
    }
  }

  private static <T> Message<T> next(Reader<T> reader) throws Exception {
    Message<T> message = reader.readNext(30, TimeUnit.SECONDS);
    if (message == null) {
      throw new IllegalStateException("an announced message does not come");
    }
    return message;
  }

  private static void print(String topic, Message<byte[]> message) {
    StringBuilder pairs = new StringBuilder();
    new TreeMap<>(message.getProperties())
        .forEach((k, v) -> pairs.append(pairs.length() > 0 ? "," : "").append(k + "=" + v));
    byte[] value = message.getValue();
    System.out.println(
        String.join(
            "\t",
            topic,
            value == null ? "-" : "v" + BASE64.encodeToString(value),
            message.hasKey() ? "k" + BASE64.encodeToString(message.getKeyBytes()) : "-",
            Long.toString(message.getEventTime()),
            pairs.toString()));
  }
}

/** The rows of a topic with a schema; a Python client has registered it. */
class Flight {
  public String name;
  public Integer number;
}
