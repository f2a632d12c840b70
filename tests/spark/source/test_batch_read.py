"""A batch read shows of each transaction all rows or none, and what was readable stays so.

It says so where it does not: rows that lie behind an open transaction of others are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import Admin
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef, SegmentSnapshot
from pulsar_txn_spark.segments.retention import Retention
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.spark.source import task as task_module
from pulsar_txn_spark.spark.source.planner import SourcePlanner
from pulsar_txn_spark.store.redis.scripts import SINGLE_STEPS
from pulsar_txn_spark.txn.sweeper import SweepReport
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import StreamingQuery

A, B = (TopicName.parse(name) for name in ("first", "second"))
Read = Callable[..., list[int]]


@pytest.fixture(autouse=True, params=[False, True], ids=["merged", "single"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test take the steps of one Redis, and those of a cluster."""
    monkeypatch.setenv(SINGLE_STEPS, "1" if request.param else "")


@pytest.fixture
def batch(redis_path: str) -> Read:
    def read(**options: str) -> list[int]:
        source = PulsarTxnDataSource({"store.path": redis_path, **options})
        reader = source.reader(source.schema())
        values: list[int] = []
        for partition in reader.partitions():
            for rows in reader.read(partition):
                assert isinstance(rows, pa.RecordBatch)
                values += [int(value) for value in rows.column("value").to_pylist()]
        return sorted(values)

    return read


def task_of(run: Components, *rows: tuple[TopicName, int]) -> Task:
    """Return a task that has written rows, and not committed them."""
    task = Task(run, f"write-{rows[0][1]}")
    for topic, value in rows:
        task.writers.append(topic, record_batch([("key", value)]))
    task.writers.finish()
    return task


def commit(task: Task) -> None:
    task.commit(task.writers.finish())


def foreign(run: Components, topic: TopicName, *values: int) -> None:
    """Write as a producer that reports nothing."""
    [segment] = run.topics.require(topic).active
    writer = run.log.writer(segment.ref, "a plain producer")
    for value in values:
        writer.append(record_batch([("key", value)]))
    writer.flush()
    writer.close()


def instead(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: Callable[..., Any]
) -> None:
    """Let the next call of a method be another one, which gets the method itself first."""
    method = getattr(owner, name)

    def once(self: Any, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, name, method)
        return call(method, self, *args, **kwargs)

    monkeypatch.setattr(owner, name, once)


# -- one moment ------------------------------------------------------------------------------------


def test_a_transaction_that_commits_between_two_lacs_is_read_whole(
    run: Components, batch: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(A, 1)
    run.topics.create(B, 1)

    def torn(
        method: Callable[..., list[SegmentSnapshot]], log: Any, segments: Sequence[SegmentRef]
    ) -> list[SegmentSnapshot]:
        assert len(segments) == 2
        earlier = method(log, segments[:1])
        commit(task_of(run, (A, 1), (B, 2)))
        return earlier + method(log, segments[1:])

    instead(monkeypatch, EmbeddedSegmentLog, "snapshot_each", torn)
    assert batch(topics=f"{A},{B}") == [1, 2]


def test_a_transaction_that_writes_over_a_split_is_read_whole(
    run: Components, batch: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(A, 1)

    def late(method: Callable[..., Any], planner: SourcePlanner, *args: Any, **options: Any) -> Any:
        task = task_of(run, (A, 1))
        [parent] = run.topics.require(A).active
        run.topics.changes.split(A, parent.descriptor)
        task.writers.append(A, record_batch([("key", 2), ("other", 3)]))
        commit(task)
        return method(planner, *args, **options)

    instead(monkeypatch, SourcePlanner, "snapshot", late)
    assert batch(topic=str(A)) == [1, 2, 3]


@pytest.mark.parametrize("step", ["snapshot", "partitions"])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_read_goes_on_behind_a_segment_that_retention_deletes_meanwhile(
    run: Components, batch: Read, monkeypatch: pytest.MonkeyPatch, step: str, fails: str
) -> None:
    run.topics.create(A, 1)
    run.store.topics.change_property(str(A), "__retention", Retention(size_bytes=0).serialize())
    commit(task_of(run, (A, 1)))
    [parent] = run.topics.require(A).active
    run.topics.changes.seal(A, parent.descriptor)
    report = SweepReport()

    def late(method: Callable[..., Any], planner: SourcePlanner, *args: Any, **options: Any) -> Any:
        sweeper = run.sweeper(0)
        swept = run.retention().sweep(lambda segment: sweeper.settle(segment, report))
        assert swept.deleted == [parent.ref.id]
        commit(task_of(run, (A, 2)))
        return method(planner, *args, **options)

    instead(monkeypatch, SourcePlanner, step, late)
    assert batch(topic=str(A), failOnDataLoss=fails) == [2]


def test_a_read_ends_where_its_log_does_only_if_a_loss_is_allowed(
    run: Components,
    batch: Read,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(task_module, "_PATIENCE_S", 0.0)
    run.topics.create(A, 1)
    foreign(run, A, 1, 2)
    [segment] = run.topics.require(A).active
    last = run.log.last_confirmed(segment.ref)
    run.store.segments.raise_high(segment.ref.id, Position(last.ledger, last.entry + 9))
    with pytest.raises(DataLossError, match="acknowledged once, but ends at"):
        batch(topic=str(A))
    assert batch(topic=str(A), failOnDataLoss="false") == [1, 2]
    assert caplog.text == "", "no task waits for what is not there"


# -- behind an open transaction --------------------------------------------------------------------


def test_rows_behind_an_open_transaction_of_another_writer_are_left_out_with_a_warning(
    run: Components, batch: Read, caplog: pytest.LogCaptureFixture
) -> None:
    run.topics.create(A, 1)
    run.topics.create(B, 1)
    still_open = task_of(run, (B, 1))
    assert batch(topics=f"{A},{B}") == []
    assert caplog.text == "", "nothing that was committed is left out"
    commit(task_of(run, (A, 10), (B, 20)))
    assert batch(topics=f"{A},{B}") == [10]
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"open transactions in 1 of 2 segments: {still_open.txn}. " in warning
    caplog.clear()
    still_open.abort()
    assert batch(topics=f"{A},{B}") == [10, 20]
    assert caplog.text == ""


def test_of_one_segment_a_part_of_a_transaction_is_read_with_a_warning(
    run: Components, batch: Read, caplog: pytest.LogCaptureFixture
) -> None:
    run.topics.create(A, 1)
    [segment] = run.topics.require(A).active
    task = task_of(run, (A, 1))
    foreign(run, A, 2)
    last = run.log.last_confirmed(segment.ref)
    run.store.segments.raise_high(segment.ref.id, last)
    still_open = task_of(run, (A, 3))
    task.writers.append(A, record_batch([("key", 4)]))
    commit(task)
    assert batch(topic=str(A)) == [1, 2]
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"in 1 of 1 segments: {still_open.txn}. " in warning
    caplog.clear()
    ending = json.dumps({str(A): {segment.descriptor: str(Position(last.ledger, last.entry - 1))}})
    assert batch(topic=str(A), endingOffsets=ending) == [1]
    assert caplog.text == "", "a read that ends earlier leaves nothing out"
    still_open.abort()


# -- what was readable -----------------------------------------------------------------------------


def test_rows_that_were_read_stay_readable_when_a_transaction_opens(
    run: Components, redis_path: str, batch: Read
) -> None:
    run.topics.create(A, 1)
    foreign(run, A, *range(5))
    query = StreamingQuery(
        run, redis_path, "q", topic=str(A), subscription="s", startingOffsets="earliest"
    )
    query.run_all()
    assert query.values == [0, 1, 2, 3, 4]
    task = task_of(run, (A, 100))
    assert batch(topic=str(A)) == [0, 1, 2, 3, 4]
    admin = Admin({"store.path": redis_path})
    admin.reset_subscription(str(A), "s", to="latest")
    commit(task)
    later = StreamingQuery(
        run, redis_path, "q2", topic=str(A), subscription="s", startingOffsets="subscription"
    )
    later.run_all()
    assert later.values == [100]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_recorded_offset_is_taken_while_a_transaction_is_open(
    run: Components, redis_path: str, batch: Read, option: str
) -> None:
    run.topics.create(A, 1)
    commit(task_of(run, (A, 1)))
    task_of(run, (A, 2)).abort()
    query = StreamingQuery(run, redis_path, "q", topic=str(A), startingOffsets="earliest")
    query.run_all()
    [[position]] = [
        [item["p"] for item in topic["segments"].values()]
        for topic in query.offsets[-1]["topics"].values()
    ]
    [segment] = run.topics.require(A).active
    task = task_of(run, (A, 3))
    recorded = json.dumps({str(A): {segment.descriptor: position}})
    assert batch(topic=str(A), **{option: recorded}) == ([1] if option == "endingOffsets" else [])
    task.abort()


def test_only_what_nobody_reported_is_noted(
    run: Components, redis_client: redis.Redis, batch: Read
) -> None:
    run.topics.create(A, 1)
    [segment] = run.topics.require(A).active

    def passed() -> Any:
        return redis_client.hget(f"{{seg:{segment.ref.id}}}:state", "passed")

    def changes() -> Any:
        return redis_client.hget(f"{{seg:{segment.ref.id}}}:birth", "seq")

    commit(task_of(run, (A, 1)))
    batch(topic=str(A))
    assert passed() is None
    foreign(run, A, 2)
    task = task_of(run, (A, 3))
    batch(topic=str(A))
    assert passed() is None, "behind a pin nothing counts as read"
    task.abort()
    batch(topic=str(A))
    last, before = run.log.last_confirmed(segment.ref), changes()
    assert passed() == last.padded().encode()
    assert run.store.segments.gates([segment.ref.id])[0].high < last, "nobody has reported it"
    batch(topic=str(A))
    assert changes() == before, "once"
