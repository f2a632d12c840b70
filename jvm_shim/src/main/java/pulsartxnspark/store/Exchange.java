package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.BiFunction;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisClusterException;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/**
 * Sends whatever waits for a server in one go. Requests of many callers share one round trip, and the
 * server syncs its log once for all of them. Nothing waits for company: a request goes out as soon as
 * a connection is free. Requests that wait at the same time may be run in any order.
 *
 * <p>A request without an answer may have taken effect, or may yet: its caller asks again. One that has
 * its answer already, as its time was over while it waited, is not sent. A round trip that takes longer
 * than the store's timeout loses its connection: a server that stands still would keep it for good.
 */
final class Exchange implements AutoCloseable {
  private static final Logger log = LoggerFactory.getLogger(Exchange.class);
  private static final int CONNECTIONS = 2; // the next requests go out while replies are read
  private static final int MOST_AT_ONCE = 200; // the server runs them without a break
  private static final int MOST_WAITING = 10_000;

  private final RedisConnections connections;
  private final HostAndPort server;
  private final BlockingQueue<Request> waiting = new LinkedBlockingQueue<>(MOST_WAITING);
  private final List<Thread> threads = new ArrayList<>();
  private volatile boolean closed;

  /** A script that is to be run, and whoever waits for its reply. */
  static final class Request {
    private final Scripts.Script script;
    private final List<byte[]> keys;
    private final List<byte[]> args;
    private final CompletableFuture<List<Object>> reply = new CompletableFuture<>();
    private int redirected; // by one thread at a time

    Request(Scripts.Script script, List<byte[]> keys, List<byte[]> args) {
      this.script = script;
      this.keys = keys;
      this.args = args;
    }

    List<byte[]> keys() {
      return keys;
    }

    CompletableFuture<List<Object>> reply() {
      return reply;
    }

    /** Tells whether its caller waits no longer. */
    boolean isOver() {
      return reply.isDone();
    }
  }

  /**
   * Makes one that connects to nothing yet.
   *
   * @param connections to the store
   * @param server whose requests it sends
   */
  Exchange(RedisConnections connections, HostAndPort server) {
    this.connections = connections;
    this.server = server;
  }

  /**
   * Sends a script; returns at once.
   *
   * @param request gets the reply; or a {@link StoreUnavailableException}, after which it may have run
   *     or not
   */
  void send(Request request) {
    begin();
    if (!waiting.offer(request)) {
      request.reply.completeExceptionally(
          new StoreUnavailableException(
              "the metadata store does not answer as fast as it is asked", null));
    }
    if (closed) {
      refuseWaiting();
    }
  }

  private synchronized void begin() {
    while (!closed && threads.size() < CONNECTIONS) {
      Thread thread = new Thread(this::run, "pulsar-txn-spark-exchange-" + threads.size());
      thread.setDaemon(true);
      thread.start();
      threads.add(thread); // if it could be started
    }
  }

  private void run() {
    RedisConnections.Own own = null;
    while (!closed) {
      List<Request> some = List.of();
      ClusterSlots.View view = null;
      try {
        some = next();
        view = connections.view();
        if (own == null && !some.isEmpty()) {
          own = connections.open(server);
        }
        if (!some.isEmpty()) {
          exchangeInTime(own, some);
        }
      } catch (InterruptedException closing) {
        log.debug("The connection to the metadata store is closed");
      } catch (RuntimeException | Error error) {
        close(own);
        own = null;
        fail(some, error, view);
      }
    }
    close(own);
  }

  private static void close(RedisConnections.Own own) {
    if (own != null) {
      own.close();
    }
  }

  /** Whatever it is, nobody may wait for ever, and the next requests go out. */
  private void fail(List<Request> some, Throwable error, ClusterSlots.View view) {
    try {
      Throwable unavailable =
          error instanceof JedisException lost ? connections.unavailable(lost) : error;
      some.forEach(request -> request.reply.completeExceptionally(unavailable));
      connections.noteLost(lostConnection(error), view, server);
    } catch (RuntimeException | Error odd) {
      log.warn("The metadata store's servers are not asked anew for their slots", odd);
    }
  }

  /**
   * Waits for requests. Those whose time is over meanwhile are left out; those whose keys have gone to
   * another server are sent there.
   */
  private List<Request> next() throws InterruptedException {
    List<Request> some = new ArrayList<>(List.of(waiting.take()));
    waiting.drainTo(some, MOST_AT_ONCE - 1);
    some.removeIf(Request::isOver);
    List<Request> elsewhere =
        some.stream().filter(request -> !connections.isOf(request, server)).toList();
    some.removeAll(elsewhere);
    elsewhere.forEach(connections::route);
    return some;
  }

  private static JedisException lostConnection(Throwable error) {
    return error instanceof JedisException lost ? lost : new JedisConnectionException(error);
  }

  private void exchangeInTime(RedisConnections.Own own, List<Request> some) {
    // A read gives up by itself. A write does not, and many slow replies take longer than one.
    Future<?> alarm = connections.whenTimeIsOver(own::cut);
    try {
      exchange(own.jedis(), some);
    } finally {
      alarm.cancel(false);
    }
  }

  private void exchange(Jedis jedis, List<Request> some) {
    List<Request> unknown =
        answer(
            some,
            sent(
                jedis,
                some,
                (pipeline, request) ->
                    pipeline.evalsha(Scripts.bytes(request.script.sha1()), request.keys, request.args)));
    if (!unknown.isEmpty()) {
      answer(
          unknown,
          sent(
              jedis,
              unknown,
              (pipeline, request) ->
                  pipeline.eval(Scripts.bytes(request.script.text()), request.keys, request.args)));
    }
  }

  private static List<Response<Object>> sent(
      Jedis jedis,
      List<Request> some,
      BiFunction<Pipeline, Request, Response<Object>> send) {
    Pipeline pipeline = jedis.pipelined();
    List<Response<Object>> replies = some.stream().map(request -> send.apply(pipeline, request)).toList();
    pipeline.sync();
    return replies;
  }

  /**
   * Gives the callers their replies; returns those of which the server has no script. A server that is
   * no primary any more is a lost connection.
   */
  private List<Request> answer(List<Request> some, List<Response<Object>> replies) {
    List<Request> unknown = new ArrayList<>();
    JedisException demoted = null;
    ClusterSlots.View view = connections.view();
    for (int i = 0; i < some.size(); i++) {
      try {
        some.get(i).reply.complete(new ArrayList<>((List<?>) replies.get(i).get()));
      } catch (JedisNoScriptException noScript) {
        unknown.add(some.get(i));
      } catch (JedisMovedDataException moved) { // it was not run
        connections.noteMoved(moved, server);
        redirect(some.get(i));
      } catch (JedisClusterException down) {
        some.get(i).reply.completeExceptionally(connections.unavailable(down));
        connections.noteLost(down, view, server);
      } catch (JedisException refused) {
        if (RedisConnections.isDemoted(refused)) {
          demoted = refused; // its caller is told with the others that have no reply
        } else {
          some.get(i).reply.completeExceptionally(refused);
        }
      } catch (ClassCastException odd) { // no reply of a script's
        some.get(i).reply.completeExceptionally(odd);
      }
    }
    if (demoted != null) {
      throw RedisConnections.demoted(demoted);
    }
    return unknown;
  }

  private void redirect(Request request) {
    if (request.redirected++ < RedisConnections.MOST_REDIRECTIONS) {
      connections.route(request);
    } else {
      request.reply.completeExceptionally(connections.redirectedTooOften());
    }
  }

  private void refuseWaiting() {
    for (Request request = waiting.poll(); request != null; request = waiting.poll()) {
      refuse(request);
    }
  }

  private void refuse(Request request) {
    request.reply.completeExceptionally(
        new StoreUnavailableException("the connection to the metadata store is closed", null));
  }

  /**
   * Sends nothing any more, and ends the connections.
   *
   * @return what waits, for another server
   */
  synchronized List<Request> end() {
    closed = true;
    threads.forEach(Thread::interrupt);
    List<Request> left = new ArrayList<>();
    waiting.drainTo(left);
    return left;
  }

  /** Sends nothing any more, ends the connections, and refuses what waits. */
  @Override
  public void close() {
    end().forEach(this::refuse);
    refuseWaiting();
  }
}
