package pulsartxnspark.store;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/** Reads PEM files into what Java's TLS needs. Java itself knows keys in PKCS #8 only. */
final class StoreTls {
  private static final Pattern BLOCK =
      Pattern.compile("-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \\1-----", Pattern.DOTALL);
  private static final char[] NO_PASSWORD = new char[0]; // the key store is in memory only
  private static final Map<String, String> SIGNATURES =
      Map.of("RSA", "SHA256withRSA", "EC", "SHA256withECDSA", "EdDSA", "EdDSA");

  static final int SEQUENCE = 0x30;
  static final int INTEGER = 2;
  static final int OCTETS = 4;
  static final int PARAMETERS = 0xa0; // of an EC key: the name of its curve
  private static final byte[] ZERO = {INTEGER, 1, 0};
  private static final byte[] RSA = {6, 9, 0x2a, (byte) 0x86, 0x48, (byte) 0x86, (byte) 0xf7, 0xd, 1, 1, 1};
  private static final byte[] NOTHING = {5, 0};
  private static final byte[] EC = {6, 7, 0x2a, (byte) 0x86, 0x48, (byte) 0xce, 0x3d, 2, 1};

  private StoreTls() {}

  /**
   * Reads the files.
   *
   * @param tls which ones
   * @return what makes encrypted sockets
   * @throws IllegalArgumentException if a file does not hold what it should; names the setting
   */
  static SSLContext context(StoreSettings.Tls tls) {
    try {
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(
          tls.certFile() == null ? null : own(tls),
          tls.caFile() == null ? null : trusted(tls.caFile()),
          null);
      return context;
    } catch (GeneralSecurityException | IOException error) {
      throw new IllegalArgumentException(
          "the TLS files of pulsarTxnSparkStore* cannot be used: " + error.getMessage(), error);
    }
  }

  private static TrustManager[] trusted(Path file) throws GeneralSecurityException, IOException {
    KeyStore authorities = emptyStore();
    int number = 0;
    for (Certificate certificate : certificates(file, "CaFile")) {
      authorities.setCertificateEntry("authority" + number++, certificate);
    }
    TrustManagerFactory managers =
        TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    managers.init(authorities);
    return managers.getTrustManagers();
  }

  private static KeyManager[] own(StoreSettings.Tls tls)
      throws GeneralSecurityException, IOException {
    List<Certificate> chain = certificates(tls.certFile(), "CertFile");
    PrivateKey key = key(tls.keyFile() == null ? tls.certFile() : tls.keyFile());
    if (!isOf(key, chain.get(0))) {
      throw new IllegalArgumentException(
          "pulsarTxnSparkStoreTlsKeyFile: expected the key of the first certificate in "
              + tls.certFile()
              + ", found another one");
    }
    KeyStore store = emptyStore();
    store.setKeyEntry("own", key, NO_PASSWORD, chain.toArray(Certificate[]::new));
    KeyManagerFactory managers =
        KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    managers.init(store, NO_PASSWORD);
    return managers.getKeyManagers();
  }

  private static KeyStore emptyStore() throws GeneralSecurityException, IOException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    return store;
  }

  private static List<Certificate> certificates(Path file, String setting)
      throws GeneralSecurityException, IOException {
    CertificateFactory factory = CertificateFactory.getInstance("X.509");
    List<Certificate> certificates = new ArrayList<>();
    Matcher blocks = BLOCK.matcher(Files.readString(file, StandardCharsets.ISO_8859_1));
    while (blocks.find()) {
      if (blocks.group(1).equals("CERTIFICATE")) {
        certificates.add(factory.generateCertificate(new ByteArrayInputStream(content(blocks, file))));
      }
    }
    if (certificates.isEmpty()) {
      throw new IllegalArgumentException(
          "pulsarTxnSparkStoreTls" + setting + ": expected PEM certificates in " + file);
    }
    return certificates;
  }

  private static PrivateKey key(Path file) throws GeneralSecurityException, IOException {
    Matcher blocks = BLOCK.matcher(Files.readString(file, StandardCharsets.ISO_8859_1));
    while (blocks.find()) {
      switch (blocks.group(1)) {
        case "PRIVATE KEY" -> {
          return key(content(blocks, file), file);
        }
        case "RSA PRIVATE KEY" -> {
          if (!blocks.group(2).contains("ENCRYPTED")) {
            byte[] algorithm = der(SEQUENCE, RSA, NOTHING);
            byte[] bare = der(OCTETS, content(blocks, file));
            return key(der(SEQUENCE, ZERO, algorithm, bare), file);
          }
        }
        case "EC PRIVATE KEY" -> {
          if (!blocks.group(2).contains("ENCRYPTED")) {
            byte[] bare = content(blocks, file);
            byte[] algorithm = der(SEQUENCE, EC, curve(bare, file));
            return key(der(SEQUENCE, ZERO, algorithm, der(OCTETS, bare)), file);
          }
        }
        default -> { }
      }
    }
    throw noKey(file, null);
  }

  private static PrivateKey key(byte[] pkcs8, Path file) throws GeneralSecurityException {
    for (String algorithm : SIGNATURES.keySet()) {
      try {
        return KeyFactory.getInstance(algorithm).generatePrivate(new PKCS8EncodedKeySpec(pkcs8));
      } catch (InvalidKeySpecException another) {
        // Of another algorithm.
      }
    }
    throw noKey(file, null);
  }

  private static IllegalArgumentException noKey(Path file, Exception cause) {
    return new IllegalArgumentException(
        "pulsarTxnSparkStoreTlsKeyFile: expected an RSA or EC key in PEM, without a password, in "
            + file,
        cause);
  }

  private static byte[] content(Matcher block, Path file) {
    try {
      return Base64.getMimeDecoder().decode(block.group(2));
    } catch (IllegalArgumentException error) {
      throw new IllegalArgumentException("pulsarTxnSparkStoreTls*: no PEM file: " + file, error);
    }
  }

  /** Tells whether a key is the one of a certificate, by a signature. */
  private static boolean isOf(PrivateKey key, Certificate certificate)
      throws GeneralSecurityException {
    byte[] probe = {1, 2, 3};
    Signature signature = Signature.getInstance(SIGNATURES.get(key.getAlgorithm()));
    signature.initSign(key);
    signature.update(probe);
    byte[] signed = signature.sign();
    try {
      signature.initVerify(certificate.getPublicKey());
      signature.update(probe);
      return signature.verify(signed);
    } catch (GeneralSecurityException otherKind) {
      return false;
    }
  }

  /** Encodes a value of ASN.1. */
  static byte[] der(int tag, byte[]... parts) {
    int length = 0;
    for (byte[] part : parts) {
      length += part.length;
    }
    byte[] head =
        length < 0x80
            ? new byte[] {(byte) tag, (byte) length}
            : new byte[] {(byte) tag, (byte) 0x82, (byte) (length >> 8), (byte) length};
    byte[] all = Arrays.copyOf(head, head.length + length);
    int at = head.length;
    for (byte[] part : parts) {
      System.arraycopy(part, 0, all, at, part.length);
      at += part.length;
    }
    return all;
  }

  /** Finds the curve in an EC key of RFC 5915: version, number, curve, public key. */
  private static byte[] curve(byte[] bare, Path file) {
    try {
      int at = 2 + (bare[1] < 0 ? bare[1] & 0x7f : 0);
      while ((bare[at] & 0xff) != PARAMETERS) {
        at += 2 + (bare[at + 1] & 0xff); // all that stands before it is short
      }
      return Arrays.copyOfRange(bare, at + 2, at + 2 + (bare[at + 1] & 0xff));
    } catch (IndexOutOfBoundsException error) {
      throw noKey(file, error);
    }
  }
}
