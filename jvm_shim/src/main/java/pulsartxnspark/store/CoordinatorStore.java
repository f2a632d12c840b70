package pulsartxnspark.store;

import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;

/**
 * What a broker's transaction coordinator does in the metadata store for clients of Pulsar's own. Each
 * step may be repeated after a lost reply.
 */
public interface CoordinatorStore {
  /** What came of a step that only the owner of an OPEN transaction may take. */
  enum Answer {
    /** It was taken. */
    OK,
    /** Another broker has opened the coordinator since. */
    FENCED,
    /** It is committed. */
    COMMITTED,
    /** It is aborted. */
    ABORTED,
    /** It has no header: it never had one, or it was over long ago. */
    ABSENT,
    /** The segment takes nothing of it any more. */
    CLOSED
  }

  /**
   * A header with what only a coordinator asks for.
   *
   * @param header as every reader sees it
   * @param owner role that has opened it; empty if nobody has authenticated
   * @param createdMs when it was opened, by the store's clock
   */
  record Owned(Header header, String owner, long createdMs) {}

  /**
   * How a transaction is to end.
   *
   * @param txn which one
   * @param nonce of its owner
   * @param writer counts with all its entries, if the decision is a commit
   * @param segments where the writer has written; null for an abort
   * @param timedOut whether an abort comes from a timeout
   */
  record Ending(
      TransactionId txn,
      String nonce,
      WriterId writer,
      Collection<String> segments,
      boolean timedOut) {}

  /**
   * Gives the number of coordinators in the store. A store may have fewer than Pulsar.
   *
   * @return at least 1
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  int coordinators();

  /**
   * Gives the store's identity.
   *
   * @return its uuid
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  String uuid();

  /**
   * Opens a coordinator: whoever has opened it before creates nothing more.
   *
   * @param pulsarTc its id in Pulsar
   * @return how often it was opened, for {@link #create}
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  long open(int pulsarTc);

  /**
   * Opens a transaction.
   *
   * @param pulsarTc id of the coordinator in Pulsar
   * @param nonce of its own, which names the coordinator and how often that was opened
   * @param owner role of the client; empty if it has not authenticated
   * @param timeoutMs after which anybody may abort it, in milliseconds
   * @return its id; nothing if another broker has opened the coordinator since
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Optional<TransactionId> create(int pulsarTc, String nonce, String owner, long timeoutMs);

  /**
   * Lists the transactions of all of Pulsar's coordinators that share one of the store, and that are
   * not ended everywhere.
   *
   * @param pulsarTc id of one of them in Pulsar
   * @return in the order of their counters
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  List<TransactionId> unended(int pulsarTc);

  /**
   * Lists the transactions that are OPEN, of clients of any kind, in the order of their counters.
   *
   * @param pulsarTc id of the coordinator in Pulsar
   * @param fromCounter the lowest counter to list
   * @return their counters
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  List<Long> open(int pulsarTc, long fromCounter);

  /**
   * Reads a header and its intents in one step.
   *
   * @param txn which transaction
   * @return its header; nothing if there is none
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Optional<Owned> read(TransactionId txn);

  /**
   * Takes over a transaction: whoever has served it before is fenced.
   *
   * @param txn which one
   * @param before the nonce that it had
   * @param after the nonce that it gets
   * @return what came of it
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Answer adopt(TransactionId txn, String before, String after);

  /**
   * Records participants before they are touched (INV-6).
   *
   * @param txn which transaction
   * @param nonce of its owner
   * @param leftMs how long it may still take, in milliseconds
   * @param intents the participants
   * @return what came of it
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Answer intend(TransactionId txn, String nonce, long leftMs, Collection<String> intents);

  /**
   * Pins a writer before its first entry (INV-2).
   *
   * @param segment where
   * @param writer who
   * @return OK, or CLOSED
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  Answer pin(String segment, WriterId writer);

  /**
   * Decides a transaction by one compare-and-set (INV-1).
   *
   * @param ending how it ends
   * @return OK; COMMITTED or ABORTED if it was decided before
   * @throws StoreException if the store does not answer: it may be decided or not
   */
  Answer end(Ending ending);

  /**
   * Materializes a decision in every segment (INV-3).
   *
   * @param header as it was read after the decision
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  void materialize(Header header);

  /** How far a transaction that is being ended has come. */
  enum Progress {
    /** Its header is decided. */
    DECIDED,
    /** Every segment knows the decision, too. */
    MATERIALIZED,
    /** So do all other participants: nothing is left to do. */
    ENDED
  }

  /**
   * Takes the step of {@link #create} together with steps of others; returns at once.
   *
   * @param pulsarTc as there
   * @param nonce as there
   * @param owner as there
   * @param timeoutMs as there
   * @return the transaction's id; nothing, or an error, where only {@link #create} tells what came of it
   */
  CompletableFuture<Optional<TransactionId>> createTogether(
      int pulsarTc, String nonce, String owner, long timeoutMs);

  /**
   * A pin that the store has.
   *
   * @param position where the writer is pinned
   * @param state of the segment's tag, which contains the pin
   */
  record Pin(LogPosition position, Seen state) {}

  /**
   * Records participants, then pins a writer in segments, together with steps of others; returns at
   * once. No pin is made where the intents are refused.
   *
   * @param txn which transaction
   * @param nonce of its owner
   * @param leftMs how long it may still take, in milliseconds
   * @param intents the participants
   * @param segments where to pin; among the intents
   * @param writer who
   * @return its pins, in the order of the segments; nothing, or an error, where only {@link #intend}
   *     and {@link #pin} tell what came of it
   */
  CompletableFuture<Optional<List<Pin>>> admitTogether(
      TransactionId txn,
      String nonce,
      long leftMs,
      List<String> intents,
      List<String> segments,
      WriterId writer);

  /**
   * Decides a transaction, and materializes the decision, together with steps of others; returns at
   * once.
   *
   * @param ending how it ends
   * @param intents all that the coordinator knows of: if there are others, it is only decided
   * @param everywhere whether it is ended everywhere by that, as no topic of Pulsar's own takes part
   * @return how far it has come; nothing, or an error, where only {@link #end} tells what came of it
   */
  CompletableFuture<Optional<Progress>> endTogether(
      Ending ending, Collection<String> intents, boolean everywhere);

  /**
   * Takes the step of {@link #ended} together with steps of others; returns at once.
   *
   * @param txn which one
   * @return whether it is noted; false, or an error, where only {@link #ended} tells
   */
  CompletableFuture<Boolean> endedTogether(TransactionId txn);

  /**
   * Takes the step of {@link #raise} together with steps of others; returns at once.
   *
   * @param segment its id
   * @param position of an acknowledged entry
   * @return whether the store knows it; false, or an error, where only {@link #raise} tells
   */
  CompletableFuture<Boolean> raiseTogether(String segment, LogPosition position);

  /**
   * Notes that a transaction is ended everywhere, in topics of Pulsar's own as well.
   *
   * @param txn which one
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  void ended(TransactionId txn);

  /**
   * Raises the last counter that was given out.
   *
   * @param pulsarTc id of the coordinator in Pulsar
   * @param last lowest number for it
   * @return the last counter
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  long raiseCounter(int pulsarTc, long last);

  /**
   * Notes how far a segment was acknowledged to producers. Pins made from then on lie no lower, and
   * the floor is never raised over an acknowledged entry (INV-5).
   *
   * @param segment its id
   * @param position of an acknowledged entry
   * @throws StoreException if the store does not answer, or is not to be relied on
   */
  void raise(String segment, LogPosition position);
}
