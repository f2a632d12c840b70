package pulsartxnspark.broker;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.List;
import org.apache.bookkeeper.mledger.Position;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckReplyCallBack;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.client.api.transaction.TxnID;

/**
 * What a store may do with Pulsar's handle while it is replayed. Pulsar lets its own package only; and
 * its call-back that is public forgets the batch of a cumulative acknowledgement.
 */
final class PendingAckHandles {
  private static final String INDIVIDUAL = "handleIndividualAckRecover";
  private static final String CUMULATIVE = "handleCumulativeAckRecover";

  private PendingAckHandles() {}

  /**
   * Refuses a release of Pulsar whose handle has other methods.
   *
   * @throws IllegalStateException if a method is missing
   */
  static void require() {
    method(INDIVIDUAL, List.class);
    method(CUMULATIVE, Position.class);
  }

  /** Holds messages for a transaction, unless another one holds them, or they are acknowledged. */
  static void holdIndividual(PendingAckHandleImpl handle, TxnID txn, AckRecord.Entry entry) {
    call(
        method(INDIVIDUAL, List.class),
        handle,
        txn,
        List.of(new MutablePair<>(entry.position(), entry.batchSize())));
  }

  /** Holds what lies up to a position for a transaction, unless another one holds such. */
  static void holdCumulative(PendingAckHandleImpl handle, TxnID txn, Position position) {
    call(method(CUMULATIVE, Position.class), handle, txn, position);
  }

  /** Lets the handle take acknowledgements from clients. */
  static void complete(PendingAckHandleImpl handle) {
    new MLPendingAckReplyCallBack(handle).replayComplete();
  }

  /** Tells whether the handle is replayed now. */
  static boolean isReplayed(PendingAckHandleImpl handle) {
    return "Initializing".equals(handle.getState().name());
  }

  private static Method method(String name, Class<?> type) {
    try {
      Method found = PendingAckHandleImpl.class.getDeclaredMethod(name, TxnID.class, type);
      found.setAccessible(true);
      return found;
    } catch (NoSuchMethodException | RuntimeException error) {
      throw new IllegalStateException(
          "expected a method "
              + name
              + " in PendingAckHandleImpl, found none: this version of Pulsar is not supported by the"
              + " pending acks of pulsar_txn_spark. Leave transactionPendingAckStoreProviderClassName"
              + " out",
          error);
    }
  }

  private static void call(Method method, PendingAckHandleImpl handle, TxnID txn, Object what) {
    try {
      method.invoke(handle, txn, what);
    } catch (InvocationTargetException error) {
      throw new IllegalStateException(error.getCause());
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }
}
