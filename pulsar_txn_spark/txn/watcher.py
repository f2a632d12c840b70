"""Waiting for something to read: following segments' events rather than asking again and again.

An event says "read the state", and no more. Nothing is concluded from its content, because the
streams are bounded and a slow watcher misses some. The state itself is in the gate, which is read
anew every time (INV-4). So a lost, doubled or late event costs one read, or a second, and never a
row.

=============================  =================================================================
what happens                   what wakes a waiting reader
=============================  =================================================================
a decision is materialized     the event that the segment's materialization emits in the same step
rows outside of transactions   the event of the step that raises the segment's high-position
the committer dies in between  the event that the decision itself emits on its TC, if the reader
                               has said who blocks it: it then materializes the decision itself;
                               a reader that has not read since the append: the recheck
the owner dies, undecided      nothing at first; the recheck finds the lease over
events are trimmed             the newest one, which is never trimmed
the connection is lost         the loss itself
rows by an external producer   a recheck that reads the log: a Spark source does so every 10 s
a split, a merge, a seal       the event of the step that changes the topology, on the topic's tag:
                               all of its segments are polled, and then the new ones
who splits dies in between     the recheck: whoever reads finishes what was planned
=============================  =================================================================
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.errors import StoreUnavailableError
from pulsar_txn_spark.store.protocol import EventFeed
from pulsar_txn_spark.store.records import TxnId

RECHECK_MS = 1_000
"""So often every segment is polled without an event: a lease that ends tells nobody."""


class SegmentWatcher(Closing):
    """Tells a waiting reader which segments to poll.

    One thread waits; :meth:`wake` may come from any other. Every segment is due once at first, so
    that what was there before is found::

        with SegmentWatcher(store.event_feed(), segments) as watcher:
            while running:
                for segment in watcher.wait(timeout_s=30):
                    ...  # MetadataTransactionBuffer.readable, then read
                    watcher.blocked_by(segment, readable.blocked_by)

    Parameters
    ----------
    feed : EventFeed
        Of the store, following nothing yet. It is closed with the watcher.
    segments : collection of str
        Segment ids; empty = say it later by :meth:`follow`.
    recheck_ms : int
        So often every segment is polled without an event.

    Raises
    ------
    StoreUnavailableError, StoreRolledBackError
    """

    def __init__(
        self, feed: EventFeed, segments: Collection[str] = (), *, recheck_ms: int = RECHECK_MS
    ) -> None:
        self._feed = feed
        self._recheck_s = recheck_ms / 1000
        self._segments: dict[str, None] = {}  # in the order given
        self._topics: frozenset[str] = frozenset()
        self._due: set[str] = set()
        self._topics_due = False  # also where there is no segment, as before the first topic
        self._polled_at = 0.0
        self.topics_were_due = False
        """Whether the topics are to be read again, by what :meth:`wait` found last."""
        self._blocking: dict[str, frozenset[TxnId]] = {}
        self._coordinators: set[int] = set()
        if segments:
            self.follow(segments)

    def follow(self, segments: Collection[str], topics: Collection[str] = ()) -> None:
        """Watch these segments and no others; those that are new are due at once.

        Parameters
        ----------
        segments : collection of str
            Segment ids.
        topics : collection of str
            Names of topics; when one of them is split or merged, every segment is due.

        Raises
        ------
        StoreUnavailableError, StoreRolledBackError
        """
        known, self._topics = self._topics, frozenset(topics)
        self._topics_due |= not self._topics <= known
        wanted = dict.fromkeys(segments)
        new = wanted.keys() - self._segments.keys()
        # First the place in the streams, then the read of the state: nothing is lost between.
        self._follow(wanted, self._coordinators)
        self._segments = wanted
        self._due = (self._due | new) & wanted.keys()
        self._blocking = {key: txns for key, txns in self._blocking.items() if key in wanted}

    def blocked_by(self, segment: str, txns: Iterable[TxnId]) -> None:
        """Say which transactions a segment's reader waits for; none = it is free.

        Their decisions wake it as well, also if whoever decided has died before materializing it.
        """
        blocking = frozenset(txns)
        if not blocking:
            self._blocking.pop(segment, None)
            return
        self._blocking[segment] = blocking
        coordinators = self._coordinators | {txn.tc for txn in blocking}
        if coordinators != self._coordinators:
            self._follow(self._segments, coordinators)
            self._coordinators = coordinators
            # It may have been decided before its coordinator's events were followed.
            self._due.add(segment)

    def _follow(self, segments: Iterable[str], coordinators: Iterable[int]) -> None:
        self._feed.follow(
            [
                *(f"seg:{segment}" for segment in segments),
                *(f"topic:{topic}" for topic in self._topics),
                *(f"tc{tc}" for tc in coordinators),
            ]
        )

    def wait(self, timeout_s: float) -> list[str]:
        """Wait until segments should be polled, and return them in the order given.

        Returns at once if some are due. Empty = the time is over, :meth:`wake` was called, or only
        the topics are due.

        Raises
        ------
        StoreUnavailableError
            If the store cannot be reached.
        StoreError
            If its user may not read the events.
        """
        deadline = time.monotonic() + timeout_s
        while not self._due and not self._topics_due:
            recheck_at = self._polled_at + self._recheck_s
            try:
                tags = self._feed.wait(max(0.0, min(deadline, recheck_at) - time.monotonic()))
            except StoreUnavailableError:
                if self._leave_idle_coordinators():
                    continue
                raise
            self._due |= self._concerned(tags)
            self._topics_due |= any(f"topic:{topic}" in tags for topic in self._topics)
            now = time.monotonic()
            if now >= recheck_at:
                self._topics_due = True
            if now >= deadline or not tags:
                break
        return self._take()

    def _leave_idle_coordinators(self) -> bool:
        """Follow coordinators that block nobody no longer; tell whether there were any.

        They are followed for as long as all servers answer, as each change of what is followed
        costs new connections. A server of a cluster that is down must fail nobody whom it does not
        concern.
        """
        blocking = {txn.tc for txns in self._blocking.values() for txn in txns}
        left = self._coordinators & blocking
        if left == self._coordinators:
            return False
        self._follow(self._segments, left)
        self._coordinators = left
        return True

    def poll(self) -> list[str]:
        """Return the segments that should be polled now, without waiting."""
        return self.wait(0.0)

    def _concerned(self, tags: Collection[str]) -> set[str]:
        """Return the segments that events on these tags are about."""
        concerned = {segment for segment in self._segments if f"seg:{segment}" in tags}
        for segment, txns in self._blocking.items():
            if any(f"tc{txn.tc}" in tags for txn in txns):
                concerned.add(segment)
        return concerned

    def _take(self) -> list[str]:
        everything = self._topics_due
        due = [segment for segment in self._segments if everything or segment in self._due]
        if everything or (due and len(due) == len(self._segments)):
            self._polled_at = time.monotonic()
        self._due.clear()
        self.topics_were_due, self._topics_due = everything, False
        return due

    def wake(self) -> None:
        """Let a waiting thread return now; from any thread."""
        self._feed.wake()

    def _close(self) -> None:
        """Let go of the connections."""
        self._feed.close()
