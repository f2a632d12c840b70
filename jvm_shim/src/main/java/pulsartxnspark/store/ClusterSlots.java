package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.HostAndPort;

/** Which server of a Redis Cluster has which slot, as far as the cluster has told. */
final class ClusterSlots {
  private static final Logger log = LoggerFactory.getLogger(ClusterSlots.class);
  private static final int SLOTS = 16_384;

  private final List<HostAndPort> startServers;
  private final Ask ask;
  private final Lock asking = new ReentrantLock();
  private volatile View view = new View(0, new HostAndPort[SLOTS], Set.of(), null);

  /**
   * What was told last. A request that goes by an old one is redirected, and not run.
   *
   * @param number how many there were before
   * @param owners by slot; null where nobody is known
   * @param servers all that were named, replicas as well
   * @param failure why nobody has told anything newer; null if somebody has
   */
  record View(
      long number, HostAndPort[] owners, Set<HostAndPort> servers, RuntimeException failure) {
    HostAndPort owner(int slot) {
      return owners[slot];
    }

    /** Gives those that have any slot. */
    Set<HostAndPort> allOwners() {
      return Arrays.stream(owners).filter(Objects::nonNull).collect(Collectors.toSet());
    }
  }

  /** Sends CLUSTER SLOTS to a server. */
  interface Ask {
    /** Gives the reply; fails if there is none until a deadline. */
    List<Object> slots(HostAndPort server, Deadline deadline);
  }

  /**
   * Knows no server yet but those to begin with.
   *
   * @param startServers whom to ask first
   * @param ask asks a server
   */
  ClusterSlots(List<HostAndPort> startServers, Ask ask) {
    this.startServers = startServers;
    this.ask = ask;
  }

  View view() {
    return view;
  }

  /**
   * Asks the cluster anew, unless somebody has since a view was taken.
   *
   * @param seen the view that has proved wrong
   * @param suspect who has not answered, or does not know better: asked last; null for nobody
   * @param deadline of all servers together; each has an equal part of what those before it have left
   * @return what is known now; no more than before if nobody answers
   */
  View refresh(View seen, HostAndPort suspect, Deadline deadline) {
    try {
      if (!asking.tryLock(deadline.leftMs(), TimeUnit.MILLISECONDS)) {
        return view; // somebody else still asks
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      return view;
    }
    try {
      return view.number == seen.number ? asked(suspect, deadline) : view;
    } finally {
      asking.unlock();
    }
  }

  private View asked(HostAndPort suspect, Deadline deadline) {
    Set<HostAndPort> others = new LinkedHashSet<>(view.servers);
    others.addAll(startServers);
    List<HostAndPort> inTurn = new ArrayList<>(others);
    // One that a partition has cut off knows the past only: nobody is always the first.
    Collections.shuffle(inTurn);
    if (inTurn.remove(suspect)) {
      inTurn.add(suspect);
    }
    RuntimeException failure = null;
    int left = inTurn.size();
    for (HostAndPort server : inTurn) {
      try {
        Told slots = parse(ask.slots(server, deadline.share(left--)), server);
        return replace(slots.owners, slots.servers, null);
      } catch (RuntimeException error) { // no answer, or one that makes no sense
        log.debug("{} does not tell the slots of the cluster", server, error);
        failure = error;
      }
    }
    return replace(view.owners, view.servers, failure);
  }

  private synchronized View replace(
      HostAndPort[] owners, Set<HostAndPort> servers, RuntimeException failure) {
    view = new View(view.number + 1, owners, servers, failure);
    return view;
  }

  /**
   * Notes what a redirection has told.
   *
   * @param slot which one has moved
   * @param target where to
   * @param slots who has said so
   */
  synchronized void moved(int slot, HostAndPort target, HostAndPort source) {
    HostAndPort[] owners = view.owners.clone();
    owners[slot] = named(target.getHost(), target.getPort(), source);
    Set<HostAndPort> servers = new LinkedHashSet<>(view.servers);
    servers.add(owners[slot]);
    replace(owners, servers, null);
  }

  /** What a server has told. */
  private record Told(HostAndPort[] owners, Set<HostAndPort> servers) {}

  private static Told parse(List<Object> ranges, HostAndPort source) {
    HostAndPort[] owners = new HostAndPort[SLOTS];
    Set<HostAndPort> servers = new LinkedHashSet<>();
    for (Object entry : ranges) {
      List<?> range = (List<?>) entry; // first slot, last slot, its primary, and then replicas
      List<HostAndPort> named =
          range.stream().skip(2).map(server -> named((List<?>) server, source)).toList();
      int from = Math.toIntExact((Long) range.get(0));
      int to = Math.toIntExact((Long) range.get(1));
      Arrays.fill(owners, from, to + 1, named.get(0));
      servers.addAll(named);
    }
    return new Told(owners, servers);
  }

  private static HostAndPort named(List<?> server, HostAndPort source) {
    String host = server.get(0) == null ? "" : RedisTransactionStore.text(server.get(0));
    return named(host, Math.toIntExact((Long) server.get(1)), source);
  }

  /** A server that does not know its own name is where the one is that tells of it. */
  private static HostAndPort named(String host, int port, HostAndPort source) {
    return new HostAndPort(host.isEmpty() || "?".equals(host) ? source.getHost() : host, port);
  }
}
