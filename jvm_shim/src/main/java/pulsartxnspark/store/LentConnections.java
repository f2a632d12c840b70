package pulsartxnspark.store;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import pulsartxnspark.store.RedisConnections.Own;
import redis.clients.jedis.exceptions.JedisException;

/** Connections to one server, each of which is lent to one thread at a time. */
final class LentConnections {
  private static final int MOST = 8;

  private final Function<Deadline, Own> open;
  private final Semaphore free = new Semaphore(MOST);

  // Guarded by this.
  private final Deque<Own> idle = new ArrayDeque<>();
  private boolean closed;

  /**
   * Makes one that has no connections yet.
   *
   * @param open makes a connection, until a deadline, and checks it
   */
  LentConnections(Function<Deadline, Own> open) {
    this.open = open;
  }

  /**
   * Lends a connection; give it back.
   *
   * @param deadline until when to wait for one
   * @throws JedisException if there is none until then
   * @throws StoreException if the server must not be asked
   */
  Own take(Deadline deadline) {
    try {
      if (!free.tryAcquire(deadline.leftMs(), TimeUnit.MILLISECONDS)) {
        throw new JedisException("all " + MOST + " connections to it are in use");
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new JedisException(error);
    }
    Own own = idle();
    if (own != null) {
      return own;
    }
    boolean opened = false;
    try {
      own = open.apply(deadline);
      opened = true;
      return own;
    } finally {
      if (!opened) {
        free.release();
      }
    }
  }

  private synchronized Own idle() {
    return idle.poll();
  }

  /** Takes a connection back; one that is not sound is closed. */
  void giveBack(Own own, boolean sound) {
    if (!sound || !keep(own)) {
      own.close();
    }
    free.release();
  }

  private synchronized boolean keep(Own own) {
    if (!closed) {
      idle.push(own);
    }
    return !closed;
  }

  /** Closes those that nobody has. */
  void clear() {
    for (Own own = idle(); own != null; own = idle()) {
      own.close();
    }
  }

  /** Closes those that nobody has, and the others when they are given back. */
  void close() {
    synchronized (this) {
      closed = true;
    }
    clear();
  }
}
