"""What a look at many segments asks Pulsar's admin API. These bounds only ever go down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from pyspark.sql.types import StructType

from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable, ReadLimit, ReadMaxRows
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
def test_a_look_with_a_limit_asks_each_segment_once(source: Source, entries: int) -> None:
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
