"""One micro-batch, one transaction: begin, join, replay, fence, commit (INV-7, INV-8)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    BatchNotRecordedError,
    CommitStateUnknownError,
    FencedError,
    StoreCorruptError,
    StoreUnsafeError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Pointer, TaskWrite
from pulsar_txn_spark.store.records import AckRequest, Code, Cursor, SinkEntry, TxnId, TxnState
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, SinkRules, new_nonce
from pulsar_txn_spark.txn.committed import batch_is_committed
from pulsar_txn_spark.txn.coordinator import LastBegun, TxnStatus
from pulsar_txn_spark.txn.participants import pointer_intent
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore, PlannedRange, ReadPlan
from pulsar_txn_spark.txn.read_progress import ReadProgress
from pulsar_txn_spark.txn.sweeper import Sweeper
from tests.support.scenario import SEGMENT, Fault, Loss, Txn, World, ack

KEY = BatchKey("sink", "query", 0)
NEXT = BatchKey("sink", "query", 1)
ONCE, SOMETIMES = SinkRules(once=True), SinkRules(every_batch=False)
REPLICA = StoreUnsafeError("the server is a replica")
P1, P2, P3 = Position(1, 10), Position(1, 20), Position(1, 30)


def plan(
    end: Position,
    start: Position = EARLIEST,
    *,
    run: str = "run",
    subscription: str = "sub",
    source_epoch: int = 1,
) -> ReadPlan:
    ranges = (PlannedRange(SEGMENT, start, end),)
    return ReadPlan(f"source-{source_epoch}-{run}", source_epoch, subscription, run, ranges)


def register(world: World, key: BatchKey, found: ReadPlan) -> None:
    world.store.queries.register_plan(key.query, str(key.batch), found.source, found.serialize())


def cursor_position(world: World) -> Position:
    [found] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert found is not None
    return found.position


def open_ones(world: World) -> list[TxnId]:
    shards = range(world.store.identity.coordinators)
    return [
        txn
        for tc in shards
        for txn, _ in world.store.transactions.list_open(tc, deadline_ms=None, limit=100)
    ]


def empty(attempt: Attempt) -> TaskWrite:
    return TaskWrite(partition=0, txn_id=attempt.txn.key)


# --- begin and join ---------------------------------------------------------------------------


def test_a_first_attempt_opens_a_transaction_that_the_pointer_names(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1", "owner")
    header = world.header(attempt.txn)
    assert (header.state, header.nonce, header.owner) == (TxnState.OPEN, "n1", "owner")
    assert (header.sink, header.query, header.batch) == ("sink", "query", "0")
    assert header.intents == {pointer_intent("query", "sink")}, "the pointer is a participant"
    pointer = Pointer.FromString(world.store.sinks.read_pointer("sink", "query").own)
    assert (pointer.batch_id, pointer.txn_id, pointer.nonce) == (0, attempt.txn.key, "n1")


def test_all_tasks_of_an_attempt_join_one_transaction(world: World) -> None:
    attempts = {
        process.batches.begin(KEY, "n1")
        for process in (world, world.another_process(), world.another_process())
    }
    assert len(attempts) == 1
    assert len(open_ones(world)) == 1


def test_tasks_that_begin_at_the_same_moment_join_one_transaction(world: World) -> None:
    processes = [world.another_process() for _ in range(6)]
    for process in processes:
        process.store.scripts._seen.clear()
    found: list[Attempt] = []
    errors: list[Exception] = []
    start = threading.Barrier(len(processes))

    def task(process: World) -> None:
        start.wait()
        try:
            found.append(process.batches.begin(KEY, "n1"))
        except Exception as error:  # noqa: BLE001 - reported below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=task, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(found) == len(processes)
    assert len(set(found)) == 1


def test_one_nonce_never_gets_a_second_transaction(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1")
    world.batches.abort(attempt, "its job failed")
    joined = world.batches.begin(KEY, "n1")
    assert joined.txn == attempt.txn
    with pytest.raises(TransactionAbortedError):
        world.write_batch(joined, "row")
    with pytest.raises(TransactionAbortedError):
        world.batches.commit(joined, [[empty(joined)]], "run", acknowledge=True)
    assert world.visible() == []


def test_a_process_takes_the_header_of_no_other_transaction_for_that_of_the_pointer(
    world: World,
) -> None:
    world.run_batch(KEY, "n1", "a")  # what this process knows of the sink
    died = world.another_process()
    left = died.batches.begin(NEXT, "n2")
    died.write_batch(left, "lost")
    attempt = world.batches.begin(NEXT, "n3")
    assert not attempt.replay
    assert world.state(left.txn) is TxnState.ABORTED
    world.batches.commit(attempt, [[world.write_batch(attempt, "b")]], "run", acknowledge=True)
    assert world.visible() == ["a", "b"]


def test_only_so_many_sinks_are_remembered() -> None:
    begun = LastBegun()
    for number in range(100):
        begun.note(f"sink-{number}", TxnId(0, number))
    assert begun.get("sink-0") is None
    assert begun.get("sink-99") == TxnId(0, 99)
    assert begun.get("another") is None


def test_threads_that_forget_the_first_sink_at_once_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = LastBegun()
    both = threading.Barrier(2)
    met: list[int] = []

    class Sinks(dict[str, TxnId]):
        """Makes both threads choose the sink to forget before either forgets it, if they can."""

        def __iter__(self) -> Iterator[str]:
            first = next(super().__iter__())
            with suppress(threading.BrokenBarrierError):
                met.append(both.wait(timeout=1))
            return iter([first])

    for number in range(64):
        begun.note(f"sink-{number}", TxnId(0, number))
    monkeypatch.setattr(begun, "_by_sink", Sinks(begun._by_sink))
    with ThreadPoolExecutor(2) as pool:
        for number in (64, 65):
            pool.submit(begun.note, f"sink-{number}", TxnId(0, number))
    assert met == []
    remembered = [n for n in range(66) if begun.get(f"sink-{n}") is not None]
    assert remembered == list(range(2, 66))


def test_a_nonce_is_good_for_one_batch_only(world: World) -> None:
    world.run_batch(KEY, "n1", "a")
    with pytest.raises(FencedError, match="was made for batch 0, not for 1"):
        world.batches.begin(NEXT, "n1")


def test_nonces_differ() -> None:
    assert len({new_nonce() for _ in range(1000)}) == 1000


def test_a_write_outside_of_a_stream_needs_no_pointer(world: World) -> None:
    key = BatchKey("", "", 0)
    one, two = world.batches.begin(key, "n1"), world.batches.begin(key, "n2")
    assert world.batches.begin(key, "n1") == one
    assert one.txn != two.txn
    for attempt, value in ((one, "a"), (two, "b")):
        task = world.write_batch(attempt, value)
        world.batches.commit(attempt, [[task]], "", acknowledge=False)
    assert world.visible() == ["a", "b"]
    assert world.store.sinks.read_pointer("", "").own == b""


# --- replay -----------------------------------------------------------------------------------


def test_a_replay_of_a_committed_batch_finds_it_and_writes_nothing(world: World) -> None:
    first = world.run_batch(KEY, "n1", "a")
    replay = world.another_process().batches.begin(KEY, "n2")
    assert replay == Attempt(KEY, "n2", first.txn, replay=True)
    world.batches.commit(replay, [[empty(replay)]], "run", acknowledge=True)
    world.batches.abort(replay, "must not touch what was committed")
    assert world.visible() == ["a"]
    assert world.state(first.txn) is TxnState.COMMITTED
    assert open_ones(world) == []


def test_a_replay_materializes_what_the_dead_commit_left(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1")
    winner = world.write(Txn(attempt.txn, "n1"), "a")
    world.decide(Txn(attempt.txn, "n1"), winner)
    assert len(world.pinned()) == 1
    assert world.another_process().batches.begin(KEY, "n2").replay
    assert world.pinned() == []


def test_the_next_batch_follows_a_committed_one(world: World) -> None:
    for batch, value in enumerate("abc"):
        attempt = world.run_batch(BatchKey("sink", "query", batch), f"n{batch}", value)
        assert not attempt.replay
    assert world.visible() == ["a", "b", "c"]


def test_a_replay_that_read_other_data_is_refused(world: World) -> None:
    register(world, KEY, plan(P1))
    world.run_batch(KEY, "n1", "a")
    register(world, KEY, plan(P2, run="later"))
    replay = world.batches.begin(KEY, "n2")
    with pytest.raises(TransactionConflictError, match="with other input"):
        world.batches.commit(replay, [[empty(replay)]], "later", acknowledge=True)


def test_a_replay_that_read_the_same_is_accepted_whichever_source_read_it(world: World) -> None:
    register(world, KEY, plan(P1))
    world.run_batch(KEY, "n1", "a")
    register(world, KEY, plan(P1, run="later", source_epoch=2))
    replay = world.batches.begin(KEY, "n2")
    world.batches.commit(replay, [[empty(replay)]], "later", acknowledge=True)
    assert cursor_position(world) == P1


def test_a_second_write_to_a_sink_in_one_run_is_no_replay(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1", "driver-1", ONCE)
    world.batches.commit(attempt, [[world.write_batch(attempt, "a")]], "run", acknowledge=True)
    with pytest.raises(TransactionConflictError, match="was written already in batch 0"):
        world.batches.begin(KEY, "n2", "driver-1", ONCE)
    # After a restart it is one; and where Spark itself counts the writes it always is.
    assert world.batches.begin(KEY, "n3", "driver-2", ONCE).replay
    assert world.batches.begin(KEY, "n4", "driver-1").replay


# --- fencing ----------------------------------------------------------------------------------


def test_the_open_transaction_of_another_attempt_is_aborted_at_once(world: World) -> None:
    old = world.batches.begin(KEY, "n1")
    world.write_batch(old, "x")
    new = world.another_process().batches.begin(KEY, "n2")
    assert not new.replay
    assert new.txn != old.txn
    assert world.state(old.txn) is TxnState.ABORTED
    assert world.pinned() == []
    with pytest.raises(TransactionAbortedError, match="a newer attempt took the batch over"):
        world.batches.commit(old, [[empty(old)]], "run", acknowledge=True)
    with pytest.raises(TransactionAbortedError):
        world.write_batch(old, "y")
    world.batches.commit(new, [[world.write_batch(new, "a")]], "run", acknowledge=True)
    assert world.visible() == ["a"]


def test_a_retired_attempt_stays_fenced_however_many_follow(world: World) -> None:
    for number in range(5):
        world.batches.begin(KEY, f"n{number}")
    for number in range(4):
        with pytest.raises(FencedError, match="a newer attempt took batch 0 over"):
            world.batches.begin(KEY, f"n{number}")
    world.run_batch(KEY, "n4", "a")
    for number in range(4):
        with pytest.raises(FencedError):
            world.batches.begin(KEY, f"n{number}")


def test_an_abort_that_loses_to_the_commit_becomes_a_replay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = world.batches.begin(KEY, "n1")
    task = world.write_batch(old, "a")
    newer = world.another_process()
    read_txn = newer.store.transactions.read

    def read_then_the_other_commits(txn: TxnId) -> Any:
        header = read_txn(txn)
        if header is not None and header.state is TxnState.OPEN:
            world.batches.commit(old, [[task]], "run", acknowledge=True)
        return header

    monkeypatch.setattr(newer.store.transactions, "read", read_then_the_other_commits)
    attempt = newer.batches.begin(KEY, "n2")
    assert attempt == Attempt(KEY, "n2", old.txn, replay=True)
    assert world.visible() == ["a"]


def test_a_batch_below_the_pointer_is_fenced(world: World) -> None:
    world.run_batch(KEY, "n1", "a")
    world.batches.begin(NEXT, "n2")
    with pytest.raises(FencedError, match="older copy"):
        world.batches.begin(KEY, "n3")
    assert world.visible() == ["a"]


def test_the_next_batch_of_a_sink_that_is_written_sometimes_aborts_the_one_before(
    world: World,
) -> None:
    old = world.batches.begin(KEY, "n1", rules=SOMETIMES)
    world.write_batch(old, "x")
    world.run_batch(NEXT, "n2", "a", rules=SOMETIMES)
    assert world.state(old.txn) is TxnState.ABORTED
    with pytest.raises(FencedError):
        world.batches.begin(KEY, "n1")
    assert world.visible() == ["a"]


def test_a_new_query_on_a_sink_id_is_a_new_lineage_and_retires_the_old_one(world: World) -> None:
    # The checkpoint was deleted: batch 0 comes again under another query id, with other rows.
    world.run_batch(KEY, "n1", "a")
    left_open = world.batches.begin(NEXT, "n2")
    world.write_batch(left_open, "x")
    attempt = world.run_batch(BatchKey("sink", "second", 0), "n3", "b")
    assert not attempt.replay, "a batch of another checkpoint must not be skipped"
    assert world.state(left_open.txn) is TxnState.ABORTED
    assert world.visible() == ["a", "b"]
    for key in (NEXT, BatchKey("sink", "query", 2)):
        with pytest.raises(FencedError, match="was taken over by query second"):
            world.batches.begin(key, "n4")
    with pytest.raises(TransactionAbortedError):
        world.batches.commit(left_open, [[empty(left_open)]], "run", acknowledge=True)


def test_queries_with_sink_ids_of_their_own_do_not_meet(world: World) -> None:
    world.run_batch(BatchKey("one", "query-1", 0), "n1", "a")
    world.run_batch(BatchKey("two", "query-2", 0), "n2", "b")
    world.run_batch(BatchKey("one", "query-1", 1), "n3", "c")
    assert world.visible() == ["a", "b", "c"]


def test_a_new_query_misses_no_batch_that_the_old_one_begins_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run_batch(KEY, "n1", "a")
    newer = world.another_process()
    begun: list[Attempt] = []
    before_the_swap(monkeypatch, newer, lambda: begun.append(world.batches.begin(NEXT, "n2")))
    newer.batches.begin(BatchKey("sink", "second", 0), "n3")
    [old] = begun
    assert world.state(old.txn) is TxnState.ABORTED
    with pytest.raises(TransactionAbortedError):
        world.batches.commit(old, [[empty(old)]], "run", acknowledge=True)


def test_of_two_attempts_the_one_that_begins_last_wins_whenever_it_was_made(world: World) -> None:
    made_first, made_later = new_nonce(), new_nonce()
    later = world.batches.begin(KEY, made_later)
    first = world.another_process().batches.begin(KEY, made_first)
    assert world.state(later.txn) is TxnState.ABORTED
    with pytest.raises(FencedError):
        world.batches.begin(KEY, made_later)
    world.batches.commit(first, [[world.write_batch(first, "a")]], "run", acknowledge=True)
    assert world.visible() == ["a"]


# --- what Spark's checkpoint says is done -----------------------------------------------------


def pointed(world: World, sink: str = "sink") -> tuple[int, str]:
    found = Pointer.FromString(world.store.sinks.read_pointer(sink, "query").own)
    return found.batch_id, found.txn_id


@pytest.mark.parametrize("left", ["nothing", "open", "aborted", "older"])
def test_a_batch_is_not_followed_that_the_sink_does_not_know_as_committed(
    world: World, left: str
) -> None:
    before: tuple[int, str] | None = None
    if left in ("open", "aborted"):
        attempt = world.batches.begin(NEXT, "n1", rules=SinkRules(first_batch=1))
        if left == "aborted":
            world.batches.abort(attempt, "its job failed")
    elif left == "older":
        world.run_batch(KEY, "n1", "a")
    if left != "nothing":
        before = pointed(world)
    third = BatchKey("sink", "query", 2)
    with pytest.raises(BatchNotRecordedError, match="sinkFirstBatch=2"):
        world.batches.begin(third, "n2")
    with pytest.raises(BatchNotRecordedError):
        world.batches.begin(third, "n3", rules=SinkRules(first_batch=1))
    if left != "nothing":
        assert pointed(world) == before, "nothing was written, nothing ended"
        state = TxnState.COMMITTED if left == "older" else TxnState(left.upper())
        assert world.state(TxnId.parse(pointed(world)[1])) is state
    rules = SOMETIMES if left == "older" else SinkRules(first_batch=2)
    world.run_batch(third, "n4", "c", rules=rules)
    world.run_batch(BatchKey("sink", "query", 3), "n5", "d")
    assert world.visible()[-2:] == ["c", "d"]


def test_a_decision_that_only_the_pointer_knows_is_followed(world: World) -> None:
    first = world.run_batch(KEY, "n1", "a")
    Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
    assert world.store.transactions.read(first.txn) is None
    world.run_batch(NEXT, "n2", "b")
    assert world.visible() == ["a", "b"]


def test_the_error_names_the_sinks_that_the_query_has_written_to(world: World) -> None:
    world.run_batch(KEY, "n1", "a")
    with pytest.raises(BatchNotRecordedError, match=r"'sink' \(batch 0\)"):
        world.batches.begin(BatchKey("renamed", "query", 1), "n2")


@pytest.mark.parametrize("state", ["open", "decided", "materialized"])
def test_a_new_sink_does_not_write_what_another_one_has_committed(world: World, state: str) -> None:
    attempt = world.batches.begin(KEY, "n1", "driver|first")
    task = world.write_batch(attempt, "a")
    if state == "decided":
        world.decide(Txn(attempt.txn, "n1"), *task.winners)
    elif state == "materialized":
        world.batches.commit(attempt, [[task]], "first", acknowledge=True)
    moved = BatchKey("moved", "query", 0)
    if state == "open":  # it did not come so far, and cannot any more
        world.run_batch(moved, "n2", "a", run="second")
        with pytest.raises(TransactionAbortedError):
            world.batches.commit(attempt, [[task]], "first", acknowledge=True)
    else:
        with pytest.raises(TransactionConflictError, match="give sinkId=sink"):
            world.batches.begin(moved, "n2", "driver|second")
    assert world.visible() == ["a"]


def test_a_late_commit_under_a_name_of_the_meantime_is_refused(world: World) -> None:
    world.run_batch(KEY, "n1", "a", run="first")
    renamed = BatchKey("meantime", "query", 1)
    late = world.batches.begin(renamed, "n2", "second", SinkRules(first_batch=1))
    task = world.write_batch(late, "b")
    world.run_batch(NEXT, "n3", "b", run="third")  # it has its first name again
    with pytest.raises(TransactionAbortedError):
        world.batches.commit(late, [[task]], "second", acknowledge=True)
    assert world.visible() == ["a", "b"]


def test_a_batch_that_runs_again_behind_the_source_is_acknowledged_already(world: World) -> None:
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "query", 1, EARLIEST)
    [cursor] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert cursor is not None
    ReadProgress(world.coordinator, 60_000).catch_up("sub", 1, {SEGMENT: (cursor, P2)})
    register(world, KEY, plan(P1))
    world.run_batch(KEY, "n1", "a")
    register(world, NEXT, plan(P2, P1))
    world.run_batch(NEXT, "n2", "b")
    register(world, BatchKey("sink", "query", 2), plan(P3, P2))
    world.run_batch(BatchKey("sink", "query", 2), "n3", "c")
    assert world.visible() == ["a", "b", "c"]
    assert cursor_position(world) == P3


def left_open(world: World, sink: str = "", query: str = "query") -> TxnId:
    """Acknowledge up to P1 in a transaction of a process that dies before it commits."""
    txn = world.coordinator.new_txn("dead", query=query, sink=sink)
    request = AckRequest(SEGMENT, "sub", "query", 1, EARLIEST, P1, sink, "0")
    MetadataPendingAckStore(world.coordinator).acknowledge(txn, "dead", 60_000, [request])
    return txn


def claimed(world: World) -> Cursor:
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "query", 1, EARLIEST)
    [cursor] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert cursor is not None
    return cursor


def test_a_query_that_catches_up_does_not_wait_for_its_own_start_that_died(world: World) -> None:
    cursor = claimed(world)
    dead = left_open(world)
    ReadProgress(world.coordinator, 60_000).catch_up("sub", 2, {SEGMENT: (cursor, P2)})
    assert cursor_position(world) == P2
    assert world.coordinator.status(dead) is TxnStatus.ABORTED


@pytest.mark.parametrize("holder", [{"sink": "sink"}, {"query": "another"}])
def test_a_query_that_catches_up_ends_nobody_elses_transaction(
    world: World, holder: dict[str, str]
) -> None:
    cursor = claimed(world)
    txn = left_open(world, **holder)
    with pytest.raises(AcknowledgementConflictError, match="is open and acknowledges there"):
        ReadProgress(world.coordinator, 60_000).catch_up("sub", 2, {SEGMENT: (cursor, P2)})
    assert world.coordinator.status(txn) is TxnStatus.OPEN


def test_another_name_does_not_let_an_older_copy_of_the_checkpoint_pass(world: World) -> None:
    for batch in range(2):
        world.run_batch(BatchKey("sink", "query", batch), f"n{batch}", "a")
    for rules in (SinkRules(), SOMETIMES, SinkRules(first_batch=0)):
        with pytest.raises(FencedError, match="older copy"):
            world.batches.begin(BatchKey("renamed", "query", 0), "n2", "other", rules)
    assert world.visible() == ["a", "a"]


def test_siblings_of_one_attempt_are_not_taken_for_one_sink(world: World) -> None:
    world.run_batch(KEY, "n1", "a", run="first")
    world.run_batch(BatchKey("sibling", "query", 0), "n2", "b", run="first")
    assert world.visible() == ["a", "b"]


def test_a_sibling_that_was_replayed_by_this_attempt_blocks_nobody(world: World) -> None:
    world.run_batch(KEY, "n1", "a", run="first")
    assert world.run_batch(KEY, "n2", "a", run="second").replay
    world.run_batch(BatchKey("sibling", "query", 0), "n3", "b", run="second")
    assert world.visible() == ["a", "b"]


def test_what_is_registered_of_a_sink_never_goes_back_to_an_earlier_batch(world: World) -> None:
    world.store.queries.register_sink("query", "sink", 3, "later")
    world.store.queries.register_sink("query", "sink", 2, "late")
    assert world.store.queries.read_sinks("query") == {"sink": SinkEntry(3, "later")}


def test_of_very_many_sinks_those_of_the_last_batches_are_remembered(world: World) -> None:
    for batch in range(260):
        world.store.queries.register_sink("query", f"sink-{batch}", batch, "run")
    found = world.store.queries.read_sinks("query")
    assert sorted(entry.batch for entry in found.values()) == list(range(4, 260))


def test_a_cursor_is_not_moved_over_a_batch_that_its_sink_does_not_know(world: World) -> None:
    register(world, KEY, plan(P1))
    world.run_batch(KEY, "n1", "a")
    progress = ReadProgress(world.coordinator, 60_000)

    def catch_up() -> None:
        [cursor] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
        assert cursor is not None
        progress.catch_up("sub", 1, {SEGMENT: (cursor, P2)})

    with pytest.raises(BatchNotRecordedError, match="stands where batch 0"):
        catch_up()
    left_open = world.batches.begin(NEXT, "n2")
    with pytest.raises(BatchNotRecordedError):
        catch_up()
    assert cursor_position(world) == P1
    # Committed, but Spark did not need the rows of this source: nothing was acknowledged.
    world.batches.commit(
        left_open, [[world.write_batch(left_open, "b")]], "other", acknowledge=True
    )
    catch_up()
    [moved] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert moved is not None
    assert (moved.position, moved.sink, moved.batch) == (P2, "sink", "1")


def test_a_cursor_is_moved_where_a_decision_that_nobody_materialized_has_moved_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(world, KEY, plan(P1))
    monkeypatch.setattr(world.store.scripts, "_single_steps", True)
    with monkeypatch.context() as dies:
        dies.setattr(world.coordinator, "materialize", lambda _: None)
        world.run_batch(KEY, "n1", "a")
    [behind] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert behind is not None
    assert behind.position == EARLIEST
    ReadProgress(world.coordinator, 60_000).catch_up("sub", 1, {SEGMENT: (behind, P1)})
    assert cursor_position(world) == P1


def test_the_leftover_of_a_later_attempt_tells_that_the_batch_before_was_recorded(
    world: World,
) -> None:
    register(world, KEY, plan(P1))
    for batch in range(2):
        world.run_batch(BatchKey("sink", "query", batch), f"n{batch}", "a")
    world.batches.begin(BatchKey("sink", "query", 2), "n2")
    [cursor] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert cursor is not None
    assert world.batches.require_recorded(cursor, "sub") == ("sink", "1")


def test_a_cursor_of_a_sink_that_is_written_sometimes_is_moved(world: World) -> None:
    register(world, KEY, plan(P1))
    world.run_batch(KEY, "n1", "a", rules=SOMETIMES)
    [cursor] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert cursor is not None
    ReadProgress(world.coordinator, 60_000).catch_up("sub", 1, {SEGMENT: (cursor, P2)})
    assert cursor_position(world) == P2


# --- an attempt of which no task has told anything ------------------------------------------------


def test_what_this_driver_has_begun_is_aborted_by_the_pointer(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1", "driver|run")
    world.batches.abort_begun(KEY, "driver", "its job failed")
    header = world.header(attempt.txn)
    assert header.state is TxnState.ABORTED
    assert Outcome.FromString(header.outcome).cause == "its job failed"
    assert open_ones(world) == []


@pytest.mark.parametrize("key, process", [(KEY, "driv"), (KEY, "another"), (NEXT, "driver")])
def test_what_another_driver_or_batch_has_begun_stays_open(
    world: World, key: BatchKey, process: str
) -> None:
    attempt = world.batches.begin(KEY, "n1", "driver|run")
    world.batches.abort_begun(key, process, "its job failed")
    assert open_ones(world) == [attempt.txn]


def test_a_committed_or_unknown_batch_is_not_aborted_by_the_pointer(world: World) -> None:
    world.batches.abort_begun(KEY, "", "its job failed")
    world.run_batch(KEY, "n1", "a")
    for _ in range(2):
        Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
        world.batches.abort_begun(KEY, "", "its job failed")
    assert world.visible() == ["a"]


# --- an attempt that was aborted before it began ------------------------------------------------


def test_an_attempt_that_begins_after_it_was_aborted_leaves_the_pointer_alone(
    world: World,
) -> None:
    world.run_batch(KEY, "n1", "a")
    before = pointed(world)
    world.batches.abort_nonce("n2", "its job failed")
    with pytest.raises(TransactionAbortedError):
        world.another_process().batches.begin(NEXT, "n2")
    assert pointed(world) == before
    for _ in range(2):
        Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
    world.run_batch(NEXT, "n3", "b")
    assert world.visible() == ["a", "b"]


def test_a_task_that_finds_its_transaction_opened_to_be_aborted_adds_the_pointer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = world.another_process()
    end_txn = world.store.transactions.end
    begun: list[Attempt] = []

    def the_task_begins_first(*args: Any, **more: Any) -> Any:
        begun.append(task.batches.begin(KEY, "n1", "driver|run"))
        return end_txn(*args, **more)

    with monkeypatch.context() as race:
        race.setattr(world.store.transactions, "end", the_task_begins_first)
        world.batches.abort_nonce("n1", "its job failed")
    header = world.header(begun[0].txn)
    assert (header.sink, header.query, header.batch) == ("sink", "query", "0")
    assert header.intents == {pointer_intent("query", "sink")}
    for _ in range(2):
        Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
    world.run_batch(KEY, "n2", "a")
    assert world.visible() == ["a"]


# --- races of begin ---------------------------------------------------------------------------


def before_the_swap(
    monkeypatch: pytest.MonkeyPatch, process: World, act: Callable[[], object]
) -> None:
    """Let somebody act between a process's look at the pointer and its compare-and-set."""
    process.store.scripts._single_steps = True
    swap = process.store.sinks.swap_pointer
    acted = False

    def act_then_swap(*args: Any, **more: Any) -> bool:
        nonlocal acted
        if not acted:
            acted = True
            act()
        return swap(*args, **more)

    monkeypatch.setattr(process.store.sinks, "swap_pointer", act_then_swap)


def test_the_pointer_is_written_only_over_what_was_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = world.another_process(), world.another_process()
    before_the_swap(monkeypatch, slow, lambda: quick.run_batch(KEY, "quick", "a"))
    attempt = slow.batches.begin(KEY, "slow")
    assert attempt.replay, "the batch was committed before the pointer could be written"
    assert world.visible() == ["a"]


def test_of_two_attempts_that_begin_at_once_one_is_fenced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = world.another_process(), world.another_process()
    begun: list[Attempt] = []
    before_the_swap(monkeypatch, slow, lambda: begun.append(quick.batches.begin(KEY, "quick")))
    winner = slow.batches.begin(KEY, "slow")
    assert world.state(begun[0].txn) is TxnState.ABORTED
    with pytest.raises(FencedError):
        quick.batches.begin(KEY, "quick")
    world.batches.commit(winner, [[world.write_batch(winner, "a")]], "run", acknowledge=True)
    assert world.visible() == ["a"]


def test_the_first_batch_of_two_queries_at_once_is_won_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = world.another_process(), world.another_process()
    other = BatchKey("sink", "other", 0)
    before_the_swap(monkeypatch, slow, lambda: quick.run_batch(other, "quick", "a"))
    slow.batches.begin(KEY, "slow")
    with pytest.raises(FencedError, match="taken over by query query"):
        quick.batches.begin(BatchKey("sink", "other", 1), "later")


def test_attempts_that_take_over_from_each_other_without_end_are_told_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.batches, "_take_over", lambda *_: False)
    with pytest.raises(FencedError, match="more than one driver"):
        world.batches.begin(KEY, "n1")


def test_what_is_known_of_a_batch_is_what_its_decision_said(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(world, KEY, plan(P1))
    first = world.batches.begin(KEY, "n1", rules=SOMETIMES)
    process = world.another_process()
    read_txn = process.store.transactions.read

    def read_then_commit(txn: TxnId) -> Any:
        found = read_txn(txn)
        if world.state(txn) is TxnState.OPEN:
            world.batches.commit(first, [[empty(first)]], "run", acknowledge=True)
        return found

    monkeypatch.setattr(process.store.transactions, "read", read_then_commit)
    process.batches.begin(NEXT, "n2", rules=SOMETIMES)
    assert world.state(first.txn) is TxnState.COMMITTED
    pointer = Pointer.FromString(world.store.sinks.read_pointer("sink", "query").own)
    assert pointer.HasField("before"), "of the header that was OPEN nothing is known"
    assert pointer.before.batch_id == KEY.batch


def test_a_pointer_to_a_header_that_is_gone_is_not_guessed(world: World) -> None:
    attempt = world.run_batch(KEY, "n1", "a")
    world.client.delete(f"{{tc{attempt.txn.tc}}}:txn:{attempt.txn.key}")
    for key in (KEY, NEXT):
        with pytest.raises(StoreCorruptError, match="not guessed"):
            world.batches.begin(key, "n2")


def test_a_pointer_that_cannot_be_read_is_an_error_that_says_so(world: World) -> None:
    world.run_batch(KEY, "n1", "a")
    world.client.hset("{sink:sink}:pointers", "query", b"\xff\xff")
    for key in (KEY, NEXT):
        with pytest.raises(StoreCorruptError, match=r"pointer of sink 'sink' .* cannot be read"):
            world.batches.begin(key, "n2")
    with pytest.raises(StoreCorruptError, match="cannot be read"):
        batch_is_committed(world.store, "query", 0)


def test_a_header_that_a_sweep_removes_while_an_attempt_begins_is_not_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.run_batch(KEY, "n1", "a")
    process = world.another_process()
    read_txn = process.store.transactions.read

    def sweep_then_read(txn: TxnId) -> Any:
        Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
        return read_txn(txn)

    monkeypatch.setattr(process.store.transactions, "read", sweep_then_read)
    assert process.batches.begin(KEY, "n2") == Attempt(KEY, "n2", first.txn, replay=True)
    assert world.store.transactions.read(first.txn) is None


@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_an_attempt_that_sleeps_between_header_and_pointer_does_not_block_the_sink(
    world: World, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    key = KEY if first else NEXT
    if not first:
        world.run_batch(KEY, "n1", "a")
    sleeper = world.another_process()

    def lease_and_retention_are_over() -> None:
        [orphan] = open_ones(world)
        world.expire(orphan)
        world.client.zadd(f"{{tc{orphan.tc}}}:idx:txn-by-deadline", {orphan.key: 1})
        for _ in range(2):
            Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
        assert world.state(orphan) is TxnState.ABORTED, "the header has to stay"

    before_the_swap(monkeypatch, sleeper, lease_and_retention_are_over)
    with pytest.raises(TransactionAbortedError):
        sleeper.write_batch(sleeper.batches.begin(key, "n2"), "x")
    late = world.store.transactions.of_nonce(world.coordinator.shard("n2"), "n2")
    assert late is not None
    world.run_batch(key, "n3", "b")
    assert world.visible()[-1] == "b"
    # Once the pointer is past it, the orphan goes like every other header.
    world.run_batch(BatchKey("sink", "query", key.batch + 1), "n4", "c")
    Sweeper(world.coordinator, lambda _: None, retention_ms=0).sweep()
    assert world.store.transactions.read(late) is None


def test_a_transaction_that_the_pointer_does_not_name_is_never_committed(world: World) -> None:
    # Died between header and pointer: an orphan, which only its lease ends.
    orphan = world.coordinator.new_txn("n1", sink="sink", query="query", batch="0")
    attempt = world.run_batch(KEY, "n2", "a")
    assert attempt.txn != orphan
    assert open_ones(world) == [orphan]
    # Its own attempt, should it live, joins the race in the usual way and finds the replay.
    assert world.batches.begin(KEY, "n1").replay


# --- commit -----------------------------------------------------------------------------------


def test_a_commit_acknowledges_what_the_batch_read(world: World) -> None:
    register(world, KEY, plan(P1))
    world.run_batch(KEY, "n1", "a")
    register(world, NEXT, plan(P2, P1))
    world.run_batch(NEXT, "n2", "b")
    assert cursor_position(world) == P2


def test_the_acknowledgement_of_a_dead_attempt_is_taken_back_by_the_next(world: World) -> None:
    register(world, KEY, plan(P1))
    old = world.batches.begin(KEY, "n1")
    world.batches._pending_acks.acknowledge(old.txn, "n1", 60_000, [_request(plan(P1), KEY)])
    register(world, KEY, plan(P1, run="second", source_epoch=2))
    world.run_batch(KEY, "n2", "a", run="second")
    assert cursor_position(world) == P1
    assert world.client.hlen(world.key("pending-acks:sub")) == 0


def _request(found: ReadPlan, key: BatchKey) -> Any:
    [item] = found.ranges
    return ack(item.start, item.end, query=key.query, sink=key.sink)


def test_a_commit_that_does_not_acknowledge_leaves_the_cursor_alone(world: World) -> None:
    register(world, KEY, plan(P1))
    attempt = world.batches.begin(KEY, "n1")
    world.batches.commit(attempt, [[empty(attempt)]], "run", acknowledge=False)
    assert world.store.subscriptions.read_cursors([SEGMENT], "sub") == [None]


def test_an_acknowledgement_that_is_refused_keeps_the_whole_batch_back(world: World) -> None:
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "query", 1, P2)
    register(world, KEY, plan(P1))
    attempt = world.batches.begin(KEY, "n1")
    task = world.write_batch(attempt, "a")
    with pytest.raises(TransactionConflictError):
        world.batches.commit(attempt, [[task]], "run", acknowledge=True)
    world.batches.abort(attempt, "as Spark does when a commit fails")
    assert world.visible() == []
    assert cursor_position(world) == P2


def test_an_empty_batch_commits(world: World) -> None:
    attempt = world.run_batch(KEY, "n1", "a")
    nothing = world.batches.begin(NEXT, "n2")
    world.batches.commit(nothing, [[empty(nothing)]], "run", acknowledge=True)
    assert world.batches.begin(NEXT, "n3").replay
    assert attempt.txn != nothing.txn


@pytest.mark.parametrize("partitions", [[1], [0, 0], [0, 2], [0, 1, 1]])
def test_a_batch_that_is_not_whole_is_not_committed(world: World, partitions: list[int]) -> None:
    attempt = world.batches.begin(KEY, "n1")
    tasks = [TaskWrite(partition=p, txn_id=attempt.txn.key) for p in partitions]
    with pytest.raises(TransactionConflictError, match="not whole"):
        world.batches.commit(attempt, [tasks], "run", acknowledge=True)
    assert world.state(attempt.txn) is TxnState.OPEN


def test_each_write_of_a_batch_has_to_be_whole(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1")
    whole = [empty(attempt)]
    torn = [TaskWrite(partition=1, txn_id=attempt.txn.key)]
    with pytest.raises(TransactionConflictError, match="not whole"):
        world.batches.commit(attempt, [whole, torn], "run", acknowledge=True)


def test_tasks_of_two_transactions_are_not_committed_together(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1")
    tasks = [
        TaskWrite(partition=0, txn_id=attempt.txn.key),
        TaskWrite(partition=1, txn_id="0:4711"),
    ]
    with pytest.raises(TransactionConflictError, match="other transactions"):
        world.batches.commit(attempt, [tasks], "run", acknowledge=True)
    assert world.state(attempt.txn) is TxnState.OPEN


@pytest.mark.parametrize("single", [False, True], ids=["in one step", "in single steps"])
def test_a_commit_whose_outcome_is_unknown_is_found_out_by_the_next_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch, *, single: bool
) -> None:
    monkeypatch.setattr(world.store.scripts, "_single_steps", single)
    commit, tries = ("txn_end", 1) if single else ("txn_commit", 3)
    for key, loss, visible in ((KEY, Loss.REPLY, ["a"]), (NEXT, Loss.REQUEST, ["a", "c"])):
        attempt = world.batches.begin(key, f"n{key.batch}")
        task = world.write_batch(attempt, "a" if loss is Loss.REPLY else "b")
        network = world.lose(always={commit: loss, "txn_read": Loss.REQUEST})
        with pytest.raises(CommitStateUnknownError):
            world.batches.commit(attempt, [[task]], "run", acknowledge=True)
        assert network.calls[commit] == tries
        world.mend()
        again = world.run_batch(key, f"m{key.batch}", "c")
        assert again.replay is (loss is Loss.REPLY)
        assert world.visible() == visible


@pytest.mark.parametrize(
    "single, losses",
    [
        (False, {"txn_commit": [Loss.REPLY, REPLICA]}),
        (True, {"txn_end": [Loss.REPLY], "txn_read": [REPLICA]}),
        (True, {"txn_end": [Loss.REQUEST, REPLICA]}),
    ],
    ids=["in one step", "as the header is read", "as it is decided again"],
)
def test_a_commit_without_a_reply_stays_unknown_where_the_next_try_is_refused(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    losses: dict[str, list[Fault | None]],
    *,
    single: bool,
) -> None:
    monkeypatch.setattr(world.store.scripts, "_single_steps", single)
    attempt = world.batches.begin(KEY, "n")
    task = world.write_batch(attempt, "a")
    world.lose(losses)
    with pytest.raises(CommitStateUnknownError) as unknown:
        world.batches.commit(attempt, [[task]], "run", acknowledge=True)
    assert unknown.value.__cause__ is REPLICA
    world.mend()
    world.run_batch(KEY, "m", "a")
    assert world.visible() == ["a"]


# --- slots (foreachBatch) -----------------------------------------------------------------------


def test_only_the_current_run_of_a_slot_can_be_staged(world: World) -> None:
    assert world.store.stages.declare_attempt(0, "n", "slot", 1).code is Code.OK
    assert world.store.stages.stage(0, "n", "slot", 1, b"first").code is Code.OK
    assert world.store.stages.declare_attempt(0, "n", "slot", 2).code is Code.OK
    stale = world.store.stages.stage(0, "n", "slot", 1, b"late")
    assert (stale.code, stale.attempt_number) == (Code.STALE, 2)
    assert world.store.stages.stage(0, "n", "slot", 2, b"second").code is Code.OK
    assert world.store.stages.read(0, "n") == {
        "slot": b"2",
        "slot/1": b"first",
        "slot/2": b"second",
    }
    assert world.store.stages.declare_attempt(0, "n", "slot", 1).code is Code.STALE


def test_a_slot_that_was_never_declared_takes_nothing(world: World) -> None:
    assert world.store.stages.stage(0, "n", "slot", 1, b"x").code is Code.STALE
    assert world.store.stages.read(0, "n") == {}


def test_what_was_staged_goes_with_the_transaction(world: World) -> None:
    attempt = world.batches.begin(KEY, "n1")
    tc = attempt.txn.tc
    world.store.stages.declare_attempt(tc, "n1", "slot", 1)
    world.coordinator.append_ops(attempt.txn, "n1", {"op": b"record"})
    assert world.store.op_log.forget(attempt.txn, "n1").code is Code.OPEN
    world.batches.commit(attempt, [[empty(attempt)]], "run", acknowledge=True)
    assert world.store.stages.read(tc, "n1") == {}
    assert world.client.exists(f"{{tc{tc}}}:txn-op:{attempt.txn.key}") == 0


def test_ids_of_transactions_are_not_used_again(world: World) -> None:
    seen = [world.open().id for _ in range(40)]
    assert len(set(seen)) == 40
    by_tc = itertools.groupby(sorted(seen), key=lambda txn: txn.tc)
    for _, txns in by_tc:
        counters = [txn.counter for txn in txns]
        assert counters == list(range(1, len(counters) + 1))
    assert TxnId.parse(seen[0].key) == seen[0]
