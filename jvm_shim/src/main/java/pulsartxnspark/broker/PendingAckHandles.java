package pulsartxnspark.broker;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.List;
import org.apache.bookkeeper.mledger.Position;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.commons.lang3.tuple.Pair;
import org.apache.pulsar.broker.transaction.pendingack.impl.MLPendingAckReplyCallBack;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.client.api.transaction.TxnID;

/**
 * What a store may do with Pulsar's handle, in its thread. Pulsar lets its own package only; and its
 * call-back that is public forgets the batch of a cumulative acknowledgement.
 */
final class PendingAckHandles {
  private static final String INDIVIDUAL = "handleIndividualAckRecover";
  private static final String CUMULATIVE = "handleCumulativeAckRecover";
  private static final String LOCKED = "cumulativeAckOfTransaction";

  /**
   * What a transaction has locked by a cumulative acknowledgement.
   *
   * @param txn which one
   * @param position the last one
   */
  record UpTo(TxnID txn, Position position) {}

  private PendingAckHandles() {}

  /**
   * Refuses a release of Pulsar whose handle has other methods.
   *
   * @throws IllegalStateException if a method or a field is missing
   */
  static void require() {
    locked();
    method(INDIVIDUAL, List.class);
    method(CUMULATIVE, Position.class);
  }

  /** Locks messages for a transaction, unless another one has, or they are acknowledged. */
  static void lockIndividual(PendingAckHandleImpl handle, TxnID txn, AckRecord.Entry entry) {
    call(
        method(INDIVIDUAL, List.class),
        handle,
        txn,
        List.of(new MutablePair<>(entry.position(), entry.batchSize())));
  }

  /** Locks what lies up to a position for a transaction, unless another one has locked such. */
  static void lockCumulative(PendingAckHandleImpl handle, TxnID txn, Position position) {
    call(method(CUMULATIVE, Position.class), handle, txn, position);
  }

  /** Gives what is locked up to a position; null if nothing is. */
  static UpTo cumulative(PendingAckHandleImpl handle) {
    try {
      Pair<?, ?> pair = (Pair<?, ?>) locked().get(handle);
      return pair == null ? null : new UpTo((TxnID) pair.getLeft(), (Position) pair.getRight());
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Lets a handle lock up to a position what it had locked before; null for nothing. */
  static void restoreCumulative(PendingAckHandleImpl handle, UpTo before) {
    try {
      locked().set(handle, before == null ? null : MutablePair.of(before.txn(), before.position()));
    } catch (IllegalAccessException error) {
      throw new IllegalStateException(error);
    }
  }

  private static Field locked() {
    try {
      Field field = PendingAckHandleImpl.class.getDeclaredField(LOCKED);
      if (!field.getType().isAssignableFrom(MutablePair.class)) {
        throw new NoSuchFieldException(LOCKED + " of type " + field.getType());
      }
      field.setAccessible(true);
      return field;
    } catch (NoSuchFieldException | RuntimeException error) {
      throw missing("field " + LOCKED, error);
    }
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
      Method method = PendingAckHandleImpl.class.getDeclaredMethod(name, TxnID.class, type);
      method.setAccessible(true);
      return method;
    } catch (NoSuchMethodException | RuntimeException error) {
      throw missing("method " + name, error);
    }
  }

  private static IllegalStateException missing(String what, Exception error) {
    return new IllegalStateException(
        "expected a "
            + what
            + " in PendingAckHandleImpl, found none: this version of Pulsar is not supported by the"
            + " pending acks of pulsar_txn_spark. Leave transactionPendingAckStoreProviderClassName"
            + " out",
        error);
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
