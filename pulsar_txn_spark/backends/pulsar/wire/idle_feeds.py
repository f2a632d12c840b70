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

from typing import Protocol, TypeVar

from pulsar_txn_spark.backends.pulsar.wire.idle_pool import IdlePool, Reusable
from pulsar_txn_spark.position import Position


class ReusableFeed(Reusable, Protocol):
    """A reader that may wait for the next range; while it waits, nothing is sent to it."""

    def can_go_on_at(self, start: Position) -> bool:
        """Tell whether it can go on with what comes after `start`."""
        ...


Feed = TypeVar("Feed", bound=ReusableFeed)


class IdleFeeds(IdlePool[Feed]):
    """The readers of a client that wait, at most one of each topic."""

    most_of_topic = 1

    def take(self, topic: str, start: Position) -> Feed | None:
        """Return a reader that can go on with what comes after `start`; it waits no longer.

        One that waits elsewhere in the topic is closed.
        """
        feed = self._take(topic)
        if feed is None:
            return None
        if feed.can_wait() and feed.can_go_on_at(start):
            return feed
        feed.leave()
        return None
