package pulsartxnspark.broker;

import static org.mockito.Mockito.RETURNS_DEFAULTS;
import static org.mockito.Mockito.mock;

import io.netty.util.HashedWheelTimer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.ManagedLedgerException;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.AckSetStateUtil;
import org.apache.commons.lang3.tuple.MutablePair;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.service.BrokerService;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.broker.transaction.pendingack.TransactionPendingAckStoreProvider;
import org.apache.pulsar.broker.transaction.pendingack.impl.PendingAckHandleImpl;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.util.ExecutorProvider;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.apache.pulsar.common.api.proto.TxnAction;
import org.mockito.stubbing.Answer;

/** A subscription that a broker has loaded, with Pulsar's own handle of its pending acks. */
final class AckedSubscription implements AutoCloseable {
  static final long LEDGER = 7;

  /** A cursor in one ledger, and what is left of it after a crash. */
  static final class Cursor {
    final Map<String, String> properties = new HashMap<>();
    boolean durable = true;
    boolean losesReply; // to the next change of a property
    private int version;
    private final TreeSet<Position> deleted = new TreeSet<>();
    private final Map<Position, BitSet> left = new TreeMap<>();
    private Position markDeleted = at(-1);
    private Position persistent = at(-1);

    /** The cursor's ledger has what was acknowledged up to here. */
    synchronized void flush() {
      persistent = markDeleted;
    }

    /** A broker dies: what was not flushed is forgotten. */
    synchronized void crash() {
      markDeleted = persistent;
      deleted.clear();
      left.clear();
    }

    synchronized void acknowledge(Position position) {
      long[] bits = AckSetStateUtil.getAckSetArrayOrNull(position);
      Position key = at(position.getEntryId());
      if (bits != null && bits.length > 0) {
        BitSet some = left.computeIfAbsent(key, of -> BitSet.valueOf(bits));
        some.and(BitSet.valueOf(bits));
        if (!some.isEmpty()) {
          return;
        }
      }
      deleted.add(key);
      while (deleted.contains(at(markDeleted.getEntryId() + 1))) {
        markDeleted = at(markDeleted.getEntryId() + 1);
      }
    }

    synchronized void acknowledgeUpTo(Position position) {
      long[] bits = AckSetStateUtil.getAckSetArrayOrNull(position);
      if (bits != null) {
        acknowledge(position);
      }
      long last = bits == null ? position.getEntryId() : position.getEntryId() - 1;
      markDeleted = at(Math.max(last, markDeleted.getEntryId()));
    }

    synchronized boolean isDeleted(Position position) {
      return position.compareTo(markDeleted) <= 0 || deleted.contains(position);
    }

    /** Gives the messages of a batch that are left, or nothing if all are. */
    synchronized BitSet left(long entry) {
      return left.get(at(entry));
    }

    synchronized Position markDeleted() {
      return markDeleted;
    }

    private synchronized CompletableFuture<Void> put(Shown by, Object name, Object value) {
      if (by.version != version) {
        return CompletableFuture.failedFuture(
            new ManagedLedgerException.BadVersionException("the cursor has changed"));
      }
      version++;
      properties.put((String) name, (String) value);
      if (losesReply) {
        losesReply = false;
        return CompletableFuture.failedFuture(
            new ManagedLedgerException.MetaStoreException("the reply is lost"));
      }
      by.version = version;
      by.properties = Map.copyOf(properties);
      return CompletableFuture.completedFuture(null);
    }

    private synchronized Object answer(String method, Object[] arguments) {
      return switch (method) {
        case "isDurable" -> durable;
        case "getMarkDeletedPosition" -> markDeleted;
        case "getPersistentMarkDeletedPosition" -> persistent;
        case "isMessageDeleted" -> isDeleted((Position) arguments[0]);
        case "getBatchPositionAckSet" -> {
          BitSet some = left.get(arguments[0]);
          yield some == null ? null : some.toLongArray();
        }
        default -> null;
      };
    }
  }

  /** What a broker has read of a cursor. */
  private static final class Shown {
    private volatile boolean isClosed;
    private Map<String, String> properties;
    private int version;
    private final Cursor cursor;

    Shown(Cursor cursor) {
      this.cursor = cursor;
      synchronized (cursor) {
        properties = Map.copyOf(cursor.properties);
        version = cursor.version;
      }
    }

    private Object answer(String method, Object[] arguments) {
      synchronized (cursor) {
        return switch (method) {
          case "isClosed" -> isClosed;
          case "getCursorProperties" -> properties;
          case "putCursorProperty" -> cursor.put(this, arguments[0], arguments[1]);
          default -> cursor.answer(method, arguments);
        };
      }
    }
  }

  final PersistentSubscription loaded;
  final PendingAckHandleImpl handle;
  final TransactionPendingAckStoreProvider provider;
  private final List<Long> redelivered = new ArrayList<>();
  private final ExecutorService thread = Executors.newSingleThreadExecutor();
  private final HashedWheelTimer timer = new HashedWheelTimer();
  final AtomicInteger closes = new AtomicInteger(); // of its topic, by the plug-in
  private final Cursor cursor;
  private final Shown read;

  /** Loads a subscription, as a broker does that owns the topic now. */
  AckedSubscription(
      Cursor cursor, Map<String, String> marks, TransactionPendingAckStoreProvider provider) {
    this.cursor = cursor;
    this.read = new Shown(cursor);
    this.provider = provider;
    ExecutorProvider threads = mock(ExecutorProvider.class, by(Map.of("getExecutor", thread)));
    PulsarService pulsar =
        mock(
            PulsarService.class,
            by(
                Map.of(
                    "getTransactionExecutorProvider", threads,
                    "getTransactionPendingAckStoreProvider", provider,
                    "getTransactionTimer", timer,
                    "getConfiguration", new ServiceConfiguration(),
                    "getConfig", new ServiceConfiguration())));
    BrokerService service = mock(BrokerService.class, by(Map.of("getPulsar", pulsar)));
    ManagedLedger ledger = mock(ManagedLedger.class, by(Map.of("getProperties", marks)));
    Answer<Object> ofTopic =
        by(
            Map.of(
                "getBrokerService", service,
                "getManagedLedger", ledger,
                "getName", "persistent://public/default/segment"));
    PersistentTopic topic =
        mock(
            PersistentTopic.class,
            call -> {
              if (call.getMethod().getName().equals("close")) {
                closes.incrementAndGet();
                return CompletableFuture.completedFuture(null);
              }
              return ofTopic.answer(call);
            });
    ManagedCursor shown =
        mock(
            ManagedCursor.class,
            call -> read.answer(call.getMethod().getName(), call.getArguments()));
    Map<String, Object> answers =
        Map.of(
            "getTopicName", "persistent://public/default/segment",
            "getName", "service",
            "getTopic", topic,
            "getCursor", shown,
            "toString", "service");
    loaded =
        mock(
            PersistentSubscription.class,
            call -> {
              Object[] arguments = call.getArguments();
              return switch (call.getMethod().getName()) {
                case "acknowledgeMessage" -> acknowledged(arguments);
                case "redeliverUnacknowledgedMessages" -> redeliver((List<?>) arguments[1]);
                case "endTxn" -> end(arguments);
                default -> answers.getOrDefault(
                    call.getMethod().getName(), RETURNS_DEFAULTS.answer(call));
              };
            });
    handle = new PendingAckHandleImpl(loaded);
  }

  private static Answer<Object> by(Map<String, Object> answers) {
    return call -> {
      Object found = answers.get(call.getMethod().getName());
      return found == null ? RETURNS_DEFAULTS.answer(call) : found;
    };
  }

  private Object acknowledged(Object[] arguments) {
    for (Object one : (Collection<?>) arguments[0]) {
      if (arguments[1] == AckType.Cumulative) {
        cursor.acknowledgeUpTo((Position) one);
      } else {
        cursor.acknowledge((Position) one);
        if (handle != null && cursor.isDeleted((Position) one)) {
          handle.clearIndividualPosition((Position) one);
        }
      }
    }
    return null;
  }

  private synchronized Object redeliver(List<?> positions) {
    positions.forEach(one -> redelivered.add(((Position) one).getEntryId()));
    return null;
  }

  /** Gives the entries that were delivered again, the first ones first. */
  synchronized List<Long> redelivered() {
    return redelivered.stream().sorted().toList();
  }

  /** Waits until the thread of the handle has done what it has to do, and what follows from it. */
  void settle() {
    for (int follows = 0; follows < 2; follows++) {
      CompletableFuture.runAsync(() -> {}, thread).join();
    }
  }

  private CompletableFuture<Void> end(Object[] arguments) {
    TxnID txn = new TxnID((long) arguments[0], (long) arguments[1]);
    return (int) arguments[2] == TxnAction.COMMIT_VALUE
        ? handle.commitTxn(txn, Map.of(), (long) arguments[3])
        : handle.abortTxn(txn, null, (long) arguments[3]);
  }

  static Position at(long entry) {
    return PositionFactory.create(LEDGER, entry);
  }

  /** Gives a position in a batch of 8, with the messages that a client has not acknowledged. */
  static Position batch(long entry, int... left) {
    BitSet bits = new BitSet();
    Arrays.stream(left).forEach(bits::set);
    return AckSetStateUtil.createPositionWithAckSet(LEDGER, entry, bits.toLongArray());
  }

  CompletableFuture<Void> acknowledge(TxnID txn, Position... positions) {
    List<MutablePair<Position, Integer>> all = new ArrayList<>();
    for (Position one : positions) {
      all.add(new MutablePair<>(one, AckSetStateUtil.hasAckSet(one) ? 8 : 0));
    }
    return handle.individualAcknowledgeMessage(txn, all);
  }

  /** The same by a client that does not say how many messages the batches have. */
  CompletableFuture<Void> acknowledgeUnsized(TxnID txn, Position... positions) {
    List<MutablePair<Position, Integer>> all = new ArrayList<>();
    for (Position one : positions) {
      all.add(new MutablePair<>(one, 0));
    }
    return handle.individualAcknowledgeMessage(txn, all);
  }

  CompletableFuture<Void> acknowledgeUpTo(TxnID txn, Position position) {
    return handle.cumulativeAcknowledgeMessage(txn, new ArrayList<>(List.of(position)));
  }

  /** A client acknowledges without a transaction. */
  void acknowledgePlainly(Position position) {
    loaded.acknowledgeMessage(List.of(position), AckType.Individual, Map.of());
  }

  CompletableFuture<Void> commit(TxnID txn) {
    return handle.commitTxn(txn, Map.of(), 0);
  }

  CompletableFuture<Void> abort(TxnID txn) {
    return handle.abortTxn(txn, null, 0);
  }

  boolean isLocked(long entry) {
    return handle.getPositionInPendingAck(at(entry)) != null;
  }

  /** Unloads it, also while it is being opened; its broker lives on. */
  void unload() {
    handle.closeAsync();
    read.isClosed = true;
  }

  /** Unloads it, and its broker stops. */
  @Override
  public void close() {
    handle.closeAsync().join();
    read.isClosed = true;
    thread.shutdown();
    timer.stop();
  }

  /** Its broker dies. */
  void crash() {
    thread.shutdownNow();
    timer.stop();
    cursor.crash();
  }
}
