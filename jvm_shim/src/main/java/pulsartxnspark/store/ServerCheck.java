package pulsartxnspark.store;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisDataException;

/** Whether a server is one that may be asked: what it says of itself on a new connection. */
final class ServerCheck {
  private ServerCheck() {}

  /**
   * Checks a server.
   *
   * @param jedis a new connection to it
   * @param settings how it is used
   * @param server how it is reached
   * @throws StoreUnavailableException if it must not be asked; says why
   */
  static void check(Jedis jedis, StoreSettings settings, String server) {
    Map<String, String> info = info(jedis);
    boolean cluster = "1".equals(info.get("cluster_enabled"));
    if (cluster && !settings.cluster()) {
      throw refused(
          server,
          "is a node of a Redis Cluster and holds only a part of the keys: write redis+cluster:// or"
              + " rediss+cluster:// in pulsarTxnSparkStoreUrl");
    }
    if (!cluster && settings.cluster()) {
      throw refused(
          server,
          "is no node of a Redis Cluster: write redis:// or rediss:// in pulsarTxnSparkStoreUrl");
    }
    String role = RedisTransactionStore.text(jedis.role().get(0));
    if (!"master".equals(role)) {
      throw refused(
          server, "has the role " + role + ", expected master: a replica may lack what was acknowledged");
    }
    if (!"0".equals(info.getOrDefault("loading", "0"))) {
      throw refused(server, "is still loading its data after a start");
    }
  }

  private static Map<String, String> info(Jedis jedis) {
    Map<String, String> values = new HashMap<>();
    for (String line : jedis.info().split("\r?\n")) {
      int colon = line.indexOf(':');
      if (colon > 0 && !line.startsWith("#")) {
        values.put(line.substring(0, colon), line.substring(colon + 1));
      }
    }
    return values;
  }

  private static StoreUnavailableException refused(String server, String why) {
    return new StoreUnavailableException("the metadata store's server " + server + " " + why, null);
  }
}
