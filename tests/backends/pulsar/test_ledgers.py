"""Arithmetic on the ledgers of a topic, compared with counting entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_txn_spark.backends.pulsar import ledgers
from pulsar_txn_spark.backends.pulsar.ledgers import Ledger, ManagedLedger
from pulsar_txn_spark.position import EARLIEST, Position

some_ledgers = st.lists(
    st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 10_000)), max_size=4
).map(
    lambda found: tuple(
        Ledger(sum(gap for gap, _, _ in found[: at + 1]), entries, size)
        for at, (_, entries, size) in enumerate(found)
    )
)


def managed_ledger_of(found: tuple[Ledger, ...]) -> ManagedLedger:
    last = Position(found[-1].id, found[-1].entries - 1) if found else EARLIEST
    return ManagedLedger(found[0].id if found else -1, found, last, 0)


def every_entry(found: tuple[Ledger, ...]) -> list[Position]:
    return [Position(one.id, entry) for one in found for entry in range(one.entries)]


@given(found=some_ledgers, data=st.data())
def test_pieces_are_the_entries_of_a_range(found: tuple[Ledger, ...], data: st.DataObject) -> None:
    where = st.sampled_from([EARLIEST, *every_entry(found), Position(1, -1), Position(99, 0)])
    start, end = data.draw(where), data.draw(where)
    pieces = managed_ledger_of(found).pieces(start, end)
    inside = [position for position in every_entry(found) if start < position <= end]
    assert list(ledgers.positions(pieces)) == inside
    assert sum(piece.entries for piece in pieces) == len(inside)
    for number, position in enumerate(inside, 1):
        assert ledgers.nth(pieces, number) == position
    if len(inside) == len(every_entry(found)):
        assert sum(piece.bytes for piece in pieces) == sum(one.bytes for one in found)


class Counted(tuple[Ledger, ...]):
    """Ledgers that count how often one of them is looked at."""

    __slots__ = ()
    looks = 0

    def __getitem__(self, at: Any) -> Any:
        Counted.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Ledger]:
        for ledger in super().__iter__():
            Counted.looks += 1
            yield ledger


def test_of_many_ledgers_those_of_a_range_are_found_without_a_look_at_each() -> None:
    many = managed_ledger_of(Counted(Ledger(number, 2, 100) for number in range(1, 4_001)))
    Counted.looks = 0
    pieces = many.pieces(Position(3_000, 0), Position(3_001, 0))
    assert [piece.ledger for piece in pieces] == [3_000, 3_001]
    assert Counted.looks < 20


@given(found=some_ledgers.filter(bool), parts=st.integers(1, 30))
def test_cuts_tile_the_entries_into_parts_that_are_not_empty(
    found: tuple[Ledger, ...], parts: int
) -> None:
    entries = len(every_entry(found))
    pieces = managed_ledger_of(found).pieces(EARLIEST, Position(10**6, 0))
    cuts = ledgers.cut(pieces, parts)
    assert len(cuts) == min(parts, entries)
    assert cuts[-1] == entries
    assert all(low < high for low, high in zip([0, *cuts], cuts, strict=False))


@given(
    found=some_ledgers.filter(bool),
    mean=st.floats(0.5, 50),
    messages=st.none() | st.integers(1, 1000),
    size=st.none() | st.integers(1, 100_000),
)
def test_limits_take_as_much_as_fits_and_at_least_one(
    found: tuple[Ledger, ...], mean: float, messages: int | None, size: int | None
) -> None:
    pieces = managed_ledger_of(found).pieces(EARLIEST, Position(10**6, 0))
    taken = ledgers.entries_within(pieces, mean, messages, size)
    each = [one.bytes / one.entries for one in found for _ in range(one.entries)]
    assert 1 <= taken <= len(each)

    def fits(count: int, slack: float) -> bool:
        few = messages is None or count * mean <= messages + slack
        return few and (size is None or sum(each[:count]) <= size + slack)

    # Sums of floats differ by their order: by far less than a message or a byte.
    assert taken == 1 or fits(taken, 1e-6)
    assert taken == len(each) or not fits(taken + 1, -1e-6)


def stats(lac: str, *found: tuple[int, int, int], current: int = 0) -> dict[str, Any]:
    return {
        "lastConfirmedEntry": lac,
        "ledgers": [{"ledgerId": one, "entries": two, "size": three} for one, two, three in found],
        "currentLedgerSize": current,
        "entriesAddedCounter": 0,
    }


def test_the_open_ledger_is_as_long_as_the_last_confirmed_entry_says() -> None:
    managed_ledger = ManagedLedger.of(stats("9:4", (7, 3, 300), (9, 0, 0), current=500))
    assert managed_ledger.ledgers == (Ledger(7, 3, 300), Ledger(9, 5, 500))
    assert managed_ledger.last == (9, 4)


def test_the_last_entry_is_in_an_earlier_ledger_when_the_last_one_is_empty() -> None:
    assert ManagedLedger.of(stats("25:-1", (19, 5, 50), (20, 3, 30))).last == (20, 2)
    assert ManagedLedger.of(stats("20:2", (19, 5, 50), (20, 3, 30), (25, 0, 0))).last == (20, 2)


def test_a_topic_without_entries_begins_with_its_empty_ledger() -> None:
    managed_ledger = ManagedLedger.of(stats("13:-1", (13, 0, 0)))
    assert (managed_ledger.first_ledger, managed_ledger.ledgers, managed_ledger.last) == (
        13,
        (),
        EARLIEST,
    )


def test_the_last_entry_is_known_also_when_it_is_gone() -> None:
    managed_ledger = ManagedLedger.of(stats("20:2", (25, 0, 0)))
    assert (managed_ledger.first_ledger, managed_ledger.ledgers, managed_ledger.last) == (
        25,
        (),
        (20, 2),
    )


@given(found=some_ledgers.filter(bool), ledger=st.integers(0, 22), entry=st.integers(-1, 7))
def test_of_a_ledger_that_others_follow_only_what_is_there_can_still_come(
    found: tuple[Ledger, ...], ledger: int, entry: int
) -> None:
    position, entries = Position(ledger, entry), every_entry(found)
    closed = found[0].id <= ledger < found[-1].id
    expected = position
    if closed and entry >= 0:
        expected = max(at for at in entries if at <= position)
    assert managed_ledger_of(found).last_up_to(position) == expected


REACHED = [
    pytest.param((9, 4), "9:4", [(7, 3, 1), (9, 0, 0)], "LedgerOpened", id="the open ledger"),
    pytest.param((7, 2), "9:4", [(7, 3, 1), (9, 0, 0)], "LedgerOpened", id="a closed one"),
    pytest.param((5, 8), "9:4", [(7, 3, 1), (9, 0, 0)], "LedgerOpened", id="trimmed"),
    pytest.param((5, 8), "9:4", [(9, 0, 0)], "LedgerOpened", id="trimmed but for the last"),
    pytest.param((5, 8), "5:8", [(9, 0, 0)], "LedgerOpened", id="trimmed, and none since"),
    pytest.param((8, -1), "9:4", [(7, 3, 1), (9, 0, 0)], "LedgerOpened", id="replaced empty"),
    pytest.param((8, -1), "7:2", [(7, 3, 1)], "Terminated", id="empty, dropped by a seal"),
    pytest.param((8, -1), "7:2", [(7, 3, 1)], "ClosedLedger", id="empty, about to be replaced"),
    pytest.param((8, -1), "7:2", [(7, 3, 1)], None, id="empty, by a broker without a state"),
    pytest.param((9, 4), "-1:-1", [], "Terminated", id="no ledger is left"),
    pytest.param(EARLIEST, "-1:-1", [], "LedgerOpened", id="nothing there, nothing read"),
    pytest.param(EARLIEST, "9:4", [(9, 0, 0)], "LedgerOpened", id="the very beginning"),
]
BEHIND = pytest.param((9, 4), "7:2", [(7, 3, 1), (9, 0, 0)], "LedgerOpened", id="not counted yet")


@pytest.mark.parametrize("position, lac, found, state", [*REACHED, BEHIND])
def test_where_a_reader_of_this_topic_can_stand_is_never_taken_for_another_topic(
    position: tuple[int, int], lac: str, found: list[tuple[int, int, int]], state: str | None
) -> None:
    given = stats(lac, *found) | ({} if state is None else {"state": state})
    assert ManagedLedger.of(given).knows(Position(*position))


@pytest.mark.parametrize("position, lac, found, state", REACHED)
def test_an_end_that_the_topic_had_is_reached_by_whoever_knows_what_came_or_went_since(
    position: tuple[int, int], lac: str, found: list[tuple[int, int, int]], state: str | None
) -> None:
    given = stats(lac, *found) | ({} if state is None else {"state": state})
    assert ManagedLedger.of(given).reaches(Position(*position))


@pytest.mark.parametrize("position", [(7, 3), (9, 4), (10, 0), (10, -1)])
def test_an_end_is_not_reached_by_a_broker_that_knows_less(position: tuple[int, int]) -> None:
    given = stats("7:2", (7, 3, 1), (9, 0, 0)) | {"state": "LedgerOpened"}
    assert not ManagedLedger.of(given).reaches(Position(*position))


@pytest.mark.parametrize("position", [(8, 0), (10, 0), (10, -1), (70, 2)])
def test_an_entry_of_a_ledger_that_was_never_there_is_one_of_another_topic(
    position: tuple[int, int],
) -> None:
    given = stats("9:4", (7, 3, 1), (9, 0, 0)) | {"state": "LedgerOpened"}
    assert not ManagedLedger.of(given).knows(Position(*position))
