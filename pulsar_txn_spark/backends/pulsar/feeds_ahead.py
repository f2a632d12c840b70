"""Opens the readers of short ranges before their turn.

A micro-batch of a wide topic reads a few rows of each of many segments. Opening a reader is a round
trip to the broker, and its first entry is another one. So the next readers are opened, by some
threads, while the rows of a range are on their way. Each of them fetches one entry until its range
is read. That bounds the memory: what is fetched ahead is at most `AHEAD` entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from pulsar_txn_spark.backends.pulsar.transport import Feed
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.segments.log import LogRange

AHEAD = 8
"""So many ranges behind the one that is read."""

_SHORT_ENTRIES = 16
"""A longer range is worth more than a round trip."""


class FeedsAhead(Closing):
    """The feeds of some ranges, which are read one after the other, by one thread.

    Parameters
    ----------
    ranges : sequence of LogRange
    open_feed : callable
        ``open_feed(range)`` opens the feed of a range; several threads call it.
    at_once : int
        How many threads.
    """

    def __init__(
        self, ranges: Sequence[LogRange], open_feed: Callable[[LogRange], Feed], at_once: int
    ) -> None:
        self._ranges = ranges
        self._open_feed = open_feed
        self._due = deque(n for n, wanted in enumerate(ranges) if short_entries(wanted))
        self._opened: dict[int, Future[Feed]] = {}
        self._pool = ThreadPoolExecutor(at_once, "pulsar-txn-feed")  # starts them when needed

    def open(self, number: int) -> Feed:
        """Return the feed of the range of that number, and begin to open those behind it.

        Ranges before it are over: where nothing of one was to be read, its feed is closed.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
            Also if that happened before it was this range's turn.
        """
        for passed in [n for n in self._opened if n < number]:
            _let_go(self._opened.pop(passed))
        while self._due and self._due[0] <= number + AHEAD:
            upcoming = self._due.popleft()
            if upcoming >= number:
                wanted = self._ranges[upcoming]
                self._opened[upcoming] = self._pool.submit(self._open_feed, wanted)
        opened = self._opened.pop(number, None)
        return self._open_feed(self._ranges[number]) if opened is None else opened.result()

    def _close(self) -> None:
        """Close those that nobody has asked for."""
        self._pool.shutdown(cancel_futures=True)
        for opened in self._opened.values():
            _let_go(opened)
        self._opened.clear()


def _let_go(opened: Future[Feed]) -> None:
    """Close a feed that nobody has asked for, however far its opening is."""
    if not opened.cancel():
        with suppress(PulsarTxnError):  # never opened
            opened.result().close()


def short_entries(wanted: LogRange) -> int:
    """Return how many entries a short range has, 0 for a range that is not short."""
    start, end = wanted.start, wanted.end
    entries = end.entry - start.entry if start.ledger == end.ledger else 0
    return entries if 0 < entries <= _SHORT_ENTRIES else 0
