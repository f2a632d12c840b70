"""A task's plan and its claim of the subscription, where one of them fails."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from pulsar_txn_spark import Admin
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import AcknowledgementConflictError, FencedError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.source.task import _Claimed
from pulsar_txn_spark.store.records import Cursor
from pulsar_txn_spark.store.redis.subscriptions import RedisSubscriptionStore
from pulsar_txn_spark.txn.batch import SinkRules
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from pulsar_txn_spark.txn.read_progress import ReadProgress
from tests.spark.source.test_starting_offsets import A, B, Make, create, query, sweep, write
from tests.support.streaming import Killed

__all__ = ["query"]  # a fixture


@pytest.mark.parametrize("dies", ["the task", "the driver"])
def test_a_task_that_dies_before_its_claim_leaves_no_plan(
    run: Components, query: Make, dies: str
) -> None:
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    write(run, A, 1)
    claim_cursors = RedisSubscriptionStore.claim_cursors

    def killed(store: RedisSubscriptionStore, *args: Any, asks_only: bool = False) -> Any:
        if asks_only:
            return claim_cursors(store, *args, asks_only=True)
        raise Killed

    with (
        mock.patch.object(RedisSubscriptionStore, "claim_cursors", killed),
        pytest.raises(Killed),
    ):
        reader.trigger()
    if dies == "the driver":
        reader.restart()
    assert run.store.queries.read_plans("q", "0") == {}
    # The other side of a join turns out to be empty: now Spark needs no row.
    assert reader.trigger(needs_rows=False)
    assert reader.values == []


def test_a_query_that_reads_in_threads_of_the_user_alone_warns_that_nothing_is_acknowledged(
    run: Components, query: Make, caplog: pytest.LogCaptureFixture
) -> None:
    create(run, A)
    # Such threads lack Spark's ids of the query.
    nameless = query("", topic=str(A), subscription="s", startingOffsets="earliest")
    named = query("q", topic=str(A), subscription="other", startingOffsets="earliest")
    for number in range(5):
        write(run, A, number)
        for reader in (nameless, named):
            reader.trigger(writes=False)
            if number == 1:
                reader.restart()
    found = [r.getMessage() for r in caplog.records if "has claimed" in r.getMessage()]
    assert ["subscription s since it started" in warning for warning in found] == [True] * 2, (
        "once after each start"
    )
    [segment] = run.topics.require(A).active
    [cursor] = run.store.subscriptions.read_cursors([segment.ref.id], "s")
    assert cursor is not None
    assert cursor.position == EARLIEST


def test_a_task_that_is_fenced_does_not_stop_the_batch_of_the_driver_that_counts(
    run: Components, query: Make
) -> None:
    create(run, A)
    options = {"topic": str(A), "subscription": "s", "startingOffsets": "earliest"}
    first = query("q", **options)
    write(run, A, 1)
    first.trigger()
    second = query("q", **options)  # on a copy of the checkpoint
    assert second.reader._planner.subscription == "s"  # now it has its number
    first.restart()
    write(run, A, 2)
    first.trigger()
    second.offsets, second.committed = list(first.offsets), first.committed
    write(run, A, 3)
    with pytest.raises(FencedError):
        second.trigger()
    first.restart()
    assert first.trigger(needs_rows=False)
    assert first.committed == 3


def test_a_task_that_is_refused_leaves_nothing_for_the_subscription_that_it_was_refused(
    run: Components, query: Make
) -> None:
    create(run, A)
    owner = query("owner", topic=str(A), subscription="s", startingOffsets="earliest")
    write(run, A, 1)
    owner.run_all()
    write(run, A, 2)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    with pytest.raises(AcknowledgementConflictError, match="Use another subscription"):
        reader.trigger()
    reader.options["subscription"] = "mine"
    reader.restart()
    assert reader.trigger(needs_rows=False)


def test_a_worker_remembers_the_claims_of_some_sources() -> None:
    claimed = _Claimed()
    for number in range(64):
        claimed.note(("store", "s", "q", number), ["a"])
    first, second = ("store", "s", "q", 0), ("store", "s", "q", 1)
    claimed.note(first, ["b"])
    assert claimed.has(first, ["a", "b"])
    assert not claimed.has(first, ["a", "c"])
    claimed.note(("store", "s", "q", 64), ["a"])
    assert claimed.has(first, ["a"])
    assert not claimed.has(second, ["a"])
    assert not claimed.has(("another store", "s", "q", 0), ["a"])


def test_a_claim_in_one_process_is_no_claim_after_a_reset(run: Components, query: Make) -> None:
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    write(run, A, 1)
    reader.trigger()
    [segment] = run.topics.require(A).segments
    [cursor] = run.store.subscriptions.read_cursors([segment.ref.id], "s")
    run.store.subscriptions.reset_cursor(segment.ref.id, "s", None, cursor, source_epoch=99)
    write(run, A, 2)
    with pytest.raises(AcknowledgementConflictError, match="was reset"):
        reader.trigger()


# -- cursors that an earlier start, or another query, has left behind ------------------------------


def cursors(run: Components, *topics: TopicName) -> list[Cursor]:
    ids = [s.ref.id for topic in topics for s in run.topics.require(topic).segments]
    found = run.store.subscriptions.read_cursors(ids, "s")
    return [cursor for cursor in found if cursor is not None]


def ends(run: Components, *topics: TopicName) -> list[Position]:
    segments = [s.ref for topic in topics for s in run.topics.require(topic).segments]
    return [run.log.last_confirmed(segment) for segment in segments]


@pytest.mark.parametrize("stands", ["at its start", "behind a batch", "at a sealed end"])
def test_a_commit_moves_and_releases_no_cursor_of_another_query(
    run: Components, query: Make, redis_path: str, stands: str
) -> None:
    create(run, A)
    options = {"topic": str(A), "subscription": "s", "startingOffsets": "earliest"}
    first = query("q1", **options)
    for value in (1, 2):
        write(run, A, value)
        first.trigger()
    Admin({"store.path": redis_path}).reset_subscription(str(A), "s", to="earliest")
    if stands == "at a sealed end":
        [segment] = run.topics.require(A).segments
        run.topics.changes.seal(A, segment.descriptor)
    options["startingOffsets"] = "subscription"
    second = query("q2", **options, maxMessagesPerTrigger="1")
    if stands == "at its start":
        with pytest.raises(Killed):
            second.trigger("read")
    else:
        second.trigger()
    if stands == "at a sealed end":
        second.trigger()
    before = cursors(run, A)
    assert before[0].query == "q2"
    assert before[0].released < ends(run, A)[0], "there is something to release"
    write(run, A, 3)
    first.restart()
    with pytest.raises(AcknowledgementConflictError, match="belongs to query q2"):
        first.trigger()
    assert cursors(run, A) == before


@pytest.mark.parametrize("silent", ["no row needed", "nothing written", "nothing written yet"])
def test_a_restart_goes_on_behind_a_batch_that_acknowledged_nothing(
    run: Components, query: Make, silent: str
) -> None:
    needs_rows = silent != "no row needed"
    acknowledged = 0 if silent == "nothing written yet" else 1
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    reader.rules = SinkRules(every_batch=not needs_rows)
    for value in range(acknowledged):
        write(run, A, value)
        reader.trigger()
    write(run, A, 10)
    reader.trigger(needs_rows=needs_rows, writes=not needs_rows)
    write(run, A, 20)
    with pytest.raises(Killed):
        reader.trigger("logged")
    reader.trigger()
    assert reader.values == [*range(acknowledged), 20]
    assert [cursor.position for cursor in cursors(run, A)] == ends(run, A)
    write(run, A, 30)
    reader.trigger()
    assert reader.values[-1] == 30


def test_a_restart_catches_up_also_where_no_task_reads(run: Components, query: Make) -> None:
    """The batch acknowledges what its plan has, whichever of its tasks Spark has run."""
    for topic in (A, B):
        create(run, topic)
    reader = query("q", topics=f"{A},{B}", subscription="s", startingOffsets="earliest")
    for value in (1, 3, 5):
        write(run, A, value)
        write(run, B, value + 1)
        if value == 5:
            with pytest.raises(Killed):
                reader.trigger("logged")
        reader.trigger(needs_rows=value != 3, tasks=1 if value == 5 else None)
    assert [cursor.position for cursor in cursors(run, A, B)] == ends(run, A, B)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", ["acknowledge", "commit"])
def test_what_a_start_left_open_as_it_caught_up_is_in_nobody_s_way(
    run: Components, query: Make, step: str, times: int
) -> None:
    """First it is the driver that dies as it catches up, then a task of the next start."""
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    for value in (1, 2):
        write(run, A, value)
        reader.trigger(needs_rows=value == 1)
    write(run, A, 3)
    where = MetadataPendingAckStore if step == "acknowledge" else TransactionCoordinator
    for _ in range(times):
        with mock.patch.object(where, step, side_effect=Killed), pytest.raises(Killed):
            reader.trigger()
        reader.restart()
    assert run.store.queries.read_plans("q", "2") == {}
    reader.trigger()
    assert reader.values == [1, 3]


def test_a_query_that_came_by_a_cursor_elsewhere_goes_on_once_spark_has_noted_a_batch(
    run: Components, query: Make
) -> None:
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    reader.rules = SinkRules(every_batch=False)
    write(run, A, 1)
    reader.trigger(needs_rows=False, writes=False)
    write(run, A, 2)
    reader.trigger(writes=False)  # its task takes over a cursor that stands before its start
    write(run, A, 3)
    with pytest.raises(Killed):
        reader.trigger("logged")
    reader.trigger()
    assert reader.values == [3]
    assert [cursor.position for cursor in cursors(run, A)] == ends(run, A)


def test_a_claim_that_finds_every_cursor_in_place_reads_none(run: Components, query: Make) -> None:
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    for value in (1, 2):
        write(run, A, value)
        reader.restart()
        with mock.patch.object(ReadProgress, "catch_up_with_plan", side_effect=AssertionError):
            assert reader.trigger()
    assert reader.values == [1, 2]


def test_a_start_of_a_single_batch_keeps_no_sealed_segment_that_its_query_has_read(
    run: Components, query: Make
) -> None:
    """So runs Trigger.AvailableNow: Spark never tells such a start that its own batch is done."""
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    write(run, A, 1)
    reader.trigger()
    [parent] = run.topics.require(A).segments
    run.topics.changes.seal(A, parent.descriptor)
    assert sweep(run) == [], "Spark may repeat the batch that has read it"
    reader.restart()
    write(run, A, 2)
    reader.trigger()
    assert sweep(run) == [parent.ref.id]


def test_a_claim_releases_nothing_that_its_cursor_has_not_passed(
    run: Components, query: Make
) -> None:
    create(run, A)
    reader = query("q", topic=str(A), subscription="s", startingOffsets="earliest")
    for value in (1, 2):
        write(run, A, value)
        reader.trigger(needs_rows=value == 1)
    write(run, A, 3)
    with pytest.raises(Killed):
        reader.trigger("logged")
    with (
        mock.patch.object(ReadProgress, "catch_up_with_plan", side_effect=Killed),
        pytest.raises(Killed),
    ):
        reader.trigger()
    [cursor] = cursors(run, A)
    assert cursor.released <= cursor.position
