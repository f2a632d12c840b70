package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import redis.clients.jedis.Jedis;

/** Which servers are refused, and what lets them be used. */
class ServerCheckTest {
  private static final StoreSettings STRICT = StoreSettings.of("redis://h", "", "", "", 1_000);
  private static RedisServer server; // keeps what it acknowledges

  private final List<String> warnings = new ArrayList<>();
  private final Set<String> noted = new HashSet<>();

  @BeforeAll
  static void startServer() {
    server = new RedisServer("--appendonly", "yes", "--appendfsync", "always");
  }

  @AfterAll
  static void stopServer() {
    server.close();
  }

  private static ServerCheck.Answers answers(String... changed) {
    Map<String, String> info =
        new HashMap<>(
            Map.of(
                "redis_version", "7.4.6",
                "aof_enabled", "1",
                "aof_last_write_status", "ok",
                "maxmemory_policy", "noeviction",
                "evicted_keys", "0",
                "loading", "0",
                "cluster_enabled", "0"));
    Map<String, String> config =
        new HashMap<>(Map.of("appendfsync", "always", "no-appendfsync-on-rewrite", "no"));
    for (int i = 0; i < changed.length; i += 2) {
      (config.containsKey(changed[i]) ? config : info).put(changed[i], changed[i + 1]);
    }
    return new ServerCheck.Answers("master", info, config);
  }

  private void judge(ServerCheck.Answers answers, StoreSettings settings) {
    ServerCheck.judge(answers, settings, "h:1", noted, warnings::add);
  }

  private String refusal(ServerCheck.Answers answers, StoreSettings settings) {
    return assertThrows(StoreUnavailableException.class, () -> judge(answers, settings)).getMessage();
  }

  private static void connect(StoreSettings settings) {
    try (RedisConnections connections = new RedisConnections(settings)) {
      connections.with(Scripts.bytes("key"), jedis -> jedis.exists("key"));
    }
  }

  private static StoreSettings strict() {
    return server.settings().accepting(false, false);
  }

  @Test
  void aServerThatKeepsWhatItAcknowledgesIsTaken() {
    assertDoesNotThrow(() -> connect(strict()));
    judge(answers(), STRICT);
    assertEquals(List.of(), warnings);
  }

  @ParameterizedTest
  @CsvSource({
    "aof_enabled, 0, 1, CONFIG SET appendonly yes",
    "maxmemory_policy, allkeys-lru, noeviction, CONFIG SET maxmemory-policy noeviction",
    "evicted_keys, 7, 0, CONFIG RESETSTAT",
    "aof_last_write_status, err, ok, the free space on its disk",
    "appendfsync, everysec, always, CONFIG SET appendfsync always",
    "no-appendfsync-on-rewrite, yes, no, CONFIG SET no-appendfsync-on-rewrite no",
  })
  void whatMayLoseDataIsRefusedUnlessThatIsAccepted(
      String name, String found, String needed, String remedy) {
    ServerCheck.Answers answers = answers(name, found);
    for (boolean vouched : new boolean[] {false, true}) { // that is for what cannot be read
      String message = refusal(answers, STRICT.accepting(false, vouched));
      assertTrue(message.contains(name + " is " + found + ", needed is " + needed), message);
      assertTrue(message.contains(remedy), message);
      assertTrue(message.contains("pulsarTxnSparkStoreAcceptDataLoss=true"), message);
    }
    judge(answers, STRICT.accepting(true, false));
    judge(answers, STRICT.accepting(true, false));
    assertEquals(1, warnings.size(), "once");
    assertTrue(warnings.get(0).contains(name + " is " + found), warnings.get(0));
  }

  @ParameterizedTest
  @CsvSource({"aof_rewrite_in_progress", "aof_rewrite_scheduled"})
  void aServerIsRefusedUntilItsAppendOnlyFileIsThere(String due) {
    ServerCheck.Answers first = answers(due, "1", "aof_base_size", "0");
    assertTrue(refusal(first, STRICT).contains("wait until INFO has aof_rewrite_in_progress:0"));
    judge(first, STRICT.accepting(true, false));
    judge(answers(due, "1", "aof_base_size", "90"), STRICT);
    judge(answers("aof_base_size", "0"), STRICT);
    assertEquals(List.of(), warnings);
  }

  @Test
  void theRemedyThatIsNamedMakesAServerAcceptableAndTheNextConnectionIsChecked() {
    try (Jedis jedis = server.client();
        RedisConnections connections = new RedisConnections(strict())) {
      byte[] key = Scripts.bytes("key");
      connections.with(key, one -> one.exists(key));
      jedis.configSet("appendfsync", "everysec");
      connections.with(
          Scripts.bytes("key"),
          one -> {
            one.getConnection().setBroken();
            return null;
          });
      Exception refused =
          assertThrows(
              StoreUnavailableException.class, () -> connections.with(key, one -> one.exists(key)));
      assertTrue(refused.getMessage().contains("appendfsync is everysec"), refused.getMessage());
      jedis.configSet("appendfsync", "always");
      boolean exists = connections.with(key, one -> one.exists(key));
      assertFalse(exists);
    }
  }

  @Test
  void whatCannotBeReadHasToBeVouchedFor() {
    try (Jedis jedis = server.client()) {
      jedis.aclSetUser("blind", "on", ">pw", "~*", "+@all", "-@admin", "-@dangerous");
      String url = "redis://blind:pw@127.0.0.1:" + server.port();
      StoreSettings blind = StoreSettings.of(url, "", "", "", 1_000);
      String message =
          assertThrows(StoreUnavailableException.class, () -> connect(blind)).getMessage();
      assertTrue(message.contains("appendfsync"), message);
      assertTrue(message.contains("pulsarTxnSparkStoreAssumeDurable=true"), message);
      assertDoesNotThrow(() -> connect(blind.accepting(false, true)));
      assertDoesNotThrow(() -> connect(blind.accepting(true, false)));
      jedis.aclDelUser("blind");
    }
  }

  @Test
  void aMissingPasswordIsNotWhatVouchingIsFor() {
    try (Jedis jedis = server.client()) {
      jedis.configSet("requirepass", "pw");
      StoreSettings vouching = strict().accepting(true, true);
      String message =
          assertThrows(StoreUnavailableException.class, () -> connect(vouching)).getMessage();
      assertTrue(message.contains("NOAUTH"), message);
      jedis.configSet("requirepass", "");
    }
  }

  @Test
  void whatIsNoPrimaryOrTooOldOrStillLoadingIsRefusedWhateverIsAccepted() {
    StoreSettings all = STRICT.accepting(true, true);
    ServerCheck.Answers good = answers();
    ServerCheck.Answers replica =
        new ServerCheck.Answers("slave", good.info(), good.config());
    assertTrue(refusal(replica, all).contains("has the role slave"));
    assertTrue(refusal(answers("loading", "1"), all).contains("still loading"));
    assertTrue(refusal(answers("redis_version", "6.0.20"), all).contains("6.2 or newer"));
    judge(answers("redis_version", "6.2.20"), STRICT);
    assertTrue(refusal(answers("cluster_enabled", "1"), all).contains("redis+cluster://"));
  }

  @ParameterizedTest
  @CsvSource({
    "redis, 6.2.14, true", "redis, 6.2.20, false", "redis, 7.0.15, true", "redis, 7.4.5, true",
    "redis, 8.0.4, false", "redis, 8.4.0, false", "redis, 255.255.255, false",
    "valkey, 8.1.3, true", "valkey, 8.1.4, false", "valkey, 9.0.0, false",
  })
  void aKnownHoleInTheLuaEngineIsAWarning(String product, String version, boolean hole) {
    ServerCheck.Answers answers = answers(product + "_version", version);
    judge(answers, STRICT);
    judge(answers, STRICT);
    assertEquals(hole ? 1 : 0, warnings.size());
    assertEquals(hole, warnings.toString().contains("CVE-2025-49844"));
  }
}
