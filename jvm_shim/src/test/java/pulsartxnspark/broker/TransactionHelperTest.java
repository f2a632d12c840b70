package pulsartxnspark.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import pulsartxnspark.store.Header;
import pulsartxnspark.store.Header.State;
import pulsartxnspark.store.Outcome;
import pulsartxnspark.store.StoreUnavailableException;
import pulsartxnspark.store.TransactionId;
import pulsartxnspark.store.TransactionStore;

/** When it reads, and what it does then; on what it does, see RedisTransactionStoreTest. */
class TransactionHelperTest {
  private static final long POLL_MS = 100;
  private static final TransactionId TXN = new TransactionId(0, 1);
  private static final TransactionId OTHER = new TransactionId(0, 2);

  private long nowMs = 1_000;
  private final FakeStore store = new FakeStore();
  private final TransactionHelper helper =
      new TransactionHelper(store, Runnable::run, POLL_MS, () -> nowMs);

  /** Headers in memory; its clock is 5 s ahead of the broker's. */
  private final class FakeStore implements TransactionStore {
    final Map<TransactionId, Header> headers = new HashMap<>();
    final List<String> calls = new ArrayList<>();
    boolean away;
    Runnable beforeAbort = () -> { };

    long clockMs() {
      return nowMs + 5_000;
    }

    void put(TransactionId txn, State state, long deadlineMs, long finalizedMs) {
      headers.put(
          txn,
          new Header(txn, state, "n", deadlineMs, finalizedMs, 0, Outcome.NONE, List.of()));
    }

    @Override
    public Optional<Header> read(TransactionId txn) {
      if (away) {
        throw new StoreUnavailableException("no answer", null);
      }
      calls.add("read " + txn);
      return Optional.ofNullable(headers.get(txn))
          .map(
              one ->
                  new Header(
                      txn, one.state(), "n", one.deadlineMs(), one.finalizedMs(), clockMs(),
                      Outcome.NONE, List.of()));
    }

    @Override
    public void abortExpired(TransactionId txn) {
      calls.add("abort " + txn);
      beforeAbort.run();
      Header header = headers.get(txn);
      if (header.state() == State.OPEN && header.deadlineMs() <= clockMs()) {
        put(txn, State.ABORTED, header.deadlineMs(), clockMs());
      }
    }

    @Override
    public Map<Integer, Map<String, Long>> counts() {
      throw new AssertionError("a helper counts nothing");
    }

    @Override
    public void materialize(Header header) {
      calls.add("materialize " + header.txn() + " " + header.state());
    }
  }

  /** Names transactions after some time; returns what the store was asked. */
  private List<String> after(long passedMs, TransactionId... txns) {
    nowMs += passedMs;
    store.calls.clear();
    helper.inTheWay(List.of(txns));
    return List.copyOf(store.calls);
  }

  @Test
  void whatIsOverWithinAnIntervalCostsNothing() {
    store.put(TXN, State.OPEN, store.clockMs() + 10_000, 0);
    assertEquals(List.of(), after(0, TXN));
    assertEquals(List.of(), after(POLL_MS - 1, TXN));
    assertEquals(List.of("read (0,1)"), after(1, TXN));
  }

  @Test
  void anExpiredOneIsAbortedReadAgainAndMaterialized() {
    store.put(TXN, State.OPEN, store.clockMs() + 500, 0);
    after(0, TXN);
    assertEquals(List.of("read (0,1)"), after(POLL_MS, TXN));
    assertEquals(List.of(), after(399, TXN));
    assertEquals(
        List.of("read (0,1)", "abort (0,1)", "read (0,1)", "materialize (0,1) ABORTED"),
        after(1, TXN));
  }

  @Test
  void anOwnerWhoComesBackInBetweenKeepsItsTransaction() {
    store.put(TXN, State.OPEN, 0, 0);
    store.beforeAbort = () -> store.put(TXN, State.OPEN, store.clockMs() + 10_000, 0);
    after(0, TXN);
    assertEquals(List.of("read (0,1)", "abort (0,1)", "read (0,1)"), after(POLL_MS, TXN));
    assertEquals(List.of(), after(9 * POLL_MS, TXN));
  }

  @Test
  void aCommitThatComesFirstIsMaterializedAsACommit() {
    store.put(TXN, State.OPEN, 0, 0);
    store.beforeAbort = () -> store.put(TXN, State.COMMITTED, 0, store.clockMs());
    after(0, TXN);
    List<String> calls = after(POLL_MS, TXN);
    assertEquals("materialize (0,1) COMMITTED", calls.get(calls.size() - 1));
  }

  @Test
  void aLongLeaseDoesNotHideADecisionWhoseDriverDied() {
    store.put(TXN, State.OPEN, store.clockMs() + 1_000_000, 0);
    after(0, TXN);
    after(POLL_MS, TXN);
    store.put(TXN, State.COMMITTED, 0, store.clockMs());
    assertEquals(List.of("read (0,1)", "materialize (0,1) COMMITTED"), after(10 * POLL_MS, TXN));
  }

  @Test
  void aDriverHasAnIntervalToMaterializeItsOwnDecision() {
    store.put(TXN, State.COMMITTED, 0, store.clockMs() + POLL_MS);
    after(0, TXN);
    assertEquals(List.of("read (0,1)"), after(POLL_MS, TXN));
    assertEquals(List.of("read (0,1)", "materialize (0,1) COMMITTED"), after(POLL_MS, TXN));
  }

  @Test
  void withoutAHeaderNothingIsDecided() {
    after(0, TXN);
    assertEquals(List.of("read (0,1)"), after(POLL_MS, TXN));
    assertEquals(List.of("read (0,1)"), after(POLL_MS, TXN));
    assertEquals(List.of("read (0,1)"), after(POLL_MS, TXN));
  }

  @Test
  void aStoreThatIsAwayIsAskedOnceInAnInterval() {
    store.put(TXN, State.OPEN, 0, 0);
    store.put(OTHER, State.OPEN, 0, 0);
    after(0, TXN, OTHER);
    store.away = true;
    assertEquals(List.of(), after(POLL_MS, TXN, OTHER));
    store.away = false;
    List<String> calls = after(POLL_MS, TXN, OTHER);
    assertEquals(2, calls.stream().filter(one -> one.startsWith("materialize")).count());
  }

  @Test
  void whatNobodyNamesAnyMoreIsForgotten() {
    store.put(TXN, State.OPEN, 0, 0);
    after(0, TXN);
    after(100 * POLL_MS, OTHER);
    assertEquals(List.of(), after(0, TXN)); // seen for the first time again
  }
}
