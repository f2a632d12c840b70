"""One snapshot of the segments serves a micro-batch: how far, in which tasks, what is skipped."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from pulsar_txn_spark import client
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.source import task
from pulsar_txn_spark.spark.source.partition import SegmentRange, SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.redis import segments
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.transaction_buffer import Visibility
from tests.support.round_trips import round_trips
from tests.support.streaming import SCHEMA

TOPIC = TopicName.parse("in")
LIMITS = [{}, {"maxMessagesPerTrigger": "100"}]


class Source:
    """A topic of one segment, and a query that reads it."""

    def __init__(self, run: Components, path: str) -> None:
        self.run, self.path = run, path
        run.topics.create(TOPIC, 1)
        self.segment = run.topics.require(TOPIC).active[0].ref

    def reader(self, **options: str) -> PulsarTxnStreamReader:
        given = {"store.path": self.path, "topic": str(TOPIC), "startingOffsets": "earliest"}
        return PulsarTxnStreamReader({**given, **options}, SCHEMA)

    def write(self, *rows: str, commit: bool = True) -> None:
        with client.connect({"store.path": self.path}) as service:
            producer = service.producer(str(TOPIC))
            txn = service.new_txn()
            for row in rows:
                producer.send(row.encode(), txn=txn)
            txn.flush()
            if commit:
                txn.commit()
            else:
                txn.abort()

    def fold(self) -> None:
        """Let the names of dropped writers be found by their positions alone."""
        for _ in range(2):
            self.run.sweeper(0).sweep()

    def rows(
        self, reader: PulsarTxnStreamReader, start: dict[str, Any], end: dict[str, Any]
    ) -> list[str]:
        """Plan a micro-batch and read it."""
        return [
            row["value"].decode()
            for partition in reader.partitions(start, end)
            if isinstance(partition, SourcePartition)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]


@pytest.fixture
def source(run: Components, redis_path: str, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr(segments, "_DROPPED_IN_A_GROUP", 1)
    monkeypatch.setattr(TransactionCoordinator, "shard", lambda *_: 0)
    monkeypatch.setattr(TaskFacts, "of_task", lambda: TaskFacts("query", 0, "run", 0, 0))
    return Source(run, redis_path)


def latest(reader: PulsarTxnStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())


def test_tasks_are_planned_by_the_snapshot_that_found_the_end(
    source: Source, redis_client: redis.Redis
) -> None:
    source.write("a")
    reader = source.reader()
    start = reader.initialOffset()
    end = latest(reader, start)
    with round_trips(redis_client) as trips:
        assert len(reader.partitions(start, end)) == 1
    assert trips.total == 0
    assert source.rows(reader, start, end) == ["a"]
    reader.stop()


@pytest.mark.parametrize("options", LIMITS, ids=["all", "limit"])
def test_what_was_aborted_is_skipped(source: Source, options: dict[str, str]) -> None:
    reader = source.reader(**options)
    start = reader.initialOffset()
    for number in range(2):
        source.write(f"aborted {number}", commit=False)
        source.write(f"{number}")
        source.fold()
        end = latest(reader, start)
        assert source.rows(reader, start, end) == [f"{number}"]
        start = end
    reader.stop()


@pytest.mark.parametrize("options", LIMITS, ids=["all", "limit"])
def test_a_plan_that_begins_before_the_snapshot_takes_another_one(
    source: Source, options: dict[str, str]
) -> None:
    reader = source.reader(**options)
    earliest = reader.initialOffset()
    # Where a later snapshot begins, the floor hides all that is older.
    source.write("a")
    source.write("aborted", commit=False)
    source.write("b")
    source.fold()
    middle = latest(reader, earliest)
    source.write("c")
    end = latest(reader, middle)
    assert source.rows(reader, earliest, end) == ["a", "b", "c"]
    assert source.rows(source.reader(**options), earliest, end) == ["a", "b", "c"]
    reader.stop()


@pytest.mark.parametrize("subscription", ["", "sub"])
def test_what_was_trimmed_is_reported_although_no_poll_asks_the_log(
    source: Source, subscription: str
) -> None:
    reader = source.reader(**({"subscription": subscription} if subscription else {}))
    source.write("a")
    start = latest(reader, reader.initialOffset())
    source.write("b")
    source.run.log.trim(source.segment, source.run.log.last_confirmed(source.segment))
    source.write("c")
    end = latest(reader, start)
    assert reader._snapshot.of_log == {}
    with pytest.raises(DataLossError, match="set failOnDataLoss=false to go on"):
        source.rows(reader, start, end)
    reader.stop()
    # A query that starts again repeats the batch.
    tolerant = source.reader(failOnDataLoss="false")
    assert source.rows(tolerant, start, end) == ["c"]
    tolerant.stop()


def test_a_batch_behind_the_end_of_its_log_is_left_where_that_is_allowed(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(task, "_PATIENCE_S", 0.0)
    reader = source.reader()
    source.write("a")
    start = latest(reader, reader.initialOffset())
    last = source.run.log.last_confirmed(source.segment)
    source.write("b")
    source.run.store.segments.raise_high(source.segment.id, Position(last.ledger, last.entry + 9))
    end = latest(reader, start)
    with pytest.raises(DataLossError, match="acknowledged once, but ends at"):
        source.rows(reader, start, end)
    reader.stop()
    tolerant = source.reader(failOnDataLoss="false")
    assert source.rows(tolerant, start, end) == ["b"]
    assert "What lay behind is lost" in caplog.text
    tolerant.stop()


def test_a_log_that_only_shows_its_end_later_loses_nothing(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "_RECHECK_S", 0.0)
    source.write("a")
    source.write("b")
    reader = source.reader(failOnDataLoss="false")
    start = reader.initialOffset()
    end = latest(reader, start)
    planned = reader.partitions(start, end)
    looks = iter([source.run.log.snapshot_each([source.segment])] * 3)
    snapshot_each = EmbeddedSegmentLog.snapshot_each

    def late(log: EmbeddedSegmentLog, segments: Any, **named: Any) -> Any:
        [now] = snapshot_each(log, segments, **named)
        return [replace(now, last_confirmed=EARLIEST)] if next(looks, None) else [now]

    monkeypatch.setattr(EmbeddedSegmentLog, "snapshot_each", late)
    monkeypatch.setattr(reader, "partitions", lambda *_: planned)
    assert source.rows(reader, start, end) == ["a", "b"]
    reader.stop()


def test_an_end_that_a_log_has_shown_stays_while_another_one_is_waited_for(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker may give it away meanwhile, and know nothing of the end any more."""
    monkeypatch.setattr(task, "_PATIENCE_S", 0.0)
    source.write("a")
    source.write("b")
    end = source.run.log.last_confirmed(source.segment)
    now: Any = source.run.log.snapshot_each([source.segment])[0]
    known = replace(source.segment, id="another")
    answers = {source.segment: iter([now, replace(now, last_confirmed=EARLIEST)])}
    answers[known] = iter([replace(now, last_confirmed=EARLIEST)] * 2)
    asked: list[int] = []

    class Log:
        def snapshot_each(self, segments: Any) -> Any:
            asked.append(len(segments))
            return [next(answers[segment]) for segment in segments]

    looks = iter([0.0, -1.0, 0.0])  # the deadline is over behind the second look
    clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _: None)
    monkeypatch.setattr(task, "time", clock)
    ranges = [
        SegmentRange(segment, EARLIEST, end, Visibility()) for segment in (source.segment, known)
    ]
    snapshots = task._snapshots_of_ends(Log(), ranges)  # type: ignore[arg-type]
    assert snapshots[source.segment].last_confirmed == end
    assert snapshots[known].last_confirmed == EARLIEST
    assert asked == [2, 1]


def test_a_batch_ends_where_a_closed_ledger_of_it_ends_if_that_is_allowed(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    end, left = Position(7, 6), Position(7, 5)
    range_ = SegmentRange(source.segment, Position(7, 2), end, Visibility())
    snapshot: Any = SimpleNamespace(last_confirmed=Position(8, 0), last_up_to=lambda _: left)
    assert task._ending_in_log(range_, {source.segment: snapshot}).end == left
    assert "rows up to 7:6 were acknowledged, but its log ends at 7:5" in caplog.text


@pytest.mark.parametrize("tasks", ["1", "4"])
def test_data_that_goes_between_the_snapshot_and_the_read_is_reported(
    source: Source, tasks: str
) -> None:
    source.write("a")
    source.write("b")
    reader = source.reader(minPartitions=tasks)
    start = reader.initialOffset()
    end = latest(reader, start)
    partitions = reader.partitions(start, end)
    source.run.log.trim(source.segment, source.run.log.last_confirmed(source.segment))
    for planned in (partitions, reader.partitions(start, end)):
        partition = planned[0]
        assert isinstance(partition, SourcePartition)
        with pytest.raises(DataLossError):
            list(reader.read(partition))
    reader.stop()
