package pulsartxnspark.store;

import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import javax.net.ssl.SSLParameters;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisAskDataException;
import redis.clients.jedis.exceptions.JedisClusterException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.util.JedisClusterCRC16;

/**
 * Connections to the metadata store: to its one server, or to each primary of a cluster. Each new one
 * is checked before its first use: a replica may lag, so that only a primary is asked anything. A
 * primary that became a replica refuses every script ({@code _prelude.lua}), and loses its connections:
 * the next ones are checked anew.
 *
 * <p>Nothing is repeated here that may have been run. This is why Jedis's own client for clusters is
 * not used: it sends a command again after a lost reply, and connects without the check. It also
 * follows ASK. The target of ASK takes keys that have not arrived there yet for absent, and the
 * scripts read keys that they do not declare. A writer that was dropped would seem to have won. So a
 * slot on its way does not answer until it has arrived. MOVED is followed: such a request was not run.
 */
public final class RedisConnections implements AutoCloseable {
  private static final Logger log = LoggerFactory.getLogger(RedisConnections.class);
  /** So often one request is redirected: once, or a few times while slots are moving. */
  static final int MOST_REDIRECTIONS = 5;

  private final StoreSettings settings;
  private final ClusterSlots slots; // null: one server has everything
  private final Map<HostAndPort, Server> servers = new ConcurrentHashMap<>();
  private final ScheduledExecutorService alarms;
  private final ExecutorService background; // asks a cluster anew for whoever does not wait for it
  private volatile boolean closed;

  /** What there is for each server. */
  private record Server(LentConnections lent, Exchange exchange) {}

  /**
   * Connects to nothing yet.
   *
   * @param settings where to, and as whom
   * @throws IllegalArgumentException if a file of TLS does not hold what it should
   */
  public RedisConnections(StoreSettings settings) {
    this(settings, oneThread("alarms"));
  }

  /** Connects to nothing yet; {@code alarms} tell when a time is over. */
  RedisConnections(StoreSettings settings, ScheduledExecutorService alarms) {
    this.settings = settings;
    this.alarms = alarms;
    this.background = settings.cluster() ? oneThread("slots") : null;
    this.slots =
        settings.cluster() ? new ClusterSlots(settings.servers(), this::slotsAsToldBy) : null;
    config(settings, settings.timeoutMs()); // reads the files
  }

  private static ScheduledExecutorService oneThread(String name) {
    ScheduledThreadPoolExecutor executor =
        new ScheduledThreadPoolExecutor(
            1,
            task -> {
              Thread thread = new Thread(task, "pulsar-txn-spark-store-" + name);
              thread.setDaemon(true);
              return thread;
            },
            new ThreadPoolExecutor.DiscardPolicy()); // after the end
    executor.setRemoveOnCancelPolicy(true);
    return executor;
  }

  /** Runs something when the time of a request is over; cancel it before if need be. */
  Future<?> whenTimeIsOver(Runnable action) {
    return alarms.schedule(action, settings.timeoutMs(), TimeUnit.MILLISECONDS);
  }

  /** Begins the time of a request. */
  private Deadline deadline() {
    return Deadline.in(settings.timeoutMs(), Deadline.CLOCK_MS);
  }

  /** In a cluster, half of the time is for whoever has the keys if this server does not answer. */
  private Deadline untilAnotherIsAsked(Deadline deadline) {
    return slots == null ? deadline : deadline.share(2);
  }

  @SuppressWarnings("unchecked")
  private List<Object> slotsAsToldBy(HostAndPort server, Deadline deadline) {
    try (TimeLimit limit = new TimeLimit(alarms, deadline);
        Jedis jedis =
            new Jedis(() -> limit.limit(socket(server, deadline)), login(settings).build())) {
      return (List<Object>) jedis.sendCommand(Protocol.Command.CLUSTER, "SLOTS");
    }
  }

  private Server server(HostAndPort address) {
    if (closed) {
      throw new StoreUnavailableException("the connection to the metadata store is closed", null);
    }
    return servers.computeIfAbsent(
        address,
        of ->
            new Server(
                new LentConnections(until -> opened(address, until)), new Exchange(this, address)));
  }

  /** Tells whether one server has all keys, so that one script may touch any of them. */
  boolean oneServer() {
    return slots == null;
  }

  /**
   * Lends a connection to the server of a key.
   *
   * @param key whatever is sent touches only its slot
   * @param use what to do with it; done again at another server if the first command was redirected
   * @param <T> of the result
   * @return the result of {@code use}
   * @throws StoreUnavailableException if the store does not answer within its timeout, however many
   *     servers are asked; what was sent may have been run
   */
  public <T> T with(byte[] key, Function<Jedis, T> use) {
    Deadline deadline = deadline();
    for (int redirected = 0; redirected <= MOST_REDIRECTIONS; redirected++) {
      if (deadline.isOver()) {
        throw late();
      }
      ClusterSlots.View view = slots == null ? null : slots.view();
      HostAndPort owner = owner(key, deadline);
      LentConnections lent = server(owner).lent;
      Own own;
      try {
        own = lent.take(untilAnotherIsAsked(deadline));
      } catch (JedisException | StoreUnavailableException error) {
        // Nothing was sent: whoever has the slot now may be asked.
        if (slots == null || owner.equals(refresh(view, owner, deadline).owner(slot(key)))) {
          throw unavailable(error);
        }
        continue;
      }
      TimeLimit limit = new TimeLimit(alarms, deadline);
      try (limit) {
        limit.limit(own.socket());
        return asPrimary(own.jedis(), use);
      } catch (JedisMovedDataException moved) {
        noteMoved(moved, owner);
      } catch (JedisException error) {
        forgetIdle(error, owner);
        refreshInBackground(error, view, owner); // the answer is known
        throw limit.isOver() ? late() : unavailable(error);
      } finally {
        lent.giveBack(own, !limit.isOver() && !own.jedis().isBroken());
      }
    }
    throw redirectedTooOften();
  }

  private static <T> T asPrimary(Jedis jedis, Function<Jedis, T> use) {
    try {
      return use.apply(jedis);
    } catch (JedisDataException error) {
      if (isDemoted(error)) {
        jedis.getConnection().setBroken(); // else the pool would keep it
        throw demoted(error);
      }
      throw error;
    }
  }

  /** Tells whether a server says that it is no primary any more, or has data to load first. */
  static boolean isDemoted(JedisException error) {
    String message = String.valueOf(error.getMessage());
    // 6.2 puts what a script met behind words of its own.
    return message.contains("READONLY ")
        || message.startsWith("MASTERDOWN ")
        || message.startsWith("LOADING ");
  }

  /** Makes a lost connection of what {@link #isDemoted} tells: the next one is checked. */
  static JedisConnectionException demoted(JedisException error) {
    return new JedisConnectionException(
        "the server is no primary now: " + error.getMessage(), error);
  }

  /**
   * Sends a script, together with those of other callers to the same server; returns at once.
   *
   * @param script what to run
   * @param keys of the script, all of one slot in a cluster
   * @param args of the script
   * @return its reply; or a {@link StoreUnavailableException}, after which it may have run or not. It
   *     comes within the store's timeout, and what has not been sent by then never is
   */
  CompletableFuture<List<Object>> send(
      Scripts.Script script, List<byte[]> keys, List<byte[]> args) {
    Exchange.Request request = new Exchange.Request(script, keys, args);
    route(request);
    CompletableFuture<List<Object>> reply = request.reply();
    if (!reply.isDone()) {
      Future<?> alarm = whenTimeIsOver(() -> reply.completeExceptionally(late()));
      reply.whenComplete((done, lost) -> alarm.cancel(false));
    }
    return reply;
  }

  private StoreUnavailableException late() {
    return new StoreUnavailableException(
        "no answer from the metadata store at "
            + settings
            + " within "
            + settings.timeoutMs()
            + " ms (pulsarTxnSparkStoreTimeoutMs). Check that the server runs, and how fast its disk"
            + " syncs",
        null);
  }

  /** Gives a request to the server that has its keys now; fails it if there is none. */
  void route(Exchange.Request request) {
    HostAndPort owner =
        slots == null ? settings.servers().get(0) : slots.view().owner(slot(request.keys().get(0)));
    try {
      if (owner == null) {
        throw noOwner(slot(request.keys().get(0)));
      }
      server(owner).exchange.send(request);
    } catch (StoreUnavailableException error) {
      request.reply().completeExceptionally(error);
    }
  }

  /** Tells whether a server still is the one of a request's keys. */
  boolean isOf(Exchange.Request request, HostAndPort server) {
    return slots == null || server.equals(slots.view().owner(slot(request.keys().get(0))));
  }

  /** Notes where a slot has gone: the request that was redirected was not run. */
  void noteMoved(JedisMovedDataException moved, HostAndPort source) {
    slots.moved(moved.getSlot(), moved.getTargetNode(), source);
  }

  /** Asks a cluster anew for its slots, if an error may mean that they have moved. */
  void noteLost(JedisException error, ClusterSlots.View seen, HostAndPort server) {
    forgetIdle(error, server);
    if (mayHaveMoved(error)) {
      refresh(seen, server, deadline());
    }
  }

  private void forgetIdle(JedisException error, HostAndPort server) {
    Server known = servers.get(server);
    if (error instanceof JedisConnectionException && known != null) {
      known.lent.clear(); // what is idle was lost with it
    }
  }

  private boolean mayHaveMoved(JedisException error) {
    return slots != null
        && (error instanceof JedisConnectionException || error instanceof JedisClusterException);
  }

  private void refreshInBackground(
      JedisException error, ClusterSlots.View seen, HostAndPort server) {
    if (mayHaveMoved(error)) {
      background.execute(() -> refresh(seen, server, deadline()));
    }
  }

  /** Gives what is known of a cluster's slots; null for one server. */
  ClusterSlots.View view() {
    return slots == null ? null : slots.view();
  }

  private ClusterSlots.View refresh(
      ClusterSlots.View seen, HostAndPort suspect, Deadline deadline) {
    ClusterSlots.View now = slots.refresh(seen, suspect, untilAnotherIsAsked(deadline));
    Set<HostAndPort> left = now.allOwners();
    for (HostAndPort address : List.copyOf(servers.keySet())) {
      Server gone = left.contains(address) ? null : servers.remove(address);
      if (gone != null) {
        gone.lent.close();
        gone.exchange.end().forEach(this::route);
      }
    }
    return now;
  }

  private HostAndPort owner(byte[] key, Deadline deadline) {
    if (slots == null) {
      return settings.servers().get(0);
    }
    ClusterSlots.View seen = slots.view();
    HostAndPort owner = seen.owner(slot(key));
    if (owner == null) {
      owner = refresh(seen, null, deadline).owner(slot(key));
    }
    if (owner == null) {
      throw noOwner(slot(key));
    }
    return owner;
  }

  private static int slot(byte[] key) {
    return JedisClusterCRC16.getSlot(key);
  }

  /**
   * Tells which keys can be read by one command.
   *
   * @param key any key
   * @return the same number for keys that can
   */
  int group(String key) {
    return slots == null ? 0 : JedisClusterCRC16.getSlot(key);
  }

  /**
   * Tells how long a blocking read of one of {@link #group}'s groups may wait.
   *
   * @param shortMs for groups that others may join, in milliseconds
   * @return milliseconds; in a cluster more, as there are many reads, and hardly anybody joins
   */
  int blockMs(int shortMs) {
    return slots == null ? shortMs : Math.max(1, settings.timeoutMs() / 2);
  }

  /**
   * Opens a connection of the caller's own, for blocking reads.
   *
   * @param key which the reads touch
   * @return a connection that was checked; the caller closes it
   * @throws StoreUnavailableException if the store does not answer
   */
  Jedis open(byte[] key) {
    Deadline deadline = deadline();
    ClusterSlots.View seen = view();
    HostAndPort owner = owner(key, deadline);
    try {
      return open(owner, untilAnotherIsAsked(deadline)).jedis();
    } catch (StoreUnavailableException error) {
      if (slots != null) {
        refresh(seen, owner, deadline);
      }
      throw error;
    }
  }

  /** A connection of one thread's own, which another one may cut off meanwhile. */
  record Own(Jedis jedis, Socket socket) implements AutoCloseable {
    /** Lets whatever reads from it or writes to it fail; does not wait. */
    void cut() {
      TimeLimit.cut(socket);
    }

    @Override
    public void close() {
      try {
        jedis.close();
      } catch (JedisException error) { // what it has not sent cannot be sent any more
        log.debug("A connection to the metadata store is closed", error);
      }
    }
  }

  /** Opens a connection to a server, as the other one does. */
  Own open(HostAndPort server) {
    return open(server, deadline());
  }

  private Own open(HostAndPort server, Deadline deadline) {
    try {
      return opened(server, deadline);
    } catch (JedisException error) {
      throw unavailable(error);
    }
  }

  /** Opens a connection, and checks the server. Jedis would open a closed one again, and check nothing. */
  private Own opened(HostAndPort server, Deadline deadline) {
    AtomicReference<Socket> made = new AtomicReference<>();
    TimeLimit limit = new TimeLimit(alarms, deadline);
    JedisSocketFactory once =
        () -> {
          if (made.get() != null) {
            throw new JedisConnectionException("the connection was cut off");
          }
          made.set(limit.limit(socket(server, deadline)));
          return made.get();
        };
    try (limit) {
      Own own = new Own(new Jedis(once, login(settings).build()), made.get());
      try {
        ServerCheck.check(own.jedis(), settings, server.toString());
      } catch (JedisException | StoreException error) {
        own.close();
        throw error;
      }
      return own;
    }
  }

  /** Has a cluster's slots asked for anew, after a read of the caller's own connection has failed. */
  void suspect(ClusterSlots.View seen) {
    if (slots != null) {
      refresh(seen, null, deadline());
    }
  }

  private StoreUnavailableException noOwner(int slot) {
    RuntimeException failure = slots.view().failure();
    return new StoreUnavailableException(
        "no server of the metadata store at "
            + settings
            + " is known to have slot "
            + slot
            + (failure == null ? "" : " (" + failure.getMessage() + ")")
            + ". Check the cluster's state (CLUSTER INFO), that its servers can be reached, that the"
            + " user may ask for CLUSTER SLOTS, and the settings pulsarTxnSparkStore*",
        failure);
  }

  StoreUnavailableException redirectedTooOften() {
    return new StoreUnavailableException(
        "the servers of the metadata store at " + settings + " name each other for a slot", null);
  }

  StoreUnavailableException unavailable(RuntimeException error) {
    if (error instanceof StoreUnavailableException own) {
      return own;
    }
    Throwable cause = error;
    while (cause.getCause() != null && cause.getCause() != cause) {
      cause = cause.getCause();
    }
    if (cause instanceof JedisDataException refused && isDemoted(refused)) {
      return new StoreUnavailableException(
          "a server of the metadata store at "
              + settings
              + " is no primary any more, or loads its data ("
              + cause.getMessage()
              + "): what it has may be old, and was not used. Let pulsarTxnSparkStoreUrl lead to the"
              + " primary",
          error);
    }
    if (String.valueOf(cause.getMessage()).contains("OOM command not allowed")) {
      return new StoreUnavailableException(
          "the metadata store at "
              + settings
              + " is full: its memory has reached 'maxmemory' (OOM), so it begins nothing new. Open"
              + " transactions still end. Run 'pulsar-txn sweep', delete topics or subscriptions that"
              + " nobody needs, or raise the limit (CONFIG SET maxmemory)",
          error);
    }
    if (cause instanceof JedisAskDataException) {
      return new StoreUnavailableException(
          "a slot of the metadata store at "
              + settings
              + " is being moved to another server ("
              + cause.getMessage()
              + "): it answers when it has arrived",
          error);
    }
    return new StoreUnavailableException(
        "no answer from the metadata store at "
            + settings
            + " ("
            + cause.getClass().getSimpleName()
            + ": "
            + cause.getMessage()
            + "). Check that the server runs and can be reached, and the settings pulsarTxnSparkStore*",
        error);
  }

  @Override
  public void close() {
    closed = true;
    alarms.shutdownNow();
    if (background != null) {
      background.shutdownNow();
    }
    for (Server server : new ArrayList<>(servers.values())) {
      server.exchange.close();
      server.lent.close();
    }
  }

  /** Reads the files of TLS anew: certificates are renewed while a broker runs. */
  private Socket socket(HostAndPort server, Deadline deadline) {
    try {
      int withinMs = Math.toIntExact(Math.max(1, deadline.leftMs())); // 0 would be for ever
      return new DefaultJedisSocketFactory(server, config(settings, withinMs)).createSocket();
    } catch (IllegalArgumentException error) {
      throw new JedisConnectionException(error.getMessage(), error);
    }
  }

  private static DefaultJedisClientConfig.Builder login(StoreSettings settings) {
    return DefaultJedisClientConfig.builder()
        .connectionTimeoutMillis(settings.timeoutMs())
        .socketTimeoutMillis(settings.timeoutMs())
        .blockingSocketTimeoutMillis(settings.timeoutMs())
        .database(settings.database())
        .user(settings.username())
        .password(settings.password());
  }

  private static JedisClientConfig config(StoreSettings settings, int connectWithinMs) {
    DefaultJedisClientConfig.Builder builder =
        login(settings)
            .connectionTimeoutMillis(connectWithinMs)
            .ssl(settings.tls() != null);
    if (settings.tls() != null) {
      SSLParameters parameters = new SSLParameters();
      if (settings.tls().verifyHost()) {
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
      }
      builder.sslParameters(parameters);
      builder.sslSocketFactory(StoreTls.context(settings.tls()).getSocketFactory());
    }
    return builder.build();
  }
}
