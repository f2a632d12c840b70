package pulsartxnspark.broker;

import pulsartxnspark.store.SegmentStore;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/** The coordinators of the metadata store. Where it has fewer than Pulsar, those of Pulsar share them. */
final class SharedCoordinators {
  private volatile int number = 1 << 16; // until it is known, none share one

  /** Learns how many the store has. */
  void learn(SegmentStore store) {
    number = store.coordinators();
  }

  /** Gives the coordinator in the store of a transaction. */
  int tc(TxnBits bits) {
    return bits.isOwn() ? bits.tc() : bits.tc() % number;
  }

  /** Gives the one writer of all producers of a transaction of Pulsar's own clients. */
  WriterId writer(TxnBits bits) {
    return WriterId.ofPulsar(bits, number);
  }
}
