package pulsartxnspark.store;

import java.net.URI;
import java.net.URISyntaxException;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Where the metadata store is, and how to log in.
 *
 * @param host of the server
 * @param port of the server
 * @param tls whether to encrypt
 * @param tlsCaFile PEM file of authorities, null for those of Java
 * @param database number of the database
 * @param username null for the default user
 * @param password null for none
 * @param timeoutMs how long one request may take, in milliseconds
 */
public record StoreSettings(
    String host,
    int port,
    boolean tls,
    Path tlsCaFile,
    int database,
    String username,
    String password,
    int timeoutMs) {
  private static final int DEFAULT_PORT = 6379;

  /**
   * Reads a URL as the option {@code store.url} has it.
   *
   * @param url {@code redis://} or {@code rediss://}, with user, password and database if need be
   * @param username stands in for the URL's; null or empty for that one
   * @param password stands in for the URL's; null or empty for that one
   * @param tlsCaFile PEM file of authorities; null or empty for those of Java
   * @param timeoutMs how long one request may take, in milliseconds
   * @return the settings
   * @throws IllegalArgumentException if one is malformed; the message shows no part that may be secret
   */
  public static StoreSettings of(
      String url, String username, String password, String tlsCaFile, int timeoutMs) {
    URI uri;
    try {
      uri = new URI(url);
    } catch (URISyntaxException error) {
      throw malformed("it is not a URL");
    }
    String scheme = uri.getScheme();
    if ("redis+cluster".equals(scheme) || "rediss+cluster".equals(scheme)) {
      throw malformed("a Redis Cluster is not supported by the broker's plug-in yet");
    }
    if (!"redis".equals(scheme) && !"rediss".equals(scheme)) {
      throw malformed("its scheme has to be redis:// or rediss://");
    }
    if (uri.getHost() == null) {
      throw malformed("it names no host");
    }
    if (timeoutMs <= 0) {
      throw new IllegalArgumentException(
          "pulsarTxnSparkStoreTimeoutMs: expected a positive number, found " + timeoutMs);
    }
    boolean tls = "rediss".equals(scheme);
    Path file = tlsCaFile == null || tlsCaFile.isEmpty() ? null : Path.of(tlsCaFile);
    if (file != null && !tls) {
      throw malformed("a TLS file is set, but it is not rediss://");
    }
    if (file != null && !Files.isReadable(file)) {
      throw new IllegalArgumentException(
          "pulsarTxnSparkStoreTlsCaFile: the file cannot be read: " + file);
    }
    String[] login = uri.getRawUserInfo() == null ? new String[0] : uri.getRawUserInfo().split(":", 2);
    String ownUser = login.length > 0 && !login[0].isEmpty() ? decoded(login[0]) : null;
    String ownPassword = login.length > 1 ? decoded(login[1]) : null;
    return new StoreSettings(
        uri.getHost(),
        uri.getPort() < 0 ? DEFAULT_PORT : uri.getPort(),
        tls,
        file,
        database(uri.getPath()),
        username == null || username.isEmpty() ? ownUser : username,
        password == null || password.isEmpty() ? ownPassword : password,
        timeoutMs);
  }

  private static int database(String path) {
    if (path == null || path.isEmpty() || "/".equals(path)) {
      return 0;
    }
    try {
      return Integer.parseUnsignedInt(path.substring(1));
    } catch (NumberFormatException error) {
      throw malformed("what follows the host has to be the number of a database");
    }
  }

  private static String decoded(String text) {
    return URLDecoder.decode(text.replace("+", "%2B"), StandardCharsets.UTF_8);
  }

  private static IllegalArgumentException malformed(String why) {
    return new IllegalArgumentException(
        "pulsarTxnSparkStoreUrl: expected redis://host:port/database, but " + why);
  }

  /** Without the secrets. */
  @Override
  public String toString() {
    return (tls ? "rediss://" : "redis://") + host + ":" + port + "/" + database;
  }
}
