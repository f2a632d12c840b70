package pulsartxnspark.store;

import java.net.Socket;
import java.time.Duration;
import java.util.List;
import java.util.function.Function;
import javax.net.ssl.SSLParameters;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.DefaultJedisSocketFactory;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisFactory;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisException;

/**
 * Connections to the metadata store. Each new one is checked before its first use: a replica may lag,
 * so that only a primary is asked anything. Jedis repeats nothing by itself.
 */
public final class RedisConnections implements AutoCloseable {
  private static final int MOST_CONNECTIONS = 8;

  private final StoreSettings settings;
  private final JedisPool pool;
  private final Exchange exchange = new Exchange(this);

  /**
   * Makes a pool; connects to nothing yet.
   *
   * @param settings where to, and as whom
   * @throws IllegalArgumentException if a file of TLS does not hold what it should
   */
  public RedisConnections(StoreSettings settings) {
    this.settings = settings;
    GenericObjectPoolConfig<Jedis> config = new GenericObjectPoolConfig<>();
    config.setMaxTotal(MOST_CONNECTIONS);
    config.setMaxIdle(MOST_CONNECTIONS);
    config.setMaxWait(Duration.ofMillis(settings.timeoutMs()));
    config.setJmxEnabled(false);
    this.pool = new JedisPool(config, new CheckedFactory(settings));
  }

  /**
   * Lends a connection.
   *
   * @param use what to do with it
   * @param <T> of the result
   * @return the result of {@code use}
   * @throws StoreUnavailableException if the store does not answer
   */
  public <T> T with(Function<Jedis, T> use) {
    try (Jedis jedis = pool.getResource()) {
      return use.apply(jedis);
    } catch (JedisException error) {
      throw unavailable(error);
    }
  }

  /**
   * Opens a connection of the caller's own, for blocking reads.
   *
   * @return a connection that was checked; the caller closes it
   * @throws StoreUnavailableException if the store does not answer
   */
  public Jedis open() {
    try {
      return new CheckedFactory(settings).makeObject().getObject();
    } catch (JedisException error) {
      throw unavailable(error);
    } catch (Exception error) {
      throw new StoreUnavailableException(
          "the metadata store at " + settings + " cannot be reached", error);
    }
  }

  /** Gives what sends the requests of many callers together. */
  Exchange exchange() {
    return exchange;
  }

  StoreUnavailableException unavailable(JedisException error) {
    // The pool wraps what a new connection met.
    Throwable cause = error;
    while (cause.getCause() != null && cause.getCause() != cause) {
      cause = cause.getCause();
    }
    return new StoreUnavailableException(
        "no answer from the metadata store at "
            + settings
            + " ("
            + cause.getClass().getSimpleName()
            + ": "
            + cause.getMessage()
            + "). Check that the server runs and can be reached, and the settings pulsarTxnSparkStore*",
        error);
  }

  @Override
  public void close() {
    exchange.close();
    pool.close();
  }

  /** Checks each connection that it makes. */
  private static final class CheckedFactory extends JedisFactory {
    private final StoreSettings settings;

    CheckedFactory(StoreSettings settings) {
      super(() -> socket(settings), config(settings));
      this.settings = settings;
    }

    @Override
    public PooledObject<Jedis> makeObject() throws Exception {
      PooledObject<Jedis> made = super.makeObject();
      Jedis jedis = made.getObject();
      try {
        List<Object> role = jedis.role();
        if (!"master".equals(role.get(0))) {
          throw new JedisConnectionException(
              "expected a primary at "
                  + settings
                  + ", found role "
                  + role.get(0)
                  + ": a replica may lack what was acknowledged");
        }
      } catch (JedisException error) {
        jedis.close();
        throw error;
      }
      return made;
    }
  }

  /** Reads the files of TLS anew: certificates are renewed while a broker runs. */
  private static Socket socket(StoreSettings settings) {
    try {
      return new DefaultJedisSocketFactory(settings.server(), config(settings)).createSocket();
    } catch (IllegalArgumentException error) {
      throw new JedisConnectionException(error.getMessage(), error);
    }
  }

  private static JedisClientConfig config(StoreSettings settings) {
    DefaultJedisClientConfig.Builder builder =
        DefaultJedisClientConfig.builder()
            .connectionTimeoutMillis(settings.timeoutMs())
            .socketTimeoutMillis(settings.timeoutMs())
            .blockingSocketTimeoutMillis(settings.timeoutMs())
            .database(settings.database())
            .user(settings.username())
            .password(settings.password())
            .ssl(settings.tls() != null);
    if (settings.tls() != null) {
      SSLParameters parameters = new SSLParameters();
      if (settings.tls().verifyHost()) {
        parameters.setEndpointIdentificationAlgorithm("HTTPS");
      }
      builder.sslParameters(parameters);
      builder.sslSocketFactory(StoreTls.context(settings.tls()).getSocketFactory());
    }
    return builder.build();
  }
}
