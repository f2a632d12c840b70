"""Acknowledgements: a cursor moves by a commit, from where it stands, or not at all (INV-9)."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    FencedError,
    StoreCorruptError,
    StoreRolledBackError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.store.ack_ranges import ACK_TRANSITIONS, AckEvent, AckResult, AckState
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import AckRequest, Code, Cursor, CursorAnswer, EndedBy, TxnState
from pulsar_txn_spark.txn.participants import ack_intent
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, Txn, World, ack, put_cursor

P0, P1, P2, P3 = EARLIEST, Position(1, 10), Position(1, 20), Position(1, 30)


def claim(world: World, query: str = "q", source_epoch: int = 1, start: Position = P0) -> None:
    answer = world.store.subscriptions.claim_cursor(SEGMENT, "sub", query, source_epoch, start)
    assert answer.code is Code.OK


def cursor(world: World, segment: str = SEGMENT) -> Cursor:
    [found] = world.store.subscriptions.read_cursors([segment], "sub")
    assert found is not None
    return found


def place(world: World, txn: Txn, *acks: AckRequest) -> list[AckRequest]:
    return world.acks.acknowledge(txn.id, txn.nonce, TIMEOUT_MS, acks)


def pending(world: World, segment: str = SEGMENT) -> set[str]:
    return {key.decode() for key in world.client.hkeys(world.key("pending-acks:sub", segment))}


# --- a cursor moves by a commit, and only by it (INV-9) ---------------------------------------


def test_a_cursor_moves_when_its_transaction_commits_and_not_before(world: World) -> None:
    claim(world)
    txn = world.open()
    assert place(world, txn, ack(P0, P1)) == [ack(P0, P1)]
    assert world.header(txn).intents == {ack_intent(SEGMENT, "sub")}
    assert cursor(world).position == P0
    world.commit(txn)
    assert cursor(world) == Cursor(P1, "q", 1, txn.id.key, "s", "0")
    assert pending(world) == set()


def test_an_abort_leaves_the_cursor_where_it_was_and_lets_go_of_it(world: World) -> None:
    claim(world)
    txn = world.open()
    place(world, txn, ack(P0, P1))
    world.abort(txn)
    assert cursor(world).position == P0
    assert pending(world) == set()
    again = world.open()
    place(world, again, ack(P0, P1))
    world.commit(again)
    assert cursor(world).position == P1


def test_rows_and_acknowledgements_are_decided_together(world: World) -> None:
    claim(world)
    txn = world.open()
    winner = world.write(txn, "a")
    place(world, txn, ack(P0, P1))
    world.abort(txn)
    assert (world.visible(), cursor(world).position) == ([], P0)
    txn = world.open()
    winner = world.write(txn, "a")
    place(world, txn, ack(P0, P1))
    world.commit(txn, winner)
    assert (world.visible(), cursor(world).position) == (["a"], P1)


def test_a_commit_is_materialized_twice_and_moves_the_cursor_once(world: World) -> None:
    claim(world)
    txn = world.open()
    place(world, txn, ack(P0, P1))
    world.commit(txn)
    stale = world.header(txn)
    later = world.open()
    place(world, later, ack(P1, P2))
    world.commit(later)
    world.coordinator.materialize(stale, repeat=True)
    assert cursor(world).position == P2, "a late helper moved the cursor back"


def test_several_segments_move_together(world: World) -> None:
    claim(world)
    world.store.subscriptions.claim_cursor(OTHER_SEGMENT, "sub", "q", 1, P0)
    txn = world.open()
    place(world, txn, ack(P0, P1), ack(P0, P2, segment=OTHER_SEGMENT))
    world.commit(txn)
    assert (cursor(world).position, cursor(world, OTHER_SEGMENT).position) == (P1, P2)


def test_a_decided_transaction_places_nothing(world: World) -> None:
    claim(world)
    txn = world.open()
    world.store.transactions.end(txn.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    with pytest.raises(TransactionAbortedError):
        place(world, txn, ack(P0, P1))
    assert pending(world) == set()


def test_an_acknowledgement_that_arrives_after_the_materialization_is_refused(
    world: World,
) -> None:
    claim(world)
    txn = world.open()
    world.coordinator.intend(txn.id, txn.nonce, TIMEOUT_MS, [ack_intent(SEGMENT, "sub")])
    world.abort(txn)
    [answer] = world.store.subscriptions.place_acks(txn.id, [ack(P0, P1)])
    assert (answer.code, answer.decision) == (Code.RESOLVED, "ABORTED")
    assert pending(world) == set()


def test_a_closed_segment_takes_no_acknowledgement_of_an_older_transaction(world: World) -> None:
    claim(world)
    txn = world.open()
    world.client.hset(world.key("closed"), str(txn.id.tc), str(txn.id.counter + 1))
    with pytest.raises(TransactionConflictError, match="closed"):
        place(world, txn, ack(P0, P1))
    assert pending(world) == set()


@pytest.mark.parametrize("single", [False, True])
def test_rows_of_a_deleted_segment_need_no_acknowledgement(world: World, *, single: bool) -> None:
    world.store.scripts._single_steps = single
    claim(world)
    world.store.subscriptions.claim_cursor(OTHER_SEGMENT, "sub", "q", 1, P0)
    txn = world.open()
    world.store.segments.fence([SEGMENT])
    other = ack(P0, P2, segment=OTHER_SEGMENT)
    assert place(world, txn, ack(P0, P1), other) == [other]
    world.commit(txn)
    assert cursor(world, OTHER_SEGMENT).position == P2
    assert pending(world) == set()


def test_a_segment_that_is_deleted_before_it_is_claimed_needs_no_acknowledgement(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_cursor = world.store.subscriptions.claim_cursor

    def late(*args: Any) -> CursorAnswer:
        world.store.segments.fence([SEGMENT])
        return claim_cursor(*args)

    monkeypatch.setattr(world.store.subscriptions, "claim_cursor", late)
    txn = world.open()
    assert place(world, txn, ack(P0, P1)) == []
    world.commit(txn)


@pytest.mark.parametrize("single", [False, True])
def test_who_was_aborted_is_refused_in_a_deleted_segment_too(world: World, *, single: bool) -> None:
    world.store.scripts._single_steps = single
    claim(world)
    txn = world.open()
    world.abort(txn)
    world.store.segments.fence([SEGMENT])
    with pytest.raises(TransactionAbortedError):
        place(world, txn, ack(P0, P1))


def test_placing_the_same_acknowledgement_again_is_no_harm(world: World) -> None:
    claim(world)
    txn = world.open()
    for _ in range(3):
        assert place(world, txn, ack(P0, P1)) == [ack(P0, P1)]
    with pytest.raises(AcknowledgementConflictError):
        place(world, txn, ack(P0, P2))
    world.commit(txn)
    assert cursor(world).position == P1


def test_nothing_to_acknowledge_costs_nothing(world: World) -> None:
    txn = world.open()
    before = world.store.round_trips
    assert place(world, txn) == []
    assert world.store.round_trips == before


# --- every transition of the table, for the range of a source ----------------------------------

SOURCE_EVENTS = (AckEvent.ACK_IN_THIS, AckEvent.ACK_IN_OTHER, AckEvent.COMMIT, AckEvent.ABORT)
"""A source knows neither acknowledgements outside of transactions nor negative ones."""


def state_of(world: World) -> AckState:
    """Return the state of (P0, P1]."""
    if cursor(world).position >= P1:
        return AckState.DELETED
    return AckState.PENDING_ACK if pending(world) else AckState.PENDING


@pytest.mark.parametrize(
    "key",
    [key for key in ACK_TRANSITIONS if key[1] in SOURCE_EVENTS],
    ids=lambda k: f"{k[0]} {k[1]}",
)
def test_the_range_of_a_source_moves_as_the_table_says(
    world: World, key: tuple[AckState, AckEvent]
) -> None:
    claim(world)
    before, event = key
    this = world.open()
    if before is AckState.PENDING_ACK:
        place(world, this, ack(P0, P1))
    elif before is AckState.DELETED:
        done = world.open()
        place(world, done, ack(P0, P1))
        world.commit(done)
    assert state_of(world) is before
    if event is AckEvent.COMMIT:
        world.commit(this)
    elif event is AckEvent.ABORT:
        world.abort(this)
    conflict = False
    if event in (AckEvent.ACK_IN_THIS, AckEvent.ACK_IN_OTHER):
        txn = this if event is AckEvent.ACK_IN_THIS else world.open()
        try:
            place(world, txn, ack(P0, P1))
        except AcknowledgementConflictError:
            conflict = True
    move = ACK_TRANSITIONS[key]
    assert (state_of(world), conflict) == (move.state, move.result is AckResult.CONFLICT)


PLACED = {
    # (what another transaction did to (P0, P1], what is asked for): what the script answers
    ("nothing", (P0, P1)): Code.OK,
    ("nothing", (P1, P2)): Code.CURSOR,
    ("pending", (P0, P1)): Code.PENDING,
    ("pending", (P0, P2)): Code.PENDING,
    ("pending", (P1, P2)): Code.PENDING,
    ("committed", (P0, P1)): Code.CURSOR,
    ("committed", (P0, P2)): Code.CURSOR,
    ("committed", (P1, P2)): Code.OK,
    ("committed", (P2, P3)): Code.CURSOR,
    ("aborted", (P0, P1)): Code.OK,
    ("aborted", (P0, P2)): Code.OK,
    ("aborted", (P1, P2)): Code.CURSOR,
    # ... and what this transaction did itself
    ("own", (P0, P1)): Code.OK,
    ("own", (P0, P2)): Code.PENDING,
    ("own", (P1, P2)): Code.PENDING,
}


@pytest.mark.parametrize("done,asked", PLACED, ids=str)
def test_a_range_is_placed_at_the_cursor_alone(
    world: World, done: str, asked: tuple[Position, Position]
) -> None:
    claim(world)
    txn, other = world.open(), world.open()
    if done != "nothing":
        place(world, txn if done == "own" else other, ack(P0, P1))
    if done == "committed":
        world.commit(other)
    elif done == "aborted":
        world.abort(other)
    locked, stood = pending(world), cursor(world).position
    [answer] = world.store.subscriptions.place_acks(txn.id, [ack(*asked)])
    assert answer.code is PLACED[done, asked]
    added = {txn.id.key} if answer.code is Code.OK else set()
    assert (pending(world), cursor(world).position) == (locked | added, stood)


# --- start = cursor ---------------------------------------------------------------------------


def test_what_was_acknowledged_already_is_not_acknowledged_again(world: World) -> None:
    claim(world)
    txn = world.open()
    place(world, txn, ack(P0, P2))
    world.commit(txn)
    for start, end in ((P0, P1), (P0, P2), (P0, P3), (P1, P3)):
        with pytest.raises(AcknowledgementConflictError, match="acknowledged already"):
            place(world, world.open(), ack(start, end))
    assert cursor(world).position == P2


def test_a_gap_behind_the_cursor_is_refused(world: World) -> None:
    claim(world)
    with pytest.raises(AcknowledgementConflictError, match="leaves a gap"):
        place(world, world.open(), ack(P1, P2))
    assert pending(world) == set()


def test_the_cursor_is_read_after_whatever_is_decided_was_materialized(world: World) -> None:
    # The commit of the batch before died before it was materialized.
    claim(world)
    before = world.open()
    place(world, before, ack(P0, P1))
    world.decide(before)
    assert cursor(world).position == P0
    txn = world.open()
    place(world.another_process(), txn, ack(P1, P2))
    world.commit(txn)
    assert cursor(world).position == P2


# --- two transactions on one cursor -----------------------------------------------------------


def test_two_open_transactions_cannot_lock_one_cursor(world: World) -> None:
    claim(world)
    one, two = world.open(), world.open()
    place(world, one, ack(P0, P1))
    with pytest.raises(AcknowledgementConflictError, match="is open and acknowledges there"):
        place(world, two, ack(P0, P1))
    assert pending(world) == {one.id.key}
    world.commit(one)
    assert cursor(world).position == P1


def test_an_expired_transaction_is_aborted_by_whoever_needs_its_cursor(world: World) -> None:
    claim(world)
    dead, txn = world.open(), world.open()
    place(world, dead, ack(P0, P1))
    world.expire(dead)
    place(world, txn, ack(P0, P2))
    world.commit(txn)
    assert world.state(dead) is TxnState.ABORTED
    assert cursor(world).position == P2


def test_a_pending_acknowledgement_without_a_header_is_reported(world: World) -> None:
    claim(world)
    lost, txn = world.open(), world.open()
    place(world, lost, ack(P0, P1))
    world.client.delete(f"{{tc{lost.id.tc}}}:txn:{lost.id.key}")
    with pytest.raises(StoreCorruptError, match="no header"):
        place(world, txn, ack(P0, P1))
    assert pending(world) == {lost.id.key}


def test_a_sibling_transaction_of_the_batch_that_acknowledged_the_same_is_enough(
    world: World,
) -> None:
    # Two sinks in one query: each commits its own transaction, the first acknowledges for both.
    claim(world)
    one, two = world.open(), world.open()
    place(world, one, ack(P0, P1, sink="one", batch="7"))
    world.commit(one)
    assert place(world, two, ack(P0, P1, sink="two", batch="7")) == []
    world.commit(two)
    assert cursor(world).position == P1
    assert cursor(world).sink == "one"


@pytest.mark.parametrize(
    "other",
    [
        ack(P0, P1, sink="two", batch="8"),
        ack(P0, P1, sink="one", batch="7"),
        ack(P0, P2, sink="two", batch="7"),
    ],
    ids=["another batch", "the same sink", "another range"],
)
def test_whatever_is_no_sibling_is_a_conflict(world: World, other: AckRequest) -> None:
    claim(world)
    one = world.open()
    place(world, one, ack(P0, P1, sink="one", batch="7"))
    world.commit(one)
    with pytest.raises(AcknowledgementConflictError):
        place(world, world.open(), other)


# --- who owns a subscription ------------------------------------------------------------------


def test_a_subscription_belongs_to_one_query_until_it_is_reset(world: World) -> None:
    claim(world, "q")
    answer = world.store.subscriptions.claim_cursor(SEGMENT, "sub", "other", 9, P0)
    assert (answer.code, answer.owner) == (Code.OWNED, "q")
    with pytest.raises(AcknowledgementConflictError, match="belongs to query q") as caught:
        place(world, world.open(), ack(P0, P1, query="other"))
    assert str(caught.value).endswith(
        "If the other side is gone for good: pulsar-txn subscription reset <topic> sub --to here, "
        "then start with startingOffsets=subscription"
    )
    assert pending(world) == set()
    assert put_cursor(world.store, SEGMENT, "sub", P1).code is Code.OK
    claim(world, "other", source_epoch=2)
    assert (cursor(world).position, cursor(world).query) == (P1, "other")
    with pytest.raises(AcknowledgementConflictError, match="belongs to query other"):
        place(world, world.open(), ack(P1, P2, query="q"))


def test_a_first_claim_sets_the_cursor_and_a_later_one_leaves_it(world: World) -> None:
    claim(world, start=P1)
    claim(world, start=P3, source_epoch=2)
    assert cursor(world).position == P1


def test_of_several_sources_on_a_subscription_the_one_that_started_last_is_alive(
    world: World,
) -> None:
    claim(world, source_epoch=1)
    claim(world, source_epoch=2)
    answer = world.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 1, P0)
    assert (answer.code, answer.source_epoch) == (Code.FENCED, 2)
    with pytest.raises(FencedError, match="a source that started later"):
        place(world, world.open(), ack(P0, P1, source_epoch=1))
    assert pending(world) == set()
    txn = world.open()
    place(world, txn, ack(P0, P1, source_epoch=2))
    world.commit(txn)
    assert cursor(world).position == P1


def test_a_segment_whose_task_never_ran_is_claimed_by_the_acknowledgement(world: World) -> None:
    txn = world.open()
    place(world, txn, ack(P0, P1))
    world.commit(txn)
    assert (cursor(world).position, cursor(world).query) == (P1, "q")


def test_epochs_of_sources_rise(world: World) -> None:
    seen = [world.store.meta.next_source_epoch() for _ in range(3)]
    seen.append(world.another_process().store.meta.next_source_epoch())
    assert seen == sorted(set(seen))


# --- resets -----------------------------------------------------------------------------------


def test_a_reset_is_refused_while_an_acknowledgement_is_pending(world: World) -> None:
    claim(world)
    txn = world.open()
    place(world, txn, ack(P0, P1))
    answer = put_cursor(world.store, SEGMENT, "sub", P3)
    assert (answer.code, answer.holder) == (Code.PENDING, txn.id)
    assert cursor(world) == Cursor(P0, "q", 1, "", "", "")
    world.commit(txn)
    assert put_cursor(world.store, SEGMENT, "sub", P3).code is Code.OK
    assert cursor(world) == Cursor(P3, "", 2, "", "", "", released=P3)


def test_an_acknowledgement_of_an_earlier_cursor_version_moves_nothing(world: World) -> None:
    claim(world)
    txn = world.open()
    place(world, txn, ack(P0, P1))
    # As if a reset had got past the pending acknowledgement: the cursor version alone keeps it out.
    world.client.hincrby(world.key("cursor:sub"), "generation", 1)
    world.client.hset(world.key("cursor:sub"), "position", P3.padded())
    world.commit(txn)
    assert cursor(world).position == P3
    assert pending(world) == set()


def test_a_reset_sets_a_cursor_that_never_was(world: World) -> None:
    assert world.store.subscriptions.read_cursors([SEGMENT], "sub") == [None]
    put_cursor(world.store, SEGMENT, "sub", P2)
    assert (cursor(world).position, cursor(world).query) == (P2, "")


# --- unknown is not failed ----------------------------------------------------------------------


def test_a_commit_that_died_halfway_is_materialized_at_every_participant(world: World) -> None:
    claim(world)
    txn = world.open()
    winner = world.write(txn, "a", segment=OTHER_SEGMENT)
    place(world, txn, ack(P0, P1))
    world.decide(txn, winner)
    # A reader of the output alone is blocked; completing it moves the input's cursor as well.
    assert world.another_process().visible(OTHER_SEGMENT) == ["a"]
    assert cursor(world).position == P1


def test_a_cursor_that_lost_a_field_is_reported(world: World) -> None:
    claim(world)
    world.client.hdel(world.key("cursor:sub"), "generation")
    with pytest.raises(StoreCorruptError, match="generation"):
        world.store.subscriptions.read_cursors([SEGMENT], "sub")


def test_an_outcome_names_what_was_seen_of_the_participants(world: World) -> None:
    claim(world)
    txn = world.open()
    place(world, txn, ack(P0, P1))
    outcome = Outcome()
    outcome.last_seen[f"seg:{SEGMENT}"] = world.store.seen(f"seg:{SEGMENT}").seq + 100
    helper = world.another_process()
    record = outcome.SerializeToString(deterministic=True)
    world.store.transactions.end(txn.id, TxnState.COMMITTED, record, EndedBy.OWNER, txn.nonce)
    # The segment is older than the decision has seen it: nothing is materialized on it.
    with pytest.raises(StoreRolledBackError, match="lost acknowledged writes"):
        helper.coordinator.materialize(helper.header(txn))
    assert cursor(world).position == P0
