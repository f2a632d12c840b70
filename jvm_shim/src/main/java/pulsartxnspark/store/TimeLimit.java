package pulsartxnspark.store;

import java.io.IOException;
import java.net.Socket;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.exceptions.JedisConnectionException;

/**
 * Cuts a connection off when a time is over. A timeout of the socket bounds each read by itself: many
 * slow ones take longer, and a write has none.
 */
final class TimeLimit implements AutoCloseable {
  private static final Logger log = LoggerFactory.getLogger(TimeLimit.class);

  private final Future<?> alarm;

  // Guarded by this.
  private Socket socket; // null until it is connected
  private boolean over;
  private boolean closed;

  /**
   * Begins.
   *
   * @param alarms tell when a time is over; their tasks must not wait
   * @param deadline when it is
   */
  TimeLimit(ScheduledExecutorService alarms, Deadline deadline) {
    alarm = alarms.schedule(this::strike, deadline.leftMs(), TimeUnit.MILLISECONDS);
  }

  private synchronized void strike() {
    if (!closed) {
      over = true;
      if (socket != null) {
        cut(socket);
      }
    }
  }

  /** Limits a connection; fails if the time is over already. */
  synchronized Socket limit(Socket connection) {
    if (over) {
      cut(connection);
      throw new JedisConnectionException("the time for the request is over");
    }
    socket = connection;
    return connection;
  }

  /** Tells whether the connection was cut off. */
  synchronized boolean isOver() {
    return over;
  }

  /** Ends it: from now on nothing is cut off. */
  @Override
  public synchronized void close() {
    closed = true;
    alarm.cancel(false);
  }

  /** Lets whatever reads from a connection or writes to it fail; does not wait. */
  static void cut(Socket socket) {
    try {
      socket.setSoLinger(true, 0); // else TLS would wait for a write that stands
      socket.close();
    } catch (IOException error) {
      log.debug("A connection to the metadata store is not cut off", error);
    }
  }
}
