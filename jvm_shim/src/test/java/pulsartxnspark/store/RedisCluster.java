package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.args.Rawable;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisClusterCRC16;

/** A real Redis Cluster of the tests' own: three primaries on the loopback address. */
public final class RedisCluster extends RedisServer {
  /** First slots of the primaries: {seg:t}; {meta} and {seg:s}; {tc0} and {tc1}. */
  private static final int[] FROM = {0, 9_001, 11_451};

  private static final int SLOTS = 16_384;
  private static final int NODE_TIMEOUT_MS = 2_000;
  private static final long PATIENCE_MS = 60_000;

  private final List<RedisServer> nodes;

  /** Starts the servers, and lets them meet. */
  public RedisCluster() {
    this(List.of(node(), node(), node()));
    for (int i = 0; i < nodes.size(); i++) {
      int to = i + 1 < FROM.length ? FROM[i + 1] : SLOTS;
      int from = FROM[i];
      int epoch = i + 1;
      at(
          nodes.get(i),
          jedis -> {
            int[] slots = IntStream.range(from, to).toArray();
            jedis.clusterAddSlots(slots);
            command(jedis, "SET-CONFIG-EPOCH", "" + epoch);
          });
    }
    nodes.subList(1, nodes.size()).forEach(other -> meet(nodes.get(0), other));
    awaitOk(nodes.size());
  }

  private RedisCluster(List<RedisServer> nodes) {
    super(nodes);
    this.nodes = new ArrayList<>(nodes);
  }

  private static RedisServer node() {
    return new RedisServer(
        "--appendonly", "yes", "--appendfsync", "no", "--cluster-require-full-coverage", "no",
        "--cluster-enabled", "yes", "--cluster-node-timeout", "" + NODE_TIMEOUT_MS,
        "--cluster-replica-validity-factor", "0");
  }

  private static void meet(RedisServer one, RedisServer other) {
    at(one, jedis -> jedis.clusterMeet("127.0.0.1", other.port()));
  }

  /** What to do at a server. */
  private interface Work {
    void with(Jedis jedis);
  }

  private static void at(RedisServer node, Work work) {
    try (Jedis jedis = node.client()) {
      work.with(jedis);
    }
  }

  private static String command(Jedis jedis, String... arguments) {
    Object reply = jedis.sendCommand(Protocol.Command.CLUSTER, arguments);
    return reply instanceof byte[] bytes ? new String(bytes) : String.valueOf(reply);
  }

  private void awaitOk(int known) {
    for (RedisServer node : nodes) {
      await(
          () -> {
            String[] info = new String[1];
            at(node, jedis -> info[0] = command(jedis, "INFO"));
            // It is "ok" without full coverage, too: then it refuses a slot whose server it does not know.
            return info[0].contains("cluster_state:ok")
                && info[0].contains("cluster_slots_assigned:" + SLOTS)
                && info[0].contains("cluster_known_nodes:" + known);
          });
    }
  }

  /** Waits until something is so; servers tell each other in their own time. */
  public void await(BooleanSupplier condition) {
    long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > deadline) {
        throw new AssertionError("the cluster does not settle: " + states());
      }
      LockSupport.parkNanos(10_000_000); // nobody tells when they have; they need the processor
    }
  }

  private String states() {
    StringBuilder all = new StringBuilder();
    for (RedisServer node : nodes) {
      try {
        at(node, jedis -> all.append(command(jedis, "NODES")).append(jedis.info("replication")));
      } catch (JedisException error) {
        all.append(node.port()).append(' ').append(error.getMessage()).append('\n');
      }
    }
    return all.toString();
  }

  /** Gives the server that has a slot at the beginning. */
  public RedisServer nodeOf(String key) {
    int slot = JedisClusterCRC16.getSlot(key);
    int found = 0;
    for (int i = 0; i < FROM.length; i++) {
      found = slot >= FROM[i] ? i : found;
    }
    return nodes.get(found);
  }

  /** Gives all servers. */
  public List<RedisServer> nodes() {
    return List.copyOf(nodes);
  }

  /** Lets the servers name other ports than their own to whoever asks for slots; returns when all do. */
  public void announce(List<Integer> ports) {
    for (int i = 0; i < ports.size(); i++) {
      nodes.get(i).restart("--cluster-announce-port", "" + ports.get(i));
    }
    for (RedisServer node : nodes) {
      await(
          () -> {
            String[] known = new String[1];
            at(node, jedis -> known[0] = command(jedis, "NODES"));
            return ports.stream().allMatch(port -> known[0].contains(":" + port + "@"));
          });
    }
    awaitOk(nodes.size());
  }

  /** Waits until a replica has all that its primary has answered. */
  public void awaitReplica(RedisServer primary, String key) {
    at(
        primary,
        jedis -> {
          jedis.incr(key); // it waits for what its own connection has written, and all before
          if (jedis.waitReplicas(1, PATIENCE_MS) < 1) {
            throw new AssertionError("the replica does not follow");
          }
        });
  }

  /** Adds a replica of one of the servers, which has all that it has. */
  public RedisServer addReplica(RedisServer primary) {
    RedisServer replica = node();
    meet(primary, replica);
    nodes.add(replica);
    awaitOk(nodes.size());
    at(replica, jedis -> command(jedis, "REPLICATE", idOf(primary)));
    // Who does not know it as a replica of this primary does not vote for it.
    String known = idOf(replica) + " [^\n]* [a-z,]*slave " + idOf(primary);
    for (RedisServer node : nodes) {
      await(
          () -> {
            boolean[] found = new boolean[1];
            at(node, jedis -> found[0] = Pattern.compile(known).matcher(command(jedis, "NODES")).find());
            return found[0];
          });
    }
    await(
        () -> {
          boolean[] linked = new boolean[1];
          at(replica, jedis -> linked[0] = jedis.info("replication").contains("link_status:up"));
          return linked[0];
        });
    return replica;
  }

  /** Lets a replica take its primary's place. */
  public void promote(RedisServer replica, String... how) {
    List<String> arguments = new ArrayList<>(List.of("FAILOVER"));
    arguments.addAll(List.of(how));
    at(replica, jedis -> command(jedis, arguments.toArray(String[]::new)));
    await(
        () -> {
          boolean[] promoted = new boolean[1];
          at(replica, jedis -> promoted[0] = "master".equals(jedis.role().get(0)));
          return promoted[0];
        });
  }

  private static String idOf(RedisServer node) {
    String[] id = new String[1];
    at(node, jedis -> id[0] = command(jedis, "MYID"));
    return id[0];
  }

  /** Begins to move a slot: keys that are not there are at the target from now on. */
  public void beginToMove(String key, RedisServer from, RedisServer to) {
    String slot = "" + JedisClusterCRC16.getSlot(key);
    at(to, jedis -> command(jedis, "SETSLOT", slot, "IMPORTING", idOf(from)));
    at(from, jedis -> command(jedis, "SETSLOT", slot, "MIGRATING", idOf(to)));
  }

  /** Moves keys of a slot that is being moved. */
  public void moveKeys(RedisServer from, RedisServer to, List<String> keys) {
    at(
        from,
        jedis ->
            keys.forEach(key -> jedis.migrate("127.0.0.1", to.port(), key, 0, (int) PATIENCE_MS)));
  }

  /** Lists the keys of a slot. */
  public List<String> keysOf(String key, RedisServer node) {
    List<String> keys = new ArrayList<>();
    at(node, jedis -> keys.addAll(jedis.clusterGetKeysInSlot(JedisClusterCRC16.getSlot(key), 1_000)));
    return keys;
  }

  /** Ends the move of a slot, all of whose keys have arrived. */
  public void endMove(String key, RedisServer from, RedisServer to) {
    String slot = "" + JedisClusterCRC16.getSlot(key);
    String owner = idOf(to);
    at(to, jedis -> command(jedis, "SETSLOT", slot, "NODE", owner));
    at(from, jedis -> command(jedis, "SETSLOT", slot, "NODE", owner));
  }

  /** Starts the servers again. They have kept all that they had answered. */
  @Override
  public void start() {
    nodes.forEach(RedisServer::start);
    awaitOk(nodes.size());
  }

  @Override
  public void stop() {
    nodes.forEach(RedisServer::stop);
  }

  /** Opens a connection that sends each command to the server of its first key. */
  @Override
  public Jedis client() {
    return new Jedis(new Routed());
  }

  @Override
  public StoreSettings settings() {
    return StoreSettings.of("redis+cluster://127.0.0.1:" + port(), "", "", "", 5_000)
        .accepting(true, false);
  }

  @Override
  public void close() {
    nodes.forEach(RedisServer::close);
  }

  private final class Routed extends Connection {
    private Jedis last;

    @Override
    public void sendCommand(CommandArguments arguments) {
      close();
      if (arguments.getCommand() == Protocol.Command.FLUSHALL) {
        nodes.subList(1, nodes.size()).forEach(node -> at(node, Jedis::flushAll));
        last = nodes.get(0).client();
      } else {
        Iterator<Rawable> parts = arguments.iterator();
        parts.next(); // the command
        last = nodeOf(new String(parts.next().getRaw())).client();
      }
      last.getConnection().sendCommand(arguments);
    }

    @Override
    protected void flush() {}

    @Override
    protected Object readProtocolWithCheckingBroken() {
      return last.getConnection().getOne();
    }

    @Override
    public void close() {
      if (last != null) {
        last.close();
        last = null;
      }
    }
  }
}
