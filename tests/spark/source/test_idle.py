"""An idle source asks the store for nothing, and still misses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import StructType

import pulsar_txn_spark
from pulsar_txn_spark import client
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import StoreUnavailableError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import EndedBy, TxnId, TxnState
from pulsar_txn_spark.txn.coordinator import as_record
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.support.connections import in_use

TOPIC = "topic://public/default/idle"
SOON_S = 5.0
FAR_S = 3600.0


class Source:
    """A source as Spark asks it, and somebody who writes what it reads."""

    def __init__(self, path: str) -> None:
        options = {"store.path": path, "topic": TOPIC, "startingOffsets": "earliest"}
        pulsar_txn_spark.Admin({"store.path": path}).create_topic(TOPIC, segments=2)
        self.run: Components = open_components(Options({"store.path": path}, Use.CONNECT))
        self.reader = PulsarTxnStreamReader(options, StructType())
        self.start: dict[str, Any] = self.reader.initialOffset()

    def ask(self) -> bool:
        """Ask once, as Spark does every 10 ms; tell whether there is a batch."""
        found = self.reader.latestOffset(self.start, ReadAllAvailable())
        news = found != self.start
        self.start = found
        return news

    def settle(self) -> None:
        while self.ask():
            pass
        self.ask()

    def poll(self) -> None:
        """Poll everything, as it does once in a while."""
        watcher = self.reader._idle._watcher
        assert watcher is not None
        watcher._due.update(watcher._segments)
        assert not self.ask()
        self.settle()

    def open(self, nonce: str) -> tuple[TxnId, Winner]:
        segment = self.run.topics.require(self.reader._planner.options.get("topic")).active[0].ref
        txn = self.run.coordinator.new_txn(nonce)
        name = writer_name(txn, 0, nonce)
        self.run.buffer.admit(txn, nonce, 60_000, name, [segment.id])
        writer = self.run.log.writer(segment, name)
        writer.append(pa.record_batch([pa.array([b"row"])], names=["value"]))
        last = writer.flush().last
        writer.close()
        assert last is not None
        return txn, Winner(segment=segment.id, writer=name, last=as_record(last))

    def round_trips(self, asked: int) -> int:
        before = self.run.store.round_trips
        for _ in range(asked):
            assert not self.ask()
        return self.run.store.round_trips - before


@pytest.fixture
def source(redis_path: str, redis_client: redis.Redis) -> Iterator[Source]:
    found = Source(redis_path)
    found.settle()
    # No recheck that could stand in for an event.
    watcher = found.reader._idle._watcher
    assert watcher is not None
    watcher._recheck_s = FAR_S
    yield found
    found.reader.stop()


def test_nothing_is_asked_for_while_nothing_happens(source: Source) -> None:
    assert source.round_trips(50) == 0


def test_what_was_committed_is_found_the_next_time_that_spark_asks(source: Source) -> None:
    txn, winner = source.open("nonce")
    source.settle()  # blocked by the pin
    assert source.round_trips(20) == 0
    source.run.coordinator.commit(txn, "nonce", Outcome(winners=[winner]))
    assert source.ask()
    source.settle()
    assert source.round_trips(20) == 0


def test_events_that_cannot_be_followed_fail_no_poll_that_the_store_answers(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn, winner = source.open("nonce")
    source.run.coordinator.commit(txn, "nonce", Outcome(winners=[winner]))
    assert source.ask()
    watcher = source.reader._idle._watcher

    def broken() -> list[str]:
        raise StoreUnavailableError("the metadata store's events cannot be followed")

    monkeypatch.setattr(watcher, "poll", broken)
    assert not source.ask()
    assert source.reader._idle._watcher not in (None, watcher)


def test_a_decision_that_nobody_materialized_is_found_as_well(source: Source) -> None:
    txn, winner = source.open("nonce")
    source.poll()  # it sees who blocks it
    record = Outcome(winners=[winner]).SerializeToString(deterministic=True)
    source.run.store.transactions.end(txn, TxnState.COMMITTED, record, EndedBy.OWNER, "nonce")
    assert source.ask()


def test_rows_in_a_child_are_found_although_nobody_has_polled_since_the_split(
    source: Source,
) -> None:
    source.run.topics.changes.split(TopicName.parse(TOPIC), "0")
    txn, winner = source.open("nonce")
    source.run.coordinator.commit(txn, "nonce", Outcome(winners=[winner]))
    assert source.ask()


def test_a_source_finishes_a_change_that_was_left_half_done_but_not_at_once(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName.parse(TOPIC)
    topology = source.run.topics.require(name)
    planned = topology.with_planned(topology.active[:1], [0x4000], "dead operator")
    source.run.store.topics.swap(TOPIC, topology.version, planned.serialize())
    source.settle()
    assert source.run.topics.require(name).unfinished, "its operator may be alive"
    monkeypatch.setattr("pulsar_txn_spark.spark.source.topics.CHANGE_GRACE_PERIOD_S", 0.0)
    source.poll()
    assert not source.run.topics.require(name).unfinished


def test_a_poll_that_is_limited_is_followed_by_another(source: Source) -> None:
    for number in range(3):
        txn, winner = source.open(f"nonce-{number}")
        source.run.coordinator.commit(txn, f"nonce-{number}", Outcome(winners=[winner]))
    assert source.ask()
    assert not source.ask()


def test_without_any_event_it_polls_once_in_a_while(source: Source) -> None:
    watcher = source.reader._idle._watcher
    assert watcher is not None
    watcher._recheck_s = 0.05
    before = source.run.store.round_trips
    deadline = time.monotonic() + SOON_S
    while source.run.store.round_trips == before and time.monotonic() < deadline:
        assert not source.ask()
    assert source.run.store.round_trips > before


def test_a_source_that_has_found_no_topic_looks_again_once_in_a_while(
    redis_path: str,
) -> None:
    options = {"store.path": redis_path, "topicsPattern": "topic://public/default/late.*"}
    reader = PulsarTxnStreamReader({**options, "startingOffsets": "earliest"}, StructType())
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    watcher = reader._idle._watcher
    assert watcher is not None
    watcher._recheck_s = 0.05
    pulsar_txn_spark.Admin({"store.path": redis_path}).create_topic("late-topic")
    with client.connect({"store.path": redis_path}) as service:
        service.producer("late-topic").send(b"row")
    deadline = time.monotonic() + SOON_S
    while reader.latestOffset(start, ReadAllAvailable()) == start:
        assert time.monotonic() < deadline, "it never looked again"
    reader.stop()


def test_the_end_of_an_adoption_is_found_although_there_was_no_segment_before(
    source: Source,
) -> None:
    watch = IdleWatch(source.run)
    for _ in range(2):  # as of a topic whose first segments are not there yet
        watch.before_poll()
        watch.watch([], [TOPIC])
        watch.after_poll(source.start, {}, is_empty=True)
    watcher = watch._watcher
    assert watcher is not None
    watcher._recheck_s = FAR_S
    watch.unchanged_since(source.start)
    watch.after_poll(source.start, {}, is_empty=True)
    assert watch.unchanged_since(source.start)
    source.run.topics.changes.split(TopicName.parse(TOPIC), "0")
    deadline = time.monotonic() + SOON_S
    while watch.unchanged_since(source.start):
        assert time.monotonic() < deadline, "it never looked again"
    watch.close()


def test_a_source_that_spark_stops_gives_its_connection_back(
    source: Source, redis_client: redis.Redis
) -> None:
    pool = redis_client.connection_pool
    before = in_use(pool)
    assert not source.ask()
    source.reader.stop()
    assert len(before - in_use(pool)) == 1
    source.reader.stop()
    assert source.round_trips(1) > 0, "it goes on by polls, where somebody asks all the same"


def test_a_lost_connection_leads_to_a_poll(source: Source) -> None:
    source.run.store.scripts.client.client_kill_filter(_type="normal", skipme=True)
    assert source.round_trips(3) > 0
    source.settle()
    assert source.round_trips(20) == 0


@pytest.mark.parametrize("mixed", [False, True])
def test_with_a_native_topic_every_question_is_a_poll(source: Source, *, mixed: bool) -> None:
    ours = [segment.ref for segment in source.run.topics.require(TopicName.parse(TOPIC)).active]
    name = "persistent://public/default/t"
    theirs = [SegmentRef(name, name, name)]
    watch = IdleWatch(source.run)
    for _ in range(2):
        watch.before_poll()
        watch.watch([*ours, *theirs] if mixed else theirs, [])
        watch.after_poll(source.start, {}, is_empty=True)
        assert not watch.unchanged_since(source.start)
    watch.watch(ours, [TOPIC])
    watch.before_poll()  # which takes what is due at first
    watch.after_poll(source.start, {}, is_empty=True)
    assert watch.unchanged_since(source.start)
    watch.close()
