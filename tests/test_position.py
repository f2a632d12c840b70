"""Positions: as text they have to sort, and to come back, as the numbers do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position

# From -1 (before everything) to the largest unsigned 64-bit number.
numbers = st.one_of(st.integers(-1, 2**64 - 1), st.sampled_from([-1, 0, 9, 10, 99, 100, 2**63]))
positions = st.builds(Position, numbers, numbers)


@given(positions, positions)
def test_padded_text_sorts_as_positions_do(one: Position, other: Position) -> None:
    assert (one < other) == (one.padded() < other.padded())
    assert (one == other) == (one.padded() == other.padded())


@given(positions)
def test_every_position_survives_both_of_its_texts(position: Position) -> None:
    assert Position.parse(str(position)) == position
    assert Position.from_padded(position.padded()) == position


@given(positions)
def test_padded_texts_are_of_one_length_and_hold_no_separator_of_the_store(
    position: Position,
) -> None:
    assert len(position.padded()) == len(EARLIEST.padded())
    assert "|" not in position.padded()
    assert "-" not in position.padded()


@given(positions)
def test_earliest_is_before_or_at_every_position(position: Position) -> None:
    assert min(EARLIEST, position) == EARLIEST
    assert min(EARLIEST.padded(), position.padded()) == EARLIEST.padded()


def test_a_later_ledger_is_later_whatever_its_entry() -> None:
    assert Position(9, 2**63) < Position(10, -1)


@pytest.mark.parametrize("text", ["", "1", "1:", ":1", "a:b", "1:2:3", "-2:0", "0:-2", "1.5:0"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - int() words some of them itself
        Position.parse(text)


def test_a_position_of_a_whole_entry_does_not_show_the_number_that_stands_for_it() -> None:
    assert repr(MessagePosition(1, 2)) == "MessagePosition(1:2)"
    assert repr(MessagePosition(1, 2, 3)) == "MessagePosition(1:2:3)"
