"""Keeps what the log said of segments in which nothing has happened since.

A look at a log costs a call of Pulsar's admin API for each segment. Most of them find what was
found before. Every transaction that appends to a segment first changes its tag in the metadata
store, and so does whoever reports rows outside of transactions. So the gate, which is read in every
poll (INV-4), tells by its sequence number whether an earlier look still holds:

=================================  =============================================================
what changes how far one may read  what tells of it
=================================  =============================================================
a transaction appends, commits or  the sequence number of the segment's tag
aborts
a transaction with a pin appends,  nothing: a segment with a pin is always looked at
or is decided by somebody who dies
anything between the gate before   the sequence numbers of both gates: unless they are equal, the
a look and the gate behind it      segment is looked at again in the next poll
a producer that reports nothing    nothing: the look is kept for 10 s at most, and not at all for
appends                            a minute after such rows were found
data is trimmed                    the look of the poll that finds something to read
=================================  =============================================================

Only a look that found nothing behind the start is kept. So rows are never read by a kept look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentLook, SegmentRef
from pulsar_txn_spark.spark.source.offsets import SegmentKey
from pulsar_txn_spark.store.records import Seen
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange

KEPT_S = 10.0
"""A look is kept so long: a producer that is not of this package reports nothing."""

UNREPORTED_S = 60.0
"""For so long after rows that nobody had reported, every poll looks at their segment."""


@dataclass(frozen=True, slots=True)
class _Kept:
    look: SegmentLook
    gate: Seen  # the state of the segment's tag that the gate behind the look showed
    settled: bool  # the gate before the look showed the same
    pinned: bool
    looked_at: float


class KeptLooks:
    """What earlier polls of a source have found out; used by one thread.

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
        """Note that something has happened to segments: they are looked at first."""
        self._had_events.update(segments)

    def of(
        self, segments: Mapping[SegmentKey, SegmentRef], starts: Mapping[SegmentKey, Position]
    ) -> dict[SegmentKey, SegmentLook]:
        """Return the looks that hold if :meth:`holds` says so of the gates that are read next.

        What is known of other segments is forgotten.
        """
        wanted = {ref.id for ref in segments.values()}
        self._kept = {id_: kept for id_, kept in self._kept.items() if id_ in wanted}
        self._unreported = {id_: at for id_, at in self._unreported.items() if id_ in wanted}
        self._had_events &= wanted
        return {
            key: self._kept[ref.id].look
            for key, ref in segments.items()
            if self._may_hold(ref.id, starts.get(key, EARLIEST))
        }

    def _may_hold(self, segment: str, start: Position) -> bool:
        kept = self._kept.get(segment)
        if kept is None or segment in self._had_events or kept.pinned or not kept.settled:
            return False
        now = self._clock()
        if now - self._unreported.get(segment, -UNREPORTED_S) < UNREPORTED_S:
            return False
        return kept.look.last_confirmed <= start and now - kept.looked_at < KEPT_S

    def holds(self, segment: str, readable: ReadableRange) -> bool:
        """Tell whether a kept look holds by the gate that was read behind it."""
        return not readable.pinned and readable.gate == self._kept[segment].gate

    def looked(self, segment: str, look: SegmentLook, readable: ReadableRange) -> None:
        """Keep a look, and what the gate behind it showed."""
        before, now = self._kept.get(segment), self._clock()
        settled = before is not None and before.gate == readable.gate
        if before is not None and settled and _is_unreported(before, look):
            self._unreported[segment] = now
        self._had_events.discard(segment)
        self._kept[segment] = _Kept(look, readable.gate, settled, readable.pinned, now)


def _is_unreported(before: _Kept, look: SegmentLook) -> bool:
    """Tell whether rows came that nobody reported, where the segment's tag has not changed."""
    return before.settled and not before.pinned and before.look.last_confirmed < look.last_confirmed
