package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.BiFunction;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisNoScriptException;

/**
 * Sends whatever waits in one go: requests of many callers share one round trip, and the server
 * syncs its log once for all of them. Nothing waits for company: a request goes out as soon as a
 * connection is free.
 *
 * <p>A request without an answer may have taken effect, or may yet: its caller asks again.
 */
final class Exchange implements AutoCloseable {
  private static final Logger log = LoggerFactory.getLogger(Exchange.class);
  private static final int CONNECTIONS = 2; // the next requests go out while replies are read
  private static final int MOST_AT_ONCE = 200; // the server runs them without a break
  private static final int MOST_WAITING = 10_000;

  private final RedisConnections connections;
  private final BlockingQueue<Request> waiting = new LinkedBlockingQueue<>(MOST_WAITING);
  private final List<Thread> threads = new ArrayList<>();
  private volatile boolean closed;

  private record Request(
      Scripts.Script script,
      List<byte[]> keys,
      List<byte[]> args,
      CompletableFuture<List<Object>> reply) {}

  /**
   * Makes one that connects to nothing yet.
   *
   * @param connections to the store
   */
  Exchange(RedisConnections connections) {
    this.connections = connections;
  }

  /**
   * Sends a script; returns at once.
   *
   * @param script what to run
   * @param keys of the script
   * @param args of the script
   * @return its reply; or a {@link StoreUnavailableException}, after which it may have run or not
   */
  CompletableFuture<List<Object>> send(
      Scripts.Script script, List<byte[]> keys, List<byte[]> args) {
    Request request = new Request(script, keys, args, new CompletableFuture<>());
    begin();
    if (!waiting.offer(request)) {
      request.reply.completeExceptionally(
          new StoreUnavailableException(
              "the metadata store does not answer as fast as it is asked", null));
    }
    if (closed) {
      refuseWaiting();
    }
    return request.reply;
  }

  private synchronized void begin() {
    while (!closed && threads.size() < CONNECTIONS) {
      Thread thread = new Thread(this::run, "pulsar-txn-spark-exchange-" + threads.size());
      thread.setDaemon(true);
      threads.add(thread);
      thread.start();
    }
  }

  private void run() {
    Jedis jedis = null;
    try {
      while (!closed) {
        List<Request> some = new ArrayList<>(List.of(waiting.take()));
        waiting.drainTo(some, MOST_AT_ONCE - 1);
        try {
          if (jedis == null) {
            jedis = connections.open();
          }
          exchange(jedis, some);
        } catch (RuntimeException error) {
          // Whatever it is, nobody may wait for ever, and the next requests go out.
          RuntimeException unavailable =
              error instanceof JedisException lost ? connections.unavailable(lost) : error;
          some.forEach(one -> one.reply.completeExceptionally(unavailable));
          if (jedis != null) {
            jedis.close();
            jedis = null;
          }
        }
      }
    } catch (InterruptedException closing) {
      log.debug("The connection to the metadata store is closed");
    } finally {
      if (jedis != null) {
        jedis.close();
      }
    }
  }

  private static void exchange(Jedis jedis, List<Request> some) {
    List<Request> unknown =
        answer(
            some,
            sent(
                jedis,
                some,
                (pipeline, one) ->
                    pipeline.evalsha(Scripts.bytes(one.script.sha1()), one.keys, one.args)));
    if (!unknown.isEmpty()) {
      answer(
          unknown,
          sent(
              jedis,
              unknown,
              (pipeline, one) ->
                  pipeline.eval(Scripts.bytes(one.script.text()), one.keys, one.args)));
    }
  }

  private static List<Response<Object>> sent(
      Jedis jedis,
      List<Request> some,
      BiFunction<Pipeline, Request, Response<Object>> send) {
    Pipeline pipeline = jedis.pipelined();
    List<Response<Object>> replies = some.stream().map(one -> send.apply(pipeline, one)).toList();
    pipeline.sync();
    return replies;
  }

  /** Gives the callers their replies; returns those of which the server has no script. */
  private static List<Request> answer(List<Request> some, List<Response<Object>> replies) {
    List<Request> unknown = new ArrayList<>();
    for (int i = 0; i < some.size(); i++) {
      try {
        some.get(i).reply.complete(new ArrayList<>((List<?>) replies.get(i).get()));
      } catch (JedisNoScriptException noScript) {
        unknown.add(some.get(i));
      } catch (JedisException | ClassCastException refused) { // an error, or no reply of a script's
        some.get(i).reply.completeExceptionally(refused);
      }
    }
    return unknown;
  }

  private void refuseWaiting() {
    for (Request one = waiting.poll(); one != null; one = waiting.poll()) {
      one.reply.completeExceptionally(
          new StoreUnavailableException("the connection to the metadata store is closed", null));
    }
  }

  /** Sends nothing any more, ends the connections, and refuses what waits. */
  @Override
  public synchronized void close() {
    closed = true;
    threads.forEach(Thread::interrupt);
    refuseWaiting();
  }
}
