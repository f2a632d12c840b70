"""Keeps snapshots of segments in whose logs nothing has happened since.

A snapshot of a log costs a call of Pulsar's admin API for each segment. Most of them equal the one
before. Every transaction that appends to a segment first changes its tag in the metadata store, and
so does whoever reports rows outside of transactions. The gate is read in every poll (INV-4). Its
sequence number tells whether an earlier snapshot is still valid:

=================================  =============================================================
what changes how far one may read  what tells of it
=================================  =============================================================
a transaction appends, commits or  the sequence number of the segment's tag
aborts
a transaction with a pin appends,  nothing: of a segment with a pin every poll takes a snapshot
or is decided by somebody who dies
anything between the gate before   the sequence numbers of both gates: unless they are equal, the
a snapshot and the gate behind it  next poll takes another snapshot
a producer that reports nothing    nothing: the snapshot is kept for 10 s at most, and not at all
appends                            for a minute after such rows were found
data is trimmed                    the snapshot of the poll that finds something to read
=================================  =============================================================

Only a snapshot that found nothing behind the start is kept. So rows are never read by a kept one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef, SegmentSnapshot
from pulsar_txn_spark.spark.source.offsets import SegmentKey
from pulsar_txn_spark.store.records import Seen
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange

KEPT_S = 10.0
"""A snapshot is kept so long: a producer that is not of this package reports nothing."""

UNREPORTED_S = 60.0
"""For so long after rows that nobody had reported, every poll takes a snapshot of their segment."""


@dataclass(frozen=True, slots=True)
class _Kept:
    snapshot: SegmentSnapshot
    gate: Seen  # the state of the segment's tag that the gate behind the snapshot showed
    settled: bool  # the gate before the snapshot showed the same
    pinned: bool
    taken_at: float


class SnapshotCache:
    """Snapshots of earlier polls of a source; used by one thread.

    Parameters
    ----------
    clock : callable
        Returns a time in seconds that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}  # by segment id
        self._had_events: set[str] = set()
        self._unreported: dict[str, float] = {}  # segment id -> when such rows were found last

    def note_events(self, segments: Iterable[str]) -> None:
        """Note that something has happened to segments: their snapshots are not valid any more."""
        self._had_events.update(segments)

    def of(
        self, segments: Mapping[SegmentKey, SegmentRef], starts: Mapping[SegmentKey, Position]
    ) -> dict[SegmentKey, SegmentSnapshot]:
        """Return the snapshots that are valid if :meth:`is_valid` says so of the gates read next.

        What is known of other segments is forgotten.
        """
        wanted = {ref.id for ref in segments.values()}
        self._kept = {id_: kept for id_, kept in self._kept.items() if id_ in wanted}
        self._unreported = {id_: at for id_, at in self._unreported.items() if id_ in wanted}
        self._had_events &= wanted
        return {
            key: self._kept[ref.id].snapshot
            for key, ref in segments.items()
            if self._may_be_valid(ref.id, starts.get(key, EARLIEST))
        }

    def _may_be_valid(self, segment: str, start: Position) -> bool:
        kept = self._kept.get(segment)
        if kept is None or segment in self._had_events or kept.pinned or not kept.settled:
            return False
        now = self._clock()
        if now - self._unreported.get(segment, -UNREPORTED_S) < UNREPORTED_S:
            return False
        return kept.snapshot.last_confirmed <= start and now - kept.taken_at < KEPT_S

    def is_valid(self, segment: str, readable: ReadableRange) -> bool:
        """Tell whether a kept snapshot is valid by the gate that was read behind it."""
        return not readable.pinned and readable.gate == self._kept[segment].gate

    def keep(self, segment: str, snapshot: SegmentSnapshot, readable: ReadableRange) -> None:
        """Keep a snapshot, and what the gate behind it showed."""
        before, now = self._kept.get(segment), self._clock()
        settled = before is not None and before.gate == readable.gate
        if before is not None and settled and _is_unreported(before, snapshot):
            self._unreported[segment] = now
        self._had_events.discard(segment)
        self._kept[segment] = _Kept(snapshot, readable.gate, settled, readable.pinned, now)


def _is_unreported(before: _Kept, snapshot: SegmentSnapshot) -> bool:
    """Tell whether rows came that nobody reported, where the segment's tag has not changed."""
    unchanged = before.settled and not before.pinned
    return unchanged and before.snapshot.last_confirmed < snapshot.last_confirmed
