"""Acknowledgements of single messages and of everything up to one: PIP-31, against the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest

from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    AcknowledgementsFullError,
    FencedError,
    StoreCorruptError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import (
    ACK_TRANSITIONS,
    AckEvent,
    AckInterval,
    AckResult,
    AckState,
    SubscriptionState,
)
from pulsar_txn_spark.store.records import Code, EndedBy, SegmentDecision, SubscriptionRef, TxnState
from pulsar_txn_spark.store.redis import scripts, subscriptions
from pulsar_txn_spark.txn.participants import ack_intent
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper
from tests.support.scenario import SEGMENT, TIMEOUT_MS, Loss, Txn, World, ack, put_cursor

WHERE = SubscriptionRef(SEGMENT, "sub", CLIENT_OWNER)
BATCH = 4  # messages of each entry


def message(number: int) -> MessagePosition:
    """Return the number-th message (from 1) of the segment; 0 is before all."""
    if number == 0:
        return MessagePosition.whole(EARLIEST)
    entry, index = divmod(number - 1, BATCH)
    return MessagePosition.of_message(Position(1, entry), index, BATCH)


def one(number: int) -> AckInterval:
    return AckInterval(message(number - 1), message(number))


def upto(start: int, end: int) -> AckInterval:
    return AckInterval(message(start), message(end))


@pytest.fixture
def world(world: World) -> World:
    world.acks.claim(WHERE, EARLIEST)
    return world


def single(world: World, txn: Txn, *numbers: int) -> None:
    world.acks.acknowledge_individual(txn.id, txn.nonce, TIMEOUT_MS, WHERE, map(one, numbers))


def cumulative(world: World, txn: Txn, end: int, start: int = 0) -> None:
    world.acks.acknowledge_cumulative(txn.id, txn.nonce, TIMEOUT_MS, WHERE, upto(start, end))


def now(world: World, *numbers: int) -> list[AckInterval]:
    return world.acks.acknowledge_now(WHERE, map(one, numbers))


def state(world: World) -> SubscriptionState:
    found = world.store.subscriptions.read_acks(SEGMENT, "sub")
    assert found is not None
    return found


def states(world: World, last: int = 9) -> str:
    """Return a letter for each message: d(eleted), a(cknowledged in a transaction), or a dot."""
    letters = {AckState.DELETED: "d", AckState.PENDING_ACK: "a", AckState.PENDING: "."}
    found = state(world)
    return "".join(letters[found.state_of(message(number))] for number in range(1, last + 1))


def require_sound(world: World) -> None:
    """Whatever happened: the ranges are disjoint, and each holder's own are the same ranges."""
    found = state(world)
    intervals = [locked.interval for locked in found.ranges]
    assert intervals == sorted(intervals)
    for left, right in pairwise(intervals):
        assert left.end <= right.start, "two ranges overlap"
    assert all(interval.start < interval.end for interval in intervals)
    assert all(interval.start >= found.cursor for interval in intervals)
    if intervals and not found.ranges[0].holder:
        assert intervals[0].start > found.cursor, "the cursor did not move over what is deleted"
    keys = {
        key.decode().rpartition(":sub:")[2]: [
            tuple(member.decode().split(" ")) for member in world.client.zrange(key, 0, -1)
        ]
        for key in world.client.keys(world.key("pending-ranges:*"))
    }
    pending = {
        txn: [(interval.start.padded(), interval.end.padded()) for interval in locked]
        for txn, locked in found.pending.items()
    }
    assert keys == pending
    holders = {key.decode() for key in world.client.hkeys(world.key("pending-acks:sub"))}
    assert holders >= set(pending)


# --- every transition of the table (Lua against Python) ----------------------------------------


Ask = Callable[[World, Txn], None]


def singles(*numbers: int) -> Ask:
    return lambda world, txn: single(world, txn, *numbers)


def cumulated(end: int, start: int = 0) -> Ask:
    return lambda world, txn: cumulative(world, txn, end, start)


def in_state(world: World, wanted: AckState, holder: Txn, number: int, acks: Ask) -> None:
    """Bring a message into a state; a deleted one was deleted in a transaction of its own."""
    if wanted is AckState.PENDING_ACK:
        acks(world, holder)
    elif wanted is AckState.DELETED:
        before = world.open()
        acks(world, before)
        world.commit(before)
    assert state(world).state_of(message(number)) is wanted


def happen(world: World, event: AckEvent, holder: Txn, number: int, acks: Ask) -> AckResult:
    """Let an event happen to a message; return what the caller hears."""
    before = state(world).state_of(message(number))
    if event in (AckEvent.ACK_IN_THIS, AckEvent.ACK_IN_OTHER):
        txn = holder if event is AckEvent.ACK_IN_THIS else world.open()
        try:
            acks(world, txn)
        except AcknowledgementConflictError:
            return AckResult.CONFLICT
        return AckResult.DONE
    if event is AckEvent.ACK_NORMAL:
        dropped = now(world, number)
        assert dropped == ([one(number)] if before is AckState.PENDING_ACK else [])
    elif event is AckEvent.COMMIT:
        world.commit(holder)
    elif event is AckEvent.ABORT:
        world.abort(holder)
    # A negative acknowledgement asks the store for nothing: what is PENDING is delivered again.
    changed = state(world).state_of(message(number)) is not before
    return AckResult.DONE if changed else AckResult.DROPPED


each_message = pytest.mark.parametrize("number", [1, 2, 4, 7], ids=lambda n: f"message {n}")
each_cell = pytest.mark.parametrize("key", ACK_TRANSITIONS, ids=lambda key: f"{key[0]} {key[1]}")


@each_message
@each_cell
def test_the_scripts_move_as_the_table_says(
    world: World, key: tuple[AckState, AckEvent], number: int
) -> None:
    holder = world.open()
    in_state(world, key[0], holder, number, singles(number))
    result = happen(world, key[1], holder, number, singles(number))
    assert (state(world).state_of(message(number)), result) == ACK_TRANSITIONS[key]
    require_sound(world)


@each_message
@each_cell
@pytest.mark.parametrize("locked", [singles, cumulated], ids=["singly", "cumulatively"])
def test_a_cumulative_acknowledgement_moves_as_the_table_says(
    world: World, key: tuple[AckState, AckEvent], number: int, locked: Callable[[int], Ask]
) -> None:
    now(world, *range(1, number))  # nothing is left out before it
    holder = world.open()
    in_state(world, key[0], holder, number, locked(number))
    result = happen(world, key[1], holder, number, cumulated(number, number - 1))
    assert (state(world).state_of(message(number)), result) == ACK_TRANSITIONS[key]
    assert states(world)[: number - 1] == "d" * (number - 1)
    require_sound(world)


OVER_A_GAP = {
    (AckState.PENDING, AckEvent.ACK_IN_THIS): (AckState.PENDING, AckResult.CONFLICT),
    (AckState.PENDING, AckEvent.ACK_IN_OTHER): (AckState.PENDING, AckResult.CONFLICT),
    (AckState.PENDING_ACK, AckEvent.ACK_IN_THIS): (AckState.PENDING_ACK, AckResult.CONFLICT),
}
"""The cells in which a cumulative acknowledgement differs that does not begin at the cursor."""


@pytest.mark.parametrize("number", [2, 4, 7], ids=lambda n: f"message {n}")
@each_cell
def test_a_cumulative_acknowledgement_over_a_gap_is_a_conflict_whatever_the_state(
    world: World, key: tuple[AckState, AckEvent], number: int
) -> None:
    holder = world.open()
    in_state(world, key[0], holder, number, singles(number))
    result = happen(world, key[1], holder, number, cumulated(number, number - 1))
    expected = OVER_A_GAP.get(key, ACK_TRANSITIONS[key])
    assert (state(world).state_of(message(number)), result) == expected
    assert states(world)[: number - 1] == "." * (number - 1)
    require_sound(world)


# --- the conflict matrix ------------------------------------------------------------------------


class Row(NamedTuple):
    """What one transaction holds and another asks for, and the states that this leads to.

    Empty where the second is refused: while the first is open, committed, and aborted.
    """

    locked: Ask
    asked: Ask
    together: str
    committed: str
    aborted: str


MATRIX = {
    "the same message": Row(singles(2), singles(2), "", "", ".a......."),
    "a message in common": Row(singles(2, 3), singles(3, 5), "", "", "..a.a...."),
    "other messages": Row(singles(2), singles(3), ".aa......", ".da......", "..a......"),
    "all up to a locked one": Row(singles(5), cumulated(5), "", "aaaad....", "aaaaa...."),
    "all over a locked one": Row(singles(2), cumulated(6), "", "adaaaa...", "aaaaaa..."),
    "all before a locked one": Row(singles(5), cumulated(4), "aaaaa....", "aaaad....", "aaaa....."),
    "the last of all": Row(cumulated(5), singles(5), "", "", "....a...."),
    "the first of all": Row(cumulated(5), singles(1), "", "", "a........"),
    "one behind all": Row(cumulated(5), singles(6), "aaaaaa...", "ddddda...", ".....a..."),
    "the same all": Row(cumulated(5), cumulated(5), "", "", "aaaaa...."),
    "all, but less": Row(cumulated(5), cumulated(3), "", "", "aaa......"),
    "all, and more": Row(cumulated(5), cumulated(7), "", "dddddaa..", "aaaaaaa.."),
    "all behind all": Row(cumulated(5), cumulated(7, 5), "", "dddddaa..", ""),
}
"""Individual against individual and cumulative, cumulative against both."""

each_row = pytest.mark.parametrize("row", MATRIX.values(), ids=MATRIX)


def ask_for(world: World, row: Row, wanted: str, refusal: str) -> None:
    """Ask in a transaction of its own, and see it lead where it should."""
    before, txn = states(world), world.open()
    if wanted:
        row.asked(world, txn)
    else:
        with pytest.raises(AcknowledgementConflictError, match=refusal):
            row.asked(world, txn)
    assert states(world) == (wanted or before)
    require_sound(world)


@each_row
def test_two_transactions_conflict_where_they_want_the_same_message(world: World, row: Row) -> None:
    row.locked(world, world.open())
    ask_for(world, row, row.together, "which is open")


@each_row
def test_what_is_committed_is_in_the_way_for_good(world: World, row: Row) -> None:
    holder = world.open()
    row.locked(world, holder)
    world.commit(holder)
    ask_for(world, row, row.committed, "is acknowledged already")


@each_row
def test_what_was_aborted_is_in_nobodys_way(world: World, row: Row) -> None:
    holder = world.open()
    row.locked(world, holder)
    world.abort(holder)
    ask_for(world, row, row.aborted, "read from the cursor again")


@pytest.mark.parametrize("committed", [True, False], ids=["decided", "expired"])
def test_a_dead_transaction_is_completed_by_whoever_wants_its_messages(
    world: World, committed: bool
) -> None:
    row, holder = MATRIX["all over a locked one"], world.open()
    row.locked(world, holder)
    if committed:
        world.decide(holder)
    else:
        world.expire(holder)
    ask_for(world, row, row.committed if committed else row.aborted, "")
    assert world.state(holder) is (TxnState.COMMITTED if committed else TxnState.ABORTED)


@each_row
def test_within_one_transaction_acknowledgements_add_up(world: World, row: Row) -> None:
    txn = world.open()
    row.locked(world, txn)
    before = states(world)
    row.asked(world, txn)
    both = states(world)
    assert "d" not in both
    assert all(new == "a" for old, new in zip(before, both, strict=True) if old == "a")
    # Idempotent: after a lost reply the step is repeated.
    row.asked(world, txn)
    row.locked(world, txn)
    assert states(world) == both
    require_sound(world)
    world.commit(txn)
    assert states(world) == both.replace("a", "d")
    require_sound(world)
    assert world.client.hlen(world.key("pending-acks:sub")) == 0


# --- cumulative acknowledgements and aborts -----------------------------------------------------


def test_an_aborted_cumulative_acknowledgement_never_eats_what_is_acknowledged_later(
    world: World,
) -> None:
    lost, txn = world.open(), world.open()
    cumulative(world, lost, 3)
    world.abort(lost)
    # Its consumer reads on, as if what it acknowledged before were acknowledged.
    with pytest.raises(AcknowledgementConflictError, match=r"read from the cursor again"):
        cumulative(world, txn, 6, start=3)
    assert states(world) == "........."
    cumulative(world, txn, 6)
    world.commit(txn)
    assert states(world) == "dddddd..."


def test_an_aborted_cumulative_acknowledgement_gives_back_only_its_own(world: World) -> None:
    assert now(world, 2, 5) == []
    lost = world.open()
    cumulative(world, lost, 6)
    assert states(world) == "adaada..."
    world.abort(lost)
    assert states(world) == ".d..d...."
    require_sound(world)


def test_a_cumulative_acknowledgement_follows_another_of_the_same_transaction(
    world: World,
) -> None:
    txn = world.open()
    cumulative(world, txn, 3)
    cumulative(world, txn, 6, start=3)
    assert len(state(world).ranges) == 1
    world.commit(txn)
    assert state(world).cursor == message(6)
    assert state(world).ranges == ()


def test_a_cumulative_acknowledgement_behind_a_single_one_of_the_same_cannot_leave_a_gap(
    world: World,
) -> None:
    txn = world.open()
    single(world, txn, 3)
    with pytest.raises(AcknowledgementConflictError, match="what follows -1:-1 was not"):
        cumulative(world, txn, 5, start=3)
    single(world, txn, 1, 2)
    cumulative(world, txn, 5, start=3)
    assert states(world) == "aaaaa...."


# --- the cursor (INV-9) -------------------------------------------------------------------------


def test_the_cursor_moves_over_what_is_acknowledged_without_a_gap_and_only_then(
    world: World,
) -> None:
    second, first = world.open(), world.open()
    single(world, second, 2, 3, 4)
    world.commit(second)
    assert (state(world).cursor, states(world)) == (message(0), ".ddd.....")
    single(world, first, 1)
    assert state(world).cursor == message(0)
    world.commit(first)
    [found] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert found is not None
    assert (found.position, found.taken) == (Position(1, 0), 0)
    assert (states(world), state(world).ranges) == ("dddd.....", ())
    assert now(world, 5, 6) == []
    [found] = world.store.subscriptions.read_cursors([SEGMENT], "sub")
    assert found is not None
    assert (found.position, found.taken) == (Position(1, 0), 2)
    require_sound(world)


def test_the_cursor_does_not_move_over_what_an_open_transaction_has_locked(world: World) -> None:
    holder = world.open()
    single(world, holder, 1)
    assert now(world, 2) == []
    assert (state(world).cursor, states(world)) == (message(0), "ad.......")
    world.commit(holder)
    assert state(world).cursor == message(2)


def test_messages_that_nobody_sees_are_acknowledged_with_the_next(world: World) -> None:
    # Messages 2 to 4 are of an aborted transaction.
    txn = world.open()
    intervals = [upto(0, 1), upto(1, 5)]
    world.acks.acknowledge_individual(txn.id, txn.nonce, TIMEOUT_MS, WHERE, intervals)
    world.commit(txn)
    assert state(world).cursor == message(5)


def test_an_interval_that_reaches_back_over_the_cursor_begins_at_it(world: World) -> None:
    assert now(world, 1, 2) == []
    txn = world.open()
    world.acks.acknowledge_individual(txn.id, txn.nonce, TIMEOUT_MS, WHERE, [upto(0, 3)])
    world.commit(txn)
    assert state(world).cursor == message(3)


def test_readers_that_do_not_agree_on_what_is_visible_are_found_out(world: World) -> None:
    assert now(world, 3) == []
    txn = world.open()
    with pytest.raises(AcknowledgementConflictError, match="do not agree"):
        world.acks.acknowledge_individual(txn.id, txn.nonce, TIMEOUT_MS, WHERE, [upto(1, 4)])
    assert states(world) == "..d......"


def test_an_acknowledgement_of_several_messages_is_placed_whole_or_not_at_all(
    world: World,
) -> None:
    holder, txn = world.open(), world.open()
    single(world, holder, 5)
    with pytest.raises(AcknowledgementConflictError, match=r"message 1:1:0 is acknowledged in"):
        single(world, txn, 1, 3, 5)
    assert states(world) == "....a...."


# --- outside of transactions --------------------------------------------------------------------


def test_a_normal_acknowledgement_is_dropped_where_a_transaction_has_locked_the_message(
    world: World,
) -> None:
    holder = world.open()
    single(world, holder, 2)
    assert now(world, 1, 2, 3) == [one(2)]
    assert states(world) == "dad......"
    world.abort(holder)
    assert states(world) == "d.d......", "a message came back that was acknowledged"
    assert now(world, 2) == []
    assert state(world).cursor == message(3)


def test_a_normal_acknowledgement_gets_a_dead_holder_out_of_its_way(world: World) -> None:
    dead = world.open()
    single(world, dead, 1)
    world.expire(dead)
    assert now(world, 1) == []
    assert world.state(dead) is TxnState.ABORTED
    assert states(world) == "d........"


def test_a_refused_normal_acknowledgement_leaves_no_transaction_behind(world: World) -> None:
    assert now(world, 3) == []
    with pytest.raises(AcknowledgementConflictError, match="do not agree"):
        world.acks.acknowledge_now(WHERE, [upto(0, 1), upto(1, 4)])
    for tc in range(world.store.identity.coordinators):
        assert world.store.transactions.list_open(tc, deadline_ms=None, limit=9) == []
    assert states(world) == "..d......"


# --- who may, and until when --------------------------------------------------------------------


def test_the_intent_is_there_before_the_acknowledgement(world: World) -> None:
    txn = world.open()
    single(world, txn, 1)
    assert world.header(txn).intents == {ack_intent(SEGMENT, "sub")}


@pytest.mark.parametrize("ask", [singles(1), cumulated(1)], ids=["individual", "cumulative"])
def test_a_decided_transaction_acknowledges_nothing_more(world: World, ask: Ask) -> None:
    txn = world.open()
    world.store.transactions.end(txn.id, TxnState.ABORTED, b"", EndedBy.FENCE)
    with pytest.raises(TransactionAbortedError):
        ask(world, txn)
    assert states(world) == "........."


def test_an_acknowledgement_that_arrives_after_the_materialization_is_refused(
    world: World,
) -> None:
    txn = world.open()
    world.coordinator.intend(txn.id, txn.nonce, TIMEOUT_MS, [ack_intent(SEGMENT, "sub")])
    world.abort(txn)
    for answer in (
        world.store.subscriptions.ack_individual(txn.id, WHERE, [one(1)]),
        world.store.subscriptions.ack_cumulative(txn.id, WHERE, one(1)),
    ):
        assert (answer.code, answer.decision) == (Code.RESOLVED, "ABORTED")
    assert states(world) == "........."


@pytest.mark.parametrize("ask", [singles(1), cumulated(1)], ids=["individual", "cumulative"])
def test_a_closed_segment_takes_no_message_of_an_older_transaction(world: World, ask: Ask) -> None:
    txn = world.open()
    world.client.hset(world.key("closed"), str(txn.id.tc), str(txn.id.counter + 1))
    with pytest.raises(TransactionConflictError, match="closed"):
        ask(world, txn)
    assert states(world) == "........."


@pytest.mark.parametrize("ask", [singles(1), cumulated(1)], ids=["individual", "cumulative"])
def test_clients_and_queries_do_not_share_a_subscription(world: World, ask: Ask) -> None:
    txn = world.open()
    request = ack(EARLIEST, Position(1, 0), query="q")
    with pytest.raises(AcknowledgementConflictError, match="belongs to clients"):
        world.acks.acknowledge(txn.id, txn.nonce, TIMEOUT_MS, [request])
    put_cursor(world.store, SEGMENT, "sub", EARLIEST)
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 1, EARLIEST)
    with pytest.raises(AcknowledgementConflictError, match="belongs to query q, not to clients"):
        ask(world, txn)
    with pytest.raises(AcknowledgementConflictError, match="belongs to query q") as caught:
        world.acks.claim(WHERE, EARLIEST)
    assert str(caught.value).endswith("pulsar-txn subscription reset <topic> sub --to here")
    assert states(world) == "........."


@pytest.mark.parametrize("ask", [singles(1), cumulated(1)], ids=["individual", "cumulative"])
def test_an_older_source_epoch_acknowledges_nothing(world: World, ask: Ask) -> None:
    world.acks.claim(replace(WHERE, source_epoch=7), EARLIEST)
    with pytest.raises(FencedError, match="taken over"):
        ask(world, world.open())
    with pytest.raises(FencedError, match="taken over"):
        now(world, 1)
    with pytest.raises(FencedError, match="taken over"):
        world.acks.claim(WHERE, EARLIEST)
    assert states(world) == "........."


def test_who_takes_over_ends_what_is_open_and_keeps_what_is_committed(world: World) -> None:
    committed, undecided = world.open(), world.open()
    single(world, committed, 1)
    single(world, undecided, 2)
    world.decide(committed)  # and its process died
    newer = replace(WHERE, source_epoch=7)
    world.acks.claim(newer, EARLIEST)
    found = world.acks.take_over(newer)
    assert (found.cursor, found.pending) == (message(1), {})
    assert world.state(undecided) is TxnState.ABORTED
    assert states(world) == "d........"


@pytest.mark.parametrize("ask", [singles(1), cumulated(1)], ids=["individual", "cumulative"])
def test_a_subscription_is_claimed_before_it_acknowledges(world: World, ask: Ask) -> None:
    world.client.delete(world.key("cursor:sub"))
    with pytest.raises(AcknowledgementConflictError, match="claim it before"):
        ask(world, world.open())
    with pytest.raises(AcknowledgementConflictError, match="claim it before"):
        world.acks.replay(SEGMENT, "sub")


def test_an_acknowledgement_without_a_header_is_reported(world: World) -> None:
    lost, txn = world.open(), world.open()
    single(world, lost, 1)
    world.client.delete(f"{{tc{lost.id.tc}}}:txn:{lost.id.key}")
    with pytest.raises(StoreCorruptError, match="no header"):
        single(world, txn, 1)
    with pytest.raises(StoreCorruptError, match="no header"):
        world.acks.replay(SEGMENT, "sub")


# --- resets -------------------------------------------------------------------------------------


def test_a_reset_waits_for_the_transactions_and_forgets_what_was_acknowledged(
    world: World,
) -> None:
    assert now(world, 3, 5) == []
    txn = world.open()
    single(world, txn, 7)
    assert put_cursor(world.store, SEGMENT, "sub", EARLIEST).code is Code.PENDING
    world.abort(txn)
    assert put_cursor(world.store, SEGMENT, "sub", EARLIEST).code is Code.OK
    assert states(world) == "........."
    assert state(world).cursor_version == 2


def test_messages_acknowledged_before_a_reset_are_not_deleted_by_a_late_commit(
    world: World,
) -> None:
    txn = world.open()
    single(world, txn, 1, 3)
    # As if a reset had got past the pending acknowledgement: the cursor version alone keeps it out.
    world.client.hincrby(world.key("cursor:sub"), "generation", 1)
    world.commit(txn)
    assert states(world) == "........."
    require_sound(world)


def test_deleted_messages_survive_the_collection_of_their_transaction(world: World) -> None:
    txn, alive = world.open(), world.open()
    single(world, txn, 2)
    world.commit(txn)
    single(world, alive, 4)
    sweeper = Sweeper(world.coordinator, lambda _: SegmentEnds(EARLIEST, EARLIEST), retention_ms=0)
    for _ in range(3):
        sweeper.sweep()
    assert world.store.transactions.read(txn.id) is None
    assert states(world) == ".d.a....."
    assert now(world, 1, 3) == []
    world.commit(alive)
    assert state(world).cursor == message(4)


# --- recovery -----------------------------------------------------------------------------------


def test_a_replay_finds_every_message_in_its_state(world: World) -> None:
    assert now(world, 1, 4) == []
    txn = world.open()
    single(world, txn, 3, 6)
    found = world.another_process().acks.replay(SEGMENT, "sub")
    assert found.cursor == message(1)
    assert found.deleted == (one(4),)
    assert found.pending == {txn.id.key: [one(3), one(6)]}
    numbers = range(1, 9)
    assert [n for n in numbers if found.deliverable(message(n))] == [2, 5, 7, 8]


def test_a_replay_materializes_what_is_decided_and_takes_back_what_has_expired(
    world: World,
) -> None:
    decided, expired, alive = world.open(), world.open(), world.open()
    single(world, decided, 2)
    single(world, expired, 4)
    single(world, alive, 6)
    world.decide(decided)
    world.expire(expired)
    found = world.another_process().acks.replay(SEGMENT, "sub")
    assert states(world) == ".d...a..."
    assert found == state(world)


def test_a_replay_shows_what_a_query_has_acknowledged(world: World) -> None:
    put_cursor(world.store, SEGMENT, "sub", EARLIEST)
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 1, EARLIEST)
    txn = world.open()
    world.acks.acknowledge(txn.id, txn.nonce, TIMEOUT_MS, [ack(EARLIEST, Position(1, 0))])
    assert states(world) == "aaaa....."
    world.commit(txn)
    assert states(world) == "dddd....."


def test_lost_replies_and_requests_change_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    losses = [Loss.REPLY, Loss.REQUEST, Loss.REPLY]
    names = ("ack_individual", "ack_cumulative", "seg_materialize", "ack_read")
    world.lose({name: list(losses) for name in names})
    txn = world.open()
    single(world, txn, 2, 4)
    cumulative(world, txn, 3)
    world.commit(txn)
    assert states(world) == "dddd....."
    require_sound(world)


# --- many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state_wanted", [TxnState.COMMITTED, TxnState.ABORTED])
def test_what_a_transaction_locks_in_many_ranges_is_given_up_in_several_steps(
    world: World, state_wanted: TxnState
) -> None:
    txn = world.open()
    single(world, txn, *range(2, 2602, 2))
    world.store.transactions.end(txn.id, state_wanted, b"", EndedBy.OWNER, txn.nonce)
    decision = world.header(txn)
    # The helper dies after the first step: 512 of 1,300 ranges.
    [answer] = world.store.segments.materialize(
        txn.id, state_wanted, [SegmentDecision(SEGMENT, subscriptions=("sub",))]
    )
    assert answer.code is Code.MORE
    assert len(state(world).pending[txn.id.key]) == 1300 - 512
    assert put_cursor(world.store, SEGMENT, "sub", EARLIEST).code is Code.PENDING
    closed = world.store.segments.close(SEGMENT, txn.id.tc, txn.id.counter + 1)
    assert closed.code is Code.PENDING
    assert not decision.materialized
    late = world.store.subscriptions.ack_individual(txn.id, WHERE, [one(1)])
    assert late.code is Code.RESOLVED
    world.another_process().coordinator.materialize(decision)
    require_sound(world)
    found = state(world)
    assert len(found.deleted) == (1300 if state_wanted is TxnState.COMMITTED else 0)
    assert found.pending == {}
    assert world.client.hlen(world.key("pending-acks:sub")) == 0
    assert world.header(txn).materialized


def test_a_cumulative_acknowledgement_fills_many_gaps_in_several_steps(world: World) -> None:
    assert now(world, *range(2, 1302, 2)) == []
    txn = world.open()
    cumulative(world, txn, 1300)
    assert len(state(world).ranges) == 1300
    world.commit(txn)
    assert (state(world).cursor, state(world).ranges) == (message(1300), ())


def test_a_full_subscription_takes_only_what_starts_at_its_cursor(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "_RANGES_KEPT", 3)
    assert now(world, 3, 5, 7) == []
    txn = world.open()
    with pytest.raises(AcknowledgementsFullError, match="holds 3 acknowledged ranges"):
        single(world, txn, 9)
    single(world, txn, 1, 2)
    world.commit(txn)
    assert state(world).cursor == message(3)
    assert now(world, 9) == []


def test_an_empty_acknowledgement_costs_nothing(world: World) -> None:
    txn = world.open()
    before = world.store.round_trips
    single(world, txn)
    assert now(world) == []
    assert world.store.round_trips == before
