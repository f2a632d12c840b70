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
next question is answered better, and nothing is lost until then.
"""

from __future__ import annotations

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
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef

_FAILURES = 6  # of a search: each waits, and what is not found now is found the next time


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
        With the result ``TopicNotFound`` if there is no such topic, ``NotAllowedError`` if the
        brokers have switched scalable topics off, and ``UnsupportedVersionError`` if they are older
        than Pulsar 5.
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
