package pulsartxnspark.store;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.Signature;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.ECGenParameterSpec;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.Base64;
import java.util.Date;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.bouncycastle.asn1.ASN1ObjectIdentifier;
import org.bouncycastle.asn1.edec.EdECObjectIdentifiers;
import org.bouncycastle.asn1.pkcs.PKCSObjectIdentifiers;
import org.bouncycastle.asn1.x500.X500Name;
import org.bouncycastle.asn1.x509.AlgorithmIdentifier;
import org.bouncycastle.asn1.x509.Extension;
import org.bouncycastle.asn1.x509.GeneralName;
import org.bouncycastle.asn1.x509.GeneralNames;
import org.bouncycastle.asn1.x9.X9ObjectIdentifiers;
import org.bouncycastle.cert.jcajce.JcaX509v3CertificateBuilder;
import org.bouncycastle.operator.ContentSigner;

/** A key with a certificate that it has signed itself, in a folder of a test. */
final class OwnCertificate {
  private static final char[] PASSWORD = "of a test".toCharArray();
  private static final int RSA_BITS = 2_048;
  private static final long VALID_H = 24;

  private final Path folder;
  private final String name;
  private final KeyStore keys = KeyStore.getInstance("PKCS12");

  /**
   * Makes one.
   *
   * @param algorithm EC, RSA or Ed25519
   * @param validFor a name, as in {@code dns:localhost} or {@code ip:127.0.0.1}
   */
  OwnCertificate(Path folder, String name, String algorithm, String validFor) throws Exception {
    this.folder = folder;
    this.name = name;
    KeyPairGenerator generator = KeyPairGenerator.getInstance(algorithm);
    if (algorithm.equals("EC")) {
      generator.initialize(new ECGenParameterSpec("secp256r1"));
    } else if (algorithm.equals("RSA")) {
      generator.initialize(RSA_BITS);
    }
    KeyPair pair = generator.generateKeyPair();
    X509Certificate certificate = signed(pair, new Signer(pair.getPrivate()), nameOf(validFor));
    keys.load(null, null);
    keys.setKeyEntry("a", pair.getPrivate(), PASSWORD, new X509Certificate[] {certificate});
    Files.writeString(file(), pem("CERTIFICATE", certificate.getEncoded()));
  }

  private static GeneralName nameOf(String validFor) {
    String[] kindAndName = validFor.split(":", 2);
    int kind = kindAndName[0].equals("ip") ? GeneralName.iPAddress : GeneralName.dNSName;
    return new GeneralName(kind, kindAndName[1]);
  }

  private X509Certificate signed(KeyPair pair, Signer signer, GeneralName validFor)
      throws GeneralSecurityException, IOException {
    Instant now = Instant.now();
    X500Name subject = new X500Name("CN=" + name);
    byte[] certificate =
        new JcaX509v3CertificateBuilder(
                subject,
                BigInteger.ONE,
                Date.from(now.minus(VALID_H, ChronoUnit.HOURS)),
                Date.from(now.plus(VALID_H, ChronoUnit.HOURS)),
                subject,
                pair.getPublic())
            .addExtension(Extension.subjectAlternativeName, false, new GeneralNames(validFor))
            .build(signer)
            .getEncoded();
    return (X509Certificate)
        CertificateFactory.getInstance("X.509")
            .generateCertificate(new ByteArrayInputStream(certificate));
  }

  /** Signs by the JDK: Bouncy Castle's own signer fits another version than the broker's. */
  private static final class Signer implements ContentSigner {
    private final ByteArrayOutputStream content = new ByteArrayOutputStream();
    private final PrivateKey key;
    private final String algorithm;
    private final ASN1ObjectIdentifier identifier;

    Signer(PrivateKey key) {
      this.key = key;
      switch (key.getAlgorithm()) {
        case "EC" -> {
          algorithm = "SHA256withECDSA";
          identifier = X9ObjectIdentifiers.ecdsa_with_SHA256;
        }
        case "RSA" -> {
          algorithm = "SHA256withRSA";
          identifier = PKCSObjectIdentifiers.sha256WithRSAEncryption;
        }
        default -> {
          algorithm = "Ed25519";
          identifier = EdECObjectIdentifiers.id_Ed25519;
        }
      }
    }

    @Override
    public AlgorithmIdentifier getAlgorithmIdentifier() {
      return new AlgorithmIdentifier(identifier);
    }

    @Override
    public OutputStream getOutputStream() {
      return content;
    }

    @Override
    public byte[] getSignature() {
      try {
        Signature signature = Signature.getInstance(algorithm);
        signature.initSign(key);
        signature.update(content.toByteArray());
        return signature.sign();
      } catch (GeneralSecurityException error) {
        throw new IllegalStateException(error);
      }
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
