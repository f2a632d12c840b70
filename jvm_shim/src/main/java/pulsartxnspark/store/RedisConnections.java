package pulsartxnspark.store;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.List;
import java.util.function.Function;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
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
   * @throws IllegalArgumentException if the TLS file holds no certificate
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
      super(new HostAndPort(settings.host(), settings.port()), config(settings));
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

  private static JedisClientConfig config(StoreSettings settings) {
    DefaultJedisClientConfig.Builder builder =
        DefaultJedisClientConfig.builder()
            .connectionTimeoutMillis(settings.timeoutMs())
            .socketTimeoutMillis(settings.timeoutMs())
            .blockingSocketTimeoutMillis(settings.timeoutMs())
            .database(settings.database())
            .user(settings.username())
            .password(settings.password())
            .ssl(settings.tls());
    if (settings.tls()) {
      SSLParameters parameters = new SSLParameters();
      parameters.setEndpointIdentificationAlgorithm("HTTPS");
      builder.sslParameters(parameters);
    }
    if (settings.tlsCaFile() != null) {
      builder.sslSocketFactory(trusting(settings.tlsCaFile()));
    }
    return builder.build();
  }

  private static SSLSocketFactory trusting(Path authorities) {
    try (InputStream file = Files.newInputStream(authorities)) {
      KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
      trusted.load(null, null);
      int number = 0;
      for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
        trusted.setCertificateEntry("authority" + number++, one);
      }
      TrustManagerFactory managers =
          TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      managers.init(trusted);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, managers.getTrustManagers(), null);
      return context.getSocketFactory();
    } catch (GeneralSecurityException | IOException error) {
      throw new IllegalArgumentException(
          "pulsarTxnSparkStoreTlsCaFile: expected PEM certificates in " + authorities, error);
    }
  }
}
