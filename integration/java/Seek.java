import java.util.Base64;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;

/**
 * Seeks to message ids, inclusive, as Pulsar's own client does, and prints the value of the message
 * that comes then, in base64. Arguments: service URL, topic, ids in base64.
 */
public class Seek {
  public static void main(String[] arguments) throws Exception {
    try (PulsarClient client =
            PulsarClient.builder()
                .serviceUrl(arguments[0])
                .startingBackoffInterval(1, TimeUnit.MILLISECONDS) // each seek connects anew
                .build()) {
      for (int i = 2; i < arguments.length; i++) {
        // A new reader for each, at the end: one that was used may keep chunks of a message that had
        // half arrived before it sought.
        try (Reader<byte[]> reader =
            client
                .newReader()
                .topic(arguments[1])
                .startMessageId(MessageId.latest)
                .startMessageIdInclusive()
                .create()) {
          reader.seek(MessageId.fromByteArray(Base64.getDecoder().decode(arguments[i])));
          Message<byte[]> found = reader.readNext(30, TimeUnit.SECONDS);
          System.out.println(
              "value\t"
                  + (found == null ? "-" : Base64.getEncoder().encodeToString(found.getData())));
        }
      }
      System.out.flush();
      Runtime.getRuntime().halt(0); // closing the client takes two seconds
    }
  }
}
