"""A topology as text: the lineage of its segments, and where each lies in the hash space."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_txn_spark.segments.topology import HASH_SPACE, Segment, SegmentState, Topology

_WIDEST = 3 * 40  # columns of a row's lines

_BAR = {
    SegmentState.PLANNED: "┄",
    SegmentState.ACTIVE: "█",
    SegmentState.SEALED: "▒",
    SegmentState.DRAINED: "░",
    SegmentState.DELETED: "·",
}


def lineage(topology: Topology) -> list[tuple[str, Segment]]:
    """Return each segment once, with its lines of the tree, parents before their children.

    A merged segment is drawn below the last of its parents. JSON has all of them. What lies deeper
    than 40 generations is drawn as if it were the fortieth.
    """
    by_id = topology.by_id
    drawn: set[str] = set()
    rows: list[tuple[str, Segment]] = []
    roots = (segment for segment in topology.segments if not segment.parents)
    waiting = [(root, "", "") for root in _from_the_last(roots)]
    while waiting:
        segment, lines, branch = waiting.pop()
        rows.append((lines + branch, segment))
        drawn.add(segment.ref.id)
        below = (lines + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch])[:_WIDEST]
        children = (by_id[id_] for id_ in segment.children)
        ready = _from_the_last(child for child in children if drawn.issuperset(child.parents))
        last = ready[:1]
        waiting += [(child, below, "└─ " if child in last else "├─ ") for child in ready]
    return rows


def _from_the_last(segments: Iterable[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda segment: segment.hash_start, reverse=True)


def bar(segment: Segment, width: int) -> str:
    """Draw the segment's range in the hash space, with a filling for its state."""
    first = segment.hash_start * width // HASH_SPACE
    last = max(first + 1, -(-(segment.hash_end + 1) * width // HASH_SPACE))
    return " " * first + _BAR[segment.state] * (last - first) + " " * (width - last)
