package pulsartxnspark.store;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.Socket;
import javax.net.ssl.SSLServerSocket;

/** A port of the loopback address behind which TLS ends: the tests' Redis may be built without it. */
final class TlsEndpoint implements AutoCloseable {
  private final SSLServerSocket listening;
  private final int target;

  /**
   * Listens.
   *
   * @param own what it shows
   * @param target port of the server behind it
   * @param clients whom it lets in; anybody if there is none
   */
  TlsEndpoint(OwnCertificate own, int target, OwnCertificate... clients) throws Exception {
    this.target = target;
    listening =
        (SSLServerSocket)
            own.context(clients)
                .getServerSocketFactory()
                .createServerSocket(0, 8, InetAddress.getLoopbackAddress());
    listening.setNeedClientAuth(clients.length > 0);
    Thread thread = new Thread(this::accept, "tls-endpoint");
    thread.setDaemon(true);
    thread.start();
  }

  int port() {
    return listening.getLocalPort();
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
