package pulsartxnspark.store;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A writer: one task attempt's identity within a transaction. Its name is the producer name of every
 * entry that it appends, and its bits are in the entry's metadata.
 *
 * <p>All producers of a transaction that a client of Pulsar's own has opened are one writer in the
 * store: {@code ptxn-<tc>-<counter>-pulsar-<TC id of Pulsar's>}. Its bits are Pulsar's transaction id.
 *
 * @param name as producers carry it, {@code ptxn-<tc>-<counter>-<attempt>-<random>}
 * @param tc id of the transaction's coordinator, 16 bits
 * @param counter of the transaction
 */
public record WriterId(String name, int tc, long counter) {
  private static final Pattern NAME = Pattern.compile("ptxn-(\\d{1,5})-(\\d{1,16})-[^-]+-[^-]+");
  private static final Pattern OF_PULSAR = Pattern.compile("ptxn-\\d+-\\d+-pulsar-(\\d{1,5})");
  private static final int TC_BITS = 16;
  private static final int HASH_BITS = 47;

  /**
   * Reads a producer's name.
   *
   * @param name of a producer
   * @return the writer, or nothing for a producer outside of this package's transactions
   */
  public static Optional<WriterId> ofName(String name) {
    Matcher matcher = NAME.matcher(name);
    if (!matcher.matches() || Integer.parseInt(matcher.group(1)) >= 1 << TC_BITS) {
      return Optional.empty();
    }
    int tc = Integer.parseInt(matcher.group(1));
    return Optional.of(new WriterId(name, tc, Long.parseLong(matcher.group(2))));
  }

  /**
   * Gives the writer of a transaction that a client of Pulsar's own has opened. A metadata store may
   * have fewer coordinators than Pulsar: several of Pulsar's then share one, and its counter.
   *
   * @param bits Pulsar's id of the transaction
   * @param coordinators how many the metadata store has
   * @return the writer
   */
  public static WriterId ofPulsar(TxnBits bits, int coordinators) {
    int tc = bits.tc() % coordinators;
    String name = "ptxn-" + tc + "-" + bits.least() + "-pulsar-" + bits.tc();
    return new WriterId(name, tc, bits.least());
  }

  /**
   * Gives the transaction that the writer writes for.
   *
   * @return its id
   */
  public TransactionId txn() {
    return new TransactionId(tc, counter);
  }

  /**
   * Gives the transaction bits of the writer's entries.
   *
   * @return which transaction, and which of its writers
   */
  public TxnBits bits() {
    Matcher ofPulsar = OF_PULSAR.matcher(name);
    if (ofPulsar.matches()) {
      return new TxnBits(Long.parseLong(ofPulsar.group(1)), counter);
    }
    long hash = hash(name);
    return new TxnBits(hash << TC_BITS | tc, counter);
  }

  private static long hash(String name) {
    try {
      byte[] digest =
          MessageDigest.getInstance("SHA-256").digest(name.getBytes(StandardCharsets.UTF_8));
      long hash = ByteBuffer.wrap(digest).getLong() >>> Long.SIZE - HASH_BITS;
      return Math.max(hash, 1); // 0 stands for Pulsar's own transactions
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException("every Java has SHA-256", error);
    }
  }

  /**
   * The transaction bits of an entry.
   *
   * @param most 47 bits of the writer's name, then 16 of the TC id
   * @param least counter of the transaction
   */
  public record TxnBits(long most, long least) {
    /**
     * Tells whether a writer of this package has written the entry.
     *
     * @return false for a transaction of Pulsar's own
     */
    public boolean isOwn() {
      return most >>> TC_BITS != 0;
    }

    /**
     * Gives the coordinator.
     *
     * @return TC id
     */
    public int tc() {
      return (int) (most & (1 << TC_BITS) - 1);
    }
  }
}
