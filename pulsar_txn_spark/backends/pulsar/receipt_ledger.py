"""The entries that a Pulsar writer has in flight, and the receipts that they wait for.

Entries are numbered in the order in which they are sent, and a receipt has to be that of the oldest
one without a receipt. It counts only if it proves that exactly these rows are in the log, behind
everything that was acknowledged before. The first failure is final: no later receipt counts, and
every call of the writer raises the same error.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pulsar_txn_spark.backends.pulsar.errors import translate, unverified
from pulsar_txn_spark.backends.receipts import ReceiptSums
from pulsar_txn_spark.errors import PulsarTxnError, SegmentLogError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import Receipt, SegmentRef


class InFlight:
    """Bytes without a receipt, of all writers that share one bound; guarded by ``changed``."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.bytes = 0


@dataclass(frozen=True, slots=True)
class SentEntry:
    """An entry without a receipt: what its receipt has to prove.

    Parameters
    ----------
    number : int
        Its place in the order of sending, which Pulsar calls the sequence id.
    rows : int
        How many messages it holds.
    payload_bytes : int
        Values and keys: what the user wrote.
    cost_bytes : int
        What it counts against the bound on bytes in flight; at least 1.
    frame : sequence of bytes
        What is sent again after a reconnect, where the writer does that by itself.
    """

    number: int
    rows: int
    payload_bytes: int
    cost_bytes: int
    frame: Sequence[bytes] = ()


class ReceiptLedger:
    """Entries in flight of one writer, and the sums of those that were acknowledged.

    The writer's thread registers entries and waits; another thread settles them or fails.

    Parameters
    ----------
    segment : SegmentRef
        What is written to, for error messages.
    in_flight : InFlight
        The bytes of this writer and of those that share the bound.
    limit_bytes : int
        The bound. One entry of a writer is always admitted, so that no writer starves.
    timeout_s : float
        Bound on waiting without a receipt of this writer.
    """

    def __init__(
        self, segment: SegmentRef, in_flight: InFlight, limit_bytes: int, timeout_s: float
    ) -> None:
        self._segment = segment
        self._in_flight = in_flight
        self._limit_bytes = limit_bytes
        self._timeout_s = timeout_s
        self._unacknowledged: collections.deque[SentEntry] = collections.deque()
        self._bytes = 0
        self._sums = ReceiptSums()
        self._explain: Callable[[], PulsarTxnError] | None = None
        self._error: PulsarTxnError | None = None
        self._closed = False
        self.acknowledged_number = -1
        """Number of the last entry with a receipt; set it before the first entry is sent."""
        self.next_number = 0
        """Number of the next entry."""
        self.closed_whole = False
        """Whether it was closed without a failure, and with a receipt of every entry."""

    def start_after(self, number: int) -> None:
        """Begin the numbers after the last one that the broker has stored."""
        self.acknowledged_number, self.next_number = number, number + 1

    # --- the writer's thread ------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first failure, or that the writer is closed."""
        if self._error is None and self._explain is not None:
            self._error = self._explain()
        if self._error is not None:
            raise self._error
        if self._closed:
            raise SegmentLogError(f"the writer of segment {self._segment.id} is closed")

    @property
    def failed(self) -> bool:
        """Return whether something went wrong; see :meth:`check`."""
        return self._explain is not None

    def has_room(self, cost_bytes: int) -> bool:
        """Return whether an entry of that cost may be sent now."""
        return not self._bytes or self._in_flight.bytes + cost_bytes <= self._limit_bytes

    def is_settled(self) -> bool:
        """Return whether every entry has its receipt."""
        return not self._unacknowledged

    def register(self, entry: SentEntry) -> None:
        """Note an entry just before it is sent.

        Raises
        ------
        PulsarTxnError
            If the writer was closed meanwhile.
        """
        with self._in_flight.changed:
            if self._closed:  # its producer may serve another writer by now
                self.check()
            assert entry.number == self.next_number, (entry.number, self.next_number)
            self.next_number += 1
            self._unacknowledged.append(entry)
            self._count(entry.cost_bytes)

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done`, which is called under the lock; receipts of others are no progress.

        Raises
        ------
        PulsarTxnError
            The first failure; that nothing was acknowledged in time counts as one.
        """
        changed = self._in_flight.changed
        with changed:
            seen, deadline = self.acknowledged_number, time.monotonic() + self._timeout_s
            while self._explain is None and not done():
                changed.wait(max(0.0, deadline - time.monotonic()))
                if seen != self.acknowledged_number:
                    seen, deadline = self.acknowledged_number, time.monotonic() + self._timeout_s
                elif time.monotonic() >= deadline and not done():
                    self._explain = partial(translate, "Timeout", "append to", self._segment)
        self.check()

    def drain(self) -> Receipt:
        """Return the sum of receipts since the last call."""
        with self._in_flight.changed:
            return self._sums.drain()

    @property
    def total(self) -> Receipt:
        """Return the sum since the writer was opened: of a prefix of its entries."""
        with self._in_flight.changed:
            return self._sums.total

    def unacknowledged(self) -> list[SentEntry]:
        """Return the entries without a receipt, in order."""
        with self._in_flight.changed:
            return list(self._unacknowledged)

    def close(self) -> bool:
        """Forget what is in flight; returns False if the ledger was closed before."""
        with self._in_flight.changed:
            if self._closed:
                return False
            self._closed = True
            self.closed_whole = self._explain is None and not self._unacknowledged
            self._unacknowledged.clear()
            self._count(-self._bytes)
            self._in_flight.changed.notify_all()
            return True

    # --- any thread ---------------------------------------------------------------------------

    def settle(self, number: int, position: Position, rows: int | None = None) -> None:
        """Check a receipt: it has to prove that the oldest entry is in the log.

        Parameters
        ----------
        number : int
            Of the entry that it acknowledges.
        position : Position
            Where that stands; a negative ledger or entry says that it was not stored.
        rows : int, optional
            How many messages the receipt says the entry has, where it says so.
        """
        with self._in_flight.changed:
            if self._closed or self._explain is not None:
                return
            fault = self._fault(number, position, rows)
            if fault is not None:
                self.fail(partial(unverified, self._segment, fault))
                return
            entry = self._unacknowledged.popleft()
            self._count(-entry.cost_bytes)
            self.acknowledged_number = number
            self._sums.add(position, entry.rows, entry.payload_bytes)
            self._in_flight.changed.notify_all()

    def fail(self, explain: Callable[[], PulsarTxnError]) -> None:
        """Fail the writer for good, unless it has failed or was closed before.

        Parameters
        ----------
        explain : Callable
            Returns the error. It is called once, on the writer's thread, and may ask a server.
        """
        with self._in_flight.changed:
            if not self._closed:
                self._explain = self._explain or explain
            self._in_flight.changed.notify_all()

    def _fault(self, number: int, position: Position, rows: int | None) -> str | None:
        entry = self._unacknowledged[0] if self._unacknowledged else None
        if entry is None or number != entry.number:
            expected = None if entry is None else entry.number
            return f"expected the receipt of entry {expected}, found {number}"
        if position.ledger < 0 or position.entry < 0:
            return "'deduplicated' is no acknowledgement of these rows"
        if rows is not None and rows != entry.rows:
            return f"expected a batch of {entry.rows} rows, found {rows}"
        if position <= self._sums.highest:
            return f"expected a position after {self._sums.highest}, found {position}"
        return None

    def _count(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        self._in_flight.bytes += more_bytes
