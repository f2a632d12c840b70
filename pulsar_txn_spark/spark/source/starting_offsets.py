"""Where a query begins, and the cursors that say so before its first task runs (INV-13).

A subscription has a cursor in every segment from the moment on at which its query starts. Else
nobody would know of a segment that the query has not read yet: retention would take its rows, a
successor would not know where to go on, and a child would be handed over at its beginning although
the query stands further on.

The driver's side of a source does not know the query's id, so it *plants* cursors: they stand at
the query's start, and belong to nobody until a task claims them. A planted cursor says which start
it stands for, so that a query that dies before its first batch finds its own start again, and the
number that the topic's next segment would get, so that segments that come later are told from those
whose cursor was not planted yet.

=========================  =====================================================================
the process dies           what is there, and what the next start does
=========================  =====================================================================
before the first cursor    nothing
after some of them         parents are planted before their children, so that a subscription which
                           stands in a child is through with the parent. The next start, with the
                           same ``startingOffsets``, takes what is there and plants the rest
after all of them          the next start begins where they stand. If there is none, they hold data
                           until the subscription is deleted, as any subscription does
=========================  =====================================================================

Retention notes what it lets go in the very step in which it looks at the cursors
(``seg_trim.lua``), so that a cursor is either seen by it, or begins behind what is gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Offsets, Options
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topology import Segment, SegmentState, Topology
from pulsar_txn_spark.spark.source.offsets import SegmentKey
from pulsar_txn_spark.store.records import Cursor


@dataclass(frozen=True, slots=True)
class Planted:
    """What a planted cursor says of the query's start.

    Parameters
    ----------
    start : str
        ``earliest``, ``latest``, ``subscription``, or a digest of the positions that were named.
    next_segment : int
        Segments of the topic with this number and higher ones could not be read at the start.
    """

    start: str
    next_segment: int

    def __str__(self) -> str:
        return f"{self.start}|{self.next_segment}"

    @classmethod
    def at(cls, start: str, topology: Topology) -> Planted:
        """Say it of a start in a topic as it is now."""
        planned = [s for s in topology.segments if s.state is SegmentState.PLANNED]
        return cls(start, min([topology.next_segment, *map(number_of, planned)]))

    @classmethod
    def parse(cls, text: str) -> Planted:
        """Read the field of a cursor."""
        start, _, number = text.rpartition("|")
        return cls(start, int(number))


def start_of(offsets: Offsets) -> str:
    """Name a start so that two which mean the same are equal."""
    if not offsets.positions:
        return offsets.word
    named = sorted(
        f"{topic} {name.rpartition('/')[2]} {position}"
        for topic, by_segment in offsets.positions.items()
        for name, position in by_segment.items()
    )
    return "positions " + hashlib.sha256("\n".join(named).encode()).hexdigest()[:16]


def number_of(segment: Segment) -> int:
    """Return a segment's number in its topic; numbers rise with every change."""
    return int(segment.descriptor.rpartition("-")[2])


@dataclass(frozen=True, slots=True)
class SubscriptionStart:
    """Where a query with a subscription begins, as far as the cursors say it.

    Parameters
    ----------
    offsets : Offsets
        For segments about which they say nothing.
    known : mapping of SegmentKey to Position
        For the others.
    plants : bool
        Whether missing cursors are to be planted. Not where somebody owns the subscription: if that
        is this very query, its tasks make what is missing; if another one, they are refused.
    """

    offsets: Offsets
    known: Mapping[SegmentKey, Position]
    plants: bool


def resolve_start(
    options: Options,
    topologies: Mapping[str, Topology],
    cursors: Mapping[SegmentKey, Cursor | None],
) -> SubscriptionStart:
    """Tell where a query begins from what there is of its subscription.

    Parameters
    ----------
    options : Options
        Of the source.
    topologies : mapping of str to Topology
    cursors : mapping of SegmentKey to Cursor or None
        Of the subscription, in every segment.

    Raises
    ------
    OptionError
        If the subscription says where to go on, and the options another place.
    """
    given: Offsets | None = options.explicit("startingOffsets")
    subscription = options.get("subscription")
    found = {key: cursor for key, cursor in cursors.items() if cursor is not None}
    if not found:
        return SubscriptionStart(options.get("startingOffsets"), {}, plants=True)
    if any(not cursor.query and not cursor.planted for cursor in found.values()):
        if given is not None and given.word != "subscription":
            raise _elsewhere(subscription, "says where to go on")
        known = {key: _stands(cursor) for key, cursor in found.items()}
        known = _passed_by_cursors(topologies, found) | known
        return SubscriptionStart(Offsets("subscription", {}), known, plants=True)
    return _begun(given, subscription, topologies, found)


def _begun(
    given: Offsets | None,
    subscription: str,
    topologies: Mapping[str, Topology],
    found: Mapping[SegmentKey, Cursor],
) -> SubscriptionStart:
    """Tell where a query goes on that has begun before, or another one whose start is the same."""
    owned = any(cursor.query for cursor in found.values())
    planted = {key: Planted.parse(c.planted) for key, c in found.items() if c.planted}
    starts = {one.start for one in planted.values()}
    offsets = given
    if offsets is None:
        # The word of those that were planted; one that named positions would name them again.
        words = sorted(starts & {"earliest", "latest", "subscription"})
        offsets = Offsets(words[0] if words else "subscription", {})
    if not owned and starts != {start_of(offsets)}:
        raise _elsewhere(
            subscription, f"was begun by a query with another start ({', '.join(sorted(starts))})"
        )
    known = {key: _stands(cursor) for key, cursor in found.items()}
    numbers = {topic: one.next_segment for (topic, _), one in planted.items()}
    later = {
        (name, segment.descriptor): EARLIEST
        for name, topology in topologies.items()
        for segment in topology.segments
        if number_of(segment) >= numbers.get(name, topology.next_segment)
    }
    passed = _passed_by_cursors(topologies, found) if offsets.word == "subscription" else {}
    return SubscriptionStart(offsets, later | passed | known, plants=not owned)


def _stands(cursor: Cursor) -> Position:
    # Of a query that Spark starts again, this is asked for its first batch only, which may be
    # committed: then it is to read the same once more. (What a reset has released is another's.)
    return cursor.released if cursor.query and cursor.txn else cursor.position


def _elsewhere(subscription: str, why: str) -> OptionError:
    return OptionError(
        f"subscription {subscription!r} exists and {why}, but startingOffsets asks for another "
        "place: use startingOffsets='subscription' if it was reset, or the start that it was begun "
        "with; or reset the subscription (pulsar_txn_spark.Admin.reset_subscription), or use a new "
        "one"
    )


def _passed_by_cursors(
    topologies: Mapping[str, Topology], found: Mapping[SegmentKey, Cursor]
) -> dict[SegmentKey, Position]:
    """Return the ends of sealed segments that a subscription has left behind for a child."""
    passed: dict[SegmentKey, Position] = {}
    for name, topology in topologies.items():
        came_by: set[str] = set()
        for segment in reversed(topology.segments):
            key = (name, segment.descriptor)
            if any(child in came_by for child in segment.children):
                came_by.add(segment.ref.id)
                if segment.sealed_at is not None:
                    passed[key] = segment.sealed_at
            elif key in found:
                came_by.add(segment.ref.id)
    return passed
