"""What the options ``startingOffsets`` and ``endingOffsets`` mean in the segments of a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Offsets, Options, Times
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.spark.source.offsets import SegmentKey


def starting_offsets(options: Options) -> Offsets:
    """Return where a new query starts, by whichever option says it."""
    offsets: Offsets = options.get("startingOffsets")
    return replace(offsets, times=_times(options, "starting"))


def explicit_starting_offsets(options: Options) -> Offsets | None:
    """Return where a new query starts, None if no option says it."""
    offsets = starting_offsets(options)
    return offsets if offsets.times else options.explicit("startingOffsets")


def ending_offsets(options: Options) -> Offsets:
    """Return where a batch read ends, by whichever option says it."""
    offsets: Offsets = options.get("endingOffsets")
    return replace(offsets, times=_times(options, "ending"))


def _times(options: Options, side: str) -> Times:
    time_ms: int | None = options.explicit(f"{side}Timestamp")
    if time_ms is not None:
        return Times(time_ms)
    times: Times | None = options.explicit(f"{side}OffsetsByTimestamp")
    return times or Times()


def is_named(offsets: Offsets, key: SegmentKey) -> bool:
    """Tell whether an option gives a position in this segment."""
    topic, descriptor = key
    return any(name.rpartition("/")[2] == descriptor for name in offsets.positions.get(topic, {}))


def with_descendants(offsets: Offsets, topologies: Mapping[str, Topology]) -> Offsets:
    """Name also the beginning of each segment that descends from a named one.

    A recorded position says where a reader stands. What descends from that segment came later, so
    that a stream which began at its end would skip rows that the reader has not read.

    Parameters
    ----------
    offsets : Offsets
        Those that are named by positions or by times; what they name stays.
    topologies : mapping of str to Topology
    """
    positions = {topic: dict(own) for topic, own in offsets.positions.items()}
    for topic, topology in topologies.items():
        times = offsets.times.by_topic.get(topic)
        names = {*positions.get(topic, ()), *(times if isinstance(times, Mapping) else ())}
        named = {name.rpartition("/")[2] for name in names}
        behind: set[str] = set()  # ids of named segments and of their descendants
        readable = {segment.ref.id for segment in topology.readable}
        for segment in topology.segments:  # parents stand before their children
            if segment.descriptor in named:
                behind.add(segment.ref.id)
            elif not behind.isdisjoint(segment.parents):
                behind.add(segment.ref.id)
                if segment.ref.id in readable:
                    positions.setdefault(topic, {})[segment.descriptor] = EARLIEST
    return replace(offsets, positions=positions)


def resolve_positions(
    offsets: Offsets,
    segments: Mapping[SegmentKey, SegmentRef],
    default: Callable[[SegmentKey], Position],
) -> dict[SegmentKey, Position]:
    """Return an option's position in each segment.

    Parameters
    ----------
    offsets : Offsets
    segments : mapping of SegmentKey to SegmentRef
        Those that the query reads.
    default : callable
        Returns the position in a segment that the option does not name.

    Raises
    ------
    OptionError
        If it names a topic or segment that is not read. So is an id from before the topic was
        deleted and created again.
    """
    positions: dict[SegmentKey, Position] = {}
    for topic, by_segment in offsets.positions.items():
        for name, position in by_segment.items():
            key = (topic, name.rpartition("/")[2])
            if key not in segments or ("/" in name and name != segments[key].id):
                known = ", ".join(sorted(d for t, d in segments if t == topic)) or "none"
                raise OptionError(
                    f"the offsets name segment {name!r} of {topic}, which is not read here "
                    f"(its segments: {known}). An id is of one topic, until that is deleted"
                )
            positions[key] = position
    return {key: positions.get(key) or default(key) for key in segments}


def require_readable(
    option: str,
    offsets: Offsets,
    positions: Mapping[SegmentKey, Position],
    latest: Mapping[SegmentKey, Position],
) -> None:
    """Refuse positions of a user beyond what can be read.

    Raises
    ------
    OptionError
    """
    for key, position in positions.items():
        if position > latest[key] and is_named(offsets, key):
            raise OptionError(
                f"{option} name {position} in segment {key[1]} of {key[0]}, but only up to "
                f"{latest[key]} anything is committed and readable now"
            )
