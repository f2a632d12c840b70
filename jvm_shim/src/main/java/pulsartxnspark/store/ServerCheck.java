package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * Whether a server may be asked: what it says of itself on a new connection, in one round trip. It has to
 * be a primary that keeps what it acknowledged. The rules are those of {@code
 * pulsar_txn_spark/store/redis/durability.py}.
 */
final class ServerCheck {
  private static final Logger log = LoggerFactory.getLogger(ServerCheck.class);
  private static final Set<String> WARNED = ConcurrentHashMap.newKeySet(); // what, of which server
  private static final Pattern VERSION = Pattern.compile("(\\d+)\\.(\\d+)(?:\\.(\\d+))?.*");
  private static final int SERIES = 100; // 7.2 is the series 702
  private static final int MINIMUM_SERIES = 602;
  // First fixed patch level of each series, for CVE-2025-49844. Series above the last one are fixed.
  private static final TreeMap<Integer, Integer> REDIS_FIXED =
      new TreeMap<>(Map.of(602, 20, 702, 11, 704, 6, 800, 4, 802, 2));
  private static final TreeMap<Integer, Integer> VALKEY_FIXED =
      new TreeMap<>(Map.of(702, 11, 800, 6, 801, 4));

  private static final List<Rule> INFO_RULES =
      List.of(
          new Rule(
              "aof_enabled",
              "1",
              "without the append-only file a restart loses everything since the last snapshot",
              "CONFIG SET appendonly yes (and 'appendonly yes' in redis.conf), then wait until INFO has"
                  + " aof_rewrite_in_progress:0 and aof_rewrite_scheduled:0"),
          Rule.of(
              "maxmemory_policy",
              "noeviction",
              "any other policy deletes records when memory gets short",
              "maxmemory-policy noeviction"),
          new Rule(
              "evicted_keys",
              "0",
              "the server has deleted records for lack of memory since it was started",
              "give the server more memory, make sure that no record of this store was among them (a"
                  + " topic's or transaction's data), then CONFIG RESETSTAT"),
          new Rule(
              "aof_last_write_status",
              "ok",
              "the last write to the append-only file failed",
              "see the server's log and the free space on its disk"));
  private static final List<Rule> CONFIG_RULES =
      List.of(
          Rule.of(
              "appendfsync",
              "always",
              "a crash of the server's machine loses writes that were acknowledged",
              "appendfsync always"),
          Rule.of(
              "no-appendfsync-on-rewrite",
              "no",
              "while the append-only file is rewritten, writes are acknowledged before they are on"
                  + " disk",
              "no-appendfsync-on-rewrite no"));

  private final StoreSettings settings;
  private final String server;
  private final Consumer<String> warn;

  /** A value that has to be found under a name, why, and what to do otherwise. */
  private record Rule(String name, String needed, String why, String remedy) {
    static Rule of(String name, String needed, String why, String line) {
      return new Rule(name, needed, why, "CONFIG SET " + line + " (and '" + line + "' in redis.conf)");
    }

    boolean isBrokenBy(Map<String, String> values) {
      return values.containsKey(name) && !values.get(name).equals(needed);
    }

    String finding(Map<String, String> values) {
      return name
          + " is "
          + values.get(name)
          + ", needed is "
          + needed
          + ": "
          + why
          + ". To change it: "
          + remedy;
    }
  }

  /** What a server says of itself; null, or empty, is what it does not let us ask. */
  record Answers(String role, Map<String, String> info, Map<String, String> config) {}

  private ServerCheck(StoreSettings settings, String server, Consumer<String> warn) {
    this.settings = settings;
    this.server = server;
    this.warn = warn;
  }

  /**
   * Checks a server. What is accepted of it is a warning in the log, once.
   *
   * @param jedis a new connection to it
   * @param settings how it is used
   * @param server how it is reached
   * @throws StoreUnavailableException if it must not be asked; says why, and what to do
   */
  static void check(Jedis jedis, StoreSettings settings, String server) {
    judge(ask(jedis), settings, server, WARNED, log::warn);
  }

  /** Judges the answers of a server; of what is accepted, only what was not noted before is told. */
  static void judge(
      Answers answers,
      StoreSettings settings,
      String server,
      Set<String> noted,
      Consumer<String> warn) {
    new ServerCheck(
            settings,
            server,
            warning -> {
              if (noted.add(server + warning.replaceAll("\\d+", "#"))) { // numbers grow
                warn.accept("The metadata store's server " + server + ": " + warning);
              }
            })
        .judge(answers);
  }

  private static Answers ask(Jedis jedis) {
    Pipeline pipeline = jedis.pipelined();
    Response<Object> role = pipeline.sendCommand(new CommandArguments(Protocol.Command.ROLE));
    Response<Object> info = pipeline.sendCommand(new CommandArguments(Protocol.Command.INFO));
    // One pattern for two settings: 6.2 takes only one.
    Response<Object> config =
        pipeline.sendCommand(Protocol.Command.CONFIG, "GET", "*appendfsync*");
    pipeline.sync();
    Map<String, String> values = lines(readable(info));
    String stated =
        readable(role) instanceof List<?> parts
            ? RedisTransactionStore.text(parts.get(0))
            : values.get("role");
    return new Answers(stated, values, pairs(readable(config)));
  }

  /** Gives an answer; null if the user may not ask, or the server knows no such command. */
  private static Object readable(Response<Object> answer) {
    try {
      return answer.get();
    } catch (JedisDataException refused) {
      String message = String.valueOf(refused.getMessage());
      if (message.startsWith("NOPERM") || message.startsWith("ERR")) {
        return null;
      }
      throw refused; // not logged in, or no server that answers now
    }
  }

  static Map<String, String> lines(Object info) {
    Map<String, String> values = new HashMap<>();
    String text = info == null ? "" : RedisTransactionStore.text(info);
    for (String line : text.split("\r?\n")) {
      int colon = line.indexOf(':');
      if (colon > 0 && !line.startsWith("#")) {
        values.put(line.substring(0, colon), line.substring(colon + 1));
      }
    }
    return values;
  }

  private static Map<String, String> pairs(Object config) {
    Map<String, String> values = new HashMap<>();
    List<?> flat = config instanceof List<?> list ? list : List.of();
    for (int i = 0; i + 1 < flat.size(); i += 2) {
      values.put(
          RedisTransactionStore.text(flat.get(i)), RedisTransactionStore.text(flat.get(i + 1)));
    }
    return values;
  }

  private void judge(Answers answers) {
    Map<String, String> info = answers.info;
    String cluster = info.get("cluster_enabled");
    if ("1".equals(cluster) && !settings.cluster()) {
      throw refused(
          "is a node of a Redis Cluster and holds only a part of the keys: write redis+cluster:// or"
              + " rediss+cluster:// in pulsarTxnSparkStoreUrl");
    }
    if ("0".equals(cluster) && settings.cluster()) {
      throw refused(
          "is no node of a Redis Cluster: write redis:// or rediss:// in pulsarTxnSparkStoreUrl");
    }
    if (answers.role != null && !"master".equals(answers.role)) {
      throw refused(
          "has the role "
              + answers.role
              + ", expected master: a replica may lack what was acknowledged. Let"
              + " pulsarTxnSparkStoreUrl name the primary");
    }
    if (!"0".equals(info.getOrDefault("loading", "0"))) {
      throw refused("is still loading its data after a start");
    }
    String version = info.get("redis_version"); // Valkey says with which Redis it is compatible
    if (version != null && series(version) < MINIMUM_SERIES) {
      throw refused(
          "is Redis "
              + version
              + ", needed is 6.2 or newer (or Valkey), for commands that the scripts use");
    }
    judgeDurability(answers);
    if (awaitsFile(info) && !settings.acceptDataLoss()) {
      throw refused(
          "is still writing its append-only file for the first time: a restart would lose what it"
              + " acknowledges. To go on, wait until INFO has aof_rewrite_in_progress:0 and"
              + " aof_rewrite_scheduled:0");
    }
    warnOfHole(info);
  }

  /** Tells whether the append-only file may be on its way: no rewrite was done, and one is due. */
  private static boolean awaitsFile(Map<String, String> info) {
    return "0".equals(info.get("aof_base_size"))
        && Stream.of("aof_rewrite_in_progress", "aof_rewrite_scheduled")
            .anyMatch(name -> !"0".equals(info.getOrDefault(name, "0")));
  }

  private void judgeDurability(Answers answers) {
    List<String> findings = new ArrayList<>();
    INFO_RULES.stream()
        .filter(rule -> rule.isBrokenBy(answers.info))
        .forEach(rule -> findings.add(rule.finding(answers.info)));
    CONFIG_RULES.stream()
        .filter(rule -> rule.isBrokenBy(answers.config))
        .forEach(rule -> findings.add(rule.finding(answers.config)));
    List<String> unread =
        Stream.concat(
                INFO_RULES.stream().map(Rule::name).filter(name -> !answers.info.containsKey(name)),
                CONFIG_RULES.stream()
                    .map(Rule::name)
                    .filter(name -> !answers.config.containsKey(name)))
            .toList();
    if (!unread.isEmpty() && !settings.assumeDurable()) {
      findings.add(
          String.join(", ", unread)
              + " could not be read. Allow it (ACL SETUSER <user> +info +config|get +role), or, if you"
              + " know that the server has appendonly yes, appendfsync always,"
              + " no-appendfsync-on-rewrite no and maxmemory-policy noeviction, vouch for it with"
              + " pulsarTxnSparkStoreAssumeDurable=true");
    }
    if (findings.isEmpty()) {
      return;
    }
    if (!settings.acceptDataLoss()) {
      throw refused(
          "may lose what it has acknowledged: "
              + String.join("; ", findings)
              + ". To go on in spite of that risk, set pulsarTxnSparkStoreAcceptDataLoss=true: it"
              + " only warns");
    }
    findings.forEach(finding -> warn.accept("accepted, although it may lose data: " + finding));
  }

  private void warnOfHole(Map<String, String> info) {
    boolean valkey = info.containsKey("valkey_version");
    String version = info.get(valkey ? "valkey_version" : "redis_version");
    if (version == null) {
      return;
    }
    TreeMap<Integer, Integer> fixed = valkey ? VALKEY_FIXED : REDIS_FIXED;
    int series = series(version);
    Integer patch = fixed.get(series);
    if (patch == null ? series < fixed.lastKey() : patchLevel(version) < patch) {
      warn.accept(
          (valkey ? "valkey " : "redis ")
              + version
              + " has a known hole in its Lua engine (CVE-2025-49844): a user that may run scripts may"
              + " run code on the server. Upgrade it");
    }
  }

  /** Gives major and minor number; of what is no version, a series that is newer than all. */
  private static int series(String version) {
    Matcher parts = VERSION.matcher(version);
    return parts.matches()
        ? Integer.parseInt(parts.group(1)) * SERIES + Integer.parseInt(parts.group(2))
        : Integer.MAX_VALUE;
  }

  private static int patchLevel(String version) {
    Matcher parts = VERSION.matcher(version);
    return parts.matches() && parts.group(3) != null ? Integer.parseInt(parts.group(3)) : 0;
  }

  private StoreUnavailableException refused(String why) {
    return new StoreUnavailableException("the metadata store's server " + server + " " + why, null);
  }
}
