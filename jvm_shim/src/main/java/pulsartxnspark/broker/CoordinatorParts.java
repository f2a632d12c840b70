package pulsartxnspark.broker;

import java.util.function.LongSupplier;
import pulsartxnspark.store.CoordinatorStore;
import pulsartxnspark.store.WriterId;
import pulsartxnspark.store.WriterId.TxnBits;

/**
 * What the parts of one coordinator share.
 *
 * @param term whether it is ready, and of which opening
 * @param live its transactions
 * @param steps how the store is asked
 * @param store where the transactions are
 * @param pins where the segments of this broker find those that are made here
 * @param counts what is shown of it
 * @param clockMs the broker's clock
 */
record CoordinatorParts(
    CoordinatorTerm term,
    LiveTransactions live,
    CoordinatorSteps steps,
    CoordinatorStore store,
    KnownPins pins,
    CoordinatorCounts counts,
    LongSupplier clockMs) {
  /** Gives the one writer of all producers of a transaction. */
  WriterId writer(long counter) {
    return WriterId.ofPulsar(new TxnBits(term.pulsarTc(), counter), store.coordinators());
  }

  long nowMs() {
    return clockMs.getAsLong();
  }
}
