package pulsartxnspark.broker;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.broker.service.BrokerServiceException.NotAllowedException;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.TransactionSubscription;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.InvalidTxnStatusException;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.CoordinatorStore.Answer;

/** Clients name what takes part in their transactions: topics, gated segments, subscriptions. */
final class CoordinatorParticipants {
  private final CoordinatorParts parts;
  private final CoordinatorStore store;
  private final GatedSegments gated;

  /**
   * Makes one that has registered nothing.
   *
   * @param parts of the coordinator
   * @param gated tells gated segments from other topics
   */
  CoordinatorParticipants(CoordinatorParts parts, GatedSegments gated) {
    this.parts = parts;
    this.store = parts.store();
    this.gated = gated;
  }

  /** Registers topics that a transaction produces to. */
  CompletableFuture<Void> addProduced(TxnID txnId, List<String> partitions) {
    return registering(
        txnId,
        transaction ->
            found(partitions)
                .thenCompose(
                    segments -> {
                      List<String> intents = new ArrayList<>();
                      for (String partition : partitions) {
                        GatedSegments.Segment segment = segments.get(partition);
                        // An ordinary topic ends it by Pulsar's own markers; so the header waits
                        // for that.
                        intents.add(
                            segment == null
                                ? ClientTransaction.intent(partition)
                                : transaction.segmentIntent(segment.id()));
                      }
                      List<String> ids =
                          segments.values().stream().map(GatedSegments.Segment::id).toList();
                      return admitted(transaction, intents, ids)
                          .thenRun(() -> note(transaction, partitions, segments));
                    }));
  }

  private static void note(
      ClientTransaction transaction,
      List<String> partitions,
      Map<String, GatedSegments.Segment> segments) {
    for (String partition : partitions) {
      GatedSegments.Segment segment = segments.get(partition);
      if (segment == null) {
        transaction.noteProduced(partition);
      } else {
        transaction.noteGated(partition, segment.id());
      }
    }
  }

  /** Registers subscriptions that a transaction acknowledges in. */
  CompletableFuture<Void> addAcked(TxnID txnId, List<TransactionSubscription> subscriptions) {
    return registering(
        txnId,
        transaction ->
            admitted(
                    transaction,
                    subscriptions.stream().map(ClientTransaction::intent).toList(),
                    List.of())
                .thenRun(() -> transaction.note(subscriptions)));
  }

  /** Registers participants of a transaction. */
  private interface Registration {
    CompletableFuture<Void> of(ClientTransaction transaction);
  }

  private CompletableFuture<Void> registering(TxnID txnId, Registration registration) {
    ClientTransaction transaction;
    try {
      parts.term().requireReady("add participants");
      transaction = parts.live().require(txnId);
      transaction.beginRegistering();
    } catch (Exception error) {
      return CompletableFuture.failedFuture(error);
    }
    CompletableFuture<Void> registered;
    try {
      registered = registration.of(transaction);
    } catch (RuntimeException malformed) { // such as a topic's name
      registered = CompletableFuture.failedFuture(malformed);
    }
    return registered.whenComplete((done, error) -> transaction.endRegistering());
  }

  /** Finds the gated segments among some topics; fails if one is of another store. */
  private CompletableFuture<Map<String, GatedSegments.Segment>> found(List<String> partitions) {
    Map<String, CompletableFuture<Optional<GatedSegments.Segment>>> lookups = new LinkedHashMap<>();
    partitions.forEach(partition -> lookups.put(partition, gated.find(partition)));
    return CompletableFuture.allOf(lookups.values().toArray(CompletableFuture<?>[]::new))
        .thenCompose(
            done -> {
              Map<String, GatedSegments.Segment> segments = new LinkedHashMap<>();
              lookups.forEach(
                  (partition, lookup) -> lookup.join().ifPresent(seg -> segments.put(partition, seg)));
              try {
                requireThisStore(segments);
              } catch (NotAllowedException error) {
                return CompletableFuture.failedFuture(error);
              }
              return CompletableFuture.completedFuture(segments);
            });
  }

  private void requireThisStore(Map<String, GatedSegments.Segment> segments)
      throws NotAllowedException {
    for (Map.Entry<String, GatedSegments.Segment> entry : segments.entrySet()) {
      if (!entry.getValue().storeUuid().equals(store.uuid())) {
        throw new NotAllowedException(
            entry.getKey()
                + " is a segment of metadata store "
                + entry.getValue().storeUuid()
                + ", but pulsarTxnSparkStoreUrl names store "
                + store.uuid()
                + ": the transaction cannot write there");
      }
    }
  }

  /** Records intents, then pins (INV-6, INV-2). */
  private CompletableFuture<Void> admitted(
      ClientTransaction transaction, List<String> intents, List<String> segments) {
    parts.counts().steps.increment();
    return parts
        .steps()
        .take(
            store.admitTogether(
                transaction.txn(),
                transaction.nonce(),
                transaction.leftMs(parts.nowMs()),
                intents,
                segments,
                transaction.writer()),
            () -> {
              intend(transaction, intents);
              for (String segment : segments) {
                if (store.pin(segment, transaction.writer()) != Answer.OK) {
                  throw new InvalidTxnStatusException(
                      "segment " + segment + " takes nothing more of transaction " + transaction.id());
                }
              }
              return List.<CoordinatorStore.Pin>of();
            })
        .thenAccept(
            made -> {
              transaction.noteIntended(intents);
              for (int i = 0; i < made.size(); i++) {
                parts.pins().note(segments.get(i), transaction.writer(), made.get(i));
              }
            });
  }

  private void intend(ClientTransaction transaction, List<String> intents) throws Exception {
    Answer answer =
        store.intend(
            transaction.txn(), transaction.nonce(), transaction.leftMs(parts.nowMs()), intents);
    switch (answer) {
      case OK -> { }
      case FENCED -> throw parts.term().fence();
      case ABSENT -> throw new TransactionNotFoundException(transaction.id());
      default ->
          throw new InvalidTxnStatusException(
              transaction.id(), TxnStatus.OPEN, ClientTransaction.over(answer));
    }
  }
}
