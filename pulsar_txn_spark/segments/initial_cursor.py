"""What a cursor records of the start of its query: the mark ``<start>|<next segment>`` (INV-13)."""

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
    """

    start: str
    next_segment: int

    def __str__(self) -> str:
        return f"{self.start}|{self.next_segment}"

    @classmethod
    def at(cls, start: str, topology: Topology) -> InitialCursor:
        """Return that of a start in a topic as it is now."""
        planned = [s for s in topology.segments if s.state is SegmentState.PLANNED]
        return cls(start, min([topology.next_segment, *map(number_of, planned)]))

    @classmethod
    def parse(cls, text: str) -> InitialCursor:
        """Read the field of a cursor."""
        start, _, number = text.rpartition("|")
        return cls(start, int(number))


def number_of(segment: Segment) -> int:
    """Return a segment's number in its topic; numbers rise with every change."""
    return int(segment.descriptor.rpartition("-")[2])
