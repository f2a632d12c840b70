"""Says of which segments a poll takes a snapshot.

A snapshot of a log costs a call of Pulsar's admin API for each segment. Most polls need none. A
segment's gate tells its high-position: what this package has reported last of acknowledged rows
there. The gate is read in every poll (INV-4). A reader may go as far as the high-position, or as
the last snapshot, unless a pin lies before:

=================================  =============================================================
what may be read                   what tells of it
=================================  =============================================================
rows of a committed transaction    the high-position, raised when the decision is materialized
rows of one whose committer died   its pin: whoever polls materializes the decision
before that
rows outside of transactions, of   the high-position, raised when they are acknowledged
this package
the rest of a sealed segment       the position of its seal, in the topology
rows of a producer that reports    a snapshot: every 10 s, and in every poll for a minute after
nothing                            such rows were found
entries of aborted transactions    the same: there is nothing to read, and the offset moves on
behind all others
=================================  =============================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange

LONGEST_S = 10.0
"""So long polls do without a snapshot: a producer that is not of this package reports nothing."""

UNREPORTED_S = 60.0
"""For so long after rows that nobody had reported, every poll takes a snapshot of their segment."""


@dataclass(slots=True)
class _Known:
    """What is known of a segment's log."""

    taken_at: float
    last_confirmed: Position
    counted_to: Position = EARLIEST  # unreported rows up to here were found already
    unreported_at: float | None = None  # when such rows were found last


class SnapshotSchedule:
    """When a source took a snapshot of a segment last; used by one thread.

    Parameters
    ----------
    clock : callable
        Returns a time in seconds that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, _Known] = {}  # by segment id

    def due(self, segments: Iterable[str]) -> set[str]:
        """Return the segments of which the next poll takes a snapshot; others are forgotten."""
        wanted = set(segments)
        self._known = {id_: known for id_, known in self._known.items() if id_ in wanted}
        now = self._clock()
        return {id_ for id_ in wanted if self._is_due(id_, now)}

    def _is_due(self, segment: str, now: float) -> bool:
        known = self._known.get(segment)
        if known is None or now - known.taken_at >= LONGEST_S:
            return True
        return known.unreported_at is not None and now - known.unreported_at < UNREPORTED_S

    def last_confirmed(self, segment: str) -> Position:
        """Return what the last snapshot of a segment that is not due has said."""
        return self._known[segment].last_confirmed

    def note(self, segment: str, readable: ReadableRange, last_confirmed: Position | None) -> None:
        """Note what a poll has found.

        Parameters
        ----------
        segment : str
            Its id.
        readable : ReadableRange
            What the gate showed.
        last_confirmed : Position, optional
            What the snapshot has said that was taken before; None if none was.
        """
        now = self._clock()
        known = self._known.setdefault(segment, _Known(now, EARLIEST))
        if last_confirmed is not None:
            known.taken_at, known.last_confirmed = now, last_confirmed
        # With a pin, what lies behind all reports may be rows of an open transaction.
        reported = max(readable.high, known.counted_to)
        if known.last_confirmed > reported and not readable.pinned:
            known.counted_to, known.unreported_at = known.last_confirmed, now
