package pulsartxnspark.store;

import java.io.File;
import java.io.IOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.TestInfo;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

/** A real Redis of the tests' own: the {@code redis-server} on the PATH. */
public class RedisServer implements AutoCloseable {
  private static final long PATIENCE_MS = 20_000;

  private static final int BUS = 10_000; // the bus of a cluster listens on a port that is higher by it
  private static final int LOWEST_PORT = 12_000; // those of connections lie above both
  private static final int PORTS = 10_000;
  private static final String HOST = "127.0.0.1";

  private final int port;
  private final Path folder;
  private final List<String> options;
  private Process process;

  /** Starts a server on a free port of the loopback address, with options if need be. */
  public RedisServer(String... options) {
    try {
      port = freePort();
      folder = Files.createTempDirectory("pulsar-txn-spark-redis");
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
    this.options = new ArrayList<>(List.of(options));
    launch();
  }

  /** For one that is made of others. */
  RedisServer(List<RedisServer> others) {
    port = others.get(0).port;
    folder = others.get(0).folder;
    options = List.of();
  }

  /** Starts the server anew with more options. */
  void restart(String... more) {
    stop();
    options.addAll(List.of(more));
    launch();
  }

  /** Starts what a class of tests is to run against. */
  public static RedisServer of(TestInfo tests) {
    boolean cluster = tests.getTestClass().orElseThrow().isAnnotationPresent(OnCluster.class);
    return cluster ? new RedisCluster() : new RedisServer();
  }

  private static int freePort() throws IOException {
    while (true) {
      int port = ThreadLocalRandom.current().nextInt(LOWEST_PORT, LOWEST_PORT + PORTS);
      InetAddress loopback = InetAddress.getByName(HOST);
      try (ServerSocket free = new ServerSocket(port, 1, loopback);
          ServerSocket bus = new ServerSocket(port + BUS, 1, loopback)) {
        return Math.min(free.getLocalPort(), bus.getLocalPort());
      } catch (BindException taken) {
        // Another one.
      }
    }
  }

  /** Starts the server again, after {@link #stop}. It has kept nothing. */
  public void start() {
    launch();
  }

  private void launch() {
    String program = "redis-server";
    List<String> command = new ArrayList<>(List.of(program, "--port", "" + port, "--bind", HOST));
    command.addAll(List.of("--save", "", "--dir", "" + folder));
    command.addAll(options);
    try {
      process =
          new ProcessBuilder(command)
              .redirectErrorStream(true)
              .redirectOutput(new File(folder.toFile(), "log"))
              .start();
      long deadline = System.currentTimeMillis() + PATIENCE_MS;
      while (true) {
        try (Jedis jedis = new Jedis(HOST, port)) {
          jedis.ping();
          return;
        } catch (JedisException notYet) {
          if (!process.isAlive() || System.currentTimeMillis() > deadline) {
            throw new IllegalStateException(
                program + " does not run: " + Files.readString(folder.resolve("log")), notYet);
          }
          process.waitFor(20, TimeUnit.MILLISECONDS);
        }
      }
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(program + " does not run", error);
    }
  }

  /** Stops the server, as a crash would. */
  public void stop() {
    process.destroyForcibly();
    try {
      process.waitFor();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Gives the port that it listens on. */
  public int port() {
    return port;
  }

  /** Lets it stand still, as a machine does that is suspended; {@link #thaw} lets it go on. */
  void freeze() {
    signal("STOP");
  }

  /** Lets it go on. */
  void thaw() {
    signal("CONT");
  }

  private void signal(String name) {
    try {
      new ProcessBuilder("kill", "-" + name, "" + process.pid()).start().waitFor();
    } catch (IOException | InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Opens a connection. */
  public Jedis client() {
    return new Jedis(HOST, port);
  }

  /** Gives the settings with which the plug-in finds it: it keeps nothing, and may. */
  public StoreSettings settings() {
    return StoreSettings.of("redis://" + HOST + ":" + port, "", "", "", 1_000).accepting(true, false);
  }

  @Override
  public void close() {
    stop();
    try (Stream<Path> files = Files.walk(folder)) {
      for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
        Files.delete(file);
      }
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }
}
