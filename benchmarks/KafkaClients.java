import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedInputStream;
import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own clients, in transactions: the least that exactly once takes there. It makes the topics
 * of the other sides, too. Each line of the input is a question in JSON; the argument is the broker.
 */
public class KafkaClients {
  private static final int THREADS = 2;
  private static final long COMMIT_MS = 100; // as Kafka Streams commits by default
  private static final int KEY_BYTES = 12;
  private static final int VALUE_BYTES = 100;
  private static final Duration POLL = Duration.ofMillis(100);
  private static final long TIMEOUT_MS = 120_000;

  private final String servers;
  private final Admin admin;

  private KafkaClients(String servers) {
    this.servers = servers;
    this.admin = Admin.create(Map.of("bootstrap.servers", servers));
  }

  public static void main(String[] arguments) throws Exception {
    ObjectMapper json = new ObjectMapper();
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    KafkaClients clients = new KafkaClients(arguments[0]);
    for (String line; (line = questions.readLine()) != null; ) {
      Map<String, Object> answer;
      try {
        answer = clients.answer(json.readTree(line));
      } catch (Exception error) {
        answer = Map.of("error", error + ", at first: " + cause(error));
      }
      System.out.println("answer " + json.writeValueAsString(answer));
    }
    System.exit(0);
  }

  private static Throwable cause(Throwable error) {
    return error.getCause() == null ? error : cause(error.getCause());
  }

  private Map<String, Object> answer(JsonNode question) throws Exception {
    String topic = question.path("topic").asText();
    return switch (question.get("do").asText()) {
      case "create" -> create(topic, question.get("partitions").asInt());
      case "delete" -> delete(topic);
      case "fill" -> fill(topic, Path.of(question.get("path").asText()));
      case "count" -> Map.of("rows", count(topic));
      case "pass" -> pass(topic, question.get("output").asText());
      default -> throw new IllegalArgumentException("unknown: " + question);
    };
  }

  private Map<String, Object> create(String topic, int partitions) throws Exception {
    admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
    return Map.of();
  }

  private Map<String, Object> delete(String topic) throws Exception {
    admin.deleteTopics(List.of(topic)).all().get();
    return Map.of();
  }

  /** Sends rows of a file, a key and a value of fixed sizes each. */
  private Map<String, Object> fill(String topic, Path path) throws Exception {
    long rows = Files.size(path) / (KEY_BYTES + VALUE_BYTES);
    try (KafkaProducer<byte[], byte[]> producer = producer(null);
        DataInputStream file =
            new DataInputStream(new BufferedInputStream(Files.newInputStream(path), 1 << 20))) {
      for (long row = 0; row < rows; row++) {
        byte[] key = file.readNBytes(KEY_BYTES);
        producer.send(new ProducerRecord<>(topic, key, file.readNBytes(VALUE_BYTES)));
      }
      producer.flush();
    }
    return Map.of("rows", count(topic));
  }

  /** Counts the rows that a reader of committed ones gets: markers take offsets, too. */
  private long count(String topic) {
    try (KafkaConsumer<byte[], byte[]> consumer = consumer("count")) {
      List<TopicPartition> partitions = partitions(consumer, topic);
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
      long rows = 0;
      long deadline = System.currentTimeMillis() + TIMEOUT_MS;
      while (ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
        rows += consumer.poll(POLL).count();
        if (System.currentTimeMillis() > deadline) {
          throw new IllegalStateException(rows + " rows were read when time was up");
        }
      }
      return rows;
    }
  }

  /** Reads a topic to its end, changes each value, and commits rows and offsets together. */
  private Map<String, Object> pass(String topic, String output) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(THREADS);
    try {
      long began = System.nanoTime();
      List<Callable<Long>> shares = new ArrayList<>();
      IntStream.range(0, THREADS).forEach(t -> shares.add(() -> share(topic, output, t)));
      long rows = 0;
      for (Future<Long> share : threads.invokeAll(shares)) {
        rows += share.get();
      }
      return Map.of("seconds", (System.nanoTime() - began) / 1e9, "rows", rows);
    } finally {
      threads.shutdown();
    }
  }

  private long share(String topic, String output, int thread) {
    String name = UUID.randomUUID().toString();
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(name);
        KafkaProducer<byte[], byte[]> producer = producer(name)) {
      producer.initTransactions();
      List<TopicPartition> own =
          partitions(consumer, topic).stream().filter(p -> p.partition() % THREADS == thread).toList();
      consumer.assign(own);
      consumer.seekToBeginning(own);
      Map<TopicPartition, Long> ends = consumer.endOffsets(own);
      long rows = 0;
      long deadline = System.currentTimeMillis() + TIMEOUT_MS;
      boolean ended = false;
      while (!ended) {
        producer.beginTransaction();
        long until = System.currentTimeMillis() + COMMIT_MS;
        do {
          ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
          for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(output, record.key(), turned(record.value())));
          }
          rows += records.count();
          ended = ends.entrySet().stream().allMatch(e -> consumer.position(e.getKey()) >= e.getValue());
        } while (!ended && System.currentTimeMillis() < until);
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        own.forEach(p -> offsets.put(p, new OffsetAndMetadata(consumer.position(p))));
        producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata(name));
        producer.commitTransaction();
        if (System.currentTimeMillis() > deadline) {
          throw new IllegalStateException(rows + " rows had passed when time was up");
        }
      }
      return rows;
    }
  }

  private static byte[] turned(byte[] value) {
    byte[] changed = new byte[value.length];
    System.arraycopy(value, 1, changed, 0, value.length - 1);
    changed[value.length - 1] = value[0];
    return changed;
  }

  private static List<TopicPartition> partitions(KafkaConsumer<?, ?> consumer, String topic) {
    return consumer.partitionsFor(topic).stream()
        .map(info -> new TopicPartition(topic, info.partition()))
        .toList();
  }

  private KafkaConsumer<byte[], byte[]> consumer(String group) {
    Map<String, Object> settings =
        Map.of(
            "bootstrap.servers", servers,
            "group.id", group,
            "enable.auto.commit", "false",
            "isolation.level", "read_committed",
            "max.poll.records", "10000");
    return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  private KafkaProducer<byte[], byte[]> producer(String transactionalId) {
    Map<String, Object> settings = new HashMap<>();
    settings.put("bootstrap.servers", servers);
    settings.put("batch.size", "262144");
    settings.put("linger.ms", "20");
    if (transactionalId != null) {
      settings.put("transactional.id", transactionalId);
    }
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }
}
