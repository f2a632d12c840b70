"""A stream over a scalable topic whose brokers split it, and delete what was sealed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from pulsar_txn_spark.backends.pulsar import scalable_topic_log
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import (
    DataLossError,
    SegmentLogUnavailableError,
    TransactionConflictError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.source.batch import PulsarTxnReader
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from tests.support.scalable_world import PATIENCE_S, TOPIC, ScalableTopicWorld, segment
from tests.support.streaming import SCHEMA

LIMIT = {"maxMessagesPerTrigger": "2"}
SKIPS = {"failOnDataLoss": "false"}


class Query:
    """A query with its checkpoint, asked as Spark does."""

    def __init__(self, world: ScalableTopicWorld, path: str) -> None:
        self.world, self.path = world, path
        run = open_components(Options({"store.path": path}, Use.CONNECT))
        run.topics._scalable_topics = world.log
        run.topics._open_scalable = lambda: world.log
        self.ends: list[dict[str, Any]] = []  # Spark's offset log
        self.begin()

    def begin(self, **options: str) -> None:
        """Start a process on the checkpoint."""
        given = {"store.path": self.path, "topic": str(TOPIC), "startingOffsets": "earliest"}
        self.stream = PulsarTxnStreamReader({**given, **options}, SCHEMA)
        self.begun = self.stream.initialOffset()

    def start(self, number: int) -> dict[str, Any]:
        return self.ends[number - 1] if number else self.begun

    def plan(self) -> bool:
        """Plan the next micro-batch; tell whether there is one."""
        start = self.start(len(self.ends))
        limited = bool(self.stream._limits)
        limit = self.stream.getDefaultReadLimit() if limited else ReadAllAvailable()
        end = self.stream.latestOffset(start, limit)
        if end == start:
            return False
        self.ends.append(json.loads(json.dumps(end)))
        return True

    def run(self) -> list[str]:
        """Run the micro-batch that was planned last, also once more."""
        number = len(self.ends) - 1
        return [
            row["value"].decode()
            for planned in self.stream.partitions(self.start(number), self.ends[number])
            if isinstance(planned, SourcePartition)
            for batch in self.stream.read(planned)
            for row in batch.to_pylist()
        ]

    def batch(self) -> list[str]:
        assert self.plan(), "expected a micro-batch"
        return self.run()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScalableTopicWorld]:
    world = ScalableTopicWorld(monkeypatch)
    yield world
    world.close()


@pytest.fixture
def query(
    world: ScalableTopicWorld,
    redis_path: str,
    redis_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Query]:
    monkeypatch.setattr(TaskFacts, "of_task", lambda: TaskFacts("query", 0, "run", 0, 0))
    query = Query(world, redis_path)
    yield query
    topics = open_components(Options({"store.path": redis_path}, Use.CONNECT)).topics
    topics._scalable_topics = topics._open_scalable = None


def test_a_parent_that_brokers_delete_half_read_is_no_gap_in_silence(
    world: ScalableTopicWorld, query: Query
) -> None:
    ref = world.ref()
    world.write(ref, "a", "b", "c")
    world.split()  # before the query begins: its first offset has the children, too
    query.begin(**LIMIT)
    assert query.batch() == ["a", "b"]
    world.prune(0)
    with pytest.raises(DataLossError, match=r"segment 0000-ffff-0@1000 .* was read up to 7:1"):
        query.plan()


def test_only_what_is_gone_is_skipped_and_nothing_is_read_twice(
    world: ScalableTopicWorld, query: Query
) -> None:
    world.become(segment(0, 0, 32_767), segment(3, 32_768, 65_535))
    lower, upper = (each.ref for each in world.log.layout(TOPIC).segments)
    world.write(lower, "a", "b")
    world.write(upper, "x", "y")
    query.begin(**SKIPS)
    assert sorted(query.batch()) == ["a", "b", "x", "y"]
    world.write(lower, "lost")
    world.become(segment(3, 32_768, 65_535), segment(4, 0, 16_383), segment(5, 16_384, 32_767))
    world.write(world.log.layout(TOPIC).segments[1].ref, "c")
    world.write(upper, "z")
    assert sorted(query.batch()) == ["c", "z"]
    assert not query.plan()


def test_a_segment_that_was_read_to_its_end_may_go_before_its_children_have_rows(
    world: ScalableTopicWorld, query: Query
) -> None:
    world.write(world.ref(), "a", "b")
    assert query.batch() == ["a", "b"]
    world.split()
    assert query.batch() == [], "notes that the parent was read to its end"
    assert not query.plan()
    world.prune(0)
    assert not query.plan()
    world.write(world.ref(0), "c")
    query.begin()  # a new process knows it from the checkpoint alone
    assert query.batch() == ["c"]


def test_a_note_stays_while_the_broker_does_not_repeat_that_a_segment_has_ended(
    world: ScalableTopicWorld, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(world.ref(), "a")
    world.split()
    assert query.batch() == ["a"]
    world.log._ends.clear()
    monkeypatch.setattr(type(world.log), "_find_end", lambda *_: None)
    world.write(world.ref(1), "b")
    query.plan()
    world.prune(0)
    world.write(world.ref(0), "c")
    assert query.batch() == ["b", "c"]


def test_a_segment_that_is_deleted_before_its_first_row_was_read_is_no_gap_in_silence(
    world: ScalableTopicWorld, query: Query
) -> None:
    world.write(world.ref(), "a")
    world.split()
    assert query.batch() == ["a"]
    # Between two polls the lower child gets rows, is split and deleted.
    world.become(segment(2, 32_768, 65_535), segment(5, 0, 16_383), segment(6, 16_384, 32_767))
    with pytest.raises(DataLossError, match="segment 0000-7fff-1@1001"):
        query.plan()
    query.begin(**SKIPS)
    world.write(world.ref(1), "b")
    assert query.batch() == ["b"]
    assert not query.plan()


def test_a_segment_that_came_and_went_unseen_is_no_gap_in_silence(
    world: ScalableTopicWorld, query: Query
) -> None:
    world.write(world.ref(), "a")
    world.split()
    query.batch()
    world.become(
        segment(1, 0, 32_767), segment(2, 32_768, 65_535, children=[4]), segment(4, 32_768, 65_535)
    )
    with pytest.raises(DataLossError, match=r"segment 3 of .* was read up to -1:-1"):
        query.plan()


def without_notes(end: dict[str, Any]) -> dict[str, Any]:
    """Return an offset as the first builds wrote it: only what was begun, and no `drained`."""
    segments = end["topics"][str(TOPIC)]["segments"]
    begun = {
        name: {"p": item["p"], "seq": item["seq"]}
        for name, item in segments.items()
        if item["p"] != str(EARLIEST)
    }
    return {**end, "topics": {str(TOPIC): {"inc": "", "segments": begun}}}


@pytest.mark.parametrize("children_read", [False, True])
def test_a_checkpoint_without_notes_goes_on_after_one_start_that_skips(
    world: ScalableTopicWorld, query: Query, children_read: bool
) -> None:
    world.write(world.ref(), "a", "b")
    assert query.batch() == ["a", "b"]
    world.split()
    assert query.batch() == []
    if children_read:
        world.write(world.ref(1), "c")
        assert query.batch() == ["c"]
    query.ends[-1] = without_notes(query.ends[-1])
    world.prune(0)
    query.begin()
    why = "segment 0000-ffff-0@1000" if children_read else "brokers have split and deleted all"
    with pytest.raises(DataLossError, match=why):
        query.plan()
    query.begin(**SKIPS)
    assert query.batch() == [], "notes that the segment was skipped"
    query.begin()
    while query.plan():  # at most once more: where this offset is one to begin with
        assert query.run() == []
        assert len(query.ends) < 6
    world.write(world.ref(1), "d")
    assert query.batch() == ["d"]


def test_a_batch_is_not_repeated_without_the_rows_of_a_deleted_segment(
    world: ScalableTopicWorld, query: Query
) -> None:
    world.write(world.ref(), "a")
    world.split()
    assert query.batch() == ["a"]  # its end says that the parent was read to its end
    world.prune(0)
    query.begin()
    with pytest.raises(DataLossError, match="segment 0000-ffff-0@1000"):
        query.run()
    query.begin(**SKIPS)
    assert query.run() == []


def test_a_topic_that_was_created_again_is_a_new_one(
    world: ScalableTopicWorld, query: Query
) -> None:
    world.write(world.ref(), "a")
    assert query.batch() == ["a"]
    again = segment(0, 0, 65_535)
    again.created_at_ms += 1
    world.become(again)
    with pytest.raises(DataLossError, match="deleted and created again"):
        query.plan()
    query.begin(**SKIPS)
    assert query.batch() == ["a"], "the broker of this test has kept its rows"


# --- a batch read up to a time -------------------------------------------------------------------


def read_up_to(query: Query, time_ms: int) -> list[str]:
    return read_once(query, endingTimestamp=str(time_ms))


def read_once(query: Query, **options: str) -> list[str]:
    reader = PulsarTxnReader({"store.path": query.path, "topic": str(TOPIC), **options}, SCHEMA)
    return [
        row["value"].decode()
        for planned in reader.partitions()
        if isinstance(planned, SourcePartition)
        for batch in reader.read(planned)
        for row in batch.to_pylist()
    ]


def now_ms() -> int:
    """Return a time behind everything so far."""
    begun = now = time.time_ns() // 1_000_000
    while now == begun:
        now = time.time_ns() // 1_000_000
    return now


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.slow
def test_a_batch_up_to_a_time_leaves_no_rows_of_an_open_transaction_out(
    world: ScalableTopicWorld, query: Query, commit: bool
) -> None:
    ref = world.ref()
    world.write(ref, "a")
    txn = world.coordinators.begin("x", 60_000)
    world.write(ref, "b", txn=txn)
    at = now_ms()
    with pytest.raises(TransactionConflictError, match="Transactions are open there"):
        read_up_to(query, at)
    world.coordinators.end(txn, commit=commit)
    assert read_up_to(query, at) == ["a", "b"][: 1 + commit], "what was aborted blocks nobody"


# --- a slow broker, for those who look once ------------------------------------------------------


@pytest.fixture
def slow(world: ScalableTopicWorld, monkeypatch: pytest.MonkeyPatch) -> ScalableTopicWorld:
    """Return a world with two rows, whose broker is slow to show them."""
    monkeypatch.setattr(scalable_topic_log, "_LATE_SECONDS", 60.0)
    world.write(world.ref(), "a", "b")
    world.broker.delivers_after_s = 5 * PATIENCE_S
    return world


@pytest.mark.usefixtures("slow")
def test_a_batch_read_takes_all_that_a_slow_broker_has(query: Query) -> None:
    assert read_once(query) == ["a", "b"]


@pytest.mark.usefixtures("slow")
def test_available_now_takes_all_that_a_slow_broker_has(query: Query) -> None:
    query.stream.prepareForTriggerAvailableNow()
    assert query.batch() == ["a", "b"]


def test_a_query_that_begins_at_the_end_reads_nothing_that_a_slow_broker_had(
    slow: ScalableTopicWorld, query: Query
) -> None:
    query.begin(startingOffsets="latest")
    slow.broker.delivers_after_s = 0.0
    slow.write(slow.ref(), "c")
    assert query.batch() == ["c"]


@pytest.mark.usefixtures("slow")
def test_a_batch_read_is_refused_where_a_broker_shows_nothing_that_it_showed(
    world: ScalableTopicWorld, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_once(query) == ["a", "b"]
    monkeypatch.setattr(scalable_topic_log, "_LATE_SECONDS", 0.2)
    world.write(world.ref(), "c")
    world.broker.delivers_after_s = 1e6
    with pytest.raises(SegmentLogUnavailableError, match=r"up to 7:1 of .* nothing behind 7:0"):
        read_once(query)
