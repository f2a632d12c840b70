"""What a cursor records of the start of its query (INV-13).

The mark is ``<start>|<stamp>|<next segment>``. Earlier versions wrote no stamp.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_txn_spark.segments.topology import Segment, SegmentState, Topology


@dataclass(frozen=True, slots=True)
class InitialCursor:
    """What an initial cursor records of the query's start.

    Parameters
    ----------
    start : str
        ``earliest``, ``latest``, ``subscription``, a time, or a digest of what was named.
    next_segment : int
        Segments of the topic with this number and higher ones could not be read at the start.
    stamp : int or None
        Topics with a higher stamp in the catalogue came later than the start. None = not known.
    """

    start: str
    next_segment: int
    stamp: int | None = None

    def __str__(self) -> str:
        # The number is last: versions that know no stamp still find it, for their retention.
        stamp = "" if self.stamp is None else f"{self.stamp}|"
        return f"{self.start}|{stamp}{self.next_segment}"

    @classmethod
    def at(cls, start: str, topology: Topology, stamp: int) -> InitialCursor:
        """Return that of a start in a topic as it is now."""
        planned = [s for s in topology.segments if s.state is SegmentState.PLANNED]
        return cls(start, min([topology.next_segment, *map(number_of, planned)]), stamp)

    @classmethod
    def parse(cls, text: str) -> InitialCursor:
        """Read the field of a cursor."""
        start, *stamp, number = text.split("|")
        return cls(start, int(number), int(stamp[0]) if stamp else None)


def number_of(segment: Segment) -> int:
    """Return a segment's number in its topic; numbers rise with every change."""
    return int(segment.descriptor.rpartition("-")[2])
