"""From its query's start on, a subscription is known in every segment, and nothing passes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import Admin
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import AcknowledgementConflictError, DataLossError, OptionError
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.retention import Retention, RetentionSweep
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite
from pulsar_txn_spark.store.records import Code, CursorStart
from pulsar_txn_spark.store.redis.segments import RedisSegmentStore
from pulsar_txn_spark.store.redis.subscriptions import RedisSubscriptionStore
from pulsar_txn_spark.txn.batch import BatchKey, SinkRules, new_nonce
from pulsar_txn_spark.txn.sweeper import SweepReport
from tests.models.segment_histories import Task, record_batch
from tests.support.streaming import Killed, Row, StreamingQuery

A, B, LATER = (TopicName.parse(name) for name in ("first", "second", "later"))
NOTHING = Retention(size_bytes=0).serialize()


@pytest.fixture
def query(run: Components, redis_path: str) -> Callable[..., StreamingQuery]:
    def make(name: str, /, **options: str) -> StreamingQuery:
        return StreamingQuery(run, redis_path, name, **options)

    return make


Make = Callable[..., StreamingQuery]


def create(run: Components, topic: TopicName, segments: int = 1) -> None:
    run.topics.create(topic, segments)
    run.store.topics.change_property(str(topic), "__retention", NOTHING)


def batch(values: Sequence[int]) -> pa.RecordBatch:
    return record_batch([(f"key-{value % 7}", value) for value in values])


def write(run: Components, topic: TopicName, *values: int) -> None:
    task = Task(run, f"write-{topic}-{values[0]}")
    task.writers.append(topic, batch(values))
    task.commit(task.writers.finish())


def sweep(run: Components) -> list[str]:
    sweeper, report = run.sweeper(0), SweepReport()
    done = run.retention().sweep(lambda segment: sweeper.settle(segment, report))
    assert done.failed == {}
    return done.deleted


# -- before the first row is read ----------------------------------------------------------------


def test_rows_stay_in_a_topic_that_the_query_reads_and_of_which_no_task_has_read_yet(
    run: Components, query: Make
) -> None:
    """Finding 7: rows only in the first topic so far, then in the second while it is away."""
    create(run, A)
    create(run, B)
    reader = query("q", topics=f"{A},{B}", subscription="s", startingOffsets="earliest")
    write(run, A, 1, 2)
    assert reader.trigger()
    write(run, B, 3, 4)
    for _ in range(3):
        sweep(run)
    reader.restart()
    reader.run_all()
    assert sorted(reader.values) == [1, 2, 3, 4]


def test_rows_stay_from_the_query_s_start_on_although_it_has_read_nothing(
    run: Components, query: Make
) -> None:
    """Finding 7, in one topic: the first batch is empty."""
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    assert reader.trigger(), "an empty batch, without a task"
    write(run, A, 1, 2)
    for _ in range(3):
        sweep(run)
    reader.restart()
    reader.run_all()
    assert sorted(reader.values) == [1, 2]


@pytest.mark.parametrize("start", ["latest", None])
def test_a_reset_to_here_stays_where_the_query_began_although_it_has_read_nothing(
    run: Components, query: Make, redis_path: str, start: str | None
) -> None:
    """Finding 8: the successor of a query that began at the end read all old rows."""
    create(run, A)
    write(run, A, 1, 2)
    options = {"topic": str(A), "subscription": "s"}
    first = query("q1", **options, **({"startingOffsets": start} if start else {}))
    first.trigger()
    assert first.values == []
    Admin({"store.path": redis_path}).reset_subscription(str(A), "s", to="here")
    write(run, A, 3)
    successor = query("q2", **options)
    successor.run_all()
    assert successor.values == [3]


def test_of_several_segments_those_that_were_never_read_are_reset_where_the_query_began(
    run: Components, query: Make, redis_path: str
) -> None:
    """Finding 8: only one of the two topics has been read."""
    for topic, value in ((A, 1), (B, 2)):
        create(run, topic)
        write(run, topic, value)
    options = {"topics": f"{A},{B}", "subscription": "s"}
    first = query("q1", **options, startingOffsets="latest")
    first.trigger()
    write(run, A, 3)
    first.run_all()
    assert first.values == [3]
    for topic in (A, B):
        Admin({"store.path": redis_path}).reset_subscription(str(topic), "s", to="here")
    write(run, B, 4)
    successor = query("q2", **options)
    successor.run_all()
    assert successor.values == [4]


def test_a_child_is_not_handed_over_at_its_beginning_to_a_query_that_stands_further_on(
    run: Components, query: Make
) -> None:
    """Finding 10: every batch then failed with "leaves a gap". A task now moves such a cursor."""
    create(run, A)
    open_one = Task(run, "open")  # blocks readers in the parent
    open_one.writers.append(A, batch([1]))
    written = open_one.writers.finish()
    [parent] = run.topics.require(A).segments
    run.topics.changes.seal(A, parent.descriptor)
    write(run, A, 2, 3)
    [child] = run.topics.require(A).active
    further_on = run.log.last_confirmed(child.ref)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="latest")
    reader.trigger()
    open_one.commit(written)
    reader.run_all()
    assert reader.values == [1], "the child's rows were there before the query started"
    write(run, A, 4)
    # Spark has noted the batch as done when it asks for the next one, which dies before its tasks.
    with pytest.raises(Killed):
        reader.trigger("planned")
    assert sweep(run), "the parent is deleted before the query has read a row of the child"
    [cursor] = run.store.subscriptions.read_cursors([child.ref.id], "s")
    assert cursor is not None
    assert cursor.position == further_on
    reader.run_all()
    assert reader.values == [1, 4]


# -- positions that were recorded before a split -------------------------------------------------


def split(run: Components, topic: TopicName, number: int) -> list[str]:
    """Split an active segment, and return the descriptors of its children."""
    parent = run.topics.require(topic).active[number]
    run.topics.changes.split(topic, parent.descriptor)
    segments = run.topics.require(topic).segments
    return [segment.descriptor for segment in segments if parent.ref.id in segment.parents]


@pytest.mark.parametrize("subscription", [{}, {"subscription": "s"}], ids=["none", "subscription"])
@pytest.mark.parametrize("by", ["position", "time"])
def test_behind_a_position_in_a_parent_every_row_of_its_descendants_is_read(
    run: Components, query: Make, subscription: dict[str, str], by: str
) -> None:
    create(run, A)
    write(run, A, 1)
    [parent] = run.topics.require(A).segments
    recorded = run.log.last_confirmed(parent.ref)
    write(run, A, 2)
    split(run, A, 0)
    write(run, A, *range(10, 30))
    split(run, A, 1)  # the second generation
    write(run, A, *range(30, 50))
    place = {parent.descriptor: str(recorded) if by == "position" else 0}
    option = "startingOffsets" if by == "position" else "startingOffsetsByTimestamp"
    start = {option: json.dumps({str(A): place}), **subscription}
    reader = query("q", topic=str(A), **start)
    reader.run_all()
    first = [2] if by == "position" else [1, 2]
    assert sorted(reader.values) == [*first, *range(10, 50)]


def test_only_what_descends_from_a_named_segment_is_read_from_its_beginning(
    run: Components, query: Make
) -> None:
    create(run, A, segments=2)
    create(run, B)
    write(run, B, 1)
    low, high = run.topics.require(A).segments
    written = range(10, 30)
    write(run, A, *written)
    recorded = run.log.last_confirmed(low.ref)
    left, right = split(run, A, 0)
    write(run, A, *range(30, 60))
    [named] = [s for s in run.topics.require(A).segments if s.descriptor == left]
    place = {low.descriptor: str(recorded), left: str(run.log.last_confirmed(named.ref))}
    reader = query("q", topics=f"{A},{B}", startingOffsets=json.dumps({str(A): place}))
    started = reader.reader.initialOffset()["topics"]
    positions = {d: item["p"] for d, item in started[str(A)]["segments"].items()}
    assert positions == {
        low.descriptor: str(recorded),
        high.descriptor: str(run.log.last_confirmed(high.ref)),
        left: place[left],
        right: str(EARLIEST),
    }
    [other] = started[str(B)]["segments"].values()
    assert other["p"] == str(run.log.last_confirmed(run.topics.require(B).segments[0].ref))


def test_positions_by_the_id_of_an_earlier_life_of_a_topic_are_refused(
    run: Components, query: Make
) -> None:
    create(run, A)
    earlier = run.topics.require(A).segments[0].ref.id
    run.topics.delete(A)
    create(run, A)
    write(run, A, 1)
    [now] = run.topics.require(A).segments
    refused = query("q", topics=str(A), startingOffsets=json.dumps({str(A): {earlier: "1:0"}}))
    with pytest.raises(OptionError, match="which is not read here"):
        refused.reader.initialOffset()
    place = json.dumps({str(A): {now.ref.id: "earliest"}})
    accepted = query("q2", topics=str(A), startingOffsets=place)
    [item] = accepted.reader.initialOffset()["topics"][str(A)]["segments"].values()
    assert item["p"] == str(EARLIEST)


def test_rows_of_a_descendant_that_retention_has_deleted_are_not_skipped_in_silence(
    run: Components, query: Make
) -> None:
    create(run, A)
    write(run, A, 1)
    [parent] = run.topics.require(A).segments
    place = json.dumps({str(A): {parent.descriptor: "earliest"}})
    run.topics.changes.seal(A, parent.descriptor)
    write(run, A, 2)
    [child] = run.topics.require(A).active
    end = run.log.last_confirmed(child.ref)
    run.store.segments.mark_trimmed(child.ref.id, end)
    run.log.trim(child.ref, end)
    for name, options in (("q1", {}), ("q2", {"subscription": "s"})):
        reader = query(name, topic=str(A), startingOffsets=place, **options)
        with pytest.raises(DataLossError, match="has been deleted"):
            reader.run_all()


# -- crashes and races while it starts -----------------------------------------------------------


class Crash(Exception):  # noqa: N818 — not an error of anybody's
    pass


def start_and_die(reader: StreamingQuery, created: slice) -> None:
    """Let a query's start die when it has created only these of its cursors, and restart it."""
    create_cursors = RedisSubscriptionStore.create_cursors

    def dying(
        store: RedisSubscriptionStore,
        subscription: str,
        starts: dict[str, CursorStart],
        mark: str = "",
    ) -> list[object]:
        create_cursors(store, subscription, dict(list(starts.items())[created]), mark)
        raise Crash

    dies = mock.patch.object(RedisSubscriptionStore, "create_cursors", dying)
    with dies, pytest.raises(Crash):
        reader.trigger()
    reader.restart()


@pytest.mark.parametrize("start", ["earliest", "latest", "subscription", None])
@pytest.mark.parametrize(
    "created", [slice(0), slice(1), slice(2), slice(1, None)], ids=["none", "1", "2", "children"]
)
def test_a_start_that_dies_half_way_is_done_again_and_skips_nothing(
    run: Components, query: Make, created: slice, start: str | None
) -> None:
    create(run, A)
    write(run, A, 1)
    [parent] = run.topics.require(A).segments
    run.topics.changes.split(A, parent.descriptor)
    write(run, A, 2, 3)
    options = {"topic": str(A), "subscription": "s"}
    if start:
        options["startingOffsets"] = start
    reader = query("q", **options)
    start_and_die(reader, created)
    reader.trigger()
    write(run, A, 4)
    for _ in range(4):
        sweep(run)
    reader.run_all()
    expected = [1, 2, 3, 4] if start in ("earliest", "subscription") else [4]
    assert sorted(reader.values) == expected


def test_a_segment_that_came_between_two_starts_that_died_is_read_from_its_first_row(
    run: Components, query: Make
) -> None:
    """Each start notes which segments came later than itself: what the first one says counts."""
    create(run, A)
    write(run, A, 1)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="latest")
    start_and_die(reader, slice(1))
    write(run, A, 2)
    split(run, A, 0)
    start_and_die(reader, slice(2))  # one child has a cursor now, the other one has none
    write(run, A, *range(10, 40))
    reader.run_all()
    assert sorted(reader.values) == [2, *range(10, 40)]


@pytest.mark.parametrize("start", ["latest", "time", "position", None])
@pytest.mark.parametrize("dies", ["between two topics", "behind its cursors"])
def test_a_topic_that_came_between_two_starts_that_died_is_read_from_its_first_row(
    run: Components, query: Make, dies: str, start: str | None
) -> None:
    for topic, value in ((A, 1), (B, 2)):
        create(run, topic)
        write(run, topic, value)
    [segment] = run.topics.require(A).segments
    place = {str(A): {segment.descriptor: str(run.log.last_confirmed(segment.ref))}}
    options = {
        "latest": {"startingOffsets": "latest"},
        "time": {
            "startingTimestamp": "4000000000000",
            "startingOffsetsByTimestampStrategy": "latest",
        },
        "position": {"startingOffsets": json.dumps(place)},
        None: {},
    }[start]
    reader = query("q", topicsPattern=".*", subscription="s", **options)
    if dies == "between two topics":
        start_and_die(reader, slice(None))  # the second topic has no cursor, and is no later one
    else:
        reader.reader.initialOffset()  # and Spark does not come to write the first offsets
        reader.restart()
    run.topics.delete(B)
    create(run, B)  # another topic of this name
    create(run, LATER)
    write(run, LATER, *range(10, 13))
    write(run, B, *range(13, 16))
    for _ in range(2):
        reader.reader.initialOffset()  # what the next start creates says nothing else
        reader.restart()
    reader.trigger()
    write(run, A, 20)
    reader.run_all()
    assert sorted(reader.values) == [*range(10, 16), 20]


def test_a_topic_that_a_start_has_died_before_is_no_later_one(run: Components, query: Make) -> None:
    for topic, value in ((A, 1), (B, 2)):
        create(run, topic)
        write(run, topic, value)
    reader = query("q", topicsPattern=".*", subscription="s", startingOffsets="latest")
    start_and_die(reader, slice(None))
    reader.trigger()
    write(run, B, 3)
    reader.run_all()
    assert reader.values == [3]


def test_of_several_starts_that_died_the_first_one_says_which_topics_came_later(
    run: Components, query: Make
) -> None:
    create(run, A)
    reader = query("q", topicsPattern=".*", subscription="s", startingOffsets="latest")
    start_and_die(reader, slice(None))
    for topic, value in ((B, 1), (LATER, 2)):
        create(run, topic)
        write(run, topic, value)
    create_cursors = RedisSubscriptionStore.create_cursors
    calls: list[str] = []

    def dying(
        store: RedisSubscriptionStore,
        subscription: str,
        starts: dict[str, CursorStart],
        mark: str = "",
    ) -> object:
        calls.append(mark)
        if len(calls) == 3:
            raise Crash
        return create_cursors(store, subscription, starts, mark)

    dies = mock.patch.object(RedisSubscriptionStore, "create_cursors", dying)
    with dies, pytest.raises(Crash):
        reader.trigger()
    reader.restart()
    reader.run_all()
    assert sorted(reader.values) == [1, 2]


def test_a_start_of_an_earlier_version_does_not_say_which_topics_came_later(
    run: Components, query: Make
) -> None:
    """Its query begins there as it did, and every mark that it made is read."""
    create(run, A)
    create(run, B)
    write(run, B, 1)
    [segment] = run.topics.require(A).segments
    starts = {segment.ref.id: CursorStart(EARLIEST, may_skip=True)}
    run.store.subscriptions.create_cursors("s", starts, "latest|1")
    write(run, A, 2)
    reader = query("q", topicsPattern=".*", subscription="s")
    reader.run_all()
    assert reader.values == [2]


def test_what_retention_has_deleted_of_a_later_topic_is_not_skipped_in_silence(
    run: Components, query: Make
) -> None:
    create(run, A)
    reader = query("q", topicsPattern=".*", subscription="s")
    reader.reader.initialOffset()
    reader.restart()
    create(run, B)
    write(run, B, 1)
    sweep(run)
    with pytest.raises(DataLossError, match="has been deleted"):
        reader.run_all()


def split_once(run: Components) -> None:
    split(run, A, 0)
    write(run, A, *range(10, 30))


def split_twice(run: Components) -> None:
    split_once(run)
    split(run, A, 0)
    write(run, A, *range(30, 50))


def merge(run: Components) -> None:
    split_once(run)
    run.topics.changes.merge(A, [segment.descriptor for segment in run.topics.require(A).active])
    write(run, A, *range(30, 50))


def keep_all_but_the_first_segment(run: Components) -> None:
    size = 0
    for segment in run.topics.require(A).segments[1:]:
        end = run.log.last_confirmed(segment.ref)
        size += run.log.measure(segment.ref, EARLIEST, end).bytes
    kept = Retention(size_bytes=size).serialize()
    run.store.topics.change_property(str(A), "__retention", kept)


@pytest.mark.parametrize("when", ["before the verdict", "behind the verdict"])
@pytest.mark.parametrize(
    "change, created",
    [(split_once, 1), (split_once, 2), (split_twice, 2), (split_twice, 3), (merge, 2), (merge, 3)],
)
def test_retention_begins_no_segment_for_a_start_that_has_died_before_it(
    run: Components,
    query: Make,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Components], None],
    created: int,
    when: str,
) -> None:
    """Its next start would take the child's first row for the place where it began."""
    create(run, A)
    write(run, A, 1)
    change(run)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="latest")
    if when == "before the verdict":
        start_and_die(reader, slice(created))
    else:
        hand_over = RetentionSweep._hand_over

        def late(*args: Any) -> Any:
            start_and_die(reader, slice(created))
            return hand_over(*args)

        keep_all_but_the_first_segment(run)
        with monkeypatch.context() as slow:
            slow.setattr(RetentionSweep, "_hand_over", late)
            sweep(run)
        run.store.topics.change_property(str(A), "__retention", NOTHING)
    for _ in range(3):
        sweep(run)
    reader.trigger()
    write(run, A, 50)
    reader.run_all()
    assert reader.values == [50]
    for _ in range(3):
        sweep(run)
    states = {segment.state for segment in run.topics.require(A).segments}
    assert states == {SegmentState.ACTIVE, SegmentState.DELETED}, "it keeps nothing any more"


@pytest.mark.parametrize("end", ["deleted", "reset"])
def test_a_start_that_nobody_finishes_keeps_a_segment_until_its_subscription_is_deleted_or_reset(
    run: Components, query: Make, redis_path: str, end: str
) -> None:
    create(run, A)
    write(run, A, 1)
    split_once(run)
    [parent, *_] = run.topics.require(A).segments
    reader = query("q", topic=str(A), subscription="s", startingOffsets="latest")
    start_and_die(reader, slice(1))
    assert sweep(run) == []
    verdict = run.retention().judge(run.topics.require(A), Retention(size_bytes=0))[0]
    assert (verdict.delete, verdict.retained_by) == (False, ("subscription s",))
    assert verdict.gone == parent.sealed_at, "its rows are gone nevertheless"
    admin = Admin({"store.path": redis_path})
    if end == "deleted":
        admin.delete_subscription(str(A), "s")
    else:
        admin.reset_subscription(str(A), "s", to="here")
    assert sweep(run) == [parent.ref.id]


@pytest.mark.parametrize("start", ["earliest", "latest", None])
@pytest.mark.parametrize("dies", ["planned", "read", "decided"])
def test_a_first_batch_that_is_repeated_reads_the_same_once_more(
    run: Components, query: Make, start: str | None, dies: str
) -> None:
    """Spark asks anew where the query starts when it repeats the first batch."""
    create(run, A, segments=2)
    write(run, A, 1, 2)
    options = {"topic": str(A), "subscription": "s"}
    if start:
        options["startingOffsets"] = start
    reader = query("q", **options)
    with pytest.raises(Killed):
        reader.trigger(dies)
    write(run, A, 3, 4)
    [one, _] = run.topics.require(A).active
    run.topics.changes.split(A, one.descriptor)
    write(run, A, 5, 6)
    sweep(run)
    reader.run_all()
    expected = [1, 2, 3, 4, 5, 6] if start == "earliest" else [3, 4, 5, 6]
    assert sorted(reader.values) == expected


def test_a_query_starts_at_the_end_that_it_has_seen_first(run: Components, query: Make) -> None:
    """Spark asks twice where the first batch starts: it must not run backwards."""
    create(run, A)
    reader = query("q", topic=str(A), startingOffsets="latest")
    before = reader.reader.initialOffset()
    write(run, A, 1)
    assert reader.reader.initialOffset() == before
    reader.run_all()
    assert reader.values == [1]


@pytest.mark.parametrize("dies", ["planned", "read", "decided"])
def test_a_first_batch_without_a_subscription_is_repeated_from_where_it_began(
    run: Components, query: Make, dies: str
) -> None:
    create(run, A)
    write(run, A, 1)
    reader = query("q", topic=str(A), startingOffsets="latest")
    with pytest.raises(Killed):
        reader.trigger(dies)
    write(run, A, 2)
    reader.run_all()
    assert reader.values == [2]


@pytest.mark.parametrize("seen_first", ["retention", "query"])
def test_of_a_trim_and_a_query_s_start_one_sees_the_other(
    run: Components, query: Make, monkeypatch: pytest.MonkeyPatch, seen_first: str
) -> None:
    create(run, A)
    write(run, A, 1, 2)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    trim, mark = EmbeddedSegmentLog.trim, RedisSegmentStore.mark_trimmed

    def slow_trim(log: EmbeddedSegmentLog, *args: object) -> object:
        reader.reader.initialOffset()
        return trim(log, *args)  # type: ignore[arg-type]

    def slow_mark(store: RedisSegmentStore, *args: object) -> object:
        reader.reader.initialOffset()
        return mark(store, *args)  # type: ignore[arg-type]

    if seen_first == "retention":
        monkeypatch.setattr(EmbeddedSegmentLog, "trim", slow_trim)
    else:
        monkeypatch.setattr(RedisSegmentStore, "mark_trimmed", slow_mark)
    sweep(run)
    monkeypatch.undo()
    write(run, A, 3)
    reader.run_all()
    assert reader.values == ([3] if seen_first == "retention" else [1, 2, 3])


def test_a_child_that_comes_while_the_query_starts_is_retained_too(
    run: Components, query: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(run, A)
    write(run, A, 1)
    create_cursors = RedisSubscriptionStore.create_cursors
    changed: list[int] = []

    def late(
        store: RedisSubscriptionStore,
        subscription: str,
        starts: dict[str, CursorStart],
        mark: str = "",
    ) -> object:
        if not changed:
            changed.append(1)
            [parent] = run.topics.require(A).segments
            run.topics.changes.split(A, parent.descriptor)
            write(run, A, 2, 3)
        return create_cursors(store, subscription, starts, mark)

    monkeypatch.setattr(RedisSubscriptionStore, "create_cursors", late)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    reader.reader.initialOffset()
    for segment in run.topics.require(A).segments:
        assert run.store.subscriptions.read_cursors([segment.ref.id], "s")[0] is not None
    reader.run_all()
    assert sorted(reader.values) == [1, 2, 3]


def test_a_query_that_starts_where_a_segment_is_being_deleted_begins_behind_it(
    run: Components, query: Make
) -> None:
    create(run, A)
    write(run, A, 1)
    [parent] = run.topics.require(A).segments
    run.topics.changes.seal(A, parent.descriptor)
    sealed_at = run.topics.require(A).segments[0].sealed_at
    assert sealed_at is not None
    run.store.segments.retire(parent.ref.id, sealed_at, [])  # the sweep dies behind this step
    write(run, A, 2)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    reader.run_all()
    assert reader.values == [2]


# -- whose it is ---------------------------------------------------------------------------------


def test_a_subscription_that_another_start_has_made_is_not_taken_over_in_silence(
    run: Components, query: Make
) -> None:
    create(run, A)
    write(run, A, 1)
    options = {"topic": str(A), "subscription": "s"}
    query("q1", **options, startingOffsets="latest").trigger()
    with pytest.raises(OptionError, match=r"was begun by a query with another start \(latest\)"):
        query("q2", **options, startingOffsets="earliest").trigger()


def test_a_query_that_claims_while_it_is_reset_keeps_nothing_from_its_successor(
    run: Components, query: Make, redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(run, A)
    write(run, A, 1)
    reader = query("q", topics=str(A), subscription="s", startingOffsets="earliest")
    assert reader.trigger()
    [parent] = run.topics.require(A).active
    run.topics.changes.seal(A, parent.descriptor)
    write(run, A, 2)
    claim = RedisSubscriptionStore.claim_cursors
    resets: list[object] = []

    def beside(store: RedisSubscriptionStore, *args: Any, asks_only: bool = False) -> Any:
        if not asks_only and not resets:
            options = {"store.path": redis_path}
            resets.extend(Admin(options).reset_subscription(str(A), "s", to="earliest"))
        return claim(store, *args, asks_only=asks_only)

    monkeypatch.setattr(RedisSubscriptionStore, "claim_cursors", beside)
    with pytest.raises(AcknowledgementConflictError, match="was reset"):
        reader.trigger()
    assert len(resets) == 2
    successor = query("r", topics=str(A), subscription="s", startingOffsets="subscription")
    successor.run_all()
    assert successor.values == [1, 2]


def test_a_query_that_was_reset_does_not_go_on_where_its_segment_was_deleted(
    run: Components, query: Make, redis_path: str
) -> None:
    create(run, A)
    write(run, A, 1)
    reader = query("q", topics=str(A), subscription="s", startingOffsets="earliest")
    assert reader.trigger()
    [parent] = run.topics.require(A).active
    run.topics.changes.seal(A, parent.descriptor)
    write(run, A, 2)
    with pytest.raises(Killed):
        reader.trigger("planned")
    reader.reader.initialOffset()  # its source has started again
    Admin({"store.path": redis_path}).reset_subscription(str(A), "s", to="here")
    assert sweep(run) == [parent.ref.id]
    with pytest.raises(AcknowledgementConflictError, match="was reset"):
        reader.trigger()
    successor = query("r", topics=str(A), subscription="s", startingOffsets="subscription")
    successor.run_all()
    assert successor.values == [2]


@pytest.mark.parametrize("to, left", [("earliest", [1, 2]), ("here", [2])])
def test_a_query_that_was_reset_keeps_nothing_from_its_successor(
    run: Components, query: Make, redis_path: str, to: str, left: list[int]
) -> None:
    """Also not the child, which it is the first one to claim."""
    create(run, A)
    write(run, A, 1)
    reader = query("q", topics=str(A), subscription="s", startingOffsets="earliest")
    assert reader.trigger()
    [parent] = run.topics.require(A).active
    run.topics.changes.seal(A, parent.descriptor)
    write(run, A, 2)
    Admin({"store.path": redis_path}).reset_subscription(str(A), "s", to=to)
    with pytest.raises(AcknowledgementConflictError, match="was reset"):
        reader.trigger()
    successor = query("r", topics=str(A), subscription="s", startingOffsets="subscription")
    successor.run_all()
    assert successor.values == left


def test_the_first_task_takes_the_subscription_in_every_segment(
    run: Components, query: Make
) -> None:
    create(run, A)
    create(run, B)
    reader = query("q", topics=f"{A},{B}", subscription="s", startingOffsets="earliest")
    write(run, A, 1)
    reader.run_all()
    for topic in (A, B):
        [segment] = run.topics.require(topic).segments
        answer = run.store.subscriptions.claim_cursor(segment.ref.id, "s", "another", 99, EARLIEST)
        assert (answer.code, answer.owner) == (Code.OWNED, "q")


def test_a_query_whose_first_rows_nobody_needed_says_how_its_successor_gets_them(
    run: Components, query: Make, redis_path: str
) -> None:
    create(run, A)
    write(run, A, 1)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    assert reader.trigger(needs_rows=False)
    write(run, A, 2)
    for _ in range(2):
        with pytest.raises(AcknowledgementConflictError, match=r"gap.*no row.*reset.*to 'here'"):
            reader.trigger()
        reader.restart()
    Admin({"store.path": redis_path}).reset_subscription(str(A), "s", to="here")
    successor = query("r", topic=str(A), subscription="s", startingOffsets="subscription")
    successor.run_all()
    assert successor.values == [1, 2]


def test_later_micro_batches_that_need_no_row_stop_no_query(run: Components, query: Make) -> None:
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    for value in range(1, 5):
        write(run, A, value)
        assert reader.trigger(needs_rows=value in (1, 4))
    assert reader.values == [1, 4]


def test_a_query_reads_nothing_of_a_subscription_that_is_anothers(
    run: Components, query: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(run, A)
    write(run, A, 1)
    reader = query("q", topics=str(A), subscription="s", startingOffsets="earliest")
    [segment] = run.topics.require(A).segments
    run.store.subscriptions.delete_cursor(segment.ref.id, "s")
    run.store.subscriptions.claim_cursor(segment.ref.id, "s", "another", 99, EARLIEST)
    read = mock.Mock(side_effect=AssertionError("a segment was read"))
    monkeypatch.setattr(EmbeddedSegmentLog, "read_each", read)
    with pytest.raises(AcknowledgementConflictError, match="belongs to query another"):
        reader.trigger()
    assert reader.values == []


def test_a_task_claims_each_segment_that_it_reads(run: Components, query: Make) -> None:
    create(run, A)
    reader = query(
        "q", topics=str(A), subscription="s", startingOffsets="earliest", maxPartitions="1"
    )
    write(run, A, 1)
    reader.run_all()
    [parent] = run.topics.require(A).active
    run.topics.changes.split(A, parent.descriptor)
    write(run, A, *range(2, 9))
    children = run.topics.require(A).active
    assert len(children) == 2
    with pytest.raises(Killed):
        reader.trigger(dies="read")  # the transaction that would make cursors is not begun
    for child in children:
        answer = run.store.subscriptions.claim_cursor(child.ref.id, "s", "another", 99, EARLIEST)
        assert (answer.code, answer.owner) == (Code.OWNED, "q")


def test_a_query_of_an_earlier_release_gets_its_missing_cursors_with_its_first_task(
    run: Components, query: Make, redis_client: redis.Redis
) -> None:
    create(run, A)
    create(run, B)
    write(run, B, 1)
    reader = query("q", topics=f"{A},{B}", subscription="s", startingOffsets="latest")
    reader.trigger()
    for topic in (A, B):
        [segment] = run.topics.require(topic).segments
        run.store.subscriptions.delete_cursor(segment.ref.id, "s")
    reader.restart()
    write(run, A, 2)
    reader.run_all()
    [segment] = run.topics.require(B).segments
    [cursor] = run.store.subscriptions.read_cursors([segment.ref.id], "s")
    assert cursor is not None
    assert (cursor.query, cursor.position) == ("q", run.log.last_confirmed(segment.ref))


# -- replays of what retention has deleted -------------------------------------------------------


@pytest.fixture
def reader(run: Components, query: Make) -> StreamingQuery:
    """A query over two segments."""
    create(run, A, segments=2)
    return query("q", topic=str(A), startingOffsets="earliest")


def replay_over_a_deleted_segment(
    run: Components, reader: StreamingQuery, dies: str, *, first: bool = False
) -> None:
    """Let a batch over two segments be repeated after one of them was deleted."""
    if not first:
        assert reader.trigger()
    write(run, A, 1, 2, 3, 4)
    [parent, _] = run.topics.require(A).segments
    with pytest.raises(Killed):
        reader.trigger(dies)
    run.topics.changes.seal(A, parent.descriptor)
    assert sweep(run) == [parent.ref.id], "nobody holds it"
    write(run, A, 5)


@pytest.mark.parametrize("first", [True, False])
def test_a_committed_batch_is_replayed_although_its_segment_was_deleted(
    run: Components, reader: StreamingQuery, *, first: bool
) -> None:
    """Finding 11: nothing was lost, and yet the query could not go on."""
    replay_over_a_deleted_segment(run, reader, "decided", first=first)
    reader.run_all()
    assert sorted(reader.values) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("first", [True, False])
def test_the_advice_of_the_data_loss_error_leads_on(
    run: Components, reader: StreamingQuery, *, first: bool
) -> None:
    """Finding 11: failOnDataLoss=false ended in a conflict for ever."""
    replay_over_a_deleted_segment(run, reader, "decided", first=first)
    reader.options["failOnDataLoss"] = "false"
    reader.restart()
    reader.run_all()
    assert sorted(reader.values) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("first", [True, False])
def test_a_committed_batch_is_replayed_although_its_rows_were_trimmed(
    run: Components, reader: StreamingQuery, *, first: bool
) -> None:
    """Finding 11, in segments that take rows."""
    if not first:
        assert reader.trigger()
    write(run, A, 1, 2, 3, 4)
    with pytest.raises(Killed):
        reader.trigger("decided")
    sweep(run)
    write(run, A, 5)
    reader.run_all()
    assert sorted(reader.values) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("dies", ["planned", "read"])
def test_a_batch_that_was_not_committed_and_has_lost_its_rows_is_an_error(
    run: Components, reader: StreamingQuery, dies: str
) -> None:
    replay_over_a_deleted_segment(run, reader, dies)
    with pytest.raises(DataLossError, match="deleted"):
        reader.run_all()
    assert reader.values == []
    reader.options["failOnDataLoss"] = "false"
    reader.restart()
    reader.run_all()
    assert reader.values == [5]


def test_a_sink_that_writes_sometimes_does_not_commit_what_is_left_of_a_batch(
    run: Components, reader: StreamingQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not begun the batch, and no sink says that it would."""
    replay_over_a_deleted_segment(run, reader, "decided")
    sink, written = reader._sink, list[int]()

    def both(batch: int, found: list[Row], execution_id: str) -> None:
        sink(batch, found, execution_id)
        key, rules = BatchKey("occasional", "q", batch), SinkRules(every_batch=False)
        attempt = reader.batches.begin(key, new_nonce(), rules=rules)
        task = TaskWrite(partition=0, txn_id=attempt.txn.key)
        reader.batches.commit(attempt, [[task]], execution_id, acknowledge=True)
        written.append(batch)

    monkeypatch.setattr(reader, "_sink", both)
    with pytest.raises(DataLossError, match="sink 'occasional' has not written it yet"):
        reader.trigger()
    assert written == []
    reader.options["failOnDataLoss"] = "false"
    reader.restart()
    reader.run_all()
    assert written == [1, 2]
    assert sorted(reader.values) == [1, 2, 3, 4, 5]


def test_a_batch_that_one_of_two_sinks_has_not_committed_is_an_error(
    run: Components, reader: StreamingQuery
) -> None:
    # A second sink of the query has written the batch before, and would write this one.
    run.store.queries.register_sink("q", "another", 0, "attempt")
    replay_over_a_deleted_segment(run, reader, "decided")
    with pytest.raises(DataLossError, match="deleted"):
        reader.run_all()
