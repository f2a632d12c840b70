"""The stream reader on a PySpark that asks for the latest offset without the batch's start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import announcement
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.spark.rows import READ_SCHEMA
from pulsar_txn_spark.spark.source import tracking
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.tracking import TrackingStreamReader
from pulsar_txn_spark.spark.versions import Feature

TOPIC = TopicName.parse("in")


class OlderSpark:
    """Runs micro-batches as Spark 4.0 and 4.1 do, with offsets through JSON as in a checkpoint."""

    reader: TrackingStreamReader | None = None

    def __init__(self, path: str) -> None:
        self._given = {"store.path": path, "topic": str(TOPIC), "startingOffsets": "earliest"}
        self.run: Components = open_components(Options({"store.path": path}, Use.CONNECT))
        self.run.topics.create(TOPIC, 1)
        self.log: list[Any] = []
        self.rows: list[str] = []

    def produce(self, *values: str) -> None:
        """Append each value as an entry of its own."""
        active = self.run.topics.require(TOPIC).active
        for at, value in enumerate(values):
            ref = active[at % len(active)].ref
            writer = self.run.log.writer(ref, f"plain {value}")
            writer.append(pa.record_batch([pa.array([value.encode()])], names=["value"]))
            last = writer.flush().last
            writer.close()
            assert last is not None
            self.run.store.segments.raise_high(ref.id, last)

    def start(self, **options: str) -> None:
        """Start the query, anew or from its offset log."""
        self.stop()
        self.reader = self.new_reader(**options)
        if self.log:
            assert not self.reader.partitions(self.log[-1], self.log[-1])

    def new_reader(self, **options: str) -> TrackingStreamReader:
        return TrackingStreamReader({**self._given, **options}, READ_SCHEMA)

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()

    def micro_batch(self) -> list[str]:
        """Plan and read a micro-batch; return its values."""
        assert self.reader is not None
        end = _json(self.reader.latestOffset())
        before = self.log[-1] if self.log else _json(self.reader.initialOffset())
        if end == before and self.log:
            return []
        self.log.append(end)
        return self.read(before, end)

    def read(self, start: Any, end: Any) -> list[str]:
        assert self.reader is not None
        found: list[str] = []
        for partition in self.reader.partitions(start, end):
            assert isinstance(partition, SourcePartition)
            for batch in self.reader.read(partition):
                found += [value.decode() for value in batch.column("value").to_pylist()]
        self.rows += found
        return found


def _json(offset: object) -> Any:
    return json.loads(json.dumps(offset))


@pytest.fixture
def spark(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OlderSpark]:
    # Tasks register what they read for the sink's transaction; no sink is part of these tests.
    monkeypatch.setattr("pulsar_txn_spark.spark.source.task._register", lambda *_: None)
    monkeypatch.setattr("pulsar_txn_spark.spark.source.task.TaskFacts.of_task", lambda: None)
    # Without waiting for the events that wake a reader up: each poll looks.
    monkeypatch.setattr(
        "pulsar_txn_spark.spark.source.idle.IdleWatch.unchanged_since", lambda *_: False
    )
    spark = OlderSpark(redis_path)
    yield spark
    spark.stop()


@pytest.mark.parametrize("is_available", [True, False])
def test_the_reader_is_that_of_the_installed_pyspark(
    monkeypatch: pytest.MonkeyPatch, redis_path: str, is_available: bool
) -> None:
    monkeypatch.setattr(Feature, "is_available", lambda _: is_available)
    options = {"store.path": redis_path, "topic": "in"}
    reader = PulsarTxnDataSource(options).streamReader(READ_SCHEMA)
    assert isinstance(reader, TrackingStreamReader) is not is_available


def test_each_row_is_read_once_across_micro_batches_and_restarts(spark: OlderSpark) -> None:
    spark.produce("a", "b")
    spark.start()
    assert spark.micro_batch() == ["a", "b"]
    assert spark.micro_batch() == []
    spark.produce("c")
    assert spark.micro_batch() == ["c"]
    spark.start()
    assert spark.micro_batch() == []
    spark.produce("d")
    assert spark.micro_batch() == ["d"]
    assert spark.rows == ["a", "b", "c", "d"]


def test_limits_count_from_where_the_last_micro_batch_ended(spark: OlderSpark) -> None:
    spark.produce(*"abcdefg")
    spark.start(maxMessagesPerTrigger="2")
    assert spark.micro_batch() == ["a", "b"]
    assert spark.micro_batch() == ["c", "d"]
    spark.start(maxMessagesPerTrigger="2")
    assert spark.micro_batch() == ["e", "f"]
    assert spark.micro_batch() == ["g"]
    assert spark.micro_batch() == []


def test_a_batch_that_is_repeated_reads_the_same_and_the_next_one_goes_on(
    spark: OlderSpark,
) -> None:
    spark.produce(*"abcd")
    spark.start(maxMessagesPerTrigger="2")
    spark.micro_batch()
    spark.micro_batch()
    spark.start(maxMessagesPerTrigger="1")
    assert spark.read(*spark.log) == ["c", "d"]
    spark.produce("e")
    assert spark.micro_batch() == ["e"]


def test_children_are_read_after_their_parents_also_after_a_restart(spark: OlderSpark) -> None:
    spark.produce("a", "b")
    spark.start()
    segment = spark.run.topics.require(TOPIC).active[0]
    spark.run.topics.changes.split(TOPIC, segment.descriptor)
    spark.produce("c", "d")
    assert spark.micro_batch() == ["a", "b"]
    spark.start()
    assert sorted(spark.micro_batch()) == ["c", "d"]
    spark.start()
    assert spark.micro_batch() == []


def test_a_start_that_the_end_was_not_computed_for_is_refused(spark: OlderSpark) -> None:
    """Spark's wrapper of AvailableNow asks for the end before it says where to start."""
    spark.produce("a", "b")
    spark.start()
    spark.micro_batch()
    spark.produce("c")
    reader = spark.new_reader()
    end = _json(reader.latestOffset())
    with pytest.raises(DataLossError, match=r"triggerAvailableNowWrapper\.enabled to false"):
        reader.partitions(spark.log[-1], spark.log[-1])
    with pytest.raises(DataLossError, match="another offset"):
        reader.partitions(spark.log[-1], end)
    reader.stop()


@pytest.mark.parametrize("options, is_said", [({"maxMessagesPerTrigger": "1"}, True), ({}, False)])
def test_what_one_micro_batch_leaves_unread_is_announced(
    spark: OlderSpark,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: dict[str, str],
    is_said: bool,
) -> None:
    monkeypatch.setattr(announcement, "_announced", set())
    monkeypatch.setattr(tracking, "installed_pyspark", lambda: "4.0.5")
    spark.produce("a", "b")
    spark.start(**options)
    spark.micro_batch()
    said = capfd.readouterr().err
    assert ("PySpark 4.0.5 has no admission control" in said) is is_said
    assert ("availableNow" in said) is is_said
