package pulsartxnspark.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A store that lets in whoever shows the right certificate, and nobody else. */
@Tag("tls")
class StoreTlsTest extends StoreTest {
  private static final int VERSION = 1;
  private static final byte[] P256 = {6, 8, 0x2a, (byte) 0x86, 0x48, (byte) 0xce, 0x3d, 3, 1, 7};

  @TempDir private static Path folder;
  private static OwnCertificate ofServer;
  private static OwnCertificate ofEc;
  private static OwnCertificate ofRsa;
  private static OwnCertificate ofEd;
  private static OwnCertificate ofStranger;
  private static TlsEndpoint endpoint;

  @BeforeAll
  static void startEndpoint() throws Exception {
    ofServer = new OwnCertificate(folder, "server", "EC", "dns:localhost");
    ofEc = new OwnCertificate(folder, "ec", "EC", "dns:a");
    ofRsa = new OwnCertificate(folder, "rsa", "RSA", "dns:b");
    ofEd = new OwnCertificate(folder, "ed", "Ed25519", "dns:c");
    ofStranger = new OwnCertificate(folder, "stranger", "EC", "dns:d");
    endpoint = new TlsEndpoint(ofServer, server.port(), ofEc, ofRsa, ofEd);
  }

  @AfterAll
  static void stopEndpoint() throws Exception {
    endpoint.close();
  }

  private static RedisConnections connect(Path certificate, Path key) {
    String cert = certificate == null ? "" : certificate.toString();
    String keyFile = key == null ? "" : key.toString();
    StoreSettings.Tls tls = StoreSettings.Tls.of(ofServer.file().toString(), cert, keyFile, true);
    String url = "rediss://localhost:" + endpoint.port();
    return new RedisConnections(
        StoreSettings.of(url, "", "", tls, 2_000).accepting(true, false));
  }

  private static Gate gate(RedisConnections connections) {
    return new RedisSegmentStore(new Scripts(connections), new StoreMetrics()).gate("s");
  }

  private static void works(Path certificate, Path key) {
    try (RedisConnections connections = connect(certificate, key)) {
      assertEquals(Gate.PLAIN, gate(connections));
    }
  }

  @Test
  void whoShowsACertificateOfTheStoresIsLetIn() throws Exception {
    works(ofEc.file(), ofEc.keyFile());
    works(ofRsa.file(), ofRsa.keyFile());
    works(ofEd.file(), ofEd.keyFile());
  }

  @Test
  void certificateAndKeyMayBeInOneFile() throws Exception {
    String both = Files.readString(ofEc.keyFile()) + Files.readString(ofEc.file());
    works(ofEc.write("both", both), null);
  }

  @Test
  void keysMayHaveTheFormsOfOlderPrograms() throws Exception {
    // PKCS #8 ends with the bare key; before it stand a version and the algorithm.
    byte[] rsa = ofRsa.key();
    byte[] bareRsa = Arrays.copyOfRange(rsa, rsa.length - bareLength(rsa), rsa.length);
    works(ofRsa.file(), ofRsa.write("pkcs1", OwnCertificate.pem("RSA PRIVATE KEY", bareRsa)));
    byte[] ec = ofEc.key();
    byte[] number = Arrays.copyOfRange(ec, ec.length - 32, ec.length);
    byte[] bareEc =
        StoreTls.der(
            StoreTls.SEQUENCE,
            new byte[] {StoreTls.INTEGER, 1, VERSION},
            StoreTls.der(StoreTls.OCTETS, number),
            StoreTls.der(StoreTls.PARAMETERS, P256));
    String old = OwnCertificate.pem("EC PARAMETERS", P256) + OwnCertificate.pem("EC PRIVATE KEY", bareEc);
    works(ofEc.file(), ofEc.write("sec1", old));
  }

  private static int bareLength(byte[] pkcs8) {
    int at = 26; // two heads, version, algorithm, and up to the length of the key
    return (pkcs8[at - 2] & 0xff) << 8 | pkcs8[at - 1] & 0xff;
  }

  @Test
  void whoShowsNoneOrAStrangersIsNotLetIn() throws Exception {
    try (RedisConnections none = connect(null, null);
        RedisConnections strange = connect(ofStranger.file(), ofStranger.keyFile())) {
      assertThrows(StoreUnavailableException.class, () -> gate(none));
      assertThrows(StoreUnavailableException.class, () -> gate(strange));
    }
  }

  @Test
  void aRenewedCertificateIsTakenWithTheNextConnection() throws Exception {
    Path certificate = folder.resolve("renewed.pem");
    Path key = folder.resolve("renewed.key");
    copy(ofStranger, certificate, key);
    try (RedisConnections connections = connect(certificate, key)) {
      assertThrows(StoreUnavailableException.class, () -> gate(connections));
      copy(ofEc, certificate, key);
      assertEquals(Gate.PLAIN, gate(connections));
    }
    try (RedisConnections connections = connect(certificate, key)) {
      Files.writeString(key, "half of a key");
      StoreException error =
          assertThrows(StoreUnavailableException.class, () -> gate(connections));
      assertTrue(error.getMessage().contains("pulsarTxnSparkStoreTlsKeyFile"), error.getMessage());
    }
  }

  private static void copy(OwnCertificate from, Path certificate, Path key) throws Exception {
    Files.copy(from.file(), certificate, StandardCopyOption.REPLACE_EXISTING);
    Files.copy(from.keyFile(), key, StandardCopyOption.REPLACE_EXISTING);
  }

  private static void refused(String setting, Path certificate, Path key) {
    String message =
        assertThrows(IllegalArgumentException.class, () -> connect(certificate, key)).getMessage();
    assertTrue(message.contains(setting), message);
  }

  @Test
  void aFileThatDoesNotHoldWhatItShouldIsNamedAtTheStart() throws Exception {
    Path key = ofEc.keyFile();
    refused("TlsCertFile", key, key);
    refused("TlsKeyFile", ofEc.file(), ofEc.file());
    refused("TlsKeyFile", ofEc.file(), ofStranger.keyFile());
    refused("TlsKeyFile", ofEc.file(), ofRsa.keyFile());
    refused("TlsKeyFile", null, key);
    String text = OwnCertificate.pem("ENCRYPTED PRIVATE KEY", ofEc.key());
    refused("TlsKeyFile", ofEc.file(), ofEc.write("encrypted", text));
    text = OwnCertificate.pem("EC PRIVATE KEY", new byte[] {StoreTls.SEQUENCE, 1, 1});
    refused("TlsKeyFile", ofEc.file(), ofEc.write("broken", text));
    text = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n-----END RSA PRIVATE KEY-----";
    refused("TlsKeyFile", ofRsa.file(), ofRsa.write("old-encrypted", text));
    refused("TlsCertFile", folder.resolve("missing"), key);
  }
}
