package pulsartxnspark.store;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.params.XReadParams;
import redis.clients.jedis.resps.StreamEntry;

/**
 * Follows the {@code events} streams of segments with one blocking read, by a thread of its own.
 *
 * <p>An event says "look again", and no more. Whoever begins to be followed is told once, so that
 * nothing is missed that came before; so is everybody after a lost connection. The thread ends when
 * nobody is followed.
 */
public final class EventFollower {
  private static final Logger log = LoggerFactory.getLogger(EventFollower.class);
  // A segment that is new is followed after this time at the latest.
  private static final int BLOCK_MS = 200;
  private static final int EVENTS_AT_ONCE = 64;
  private static final long PAUSE_MS = 500; // before a lost connection is opened again

  private final RedisConnections connections;
  private final Map<String, Runnable> followed = new ConcurrentHashMap<>();
  private Thread thread;

  /**
   * Makes a follower; follows nobody yet.
   *
   * @param connections to the store
   */
  public EventFollower(RedisConnections connections) {
    this.connections = connections;
  }

  /**
   * Follows a segment from now on.
   *
   * @param segment its id
   * @param look what to run on events, quickly, by the follower's thread
   */
  public synchronized void follow(String segment, Runnable look) {
    followed.put(key(segment), look);
    if (thread == null) {
      thread = new Thread(this::run, "pulsar-txn-spark-events");
      thread.setDaemon(true);
      thread.start();
    }
  }

  /**
   * Follows a segment no longer.
   *
   * @param segment its id
   * @param look as it was given: a successor is left as it is
   */
  public void leave(String segment, Runnable look) {
    followed.remove(key(segment), look);
  }

  private static String key(String segment) {
    return "{seg:" + segment + "}:events";
  }

  private synchronized boolean endsHere() {
    if (followed.isEmpty()) {
      thread = null;
      return true;
    }
    return false;
  }

  private void run() {
    String complaint = null;
    while (!endsHere()) {
      try (Jedis jedis = connections.open()) {
        complaint = null;
        readUntilNobodyIsFollowed(jedis);
      } catch (StoreException | JedisException error) {
        if (!String.valueOf(error.getMessage()).equals(complaint)) {
          complaint = String.valueOf(error.getMessage());
          log.warn("The metadata store's events are not followed; polling goes on: {}", complaint);
        }
        pause();
      } catch (RuntimeException error) {
        log.error("The metadata store's events are not followed; polling goes on", error);
        pause();
      }
    }
  }

  private static void pause() {
    try {
      Thread.sleep(PAUSE_MS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt(); // nobody interrupts it: the next pause is short
    }
  }

  private void readUntilNobodyIsFollowed(Jedis jedis) {
    Map<String, StreamEntryID> last = new HashMap<>();
    XReadParams params = XReadParams.xReadParams().count(EVENTS_AT_ONCE).block(BLOCK_MS);
    while (!followed.isEmpty()) {
      last.keySet().retainAll(followed.keySet());
      for (Map.Entry<String, Runnable> one : followed.entrySet()) {
        if (!last.containsKey(one.getKey())) {
          last.put(one.getKey(), newest(jedis, one.getKey()));
          one.getValue().run();
        }
      }
      List<Map.Entry<String, List<StreamEntry>>> streams = jedis.xread(params, Map.copyOf(last));
      if (streams == null) {
        continue;
      }
      for (Map.Entry<String, List<StreamEntry>> stream : streams) {
        List<StreamEntry> events = stream.getValue();
        last.put(stream.getKey(), events.get(events.size() - 1).getID());
        Runnable look = followed.get(stream.getKey());
        if (look != null) {
          look.run();
        }
      }
    }
  }

  private static StreamEntryID newest(Jedis jedis, String key) {
    List<StreamEntry> events = jedis.xrevrange(key, "+", "-", 1);
    return events.isEmpty() ? new StreamEntryID(0, 0) : events.get(0).getID();
  }
}
