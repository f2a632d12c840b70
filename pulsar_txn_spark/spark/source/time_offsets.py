"""Where a query starts or ends that names publish times.

A position at a time lies before the first entry that was published at or after it. It is by_time in
the log alone: two batch reads whose times meet read each row once. Over a split or merge the order
is that of the topology, not of the clocks. Behind a parent whose end lies at or after the time,
all of a child is later, whatever its entries say.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from pulsar_txn_spark.errors import OptionError, TransactionConflictError
from pulsar_txn_spark.options import Times
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.spark.source.offsets import SegmentKey
from pulsar_txn_spark.spark.source.planner import SourcePlanner
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange

_AFTER_ALL = Position(1 << 62, 0)


def starting_positions(
    planner: SourcePlanner,
    times: Times,
    topologies: Mapping[str, Topology],
    latest: Mapping[SegmentKey, Position],
) -> dict[SegmentKey, Position]:
    """Return where a query starts in each segment for which there is a time.

    Parameters
    ----------
    planner : SourcePlanner
    times : Times
    topologies : mapping of str to Topology
    latest : mapping of SegmentKey to Position
        The ends of what was committed before this call: what comes later must not be skipped.

    Raises
    ------
    OptionError
        If a time is for a segment that is not read. Also if nothing was published at or after a
        time, unless the strategy is ``latest``.
    """
    _require_read("startingOffsetsByTimestamp", times, topologies)
    by_time = _search(planner, times, topologies)
    starts: dict[SegmentKey, Position] = {}
    unmatched: list[SegmentKey] = []
    for key, segment, is_later in _in_order(topologies, by_time):
        position = EARLIEST if is_later else by_time[key]
        if position is None and segment.sealed_at is not None:
            position = segment.sealed_at  # all of it is older: it counts as read
        if position is None:
            unmatched.append(key)
            position = latest[key]
        starts[key] = max(position, planner.log_of(segment.ref).trimmed_to(segment.ref))
    if unmatched and planner.options.get("startingOffsetsByTimestampStrategy") == "error":
        listed = ", ".join(f"{descriptor} of {topic}" for topic, descriptor in unmatched[:8])
        raise OptionError(
            f"no message was published at or after the starting time in {len(unmatched)} segments "
            f"({listed}). Nothing was read: choose an earlier time, or set "
            "startingOffsetsByTimestampStrategy=latest to start there behind what is committed"
        )
    return starts


def ending_positions(
    planner: SourcePlanner,
    times: Times,
    topologies: Mapping[str, Topology],
    before: Mapping[SegmentKey, ReadableRange],
    segments: Mapping[SegmentKey, SegmentRef],
) -> dict[SegmentKey, Position]:
    """Return where a batch read ends in each segment for which there is a time.

    Parameters
    ----------
    planner : SourcePlanner
    times : Times
    topologies : mapping of str to Topology
    before : mapping of SegmentKey to ReadableRange
        How far each segment could be read before this call.
    segments : mapping of SegmentKey to SegmentRef
        What is read.

    Raises
    ------
    OptionError
        If a time is for a segment that is not read.
    TransactionConflictError
        If an open transaction hides rows that were published before a time that has passed.
    """
    _require_read("endingOffsetsByTimestamp", times, topologies)
    by_time = _search(planner, times, topologies)
    after = planner.readable(segments)
    ends: dict[SegmentKey, Position] = {}
    now_ms = time.time() * 1000
    for key, segment, is_later in _in_order(topologies, by_time):
        position = EARLIEST if is_later else by_time[key]
        time_ms = times.of(*key)
        assert time_ms is not None
        if position is None:
            ends[key] = before[key].end
            is_blocked = time_ms <= now_ms and _is_blocked(
                planner, segment.ref, before[key], after[key]
            )
        else:
            ends[key] = position
            is_blocked = position > after[key].end
        if is_blocked:
            txns = ", ".join(map(str, after[key].blocked_by or before[key].blocked_by))
            raise TransactionConflictError(
                f"segment {key[1]} of {key[0]} may have messages that were published before the "
                f"ending time, but can be read only up to {after[key].end}. Transactions are open "
                f"there ({txns or 'of others'}). Nothing was read, as one with the same time later "
                "would find more: repeat it when they have ended. Their leases see to that"
            )
    return ends


def _is_blocked(
    planner: SourcePlanner, segment: SegmentRef, before: ReadableRange, after: ReadableRange
) -> bool:
    """Tell whether there is something behind what can be read, or on its way.

    Rows of a transaction that has not appended yet may carry times from before.
    """
    if not segment.in_pulsar_domain:
        return before.pinned or after.pinned
    return planner.log_of(segment).measure(segment, before.end, _AFTER_ALL).entries > 0


def _require_read(option: str, times: Times, topologies: Mapping[str, Topology]) -> None:
    for topic, own in times.by_topic.items():
        topology = topologies.get(topic)
        if topology is None:
            raise OptionError(
                f"{option} names topic {topic}, which is not read here (topics: "
                f"{', '.join(topologies) or 'none'})"
            )
        known = topology.by_descriptor.keys()
        for name in own if isinstance(own, Mapping) else ():
            if name not in known | topology.by_id.keys():
                raise OptionError(
                    f"{option} names segment {name!r} of {topic}, which is not read here (its "
                    f"segments: {', '.join(sorted(known))})"
                )


def _search(
    planner: SourcePlanner, times: Times, topologies: Mapping[str, Topology]
) -> dict[SegmentKey, Position | None]:
    """Return the position at its time in each readable segment; None where there is none."""
    wanted = {
        (name, segment.descriptor): (segment.ref, time_ms)
        for name, topology in topologies.items()
        for segment in topology.readable
        if (time_ms := times.of(name, segment.descriptor)) is not None
    }

    def find(item: tuple[SegmentRef, int]) -> Position | None:
        segment, time_ms = item
        return planner.log_of(segment).position_at(segment, time_ms)

    with ThreadPoolExecutor(planner.components.log.at_once, "pulsar-txn-time") as pool:
        return dict(zip(wanted, pool.map(find, wanted.values()), strict=True))


def _in_order(
    topologies: Mapping[str, Topology], by_time: Mapping[SegmentKey, Position | None]
) -> Iterator[tuple[SegmentKey, Segment, bool]]:
    """Yield the segments with a time, parents first, and whether a parent has later messages."""
    for name, topology in topologies.items():
        reached: set[str] = set()  # ids of those at whose end messages are that are later
        for segment in topology.segments:
            key = (name, segment.descriptor)
            if key not in by_time:
                continue
            is_later = any(parent in reached for parent in segment.parents)
            if is_later or by_time[key] is not None:
                reached.add(segment.ref.id)
            yield key, segment, is_later
