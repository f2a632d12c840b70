import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.util.Map;
import java.util.UUID;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * Flink with Kafka, exactly once: reads a topic to its end, changes each value, and writes it. Each
 * line of the input is a question in JSON; the argument is the broker.
 */
public class FlinkJob {
  private static final int TASKS = 2;
  private static final long CHECKPOINT_MS = 1000;

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
    Configuration settings = new Configuration();
    settings.setString("execution.checkpointing.storage", "filesystem");
    settings.setString(
        "execution.checkpointing.dir", Files.createTempDirectory("flink-").toUri().toString());
    StreamExecutionEnvironment flink =
        StreamExecutionEnvironment.createLocalEnvironment(TASKS, settings);
    flink.enableCheckpointing(CHECKPOINT_MS);
    flink.getConfig().enableObjectReuse();
    String name = UUID.randomUUID().toString();
    KafkaSource<Tuple2<byte[], byte[]>> source =
        KafkaSource.<Tuple2<byte[], byte[]>>builder()
            .setBootstrapServers(servers)
            .setTopics(topic)
            .setGroupId(name)
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setBounded(OffsetsInitializer.latest())
            .setProperty("isolation.level", "read_committed")
            .setProperty("max.poll.records", "10000")
            .setDeserializer(new Rows())
            .build();
    KafkaSink<Tuple2<byte[], byte[]>> sink =
        KafkaSink.<Tuple2<byte[], byte[]>>builder()
            .setBootstrapServers(servers)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(name)
            .setProperty("transaction.timeout.ms", "60000")
            .setProperty("batch.size", "262144")
            .setProperty("linger.ms", "20")
            .setRecordSerializer(new Records(output))
            .build();
    flink
        .fromSource(source, WatermarkStrategy.noWatermarks(), "source")
        .map(new Turned())
        .sinkTo(sink);
    long began = System.nanoTime();
    flink.execute();
    return Map.of("seconds", (System.nanoTime() - began) / 1e9);
  }

  /** Key and value of a record. */
  public static class Rows implements KafkaRecordDeserializationSchema<Tuple2<byte[], byte[]>> {
    @Override
    public void deserialize(
        ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<byte[], byte[]>> out) {
      out.collect(Tuple2.of(record.key(), record.value()));
    }

    @Override
    public TypeInformation<Tuple2<byte[], byte[]>> getProducedType() {
      return TypeInformation.of(new TypeHint<>() {});
    }
  }

  /** The first byte goes to the end. */
  public static class Turned implements MapFunction<Tuple2<byte[], byte[]>, Tuple2<byte[], byte[]>> {
    @Override
    public Tuple2<byte[], byte[]> map(Tuple2<byte[], byte[]> row) {
      byte[] changed = new byte[row.f1.length];
      System.arraycopy(row.f1, 1, changed, 0, row.f1.length - 1);
      changed[row.f1.length - 1] = row.f1[0];
      return Tuple2.of(row.f0, changed);
    }
  }

  /** A record of key and value. */
  public record Records(String topic)
      implements KafkaRecordSerializationSchema<Tuple2<byte[], byte[]>> {
    @Override
    public ProducerRecord<byte[], byte[]> serialize(
        Tuple2<byte[], byte[]> row, KafkaSinkContext context, Long timestamp) {
      return new ProducerRecord<>(topic, row.f0, row.f1);
    }
  }
}
