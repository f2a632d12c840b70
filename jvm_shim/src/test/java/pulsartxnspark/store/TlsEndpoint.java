package pulsartxnspark.store;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLServerSocket;

/** A port of the loopback address behind which TLS ends: the tests' Redis may be built without it. */
final class TlsEndpoint implements AutoCloseable {
  private static final String PASSWORD = "of a test";

  private final SSLServerSocket listening;
  private final int target;
  private final Path certificate;

  /** Makes a certificate for a host's name, and listens. */
  TlsEndpoint(Path folder, String name, int target) throws Exception {
    this.target = target;
    Path keys = folder.resolve("keys.p12");
    certificate = folder.resolve("certificate.pem");
    List<String> store = List.of("-keystore", keys.toString(), "-storepass", PASSWORD);
    keytool(store, "-genkeypair", "-alias", "a", "-keyalg", "EC", "-dname", "CN=" + name,
        "-ext", "SAN=dns:" + name);
    keytool(store, "-exportcert", "-alias", "a", "-rfc", "-file", certificate.toString());
    listening = listen(keys);
    Thread thread = new Thread(this::accept, "tls-endpoint");
    thread.setDaemon(true);
    thread.start();
  }

  private static void keytool(List<String> store, String... arguments) throws Exception {
    Path program = Path.of(System.getProperty("java.home"), "bin", "keytool");
    List<String> command = new ArrayList<>(List.of(program.toString()));
    command.addAll(List.of(arguments));
    command.addAll(store);
    Process process =
        new ProcessBuilder(command).redirectErrorStream(true).start();
    String said = new String(process.getInputStream().readAllBytes());
    if (!process.waitFor(60, TimeUnit.SECONDS) || process.exitValue() != 0) {
      throw new IllegalStateException("keytool: " + said);
    }
  }

  private static SSLServerSocket listen(Path keys) throws GeneralSecurityException, IOException {
    KeyStore own = KeyStore.getInstance("PKCS12");
    try (InputStream file = Files.newInputStream(keys)) {
      own.load(file, PASSWORD.toCharArray());
    }
    KeyManagerFactory managers =
        KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    managers.init(own, PASSWORD.toCharArray());
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(managers.getKeyManagers(), null, null);
    return (SSLServerSocket)
        context.getServerSocketFactory().createServerSocket(0, 8, InetAddress.getLoopbackAddress());
  }

  int port() {
    return listening.getLocalPort();
  }

  Path certificate() {
    return certificate;
  }

  private void accept() {
    while (!listening.isClosed()) {
      try {
        Socket client = listening.accept();
        Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
        pipe(client, server);
        pipe(server, client);
      } catch (IOException closed) {
        // The next one, or the end.
      }
    }
  }

  private static void pipe(Socket from, Socket to) {
    Thread thread =
        new Thread(
            () -> {
              try (from;
                  to;
                  InputStream in = from.getInputStream();
                  OutputStream out = to.getOutputStream()) {
                in.transferTo(out);
              } catch (IOException ended) {
                // With it ends the other direction.
              }
            },
            "tls-endpoint-pipe");
    thread.setDaemon(true);
    thread.start();
  }

  @Override
  public void close() throws IOException {
    listening.close();
  }
}
