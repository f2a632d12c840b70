"""A query that names publish times starts, and ends, where they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import OptionError, TransactionConflictError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import StreamingQuery

A, B = (TopicName.parse(name) for name in ("first", "second"))
Make = Callable[..., StreamingQuery]
YEAR_2100 = "2100-01-01T00:00:00Z"


@pytest.fixture
def query(run: Components, redis_path: str) -> Make:
    def make(name: str, /, **options: str) -> StreamingQuery:
        return StreamingQuery(run, redis_path, name, **options)

    return make


@pytest.fixture
def batch(redis_path: str) -> Callable[..., list[int]]:
    def read(topic: TopicName, **options: str) -> list[int]:
        source = PulsarTxnDataSource({"store.path": redis_path, "topic": str(topic), **options})
        reader = source.reader(source.schema())
        found: list[int] = []
        for partition in reader.partitions():
            for rows in reader.read(partition):
                assert isinstance(rows, pa.RecordBatch)
                found += [int(value) for value in rows.column("value").to_pylist()]
        return sorted(found)

    return read


def write(run: Components, topic: TopicName, *values: int, key: str = "") -> None:
    task = Task(run, f"write-{topic}-{values[0]}")
    rows = [(key or f"key-{value % 7}", value) for value in values]
    task.writers.append(topic, record_batch(rows))
    task.commit(task.writers.finish())


def moment(run: Components) -> str:
    """Return a time after everything so far, and not after what comes."""
    _, begun = run.store.transactions.lowest_open(0)
    now = begun
    while now == begun:
        _, now = run.store.transactions.lowest_open(0)
    return str(now)


def descriptors(run: Components, topic: TopicName) -> list[str]:
    return [segment.descriptor for segment in run.topics.require(topic).segments]


# -- where a stream starts -------------------------------------------------------------------------


def test_a_stream_starts_with_the_first_message_since_a_time(run: Components, query: Make) -> None:
    run.topics.create(A, 1)
    write(run, A, 1, 2)
    at = moment(run)
    write(run, A, 3)
    reader = query("q", topic=str(A), startingTimestamp=at)
    reader.run_all()
    write(run, A, 4)
    reader.run_all()
    assert reader.values == [3, 4]


def test_topics_and_segments_have_times_of_their_own(run: Components, query: Make) -> None:
    run.topics.create(A, 1)
    run.topics.create(B, 2)
    write(run, A, 1)
    write(run, B, *range(10, 30))
    at = moment(run)
    write(run, A, 2)
    write(run, B, *range(30, 50))
    low, high = descriptors(run, B)
    times = json.dumps({str(A): int(at), str(B): {low: 0, high: at}})
    reader = query("q", topics=f"{A},{B}", startingOffsetsByTimestamp=times)
    reader.run_all()
    assert 2 in reader.values
    assert 1 not in reader.values
    assert set(range(30, 50)) <= set(reader.values)
    before = {v for v in reader.values if 10 <= v < 30}
    assert before, "of one segment everything is read"
    assert before != set(range(10, 30)), "and of the other one only what came since"


@pytest.mark.parametrize(
    "option, wrong",
    [
        ("topic", {"topic://public/default/other": 0}),
        ("segment", {str(A): {"0000-1234-9": 0}}),
        ("segment", {str(A): {"public/default/a/01234567/0000-ffff-0": 0}}),
    ],
)
def test_a_time_for_what_is_not_read_is_refused(
    run: Components, query: Make, option: str, wrong: dict[str, object]
) -> None:
    run.topics.create(A, 1)
    reader = query("q", topic=str(A), startingOffsetsByTimestamp=json.dumps(wrong))
    with pytest.raises(OptionError, match=f"names {option} .*which is not read here"):
        reader.trigger()


def test_a_time_after_every_message_is_an_error_or_the_latest_position(
    run: Components, query: Make
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    with pytest.raises(OptionError, match="no message was published at or after"):
        query("q1", topic=str(A), startingTimestamp=YEAR_2100).trigger()
    reader = query(
        "q2",
        topic=str(A),
        startingTimestamp=YEAR_2100,
        startingOffsetsByTimestampStrategy="latest",
    )
    reader.run_all()
    write(run, A, 2)
    reader.run_all()
    assert reader.values == [2]


def test_a_message_that_comes_during_the_search_is_not_skipped(
    run: Components, query: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    log = type(run.log)
    found = log.position_at

    def position_at(self: Any, segment: SegmentRef, time_ms: int) -> Position | None:
        at = found(self, segment, time_ms)
        write(run, A, 2)
        return at

    monkeypatch.setattr(log, "position_at", position_at)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    reader = query("q", topic=str(A), startingTimestamp=moment(run), **strategy)
    reader.run_all()
    assert reader.values == [2]


def test_a_strategy_without_a_time_is_refused(run: Components, query: Make) -> None:
    with pytest.raises(OptionError, match="means nothing here"):
        query("q", topic=str(A), startingOffsetsByTimestampStrategy="latest")


def test_a_time_is_resolved_once_and_a_checkpoint_keeps_what_it_was(
    run: Components, query: Make
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    at = moment(run)
    write(run, A, 2)
    reader = query("q", topic=str(A), startingTimestamp=at)
    assert reader._plan(0, "")  # the first batch is in Spark's offset log, and the driver dies
    reader.options["startingTimestamp"] = "0"
    reader.restart()
    reader.run_all()
    assert reader.values == [2]
    reader.options["startingTimestamp"] = YEAR_2100
    reader.restart()
    write(run, A, 3)
    reader.run_all()
    assert reader.values == [2, 3]


def test_a_parent_that_is_older_counts_as_read_and_a_younger_one_comes_before_its_child(
    run: Components, query: Make
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1, key="k")
    between = moment(run)
    write(run, A, 2, key="k")
    run.topics.changes.split(A, "0")
    after = moment(run)
    write(run, A, 3, key="k")
    for at, expected in ((between, [2, 3]), (after, [3])):
        strategy = {"startingOffsetsByTimestampStrategy": "latest"}
        reader = query(f"q-{at}", topic=str(A), startingTimestamp=at, **strategy)
        reader.run_all()
        assert reader.values == expected


def test_behind_a_younger_parent_a_child_is_read_from_its_beginning_whatever_its_clock_says(
    run: Components, query: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.topics.create(A, 1)
    at = moment(run)
    write(run, A, 1, key="k")
    run.topics.changes.split(A, "0")
    write(run, A, 2, key="k")
    log = type(run.log)
    found = log.position_at

    def position_at(self: Any, segment: SegmentRef, time_ms: int) -> Position | None:
        # The child was written by a producer whose clock is behind.
        return found(self, segment, time_ms) if segment.id.endswith("-0") else None

    monkeypatch.setattr(log, "position_at", position_at)
    reader = query("q", topic=str(A), startingTimestamp=at)
    reader.run_all()
    assert reader.values == [1, 2]


def test_a_subscription_begins_at_the_time_and_is_found_again_without_the_option(
    run: Components, query: Make
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    at = moment(run)
    write(run, A, 2)
    options = {"topic": str(A), "subscription": "s"}
    query("died", **options, startingTimestamp=at).reader.initialOffset()
    with pytest.raises(OptionError, match="was begun by a query with another start"):
        query("other", **options, startingTimestamp=YEAR_2100).trigger()
    successor = query("q", **options)
    successor.run_all()
    assert successor.values == [2]


# -- where a batch read ends -----------------------------------------------------------------------


def test_batch_reads_whose_times_meet_read_each_row_once(
    run: Components, batch: Callable[..., list[int]]
) -> None:
    run.topics.create(A, 2)
    write(run, A, 1, 2, 3)
    first = moment(run)
    write(run, A, *range(4, 20))
    run.topics.changes.split(A, "0")
    second = moment(run)
    write(run, A, *range(20, 40))
    assert batch(A, endingTimestamp=first) == [1, 2, 3]
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    middle = batch(A, startingTimestamp=first, endingTimestamp=second, **strategy)
    assert middle == list(range(4, 20))
    assert batch(A, startingTimestamp=second, **strategy) == list(range(20, 40))
    assert batch(A, endingTimestamp=YEAR_2100) == list(range(1, 40))
    low, *_ = descriptors(run, A)
    by_topic = json.dumps({str(A): {low: 0}})
    assert 0 < len(batch(A, endingOffsetsByTimestamp=by_topic)) < 39


def test_a_batch_read_up_to_a_time_is_refused_while_a_transaction_from_before_it_is_open(
    run: Components, batch: Callable[..., list[int]]
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    task = Task(run, "open")
    [segment] = run.topics.require(A).active
    name = writer_name(task.txn, 0, "x")
    run.buffer.admit(task.txn, task.nonce, 60_000, name, [segment.ref.id])
    with pytest.raises(TransactionConflictError, match="Transactions are open there"):
        batch(A, endingTimestamp=moment(run))  # its rows are on their way
    task.writers.append(A, record_batch([("k", 2)]))
    outcome = task.writers.finish()
    at = moment(run)
    for later in ((), (3,)):  # without, and with a message after that time
        for value in later:
            write(run, A, value)
        with pytest.raises(TransactionConflictError, match="Transactions are open there"):
            batch(A, endingTimestamp=at)
    assert batch(A, endingTimestamp=YEAR_2100) == [1]
    task.commit(outcome)
    assert batch(A, endingTimestamp=at) == [1, 2]
    assert batch(A, startingTimestamp=at) == [3]


def test_a_time_before_what_retention_has_left_starts_with_what_is_left(
    run: Components, query: Make, batch: Callable[..., list[int]]
) -> None:
    run.topics.create(A, 1)
    write(run, A, 1)
    write(run, A, 2)
    [segment] = run.topics.require(A).active
    run.log.trim(segment.ref, Position(1, 0))
    assert batch(A, startingTimestamp="0") == [2]
    reader = query("q", topic=str(A), startingTimestamp="0")
    reader.run_all()
    assert reader.values == [2]
