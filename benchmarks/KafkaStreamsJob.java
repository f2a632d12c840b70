import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;

/**
 * Kafka Streams under exactly_once_v2: reads a topic, changes each value, and writes it. Each line
 * of the input is a question in JSON; the argument is the broker.
 */
public class KafkaStreamsJob {
  private static final long TIMEOUT_MS = 120_000;
  private static final long LOOK_MS = 20;

  public static void main(String[] arguments) throws Exception {
    ObjectMapper json = new ObjectMapper();
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = questions.readLine()) != null; ) {
      JsonNode question = json.readTree(line);
      Map<String, Object> answer;
      try {
        answer = pass(arguments[0], question.get("topic").asText(), question.get("output").asText());
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

  private static Map<String, Object> pass(String servers, String topic, String output)
      throws Exception {
    String name = "bench-" + UUID.randomUUID();
    Properties settings = new Properties();
    settings.putAll(
        Map.of(
            "application.id", name,
            "bootstrap.servers", servers,
            "processing.guarantee", "exactly_once_v2",
            "num.stream.threads", "2",
            "replication.factor", "1",
            "auto.offset.reset", "earliest",
            "state.dir", Files.createTempDirectory("streams-").toString(),
            "producer.batch.size", "262144",
            "producer.linger.ms", "20",
            "consumer.max.poll.records", "10000"));
    settings.put("default.key.serde", Serdes.ByteArraySerde.class);
    settings.put("default.value.serde", Serdes.ByteArraySerde.class);
    LongAdder rows = new LongAdder();
    StreamsBuilder builder = new StreamsBuilder();
    builder
        .<byte[], byte[]>stream(topic)
        .mapValues(
            value -> {
              rows.increment();
              byte[] changed = new byte[value.length];
              System.arraycopy(value, 1, changed, 0, value.length - 1);
              changed[value.length - 1] = value[0];
              return changed;
            })
        .to(output);
    try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
      Map<TopicPartition, Long> ends = ends(admin, topic);
      long began = System.nanoTime();
      streams.start();
      long deadline = System.currentTimeMillis() + TIMEOUT_MS;
      while (!isCommitted(admin, name, ends)) {
        if (System.currentTimeMillis() > deadline) {
          throw new IllegalStateException(rows + " rows had passed when time was up");
        }
        Thread.sleep(LOOK_MS); // nobody tells when a group has committed
      }
      return Map.of("seconds", (System.nanoTime() - began) / 1e9, "rows", rows.sum());
    }
  }

  private static Map<TopicPartition, Long> ends(Admin admin, String topic) throws Exception {
    Map<TopicPartition, OffsetSpec> latest =
        admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().stream()
            .collect(
                Collectors.toMap(
                    info -> new TopicPartition(topic, info.partition()),
                    info -> OffsetSpec.latest()));
    return admin.listOffsets(latest).all().get().entrySet().stream()
        .collect(Collectors.toMap(Map.Entry::getKey, entry -> entry.getValue().offset()));
  }

  private static boolean isCommitted(Admin admin, String group, Map<TopicPartition, Long> ends)
      throws Exception {
    Map<TopicPartition, OffsetAndMetadata> committed =
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
    return ends.entrySet().stream()
        .allMatch(
            end -> {
              OffsetAndMetadata offset = committed.get(end.getKey());
              return end.getValue() == 0 || (offset != null && offset.offset() >= end.getValue());
            });
  }
}
