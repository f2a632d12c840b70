package pulsartxnspark.broker;

import java.util.Collection;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentNavigableMap;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.transaction.coordinator.exceptions.CoordinatorException.TransactionNotFoundException;
import org.apache.pulsar.transaction.coordinator.proto.TxnStatus;

/** The transactions of a coordinator that Pulsar has not ended, by their counters. */
final class LiveTransactions {
  private final int pulsarTc;
  private final KnownPins pins;
  private final ConcurrentNavigableMap<Long, ClientTransaction> live = new ConcurrentSkipListMap<>();
  private final AtomicLong lastCounter = new AtomicLong();
  // What is being created lies above these, and is not among the live ones yet.
  private final Map<Object, Long> creating = new ConcurrentHashMap<>();

  /**
   * Makes one without any.
   *
   * @param pulsarTc id of the coordinator in Pulsar
   * @param pins where the segments of this broker find those of live transactions
   */
  LiveTransactions(int pulsarTc, KnownPins pins) {
    this.pulsarTc = pulsarTc;
    this.pins = pins;
  }

  /** Gives one by its counter; null if it is not live. */
  ClientTransaction get(long counter) {
    return live.get(counter);
  }

  /** Gives one; null if it is not live here. */
  ClientTransaction get(TxnID txnId) {
    return txnId.getMostSigBits() == pulsarTc ? live.get(txnId.getLeastSigBits()) : null;
  }

  ClientTransaction require(TxnID txnId) throws TransactionNotFoundException {
    ClientTransaction transaction = get(txnId);
    if (transaction == null) {
      throw new TransactionNotFoundException(txnId);
    }
    return transaction;
  }

  /** Gives all of them, in the order of their counters. */
  Collection<ClientTransaction> all() {
    return live.values();
  }

  /** Gives the one with the lowest counter; null if there is none. */
  ClientTransaction first() {
    Map.Entry<Long, ClientTransaction> first = live.firstEntry();
    return first == null ? null : first.getValue();
  }

  int size() {
    return live.size();
  }

  /** Tells whether a transaction is live, and not decided. */
  boolean isOpen(long counter) {
    ClientTransaction transaction = live.get(counter);
    return transaction != null && transaction.status() == TxnStatus.OPEN;
  }

  /** Lets the low water mark wait for what is being created; gives what {@link #endCreating} takes. */
  Object beginCreating() {
    Object ticket = new Object();
    creating.put(ticket, lastCounter.get());
    return ticket;
  }

  void endCreating(Object ticket) {
    creating.remove(ticket);
  }

  void add(ClientTransaction transaction) {
    live.put(transaction.txn().counter(), transaction);
  }

  void remove(ClientTransaction transaction) {
    live.remove(transaction.txn().counter());
  }

  /** Forgets all of them, and their pins. */
  void clear() {
    live.values().forEach(transaction -> pins.forget(transaction.segments(), transaction.writer()));
    live.clear();
  }

  /** Notes a counter that was given out, or that never will be. */
  void raiseLast(long counter) {
    lastCounter.accumulateAndGet(counter, Math::max);
  }

  /** Gives the last counter that was given out. */
  long last() {
    return lastCounter.get();
  }

  /** Every older transaction is ended everywhere. */
  long lowWaterMark() {
    // In this order: what is created meanwhile has a higher number, or is in one of the two.
    long last = lastCounter.get();
    long below = creating.values().stream().min(Long::compare).orElse(last);
    ClientTransaction first = first();
    return first == null ? 0 : Math.min(Math.min(below, last), first.txn().counter() - 1);
  }
}
