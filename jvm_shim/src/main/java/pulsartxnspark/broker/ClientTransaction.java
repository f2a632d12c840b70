package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.common.util.Codec;
import org.apache.pulsar.transaction.coordinator.TransactionSubscription;
import org.apache.pulsar.transaction.coordinator.TxnMeta;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import pulsartxnspark.store.CoordinatorStore.Answer;
import pulsartxnspark.store.CoordinatorStore.Progress;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.WriterId;

/**
 * A transaction of a client of Pulsar's own, as its coordinator knows it. The metadata store decides;
 * this is what the broker remembers of it.
 */
final class ClientTransaction implements TxnMeta {
  private static final String SEPARATOR = "\\|";

  private final TxnID id;
  private final WriterId writer;
  private final String nonce;
  private final String owner; // null if nobody has authenticated
  private final long openedMs;
  private final long timeoutMs;

  // Guarded by this.
  private final Set<String> produced = new TreeSet<>(); // topics of Pulsar's own
  private final Set<String> gated = new TreeSet<>(); // topics of segments
  private final Set<TransactionSubscription> acked =
      new TreeSet<>(
          Comparator.comparing(TransactionSubscription::getTopic)
              .thenComparing(TransactionSubscription::getSubscription));
  private final Set<String> segments = new TreeSet<>(); // their ids
  private final Set<String> intents = new TreeSet<>(); // in the store
  private TxnStatus status = TxnStatus.OPEN;
  private int registering;
  private boolean ending;
  private Progress progress; // null until it is decided
  private boolean telling;

  /**
   * Makes one that is OPEN and has no participants.
   *
   * @param id Pulsar's
   * @param writer by which the store knows all of its producers
   * @param nonce by which the store knows its coordinator
   * @param owner role that has opened it, or null
   * @param openedMs by this broker's clock
   * @param timeoutMs after which it is aborted
   */
  ClientTransaction(
      TxnID id, WriterId writer, String nonce, String owner, long openedMs, long timeoutMs) {
    this.id = id;
    this.writer = writer;
    this.nonce = nonce;
    this.owner = owner;
    this.openedMs = openedMs;
    this.timeoutMs = timeoutMs;
  }

  WriterId writer() {
    return writer;
  }

  TransactionId txn() {
    return writer.txn();
  }

  String nonce() {
    return nonce;
  }

  /** Gives how long it may still take, in milliseconds; at least 1. */
  long leftMs(long nowMs) {
    return Math.max(1, openedMs + timeoutMs - nowMs);
  }

  @Override
  public TxnID id() {
    return id;
  }

  @Override
  public synchronized TxnStatus status() {
    return status;
  }

  /**
   * Gives the topics that it produces to. Once it is decided, only those of Pulsar's own: Pulsar tells
   * them of the end. Gated segments learn the decision from the store.
   */
  @Override
  public synchronized List<String> producedPartitions() {
    Set<String> topics = new TreeSet<>(produced);
    if (status == TxnStatus.OPEN) {
      topics.addAll(gated);
    }
    return new ArrayList<>(topics);
  }

  @Override
  public synchronized List<TransactionSubscription> ackedPartitions() {
    return new ArrayList<>(acked);
  }

  /** Gives the gated segments among what it produces to. */
  synchronized List<String> segments() {
    return List.copyOf(segments);
  }

  /** Begins to register participants: the transaction is not decided meanwhile. */
  synchronized void beginRegistering() throws InvalidTxnStatusException {
    if (ending || status != TxnStatus.OPEN) {
      throw new InvalidTxnStatusException(id, TxnStatus.OPEN, status);
    }
    registering++;
  }

  /** Ends what {@link #beginRegistering} has begun. */
  synchronized void endRegistering() {
    registering--;
  }

  /** Tells whether it may be decided now: nobody registers, and nobody will. */
  synchronized boolean beginEnding() {
    if (registering > 0) {
      return false;
    }
    ending = true;
    return true;
  }

  /** Notes how far its end has come. */
  synchronized void note(Progress reached) {
    if (progress == null || progress.compareTo(reached) < 0) {
      progress = reached;
    }
  }

  /** Tells whether its end has come so far. */
  synchronized boolean reached(Progress wanted) {
    return progress != null && progress.compareTo(wanted) >= 0;
  }

  /** Tells whether the store is to be told of its end now: nobody else does at the moment. */
  synchronized boolean beginTelling() {
    boolean begins = !telling;
    telling = true;
    return begins;
  }

  /** Lets it be told again. */
  synchronized void endTelling() {
    telling = false;
  }

  /** Notes the decision; it may be noted already. */
  synchronized void noteDecided(TxnStatus decision) {
    if (status == TxnStatus.OPEN) {
      status = decision;
    }
  }

  /** Notes intents that the store has. */
  synchronized void noteIntended(Collection<String> recorded) {
    intents.addAll(recorded);
  }

  /** Gives the intents that the store is known to have. */
  synchronized List<String> intents() {
    return List.copyOf(intents);
  }

  /** Tells whether topics or subscriptions of Pulsar's own take part. */
  synchronized boolean hasPulsars() {
    return intents.stream().anyMatch(intent -> intent.startsWith("N|"));
  }

  /** Notes a topic of Pulsar's own that the store knows. */
  synchronized void noteProduced(String topic) {
    produced.add(topic);
  }

  /** Notes a gated segment that the store knows, and its topic. */
  synchronized void noteGated(String topic, String segment) {
    gated.add(topic);
    segments.add(segment);
  }

  private synchronized void noteSegment(String segment) {
    segments.add(segment);
  }

  /** Notes subscriptions that the store knows. */
  synchronized void note(Collection<TransactionSubscription> subscriptions) {
    acked.addAll(subscriptions);
  }

  /** Notes what the store says of a recovered one. */
  void noteIntents(Collection<String> recorded) {
    noteIntended(recorded);
    for (String intent : recorded) {
      String[] parts = intent.split(SEPARATOR, 3);
      switch (parts[0]) {
        case "W" -> noteSegment(parts[1]);
        case "N" -> {
          String topic = Codec.decode(parts[1]);
          if (parts[2].isEmpty()) {
            noteProduced(topic);
          } else {
            note(
                List.of(
                    TransactionSubscription.builder()
                        .topic(topic)
                        .subscription(parts[2])
                        .build()));
          }
        }
        default -> { } // not of a coordinator
      }
    }
  }

  /** Gives the status between a decision and the end everywhere. */
  static TxnStatus ending(Header.State decision) {
    return decision == Header.State.COMMITTED ? TxnStatus.COMMITTING : TxnStatus.ABORTING;
  }

  /** Gives the status of one that the store says is over. */
  static TxnStatus over(Answer answer) {
    return answer == Answer.COMMITTED ? TxnStatus.COMMITTED : TxnStatus.ABORTED;
  }

  /** Gives the intent of a topic that it produces to and that is no gated segment. */
  static String intent(String topic) {
    return "N|" + Codec.encode(topic) + "|";
  }

  /** Gives the intent of a subscription. */
  static String intent(TransactionSubscription subscription) {
    return "N|" + Codec.encode(subscription.getTopic()) + "|" + subscription.getSubscription();
  }

  /** Gives the intent of a gated segment. */
  String segmentIntent(String segment) {
    return "W|" + segment + "|" + writer.name();
  }

  @Override
  public TxnMeta addProducedPartitions(List<String> partitions) {
    partitions.forEach(this::noteProduced);
    return this;
  }

  @Override
  public TxnMeta addAckedPartitions(List<TransactionSubscription> subscriptions) {
    note(subscriptions);
    return this;
  }

  @Override
  public synchronized TxnMeta updateTxnStatus(TxnStatus newStatus, TxnStatus expected)
      throws InvalidTxnStatusException {
    if (status != expected) {
      throw new InvalidTxnStatusException(id, expected, status);
    }
    status = newStatus;
    return this;
  }

  @Override
  public long getOpenTimestamp() {
    return openedMs;
  }

  @Override
  public long getTimeoutAt() {
    return timeoutMs; // so is it in Pulsar's own
  }

  @Override
  public String getOwner() {
    return owner;
  }
}
