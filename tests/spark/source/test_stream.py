"""What the source refuses: offsets and executors that do not fit the store (INV-11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import (
    DataLossError,
    StoreRolledBackError,
    StoreUnavailableError,
    TopicNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment
from pulsar_txn_spark.spark.rows import READ_SCHEMA
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable

TOPIC = TopicName.parse("in")


class Source:
    """A topic with rows, and readers as Spark starts them."""

    def __init__(self, path: str) -> None:
        self._given = {"store.path": path, "topic": str(TOPIC), "startingOffsets": "earliest"}
        self.run: Components = open_components(Options({"store.path": path}, Use.CONNECT))
        self.run.topics.create(TOPIC, 1)
        self.segment: SegmentRef = self.run.topics.require(TOPIC).active[0].ref

    def reader(self) -> PulsarTxnStreamReader:
        return PulsarTxnStreamReader(self._given, READ_SCHEMA)

    def produce(self, value: str) -> None:
        writer = self.run.log.writer(self.segment, f"plain {value}")
        writer.append(pa.record_batch([pa.array([value.encode()])], names=["value"]))
        last = writer.flush().last
        writer.close()
        assert last is not None
        self.run.store.segments.raise_high(self.segment.id, last)

    def progress(self, reader: PulsarTxnStreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return where a query stands before and after it has read what is there."""
        start = reader.initialOffset()
        return start, reader.latestOffset(start, ReadAllAvailable())


@pytest.fixture
def source(redis_path: str, redis_client: redis.Redis) -> Source:
    return Source(redis_path)


def test_a_start_whose_first_request_fails_reports_that_and_can_be_tried_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = source.reader()

    def fail() -> int:
        raise StoreUnavailableError("a replica took over")

    with monkeypatch.context() as patch:
        patch.setattr(source.run.store.meta, "next_source_epoch", fail)
        with pytest.raises(StoreUnavailableError, match="a replica took over"):
            reader.initialOffset()
        reader.stop()  # Spark's process does so in any case, and its error would hide the first
    source.produce("a")
    start, end = source.progress(reader)
    assert end != start
    reader.stop()


def test_a_commit_looks_at_each_segment_a_bounded_number_of_times(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_components(Options({"store.path": redis_path}, Use.CONNECT))
    descriptor: Any = Segment.descriptor
    looks: list[int] = []

    def look(segment: Segment) -> str:
        looks.append(1)
        found: str = descriptor.fget(segment)
        return found

    def cost(segments: int) -> int:
        topic = TopicName.parse(f"in-{segments}")
        run.topics.create(topic, segments)
        given = {"store.path": redis_path, "topic": str(topic), "subscription": "sub"}
        reader = PulsarTxnStreamReader(given, READ_SCHEMA)
        start = reader.initialOffset()
        looks.clear()
        reader.commit(start)
        reader.stop()
        return len(looks)

    monkeypatch.setattr(Segment, "descriptor", property(look))
    few, many = cost(8), cost(64)
    assert 0 < many <= 10 * few


def test_offsets_that_run_backwards_are_refused(source: Source) -> None:
    source.produce("a")
    reader = source.reader()
    start, end = source.progress(reader)
    assert len(reader.partitions(start, end)) == 1
    source.produce("b")
    later = reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLossError, match="run backwards in segment"):
        reader.partitions(later, end)


def test_the_error_of_a_missing_topic_names_the_store_that_was_asked(
    run: Components, redis_path: str
) -> None:
    assert run.topics.names() == []
    reader = PulsarTxnStreamReader({"store.path": redis_path, "topic": "flights"}, READ_SCHEMA)
    with pytest.raises(TopicNotFoundError) as caught:
        reader.initialOffset()
    assert f"(in the metadata store {redis_path} there is none yet)" in str(caught.value)


def test_an_executor_that_reaches_another_store_reads_nothing(source: Source) -> None:
    source.produce("a")
    reader = source.reader()
    [partition] = reader.partitions(*source.progress(reader))
    assert isinstance(partition, SourcePartition)
    with pytest.raises(StoreRolledBackError, match="this executor reaches metadata store"):
        reader.read(replace(partition, store_uuid="another"))
