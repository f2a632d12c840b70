"""In which order a reader goes through the segments of a topic (INV-10).

A key's rows lie in a segment, then in one of its children, and so on. A child is read only when all
of its parents had been read to their ends *before* the micro-batch. Within one, the tasks of parent
and child would run side by side. What a reader knows of the past is its offset alone, the last
position for each segment. So everything here is a function of that and of the topology.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topology import Segment, SegmentState, Topology


@dataclass(frozen=True, slots=True)
class ReadingOrder:
    """What a reader may do next in one topic.

    Parameters
    ----------
    released : frozenset of str
        Descriptors of segments that the next micro-batch may read.
    passed : frozenset of str
        Descriptors of segments of which nothing is left to read, nor of their ancestors.
    lost : tuple of Segment
        Deleted ones that were not read to their end.
    """

    released: frozenset[str]
    passed: frozenset[str]
    lost: tuple[Segment, ...]

    @classmethod
    def of(
        cls, topology: Topology, start: Mapping[str, Position], *, known: bool = True
    ) -> ReadingOrder:
        """Work the order out.

        Parameters
        ----------
        topology : Topology
        start : mapping of str to Position
            By descriptor, how far each segment was read; not in it = nothing yet.
        known : bool
            Whether the reader has read the topic before. To a new one nothing deleted is lost.
        """
        entered = _entered(topology, start)
        passed: set[str] = set()
        released: set[str] = set()
        lost: list[Segment] = []
        for segment in topology.segments:  # parents stand before their children
            deleted = segment.state is SegmentState.DELETED
            read = _is_read(segment, start, entered)
            if deleted and known and not read:
                lost.append(segment)
            if not all(parent in passed for parent in segment.parents):
                continue  # whatever its own position says: rows of its ancestors come first
            if read or deleted:
                passed.add(segment.ref.id)
            elif segment.state is not SegmentState.PLANNED:
                released.add(segment.ref.id)
        by_id = topology.by_id
        return cls(
            frozenset(by_id[id_].descriptor for id_ in released),
            frozenset(by_id[id_].descriptor for id_ in passed),
            tuple(lost),
        )

    def with_what_waits(self, topology: Topology, sizes: Mapping[str, int]) -> dict[str, float]:
        """Return the size of each released segment with all that waits until it has been read.

        What waits for several segments is shared among them evenly.

        Parameters
        ----------
        topology : Topology
            The one that this order is of.
        sizes : mapping of str to int
            By descriptor, how much is left to read of each segment; not in it = nothing.

        Returns
        -------
        dict of str to float
            By descriptor, in the unit of `sizes`.
        """
        by_id, total = topology.by_id, dict[str, float](sizes)
        for segment in reversed(topology.segments):  # children stand behind their parents
            parents = [by_id[parent].descriptor for parent in segment.parents if parent in by_id]
            unread = [parent for parent in parents if parent not in self.passed]
            for parent in unread:
                share = total.get(segment.descriptor, 0) / len(unread)
                total[parent] = total.get(parent, 0) + share
        return {descriptor: total.get(descriptor, 0) for descriptor in self.released}


def _entered(topology: Topology, start: Mapping[str, Position]) -> set[str]:
    """Return the ids of segments that the reader has come to: their own position, or a child's.

    A deleted segment leaves the offset when all of its children stand in it.
    """
    entered: set[str] = set()
    for segment in reversed(topology.segments):
        if segment.descriptor in start or any(child in entered for child in segment.children):
            entered.add(segment.ref.id)
    return entered


def _is_read(segment: Segment, start: Mapping[str, Position], entered: set[str]) -> bool:
    """Tell whether a segment has nothing that lies behind the reader's own position.

    That alone does not say that the reader came by. A new one stands at the end of every segment
    that was sealed without a row, or of which retention has left nothing.
    """
    position = start.get(segment.descriptor)
    if position is None and any(child in entered for child in segment.children):
        return True
    return segment.drained_at(EARLIEST if position is None else position)


def leaves_offset(segment: Segment, topology: Topology, offset: Mapping[str, Position]) -> bool:
    """Tell whether a reader may forget a segment: it is deleted, and its children say the rest."""
    if segment.state is not SegmentState.DELETED:
        return False
    by_id = topology.by_id
    return all(by_id[child].descriptor in offset for child in segment.children)
