package pulsartxnspark.store;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import redis.clients.jedis.HostAndPort;

/**
 * Where the metadata store is, and how to log in.
 *
 * @param servers where it listens; of a cluster, any that may be asked for the others
 * @param cluster whether it is a Redis Cluster
 * @param tls how to encrypt; null for not at all
 * @param database number of the database
 * @param username null for the default user
 * @param password null for none
 * @param timeoutMs how long one request may take, in milliseconds
 * @param acceptDataLoss whether a server may be used that may lose what it has acknowledged
 * @param assumeDurable whether settings of a server are vouched for that cannot be read
 */
public record StoreSettings(
    List<HostAndPort> servers,
    boolean cluster,
    Tls tls,
    int database,
    String username,
    String password,
    int timeoutMs,
    boolean acceptDataLoss,
    boolean assumeDurable) {
  private static final int DEFAULT_PORT = 6379;
  private static final List<String> SCHEMES =
      List.of("redis", "rediss", "redis+cluster", "rediss+cluster");
  private static final Pattern URL =
      Pattern.compile("([a-z+]+)://([^/?#\\s]*)(/[^?#\\s]*)?(?:\\?([^#\\s]*))?");
  private static final Pattern SERVER = Pattern.compile("(\\[[^\\[\\]]+]|[^:\\[\\]]+)(?::(\\d{1,5}))?");
  private static final Pattern ESCAPES = Pattern.compile("(?:%[0-9A-Fa-f]{2})+");
  private static final Pattern SURROGATE = Pattern.compile("%[Ee][Dd](?=%[ABab][0-9A-Fa-f])");
  private static final int HIGHEST_PORT = 65_535;

  /**
   * How to encrypt; all files are PEM files.
   *
   * @param caFile certificates of the authorities to trust; null for those of Java
   * @param certFile the plug-in's own certificate, and then those of its authorities; null for none
   * @param keyFile the private key of that certificate; null if {@code certFile} has it as well
   * @param verifyHost whether the store's certificate has to be of the host's name
   */
  public record Tls(Path caFile, Path certFile, Path keyFile, boolean verifyHost) {
    /** Trusts whomever Java trusts, and shows no certificate. */
    public static final Tls DEFAULT = new Tls(null, null, null, true);

    /**
     * Reads settings of a broker.
     *
     * @param caFile null or empty for the authorities that Java trusts
     * @param certFile null or empty for none
     * @param keyFile null or empty if the other file has the key
     * @param verifyHost whether the store's certificate has to be of the host's name
     * @return the settings
     * @throws IllegalArgumentException if a file is missing or cannot be read
     */
    public static Tls of(String caFile, String certFile, String keyFile, boolean verifyHost) {
      Tls tls =
          new Tls(
              readable(caFile, "CaFile"),
              readable(certFile, "CertFile"),
              readable(keyFile, "KeyFile"),
              verifyHost);
      if (tls.keyFile != null && tls.certFile == null) {
        throw new IllegalArgumentException(
            "pulsarTxnSparkStoreTlsKeyFile is set without pulsarTxnSparkStoreTlsCertFile: a key is"
                + " of no use without its certificate");
      }
      return tls;
    }

    private static Path readable(String name, String setting) {
      if (name == null || name.isEmpty()) {
        return null;
      }
      Path file = Path.of(name);
      if (!Files.isReadable(file)) {
        throw new IllegalArgumentException(
            "pulsarTxnSparkStoreTls" + setting + ": the file cannot be read: " + file);
      }
      return file;
    }
  }

  /**
   * Reads a URL as the option {@code store.url} has it, with no other settings for TLS than whom to
   * trust.
   *
   * @param url as in {@link #of(String, String, String, Tls, int)}
   * @param username as there
   * @param password as there
   * @param tlsCaFile PEM file of authorities; null or empty for those of Java
   * @param timeoutMs as there
   * @return the settings
   * @throws IllegalArgumentException as there
   */
  public static StoreSettings of(
      String url, String username, String password, String tlsCaFile, int timeoutMs) {
    return of(url, username, password, Tls.of(tlsCaFile, "", "", true), timeoutMs);
  }

  /**
   * Reads a URL as the option {@code store.url} has it.
   *
   * @param url {@code redis://}, {@code rediss://}, {@code redis+cluster://} or {@code
   *     rediss+cluster://}, with user, password and database if need be
   * @param username stands in for the URL's; null or empty for that one
   * @param password stands in for the URL's; null or empty for that one
   * @param tls how to encrypt where the URL says so
   * @param timeoutMs how long one request may take, in milliseconds
   * @return the settings
   * @throws IllegalArgumentException if one is malformed; the message shows no part that may be secret
   */
  public static StoreSettings of(
      String url, String username, String password, Tls tls, int timeoutMs) {
    Matcher parts = URL.matcher(url); // Java's URI knows no list of hosts with IPv6
    if (!parts.matches()) {
      throw malformed("it is not a URL");
    }
    String scheme = parts.group(1);
    if (!SCHEMES.contains(scheme)) {
      throw malformed("its scheme has to be one of " + String.join("://, ", SCHEMES) + "://");
    }
    if (timeoutMs <= 0) {
      throw new IllegalArgumentException(
          "pulsarTxnSparkStoreTimeoutMs: expected a positive number, found " + timeoutMs);
    }
    boolean encrypted = scheme.startsWith("rediss");
    if (!encrypted && (tls.caFile != null || tls.certFile != null)) {
      throw malformed("a TLS file is set, but it is not rediss://");
    }
    String authority = parts.group(2);
    int at = authority.lastIndexOf('@');
    String[] login = authority.substring(0, Math.max(at, 0)).split(":", 2);
    String ownUser = login[0].isEmpty() ? null : decoded(login[0]);
    String ownPassword = login.length > 1 ? decoded(login[1]) : null;
    boolean cluster = scheme.endsWith("+cluster");
    String[] servers = authority.substring(at + 1).split(",", -1);
    if (servers.length > 1 && !cluster) {
      throw malformed("several hosts are for redis+cluster:// and rediss+cluster:// only");
    }
    int database = database(parts.group(3), parts.group(4));
    if (cluster && database != 0) {
      throw malformed("a Redis Cluster has only database 0");
    }
    return new StoreSettings(
        Arrays.stream(servers).map(StoreSettings::server).toList(),
        cluster,
        encrypted ? tls : null,
        database,
        username == null || username.isEmpty() ? ownUser : username,
        password == null || password.isEmpty() ? ownPassword : password,
        timeoutMs,
        false,
        false);
  }

  /**
   * Says what is accepted of a server; nothing is by default.
   *
   * @param dataLoss whether it may lose what it has acknowledged: as the option {@code
   *     store.acceptDataLoss}
   * @param unreadable whether settings are vouched for that cannot be read: as the option {@code
   *     store.assumeDurable}
   * @return the same settings otherwise
   */
  public StoreSettings accepting(boolean dataLoss, boolean unreadable) {
    return new StoreSettings(
        servers, cluster, tls, database, username, password, timeoutMs, dataLoss, unreadable);
  }

  private static HostAndPort server(String text) {
    Matcher parts = SERVER.matcher(text);
    if (!parts.matches()) {
      throw malformed("it names no host, or no port up to " + HIGHEST_PORT);
    }
    int port = parts.group(2) == null ? DEFAULT_PORT : Integer.parseInt(parts.group(2));
    if (port > HIGHEST_PORT) {
      throw malformed("its port has to be a number up to " + HIGHEST_PORT);
    }
    return new HostAndPort(parts.group(1).replaceAll("[\\[\\]]", ""), port);
  }

  private static int database(String path, String query) {
    String text = path == null ? "" : path.replaceAll("^/|/$", "");
    if (query != null) {
      if (!text.isEmpty() || !query.startsWith("db=")) {
        throw malformed("it may have no parameters but the number of a database");
      }
      text = query.substring("db=".length());
    }
    if (text.isEmpty()) {
      return 0;
    }
    try {
      return Integer.parseUnsignedInt(text);
    } catch (NumberFormatException error) {
      throw malformed("what follows the host has to be the number of a database");
    }
  }

  /** Decodes as Python's {@code urllib.parse.unquote}: what is no escape stays as it is written. */
  private static String decoded(String text) {
    // Of a surrogate each byte is an error to Python, and all three are one to Java.
    String readable = SURROGATE.matcher(text).replaceAll("%FF");
    return ESCAPES.matcher(readable).replaceAll(escapes -> Matcher.quoteReplacement(utf8(escapes)));
  }

  private static String utf8(MatchResult escapes) {
    byte[] bytes = HexFormat.of().parseHex(escapes.group().replace("%", ""));
    return new String(bytes, StandardCharsets.UTF_8);
  }

  private static IllegalArgumentException malformed(String why) {
    return new IllegalArgumentException(
        "pulsarTxnSparkStoreUrl: expected redis://host:port/database, or"
            + " redis+cluster://host1:port1,host2:port2, but "
            + why);
  }

  /** Without the secrets. */
  @Override
  public String toString() {
    String scheme = (tls == null ? "redis" : "rediss") + (cluster ? "+cluster" : "");
    String hosts = servers.stream().map(String::valueOf).collect(Collectors.joining(","));
    return scheme + "://" + hosts + (cluster ? "" : "/" + database);
  }
}
