"""Finds where a new query starts, and creates the subscription's initial cursors (INV-13)."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_txn_spark.errors import TopologyConflictError
from pulsar_txn_spark.options import Offsets
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.initial_cursor import InitialCursor
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topology import SegmentState, Topology
from pulsar_txn_spark.spark.source.offset_options import (
    require_readable,
    resolve_positions,
    with_descendants,
)
from pulsar_txn_spark.spark.source.offsets import SegmentKey, SourceOffset
from pulsar_txn_spark.spark.source.planner import SourcePlanner
from pulsar_txn_spark.spark.source.starting_offsets import (
    SubscriptionStart,
    resolve_start,
    start_of,
)
from pulsar_txn_spark.spark.source.time_offsets import starting_positions
from pulsar_txn_spark.spark.source.topics import readable_segments
from pulsar_txn_spark.store.records import Code, Cursor, CursorStart

_MAX_ATTEMPTS = 16  # each lost race means that somebody changed a topic or the subscription


def initial_offset(planner: SourcePlanner) -> SourceOffset:
    """Return where a query starts; from then on its subscription retains the rows behind that.

    Raises
    ------
    OptionError
        If the options name another start than the subscription has, or one that does not exist.
    TopologyConflictError
        If topics or cursors changed during each of 16 attempts.
    """
    subscription = planner.subscription
    for _ in range(_MAX_ATTEMPTS):
        # Before the topics are listed; the source has counted its start in the same tag.
        stamp = planner.components.store.seen("meta").seq
        topologies = planner.topologies(waits=True)  # 'latest' has to know all of their segments
        segments = readable_segments(topologies)
        cursors = planner.cursors(segments)
        stamps = _stamps(planner, topologies, cursors)
        start = resolve_start(planner.options, topologies, cursors, stamps)
        named = with_descendants(start.offsets, topologies)
        positions = _positions(planner, start, named, topologies, segments)
        if not subscription or not start.creates_cursors:
            return planner.offset(topologies, positions, keep_deleted=bool(start.known))
        created = _create_cursors(planner, topologies, start, named, positions, stamp)
        # A child that was created meanwhile might have been trimmed before its cursor existed: the
        # next attempt creates a cursor there, too.
        if created is not None and set(segments) == set(readable_segments(planner.topologies())):
            continues = any(key in start.known for key in positions)
            deleted = _ends_of_deleted(topologies) if continues else {}
            return planner.offset(topologies, deleted | created, keep_deleted=continues)
    raise TopologyConflictError(
        f"the segments of {', '.join(topologies)}, or the cursors of subscription "
        f"{subscription!r}, changed {_MAX_ATTEMPTS} times while the query was starting. Nothing "
        "was read: start it again when splits, merges and resets have ended"
    )


def _stamps(
    planner: SourcePlanner,
    topologies: Mapping[str, Topology],
    cursors: Mapping[SegmentKey, Cursor | None],
) -> dict[str, int]:
    """Return since when topics are in the catalogue in which the subscription is not known yet."""
    known = {key[0] for key, cursor in cursors.items() if cursor is not None}
    if not known:
        return {}  # a new subscription
    stamps = {
        name: planner.components.store.meta.topic_stamp(name)
        for name in topologies
        if name not in known
    }
    return {name: int(stamp) for name, stamp in stamps.items() if stamp}


def _positions(
    planner: SourcePlanner,
    start: SubscriptionStart,
    offsets: Offsets,
    topologies: Mapping[str, Topology],
    segments: Mapping[SegmentKey, SegmentRef],
) -> dict[SegmentKey, Position]:
    """Return where the query starts in each segment."""
    latest: dict[SegmentKey, Position] = {}
    if offsets.word == "latest" and any(key not in start.known for key in segments):
        latest = _latest(planner, segments)

    def default(key: SegmentKey) -> Position:
        if key in latest:
            return latest[key]
        return planner.log_of(segments[key]).trimmed_to(segments[key])

    positions = resolve_positions(offsets, segments, default)
    if offsets.positions:
        require_readable("startingOffsets", offsets, positions, _latest(planner, segments))
    if offsets.times and any(key not in start.known for key in segments):
        positions |= starting_positions(planner, offsets.times, topologies, latest)
    return positions | {key: at for key, at in start.known.items() if key in segments}


def _latest(
    planner: SourcePlanner, segments: Mapping[SegmentKey, SegmentRef]
) -> dict[SegmentKey, Position]:
    return {key: readable.end for key, readable in planner.readable(segments).items()}


def _create_cursors(
    planner: SourcePlanner,
    topologies: Mapping[str, Topology],
    start: SubscriptionStart,
    offsets: Offsets,
    positions: Mapping[SegmentKey, Position],
    stamp: int,
) -> dict[SegmentKey, Position] | None:
    """Create the cursors that are missing; None if others have changed some meanwhile."""
    named = offsets.positions
    starts = dict(positions)
    for name, topology in topologies.items():
        # Parents come first: a subscription that stands in a child has read its parents.
        segments = {
            (name, segment.descriptor): segment
            for segment in topology.readable
            if not segment.ref.in_pulsar_domain
        }
        wanted = {
            segment.ref.id: CursorStart(
                positions[key],
                may_skip=key not in start.known
                and segment.descriptor not in named.get(name, {})
                and segment.ref.id not in named.get(name, {}),
            )
            for key, segment in segments.items()
        }
        mark = str(InitialCursor.at(start_of(start.offsets), topology, stamp))
        answers = planner.components.store.subscriptions.create_cursors(
            planner.subscription, wanted, mark
        )
        for (key, segment), answer in zip(segments.items(), answers, strict=True):
            if answer.code is Code.OK:
                assert answer.position is not None
                starts[key] = answer.position.taken_after[0]
            elif answer.code is Code.ALREADY and key not in start.known:
                return None
            elif answer.code is Code.DELETED and segment.sealed_at is not None:
                # Deleted by retention, after all subscriptions had read it.
                starts[key] = segment.sealed_at
    return starts


def _ends_of_deleted(topologies: Mapping[str, Topology]) -> dict[SegmentKey, Position]:
    """Return the ends of deleted segments: the subscription had read them."""
    return {
        (name, segment.descriptor): segment.sealed_at
        for name, topology in topologies.items()
        for segment in topology.segments
        if segment.state is SegmentState.DELETED and segment.sealed_at is not None
    }
