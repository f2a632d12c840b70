"""Keeps readers of short ranges open for the next micro-batch.

A micro-batch of a wide topic reads a few entries of each of many segments. It takes a broker
several milliseconds of processor time to open a reader, and much less to send an entry to an open
one. So a reader that has read its range waits, without permits: nothing comes until it is read
again. The next range of the segment is often read by another process of Spark. Then a reader that
waits here is some entries behind. It is sent them, and skips them.

A broker that restarts, or gives a topic away, says so, or its connection breaks. Such a reader is
not used again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from pulsar_txn_spark.position import Position

_MOST = 256
"""Readers of a process and configuration that wait; beyond that the oldest are closed."""

_LONGEST_S = 60.0
"""A segment of which nothing comes for so long costs its broker no reader."""


class ReusableFeed(Protocol):
    """A reader that may wait for the next range."""

    topic: str

    def can_wait(self) -> bool:
        """Tell whether it can be used again, and is sent nothing until then."""
        ...

    def can_go_on_at(self, start: Position) -> bool:
        """Tell whether it can go on with what comes after `start`."""
        ...

    def leave(self) -> None:
        """Close it."""
        ...


Feed = TypeVar("Feed", bound=ReusableFeed)


class IdleFeeds(Generic[Feed]):
    """The readers of a client that wait, at most one of each topic.

    Parameters
    ----------
    clock : callable
        Returns a time in seconds that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._feeds: OrderedDict[str, tuple[Feed, float]] = OrderedDict()  # oldest first

    def take(self, topic: str, start: Position) -> Feed | None:
        """Return a reader that can go on with what comes after `start`; it waits no longer.

        One that waits elsewhere in the topic is closed.
        """
        with self._lock:
            feed, _ = self._feeds.pop(topic, (None, 0.0))
        if feed is None:
            return None
        if feed.can_wait() and feed.can_go_on_at(start):
            return feed
        feed.leave()
        return None

    def put(self, feed: Feed) -> None:
        """Let a reader wait, or close it if it cannot be used again."""
        if not feed.can_wait():
            feed.leave()
            return
        now = self._clock()
        with self._lock:
            replaced, _ = self._feeds.pop(feed.topic, (None, 0.0))
            closing = [] if replaced is None else [replaced]
            self._feeds[feed.topic] = feed, now
            while len(self._feeds) > _MOST or now - self._oldest() > _LONGEST_S:
                closing.append(self._feeds.popitem(last=False)[1][0])
        for unused in closing:
            unused.leave()

    def _oldest(self) -> float:
        return next(iter(self._feeds.values()))[1]
