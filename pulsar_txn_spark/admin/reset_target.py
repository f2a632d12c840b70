"""Where a reset moves a subscription's cursors: to a word, a time, or named positions."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from pulsar_txn_spark.backports import Self, time_from_iso
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import OptionError, SegmentNotFoundError
from pulsar_txn_spark.options import parse_time_ms
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.store.records import CursorStart

_WORDS = ("earliest", "latest", "here")

ResetTo = str | int | datetime | Mapping[str, str | Position]
"""Where a subscription continues: a word, a time, or positions by segment."""


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where cursors move; a function of the segment and its cursor.

    Parameters
    ----------
    word : str
        ``earliest``, ``latest``, ``here``, or empty.
    before_ms : int, optional
        Time since 1970 in milliseconds; what was published before counts as acknowledged.
    positions : mapping of str to Position, optional
        By segment.
    topic : str, optional
        The topic that the positions are of, where they name it.
    """

    word: str = ""
    before_ms: int | None = None
    positions: Mapping[str, Position] | None = None
    topic: str = ""

    @classmethod
    def parse(cls, to: ResetTo) -> Self:
        """Read where cursors are to move.

        Raises
        ------
        OptionError
            If `to` is neither a word, nor a time, nor positions.
        """
        if isinstance(to, datetime):
            return cls(before_ms=_milliseconds(to))
        if isinstance(to, int):
            return cls(before_ms=_since_1970(str(to)))
        if isinstance(to, str):
            if to in _WORDS:
                return cls(word=to)
            if to.strip().isdigit():
                return cls(before_ms=_since_1970(to))
            try:
                parsed = json.loads(to)
            except ValueError:
                return cls(before_ms=_milliseconds(_time(to)))
        else:
            parsed = to
        topic, by_segment = _topic_of(parsed)
        return cls(positions=_positions(by_segment), topic=topic)

    def leaves(self, segment: Segment) -> bool:
        """Tell whether a cursor stays where it is."""
        if self.positions is not None:
            return segment.descriptor not in self.positions
        return self.word == "here"

    def of(
        self, components: Components, segment: Segment, *, is_later: bool = False
    ) -> CursorStart | None:
        """Return where one cursor moves; None = it stays.

        `is_later` says that a parent has messages since the time, so that all of the segment comes
        after these.
        """
        if self.word == "earliest":
            return CursorStart(components.log.trimmed_to(segment.ref), may_skip=True)
        if self.word == "latest":
            return CursorStart(_committed_end(components, segment.ref), may_skip=True)
        if self.before_ms is not None:
            # First: what comes after the search must not count as acknowledged.
            end = _committed_end(components, segment.ref)
            position = (
                EARLIEST if is_later else components.log.position_at(segment.ref, self.before_ms)
            )
            # What is not decided yet lies behind the end, however old it is.
            end = end if position is None else min(position, end)
            return CursorStart(max(end, components.log.trimmed_to(segment.ref)), may_skip=True)
        named = (self.positions or {}).get(segment.descriptor)
        if named == EARLIEST:
            return CursorStart(components.log.trimmed_to(segment.ref), may_skip=True)
        return None if named is None else CursorStart(named)

    def checked(self, components: Components, topology: Topology) -> Self:
        """Refuse positions of other topics or segments, or behind what is committed.

        Raises
        ------
        OptionError
        """
        if self.positions is None:
            return self
        if self.topic and self.topic != str(topology.topic):
            raise OptionError(
                f"the positions are of topic {self.topic}, but the subscription is of "
                f"{topology.topic}. Nothing was changed"
            )
        readable = {segment.ref.id: segment for segment in topology.readable}
        positions = {}
        for name, position in self.positions.items():
            segment = topology.segment(name)
            if segment.ref.id not in readable:
                raise _without_log(topology, segment, readable.keys())
            try:
                end = _committed_end(components, segment.ref)
                first = components.log.trimmed_to(segment.ref)
            except SegmentNotFoundError:
                if not is_retired(components, segment):
                    raise
                raise _without_log(topology, segment, readable.keys() - {segment.ref.id}) from None
            if position > end:
                raise OptionError(
                    f"segment {segment.descriptor} of {topology.topic}: {position} lies behind "
                    f"{end}, up to where anything is committed. Use 'latest' for all that is there"
                )
            if EARLIEST < position < first:
                raise behind_retention(topology, segment, position, first)
            positions[segment.descriptor] = position
        return replace(self, positions=positions)


def behind_retention(
    topology: Topology, segment: Segment, position: Position, first: Position
) -> OptionError:
    """Return the error of a position that retention has passed."""
    return OptionError(
        f"segment {segment.descriptor} of {topology.topic}: everything up to {first} "
        f"was deleted by retention, so no subscription can go on behind {position}"
    )


def is_retired(components: Components, segment: Segment) -> bool:
    """Tell whether retention has deleted a segment, which then had nothing left to read."""
    return components.store.segments.retained([segment.ref.id])[0].retired


def _committed_end(components: Components, segment: SegmentRef) -> Position:
    def last_confirmed(_: str) -> Position:
        return components.log.last_confirmed(segment)

    return components.buffer.get_max_read_position(segment.id, last_confirmed)


def _since_1970(text: str) -> int:
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise OptionError(
            f"where to reset a subscription: expected {error}, found {text!r}"
        ) from None


def _time(text: str) -> datetime:
    try:
        return time_from_iso(text)
    except ValueError:
        raise OptionError(
            "where to reset a subscription: expected 'earliest', 'latest', 'here', a time such as "
            "2026-01-31T08:00:00Z or 1769846400000 (milliseconds since 1970), or JSON like "
            '{"<segment>": "ledger:entry"}, found ' + repr(text)
        ) from None


def _milliseconds(at: datetime) -> int:
    if at.tzinfo is None:
        raise OptionError(
            f"the time {at.isoformat()} has no zone, so that it means another moment elsewhere: "
            f"add it, for example {at.isoformat()}Z"
        )
    return int(at.timestamp() * 1000)


_EXPECTED = 'expected positions like {"<segment>": "ledger:entry"}'


def _topic_of(tree: object) -> tuple[str, object]:
    """Return a topic's full name, and its positions by segment, as in the source's offsets.

    The name is empty where the positions do not stand in a topic.
    """
    if not isinstance(tree, Mapping) or not any(isinstance(v, Mapping) for v in tree.values()):
        return "", tree
    if len(tree) > 1:
        raise OptionError(
            f"where to reset a subscription: expected the positions of one topic, found "
            f"{', '.join(map(str, tree))}"
        )
    [(name, by_segment)] = tree.items()
    return str(TopicName.of_any_domain(str(name))), by_segment


def _positions(tree: object) -> dict[str, Position]:
    """Read positions by segment."""
    if not isinstance(tree, Mapping) or not tree:
        raise OptionError(f"where to reset a subscription: {_EXPECTED}, found {tree!r}")
    positions = {}
    for name, value in tree.items():
        try:
            positions[str(name)] = _position(value)
        except ValueError as error:
            raise OptionError(f"the position of segment {name!r}: {_EXPECTED} ({error})") from error
    return positions


def _position(value: object) -> Position:
    if isinstance(value, Position):
        return value
    if value == "earliest":
        return EARLIEST
    if not isinstance(value, str):
        raise ValueError(f"found {value!r}")  # noqa: TRY004 — one error type for what is malformed
    return Position.parse(value)


def _without_log(topology: Topology, segment: Segment, others: Collection[str]) -> OptionError:
    names = [other.descriptor for other in topology.segments if other.ref.id in others]
    return OptionError(
        f"segment {segment} of {topology.topic} has no log: a subscription stands only in "
        f"{', '.join(names)}"
    )
