"""Topics that are deleted amid a micro-batch: before it is committed, or before it is repeated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pulsar_txn_spark.admin import Admin
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import AcknowledgementConflictError, DataLossError, OptionError
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import segment_of_instance
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.store.records import Cursor
from tests.spark.source.test_topics_pattern import write
from tests.support.streaming import Killed, StreamingQuery

A, B = (TopicName.parse(name) for name in ("flights-a", "flights-b"))
SUB = "s"
Make = Callable[..., StreamingQuery]


@pytest.fixture
def query(run: Components, redis_path: str) -> Make:
    """Return a function that starts a query over two topics, which have no row yet."""

    def make(
        *, fails: bool = False, subscribed: bool = True, start: str = "earliest"
    ) -> StreamingQuery:
        for topic in (A, B):
            run.topics.create(topic, 1)
        options = {
            "topicsPattern": "public/default/flights-.*",
            "startingOffsets": start,
            "failOnDataLoss": str(fails).lower(),
        }
        if subscribed:
            options["subscription"] = SUB
        return StreamingQuery(run, redis_path, "q", **options)

    return make


def delete(run: Components, *, again: bool) -> None:
    """Delete a topic, and perhaps create another one of its name."""
    run.topics.delete(A)
    if again:
        run.topics.create(A, 1)


def segment(run: Components, topic: TopicName) -> SegmentRef:
    return run.topics.require(topic).segments[0].ref


def cursor(run: Components, topic: TopicName) -> Cursor | None:
    return run.store.subscriptions.read_cursors([segment(run, topic).id], SUB)[0]


# -- before the first micro-batch is planned -----------------------------------------------------


@pytest.mark.parametrize("rows", [1, 8], ids=["fewer", "more"])
@pytest.mark.parametrize(
    "subscribed, dies",
    [(False, ""), (False, "logged"), (False, "read"), (True, ""), (True, "read")],
)
def test_a_topic_that_is_created_again_before_the_first_batch_is_read_from_its_first_message(
    run: Components, query: Make, *, subscribed: bool, rows: int, dies: str
) -> None:
    reader = query(subscribed=subscribed, start="latest")
    write(run, A, *range(5))
    reader.reader.initialOffset()  # Spark asks for it before it asks how far the batch reads
    delete(run, again=True)
    write(run, A, *range(10, 10 + rows))
    if dies:
        with pytest.raises(Killed):
            reader.trigger(dies)
    reader.run_all()
    assert sorted(reader.values) == list(range(10, 10 + rows))


# -- between the read and the commit -------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_a_batch_commits_although_a_topic_that_it_has_read_is_deleted(
    run: Components,
    query: Make,
    monkeypatch: pytest.MonkeyPatch,
    *,
    again: bool,
    fails: bool,
    both: bool,
) -> None:
    reader = query(fails=fails)
    reader.trigger()
    write(run, A, 1)
    if both:
        write(run, B, 2)
    sink = reader._sink

    def late(*args: Any) -> None:
        delete(run, again=again)
        sink(*args)

    with monkeypatch.context() as patched:
        patched.setattr(reader, "_sink", late)
        assert reader.trigger()
    before = [1, 2] if both else [1]
    assert sorted(reader.values) == before
    write(run, B, 3)
    if fails:
        with pytest.raises(DataLossError, match="deleted"):
            reader.run_all()
        return
    if again:
        write(run, A, 4)
    reader.run_all()
    assert sorted(reader.values) == [*before, 3, *([4] if again else [])]
    assert run.sweeper(0).sweep().stuck == ()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_a_batch_that_was_not_committed_goes_on_without_a_topic_that_was_deleted(
    run: Components, query: Make, *, again: bool, both: bool
) -> None:
    reader = query()
    reader.trigger()
    write(run, A, 1)
    if both:
        write(run, B, 2)
    with pytest.raises(Killed):
        reader.trigger("read")
    delete(run, again=again)
    write(run, B, 3)
    reader.run_all()
    assert reader.values == ([2, 3] if both else [3])


# -- before a repetition -------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("subscribed", [False, True])
def test_a_committed_batch_is_repeated_although_a_topic_of_it_was_deleted(
    run: Components, query: Make, *, again: bool, first: bool, subscribed: bool
) -> None:
    reader = query(fails=True, subscribed=subscribed)
    if not first:
        reader.trigger()
    write(run, A, 1)
    write(run, B, 2)
    with pytest.raises(Killed):
        reader.trigger("decided")
    delete(run, again=again)
    write(run, B, 3)
    with pytest.raises(DataLossError, match="set failOnDataLoss=false to go on"):
        reader.trigger()
    reader.options["failOnDataLoss"] = "false"
    reader.restart()
    if again:
        write(run, A, 4)
    reader.run_all()
    assert sorted(reader.values) == [1, 2, 3, *([4] if again else [])]
    assert len(reader.output) == reader.committed


@pytest.mark.parametrize("had_another", [False, True])
def test_a_topic_that_came_with_a_committed_batch_may_be_deleted_before_it_is_repeated(
    run: Components, query: Make, *, had_another: bool
) -> None:
    reader = query()
    if had_another:
        write(run, A, 0)
    else:
        run.topics.delete(A)
    reader.trigger()
    if had_another:
        run.topics.delete(A)
    run.topics.create(A, 1)
    write(run, A, 1)
    write(run, B, 2)
    with pytest.raises(Killed):
        reader.trigger("decided")
    delete(run, again=True)
    with pytest.raises(Killed):
        reader.trigger("decided")
    write(run, A, 3)
    reader.run_all()
    assert reader.values == [*([0] if had_another else []), 1, 2, 3]


def test_of_a_topic_that_is_only_not_named_any_more_nothing_is_acknowledged(
    run: Components, query: Make
) -> None:
    reader = query()
    reader.trigger()
    write(run, A, 1)
    write(run, B, 2)
    with pytest.raises(Killed):
        reader.trigger("planned")
    reader.options["topicsPattern"] = ".*flights-b"
    reader.restart()
    reader.run_all()
    assert reader.values == [2]
    left = cursor(run, A)
    assert left is not None
    assert left.position == EARLIEST


@pytest.mark.parametrize("fails", [False, True])
def test_a_topic_of_the_other_backend_is_not_taken_for_deleted(
    run: Components, query: Make, *, fails: bool
) -> None:
    reader = query(fails=fails)
    reader.trigger()
    write(run, A, 1)
    write(run, B, 2)
    with pytest.raises(Killed):
        reader.trigger("planned")
    of_a, moved = segment(run, A), replace(run.topics.require(A), backend="pulsar")
    version = run.store.topics.version(str(A))
    run.store.topics.swap(str(A), version, moved.serialize(), None, instance_id=moved.instance_id)
    reader.restart()
    with pytest.raises(OptionError, match="lives on the backend 'pulsar'"):
        reader.run_all()
    [left] = run.store.subscriptions.read_cursors([of_a.id], SUB)
    assert left is not None
    assert left.position == EARLIEST


def test_a_task_with_nothing_left_to_read_registers_no_plan_of_a_subscription_of_others(
    run: Components, query: Make, redis_path: str
) -> None:
    reader = query()
    reader.trigger()
    write(run, A, 1)
    write(run, B, 2)
    with pytest.raises(Killed):
        reader.trigger("planned")
    delete(run, again=False)
    Admin({"store.path": redis_path}).reset_subscription(str(B), SUB, to="here")
    run.store.subscriptions.claim_cursor(segment(run, B).id, SUB, "another", 99, EARLIEST)
    parts = reader.reader.partitions(reader.offsets[0], reader.offsets[1])
    partitions = [part for part in parts if isinstance(part, SourcePartition)]
    [of_deleted] = [part for part in partitions if all(r.deleted for r in part.ranges)]
    with pytest.raises(AcknowledgementConflictError, match="belongs to query another"):
        reader._task(of_deleted, "attempt", 0)
    assert run.store.queries.read_plans("q", "1") == {}


@pytest.mark.parametrize(
    "topic, descriptor, wanted",
    [
        ("persistent://t/n/x", "x-partition-1", "persistent://t/n/x-partition-1"),
        ("scalable://t/n/x", "0000-ffff-0@9", "segment://t/n/x/0000-ffff-0@9"),
        ("topic://t/n/x", "0000-ffff-0", "t/n/x/life/0000-ffff-0"),
    ],
)
def test_an_offset_says_which_segment_it_is_of(topic: str, descriptor: str, wanted: str) -> None:
    name = TopicName.of_any_domain(topic)
    assert segment_of_instance(name, "life", descriptor).id == wanted
