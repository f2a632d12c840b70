package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import pulsartxnspark.store.SegmentStore.Query;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisConnectionException;

/** TLS, a user with the rights of conf/redis-acl.conf and no others, and a change of roles. */
class RedisConnectionsTest extends StoreTest {
  private static final Path ACL_FILE = Path.of("../conf/redis-acl.conf");
  private static final String USER = "pulsar_txn";
  private static final String PASSWORD = "CHANGE-ME";

  @TempDir private static Path folder;
  private static OwnCertificate certificate;
  private static TlsEndpoint endpoint;

  @BeforeAll
  static void startEndpoint() throws Exception {
    certificate = new OwnCertificate(folder, "server", "EC", "dns:localhost");
    endpoint = new TlsEndpoint(certificate, server.port());
  }

  @AfterAll
  static void stopEndpoint() throws IOException {
    endpoint.close();
  }

  @AfterEach
  void removeUser() {
    try (Jedis jedis = server.client()) {
      jedis.aclDelUser(USER);
    }
  }

  private static void makeUser(String... more) throws IOException {
    makeUser(server, more);
  }

  static void makeUser(RedisServer server, String... more) throws IOException {
    String line =
        Files.readAllLines(ACL_FILE).stream().filter(one -> one.startsWith("user " + USER + " "))
            .findFirst().orElseThrow();
    String[] rules = line.substring(("user " + USER + " ").length()).split(" ");
    try (Jedis jedis = server.client()) {
      jedis.aclSetUser(USER, rules);
      if (more.length > 0) {
        jedis.aclSetUser(USER, more);
      }
    }
  }

  private static StoreSettings plain(String user, String password) {
    return StoreSettings.of("redis://127.0.0.1:" + server.port(), user, password, "", 2_000)
        .accepting(true, false);
  }

  private static StoreSettings encrypted(String host, String file) {
    return StoreSettings.of("rediss://" + host + ":" + endpoint.port(), "", "", file, 2_000)
        .accepting(true, false);
  }

  private static Gate gate(StoreSettings settings) {
    try (RedisConnections connections = new RedisConnections(settings)) {
      return new RedisSegmentStore(new Scripts(connections), new StoreMetrics()).gate("s");
    }
  }

  @Test
  void theUserOfTheExampleMayDoAllThatThePluginDoes() throws Exception {
    makeUser();
    WriterId writer = store.begin("n", 1, "s");
    store.pin("s", writer);
    CountDownLatch events = new CountDownLatch(2); // the first look, and the event
    try (RedisConnections connections = new RedisConnections(plain(USER, PASSWORD))) {
      Scripts scripts = new Scripts(connections);
      RedisSegmentStore segments = new RedisSegmentStore(scripts, new StoreMetrics());
      RedisTransactionStore transactions = new RedisTransactionStore(scripts, new StoreMetrics());
      EventFollower follower = new EventFollower(connections);
      Runnable look = events::countDown;
      follower.follow("s", look);
      segments.requireIdentity(TestStore.UUID);
      assertEquals(1, segments.gate("s").pins().size());
      while (!transactions.read(writer.txn()).orElseThrow().expired()) {
        Thread.onSpinWait();
      }
      while (events.getCount() == 2) { // an event before the first look is not told twice
        Thread.onSpinWait();
      }
      transactions.abortExpired(writer.txn());
      transactions.materialize(transactions.read(writer.txn()).orElseThrow());
      assertEquals(4, transactions.counts().size());
      Fate fate = segments.fates("s", List.of(new Query(writer, LogPosition.EARLIEST))).get(0);
      assertEquals(new Fate.Dropped(LogPosition.EARLIEST), fate);
      assertTrue(events.await(20, TimeUnit.SECONDS));
      follower.leave("s", look);
    }
  }

  @Test
  void aWrongPasswordOrAMissingRightShowsNothingAndNoSecret() throws IOException {
    makeUser();
    String wrong = "not-the-password";
    StoreUnavailableException refused =
        assertThrows(StoreUnavailableException.class, () -> gate(plain(USER, wrong)));
    assertFalse(refused.getMessage().contains(wrong), refused.getMessage());
    makeUser("-hget");
    store.begin("n", 1, "s"); // something to read
    store.pin("s", WriterId.ofName("ptxn-0-1-0-n").orElseThrow());
    assertThrows(StoreException.class, () -> gate(plain(USER, PASSWORD)));
  }

  @Test
  void aPrimaryThatBecameAReplicaAnswersNothingOnAnOpenConnection() {
    store.segments.gate("s");
    try (Jedis jedis = server.client()) {
      jedis.replicaof("127.0.0.1", 1);
      try {
        Exception first =
            assertThrows(StoreUnavailableException.class, () -> store.segments.gate("s"));
        assertTrue(first.getMessage().contains("no primary any more"), first.getMessage());
        Exception next =
            assertThrows(StoreUnavailableException.class, () -> store.segments.gate("s"));
        assertTrue(next.getMessage().contains("has the role slave"), next.getMessage());
      } finally {
        jedis.replicaofNoOne();
      }
    }
    assertEquals(Gate.PLAIN, store.segments.gate("s"));
  }

  @Test
  void aFormerPrimaryAnswersNothingToAUserWhoMayNotAskForTheRole() throws IOException {
    makeUser("-info", "-role");
    StoreSettings settings = plain(USER, PASSWORD).accepting(true, true);
    try (RedisConnections connections = new RedisConnections(settings);
        Jedis jedis = server.client()) {
      RedisSegmentStore segments =
          new RedisSegmentStore(new Scripts(connections), new StoreMetrics());
      assertEquals(Gate.PLAIN, segments.gate("s"));
      jedis.replicaof("127.0.0.1", 1);
      try {
        for (int n = 0; n < 2; n++) { // on the open connection, and on a new one
          Exception refused =
              assertThrows(StoreUnavailableException.class, () -> segments.gate("s"));
          assertTrue(refused.getMessage().contains("no primary any more"), refused.getMessage());
        }
      } finally {
        jedis.replicaofNoOne();
      }
      assertEquals(Gate.PLAIN, segments.gate("s"));
    }
  }

  /** Asks servers that let everybody in; returns after how many milliseconds it gave up. */
  private static long givesUpAfterMs(String scheme, List<ServerSocket> silent, int timeoutMs) {
    String servers =
        silent.stream()
            .map(one -> "127.0.0.1:" + one.getLocalPort())
            .collect(Collectors.joining(","));
    StoreSettings settings = StoreSettings.of(scheme + "://" + servers, "", "", "", timeoutMs);
    try (RedisConnections connections = new RedisConnections(settings)) {
      long beganMs = Deadline.CLOCK_MS.getAsLong();
      assertThrows(
          StoreUnavailableException.class,
          () -> connections.with(Scripts.bytes("key"), jedis -> jedis.exists("key")));
      return Deadline.CLOCK_MS.getAsLong() - beganMs;
    }
  }

  private static ServerSocket listening() throws IOException {
    return new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  }

  @Test
  void allServersOfAClusterTogetherHaveTheTimeOfOneRequest() throws IOException {
    List<ServerSocket> silent = new ArrayList<>();
    try {
      for (int n = 0; n < 8; n++) {
        silent.add(listening());
      }
      long tookMs = givesUpAfterMs("redis+cluster", silent, 2_000);
      assertTrue(tookMs < 12_000, "one after the other they would take 16 s, not " + tookMs + " ms");
    } finally {
      for (ServerSocket one : silent) {
        one.close();
      }
    }
  }

  @Test
  void aServerWhoseAnswerNeverEndsIsCutOff() throws IOException {
    try (ServerSocket endless = listening()) {
      Thread answers =
          new Thread(
              () -> {
                try (Socket client = endless.accept()) {
                  client.setTcpNoDelay(true);
                  for (byte next = '+'; ; next = 'x') { // each read gets something in time
                    client.getOutputStream().write(next);
                  }
                } catch (IOException cutOff) {
                  // The end of it.
                }
              });
      answers.setDaemon(true);
      answers.start();
      assertTimeoutPreemptively(
          Duration.ofSeconds(20), () -> givesUpAfterMs("redis", List.of(endless), 2_000));
    }
  }

  @Test
  void aConnectionThatWasCutOffIsNotOpenedAgain() {
    HostAndPort address = new HostAndPort("127.0.0.1", server.port());
    try (RedisConnections.Own own = store.connections.open(address)) {
      own.cut();
      assertThrows(JedisConnectionException.class, () -> own.jedis().ping());
    }
  }

  @Test
  void aRequestWhoseReplyIsLostIsSentOnceOnly() {
    byte[] key = Scripts.bytes("count");
    assertThrows(
        StoreUnavailableException.class,
        () ->
            store.connections.with(
                key,
                jedis -> {
                  jedis.incr(key);
                  throw new JedisConnectionException("the reply is lost");
                }));
    try (Jedis jedis = server.client()) {
      assertEquals("1", jedis.get("count"));
    }
  }

  @Test
  void aConnectionThatIsUsedForTooLongIsCutOffAndNobodyGetsIt() {
    byte[] key = Scripts.bytes("key");
    StoreSettings settings =
        StoreSettings.of("redis://127.0.0.1:" + server.port(), "", "", "", 300)
            .accepting(true, false);
    try (RedisConnections connections = new RedisConnections(settings)) {
      Function<Jedis, Boolean> endless =
          jedis -> {
            while (!Thread.interrupted()) {
              jedis.exists(key);
            }
            return true;
          };
      Exception late =
          assertTimeoutPreemptively(
              Duration.ofSeconds(20),
              () ->
                  assertThrows(
                      StoreUnavailableException.class, () -> connections.with(key, endless)));
      assertTrue(late.getMessage().contains("within 300 ms"), late.getMessage());
      boolean exists = connections.with(key, jedis -> jedis.exists(key));
      assertFalse(exists);
    }
  }

  @Test
  void tlsWorksWithTheServersCertificateAndNotWithout() {
    String file = certificate.file().toString();
    assertEquals(Gate.PLAIN, gate(encrypted("localhost", file)));
    assertThrows(StoreUnavailableException.class, () -> gate(encrypted("localhost", "")));
  }

  @Test
  void theCertificateHasToBeOfTheServersName() {
    String file = certificate.file().toString();
    assertThrows(StoreUnavailableException.class, () -> gate(encrypted("127.0.0.1", file)));
    StoreSettings.Tls anyHost = StoreSettings.Tls.of(file, "", "", false);
    String url = "rediss://127.0.0.1:" + endpoint.port();
    assertEquals(Gate.PLAIN, gate(StoreSettings.of(url, "", "", anyHost, 2_000).accepting(true, false)));
  }

  @Test
  void aFileWithoutACertificateIsRefused() throws IOException {
    Path file = folder.resolve("none.pem");
    Files.write(file, Arrays.asList("-----BEGIN CERTIFICATE-----", "x"));
    assertThrows(
        IllegalArgumentException.class,
        () -> new RedisConnections(encrypted("localhost", file.toString())));
  }
}
