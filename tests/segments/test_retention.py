"""What nobody needs and nobody wants to keep goes, and nothing else, whoever dies in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import Admin, unavailable_logs
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentLogUnreachableError,
    SegmentSealedError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.reading_order import ReadingOrder, leaves_offset
from pulsar_txn_spark.segments.retention import (
    Retention,
    RetentionReport,
    RetentionSweep,
    Verdict,
    needs,
)
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, SegmentState, Topology
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import (
    AckRequest,
    Code,
    CursorStart,
    EndedBy,
    RetainedPositions,
    SegmentDecision,
    SubscriptionRef,
    TxnId,
    TxnState,
    WriterFate,
)
from pulsar_txn_spark.store.redis.segments import RedisSegmentStore
from pulsar_txn_spark.txn.coordinator import as_record
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore, require_claimed
from pulsar_txn_spark.txn.sweeper import SweepReport
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.models.segment_histories import Task
from tests.segments.test_changes import rows
from tests.support.scenario import put_cursor

TOPIC = TopicName.parse("kept")
NAME = str(TOPIC)
SUB = "sub"


@pytest.fixture
def run(run: Components) -> Components:
    run.topics.create(TOPIC, 1)
    return run


def keep(run: Components, retention: Retention) -> None:
    run.store.topics.change_property(NAME, "__retention", retention.serialize())


NOTHING = Retention(size_bytes=0)


def of(run: Components, number: int = 0) -> Segment:
    return run.topics.require(TOPIC).segment(str(number))


def write(run: Components, *values: bytes, number: int = 0) -> Position:
    """Write an entry for each value, outside of transactions, and return the last position."""
    ref = of(run, number).ref
    writer = run.log.writer(ref, "plain")
    for value in values:
        writer.append(pa.record_batch([pa.array([value])], names=["value"]))
        last = writer.flush().last
    writer.close()
    assert last is not None
    run.store.segments.raise_high(ref.id, last)
    return last


def at(entry: int) -> Position:
    return Position(1, entry)


def sweep(run: Components) -> RetentionReport:
    report = SweepReport()
    sweeper = run.sweeper(0)
    return run.retention().sweep(lambda segment: sweeper.settle(segment, report))


def gone(run: Components, number: int = 0) -> Position:
    return run.log.trimmed_to(of(run, number).ref)


def claim(run: Components, start: Position = EARLIEST, number: int = 0, name: str = SUB) -> None:
    answer = run.store.subscriptions.claim_cursor(of(run, number).ref.id, name, "q", 1, start)
    assert answer.code is Code.OK


def place(run: Components, start: Position, end: Position, number: int = 0) -> tuple[TxnId, str]:
    """Place a pending acknowledgement of a transaction that stays open."""
    nonce = f"ack-{number}-{end}"
    txn = run.coordinator.new_txn(nonce, timeout_ms=60_000)
    segment = of(run, number).ref.id
    run.store.transactions.intend(txn, nonce, 60_000, [f"A|{segment}|{SUB}"])
    request = AckRequest(segment, SUB, "q", 1, start, end, "s", "0")
    assert [a.code for a in run.store.subscriptions.place_acks(txn, [request])] == [Code.OK]
    return txn, nonce


def acknowledge(run: Components, start: Position, end: Position, number: int = 0) -> None:
    run.coordinator.commit(*place(run, start, end, number), Outcome())


def release(run: Components, end: Position, number: int = 0) -> None:
    """Say that Spark has noted the batch as done."""
    run.store.subscriptions.release_cursors(SUB, "q", {of(run, number).ref.id: end})


def read_through(run: Components, end: Position, number: int = 0) -> None:
    claim(run, number=number)
    acknowledge(run, EARLIEST, end, number)
    release(run, end, number)


# -- the setting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time, size, expected",
    [
        (None, None, Retention()),
        ("forever", "forever", Retention()),
        ("7d", None, Retention(time_ms=7 * 86_400_000)),
        ("90s", "10GiB", Retention(90_000, 10 << 30)),
        ("0s", "0", Retention(0, 0)),
    ],
)
def test_limits_are_read_as_people_write_them(
    time: str | None, size: str | None, expected: Retention
) -> None:
    assert Retention.parse(time, size) == expected
    assert Retention.of({"__retention": expected.serialize()}) == expected


@pytest.mark.parametrize("time, size", [("7", None), ("7 weeks", None), (None, "10GB")])
def test_a_limit_that_nobody_understands_is_refused(time: str | None, size: str | None) -> None:
    with pytest.raises(OptionError, match="expected a number with one of the units"):
        Retention.parse(time, size)


def test_the_setting_is_a_topics_own_and_goes_with_it(run: Components, redis_path: str) -> None:
    options = {"store.path": redis_path}
    admin = Admin(options)
    admin.create_topic("other", segments=1, retention_time="1h")
    assert admin.topic_retention("other") == Retention(time_ms=3_600_000)
    admin.set_retention("other", size="1GiB")
    assert admin.topic_retention("other") == Retention(size_bytes=1 << 30)
    admin.set_retention("other")
    assert admin.topic_retention("other").forever
    assert admin.topic_retention(NAME).forever
    admin.set_retention("other", time="1h")
    admin.delete_topic("other")
    admin.create_topic("other", segments=1)
    assert admin.topic_retention("other").forever


# -- what goes -----------------------------------------------------------------------------------


def test_everything_is_kept_unless_the_user_says_otherwise(run: Components) -> None:
    read_through(run, write(run, b"a", b"b"))
    run.topics.changes.split(TOPIC, "0")
    assert sweep(run) == RetentionReport()
    assert gone(run) == EARLIEST


def test_rows_go_by_age(run: Components, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, b"a")
    keep(run, Retention(time_ms=3_600_000))
    assert sweep(run).trimmed == []
    _, now = run.store.transactions.lowest_open(0)
    monkeypatch.setattr(run.store.transactions, "lowest_open", lambda _tc: (1, now + 3_600_001 + 1))
    assert sweep(run).trimmed == [of(run).ref.id]
    assert gone(run) == at(0)


def test_rows_go_by_size_and_the_youngest_stay(run: Components) -> None:
    write(run, *[b"x" * 1000] * 10)
    one = run.log.measure(of(run).ref, EARLIEST, at(0)).bytes
    keep(run, Retention(size_bytes=3 * one))
    sweep(run)
    assert gone(run) == at(6)
    keep(run, Retention(size_bytes=3 * one - 1))
    sweep(run)
    assert gone(run) == at(6), "an entry goes whole, and only if as much is too much"


def test_the_oldest_segments_go_first(run: Components) -> None:
    write(run, *[b"x" * 1000] * 4)
    one = run.log.measure(of(run).ref, EARLIEST, at(0)).bytes
    run.topics.changes.split(TOPIC, "0")
    write(run, *[b"x" * 1000] * 4, number=1)
    write(run, *[b"x" * 1000] * 2, number=2)
    keep(run, Retention(size_bytes=7 * one))
    sweep(run)
    assert [gone(run, n) for n in (0, 1, 2)] == [at(2), EARLIEST, EARLIEST]
    keep(run, Retention(size_bytes=3 * one))
    assert sweep(run).deleted == [of(run).ref.id]
    assert [gone(run, n) for n in (1, 2)] == [at(1), at(0)]


# -- who holds it --------------------------------------------------------------------------------


def test_a_row_stays_until_every_subscription_has_read_it(run: Components) -> None:
    write(run, b"a", b"b", b"c")
    keep(run, NOTHING)
    claim(run)
    claim(run, name="slow")
    acknowledge(run, EARLIEST, at(1))
    release(run, at(1))
    assert sweep(run).trimmed == []
    assert run.store.subscriptions.delete_cursor(of(run).ref.id, "slow").code is Code.OK
    sweep(run)
    assert gone(run) == at(1)


def test_what_spark_may_read_once_more_stays(run: Components) -> None:
    write(run, b"a", b"b", b"c")
    keep(run, NOTHING)
    claim(run)
    acknowledge(run, EARLIEST, at(0))
    sweep(run)
    assert gone(run) == EARLIEST, "committed, but Spark's commit log may not say so"
    acknowledge(run, at(0), at(1))
    sweep(run)
    assert gone(run) == at(0), "the next batch proves that the one before is done"
    release(run, at(2))
    sweep(run)
    assert gone(run) == at(0), "nobody releases what is not acknowledged"
    release(run, at(1))
    sweep(run)
    assert gone(run) == at(1)


def test_a_reset_keeps_what_the_query_before_may_read_once_more(run: Components) -> None:
    write(run, b"a", b"b", b"c")
    keep(run, NOTHING)
    claim(run)
    acknowledge(run, EARLIEST, at(1))
    segment = of(run).ref.id
    put_cursor(run.store, segment, SUB, at(1))  # here: only freed
    sweep(run)
    assert gone(run) == EARLIEST
    run.store.subscriptions.claim_cursor(segment, SUB, "another query", 2, at(1))
    sweep(run)
    assert gone(run) == EARLIEST
    run.store.subscriptions.release_cursors(SUB, "another query", {segment: at(1)})
    sweep(run)
    assert gone(run) == at(1)
    put_cursor(run.store, segment, SUB, at(2))  # elsewhere: its commit would be refused
    sweep(run)
    assert gone(run) == at(2)


def test_a_subscription_that_is_further_is_not_sent_back_to_a_child(run: Components) -> None:
    end = write(run, b"a")
    run.topics.changes.split(TOPIC, "0")
    write(run, b"from before it began", number=1)
    run.topics.changes.seal(TOPIC, "1")
    keep(run, Retention(size_bytes=1 << 30))
    read_through(run, end)
    claim(run, number=3)
    run.store.topics.change_property(NAME, "__retention", None)
    sweeper = run.retention()
    assert sweeper._delete(run.topics.require(TOPIC), of(run))
    assert run.store.subscriptions.names(of(run, 1).ref.id) == []
    assert run.store.subscriptions.names(of(run, 2).ref.id) == [SUB]


def test_a_client_that_acknowledges_messages_never_reads_them_again(run: Components) -> None:
    segment = of(run).ref.id
    run.store.subscriptions.claim_cursor(segment, SUB, "clients", 0, EARLIEST)
    [cursor] = run.store.subscriptions.read_cursors([segment], SUB)
    assert cursor is not None
    assert cursor.released == EARLIEST
    put_cursor(run.store, segment, SUB, at(3))
    [cursor] = run.store.subscriptions.read_cursors([segment], SUB)
    assert cursor is not None
    assert cursor.released == at(3)
    assert run.store.segments.retained([segment])[0].released == {SUB: at(3)}


def test_a_client_that_was_handed_over_to_a_child_holds_no_more_than_it_has_left(
    run: Components,
) -> None:
    write(run, b"a")
    run.store.subscriptions.inherit_cursor(of(run).ref.id, SUB, "clients")
    run.store.subscriptions.claim_cursor(of(run).ref.id, SUB, "clients", 0, EARLIEST)
    where = SubscriptionRef(of(run).ref.id, SUB, "clients")
    txn = run.coordinator.new_txn("client", timeout_ms=60_000)
    whole = AckInterval(MessagePosition.whole(EARLIEST), MessagePosition.whole(at(0)))
    acks = MetadataPendingAckStore(run.coordinator)
    acks.acknowledge_cumulative(txn, "client", 60_000, where, whole)
    run.coordinator.commit(txn, "client", Outcome())
    keep(run, NOTHING)
    sweep(run)
    assert gone(run) == at(0)


def test_a_row_that_is_acknowledged_by_an_open_transaction_stays(run: Components) -> None:
    write(run, b"a")
    keep(run, NOTHING)
    claim(run)
    txn, nonce = place(run, EARLIEST, at(0))
    sweep(run)
    assert gone(run) == EARLIEST
    run.coordinator.commit(txn, nonce, Outcome())
    release(run, at(0))
    sweep(run)
    assert gone(run) == at(0)


def test_rows_of_an_open_transaction_stay_although_nobody_subscribes(run: Components) -> None:
    write(run, b"a")
    keep(run, NOTHING)
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 1))
    written = task.writers.finish()
    write(run, b"z")
    sweep(run)
    assert gone(run) == at(0), "what lies before it may go"
    task.commit(written)
    sweep(run)
    assert gone(run) == at(2)


def test_a_transaction_whose_lease_is_over_locks_nothing(run: Components) -> None:
    keep(run, NOTHING)
    txn = run.coordinator.new_txn("n", timeout_ms=1)
    writer = writer_name(txn, 0, "dead")
    run.buffer.admit(txn, "n", 1, writer, [of(run).ref.id])
    write(run, b"a")
    while not (header := run.store.transactions.read(txn)) or not header.expired:
        pass  # a millisecond
    sweep(run)
    assert gone(run) == at(0)


def test_dropped_writers_go_with_their_entries_and_zombies_stay_invisible(run: Components) -> None:
    segment = of(run).ref
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 3))
    task.writers.finish()
    task.writers.close()
    run.coordinator.abort(task.txn, by=EndedBy.OWNER, nonce="n", cause="the test says so")
    assert list(run.store.segments.gates([segment.id])[0].dropped) == task.names
    keep(run, NOTHING)
    sweep(run)
    sweep(run)
    gate = run.store.segments.gates([segment.id])[0]
    assert gate.dropped == {}
    zombie = run.log.writer(segment, task.names[0])
    zombie.append(rows(0, 1))
    zombie.flush()
    zombie.close()
    write(run, b"seen")
    assert values(run) == [b"seen"]


def values(run: Components, number: int = 0) -> list[bytes]:
    """Read what is still there of a segment, as a new subscription does."""
    ref = of(run, number).ref
    start = run.log.trimmed_to(ref)
    [found] = run.buffer.readable([ref.id], lambda _: run.log.last_confirmed(ref), [start])
    batches = run.log.read(
        ref, start, found.end, visible=found.visibility, columns=frozenset({"value"}), max_rows=99
    )
    return [value for batch in batches for value in batch.column("value").to_pylist()]


# -- which segments go ---------------------------------------------------------------------------


def split_and_read(run: Components) -> Segment:
    """Write in a transaction, split, and let the subscription read the parent."""
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 3))
    task.commit(task.writers.finish())
    end = run.log.last_confirmed(of(run).ref)
    run.topics.changes.split(TOPIC, "0")
    read_through(run, end)
    return of(run)


def tag_keys(redis_client: redis.Redis, segment: str) -> list[str]:
    found: Any = redis_client.keys("*")
    names = [key.decode() for key in found]
    return sorted(name.partition("}:")[2] for name in names if f"{{seg:{segment}}}" in name)


def test_a_drained_segment_goes_with_all_of_its_metadata(
    run: Components, redis_client: redis.Redis
) -> None:
    parent = split_and_read(run)
    keep(run, NOTHING)
    assert sweep(run).deleted == [parent.ref.id]
    after = of(run)
    assert (after.state, after.erased) == (SegmentState.DELETED, True)
    assert tag_keys(redis_client, parent.ref.id) == ["birth"]
    assert sweep(run) == RetentionReport(), "there is nothing left to do"
    assert run.store.segments.gates([parent.ref.id])[0].contains_txn, "PIP-373 remembers it"


def test_a_segment_is_kept_while_its_time_is_not_over(run: Components) -> None:
    parent = split_and_read(run)
    keep(run, Retention(time_ms=3_600_000))
    assert sweep(run).deleted == []
    assert of(run).state is SegmentState.SEALED
    verdict = judge(run)[parent.ref.id]
    assert (verdict.delete, verdict.expired, verdict.retained_by) == (False, EARLIEST, ())


def test_a_drained_segment_stays_while_a_subscription_of_pulsars_own_has_a_backlog(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = split_and_read(run)
    keep(run, NOTHING)
    behind = {parent.ref.id: ["billing"]}
    monkeypatch.setattr(run.log, "backlogs_of_others", lambda ref: behind.get(ref.id, []))
    assert sweep(run).deleted == []
    verdict = judge(run)[parent.ref.id]
    assert (verdict.delete, verdict.retained_by) == (False, ("Pulsar subscription billing",))
    behind.clear()
    assert sweep(run).deleted == [parent.ref.id]


def test_a_sweep_that_was_taken_for_dead_leaves_a_deleted_segment_to_the_other(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = split_and_read(run)
    keep(run, NOTHING)
    sweeps = RetentionSweep._hand_over

    def beside(self: RetentionSweep, *args: Any) -> Any:
        monkeypatch.setattr(RetentionSweep, "_hand_over", sweeps)
        run.store.topics.change_property(NAME, "__upkeep", None)  # its lease is over
        assert sweep(run).deleted == [parent.ref.id]
        return sweeps(self, *args)

    monkeypatch.setattr(RetentionSweep, "_hand_over", beside)
    assert sweep(run) == RetentionReport()
    assert of(run).state is SegmentState.DELETED


def test_a_sweep_that_was_taken_for_dead_trims_nothing_more(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TopicName.parse("two")
    run.topics.create(topic, 2)
    run.store.topics.change_property(str(topic), "__retention", NOTHING.serialize())
    segments = [segment.ref for segment in run.topics.require(topic).active]
    for ref in segments:
        writer = run.log.writer(ref, "plain")
        writer.append(pa.record_batch([pa.array([b"a"])], names=["value"]))
        last = writer.flush().last
        assert last is not None
        run.store.segments.raise_high(ref.id, last)
    trim = type(run.log).trim

    def slow(log: Any, ref: SegmentRef, up_to: Position) -> Position:
        run.store.topics.change_property(str(topic), "__upkeep", None)  # its lease is over
        assert run.store.topics.lease(str(topic), "another", 60_000).code is Code.OK
        return trim(log, ref, up_to)

    monkeypatch.setattr(type(run.log), "trim", slow)
    [trimmed] = sweep(run).trimmed
    assert [ref.id for ref in segments if run.log.trimmed_to(ref) > EARLIEST] == [trimmed]


def judge(run: Components) -> dict[str, Verdict]:
    retention = Retention.of(run.store.topics.read_properties(NAME))
    verdicts = run.retention().judge(run.topics.require(TOPIC), retention)
    return {verdict.segment.ref.id: verdict for verdict in verdicts}


def test_a_segment_that_spark_may_read_once_more_stays(run: Components) -> None:
    write(run, b"a", b"b")
    run.topics.changes.split(TOPIC, "0")
    keep(run, NOTHING)
    claim(run)
    acknowledge(run, EARLIEST, at(1))
    assert sweep(run).deleted == []
    assert judge(run)[of(run).ref.id].retained_by == ("subscription sub",)
    release(run, at(1))
    assert sweep(run).deleted == [of(run).ref.id]


def test_a_segment_with_a_pin_stays(run: Components) -> None:
    keep(run, NOTHING)
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 10))
    task.writers.finish()
    run.topics.changes.split(TOPIC, "0")
    assert sweep(run).deleted == []
    task.commit(task.writers.finish())
    assert sweep(run).deleted == [of(run).ref.id]


def test_a_segment_with_a_pin_is_not_retired(run: Components) -> None:
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 1))
    task.writers.finish()
    task.writers.close()
    run.topics.changes.split(TOPIC, "0")
    segment = of(run)
    assert segment.sealed_at is not None
    answer = run.store.segments.retire(segment.ref.id, segment.sealed_at, [])
    assert (answer.code, answer.holder) == (Code.PENDING, task.txn)


def test_a_segment_with_a_pending_acknowledgement_is_not_retired(run: Components) -> None:
    end = write(run, b"a")
    run.topics.changes.split(TOPIC, "0")
    read_through(run, end)
    # Whatever positions say: a decision that is pending keeps the segment.
    txn, _ = place(run, end, at(5))
    answer = run.store.segments.retire(of(run).ref.id, end, [SUB])
    assert (answer.code, answer.holder) == (Code.PENDING, txn)


def test_a_subscription_that_has_not_come_to_the_children_is_known_there(run: Components) -> None:
    split_and_read(run)
    write(run, b"later", number=1)
    keep(run, NOTHING)
    report = sweep(run)
    assert report.deleted == [of(run).ref.id]
    for number in (1, 2):
        [cursor] = run.store.subscriptions.read_cursors([of(run, number).ref.id], SUB)
        assert cursor is not None
        assert (cursor.position, cursor.query) == (EARLIEST, "q")
    sweep(run)
    assert gone(run, 1) == EARLIEST, "it has not read the child's rows"
    # Its next batch begins there as if nobody had been before.
    claim(run, number=1)
    acknowledge(run, EARLIEST, at(0), number=1)


def test_of_merged_parents_none_goes_before_all_were_read(run: Components) -> None:
    run.topics.changes.split(TOPIC, "0")
    for number in (1, 2):
        write(run, b"a", number=number)
    run.topics.changes.merge(TOPIC, ["1", "2"])
    keep(run, NOTHING)
    read_through(run, at(0), number=1)
    claim(run, number=2)
    assert sweep(run).deleted == [of(run, 0).ref.id], "nothing was ever in the root"
    assert sweep(run).deleted == []
    assert run.store.subscriptions.names(of(run, 3).ref.id) == []
    acknowledge(run, EARLIEST, at(0), number=2)
    release(run, at(0), number=2)
    assert sweep(run).deleted == [of(run, 1).ref.id, of(run, 2).ref.id]
    assert run.store.subscriptions.names(of(run, 3).ref.id) == [SUB]


def test_segments_go_from_the_roots_on(run: Components) -> None:
    write(run, b"a")
    run.topics.changes.split(TOPIC, "0")
    run.topics.changes.seal(TOPIC, "1")
    keep(run, NOTHING)
    claim(run)
    # Nothing was written to segment 1; but whoever reads has to come through its parent.
    assert sweep(run).deleted == []
    acknowledge(run, EARLIEST, at(0))
    release(run, at(0))
    assert sweep(run).deleted == [of(run, 0).ref.id]
    assert sweep(run).deleted == [of(run, 1).ref.id]


def table(parents: Mapping[int, tuple[int, ...]]) -> Topology:
    """Make a topology of numbered segments, each with these parents."""
    children: dict[int, list[int]] = {number: [] for number in parents}
    for number, own in parents.items():
        for parent in own:
            children[parent].append(number)
    template = Topology.plan(TOPIC, 1, "embedded").segments[0]
    segments = tuple(
        Segment(
            type(template.ref)(str(number), NAME, str(number)),
            0,
            1,
            SegmentState.SEALED if children[number] else SegmentState.ACTIVE,
            parents=tuple(map(str, own)),
            children=tuple(map(str, children[number])),
            sealed_at=at(9) if children[number] else None,
        )
        for number, own in parents.items()
    )
    return Topology(TOPIC, "i", segments, len(segments), "embedded")


MERGED = {0: (), 1: (), 2: (0, 1), 3: (2,)}


@pytest.mark.parametrize(
    "stands, expected",
    [
        ({}, {}),
        ({0: at(4)}, {0: at(4), 1: EARLIEST, 2: EARLIEST, 3: EARLIEST}),
        ({0: at(9), 1: at(3)}, {0: at(9), 1: at(3), 2: EARLIEST, 3: EARLIEST}),
        ({2: at(1)}, {0: None, 1: None, 2: at(1), 3: EARLIEST}),
        ({1: at(9), 3: at(2)}, {0: None, 1: at(9), 2: None, 3: at(2)}),
    ],
)
def test_a_subscription_needs_what_it_has_not_left_behind(
    stands: dict[int, Position], expected: dict[int, Position | None]
) -> None:
    retained = {
        str(number): RetainedPositions(
            False, {SUB: stands[number]} if number in stands else {}, {SUB: "q"}
        )
        for number in MERGED
    }
    found = needs(table(MERGED), retained)
    assert {int(id_): own[SUB] for id_, own in found.items() if own} == expected


# -- readers -------------------------------------------------------------------------------------


def test_a_reader_that_had_read_it_forgets_it_and_one_that_had_not_is_told(run: Components) -> None:
    parent = split_and_read(run)
    end = parent.sealed_at
    assert end is not None
    keep(run, NOTHING)
    sweep(run)
    topology = run.topics.require(TOPIC)
    order = ReadingOrder.of(topology, {parent.descriptor: end})
    children = {segment.descriptor for segment in topology.active}
    assert order.lost == ()
    assert order.released == children
    offset = {parent.descriptor: end} | dict.fromkeys(children, EARLIEST)
    assert leaves_offset(of(run), topology, offset)
    lost = ReadingOrder.of(topology, {parent.descriptor: EARLIEST}).lost
    assert [segment.descriptor for segment in lost] == [parent.descriptor]


def test_a_writer_that_has_slept_through_it_goes_to_the_children(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, b"a")
    txn = run.coordinator.new_txn("late", timeout_ms=60_000)
    known = [run.topics.require(TOPIC)]  # what it has read before it fell asleep

    def name(generation: int) -> str:
        return writer_name(txn, 0, f"late{generation}")

    def admit(generation: int, segments: Any) -> None:
        run.buffer.admit(txn, "late", 60_000, name(generation), segments)

    writers = TopicWriters(run, name, admit, 0)
    run.topics.changes.split(TOPIC, "0")
    keep(run, NOTHING)
    assert sweep(run).deleted == [of(run).ref.id]
    require = run.topics.require
    monkeypatch.setattr(run.topics, "require", lambda t: known.pop() if known else require(t))
    writers.append(TOPIC, rows(0, 50))
    written = writers.finish()
    writers.close()
    assert {one.segment.id for one in written} == {of(run, n).ref.id for n in (1, 2)}
    winners = [
        Winner(segment=w.segment.id, writer=w.writer, last=as_record(w.receipt.last))
        for w in written
        if w.receipt.last is not None
    ]
    run.coordinator.commit(txn, "late", Outcome(winners=winners))
    assert sorted(values(run, 1) + values(run, 2), key=int) == [b"%d" % n for n in range(50)]


# -- what comes late -----------------------------------------------------------------------------


def test_nothing_that_comes_late_brings_anything_back(
    run: Components, redis_client: redis.Redis
) -> None:
    parent = split_and_read(run)
    id_ = parent.ref.id
    keep(run, NOTHING)
    sweep(run)
    txn = run.coordinator.new_txn("late", timeout_ms=60_000)
    writer = writer_name(txn, 0, "late")
    store = run.store
    assert [a.code for a in store.segments.pin(txn, writer, [id_])] == [Code.DELETED]
    with pytest.raises(SegmentSealedError, match="deleted"):
        run.buffer.admit(txn, "late", 60_000, writer, [id_])
    with pytest.raises(DataLossError, match="deleted"):
        require_claimed("new", "q", store.subscriptions.claim_cursor(id_, "new", "q", 9, EARLIEST))
    request = AckRequest(id_, SUB, "q", 9, EARLIEST, at(0), "s", "1")
    assert [a.code for a in store.subscriptions.place_acks(txn, [request])] == [Code.DELETED]
    late = SubscriptionRef(id_, SUB, "q", 9)
    between = [AckInterval(MessagePosition.whole(EARLIEST), MessagePosition.whole(at(0)))]
    assert store.subscriptions.ack_individual(txn, late, between).code is Code.DELETED
    assert store.subscriptions.ack_cumulative(txn, late, between[0]).code is Code.DELETED
    decision = SegmentDecision(id_, (WriterFate(writer, EARLIEST),), (SUB,), at(9))
    answers = store.segments.materialize(txn, TxnState.ABORTED, [decision])
    assert [a.code for a in answers] == [Code.CLOSED]
    assert store.segments.close(id_, txn.tc, txn.counter + 1).code is Code.ALREADY
    assert store.segments.raise_floor(id_, txn.tc, txn.counter, at(1), at(1)).code is Code.ALREADY
    assert put_cursor(store, id_, SUB, at(0)).code is Code.DELETED
    [created] = store.subscriptions.create_cursors("new", {id_: CursorStart(EARLIEST)})
    assert created.code is Code.DELETED
    assert store.segments.mark_trimmed(id_, at(99)).code is Code.ALREADY
    assert store.subscriptions.inherit_cursor(id_, SUB, "q").code is Code.ALREADY
    assert store.segments.is_materialized(txn, [id_]) == [True]
    store.segments.raise_high(id_, at(99))
    store.segments.gates([id_], [(EARLIEST, at(99))], passing=True)
    store.subscriptions.release_cursors(SUB, "q", {id_: at(99)})
    assert tag_keys(redis_client, id_) == ["birth"]
    # The transaction that names it as a participant is collected like any other (INV-6).
    run.coordinator.abort(txn, EndedBy.OWNER, nonce="late", cause="the test says so")
    assert run.sweeper(0).sweep().stuck == ()
    assert store.transactions.read(txn) is None
    assert tag_keys(redis_client, id_) == ["birth"]


@pytest.mark.parametrize("reads_it", [False, True])
def test_a_subscription_that_comes_at_the_last_moment_is_seen(
    run: Components, monkeypatch: pytest.MonkeyPatch, reads_it: bool
) -> None:
    end = write(run, b"a")
    run.topics.changes.split(TOPIC, "0")
    keep(run, NOTHING)
    retire = run.store.segments.retire

    def late(segment: str, sealed_at: Position, handed_over: list[str]) -> Any:
        claim(run)
        if reads_it:  # all of it, so that no position holds the segment
            acknowledge(run, EARLIEST, end)
            release(run, end)
        return retire(segment, sealed_at, handed_over)

    with monkeypatch.context() as patched:
        patched.setattr(run.store.segments, "retire", late)
        assert sweep(run).deleted == []
    assert of(run).state is SegmentState.DRAINED
    assert values(run) == [b"a"]
    if reads_it:
        sweep(run)
        assert run.store.subscriptions.names(of(run, 1).ref.id) == [SUB]


@pytest.mark.parametrize("used", [False, True])
def test_a_subscription_that_is_deleted_while_it_is_handed_over_does_not_come_back(
    run: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch, *, used: bool
) -> None:
    end = write(run, b"a")
    run.topics.changes.split(TOPIC, "0")
    keep(run, NOTHING)
    claim(run)
    acknowledge(run, EARLIEST, end)
    release(run, end)
    subscriptions = run.store.subscriptions
    inherit, seen = subscriptions.inherit_cursor, list[str]()
    [parent, *children] = [s.ref.id for s in run.topics.require(TOPIC).segments]

    def late(segment: str, name: str, query: str, *args: Any) -> Any:
        if not seen:
            Admin({"store.path": redis_path}).delete_subscription(str(TOPIC), SUB)
        seen.append(segment)
        answer = inherit(segment, name, query, *args)
        if used and segment == children[0]:  # the query goes on, in a start of its own
            subscriptions.claim_cursor(segment, name, query, 99, EARLIEST)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(subscriptions, "inherit_cursor", late)
        assert sweep(run).deleted == []
    assert sorted(seen) == sorted(children)
    found = subscriptions.read_cursors([parent, *children], SUB)
    assert [cursor is not None for cursor in found] == [False, used, False]
    assert sweep(run).deleted == [parent]
    assert subscriptions.read_cursors(children, SUB)[1] is None


# -- who dies in between -------------------------------------------------------------------------


class Crash(Exception):  # noqa: N818 — not an error of anybody's
    pass


class Dying:
    """Passes calls on, and dies before or after the n-th one that changes something."""

    CHANGES = frozenset(
        {
            "inherit_cursor",
            "swap",
            "mark_trimmed",
            "retire",
            "delete",
            "purge",
            "trim",
        }
    )

    def __init__(self, inner: object, plan: list[int], *, after: bool) -> None:
        self._inner, self._plan, self._after = inner, plan, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in ("topics", "segments", "subscriptions"):
            return Dying(found, self._plan, after=self._after)
        if name not in self.CHANGES:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._plan[0] -= 1
            if self._plan[0] == 0 and not self._after:
                raise Crash
            result = found(*args, **kwargs)
            if self._plan[0] == 0:
                raise Crash
            return result

        return call


def sweep_of(run: Components, nth: int, *, after: bool) -> bool:
    """Sweep as a process that dies at its n-th change; tell whether it came so far."""
    plan = [nth]
    sweeper = RetentionSweep(
        Dying(run.store, plan, after=after),
        Dying(run.log, plan, after=after),
        lambda refs: [run.log.last_confirmed(ref) for ref in refs],
        "the one that dies",
    )
    try:
        sweeper.sweep(lambda _: None)
    except Crash:
        run.store.topics.change_property(NAME, "__upkeep", None)  # its lease is over
        return True
    return False


@pytest.mark.parametrize("after", [False, True])
def test_a_deletion_that_died_at_any_step_is_finished_by_the_next_sweep(
    run: Components, redis_client: redis.Redis, after: bool
) -> None:
    topics = 0
    for nth in range(1, 30):
        parent = split_and_read(run)
        child = write(run, b"child", number=1)
        keep(run, NOTHING)
        died = sweep_of(run, nth, after=after)
        # Whatever is half done: the child's rows are there for the subscription that comes later.
        assert run.log.trimmed_to(of(run, 1).ref) == EARLIEST
        assert run.log.last_confirmed(of(run, 1).ref) == child
        # The user may have changed his mind: what is past the point of no return goes even so.
        if of(run).state is SegmentState.DELETED:
            keep(run, Retention())
        sweep(run)
        assert (of(run).state, of(run).erased) == (SegmentState.DELETED, True)
        assert tag_keys(redis_client, parent.ref.id) == ["birth"]
        assert run.store.subscriptions.names(of(run, 1).ref.id) == [SUB]
        assert gone(run, 1) == EARLIEST
        if not died:
            break
        topics += 1
        redis_client.flushdb()
        run.store.scripts.__init__(redis_client)  # type: ignore[misc]
        run.topics.create(TOPIC, 1)
    assert topics >= 8, "two cursors, four changes of the topology, retire, log, purge"


def test_the_metadata_goes_after_the_log(run: Components, monkeypatch: pytest.MonkeyPatch) -> None:
    split_and_read(run)
    keep(run, NOTHING)
    order: list[str] = []

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            order.append(name)
            return call(*args)

        return noted

    for owner, name in (
        (EmbeddedSegmentLog, "delete"),
        (RedisSegmentStore, "retire"),
        (RedisSegmentStore, "purge"),
    ):
        monkeypatch.setattr(owner, name, noting(name, getattr(owner, name)))
    sweep(run)
    assert order == ["retire", "delete", "purge"]


def test_a_segment_that_was_not_retired_is_not_purged(run: Components) -> None:
    split_and_read(run)
    assert run.store.segments.purge(of(run).ref.id).code is Code.OPEN
    assert run.store.subscriptions.names(of(run).ref.id) == [SUB]


def test_one_process_at_a_time_maintains_a_topic(run: Components) -> None:
    write(run, b"a")
    keep(run, NOTHING)
    assert run.store.topics.lease(NAME, "somebody else", 60_000).code is Code.OK
    assert sweep(run).trimmed == []
    assert run.store.topics.lease(NAME, "somebody else", 0).code is Code.OK
    assert sweep(run).trimmed == [of(run).ref.id]


def test_a_topic_that_cannot_be_dealt_with_blocks_no_other(run: Components) -> None:
    run.topics.create(TopicName.parse("broken"), 1)
    broken = run.topics.require(TopicName.parse("broken"))
    run.store.topics.change_property(str(broken.topic), "__retention", NOTHING.serialize())
    run.log.delete(broken.active[0].ref)
    write(run, b"a")
    keep(run, NOTHING)
    report = run.sweeper(0).sweep()
    assert report.segments_trimmed == 1
    counts = run.store.transactions.tc_state(0, limit=1).counts
    assert counts["pulsar_txn_segments_trimmed_total"] == 1
    assert "pulsar_txn_segments_deleted_total" not in counts
    [stuck] = report.stuck
    assert "the retention of topic://public/default/broken" in stuck


# -- one that its broker refuses -----------------------------------------------------------------

REFUSED = TopicName("public", "away", "kept")


@pytest.fixture
def refused(run: Components, monkeypatch: pytest.MonkeyPatch) -> Segment:
    """Refuse one topic, as a broker does where the role has no permission on its namespace."""
    topic = run.topics.create(REFUSED, 1)
    run.store.topics.change_property(str(REFUSED), "__retention", NOTHING.serialize())
    keep(run, NOTHING)

    def refuse(call: str) -> None:
        real = getattr(run.log, call)

        def answer(ref: SegmentRef, *more: object) -> object:
            if ref.topic == str(REFUSED):
                raise SegmentLogUnavailableError("the admin API refuses us (403)")
            return real(ref, *more)

        monkeypatch.setattr(run.log, call, answer)

    for call in ("last_confirmed", "trimmed_to", "seal", "delete", "create"):
        refuse(call)
    return topic.active[0]


def commit_row(run: Components, segment: SegmentRef) -> None:
    """Commit a transaction with a row, in a segment that may be refused."""
    nonce = f"row of {segment.topic}"
    txn = run.coordinator.new_txn(nonce, timeout_ms=60_000)
    name = writer_name(txn, 0, "row")
    run.buffer.admit(txn, nonce, 60_000, name, [segment.id])
    writer = run.log.writer(segment, name)
    writer.append(pa.record_batch([pa.array([b"row"])], names=["value"]))
    last = writer.flush().last
    assert last is not None
    winner = Winner(writer=name, segment=segment.id, last=as_record(last))
    run.coordinator.commit(txn, nonce, Outcome(winners=[winner]))


def test_a_topic_that_its_broker_refuses_keeps_no_other_from_being_swept(
    run: Components, refused: Segment
) -> None:
    commit_row(run, refused.ref)
    commit_row(run, of(run).ref)
    report = run.sweeper(0).sweep()
    assert (report.segments_trimmed, report.headers_removed) == (1, 1)
    assert gone(run) == at(0)
    assert len(report.stuck) == 2
    for stuck in report.stuck:
        assert "public/away/kept" in stuck
        assert "refuses us (403)" in stuck


def test_a_topic_that_its_log_might_drop_is_not_trimmed_and_keeps_no_other_from_it(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = TopicName.parse("another")
    other = run.topics.create(topic, 1).active[0]
    run.store.topics.change_property(str(topic), "__retention", NOTHING.serialize())
    keep(run, NOTHING)
    commit_row(run, of(run).ref)
    commit_row(run, other.ref)

    def protect_each(segments: Sequence[SegmentRef]) -> None:
        if segments[0].topic == str(topic):
            raise SegmentLogError("its subscription expires: run 'pulsar-admin …'")

    monkeypatch.setattr(run.log, "protect_each", protect_each)
    report = run.sweeper(0).sweep()
    (stuck,) = report.stuck
    assert stuck == f"the retention of {topic}: its subscription expires: run 'pulsar-admin …'"
    assert gone(run) == at(0)
    assert run.log.trimmed_to(other.ref) == EARLIEST


def test_a_log_is_protected_in_each_sweep_although_nothing_may_be_trimmed(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected: list[list[str]] = []
    monkeypatch.setattr(
        run.log, "protect_each", lambda segments: protected.append([ref.id for ref in segments])
    )
    sweep(run)
    assert protected == [], "the broker keeps everything anyway"
    keep(run, NOTHING)
    sweep(run)
    sweep(run)
    assert protected == [[of(run).ref.id]] * 2


def test_a_deletion_or_change_that_a_broker_refuses_keeps_no_other_from_being_finished(
    run: Components, refused: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    del refused
    run.topics.changes.patience_s = 0.0
    refused_call = SegmentLogUnavailableError("the admin API refuses us (403)")

    def refuse(*_: object, **__: object) -> None:
        raise refused_call

    with monkeypatch.context() as patch:
        patch.setattr(run.log, "seal", refuse)
        for topic in (REFUSED, TOPIC):
            with pytest.raises(SegmentLogUnavailableError):
                run.topics.changes.split(topic, "0")
    finished, failed = run.topics.finish_changes()
    assert finished == 1
    assert list(failed) == [str(REFUSED)]
    with monkeypatch.context() as patch:
        patch.setattr(run.log, "delete", refuse)
        for topic in (REFUSED, TOPIC):
            with pytest.raises(SegmentLogUnavailableError):
                run.topics.delete(topic)
    finished, failed = run.topics.finish_deletions()
    assert finished == 1
    assert list(failed) == [str(REFUSED)]


def test_a_sweep_ends_where_nobody_can_reach_the_brokers(
    run: Components, refused: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    del refused
    asked: list[str] = []

    def unreachable(ref: SegmentRef) -> Position:
        asked.append(ref.topic)
        raise SegmentLogUnreachableError("nobody answers")

    monkeypatch.setattr(run.log, "trimmed_to", unreachable)
    with pytest.raises(SegmentLogUnreachableError):
        run.sweeper(0).sweep()
    assert len(asked) == 1, "the next topic would have waited as long"


def test_a_sweep_that_has_waited_for_long_names_what_it_left_and_nothing_else(
    run: Components, refused: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    del refused
    monkeypatch.setattr(unavailable_logs, "PATIENCE_S", 0.0)
    run.topics.create(TopicName.parse("keeps-everything"), 1)
    sweeper = run.sweeper(0)
    stuck = sweeper.sweep().stuck
    assert [why.partition(": ")[0] for why in stuck] == [
        f"the retention of {REFUSED}",
        f"the retention of {NAME}",
    ]
    assert "it was not looked at" in stuck[1]
    assert [why.partition(": ")[0] for why in sweeper.sweep().stuck] == [
        f"the retention of {REFUSED}"
    ]
