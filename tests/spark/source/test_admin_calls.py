"""What a snapshot of many segments asks Pulsar's admin API. These bounds only ever go down."""

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
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.snapshot_cache import KEPT_S, UNREPORTED_S, SnapshotCache
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


class Idle:
    """A source that has read everything, asked once a second without an event that tells it so."""

    def __init__(self, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.source = source
        self.reader = source.reader()
        self.reader._kept = SnapshotCache(lambda: self.now)
        monkeypatch.setattr(IdleWatch, "unchanged_since", lambda *_: False)
        source.append(*source.segments)
        self.end = self.reader.initialOffset()
        assert self.news()
        while not self.settled():
            pass

    def news(self) -> bool:
        before, self.end = self.end, poll(self.reader, self.end)
        return before != self.end

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


def test_what_happens_in_a_segment_costs_calls_for_no_other(idle: Idle) -> None:
    idle.source.append(idle.source.segments[3])
    assert idle.news()
    assert idle.source.api.calls() == 1
    polls = 1
    while not idle.settled():
        polls += 1
    assert polls <= 2


def test_an_event_spares_a_second_read_of_the_gates(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    gates = RedisSegmentStore.gates

    def counted(*args: Any, **named: Any) -> Any:
        asked.append(args)
        return gates(*args, **named)

    monkeypatch.setattr(RedisSegmentStore, "gates", counted)
    idle.source.append(idle.source.segments[3])
    assert idle.news()
    assert len(asked) == 1


def test_rows_are_found_although_their_event_was_lost(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdleWatch, "with_events", lambda _: set())
    idle.source.append(idle.source.segments[3])
    assert idle.news()


def test_rows_that_come_between_a_snapshot_and_its_gate_are_found_by_the_next_poll(
    idle: Idle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IdleWatch, "with_events", lambda _: set())
    snapshot_each = PulsarSegmentLog.snapshot_each

    def interrupted(self: PulsarSegmentLog, segments: Any) -> Any:
        snapshots = snapshot_each(self, segments)
        idle.source.append(*segments)
        return snapshots

    idle.now += KEPT_S
    with monkeypatch.context() as patched:
        patched.setattr(PulsarSegmentLog, "snapshot_each", interrupted)
        assert not idle.news()
    assert idle.news()


def test_every_poll_takes_a_snapshot_of_a_segment_with_a_pin(idle: Idle) -> None:
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


def test_rows_that_nobody_reports_are_found_in_ten_seconds_and_more_of_them_at_once(
    idle: Idle,
) -> None:
    segment = idle.source.segments[3]
    idle.source.api.append(segment)
    idle.now += KEPT_S - 1
    assert not idle.news()
    idle.now += 1
    assert idle.news()
    for _ in range(3):
        idle.now += 1
        idle.source.api.append(segment)
        assert idle.news()
    idle.now += UNREPORTED_S + KEPT_S
    assert not idle.news()
    assert idle.settled()


def test_what_was_left_for_later_is_polled_again(idle: Idle) -> None:
    # A limit leaves rows in the segment, of which no further event tells.
    start = idle.end
    idle.source.append(idle.source.segments[3], entries=50)
    for _ in range(3):
        assert poll(idle.reader, start) != start
        assert idle.source.api.calls() == 1
