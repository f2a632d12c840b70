"""A task's plan and its claim of the subscription, where one of them fails."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import AcknowledgementConflictError, FencedError
from pulsar_txn_spark.spark.source.task import _Claimed
from pulsar_txn_spark.store.redis.subscriptions import RedisSubscriptionStore
from tests.spark.source.test_starting_offsets import A, Make, create, query, write
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
