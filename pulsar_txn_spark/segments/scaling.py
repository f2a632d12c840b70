"""Automatic scaling: when to split a segment and when to merge two. Pure functions of values.

The idea is PIP-483's: splits come quickly, merges are lazy, and a pure function decides by the load
of each segment. A segment's *load* is what it takes in relation to what one segment should take.
It is the larger of rows per second to ``rows_per_s`` and bytes per second to ``bytes_per_s``. So 1
is full.

Three rules keep a topic from swinging between split and merge:

- A segment is *hot* from 1 on. Two neighbours are *cold* only if together they take less than
  ``merge_below`` (at most 0.5).
- Either has to last for a while (``hot_for_ms``, ``cold_for_ms``).
- After any change of the topic, whoever made it, there is a pause.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.json_record import of_tree
from pulsar_txn_spark.segments.log import Appended
from pulsar_txn_spark.segments.topology import MAX_SEGMENTS

SCALING_PROPERTY = "__scaling"
"""System property of a topic with its policy."""

LOAD_PROPERTY = "__load"
"""System property of a topic with what was seen of its segments' load."""

LEAST_INTERVAL_MS = 1_000
"""Two measurements that are closer together measure noise: the second one is left out."""


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """When a topic's segments are split and merged.

    Parameters
    ----------
    enabled : bool
        Off by default.
    rows_per_s, bytes_per_s : int
        What one segment should take at most.
    skew : float
        A segment that takes so many times the mean of the topic's is hot as well, from half of the
        load on. 0 = off.
    merge_below : float
        Neighbours that together take less than this part of one segment's load are cold.
    min_segments, max_segments : int
        Bounds of the number of active segments.
    hot_for_ms, cold_for_ms : int
        How long a segment has to be hot, and neighbours cold.
    split_pause_ms, merge_pause_ms : int
        Least time between a change of the topic and the next split or merge.

    Raises
    ------
    OptionError
        If a value is out of bounds.
    """

    enabled: bool = False
    rows_per_s: int = 50_000
    bytes_per_s: int = 50 * 1024 * 1024
    skew: float = 4.0
    merge_below: float = 0.25
    min_segments: int = 1
    max_segments: int = 64
    hot_for_ms: int = 30_000
    cold_for_ms: int = 300_000
    split_pause_ms: int = 60_000
    merge_pause_ms: int = 300_000

    def __post_init__(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "rows_per_s": (1, float("inf")),
            "bytes_per_s": (1, float("inf")),
            "skew": (0, float("inf")),
            # Two halves of a segment that was full are not cold, and a merged one is not hot.
            "merge_below": (0, 0.5),
            "min_segments": (1, self.max_segments),
            "max_segments": (1, MAX_SEGMENTS),
            "hot_for_ms": (0, float("inf")),
            "cold_for_ms": (0, float("inf")),
            "split_pause_ms": (0, float("inf")),
            "merge_pause_ms": (0, float("inf")),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                expected = f"at least {low:g}" if high == float("inf") else f"{low:g} to {high:g}"
                raise OptionError(
                    f"{name} of a scaling policy: expected {expected}, found {getattr(self, name)}"
                )
        if 0 < self.skew <= 1:
            raise OptionError(
                f"skew of a scaling policy: expected more than 1 (times the mean), or 0 for off, "
                f"found {self.skew}"
            )

    def serialize(self) -> str:
        """Return the value of the topic's property."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> ScalingPolicy:
        """Read it from a topic's properties."""
        text = properties.get(SCALING_PROPERTY)
        return of_tree(cls, json.loads(text)) if text else cls()

    def load(self, rows_per_s: float, bytes_per_s: float) -> float:
        """Return what a segment takes in relation to what it should take."""
        return max(rows_per_s / self.rows_per_s, bytes_per_s / self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """What was seen of one segment, over the time between the last two measurements.

    ``hot_since_ms`` and ``cold_since_ms`` say since when it has been hot, or has taken less than
    half of what two cold neighbours may take together. None = it is not.
    """

    messages: int
    bytes: int
    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    hot_since_ms: int | None = None
    cold_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """What was seen of a topic.

    Parameters
    ----------
    at_ms : int
        When it was measured, by the store's clock.
    changed_ms : int
        When its segments were first seen as they are.
    segments : mapping of str to SegmentLoad
        The active segments, by descriptor.
    """

    at_ms: int
    changed_ms: int
    segments: Mapping[str, SegmentLoad] = field(default_factory=dict)

    def serialize(self) -> str:
        """Return the value of the topic's property."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> TopicLoad | None:
        """Read it from a topic's properties; None = nothing was measured yet."""
        text = properties.get(LOAD_PROPERTY)
        if not text:
            return None
        tree: dict[str, Any] = json.loads(text)
        segments = {name: of_tree(SegmentLoad, fields) for name, fields in tree["segments"].items()}
        return cls(tree["at_ms"], tree["changed_ms"], segments)


def observe(
    before: TopicLoad | None,
    counts: Mapping[str, Appended],
    now_ms: int,
    policy: ScalingPolicy,
) -> TopicLoad:
    """Add a measurement of a topic to those before.

    Parameters
    ----------
    before : TopicLoad or None
    counts : mapping of str to Appended
        What was ever appended to each active segment. A count that is lower than before began anew
        (a broker counts from when it has loaded the topic).
    now_ms : int
    policy : ScalingPolicy
    """
    if before is None:
        fresh = {
            name: SegmentLoad(appended.messages, appended.bytes)
            for name, appended in counts.items()
        }
        return TopicLoad(now_ms, now_ms, fresh)
    if now_ms - before.at_ms < LEAST_INTERVAL_MS:
        return before
    changed_ms = before.changed_ms if before.segments.keys() == counts.keys() else now_ms
    seconds = (now_ms - before.at_ms) / 1000
    rates: dict[str, tuple[float, float]] = {}
    for name, count in counts.items():
        last = before.segments.get(name)
        if last is not None:
            rates[name] = (
                _grown(last.messages, count.messages) / seconds,
                _grown(last.bytes, count.bytes) / seconds,
            )
    loads = {name: policy.load(*rate) for name, rate in rates.items()}
    segments = {}
    for name, count in counts.items():
        last = before.segments.get(name)
        if last is None or name not in loads:
            segments[name] = SegmentLoad(count.messages, count.bytes)
            continue
        hot = _why_hot(name, loads, policy) is not None
        cold = loads[name] < policy.merge_below / 2
        # The rate is that of the whole time since the measurement before.
        segments[name] = SegmentLoad(
            count.messages,
            count.bytes,
            *rates[name],
            hot_since_ms=_since(last.hot_since_ms, before) if hot else None,
            cold_since_ms=_since(last.cold_since_ms, before) if cold else None,
        )
    return TopicLoad(now_ms, changed_ms, segments)


def _since(ms: int | None, before: TopicLoad) -> int:
    return before.at_ms if ms is None else ms


def _grown(before: int, now: int) -> int:
    return now - before if now >= before else now


def _why_hot(name: str, loads: Mapping[str, float], policy: ScalingPolicy) -> str | None:
    load = loads[name]
    if load >= 1:
        return f"it takes {load:.0%} of what one segment should take"
    mean = sum(loads.values()) / len(loads)
    if policy.skew and len(loads) > 1 and load >= 0.5 and load >= policy.skew * mean:  # noqa: PLR2004 — half
        return f"it takes {load / mean:.1f} times the mean of the topic's segments"
    return None


@dataclass(frozen=True, slots=True)
class ActiveSegment:
    """An active segment, as far as scaling cares."""

    name: str
    hash_start: int
    hash_end: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why: with no segments nothing, one is split, more are merged."""

    segments: tuple[str, ...]
    why: str

    @property
    def what(self) -> str:
        """``split``, ``merge`` or ``nothing``."""
        if not self.segments:
            return "nothing"
        return "split" if len(self.segments) == 1 else "merge"


def decide(
    active: Sequence[ActiveSegment],
    seen: TopicLoad,
    policy: ScalingPolicy,
    one_hash: Collection[str] = (),
) -> Decision:
    """Decide what to do next with a topic: one change at a time.

    Parameters
    ----------
    active : sequence of ActiveSegment
        In the order of their hash ranges.
    seen : TopicLoad
        The last measurement; its time is now.
    policy : ScalingPolicy
    one_hash : collection of str
        Segments of which no split would halve the load. They keep no other from being changed.
    """
    if not policy.enabled:
        return Decision((), "scaling is off for this topic")
    wanted = _wanted(active, seen, policy)
    left = [
        f"segment {name} should be split ({why}), but all of its keys have one hash, which no "
        "split can share out. Look for a key that nearly all rows have"
        for name, why in wanted
        if name in one_hash
    ][:1]
    wanted = [(name, why) for name, why in wanted if name not in one_hash]
    if wanted and len(active) >= policy.max_segments:
        name, why = wanted[0]
        left.append(f"segment {name} is hot ({why}), but max_segments are there")
        wanted = []  # until a merge makes room
    decision = _split(wanted, active, seen, policy) or _merge(active, seen, policy)
    if decision is None:
        return Decision((), "; ".join(left)) if left else _nothing(seen, policy)
    return replace(decision, why="; ".join((decision.why, *left)))


def _rates(
    active: Sequence[ActiveSegment], seen: TopicLoad, policy: ScalingPolicy
) -> dict[str, float]:
    rates = {}
    for segment in active:
        load = seen.segments.get(segment.name)
        if load is not None and load.rows_per_s is not None and load.bytes_per_s is not None:
            rates[segment.name] = policy.load(load.rows_per_s, load.bytes_per_s)
    return rates


def _wanted(
    active: Sequence[ActiveSegment], seen: TopicLoad, policy: ScalingPolicy
) -> list[tuple[str, str]]:
    """Return the segments that should be split, the fullest one first, and why."""
    loads = _rates(active, seen, policy)
    wide = [s.name for s in active if s.hash_end > s.hash_start and s.name in loads]
    wide.sort(key=lambda name: -loads[name])
    if len(active) < policy.min_segments:
        why = f"there are {len(active)} segments, fewer than min_segments"
        return [(name, why) for name in wide]
    wanted = []
    for name in wide:
        since, hot = seen.segments[name].hot_since_ms, _why_hot(name, loads, policy)
        if since is not None and hot is not None and seen.at_ms - since >= policy.hot_for_ms:
            wanted.append((name, f"{hot}, for {(seen.at_ms - since) / 1000:.0f} s now"))
    return wanted


def _split(
    wanted: Sequence[tuple[str, str]],
    active: Sequence[ActiveSegment],
    seen: TopicLoad,
    policy: ScalingPolicy,
) -> Decision | None:
    if not wanted:
        return None
    name, why = wanted[0]
    left_ms = seen.changed_ms + policy.split_pause_ms - seen.at_ms
    if left_ms > 0 and len(active) >= policy.min_segments:
        return Decision(
            (), f"segment {name} is hot ({why}), but the pause lasts {left_ms / 1000:.0f} s yet"
        )
    return Decision((name,), why)


def _merge(
    active: Sequence[ActiveSegment], seen: TopicLoad, policy: ScalingPolicy
) -> Decision | None:
    if len(active) <= policy.min_segments:
        return None
    loads = _rates(active, seen, policy)
    pairs = []
    for left, right in pairwise(active):
        names = (left.name, right.name)
        if not all(name in loads for name in names):
            continue
        since = [seen.segments[name].cold_since_ms for name in names]
        together = loads[left.name] + loads[right.name]
        lasting = all(at is not None and seen.at_ms - at >= policy.cold_for_ms for at in since)
        if lasting and together < policy.merge_below:
            pairs.append((together, names))
    if not pairs:
        return None
    together, names = min(pairs)
    why = f"together they take {together:.0%} of what one segment should take"
    left_ms = seen.changed_ms + policy.merge_pause_ms - seen.at_ms
    if left_ms > 0:
        return Decision(
            (),
            f"segments {names[0]} and {names[1]} are cold ({why}), but the pause lasts "
            f"{left_ms / 1000:.0f} s yet",
        )
    return Decision(names, f"{why}, for {policy.cold_for_ms / 1000:.0f} s or more")


def _nothing(seen: TopicLoad, policy: ScalingPolicy) -> Decision:
    loads = [
        policy.load(load.rows_per_s, load.bytes_per_s)
        for load in seen.segments.values()
        if load.rows_per_s is not None and load.bytes_per_s is not None
    ]
    if not loads:
        return Decision((), "nothing was measured yet: it takes two looks")
    return Decision(
        (), f"the segments take {min(loads):.0%} to {max(loads):.0%} of what one should take"
    )
