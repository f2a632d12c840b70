"""Plans: what a micro-batch reads, registered by its tasks, acknowledged by its transaction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.errors import AcknowledgementConflictError, FencedError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.records import Code
from pulsar_txn_spark.store.redis import sinks
from pulsar_txn_spark.txn.batch import BatchKey
from pulsar_txn_spark.txn.pending_ack import (
    PlannedRange,
    ReadPlan,
    acknowledgements,
    digest_of,
    plans_of_attempt,
)
from tests.support.scenario import SEGMENT, World, load_scripts

P1, P2 = Position(1, 10), Position(1, 20)


def plan(
    source: str = "source-1",
    source_epoch: int = 1,
    subscription: str = "sub",
    run: str = "run",
    segment: str = "s",
    end: Position = P1,
) -> ReadPlan:
    ranges = (PlannedRange(segment, EARLIEST, end),)
    return ReadPlan(source, source_epoch, subscription, run, ranges)


positions = st.builds(Position, st.integers(-1, 2**62), st.integers(-1, 2**62))
ranges = st.builds(PlannedRange, st.text(), positions, positions)
plans = st.builds(
    ReadPlan, st.text(), st.integers(0, 2**62), st.text(), st.text(), st.tuples(ranges, ranges)
)


@given(plans)
def test_a_plan_survives_its_record(found: ReadPlan) -> None:
    assert ReadPlan.parse(found.serialize()) == found


# --- the register -----------------------------------------------------------------------------


def test_a_plan_is_registered_once_however_many_tasks_read_by_it(world: World) -> None:
    for _ in range(4):
        world.store.queries.register_plan("q", "0", "source-1", plan().serialize())
    world.another_process().store.queries.register_plan("q", "0", "source-1", plan().serialize())
    assert world.store.queries.read_plans("q", "0") == {"source-1": plan().serialize()}


def test_plans_are_kept_apart_by_source_batch_and_query(world: World) -> None:
    world.store.queries.register_plan("q", "0", "one", b"1")
    world.store.queries.register_plan("q", "0", "two", b"2")
    world.store.queries.register_plan("q", "1", "one", b"3")
    world.store.queries.register_plan("other", "0", "one", b"4")
    assert world.store.queries.read_plans("q", "0") == {"one": b"1", "two": b"2"}
    assert world.store.queries.read_plans("q", "1") == {"one": b"3"}
    assert world.store.queries.read_plans("other", "0") == {"one": b"4"}
    assert world.store.queries.read_plans("q", "2") == {}


def test_a_batch_that_is_run_again_long_after_has_its_plan(world: World) -> None:
    for batch in range(20):
        world.store.queries.register_plan("q", str(batch), "source", b"plan")
    for batch in (3, 4):
        world.store.queries.register_plan("q", str(batch), "source", b"again")
        assert world.store.queries.read_plans("q", str(batch)) == {"source": b"again"}
    assert len(world.client.keys("{query:q}:plans:*")) == sinks._PLANS_KEPT + 1


def test_only_the_plans_of_the_last_batches_are_kept(world: World) -> None:
    kept = sinks._PLANS_KEPT
    for batch in range(20):
        world.store.queries.register_plan("q", str(batch), "source", f"{batch}".encode())
    found = {batch for batch in range(20) if world.store.queries.read_plans("q", str(batch))}
    assert found == set(range(20 - kept, 20))
    assert len(world.client.keys("{query:q}:plans:*")) == kept


def test_a_task_asks_for_its_segments_and_registers_its_plan_in_one_round_trip(
    world: World,
) -> None:
    other = "another segment"
    world.store.subscriptions.claim_cursor(other, "sub", "q", 1, P1)
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 1, P1)
    world.store.queries.register_plan("q", "9", "source-0", b"plan")  # its tag is not new
    load_scripts(world.client)
    registered = plan(segment=SEGMENT).serialize()
    before = world.store.round_trips
    answers = world.store.subscriptions.ask_and_register(
        "sub", "q", 1, {SEGMENT: P1, other: P1}, batch="0", source="source-1", plan=registered
    )
    assert world.store.round_trips - before == 1
    assert [(answer.code, answer.claims) for answer in answers] == [(Code.OK, False)] * 2
    assert world.store.queries.read_plans("q", "0") == {"source-1": registered}


def test_a_plan_of_a_task_that_was_refused_acknowledges_nothing(world: World) -> None:
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "owner", 1, EARLIEST)
    key = BatchKey("sink", "q", 0)
    [answer] = world.store.subscriptions.ask_and_register(
        "sub",
        "q",
        2,
        {SEGMENT: EARLIEST},
        batch="0",
        source="source-1",
        plan=plan(segment=SEGMENT).serialize(),
    )
    assert answer.code is Code.OWNED
    attempt = world.batches.begin(key, "n1")
    task = world.write_batch(attempt, "row")
    with pytest.raises(AcknowledgementConflictError, match="belongs to query owner"):
        world.batches.commit(attempt, [[task]], "run", acknowledge=True)
    [cursor] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert cursor is not None
    assert (cursor.query, cursor.position) == ("owner", EARLIEST)
    assert world.visible() == []


# --- which of them count --------------------------------------------------------------------------


def test_plans_of_other_runs_do_not_count() -> None:
    dead = plan("dead", 1, run="first", end=P2)
    own = plan("own", 2, run="second")
    assert plans_of_attempt([dead, own], "second") == [own]
    assert plans_of_attempt([own, dead], "second") == [own]


def test_where_the_run_cannot_be_told_equal_ranges_of_all_runs_count_once() -> None:
    # A user's setJobGroup has replaced the run id in the tasks.
    one, two = plan("one", 1, run="mine"), plan("two", 2, run="mine too")
    found = plans_of_attempt([one, two], "run")
    [request] = acknowledgements(found, query="q", sink="s", batch="0")
    assert (request.source_epoch, request.end) == (2, P1)
    assert digest_of(found) == digest_of([two])


def test_where_the_run_cannot_be_told_different_ranges_stop_the_batch() -> None:
    with pytest.raises(FencedError, match="read twice in one micro-batch"):
        plans_of_attempt([plan("one", 1, run="a"), plan("two", 2, run="b", end=P2)], "run")


def test_a_subscription_that_two_sources_of_one_run_read_is_refused() -> None:
    for end in (P1, P2):  # also where both have read the same
        with pytest.raises(FencedError, match="self-join or a union"):
            plans_of_attempt([plan("left"), plan("right", 2, end=end)], "run")


def test_sources_with_subscriptions_or_segments_of_their_own_all_count() -> None:
    found = [
        plan("left", 1, "sub-left"),
        plan("right", 2, "sub-right"),
        plan("other", 3, "sub-left", segment="t"),
        plan("free", 4, "", end=P2),
        plan("free too", 5, ""),
    ]
    assert plans_of_attempt(found, "run") == found
    requests = acknowledgements(found, query="q", sink="s", batch="7")
    assert {(r.subscription, r.segment, r.start, r.end) for r in requests} == {
        ("sub-left", "s", EARLIEST, P1),
        ("sub-right", "s", EARLIEST, P1),
        ("sub-left", "t", EARLIEST, P1),
    }
    assert {(r.query, r.sink, r.batch) for r in requests} == {("q", "s", "7")}


def test_no_plan_is_no_acknowledgement() -> None:
    assert plans_of_attempt([], "run") == []
    assert acknowledgements([], query="q", sink="s", batch="0") == []


# --- the digest ---------------------------------------------------------------------------------


def test_a_replay_has_the_digest_of_the_original_whoever_reads() -> None:
    original = [plan("one", 1, run="first"), plan("two", 2, "other", run="first", end=P2)]
    replay = [plan("four", 9, "other", run="second", end=P2), plan("three", 8, run="second")]
    assert digest_of(original) == digest_of(replay)


@pytest.mark.parametrize(
    "other",
    [
        [],
        [plan(end=P2)],
        [plan(segment="t")],
        [plan(subscription="other")],
        [plan(), plan("two", 2, "other")],
    ],
)
def test_other_input_has_another_digest(other: list[ReadPlan]) -> None:
    assert digest_of(other) != digest_of([plan()])


def test_the_order_of_ranges_is_not_part_of_the_input() -> None:
    one, two = PlannedRange("s", EARLIEST, P1), PlannedRange("t", P1, P2)
    assert digest_of([ReadPlan("a", 1, "sub", "r", (one, two))]) == digest_of(
        [ReadPlan("b", 2, "sub", "r", (two, one))]
    )


def test_without_a_source_of_ours_there_is_no_digest() -> None:
    assert digest_of([]) == b""
