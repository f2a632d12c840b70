package pulsartxnspark.broker;

import java.security.SecureRandom;
import java.util.HexFormat;
import org.apache.bookkeeper.mledger.ManagedLedgerException.ManagedLedgerFencedException;
import org.apache.pulsar.transaction.coordinator.TransactionCoordinatorID;
import org.apache.pulsar.transaction.coordinator.TransactionMetadataStoreState;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionMetadataStoreStateException;

/** A coordinator from its opening to its end: whoever opens it later fences this one. */
final class CoordinatorTerm extends TransactionMetadataStoreState {
  /** Begins the nonces of coordinators; those of this package's clients are hexadecimal. */
  static final String NONCE_PREFIX = "pulsar-";

  private static final SecureRandom RANDOM = new SecureRandom();

  private final TransactionCoordinatorID id;
  private final int pulsarTc;
  private final Runnable release;
  private final Runnable makeRoom;
  private volatile long epoch;

  /**
   * Makes one that has not begun.
   *
   * @param id Pulsar's id of the coordinator
   * @param release run once at its end, to let go of what it has
   * @param makeRoom run once if another broker is found to have opened the coordinator: for one that
   *     is opened anew
   */
  CoordinatorTerm(TransactionCoordinatorID id, Runnable release, Runnable makeRoom) {
    super(State.None);
    this.id = id;
    this.pulsarTc = Math.toIntExact(id.getId());
    this.release = release;
    this.makeRoom = makeRoom;
  }

  TransactionCoordinatorID id() {
    return id;
  }

  int pulsarTc() {
    return pulsarTc;
  }

  /** Tells whether it begins now: nobody has begun it before. */
  boolean begin() {
    return changeToInitializingState();
  }

  /** Sets how often the coordinator was opened, this time included. */
  void setEpoch(long opened) {
    epoch = opened;
  }

  /** Ends the recovery; returns false if it was closed meanwhile. */
  boolean becomeReady() {
    return changeToReadyState();
  }

  boolean isReady() {
    return checkIfReady();
  }

  void requireReady(String what) throws Exception {
    if (!checkIfReady()) {
      throw notReady(what);
    }
  }

  /** Pulsar asks again after this error; but for one that was closed, which is elsewhere. */
  Exception notReady(String what) {
    State state = getState();
    return state == State.Closing || state == State.Close
        ? fenced()
        : new TransactionMetadataStoreStateException(id, State.Ready, state, what);
  }

  /** A client that gets this error asks which broker has the coordinator now. */
  ManagedLedgerFencedException fenced() {
    return new ManagedLedgerFencedException(
        new IllegalStateException("the coordinator " + id + " was opened anew, or elsewhere"));
  }

  /** Pulsar opens none while it has this one, and does not remove it by itself. */
  ManagedLedgerFencedException fence() {
    if (close()) {
      makeRoom.run();
    }
    return fenced();
  }

  /** Returns false if it was closed before. */
  boolean close() {
    if (!changeToClosingState()) {
      return false;
    }
    release.run();
    changeToCloseState();
    return true;
  }

  /** Makes a nonce of this term. */
  String newNonce() {
    byte[] random = new byte[8];
    RANDOM.nextBytes(random);
    return NONCE_PREFIX + pulsarTc + "-" + epoch + "-" + HexFormat.of().formatHex(random);
  }

  /** Tells whether a nonce is of this coordinator, in any term. */
  boolean isOfThis(String nonce) {
    return nonce.startsWith(NONCE_PREFIX + pulsarTc + "-");
  }

  /** Tells whether a nonce of this coordinator is of a later term. */
  boolean isBefore(String nonce) {
    return Long.parseLong(nonce.split("-", 4)[2]) > epoch;
  }
}
