"""The state of messages as values: positions, the table of PIP-31, what may be delivered."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.position import WHOLE_ENTRY, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import (
    ACK_TRANSITIONS,
    AckedRange,
    AckEvent,
    AckInterval,
    AckResult,
    AckState,
    SubscriptionState,
    in_order,
)

numbers = st.sampled_from([0, 1, 9, 10, 99, 2**31, 2**63])
indices = st.sampled_from([0, 1, 9, 10, 511, WHOLE_ENTRY - 1, WHOLE_ENTRY])
messages = st.builds(MessagePosition, numbers, numbers, indices)


def at(entry: int, index: int = WHOLE_ENTRY) -> MessagePosition:
    return MessagePosition(1, entry, index)


# --- positions --------------------------------------------------------------------------------


@given(messages, messages)
def test_padded_text_sorts_as_messages_do(one: MessagePosition, other: MessagePosition) -> None:
    assert (one < other) == (one.padded() < other.padded())
    assert (one == other) == (one.padded() == other.padded())
    # As the store's members do: what follows sorts before the colon of a longer text.
    assert (one < other) == (f"{one.padded()} x" < f"{other.padded()} a") or one == other


@given(messages)
def test_every_message_survives_its_text(message: MessagePosition) -> None:
    assert MessagePosition.from_padded(message.padded()) == message


@given(numbers, numbers)
def test_a_whole_entry_is_written_as_an_entry_is(ledger: int, entry: int) -> None:
    position = Position(ledger, entry)
    assert MessagePosition.whole(position).padded() == position.padded()
    assert MessagePosition.whole(position).taken_after == (position, 0)


def test_the_last_message_of_a_batch_is_the_whole_entry() -> None:
    entry = Position(1, 7)
    assert MessagePosition.of_message(entry, 0, 3) == at(7, 0)
    assert MessagePosition.of_message(entry, 2, 3) == at(7)
    assert MessagePosition.of_message(entry, 0, 1) == at(7)
    assert at(7, 1).taken_after == (Position(1, 6), 2)
    for index in (-1, 3):
        with pytest.raises(ValueError, match="holds messages 0 to 2"):
            MessagePosition.of_message(entry, index, 3)


@pytest.mark.parametrize("message", [at(1, -1), at(1, WHOLE_ENTRY + 1), at(-1, 0)])
def test_what_names_no_message_is_not_written(message: MessagePosition) -> None:
    with pytest.raises(ValueError, match=r"batch index|no entry"):
        message.padded()


# --- the table --------------------------------------------------------------------------------


def test_every_event_in_every_state_has_its_row() -> None:
    assert set(ACK_TRANSITIONS) == set(itertools.product(AckState, AckEvent))


def test_a_conflict_or_a_dropped_event_changes_no_state() -> None:
    for (state, _), move in ACK_TRANSITIONS.items():
        if move.result is not AckResult.DONE:
            assert move.state is state


def test_deleted_is_left_by_nothing_and_pending_ack_only_by_its_transaction() -> None:
    for (state, event), move in ACK_TRANSITIONS.items():
        if state is AckState.DELETED:
            assert move.state is AckState.DELETED
        if state is AckState.PENDING_ACK and move.state is not state:
            assert event in (AckEvent.COMMIT, AckEvent.ABORT)


# --- intervals and states ---------------------------------------------------------------------


def test_intervals_are_sorted_each_once_and_may_touch_but_not_overlap() -> None:
    one, two = AckInterval(at(0), at(1)), AckInterval(at(1), at(2, 0))
    assert in_order([two, one, two]) == [one, two]
    with pytest.raises(ValueError, match="overlap"):
        in_order([one, AckInterval(at(0, 3), at(2))])
    with pytest.raises(ValueError, match="start < end"):
        in_order([AckInterval(at(1), at(1))])


def test_a_message_is_in_the_state_of_the_range_that_covers_it() -> None:
    state = SubscriptionState(
        at(2, 1),
        1,
        (
            AckedRange(AckInterval(at(3), at(4)), ""),
            AckedRange(AckInterval(at(4), at(5, 0)), "0:1"),
            AckedRange(AckInterval(at(6), at(7)), "0:2"),
        ),
    )
    found = {
        message: state.state_of(message)
        for message in (at(2, 0), at(2, 1), at(2), at(3), at(4), at(5, 0), at(5, 1), at(6), at(7))
    }
    assert list(found.values()) == [
        AckState.DELETED,
        AckState.DELETED,
        AckState.PENDING,
        AckState.PENDING,
        AckState.DELETED,
        AckState.PENDING_ACK,
        AckState.PENDING,
        AckState.PENDING,
        AckState.PENDING_ACK,
    ]
    assert [message for message in found if state.deliverable(message)] == [
        at(2),
        at(3),
        at(5, 1),
        at(6),
    ]
    assert state.deliverable(at(8))
    assert state.deleted == (AckInterval(at(3), at(4)),)
    assert state.pending == {
        "0:1": [AckInterval(at(4), at(5, 0))],
        "0:2": [AckInterval(at(6), at(7))],
    }


@pytest.mark.parametrize(
    "start, end, expected",
    [
        (0, 2, True),  # before the cursor
        (1, 5, True),  # up to the end of what touches it
        (3, 4, True),
        (4, 6, False),  # its second half is pending
        (5, 6, False),
        (6, 8, False),  # nobody holds its first half
        (7, 8, True),
        (7, 9, False),
    ],
)
def test_an_interval_is_acknowledged_for_good_if_all_of_it_is(
    start: int, end: int, expected: bool
) -> None:
    ranges = [(2, 4, ""), (4, 5, ""), (5, 6, "0:1"), (7, 8, "")]
    state = SubscriptionState(
        at(2), 1, tuple(AckedRange(AckInterval(at(a), at(b)), holder) for a, b, holder in ranges)
    )
    assert state.has_deleted(AckInterval(at(start), at(end))) is expected
