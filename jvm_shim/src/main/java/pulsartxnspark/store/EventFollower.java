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
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.params.XReadParams;
import redis.clients.jedis.resps.StreamEntry;

/**
 * Follows the {@code events} streams of segments with blocking reads, by threads of its own: one for
 * one server. In a cluster it is one for each segment, as no command may touch two slots.
 *
 * <p>An event says "poll again", and no more. Whoever begins to be followed is told once, so that
 * nothing is missed that came before; so is everybody after a lost connection. A thread ends when
 * nobody is followed by it.
 */
public final class EventFollower {
  private static final Logger log = LoggerFactory.getLogger(EventFollower.class);
  // A segment that is new on one server is followed after this time at the latest.
  private static final int BLOCK_MS = 200;
  private static final int EVENTS_AT_ONCE = 64;
  private static final long PAUSE_MS = 500; // before a lost connection is opened again
  /** Each has a thread and a connection; all other segments are polled. */
  static final int MOST_READERS = 256;
  private static final int STACK_BYTES = 256 * 1024;

  private final RedisConnections connections;
  private final Map<Integer, Reader> readers = new ConcurrentHashMap<>(); // by what one read may touch

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
   * @param poll what to run on events, quickly, by the follower's thread
   */
  public synchronized void follow(String segment, Runnable poll) {
    int group = connections.group(key(segment));
    Reader reader = readers.get(group);
    if (reader != null) {
      reader.followed.put(key(segment), poll);
    } else if (readers.size() < MOST_READERS) {
      reader = new Reader(group);
      reader.followed.put(key(segment), poll);
      readers.put(group, reader);
      Thread thread = new Thread(null, reader, "pulsar-txn-spark-events-" + group, STACK_BYTES);
      thread.setDaemon(true);
      thread.start();
    } else {
      log.warn(
          "The events of {} segments are followed, and those of {} are not: it is polled",
          MOST_READERS,
          segment);
    }
  }

  /**
   * Follows a segment no longer.
   *
   * @param segment its id
   * @param poll as it was given: a successor is left as it is
   */
  public void leave(String segment, Runnable poll) {
    Reader reader = readers.get(connections.group(key(segment)));
    if (reader != null) {
      reader.followed.remove(key(segment), poll);
    }
  }

  private static String key(String segment) {
    return "{seg:" + segment + "}:events";
  }

  private synchronized boolean endsHere(Reader reader) {
    return reader.followed.isEmpty() && readers.remove(reader.group, reader);
  }

  /** Follows what one read may touch. */
  private final class Reader implements Runnable {
    private final int group;
    private final Map<String, Runnable> followed = new ConcurrentHashMap<>();
    private String complaint; // logged last; null once a read was answered

    Reader(int group) {
      this.group = group;
    }

    @Override
    public void run() {
      while (!endsHere(this)) {
        ClusterSlots.View view = connections.view();
        String any = followed.keySet().stream().findAny().orElse(null);
        if (any == null) {
          continue;
        }
        try (Jedis jedis = connections.open(Scripts.bytes(any))) {
          readUntilNobodyIsFollowed(jedis);
        } catch (JedisMovedDataException moved) {
          connections.noteMoved(moved, view.owner(group));
          pause(); // two servers may name each other for a while
        } catch (StoreException | JedisException error) {
          if (!String.valueOf(error.getMessage()).equals(complaint)) {
            complaint = String.valueOf(error.getMessage());
            log.warn("The metadata store's events are not followed; polling goes on: {}", complaint);
          }
          if (error instanceof JedisException) {
            connections.suspect(view); // the slot may have moved
          }
          pause();
        } catch (RuntimeException | Error error) { // a poll's: it must not end the thread
          log.error("The metadata store's events are not followed; polling goes on", error);
          pause();
        }
      }
    }

    private void readUntilNobodyIsFollowed(Jedis jedis) {
      Map<String, StreamEntryID> last = new HashMap<>();
      Map<String, Runnable> notified = new HashMap<>(); // a successor is told as well
      XReadParams params =
          XReadParams.xReadParams().count(EVENTS_AT_ONCE).block(connections.blockMs(BLOCK_MS));
      while (!followed.isEmpty()) {
        last.keySet().retainAll(followed.keySet());
        notified.keySet().retainAll(followed.keySet());
        for (Map.Entry<String, Runnable> entry : followed.entrySet()) {
          if (!last.containsKey(entry.getKey())) {
            last.put(entry.getKey(), newest(jedis, entry.getKey()));
          }
          if (notified.put(entry.getKey(), entry.getValue()) != entry.getValue()) {
            entry.getValue().run();
          }
        }
        if (last.isEmpty()) {
          continue; // the last one was left in between
        }
        List<Map.Entry<String, List<StreamEntry>>> streams = jedis.xread(params, Map.copyOf(last));
        complaint = null;
        if (streams == null) {
          continue;
        }
        for (Map.Entry<String, List<StreamEntry>> stream : streams) {
          List<StreamEntry> events = stream.getValue();
          last.put(stream.getKey(), events.get(events.size() - 1).getID());
          Runnable poll = followed.get(stream.getKey());
          if (poll != null) {
            poll.run();
          }
        }
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

  private static StreamEntryID newest(Jedis jedis, String key) {
    List<StreamEntry> events = jedis.xrevrange(key, "+", "-", 1);
    return events.isEmpty() ? new StreamEntryID(0, 0) : events.get(0).getID();
  }
}
