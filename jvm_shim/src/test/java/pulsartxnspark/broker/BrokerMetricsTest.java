package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.util.SimpleTextOutputStream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import pulsartxnspark.broker.Decisions.Decision;
import pulsartxnspark.store.AckStore;
import pulsartxnspark.store.RedisAckStore;
import pulsartxnspark.store.Scripts;
import pulsartxnspark.store.StoreTest;
import pulsartxnspark.store.WriterId;
import redis.clients.jedis.Jedis;

class BrokerMetricsTest extends StoreTest {
  private final AckMetrics acks = new AckMetrics();
  private long nowMs;
  private BrokerMetrics metrics;

  @BeforeEach
  void makeMetrics() {
    metrics =
        new BrokerMetrics(
            "c", store.metrics, acks, store.transactions, Runnable::run, () -> nowMs);
  }

  private List<String> scraped() {
    ByteBuf buffer = Unpooled.buffer();
    metrics.generate(new SimpleTextOutputStream(buffer));
    return buffer.toString(StandardCharsets.UTF_8).lines().toList();
  }

  @Test
  void theBrokersEndpointHasTheMetricsOfPip471() throws Exception {
    WriterId writer = store.begin("n", 1, "s");
    while (!store.transactions.read(writer.txn()).orElseThrow().expired()) {
      Thread.onSpinWait();
    }
    store.transactions.abortExpired(writer.txn());
    store.segments.gate("s");
    store.segments.gate("s");
    try (Jedis jedis = store.client()) {
      jedis.hset("{tc0}:metrics", BrokerMetrics.OP_WRITES, "7");
      jedis.hset("{tc0}:metrics", BrokerMetrics.OUTSTANDING, "3");
    }
    List<String> lines = scraped();
    String labels = "{cluster=\"c\",coordinator_id=\"0\"";
    assertTrue(lines.contains("# TYPE pulsar_txn_metadata_store_op_writes_total counter"));
    assertTrue(lines.contains("pulsar_txn_metadata_store_op_writes_total" + labels + "} 7"));
    assertTrue(lines.contains("pulsar_txn_metadata_store_outstanding_op_records" + labels + "} 3"));
    assertTrue(
        lines.contains(
            "pulsar_txn_metadata_store_header_cas_total" + labels + ",result=\"ok\"} 1"));
    String query = "pulsar_txn_metadata_store_index_query_seconds";
    String index = "{cluster=\"c\",index=\"writes-by-segment\"";
    assertTrue(lines.contains(query + "_bucket" + index + ",le=\"+Inf\"} 2"), lines.toString());
    assertTrue(lines.contains(query + "_count" + index + "} 2"));
    assertEquals(22, lines.stream().filter(one -> one.startsWith(query + "_bucket")).count());
    String sum = lines.stream().filter(one -> one.startsWith(query + "_sum")).findFirst().get();
    assertTrue(Double.parseDouble(sum.substring(sum.indexOf(' '))) > 0);
  }

  @Test
  void theBrokersEndpointHasWhatIsCountedOfPendingAcks() {
    AckTransactions txns = new AckTransactions(() -> nowMs);
    AckRecord record = AckRecord.parse("I 7:0:0:-");
    txns.add(new TxnID(5, 1), record);
    txns.add(new TxnID(5, 2), record);
    txns.add(new TxnID(5, 2), record);
    txns.decide(txns.get(new TxnID(5, 2)), Decision.COMMITTED);
    acks.load(txns);
    acks.count(AckMetrics.Replay.OK);
    acks.count(AckMetrics.Refusal.CONFLICT);
    RedisAckStore read = new RedisAckStore(new Scripts(store.connections), store.metrics);
    AckStore.Subscription name = new AckStore.Subscription("s", "service");
    read.note(name, "c");
    read.open(name, "c");
    List<String> lines = scraped();
    String one = "pulsar_txn_metadata_store_pending_ack";
    List<String> expected =
        List.of(
            "# TYPE " + one + "s gauge",
            one + "s{cluster=\"c\",state=\"open\"} 1",
            one + "s{cluster=\"c\",state=\"decided\"} 2",
            "# TYPE " + one + "_replays_total counter",
            one + "_replays_total{cluster=\"c\",result=\"ok\"} 1",
            one + "_replays_total{cluster=\"c\",result=\"failed\"} 0",
            "# TYPE " + one + "_refusals_total counter",
            one + "_refusals_total{cluster=\"c\",cause=\"conflict\"} 1",
            one + "_refusals_total{cluster=\"c\",cause=\"contradiction\"} 0",
            one + "_refusals_total{cluster=\"c\",cause=\"late\"} 0",
            one + "_refusals_total{cluster=\"c\",cause=\"unavailable\"} 0");
    assertEquals(expected, lines.stream().filter(line -> line.contains(one)).toList());
    assertTrue(
        lines.contains(
            "pulsar_txn_metadata_store_index_query_seconds_count"
                + "{cluster=\"c\",index=\"acks-by-segment-subscription\"} 1"));
  }

  @Test
  void whatIsNotKnownIsLeftOutAndAskedForAgainLater() {
    assertEquals(4, counted(scraped()));
    try (Jedis jedis = store.client()) {
      jedis.hset("{meta}:birth", "epoch", "2");
      jedis.hset("{tc0}:birth", "uuid", "of another store");
    }
    assertEquals(4, counted(scraped()));
    nowMs += 10_000;
    assertEquals(0, counted(scraped()));
    assertFalse(scraped().isEmpty());
  }

  private static long counted(List<String> lines) {
    return lines.stream().filter(one -> one.startsWith(BrokerMetrics.OP_WRITES)).count();
  }
}
