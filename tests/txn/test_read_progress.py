"""Cursors that are moved by what Spark's checkpoint says, not by a sink of ours."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    BatchNotRecordedError,
    CommitStateUnknownError,
    FencedError,
    StoreUnavailableError,
    TransactionAbortedError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.records import AckRequest, Cursor, TxnId
from pulsar_txn_spark.txn.batch import BatchKey
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore, PlannedRange, ReadPlan
from pulsar_txn_spark.txn.read_progress import ReadProgress, claimed_by
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, World

QUERY, SUBSCRIPTION = "query", "sub"
P1, P2, P3 = Position(1, 10), Position(1, 20), Position(1, 30)


def planned(start: Position, source_epoch: int = 1) -> ReadPlan:
    ranges = (PlannedRange(SEGMENT, start, P3),)
    return ReadPlan(f"source-{source_epoch}", source_epoch, SUBSCRIPTION, "run", ranges)


def claim(world: World, source_epoch: int = 1, segment: str = SEGMENT) -> Cursor:
    world.store.subscriptions.claim_cursor(segment, SUBSCRIPTION, QUERY, source_epoch, EARLIEST)
    return cursor(world, segment)


def cursor(world: World, segment: str = SEGMENT) -> Cursor:
    [found] = world.store.subscriptions.read_cursors([segment], SUBSCRIPTION)
    assert found is not None
    return found


def catch_up(world: World, start: Position = P1, batch: int = 1, source_epoch: int = 1) -> None:
    """Do what a task does that has claimed, and finds a cursor before where its batch begins."""
    progress = ReadProgress(world.coordinator, TIMEOUT_MS)
    progress.catch_up_with_plan(planned(start, source_epoch), QUERY, batch, {SEGMENT: start})


def still_open(world: World) -> list[TxnId]:
    return [
        txn
        for tc in range(world.store.identity.coordinators)
        for txn, _ in world.store.transactions.list_open(tc, deadline_ms=None, limit=100)
    ]


def locks(world: World, segment: str = SEGMENT) -> int:
    return int(world.client.hlen(world.key(f"pending-acks:{SUBSCRIPTION}", segment)))


@pytest.mark.parametrize("step", ["acknowledge", "commit"])
@pytest.mark.parametrize("when", ["before", "behind"])
def test_tasks_that_catch_up_at_the_same_moment_do_it_together(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    claim(world)
    other = world.another_process()
    where: Any = MetadataPendingAckStore if step == "acknowledge" else TransactionCoordinator
    call = getattr(where, step)
    beside: list[World] = [other]

    def with_the_other(self: Any, *args: Any, **more: Any) -> Any:
        if when == "before" and beside:
            catch_up(beside.pop())
        done = call(self, *args, **more)
        if beside:
            catch_up(beside.pop())
        return done

    monkeypatch.setattr(where, step, with_the_other)
    monkeypatch.setattr(MetadataPendingAckStore, "_end_earlier", pytest.fail)
    catch_up(world)
    assert cursor(world).position == P1
    assert (still_open(world), locks(world)) == ([], 0)
    catch_up(world)  # a late one finds nothing to do
    assert cursor(world).position == P1


def test_a_task_goes_on_where_another_one_s_failure_has_aborted_both(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(world)
    other, beside = world.another_process(), iter([True])
    commit = TransactionCoordinator.commit

    def fails_beside(self: Any, *args: Any, **more: Any) -> None:
        if self is other.coordinator:
            raise StoreUnavailableError("gone for a moment")
        if next(beside, False):
            with pytest.raises(StoreUnavailableError):
                catch_up(other)
        commit(self, *args, **more)

    monkeypatch.setattr(TransactionCoordinator, "commit", fails_beside)
    catch_up(world)
    assert cursor(world).position == P1


def test_who_is_aborted_again_and_again_gives_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(world)

    def aborted(*_: Any, **__: Any) -> None:
        raise TransactionAbortedError("by somebody")

    monkeypatch.setattr(TransactionCoordinator, "commit", aborted)
    with pytest.raises(TransactionAbortedError, match="more than one driver"):
        catch_up(world)
    assert (still_open(world), locks(world)) == ([], 0)


@pytest.mark.parametrize("newer", ["before it looks", "after it looked"])
def test_a_task_of_a_fenced_start_moves_no_cursor(
    world: World, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    claim(world)
    if newer == "before it looks":
        claim(world, source_epoch=2)
        catch_up(world)  # its sink, or its next claim, tells that it is fenced
    else:
        require = ReadProgress.require_recorded

        def fenced_meanwhile(self: ReadProgress, *args: Any) -> Any:
            claim(world, source_epoch=2)
            return require(self, *args)

        monkeypatch.setattr(ReadProgress, "require_recorded", fenced_meanwhile)
        with pytest.raises(FencedError, match="started later"):
            catch_up(world)
    assert cursor(world).position == EARLIEST
    assert (still_open(world), locks(world)) == ([], 0)


def test_a_task_moves_no_cursor_over_a_batch_that_the_sink_has_not_recorded(world: World) -> None:
    claim(world)
    plan = ReadPlan("source", 1, SUBSCRIPTION, "run", (PlannedRange(SEGMENT, EARLIEST, P1),))
    world.store.queries.register_plan(QUERY, "0", plan.source, plan.serialize())
    for batch in range(2):  # the second one acknowledges nothing
        world.run_batch(BatchKey("sink", QUERY, batch), f"n{batch}", "a")
    with pytest.raises(BatchNotRecordedError, match=r"committed up to batch 1\b"):
        catch_up(world, P3, batch=3)
    assert cursor(world).position == P1
    catch_up(world, P2, batch=2)
    assert (cursor(world).position, cursor(world).sink, cursor(world).batch) == (P2, "sink", "1")


def test_a_task_moves_no_cursor_that_its_query_has_just_come_by(world: World) -> None:
    claim(world)
    world.store.subscriptions.reset_cursor(SEGMENT, SUBSCRIPTION, None, cursor(world), 1)
    world.store.subscriptions.claim_cursor(SEGMENT, SUBSCRIPTION, QUERY, 2, P1)
    catch_up(world, P1, batch=1, source_epoch=2)
    assert cursor(world).position == EARLIEST, "its rows may be somebody else's"
    catch_up(world, P2, batch=2, source_epoch=2)
    assert cursor(world).position == P2


def test_a_claim_is_of_one_start_of_one_query(world: World) -> None:
    assert claimed_by(claim(world), 1)
    assert not claimed_by(cursor(world), 2)
    world.store.subscriptions.reset_cursor(SEGMENT, SUBSCRIPTION, None, cursor(world), 7)
    assert not claimed_by(cursor(world), 7), "nobody's"


def test_what_fails_to_catch_up_leaves_nothing_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = {SEGMENT: (claim(world), P1), OTHER_SEGMENT: (claim(world, segment=OTHER_SEGMENT), P1)}
    other = world.coordinator.new_txn("other", query=QUERY, sink="sink")
    request = AckRequest(OTHER_SEGMENT, SUBSCRIPTION, QUERY, 1, EARLIEST, P1, "sink", "0")
    MetadataPendingAckStore(world.coordinator).acknowledge(other, "other", 60_000, [request])
    progress = ReadProgress(world.coordinator, TIMEOUT_MS)
    with pytest.raises(AcknowledgementConflictError, match="is open and acknowledges there"):
        progress.catch_up(SUBSCRIPTION, 1, behind)
    assert (still_open(world), locks(world)) == ([other], 0)
    del behind[OTHER_SEGMENT]
    error = StoreUnavailableError("gone for a moment")

    def fails(*_: Any, **__: Any) -> None:
        raise error

    def fails_too(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("still gone")

    with monkeypatch.context() as broken:
        broken.setattr(TransactionCoordinator, "commit", fails)
        with pytest.raises(StoreUnavailableError) as raised:
            progress.catch_up(SUBSCRIPTION, 1, behind)
        assert raised.value is error
        assert (still_open(world), locks(world)) == ([other], 0)
        broken.setattr(TransactionCoordinator, "abort", fails_too)
        with pytest.raises(StoreUnavailableError) as raised:
            progress.catch_up(SUBSCRIPTION, 1, behind)
        assert raised.value is error
    progress.catch_up(SUBSCRIPTION, 1, behind)
    assert cursor(world).position == P1


def test_who_does_not_hear_that_it_has_caught_up_finds_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(world)
    commit = TransactionCoordinator.commit

    def unknown(self: Any, *args: Any, **more: Any) -> None:
        commit(self, *args, **more)
        raise CommitStateUnknownError("no reply")

    monkeypatch.setattr(TransactionCoordinator, "commit", unknown)
    catch_up(world)
    assert cursor(world).position == P1
