package pulsartxnspark.store;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import redis.clients.jedis.HostAndPort;

/** Which server of a Redis Cluster has which slot, as far as the cluster has told. */
final class ClusterSlots {
  private static final Logger log = LoggerFactory.getLogger(ClusterSlots.class);
  private static final int SLOTS = 16_384;

  private final List<HostAndPort> startServers;
  private final Function<HostAndPort, List<Object>> ask;
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

  /**
   * Knows no server yet but those to begin with.
   *
   * @param startServers whom to ask first
   * @param ask sends CLUSTER SLOTS to a server
   */
  ClusterSlots(List<HostAndPort> startServers, Function<HostAndPort, List<Object>> ask) {
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
   * @return what is known now; no more than before if nobody answers
   */
  synchronized View refresh(View seen, HostAndPort suspect) {
    if (view.number != seen.number) {
      return view;
    }
    Set<HostAndPort> others = new LinkedHashSet<>(view.servers);
    others.addAll(startServers);
    List<HostAndPort> inTurn = new ArrayList<>(others);
    // One that a partition has cut off knows the past only: nobody is always the first.
    Collections.shuffle(inTurn);
    if (inTurn.remove(suspect)) {
      inTurn.add(suspect);
    }
    RuntimeException failure = null;
    for (HostAndPort server : inTurn) {
      try {
        view = parse(view.number + 1, ask.apply(server), server);
        return view;
      } catch (RuntimeException error) { // no answer, or one that makes no sense
        log.debug("{} does not tell the slots of the cluster", server, error);
        failure = error;
      }
    }
    view = new View(view.number + 1, view.owners, view.servers, failure);
    return view;
  }

  /**
   * Notes what a redirection has told.
   *
   * @param slot which one has moved
   * @param target where to
   * @param told who has said so
   */
  synchronized void moved(int slot, HostAndPort target, HostAndPort told) {
    HostAndPort[] owners = view.owners.clone();
    owners[slot] = named(target.getHost(), target.getPort(), told);
    Set<HostAndPort> servers = new LinkedHashSet<>(view.servers);
    servers.add(owners[slot]);
    view = new View(view.number + 1, owners, servers, null);
  }

  private static View parse(long number, List<Object> ranges, HostAndPort told) {
    HostAndPort[] owners = new HostAndPort[SLOTS];
    Set<HostAndPort> servers = new LinkedHashSet<>();
    for (Object one : ranges) {
      List<?> range = (List<?>) one; // first slot, last slot, its primary, and then replicas
      List<HostAndPort> named =
          range.stream().skip(2).map(server -> named((List<?>) server, told)).toList();
      int from = Math.toIntExact((Long) range.get(0));
      int to = Math.toIntExact((Long) range.get(1));
      Arrays.fill(owners, from, to + 1, named.get(0));
      servers.addAll(named);
    }
    return new View(number, owners, servers, null);
  }

  private static HostAndPort named(List<?> server, HostAndPort told) {
    String host = server.get(0) == null ? "" : RedisTransactionStore.text(server.get(0));
    return named(host, Math.toIntExact((Long) server.get(1)), told);
  }

  /** A server that does not know its own name is where the one is that tells of it. */
  private static HostAndPort named(String host, int port, HostAndPort told) {
    return new HostAndPort(host.isEmpty() || "?".equals(host) ? told.getHost() : host, port);
  }
}
