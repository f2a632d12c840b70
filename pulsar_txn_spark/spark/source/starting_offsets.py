"""Where a query starts, as its options and its subscription's cursors say it (INV-13).

A subscription has a cursor in every segment from the start of its query on. Without it, retention
would delete the rows of a segment that the query has not read yet. A successor would not know where
to continue. A child segment would be handed over at its beginning, although the query stands
further on.

The driver's side of a source does not know the query's id. It therefore creates *initial cursors*
at the query's start, which belong to no query until a task claims them. An initial cursor also
records three facts:

- the start that it stands for, so that a query that dies before its first batch finds its own start
  again;
- the number of the topic's next segment, which tells later segments from those whose cursor was not
  created yet. Of several starts that died one after the other, the first one's number counts;
- the last stamp in the catalogue of topics, which tells later topics from those that a start died
  before. A topic that was deleted and created again has a new stamp. So later ones are read from
  their beginning, whatever the start. One whose creation was under way is not a later one.

=========================  =====================================================================
the process dies           what exists, and what the next start does
=========================  =====================================================================
before the first cursor    nothing exists
after some of them         those of parents, before those of their children: a subscription that
                           stands in a child has read the parent. The next start, with the
                           same ``startingOffsets``, creates the missing ones
after all of them          the next start begins where they stand. Without one, they retain data
                           until the subscription is deleted, as any subscription does
after all of them, and     nothing exists, as of a start that has met no topic: the next one is
all topics are deleted     the first one
=========================  =====================================================================

Retention records what it deletes in the same script that checks the cursors (``seg_trim.lua``). An
initial cursor is therefore either seen by retention, or it begins behind what was deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Offsets, Options, Times
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.initial_cursor import InitialCursor, number_of
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.spark.source.offset_options import (
    explicit_starting_offsets,
    starting_offsets,
)
from pulsar_txn_spark.spark.source.offsets import SegmentKey
from pulsar_txn_spark.store.records import Cursor

_AT_TIME = "time "


def start_of(offsets: Offsets) -> str:
    """Name a start; the names of two equal starts are equal."""
    if offsets.times.everywhere is not None:
        return f"{_AT_TIME}{offsets.times.everywhere}"
    if offsets.times:
        return "times " + _digest(offsets.times.by_topic)
    if offsets.positions:
        return "positions " + _digest(offsets.positions)
    return offsets.word


def _digest(by_topic: Mapping[str, object]) -> str:
    named = sorted(
        f"{topic} {name.rpartition('/')[2]} {where}".replace("  ", " ")
        for topic, own in by_topic.items()
        for name, where in (own.items() if isinstance(own, Mapping) else [("", own)])
    )
    return hashlib.sha256("\n".join(named).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SubscriptionStart:
    """Where a query with a subscription starts, as far as the cursors say it.

    Parameters
    ----------
    offsets : Offsets
        For segments without a known position.
    known : mapping of SegmentKey to Position
        For the others.
    creates_cursors : bool
        Whether missing cursors are to be created. False if a query owns the subscription: if that
        is this query, its tasks create them; if it is another one, they are refused.
    """

    offsets: Offsets
    known: Mapping[SegmentKey, Position]
    creates_cursors: bool


def resolve_start(
    options: Options,
    topologies: Mapping[str, Topology],
    cursors: Mapping[SegmentKey, Cursor | None],
    stamps: Mapping[str, int],
) -> SubscriptionStart:
    """Return where a query starts.

    Parameters
    ----------
    options : Options
        Of the source.
    topologies : mapping of str to Topology
    cursors : mapping of SegmentKey to Cursor or None
        Of the subscription, in every segment; empty without one.
    stamps : mapping of str to int
        In the catalogue, of topics without a cursor of the subscription; those that are known.

    Raises
    ------
    OptionError
        If the options name another start than the subscription has.
    """
    offsets = explicit_starting_offsets(options)
    subscription = options.get("subscription")
    existing = {key: cursor for key, cursor in cursors.items() if cursor is not None}
    if not existing:
        return SubscriptionStart(starting_offsets(options), {}, creates_cursors=True)
    if any(not cursor.query and not cursor.query_start for cursor in existing.values()):
        if offsets is not None and offsets.word != "subscription":
            raise _other_start_error(subscription, "says where to go on")
        known = _ends_of_read_parents(topologies, existing) | _positions(existing)
        return SubscriptionStart(Offsets("subscription", {}), known, creates_cursors=True)
    return _continued(offsets, subscription, topologies, existing, stamps)


def _continued(
    offsets: Offsets | None,
    subscription: str,
    topologies: Mapping[str, Topology],
    cursors: Mapping[SegmentKey, Cursor],
    stamps: Mapping[str, int],
) -> SubscriptionStart:
    """Return where a query continues that has started before, or another one with its start."""
    owned = any(cursor.query for cursor in cursors.values())
    initial = {
        key: InitialCursor.parse(c.query_start) for key, c in cursors.items() if c.query_start
    }
    starts = {cursor.start for cursor in initial.values()}
    if offsets is None:
        # Without the option, a start that was a word or one time is taken from the cursors. What
        # was named is not in them: a query that named positions or times has to name them again.
        words = sorted(starts & {"earliest", "latest", "subscription"})
        offsets = Offsets(words[0] if words else "subscription", {})
        at = [start.removeprefix(_AT_TIME) for start in sorted(starts) if _AT_TIME in start]
        if at:
            offsets = Offsets("latest", times=Times(int(at[0])))
    if not owned and starts != {start_of(offsets)}:
        raise _other_start_error(
            subscription, f"was begun by a query with another start ({', '.join(sorted(starts))})"
        )
    # Each start that dies half-way leaves a mark of its own: the first one was before the others.
    numbers: dict[str, int] = {}
    for (topic, _), cursor in initial.items():
        numbers[topic] = min(cursor.next_segment, numbers.get(topic, cursor.next_segment))
    marked = [cursor.stamp for cursor in initial.values() if cursor.stamp is not None]
    numbers |= {name: 0 for name, stamp in stamps.items() if marked and stamp > min(marked)}
    later = {
        (name, segment.descriptor): EARLIEST
        for name, topology in topologies.items()
        for segment in topology.segments
        if number_of(segment) >= numbers.get(name, topology.next_segment)
    }
    read: dict[SegmentKey, Position] = {}
    if owned and offsets.word == "subscription":
        # Where nobody has read anything, initial cursors of children say nothing of the parents.
        read = _ends_of_read_parents(topologies, cursors)
    known = later | read | _positions(cursors)
    return SubscriptionStart(offsets, known, creates_cursors=not owned)


def _positions(cursors: Mapping[SegmentKey, Cursor]) -> dict[SegmentKey, Position]:
    """Return where a query continues in each segment.

    A query that Spark restarts asks for this in its first batch only. That batch may be committed,
    and then reads the same rows once more. What a reset has released belongs to another query.
    """
    return {
        key: cursor.released if cursor.query and cursor.txn else cursor.position
        for key, cursor in cursors.items()
    }


def _other_start_error(subscription: str, why: str) -> OptionError:
    return OptionError(
        f"subscription {subscription!r} exists and {why}, but startingOffsets asks for another "
        "place. Use startingOffsets='subscription' if it was reset, or the start that it was begun "
        "with. Or reset the subscription (pulsar_txn_spark.Admin.reset_subscription), or use a new "
        "one"
    )


def _ends_of_read_parents(
    topologies: Mapping[str, Topology], cursors: Mapping[SegmentKey, Cursor]
) -> dict[SegmentKey, Position]:
    """Return the ends of sealed segments that a subscription has read: it stands in a child."""
    ends: dict[SegmentKey, Position] = {}
    for name, topology in topologies.items():
        entered: set[str] = set()  # ids of segments with a cursor, in them or in a descendant
        for segment in reversed(topology.segments):
            key = (name, segment.descriptor)
            if any(child in entered for child in segment.children):
                entered.add(segment.ref.id)
                if segment.sealed_at is not None:
                    ends[key] = segment.sealed_at
            elif key in cursors:
                entered.add(segment.ref.id)
    return ends
