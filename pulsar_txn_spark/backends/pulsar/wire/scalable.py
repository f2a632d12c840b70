"""Pulsar 5's scalable topics (PIP-460) over the wire: their segments, and how far each may be read.

A scalable topic is a directed acyclic graph of segments. Each is a topic ``segment://…``, which is
written and read like any other; the admin API says nothing of it. So what the rest of this package
asks that API for is found out by subscriptions here:

- A subscription at the very end says where the log ends, and one at the very beginning which
  ledger is the first one. Neither waits for an entry.
- An entry that is delivered proves that everything up to it is decided. Nothing else does:
  GET_LAST_MESSAGE_ID of 5.0.0-M1 goes on saying what it said first (docs/pulsar5.md).
- Of a sealed segment the broker says when all that readers get to see was acknowledged.
- What was aborted the broker acknowledges for a reader that comes to it. Behind the first row of an
  open transaction it acknowledges nothing.

That no entry came within some time proves nothing: a broker may be slow. It counts only where the
next question is answered better, and nothing is lost until then. A batch read has no next question.
So it lets the broker show once more what it has shown before (:meth:`SegmentProbe.settled_to`):

=========================================  ======================================================
the broker, asked for what it has shown    what lies behind that
=========================================  ======================================================
shows it, and more                         more can be read: the search goes on from there, with
                                           the patience that this broker needs
has acknowledged the rest for the reader   aborted rows: that is the end
says that the sealed segment has ended     that is the end
shows it, and then nothing, in 3 times     rows of an open transaction: that is the end
the time that it took to show it, or 1 s
shows nothing in 30 s                      nobody knows: an error
shows nothing in 30 s where nothing was    rows of an open transaction, most likely: that is the
shown before, and answers requests         end, and a warning says so
=========================================  ======================================================
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandScalableTopicClose,
    CommandScalableTopicLookup,
    ScalableTopicDAG,
)
from pulsar_txn_spark.backends.pulsar.wire.client import Backoff, WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.reader import (
    BEHIND_ALL,
    WireEntry,
    WireEntryFeed,
    WireReaderSettings,
)
from pulsar_txn_spark.errors import SegmentLogUnavailableError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef

_LOG = logging.getLogger(__name__)
_FAILURES = 6  # of a search: each waits, and what is not found now is found the next time
_SEARCHES = 32  # each gets on, and by far more than an entry: see SegmentProbe.readable_to
_CALM = 4  # times the patience nothing has to come, and
_SLOWER = 3  # times as long as the broker took to show anything


def look_up(client: WireClient, topic: str) -> ScalableTopicDAG:
    """Return the segments of a scalable topic, as any broker knows them.

    Parameters
    ----------
    client : WireClient
    topic : str
        As Pulsar names it, ``topic://tenant/namespace/name``.

    Raises
    ------
    RefusedError
        With the result ``TopicNotFound`` if there is no such topic. It is ``NotAllowedError`` if
        the brokers have switched scalable topics off, and ``UnsupportedVersionError`` if they are
        older than Pulsar 5.
    """
    backoff = Backoff(client.settings.operation_s)

    def attempt() -> ScalableTopicDAG:
        connection = client.any_connection()
        if not connection.knows_scalable_topics:
            raise RefusedError(
                "UnsupportedVersionError", f"{connection.address} has no scalable topics"
            )
        session = 0

        def make(number: int) -> BaseCommand:
            nonlocal session
            session = number
            lookup = CommandScalableTopicLookup(session_id=number, topic=topic)
            return BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP, scalableTopicLookup=lookup)

        answer = connection.request(make, backoff.left_s).scalableTopicUpdate
        if answer.HasField("error"):
            raise RefusedError.of(answer.error, answer.message)
        closing = CommandScalableTopicClose(session_id=session)
        connection.tell(
            lambda _: BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE, scalableTopicClose=closing)
        )
        return answer.dag

    return backoff.retry(attempt)


@dataclass(frozen=True, slots=True)
class SegmentProbe:
    """Finds out about one segment what no request of the protocol tells.

    Parameters
    ----------
    segment : SegmentRef
    client : WireClient
    settings : WireReaderSettings
        Of readers; `patience_s` bounds each wait.
    patience_s : float
        How long an entry may take that can be read. Longer than that it counts as held back, until
        it is asked for again.
    """

    segment: SegmentRef
    client: WireClient
    settings: WireReaderSettings
    patience_s: float

    def appended_to(self) -> Position:
        """Return the last position of the log, whatever is decided; EARLIEST if it is empty.

        Raises
        ------
        SegmentLogError, RefusedError
        """
        last = self._begins_behind(BEHIND_ALL)
        return last if last.entry >= 0 else EARLIEST

    def first_ledger(self) -> Position:
        """Return the position before the first ledger that is there, which may be empty.

        Raises
        ------
        SegmentLogError, RefusedError
        """
        return Position(self._begins_behind(EARLIEST).ledger, -1)

    def hidden_to(self, start: Position) -> Position:
        """Return up to where readers get nothing to see behind a position, now or ever.

        It is `start` itself if an entry follows, or nothing is known. Aborted rows are hidden.

        Raises
        ------
        SegmentLogError, RefusedError
        """
        feed = self._feed(start)
        try:
            if feed.next_entry(start) is not None or feed.ends_at(start, 0.0):
                return start
            return max(start, feed.acknowledged_to())
        finally:
            feed.close()

    def first_after(self, start: Position) -> WireEntry | None:
        """Return the first entry behind a position that readers get to see, None if none comes.

        Raises
        ------
        SegmentLogError
        """
        feed = self._feed(start)
        try:
            return feed.next_entry(start)
        finally:
            feed.close()

    def ends_at(self, position: Position) -> bool:
        """Tell whether a sealed segment has nothing to see behind a position, now or ever.

        Raises
        ------
        SegmentLogError
        """
        feed = self._feed(position)
        try:
            return feed.next_entry(position) is None and feed.ends_at(position, self.patience_s)
        finally:
            feed.close()

    def readable_to(self, known: Position, appended: Position) -> Position:
        """Return the last position that is proven to be readable.

        Parameters
        ----------
        known : Position
            One that was proven before, or EARLIEST.
        appended : Position
            The last one of the log.

        Raises
        ------
        SegmentLogError
        """
        if appended <= known:
            return known
        entry = self.first_after(Position(appended.ledger, appended.entry - 1))
        if entry is not None:
            return entry.position
        # Held back by an open transaction, or aborted: go as far as entries come.
        step, failures = 0, 1
        while failures <= _FAILURES:
            after = known if step == 0 else Position(known.ledger, known.entry + step)
            entry = self.first_after(after) if after < appended else None
            if entry is not None:
                known, step = entry.position, max(1, 2 * step)
            elif step == 0:
                break
            else:
                step //= 4
                failures += after < appended
        return known

    def settled_to(self, known: Position, appended: Position, late_s: float) -> Position:
        """Return how far it can be read, as :meth:`readable_to`, however slow the broker is.

        Parameters
        ----------
        known, appended : Position
        late_s : float
            So long the broker may take to show what it has shown before.

        Raises
        ------
        SegmentLogUnavailableError
            If it does not show that again.
        SegmentLogError, RefusedError
        """
        probe = self
        for _ in range(_SEARCHES):
            known = probe.readable_to(known, appended)
            if known >= appended:
                return known
            calm_s = _CALM * self.patience_s
            entry, took_s = probe._shown_behind(known, appended, calm_s, late_s)
            if entry is None:
                return known
            known = entry.position
            probe = replace(probe, patience_s=max(probe.patience_s, _SLOWER * took_s))
        raise shows_nothing(self.segment, known, appended)

    def _shown_behind(
        self, known: Position, appended: Position, calm_s: float, late_s: float
    ) -> tuple[WireEntry | None, float]:
        """Return the first entry behind a position, None if the broker does not show what is there.

        And how many seconds it took the broker to show anything.
        """
        backoff = Backoff(late_s)
        start = known if known == EARLIEST else Position(known.ledger, known.entry - 1)

        def attempt() -> tuple[WireEntry | None, float]:
            feed = self._feed(start)
            try:
                return self._shown_by(feed, start, known, appended, calm_s, backoff)
            except RefusedError:
                self.client.forget(self.segment.log_name)
                raise
            finally:
                feed.close()

        return backoff.retry(attempt)

    def _shown_by(
        self,
        feed: WireEntryFeed,
        previous: Position,
        known: Position,
        appended: Position,
        calm_s: float,
        backoff: Backoff,
    ) -> tuple[WireEntry | None, float]:
        begun = time.monotonic()
        took_s = 0.0  # not known yet
        while True:
            entry = feed.next_entry(previous)
            waited_s = time.monotonic() - begun
            if entry is not None:
                took_s = took_s or waited_s
                if entry.position > known:
                    return entry, took_s
                previous = entry.position
                continue
            if feed.ends_at(previous, 0.0):
                return None, took_s
            acknowledged = feed.acknowledged_to()
            if acknowledged >= appended:
                return None, took_s
            if known == EARLIEST and acknowledged.entry >= 0:
                took_s = took_s or waited_s  # it has come past aborted rows
            if took_s and waited_s >= took_s + max(calm_s, _SLOWER * took_s):
                return None, took_s
            if not took_s and not backoff.left_s:
                if known != EARLIEST:
                    raise shows_nothing(self.segment, previous, known)
                _LOG.warning(
                    "%s has entries up to %s, and the broker shows none of them. The read ends "
                    "before them, as if the first one belonged to an open transaction",
                    self.segment.log_name,
                    appended,
                )
                return None, took_s

    def _begins_behind(self, start: Position) -> Position:
        """Return the position behind which a subscription begins that is opened at another one."""
        settings = replace(self.settings, max_permits=0)
        backoff = Backoff(self.client.settings.operation_s)

        def attempt() -> Position:
            feed = WireEntryFeed(self.segment, start, self.client, settings)
            try:
                return feed.acknowledged_to()
            except RefusedError:
                # The segment may have moved to another broker since it was subscribed to.
                self.client.forget(self.segment.log_name)
                raise
            finally:
                feed.close()

        return backoff.retry(attempt)

    def _feed(self, start: Position) -> WireEntryFeed:
        settings = replace(self.settings, poll_s=self.patience_s, asks_last=False)
        return WireEntryFeed(self.segment, start, self.client, settings)


def shows_nothing(
    segment: SegmentRef, previous: Position, end: Position
) -> SegmentLogUnavailableError:
    """Return the error of a broker that shows nothing of what it has behind `previous`."""
    return SegmentLogUnavailableError(
        f"rows up to {end} of {segment.log_name} are to be read, but the broker shows "
        f"nothing behind {previous}. It has not loaded the segment, or has lost what "
        "it showed before. Nothing was skipped: look into the broker's log, and start again"
    )
