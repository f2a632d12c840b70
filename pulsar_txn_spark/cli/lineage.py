"""A topology as text: the lineage of its segments, and where each lies in the hash space."""

from __future__ import annotations

from pulsar_txn_spark.segments.topology import HASH_SPACE, Segment, SegmentState, Topology

_BAR = {
    SegmentState.PLANNED: "┄",
    SegmentState.ACTIVE: "█",
    SegmentState.SEALED: "▒",
    SegmentState.DRAINED: "░",
    SegmentState.DELETED: "·",
}


def lineage(topology: Topology) -> list[tuple[str, Segment]]:
    """Return each segment once, with its lines of the tree, parents before their children.

    A merged segment is drawn below the last of its parents. JSON has all of them.
    """
    by_id = topology.by_id
    drawn: set[str] = set()
    rows: list[tuple[str, Segment]] = []

    def hang(segment: Segment, lines: str, branch: str) -> None:
        rows.append((lines + branch, segment))
        drawn.add(segment.ref.id)
        ready = sorted(
            (
                child
                for child in (by_id[id_] for id_ in segment.children)
                if child.ref.id not in drawn and drawn.issuperset(child.parents)
            ),
            key=lambda child: child.hash_start,
        )
        below = lines + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
        for child in ready:
            hang(child, below, "└─ " if child is ready[-1] else "├─ ")

    for root in sorted(topology.segments, key=lambda segment: segment.hash_start):
        if not root.parents:
            hang(root, "", "")
    return rows


def bar(segment: Segment, width: int) -> str:
    """Draw the segment's range in the hash space, with a filling for its state."""
    first = segment.hash_start * width // HASH_SPACE
    last = max(first + 1, -(-(segment.hash_end + 1) * width // HASH_SPACE))
    return " " * first + _BAR[segment.state] * (last - first) + " " * (width - last)
