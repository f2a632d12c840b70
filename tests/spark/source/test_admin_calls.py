"""What a snapshot of many segments asks Pulsar's admin API. These bounds only ever go down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from pyspark.sql.types import StructType

from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.offsets import SourceOffset
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.snapshot_schedule import (
    LONGEST_S,
    UNREPORTED_S,
    SnapshotSchedule,
)
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable, ReadLimit, ReadMaxRows
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import EndedBy, TxnState
from pulsar_txn_spark.store.redis.segments import RedisSegmentStore
from pulsar_txn_spark.txn.coordinator import as_record
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.support.fake_admin_api import MESSAGES, FakeAdminApi, fake_admin_api

TOPIC = TopicName.parse("in")
SEGMENTS = 64


class Source:
    """A topic of many segments on Pulsar, of which there is the admin API alone."""

    def __init__(self, path: str, api: FakeAdminApi) -> None:
        self.api = api
        self.given = {
            "store.path": path,
            "service.url": "pulsar://127.0.0.1:1",
            "admin.url": api.url,
            "topic": str(TOPIC),
            "startingOffsets": "earliest",
        }
        self.run: Components = open_components(Options(self.given, Use.READ))
        topology = self.run.topics.create(TOPIC, SEGMENTS)
        self.segments: list[SegmentRef] = [segment.ref for segment in topology.segments]

    def reader(self, **options: str) -> PulsarTxnStreamReader:
        return PulsarTxnStreamReader({**self.given, **options}, StructType())

    def append(self, *segments: SegmentRef, entries: int = 1) -> None:
        """Append to segments as a client without transactions does."""
        for segment in segments:
            last = self.api.append(segment, entries)
            self.run.store.segments.raise_high(segment.id, last)


@pytest.fixture
def source(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Source]:
    del redis_client  # an empty store
    with fake_admin_api() as api:
        monkeypatch.setattr(
            PulsarSegmentLog, "create", lambda _, segment, __="": api.create(segment)
        )
        found = Source(redis_path, api)
        yield found
        found.run.log.close()


def poll(
    reader: PulsarTxnStreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> dict[str, Any]:
    return reader.latestOffset(start, limit or ReadAllAvailable())


@pytest.mark.parametrize("entries", [1, 50])
def test_a_snapshot_with_a_limit_asks_each_segment_once(source: Source, entries: int) -> None:
    rows = SEGMENTS * entries * MESSAGES // 2
    reader = source.reader(maxMessagesPerTrigger=str(rows))
    end = reader.initialOffset()
    for once_a_minute in (SEGMENTS, 0):
        source.append(*source.segments, entries=entries)
        source.api.calls()
        start, end = end, poll(reader, end, ReadMaxRows(rows))
        assert len(reader.partitions(start, end)) > 0
        lag = reader.reportLatestOffset()
        assert lag is not None
        assert source.api.calls() <= SEGMENTS + once_a_minute
    reader.stop()


def test_a_task_asks_each_segment_once_where_a_loss_is_allowed(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskFacts, "of_task", lambda: TaskFacts("query", 0, "run", 0, 0))
    monkeypatch.setattr(PulsarSegmentLog, "read_each", lambda _, ranges, **__: [()] * len(ranges))
    reader = source.reader(failOnDataLoss="false")
    start = reader.initialOffset()
    source.append(*source.segments)
    partitions = reader.partitions(start, poll(reader, start))
    source.api.calls()
    for partition in partitions:
        assert list(reader.read(partition)) == []
    assert source.api.calls() == SEGMENTS
    reader.stop()


class Idle:
    """A source that has read everything, asked once a second without an event that tells it so."""

    def __init__(self, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.source = source
        self.reader = source.reader()
        self.reader._schedule = SnapshotSchedule(lambda: self.now)
        monkeypatch.setattr(IdleWatch, "unchanged_since", lambda *_: False)
        source.append(*source.segments)
        self.end = self.reader.initialOffset()
        assert self.news()
        while not self.settled():
            pass

    def news(self) -> bool:
        before, self.end = self.end, poll(self.reader, self.end)
        return before != self.end

    def entries(self, nth: int) -> int:
        """Return how many entries a segment has."""
        return self.source.api.entries[self.source.segments[nth].log_name.rpartition("/")[2]]

    def settled(self) -> bool:
        """Poll once, and tell whether that has cost no call."""
        self.source.api.calls()
        assert not self.news()
        return self.source.api.calls() == 0


@pytest.fixture
def idle(source: Source, monkeypatch: pytest.MonkeyPatch) -> Iterator[Idle]:
    found = Idle(source, monkeypatch)
    yield found
    found.reader.stop()


def test_an_idle_source_asks_each_segment_at_most_once_in_ten_seconds(idle: Idle) -> None:
    for _ in range(60):
        idle.now += 1
        assert not idle.news()
    assert idle.source.api.calls() <= 6 * SEGMENTS


def test_rows_that_were_reported_cost_no_call(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    gates = RedisSegmentStore.gates

    def counted(*args: Any, **named: Any) -> Any:
        asked.append(args)
        return gates(*args, **named)

    monkeypatch.setattr(RedisSegmentStore, "gates", counted)
    for _ in range(3):
        start = idle.end
        idle.source.append(idle.source.segments[3])
        assert idle.news()
        [task] = idle.reader.partitions(start, idle.end)
        assert isinstance(task, SourcePartition)
        assert [range_.end.entry for range_ in task.ranges] == [idle.entries(3) - 1]
        lag = idle.reader.reportLatestOffset()
        assert lag is not None
        assert lag["lag"]["messagesBehindLatest"] == 0
    assert len(asked) == 3
    assert idle.source.api.calls() == 0


def test_rows_that_are_reported_between_a_snapshot_and_its_gate_are_found(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot_each = PulsarSegmentLog.snapshot_each

    def interrupted(self: PulsarSegmentLog, segments: Any) -> Any:
        snapshots = snapshot_each(self, segments)
        idle.source.append(*segments)
        return snapshots

    idle.now += LONGEST_S
    with monkeypatch.context() as patched:
        patched.setattr(PulsarSegmentLog, "snapshot_each", interrupted)
        assert idle.news()


def test_a_decision_that_nobody_has_materialized_costs_no_call(idle: Idle) -> None:
    run, segment = idle.source.run, idle.source.segments[3]
    txn = run.coordinator.new_txn("nonce")
    name = writer_name(txn, 0, "random")
    run.buffer.admit(txn, "nonce", 60_000, name, [segment.id])
    for _ in range(3):
        assert not idle.news()
    # Its writer appends, commits, and dies before anybody is told.
    last = as_record(idle.source.api.append(segment))
    winner = Winner(segment=segment.id, writer=name, last=last)
    record = Outcome(winners=[winner]).SerializeToString(deterministic=True)
    run.store.transactions.end(txn, TxnState.COMMITTED, record, EndedBy.OWNER, "nonce")
    assert idle.news()
    assert idle.source.api.calls() == 0


def test_rows_that_nobody_reports_are_found_in_ten_seconds_and_more_of_them_at_once(
    idle: Idle,
) -> None:
    segment = idle.source.segments[3]
    idle.source.api.append(segment)
    idle.now += LONGEST_S - 1
    assert not idle.news()
    idle.now += 1
    assert idle.news()
    for _ in range(3):
        idle.now += 1
        idle.source.api.append(segment)
        assert idle.news()
    idle.now += UNREPORTED_S + LONGEST_S
    assert not idle.news()
    assert idle.settled()


def test_entries_of_an_open_transaction_are_not_taken_for_rows_that_nobody_reports(
    idle: Idle,
) -> None:
    run, segment = idle.source.run, idle.source.segments[3]
    txn = run.coordinator.new_txn("nonce")
    run.buffer.admit(txn, "nonce", 60_000, writer_name(txn, 0, "random"), [segment.id])
    idle.source.api.append(segment)
    idle.now += LONGEST_S
    assert not idle.news()
    assert idle.settled()


def test_rows_behind_a_pin_that_nobody_reports_are_found_when_it_is_gone(idle: Idle) -> None:
    run, segment = idle.source.run, idle.source.segments[3]
    txn = run.coordinator.new_txn("nonce")
    run.buffer.admit(txn, "nonce", 60_000, writer_name(txn, 0, "random"), [segment.id])
    idle.source.api.append(segment)
    idle.now += LONGEST_S
    assert not idle.news(), "the snapshot shows rows that may be those of the transaction"
    run.coordinator.abort(txn, EndedBy.OWNER, nonce="nonce", cause="a test")
    assert idle.news()
    for _ in range(3):  # from now on such rows are expected
        idle.now += 1
        idle.source.api.append(segment)
        assert idle.news()


def test_what_a_limit_has_left_for_later_is_read_next(source: Source) -> None:
    reader = source.reader(maxMessagesPerTrigger=str(MESSAGES))
    start = poll(reader, reader.initialOffset(), ReadMaxRows(MESSAGES))
    source.append(source.segments[3], entries=30)
    source.api.calls()
    for number in range(3):
        end = poll(reader, start, ReadMaxRows(MESSAGES))
        [task] = reader.partitions(start, end)
        assert isinstance(task, SourcePartition)
        assert [range_.end.entry for range_ in task.ranges] == [number]
        start = end
        # Nothing of other segments; of a few that have rows, messages are counted.
        assert source.api.calls() <= 4
    reader.stop()


def test_a_run_over_what_is_there_finds_rows_that_nobody_has_reported(source: Source) -> None:
    # No poll but the first takes a snapshot.
    reader = source.reader(maxMessagesPerTrigger=str(MESSAGES))
    now = [0.0]
    reader._schedule = SnapshotSchedule(lambda: now[0])
    source.append(*source.segments)
    start = reader.initialOffset()
    source.api.append(source.segments[3], 3)
    reader.prepareForTriggerAvailableNow()
    batches = 0
    while (end := poll(reader, start, ReadMaxRows(MESSAGES))) != start:
        start, batches = end, batches + 1
        now[0] += UNREPORTED_S if batches == 1 else 0
        reader._schedule._known[source.segments[3].id].taken_at = now[0]
        for segment in source.segments:  # more of them come, which are not for this run
            source.api.append(segment)
    read = SourceOffset.from_json(start).positions()
    assert sorted(at.entry for at in read.values()) == [0] * (SEGMENTS - 1) + [3]
    assert batches > 3
    reader.stop()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_was_reported_and_lost_is_skipped_only_if_that_is_allowed(
    source: Source, fails: str
) -> None:
    source.append(*source.segments)
    reader = source.reader(failOnDataLoss=fails)
    start = poll(reader, reader.initialOffset())
    segment = source.segments[3]
    source.run.store.segments.raise_high(segment.id, Position(7, 40))
    end = poll(reader, start)
    # With failOnDataLoss the task that reads the range finds that nothing is there, and fails.
    assert (end != start) == (fails == "true")
    reader.stop()


def test_a_sealed_segment_is_read_to_its_end_at_once(source: Source) -> None:
    # Behind its last reported row lie entries of aborted transactions.
    topology = source.run.topics.require(TOPIC)
    [segment] = [one for one in topology.segments if one.ref == source.segments[3]]
    source.append(*source.segments)
    reader = source.reader()
    start = poll(reader, reader.initialOffset())
    sealed_at = source.api.append(segment.ref)
    segments = tuple(
        replace(one, state=SegmentState.SEALED, sealed_at=sealed_at) if one is segment else one
        for one in topology.segments
    )
    topology = replace(topology, segments=segments)
    read = SourceOffset.from_json(start).positions()
    [key] = [key for key in read if key[1] == segment.descriptor]
    source.api.calls()
    found = reader._planner.snapshot(
        {str(TOPIC): topology}, {key: segment.ref}, read, schedule=reader._schedule
    )
    assert found.readable[key].end == sealed_at
    assert source.api.calls() == 0
    reader.stop()
