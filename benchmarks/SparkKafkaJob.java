import static org.apache.spark.sql.functions.concat;
import static org.apache.spark.sql.functions.expr;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.Trigger;

/**
 * Spark's own source and sink for Kafka: a stream reads a topic to its end, changes each value, and
 * writes it, at least once. Each line of the input is a question in JSON; the arguments are the
 * broker and a folder.
 */
public class SparkKafkaJob {
  public static void main(String[] arguments) throws Exception {
    ObjectMapper json = new ObjectMapper();
    BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
    SparkSession spark =
        SparkSession.builder()
            .appName("benchmarks")
            .master("local[2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", arguments[1])
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", arguments[1] + "/warehouse")
            .config("spark.ui.enabled", "false")
            .config("spark.log.level", "OFF")
            .getOrCreate();
    for (String line; (line = questions.readLine()) != null; ) {
      JsonNode question = json.readTree(line);
      Map<String, Object> answer;
      try {
        answer =
            pass(
                spark,
                arguments[0],
                question.get("topic").asText(),
                question.get("output").asText(),
                Files.createTempDirectory(Path.of(arguments[1]), "checkpoint-"));
      } catch (Exception error) {
        answer = Map.of("error", error.toString());
      }
      System.out.println("answer " + json.writeValueAsString(answer));
    }
    System.exit(0);
  }

  private static Map<String, Object> pass(
      SparkSession spark, String servers, String topic, String output, Path checkpoint)
      throws Exception {
    long began = System.nanoTime();
    StreamingQuery query =
        spark
            .readStream()
            .format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
            .select(
                concat(expr("substring(value, 2)"), expr("substring(value, 1, 1)")).as("value"),
                expr("key"))
            .writeStream()
            .format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("kafka.batch.size", "262144")
            .option("kafka.linger.ms", "20")
            .option("topic", output)
            .option("checkpointLocation", checkpoint.toString())
            .trigger(Trigger.AvailableNow())
            .start();
    query.awaitTermination();
    return Map.of("seconds", (System.nanoTime() - began) / 1e9);
  }
}
