"""Finds the first entry of a log that was published at or after a time.

Publish times need not rise from entry to entry. Several producers write with their own clocks, and
a message that is sent again keeps its time. A binary search alone might then end behind an entry
that it looks for. So what lies up to :data:`CLOCK_SKEW_MS` before is looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable

CLOCK_SKEW_MS = 10_000
"""By so much the publish times of a log may be out of order without an entry being missed."""

SCANNED_ENTRIES = 1_000
"""Most entries that are looked at one by one: each may cost a request of 2 ms."""


def first_published_at(
    entries: int, published_ms: Callable[[int], int | None], time_ms: int
) -> int:
    """Return the number of the first entry at or after a time; `entries` if there is none.

    Parameters
    ----------
    entries : int
        How many there are, numbered from 0.
    published_ms : callable
        Returns the publish time of an entry in milliseconds since 1970; None if nobody knows it.
    time_ms : int
        Milliseconds since 1970.
    """

    def search(end: int, before_ms: int) -> int:
        low, high = 0, end
        while low < high:
            middle = (low + high) // 2
            published = published_ms(middle)
            if published is None or published < before_ms:
                low = middle + 1
            else:
                high = middle
        return low

    boundary = search(entries, time_ms)
    begin = max(search(boundary, time_ms - CLOCK_SKEW_MS), boundary - SCANNED_ENTRIES)
    for number in range(begin, boundary):
        published = published_ms(number)
        if published is not None and published >= time_ms:
            return number
    return boundary
