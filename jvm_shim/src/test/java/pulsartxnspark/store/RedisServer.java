package pulsartxnspark.store;

import java.io.File;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.exceptions.JedisException;

/** A real Redis of the tests' own: the {@code redis-server} on the PATH. */
public final class RedisServer implements AutoCloseable {
  private static final long PATIENCE_MS = 20_000;

  private final int port;
  private final Path folder;
  private Process process;

  /** Starts a server on a free port of the loopback address. */
  public RedisServer() {
    try (ServerSocket free = new ServerSocket(0)) {
      port = free.getLocalPort();
      folder = Files.createTempDirectory("pulsar-txn-spark-redis");
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
    start();
  }

  /** Starts the server again, after {@link #stop}. It has kept nothing. */
  public void start() {
    String program = "redis-server";
    List<String> command =
        List.of(
            program, "--port", "" + port, "--bind", "127.0.0.1", "--save", "", "--dir", "" + folder);
    try {
      process =
          new ProcessBuilder(command)
              .redirectErrorStream(true)
              .redirectOutput(new File(folder.toFile(), "log"))
              .start();
      long deadline = System.currentTimeMillis() + PATIENCE_MS;
      while (true) {
        try (Jedis jedis = client()) {
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

  /** Opens a connection. */
  public Jedis client() {
    return new Jedis("127.0.0.1", port);
  }

  /** Gives the settings with which the plug-in finds it. */
  public StoreSettings settings() {
    return StoreSettings.of("redis://127.0.0.1:" + port, "", "", "", 1_000);
  }

  @Override
  public void close() {
    stop();
    try {
      Files.deleteIfExists(folder.resolve("log"));
      Files.deleteIfExists(folder);
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }
}
