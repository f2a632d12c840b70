"""Which ranges a task reads: whole segments, in order, about as much as every other task."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis
from pyspark.sql.types import StructType

from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.source import planner
from pulsar_txn_spark.spark.source.partition import SegmentRange, SourcePartition, shared_out
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.txn.transaction_buffer import Visibility
from tests.models.segment_histories import record_batch

SEGMENTS = 8
IN = TopicName.parse("in")


def ranges(*entries: int) -> list[SegmentRange]:
    ref = SegmentRef("topic://a/b/c", "", "")
    return [
        SegmentRange(replace(ref, id=f"s-{at}"), Position(1, 10), Position(1, 10 + n), Visibility())
        for at, n in enumerate(entries)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_each_range_has_one_task_and_no_task_has_much_more_than_others(seed: int) -> None:
    draw = random.Random(seed)
    planned = ranges(*(draw.randint(1, 100) for _ in range(draw.randint(1, 40))))
    tasks = draw.randint(1, 12)
    shares = shared_out(planned, tasks)
    assert len(shares) == min(tasks, len(planned))
    assert all(shares)
    found = [planned.index(one) for share in shares for one in share]
    assert sorted(found) == list(range(len(planned)))
    for share in shares:
        assert [planned.index(one) for one in share] == sorted(planned.index(one) for one in share)
    read = [sum(one.entries for one in share) for share in shares]
    assert max(read) - min(read) <= max(one.entries for one in planned)


def test_the_length_of_a_range_over_several_ledgers_is_a_guess_from_the_last_one() -> None:
    [whole] = ranges(5)
    assert whole.entries == 5
    assert replace(whole, start=EARLIEST).entries == 16


def test_nothing_is_shared_out_where_there_is_nothing() -> None:
    assert shared_out([], 3) == []


Plan = Callable[..., list[SourcePartition]]


@pytest.fixture
def run(redis_path: str, redis_client: redis.Redis) -> Components:
    components = open_components(Options({"store.path": redis_path}, Use.CONNECT))
    topology = components.topics.create(IN, SEGMENTS)
    for segment in topology.segments:
        writer = components.log.writer(segment.ref, "w")
        writer.append(record_batch([("k", 1)]))
        last = writer.flush().last
        writer.close()
        assert last is not None
        components.store.segments.raise_high(segment.ref.id, last)
    return components


@pytest.fixture
def plan(run: Components, redis_path: str) -> Plan:
    def planned(**options: str) -> list[SourcePartition]:
        given = {"store.path": redis_path, "topic": str(IN), "startingOffsets": "earliest"}
        reader = PulsarTxnStreamReader({**given, **options}, StructType())
        start = reader.initialOffset()
        found = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        reader.stop()
        partitions = [one for one in found if isinstance(one, SourcePartition)]
        assert sorted(one.segment.id for p in partitions for one in p.ranges) == sorted(
            segment.ref.id for segment in run.topics.require(IN).segments
        )
        return partitions

    return planned


@pytest.mark.parametrize(
    "cores, options, tasks",
    [
        (None, {}, SEGMENTS),
        (3, {}, 3),
        (100, {}, SEGMENTS),
        (None, {"maxPartitions": "2"}, 2),
        (3, {"maxPartitions": "2"}, 2),
        (1, {"maxPartitions": "5"}, 1),
        (3, {"minPartitions": "5"}, 5),
        (3, {"minPartitions": "2"}, 3),
        (3, {"minPartitions": "8", "maxPartitions": "8"}, SEGMENTS),
    ],
)
def test_so_many_tasks_read_as_can_run_at_once_within_the_limits(
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    cores: int | None,
    options: dict[str, str],
    tasks: int,
) -> None:
    monkeypatch.setattr(planner, "tasks_at_once", lambda: cores)
    assert len(plan(**options)) == tasks


def test_a_least_above_the_most_is_refused(plan: Plan) -> None:
    with pytest.raises(OptionError, match="'minPartitions' is 3 and 'maxPartitions' 2"):
        plan(minPartitions="3", maxPartitions="2")
