import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.*;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.crypto.MessageCryptoBc;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Writes messages in every shape that Pulsar's own client has, and prints each one that a reader
 * has to see: "topic TAB value TAB key TAB event time TAB name=value,...", texts in base64, "-" for
 * none. Arguments: service URL, prefix of the topics, file with a public key.
 */
public class Produce {
  private static final Base64.Encoder BASE64 = Base64.getEncoder();
  private static final long EVENT_TIME = 1_700_000_000_123L;

  private static final CompressionType[] IN_CHUNKS = {
    CompressionType.LZ4,
    CompressionType.ZLIB,
    CompressionType.NONE,
    CompressionType.ZSTD,
    CompressionType.SNAPPY
  };

  private record Sent(byte[] value, byte[] key, long time, Map<String, String> properties) {}

  public static void main(String[] arguments) throws Exception {
    String prefix = arguments[1];
    try (PulsarClient client =
        PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build()) {
      for (CompressionType type : CompressionType.values()) {
        shapes(client, prefix + "batched", type, true, BatcherBuilder.DEFAULT);
        shapes(client, prefix + "keybatched", type, true, BatcherBuilder.KEY_BASED);
        shapes(client, prefix + "single", type, false, BatcherBuilder.DEFAULT);
      }
      // Compressed chunks first and last: of those the admin API tells nothing.
      for (CompressionType type : IN_CHUNKS) {
        chunked(client, prefix + "chunked", type);
        chunked(client, prefix + "foreign", type);
      }
      transactions(client, prefix + "transactions");
      schemas(client, prefix);
      encrypted(client, prefix + "encrypted", arguments[2]);
      System.out.flush();
      Runtime.getRuntime().halt(0); // closing the client takes two seconds
    }
  }

  private static void print(String topic, Sent sent) {
    StringBuilder pairs = new StringBuilder();
    new TreeMap<>(sent.properties)
        .forEach((k, v) -> pairs.append(pairs.length() > 0 ? "," : "").append(k + "=" + v));
    System.out.println(
        String.join(
            "\t",
            topic,
            sent.value == null ? "-" : "v" + BASE64.encodeToString(sent.value),
            sent.key == null ? "-" : "k" + BASE64.encodeToString(sent.key),
            Long.toString(sent.time),
            pairs.toString()));
  }

  private static ProducerBuilder<byte[]> producer(PulsarClient client, String topic) {
    return client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS);
  }

  private static void shapes(
      PulsarClient client, String topic, CompressionType type, boolean batched, BatcherBuilder how)
      throws Exception {
    try (Producer<byte[]> producer =
        producer(client, topic)
            .compressionType(type)
            .enableBatching(batched)
            .batcherBuilder(how)
            .batchingMaxPublishDelay(1, TimeUnit.HOURS)
            .create()) {
      List<Sent> all = new ArrayList<>();
      byte[] text = (type + " again and again ").repeat(20).getBytes(StandardCharsets.UTF_8);
      byte[] key = "schlüssel".getBytes(StandardCharsets.UTF_8);
      byte[] binary = {(byte) 0xff, 0, (byte) 0x80, 7};
      for (int i = 0; i < 50; i++) { // plain ones, as a batch of their own where there are batches
        all.add(new Sent((type + " " + i).getBytes(), null, 0, Map.of()));
        all.add(new Sent(text, ("key-" + i).getBytes(), 0, Map.of()));
      }
      all.add(new Sent(null, key, 0, Map.of()));
      all.add(new Sent(null, null, 0, Map.of()));
      all.add(new Sent(new byte[0], key, EVENT_TIME, Map.of("a", "1", "ü", "日本")));
      all.add(new Sent(text, binary, 0, Map.of()));
      all.add(new Sent(text, null, EVENT_TIME, Map.of("only", "property")));
      for (int i = 0; i < all.size(); i++) {
        Sent sent = all.get(i);
        TypedMessageBuilder<byte[]> message = producer.newMessage().value(sent.value);
        if (sent.key == binary) {
          message.keyBytes(sent.key);
        } else if (sent.key != null) {
          message.key(new String(sent.key, StandardCharsets.UTF_8));
        }
        if (sent.time != 0) {
          message.eventTime(sent.time);
        }
        if (i % 7 == 3) {
          message.orderingKey(new byte[] {1, 2, (byte) i});
        }
        message.properties(sent.properties).sendAsync();
        if (i == 99 || !batched) {
          producer.flush();
        }
        print(topic, sent);
      }
      producer.flush();
    }
  }

  private static void chunked(PulsarClient client, String topic, CompressionType type)
      throws Exception {
    try (Producer<byte[]> producer =
        producer(client, topic)
            .compressionType(type)
            .enableBatching(false)
            .enableChunking(true)
            .chunkMaxMessageSize(1000)
            .create()) {
      for (int size : new int[] {30_000, 0, 5_000}) {
        byte[] value = "small".getBytes();
        if (size > 0) {
          value = new byte[size];
          new java.util.Random(type.ordinal()).nextBytes(value); // no codec makes that small
        }
        TypedMessageBuilder<byte[]> message = producer.newMessage().value(value);
        Sent sent = new Sent(value, null, 0, Map.of());
        if (size > 0) {
          message.key("k").eventTime(EVENT_TIME).property("p", "q");
          sent = new Sent(value, "k".getBytes(), EVENT_TIME, Map.of("p", "q"));
        }
        message.send();
        print(topic, sent);
      }
    }
  }

  private static void transactions(PulsarClient client, String topic) throws Exception {
    try (Producer<byte[]> producer = producer(client, topic).enableBatching(false).create()) {
      for (String how : new String[] {"plain-1", "aborted", "committed", "plain-2", "aborted"}) {
        byte[] value = how.getBytes();
        if (how.startsWith("plain")) {
          producer.send(value);
        } else {
          Transaction transaction =
              client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
          producer.newMessage(transaction).value(value).send();
          (how.equals("aborted") ? transaction.abort() : transaction.commit()).get();
        }
        if (!how.equals("aborted")) {
          print(topic, new Sent(value, null, 0, Map.of()));
        }
      }
    }
  }

  /** What a topic with a schema holds is whatever the schema makes of the values. */
  private static void schemas(PulsarClient client, String prefix) throws Exception {
    Flight flight = new Flight();
    flight.name = "grüße";
    flight.number = 7;
    schema(client, prefix + "schema-string", Schema.STRING, "grüße", "");
    schema(client, prefix + "schema-int64", Schema.INT64, 7L, Long.MIN_VALUE);
    schema(client, prefix + "schema-json", Schema.JSON(Flight.class), flight, new Flight());
    schema(client, prefix + "schema-avro", Schema.AVRO(Flight.class), flight, new Flight());
    Schema<KeyValue<String, Flight>> pair =
        Schema.KeyValue(Schema.STRING, Schema.JSON(Flight.class), KeyValueEncodingType.INLINE);
    schema(client, prefix + "schema-keyvalue", pair, new KeyValue<>("k", flight));
  }

  @SafeVarargs
  private static <T> void schema(
      PulsarClient client, String topic, Schema<T> schema, T... values) throws Exception {
    try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
      for (T value : values) {
        producer.newMessage().key("k").value(value).send();
        print(topic, new Sent(schema.encode(value), "k".getBytes(), 0, Map.of()));
      }
    }
  }

  private static void encrypted(PulsarClient client, String topic, String publicKey)
      throws Exception {
    try (Producer<byte[]> producer =
        producer(client, topic)
            .defaultCryptoKeyReader("file://" + publicKey)
            .messageCrypto(new MessageCryptoBc("test", true))
            .addEncryptionKey("key")
            .create()) {
      producer.send("secret".getBytes());
      print(topic, new Sent("secret".getBytes(), null, 0, Map.of()));
    }
  }
}

/** A value with a schema. */
class Flight {
  public String name;
  public Integer number;
}
