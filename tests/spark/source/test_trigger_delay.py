"""A micro-batch waits for messages, and not for ever; the progress says how many are left."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import OptionError, SegmentLogUnavailableError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import RangeSize, SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import hash_of
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.lag import Lag
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.source.trigger_delay import TriggerDelay
from pulsar_txn_spark.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
)
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import SCHEMA

TOPIC = TopicName.parse("in")
SOON_S = 5.0


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A source as Spark asks it."""

    def __init__(self, path: str, segments: int, **options: str) -> None:
        self.run: Components = open_components(Options({"store.path": path}, Use.CONNECT))
        self.run.topics.create(TOPIC, segments)
        given = {"store.path": path, "topic": str(TOPIC), "startingOffsets": "earliest", **options}
        self.reader = PulsarTxnStreamReader(given, SCHEMA)
        self.clock = Clock()
        self.reader._delay._clock = self.clock
        self.start: dict[str, Any] = self.reader.initialOffset()
        self.written = 0

    def write(self, count: int) -> None:
        task = self.begin(count)
        task.commit(task.writers.finish())

    def begin(self, count: int) -> Task:
        """Write in a transaction that stays open."""
        task = Task(self.run, f"write {self.written}")
        task.writers.append(TOPIC, record_batch([("k", n) for n in range(count)]))
        self.written += 1
        return task

    def split(self) -> None:
        """Split the segment that has the key's next rows."""
        at = hash_of(b"k")
        topology = self.run.topics.require(TOPIC)
        [segment] = [s for s in topology.active if s.hash_start <= at <= s.hash_end]
        self.run.topics.changes.split(TOPIC, segment.descriptor)

    def ask(self, limit: ReadLimit | None = None) -> bool:
        """Ask once; tell whether there is a micro-batch."""
        end = self.reader.latestOffset(self.start, limit or self.reader.getDefaultReadLimit())
        is_new, self.start = end != self.start, end
        return is_new

    def comes(self, limit: ReadLimit | None = None) -> bool:
        """Ask until there is a micro-batch, as Spark does: events take a moment."""
        deadline = time.monotonic() + SOON_S
        while time.monotonic() < deadline:
            if self.ask(limit):
                return True
        return False

    def lag(self) -> dict[str, Any]:
        latest = self.reader.reportLatestOffset()
        assert latest is not None
        lag: dict[str, Any] = latest["lag"]
        return lag

    def close(self) -> None:
        self.reader.stop()


def test_a_micro_batch_waits_for_messages_or_for_the_delay_and_the_first_one_for_nothing(
    redis_path: str, redis_client: redis.Redis
) -> None:
    source = Source(redis_path, 1, minMessagesPerTrigger="3", maxTriggerDelay="1min")
    assert source.reader.getDefaultReadLimit() == ReadMinRows(3)
    source.write(1)
    assert source.comes(), "the first one"
    source.write(1)
    while not source.lag()["messagesBehindLatest"]:
        assert not source.ask()
    assert source.lag()["messagesBehindLatest"] == 1
    source.write(2)
    assert source.comes(), "there are three"
    assert source.lag()["messagesBehindLatest"] == 0
    source.write(1)
    source.clock.now += 59
    assert not any(source.ask() for _ in range(5))
    source.clock.now += 1
    assert source.comes(), "the delay is over, of which no event tells"
    source.clock.now += 600
    assert not source.ask(), "there is nothing"
    source.write(1)
    assert source.comes(), "there is something, long after the last one"
    source.write(1)
    assert source.comes(ReadAllAvailable()), "Trigger.Once takes what there is"
    source.write(1)
    source.reader.prepareForTriggerAvailableNow()
    assert source.comes(), "and so does Trigger.AvailableNow"
    source.close()


@pytest.mark.parametrize("generations", [1, 3])
def test_what_is_left_in_sealed_segments_does_not_wait_if_their_children_have_the_messages(
    redis_path: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    generations: int,
) -> None:
    source = Source(redis_path, 1, minMessagesPerTrigger="5", maxTriggerDelay="15min")
    source.write(1)
    assert source.comes(), "the first one"
    monkeypatch.setattr(IdleWatch, "unchanged_since", lambda *_: False)
    for _ in range(generations):
        source.write(1)
        source.split()
    assert not source.ask(), "nothing has come since"
    assert source.lag()["messagesBehindLatest"] == generations
    source.write(5)
    for left in reversed(range(generations)):
        assert source.ask()
        assert source.lag()["messagesBehindLatest"] == 5 + left
    assert source.ask(), "there are five in the last child"
    source.write(4)
    assert not source.ask()
    source.close()


def test_messages_behind_those_that_a_transaction_holds_back_do_not_count(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(redis_path, 1, minMessagesPerTrigger="5", maxTriggerDelay="15min")
    source.write(1)
    assert source.comes(), "the first one"
    monkeypatch.setattr(IdleWatch, "unchanged_since", lambda *_: False)
    source.write(1)
    blocking = source.begin(1)
    blocking.writers.finish()
    source.split()
    source.write(5)
    assert not source.ask(), "a batch would read one message, and leave the child waiting"
    blocking.abort()
    assert source.ask()
    assert source.ask()
    assert source.lag()["messagesBehindLatest"] == 0
    source.close()


def test_waiting_for_the_messages_of_children_asks_for_nothing_while_nothing_happens(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(redis_path, 1, minMessagesPerTrigger="5", maxTriggerDelay="15min")
    source.write(1)
    assert source.comes(), "the first one"
    source.write(1)
    source.split()
    source.write(1)
    while source.lag()["messagesBehindLatest"] != 2:
        assert not source.ask()
    watcher = source.reader._idle._watcher
    assert watcher is not None
    watcher._recheck_s = 3600.0
    assert not any(source.ask() for _ in range(10)), "what has happened is known then"
    measured = []
    measure = EmbeddedSegmentLog.measure

    def count(log: EmbeddedSegmentLog, *range_: Any) -> RangeSize:
        measured.append(range_)
        return measure(log, *range_)

    monkeypatch.setattr(EmbeddedSegmentLog, "measure", count)
    watcher._due.update(watcher._segments)
    assert not source.ask(), "a poll"
    assert len(measured) == 2, "the rest of the parent, and what the child has"
    assert source.lag()["messagesBehindLatest"] == 2
    before = source.run.store.round_trips
    assert not any(source.ask() for _ in range(50))
    assert source.run.store.round_trips == before
    assert len(measured) == 2
    source.write(3)
    assert source.comes(), "the event of a child ends the wait"
    source.close()


@pytest.mark.parametrize("limit", [None, "2", "100"])
def test_a_poll_measures_no_range_twice(
    redis_path: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    limit: str | None,
) -> None:
    options = {} if limit is None else {"maxMessagesPerTrigger": limit}
    source = Source(redis_path, 1, minMessagesPerTrigger="3", maxTriggerDelay="1min", **options)
    source.write(1)
    assert source.comes(), "the first one"
    measured: list[tuple[Position, Position]] = []
    measure = EmbeddedSegmentLog.measure

    def measure_once(
        log: EmbeddedSegmentLog, segment: SegmentRef, start: Position, end: Position
    ) -> RangeSize:
        measured.append((start, end))
        return measure(log, segment, start, end)

    monkeypatch.setattr(EmbeddedSegmentLog, "measure", measure_once)
    monkeypatch.setattr(IdleWatch, "unchanged_since", lambda *_: False)
    source.write(2)
    assert not source.ask(), "it waits for a third one"
    assert source.lag()["messagesBehindLatest"] == 2
    assert len(measured) == 1
    measured.clear()
    source.write(2)
    assert source.ask()
    assert source.lag()["messagesBehindLatest"] == (2 if limit == "2" else 0)
    assert len(measured) == len(set(measured)) == (2 if limit == "2" else 1)
    source.close()


def test_a_delay_without_a_least_number_of_messages_is_refused(redis_path: str) -> None:
    with pytest.raises(OptionError, match="'maxTriggerDelay' means nothing here"):
        PulsarTxnStreamReader({"topic": "t", "maxTriggerDelay": "1s"}, SCHEMA)
    with pytest.raises(OptionError, match="a length of time, such as 500ms"):
        PulsarTxnStreamReader(
            {"topic": "t", "maxTriggerDelay": "soon", "minMessagesPerTrigger": "2"}, SCHEMA
        )


@pytest.mark.parametrize(
    "text, expected",
    [("900000", 900_000), ("500ms", 500), ("30 s", 30_000), ("15m", 900_000), ("1H", 3_600_000)],
)
def test_a_delay_has_a_unit_or_is_in_milliseconds(text: str, expected: int) -> None:
    given = {"topic": "t", "maxTriggerDelay": text, "minMessagesPerTrigger": "1"}
    assert Options(given, Use.READ | Use.STREAM).get("maxTriggerDelay") == expected
    assert Options({"topic": "t"}, Use.READ | Use.STREAM).get("maxTriggerDelay") == 900_000


def test_messages_are_counted_only_while_the_delay_lasts() -> None:
    clock = Clock()
    delay = TriggerDelay(2, 1000, clock)

    def never() -> int:
        raise AssertionError

    assert not delay.waits(never)
    assert delay.waits(lambda: 1)
    assert not delay.waits(lambda: 2)
    clock.now += 1
    assert not delay.waits(never)
    assert not TriggerDelay(None, 1000, clock).waits(never)


def test_the_progress_shows_how_many_messages_a_limited_query_is_behind(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(redis_path, 2, maxMessagesPerTrigger="2")
    assert source.reader.getDefaultReadLimit() == ReadMaxRows(2)
    for _ in range(5):
        source.write(1)  # all of one key, and so of one segment
    assert source.comes()
    assert source.lag() == {
        "minMessagesBehindLatest": 0,
        "avgMessagesBehindLatest": 1.5,
        "maxMessagesBehindLatest": 3,
        "messagesBehindLatest": 3,
        "exact": True,
    }
    while source.ask():
        pass
    assert source.lag() == Lag(0, 0.0, 0, 0, exact=True).to_json()
    source.write(3)
    source.write(3)
    assert source.comes()

    def fails(*_: object) -> None:
        raise SegmentLogUnavailableError("no answer")

    monkeypatch.setattr(type(source.run.log), "measure", fails)
    latest = source.reader.reportLatestOffset()
    assert latest is not None
    assert "lag" not in latest, "no reason to stop the query"
    source.close()
