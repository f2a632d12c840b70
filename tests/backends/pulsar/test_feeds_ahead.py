"""Readers of short ranges are opened before their turn: some of them, and none for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pulsar_txn_spark.backends.pulsar.feeds_ahead import AHEAD, FeedsAhead
from pulsar_txn_spark.backends.pulsar.transport import Entry
from pulsar_txn_spark.errors import SegmentLogUnavailableError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import LogRange, SegmentRef


class Feed:
    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = 0

    def look_up_again(self, previous: Position) -> None:
        raise AssertionError(previous)

    def next_entry(self, previous: Position) -> Entry | None:
        raise AssertionError(previous)

    def close(self) -> None:
        self.closed += 1


class Opening:
    """Opens feeds, and says which."""

    def __init__(self, at_open: Callable[[int], None] = lambda _: None) -> None:
        self.feeds: list[Feed] = []
        self._at_open = at_open
        self._changed = threading.Condition()

    def __call__(self, wanted: LogRange) -> Feed:
        number = int(wanted.segment.id)
        self._at_open(number)
        feed = Feed(number)
        with self._changed:
            self.feeds.append(feed)
            self._changed.notify_all()
        return feed

    def await_numbers(self, *numbers: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.numbers >= set(numbers), 5), self.numbers

    @property
    def numbers(self) -> set[int]:
        return {feed.number for feed in self.feeds}


BEFORE = Position(7, 4)


def ranges(count: int, start: Position = BEFORE) -> list[LogRange]:
    return [
        LogRange(SegmentRef(str(n), "t", f"t-{n}"), start, Position(7, 6), lambda _, __: True)
        for n in range(count)
    ]


def test_the_next_ones_are_opened_while_a_range_is_read_and_no_more_than_these() -> None:
    opening = Opening()
    with FeedsAhead(ranges(3 * AHEAD), opening, 4) as feeds:
        first = feeds.open(0)
        opening.await_numbers(*range(AHEAD + 1))
        assert (first, opening.numbers) == (opening.feeds[0], set(range(AHEAD + 1)))
        for number in range(1, 3 * AHEAD):
            feed = feeds.open(number)
            assert isinstance(feed, Feed)
            assert feed.number == number
    assert len(opening.feeds) == 3 * AHEAD  # each once
    assert [feed.closed for feed in opening.feeds] == [0] * len(opening.feeds)


@pytest.mark.parametrize("start", [EARLIEST, Position(6, 5), Position(7, -100)])
def test_a_range_that_may_be_long_is_opened_when_it_is_its_turn(start: Position) -> None:
    opening = Opening()
    with FeedsAhead([*ranges(1), *ranges(2, start)[1:]], opening, 4) as feeds:
        feeds.open(0)
    assert opening.numbers == {0}
    with FeedsAhead(ranges(1, start), opening, 4) as feeds:
        feeds.open(0)
    assert len(opening.feeds) == 2


def test_the_feed_of_a_range_of_which_nothing_is_read_is_closed_with_the_next_range() -> None:
    opening = Opening()
    with FeedsAhead(ranges(AHEAD), opening, 4) as feeds:
        feeds.open(0)
        opening.await_numbers(*range(AHEAD))
        feeds.open(3)  # as in a native topic that has nothing but markers in 1 and 2
        closed = {feed.number for feed in opening.feeds if feed.closed}
        assert closed == {1, 2}


def test_what_fails_ahead_is_an_error_of_its_own_range() -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise SegmentLogUnavailableError("the second one")

    opening = Opening(fail)
    with FeedsAhead(ranges(3), opening, 1) as feeds:
        feeds.open(0)
        opening.await_numbers(2)  # behind the one that failed
        with pytest.raises(SegmentLogUnavailableError, match="the second one"):
            feeds.open(1)
    closed = {feed.number: feed.closed for feed in opening.feeds}
    assert closed == {0: 0, 2: 1}


def test_who_leaves_early_closes_what_nobody_has_asked_for_and_opens_nothing_more() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        if number == 1:
            entered.set()
            assert leave.wait(5)

    opening = Opening(wait)
    feeds = FeedsAhead(ranges(AHEAD), opening, 1)
    feeds.open(0)
    assert entered.wait(5)
    closing = threading.Thread(target=feeds.close)
    closing.start()
    leave.set()
    closing.join(5)
    assert not closing.is_alive()
    closed = {feed.number: feed.closed for feed in opening.feeds}
    assert closed.pop(0) == 0  # its reader's to close
    assert closed[1] == 1  # it was being opened just then
    assert set(closed.values()) == {1}
