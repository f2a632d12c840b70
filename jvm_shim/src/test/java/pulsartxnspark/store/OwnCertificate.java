package pulsartxnspark.store;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** A key with a certificate that it has signed itself, in a folder of a test. */
final class OwnCertificate {
  private static final char[] PASSWORD = "of a test".toCharArray();

  private final Path folder;
  private final String name;
  private final KeyStore keys = KeyStore.getInstance("PKCS12");

  /**
   * Makes one.
   *
   * @param algorithm EC, RSA or Ed25519
   * @param names for which it is valid, as in {@code dns:localhost} or {@code ip:127.0.0.1}
   */
  OwnCertificate(Path folder, String name, String algorithm, String names) throws Exception {
    this.folder = folder;
    this.name = name;
    String[] kind = algorithm.equals("EC") ? new String[] {"-groupname", "secp256r1"} : new String[0];
    keytool(
        Stream.concat(
                Stream.of("-genkeypair", "-keyalg", algorithm, "-dname", "CN=" + name,
                    "-ext", "SAN=" + names),
                Stream.of(kind))
            .toArray(String[]::new));
    keytool("-exportcert", "-rfc", "-file", file().toString());
    try (InputStream file = Files.newInputStream(folder.resolve(name + ".p12"))) {
      keys.load(file, PASSWORD);
    }
  }

  private void keytool(String... arguments) throws Exception {
    Path program = Path.of(System.getProperty("java.home"), "bin", "keytool");
    List<String> command = new ArrayList<>(List.of(program.toString()));
    command.addAll(List.of(arguments));
    command.addAll(List.of("-alias", "a", "-storepass", new String(PASSWORD)));
    command.addAll(List.of("-keystore", folder.resolve(name + ".p12").toString()));
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    String said = new String(process.getInputStream().readAllBytes());
    if (!process.waitFor(60, TimeUnit.SECONDS) || process.exitValue() != 0) {
      throw new IllegalStateException("keytool: " + said);
    }
  }

  /** Gives the certificate's PEM file. */
  Path file() {
    return folder.resolve(name + ".pem");
  }

  /** Gives the key as PKCS #8. */
  byte[] key() throws GeneralSecurityException {
    return ((PrivateKey) keys.getKey("a", PASSWORD)).getEncoded();
  }

  /** Writes the key into a PEM file. */
  Path keyFile() throws GeneralSecurityException, IOException {
    return write("key", pem("PRIVATE KEY", key()));
  }

  /** Writes a file beside the certificate. */
  Path write(String ending, String text) throws IOException {
    return Files.writeString(folder.resolve(name + "." + ending), text);
  }

  static String pem(String label, byte[] content) {
    String lines = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(content);
    return "-----BEGIN " + label + "-----\n" + lines + "\n-----END " + label + "-----\n";
  }

  /** Makes sockets that show this certificate, and trust one of these. */
  SSLContext context(OwnCertificate... trusted) throws GeneralSecurityException, IOException {
    KeyManagerFactory own = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    own.init(keys, PASSWORD);
    KeyStore others = KeyStore.getInstance("PKCS12");
    others.load(null, null);
    for (OwnCertificate one : trusted) {
      others.setCertificateEntry(one.name, one.keys.getCertificate("a"));
    }
    TrustManagerFactory trust =
        TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(others);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(own.getKeyManagers(), trust.getTrustManagers(), null);
    return context;
  }
}
