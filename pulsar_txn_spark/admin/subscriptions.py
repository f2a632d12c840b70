"""Resetting and deleting subscriptions, from Python."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    OptionError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.store.protocol import Code, Cursor, CursorStart, TxnId

_TRIES = 64  # each lost race means that a transaction or another administrator got on
_WORDS = ("earliest", "latest", "here")

ResetTo = str | datetime | Mapping[str, str | Position]
"""Where a subscription is to go on: a word, a time, or positions by segment."""


@dataclass(frozen=True, slots=True)
class CursorMove:
    """What a reset does in one segment.

    Parameters
    ----------
    segment : str
        Its id.
    before : MessagePosition or None
        Where the cursor stood; None if there was none.
    after : MessagePosition
        Where it stands then.
    owner : str
        The id of the query that it belonged to, ``clients``, or empty.
    active_ms : int or None
        How long ago its owner last committed an acknowledgement here; None if that was not lately.
    """

    segment: str
    before: MessagePosition | None
    after: MessagePosition
    owner: str
    active_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Target:
    """Where cursors are to stand; a function of the segment and its cursor."""

    word: str = ""
    before_ms: int | None = None
    positions: Mapping[str, Position] | None = None

    def leaves(self, segment: Segment) -> bool:
        """Tell whether a cursor is to stay where it stands."""
        if self.positions is not None:
            return segment.descriptor not in self.positions
        return self.word == "here"

    def of(self, run: Runtime, segment: Segment) -> CursorStart | None:
        """Return where one cursor is to stand; None = where it stands."""
        if self.word == "earliest":
            return CursorStart(run.log.trimmed_to(segment.ref), may_skip=True)
        if self.word == "latest":
            return CursorStart(_committed_end(run, segment.ref), may_skip=True)
        if self.before_ms is not None:
            found = run.log.published_before(segment.ref, self.before_ms)
            # What is not decided yet lies behind the end, however old it is.
            found = min(found, _committed_end(run, segment.ref))
            return CursorStart(max(found, run.log.trimmed_to(segment.ref)), may_skip=True)
        named = (self.positions or {}).get(segment.descriptor)
        return None if named is None else CursorStart(named)


def open_runtime(options: Mapping[str, str]) -> Runtime:
    """Reach the store and Pulsar as the options say."""
    return runtime(Options(options, Use.CONNECT))


def reset_subscription(
    options: Mapping[str, str],
    topic: str,
    subscription: str,
    to: ResetTo,
    *,
    dry_run: bool = False,
) -> list[CursorMove]:
    """Put a subscription elsewhere and free it, so that another query can take it.

    A query or consumer that uses it meanwhile fails with a conflict and has to be started again: a
    query with a new checkpoint, unless the cursors stay where they stand.

    Parameters
    ----------
    options : mapping of str to str
    topic : str
    subscription : str
    to : str, datetime or mapping
        ``earliest``; ``latest`` (all that is committed now); ``here`` (only free it); a time with
        its zone, as a datetime or in ISO 8601 (what was published before is acknowledged); or
        positions, as a mapping of segment to ``"ledger:entry"`` or JSON of that. Segments that a
        mapping does not name stay where they stand.
    dry_run : bool
        Change nothing, only tell what would move.

    Returns
    -------
    list of CursorMove
        For each segment in which the subscription stands then.

    Raises
    ------
    SubscriptionNotFoundError
        If there is no such subscription.
    AcknowledgementConflictError
        If a transaction that is alive has acknowledged something there; also, where a cursor is to
        stay, if single messages are acknowledged behind it, which would be forgotten.
    OptionError
        If `to` is none of these, or names a position that does not exist.
    TopicNotFoundError
        If there is no such topic.
    """
    target = _target(to)
    run = open_runtime(options)
    topology, _ = find_subscription(run, options, topic, subscription)
    segments = topology.readable
    target = _checked(run, topology, target)
    for segment in segments:  # all of them before the first one moves
        _settle(run, segment.ref.id, subscription, topic)
        if target.leaves(segment):
            _refuse_single(run, segment.ref, subscription)
    number = 0 if dry_run else run.store.next_source_incarnation()
    moves = []
    for segment in segments:
        move = _reset(run, segment, subscription, topic, target, number)
        if move is not None:
            moves.append(move)
    return moves


def _reset(
    run: Runtime, segment: Segment, subscription: str, topic: str, target: _Target, number: int
) -> CursorMove | None:
    """Move one cursor by one compare-and-set; None where there is none, and none is to be.

    Sources whose incarnation is not above `number` cannot take it back; 0 = only tell what moves.
    """
    id_ = segment.ref.id
    for _ in range(_TRIES):
        [cursor] = run.store.read_cursors([id_], subscription)
        try:
            start = target.of(run, segment)
        except SegmentNotFoundError:
            if not _is_retired(run, segment):
                raise
            return None
        if cursor is None and start is None:
            return None
        after = MessagePosition.whole(start.position) if start else _acknowledged(cursor)
        if number:
            answer = run.store.reset_cursor(id_, subscription, start, cursor, number)
            if answer.code is Code.PENDING:
                _settle(run, id_, subscription, topic)
                continue
            if answer.code is Code.SINGLE:
                _refuse_single(run, segment.ref, subscription)
                continue
            if answer.code in (Code.DELETED, Code.ABSENT):
                return None
            if answer.code is Code.CHANGED:
                continue
            after = MessagePosition.from_padded(answer.values[0])
        before = cursor.acknowledged if cursor else None
        owner = cursor.query if cursor else ""
        return CursorMove(id_, before, after, owner, _active_ms(run, cursor))
    raise AcknowledgementConflictError(
        f"subscription {subscription!r} of segment {id_} moved {_TRIES} times while it was being "
        "reset: its query or consumer runs. Stop it, then reset again"
    )


def _acknowledged(cursor: Cursor | None) -> MessagePosition:
    assert cursor is not None
    return cursor.acknowledged


def _active_ms(run: Runtime, cursor: Cursor | None) -> int | None:
    """Tell how long ago a transaction moved a cursor, as long as its header is there."""
    if cursor is None or not cursor.txn or not cursor.query:
        return None
    header = run.store.read_txn(TxnId.parse(cursor.txn))
    if header is None or header.finalized_ms is None:
        return None
    return max(0, header.now_ms - header.finalized_ms)


def delete_subscription(options: Mapping[str, str], topic: str, subscription: str) -> None:
    """Delete a subscription, so that it holds no data any more.

    A query that still runs with it makes it anew at its next micro-batch.

    Raises
    ------
    SubscriptionNotFoundError
        If there is no such subscription.
    AcknowledgementConflictError
        If a transaction that is alive has acknowledged something there.
    TopicNotFoundError
        If there is no such topic.
    """
    run = open_runtime(options)
    topology, _ = find_subscription(run, options, topic, subscription)
    segments = topology.readable
    for segment in segments:
        _settle(run, segment.ref.id, subscription, topic)
    for segment in segments:
        id_ = segment.ref.id
        answer = run.store.delete_cursor(id_, subscription)
        for _ in range(_TRIES):
            if answer.code is not Code.PENDING:
                break
            _settle(run, id_, subscription, topic)
            answer = run.store.delete_cursor(id_, subscription)


def find_subscription(
    run: Runtime, options: Mapping[str, str], topic: str, subscription: str
) -> tuple[Topology, dict[str, Cursor]]:
    """Return a topic and the cursors of a subscription in it, by segment id.

    Raises
    ------
    SubscriptionNotFoundError
        If the subscription has none.
    TopicNotFoundError
        If there is no such topic.
    """
    name = Options(options, Use.CONNECT).domains.segmented(topic)
    topology = run.topics.require(name)
    ids = [segment.ref.id for segment in topology.readable]
    cursors = run.store.read_cursors(ids, subscription)
    found = {id_: cursor for id_, cursor in zip(ids, cursors, strict=True) if cursor is not None}
    if not found:
        known = sorted({one for id_ in ids for one in run.store.list_subscriptions(id_)})
        raise SubscriptionNotFoundError(
            f"topic {topology.topic} has no subscription {subscription!r}; there are: "
            f"{', '.join(known) or 'none'}. A query or a client makes one when it starts"
        )
    return topology, found


# -- where to ------------------------------------------------------------------------------------


def _target(to: ResetTo) -> _Target:
    """Read where cursors are to stand.

    Raises
    ------
    OptionError
    """
    if isinstance(to, datetime):
        return _Target(before_ms=_milliseconds(to))
    if isinstance(to, str):
        if to in _WORDS:
            return _Target(word=to)
        try:
            parsed = json.loads(to)
        except ValueError:
            return _Target(before_ms=_milliseconds(_time(to)))
    else:
        parsed = to
    return _Target(positions=_positions(parsed))


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            "where to reset a subscription: expected 'earliest', 'latest', 'here', a time such as "
            '2026-01-31T08:00:00Z, or JSON like {"<segment>": "ledger:entry"}, found ' + repr(text)
        ) from None


def _milliseconds(at: datetime) -> int:
    if at.tzinfo is None:
        raise OptionError(
            f"the time {at.isoformat()} has no zone, so that it means another moment elsewhere: "
            f"add it, for example {at.isoformat()}Z"
        )
    return int(at.timestamp() * 1000)


def _positions(tree: object) -> dict[str, Position]:
    """Read positions by segment, or by topic and segment as in the source's offsets."""
    expected = 'expected positions like {"<segment>": "ledger:entry"}'
    if not isinstance(tree, Mapping) or not tree:
        raise OptionError(f"where to reset a subscription: {expected}, found {tree!r}")
    nested = [value for value in tree.values() if isinstance(value, Mapping)]
    if len(nested) == len(tree) == 1:
        return _positions(nested[0])
    found = {}
    for name, value in tree.items():
        try:
            found[str(name)] = _position(value)
        except ValueError as error:
            raise OptionError(f"the position of segment {name!r}: {expected} ({error})") from error
    return found


def _position(value: object) -> Position:
    if isinstance(value, Position):
        return value
    if value == "earliest":
        return EARLIEST
    if not isinstance(value, str):
        raise ValueError(f"found {value!r}")  # noqa: TRY004 — one error type for what is malformed
    return Position.parse(value)


def _checked(run: Runtime, topology: Topology, target: _Target) -> _Target:
    """Refuse positions of segments that are not there, or behind what is committed.

    Raises
    ------
    OptionError
    """
    if target.positions is None:
        return target
    readable = {segment.ref.id: segment for segment in topology.readable}
    positions = {}
    for name, position in target.positions.items():
        segment = topology.segment(name.rpartition("/")[2])
        if segment.ref.id not in readable:
            raise _without_log(topology, segment, readable.keys())
        try:
            end = _committed_end(run, segment.ref)
            first = run.log.trimmed_to(segment.ref)
        except SegmentNotFoundError:
            if not _is_retired(run, segment):
                raise
            raise _without_log(topology, segment, readable.keys() - {segment.ref.id}) from None
        if position > end:
            raise OptionError(
                f"segment {segment.descriptor} of {topology.topic}: {position} lies behind {end}, "
                "up to where anything is committed. Use 'latest' for all that is there"
            )
        if EARLIEST < position < first:
            raise OptionError(
                f"segment {segment.descriptor} of {topology.topic}: everything up to {first} was "
                f"deleted by retention, so no subscription can go on behind {position}"
            )
        positions[segment.descriptor] = max(position, first)
    return replace(target, positions=positions)


def _without_log(topology: Topology, segment: Segment, others: Collection[str]) -> OptionError:
    names = [one.descriptor for one in topology.segments if one.ref.id in others]
    return OptionError(
        f"segment {segment} of {topology.topic} has no log: a subscription stands only in "
        f"{', '.join(names)}"
    )


def _is_retired(run: Runtime, segment: Segment) -> bool:
    """Tell whether retention has deleted a segment, which then had nothing left for anybody."""
    return run.store.holds([segment.ref.id])[0].retired


def _committed_end(run: Runtime, segment: SegmentRef) -> Position:
    def last_confirmed(_: str) -> Position:
        return run.log.last_confirmed(segment)

    return run.buffer.get_max_read_position(segment.id, last_confirmed)


# -- what is in the way --------------------------------------------------------------------------


def _settle(run: Runtime, segment: str, subscription: str, topic: str) -> None:
    """Complete what is decided and abort what has expired; refuse where somebody is alive.

    Raises
    ------
    AcknowledgementConflictError
    """
    missing: set[TxnId] = set()
    for _ in range(_TRIES):
        acks = run.store.read_acks(segment, subscription)
        if acks is None or not acks.pending:
            return
        holders = [TxnId.parse(key) for key in acks.pending]
        if not run.coordinator.help(holders, missing):
            raise AcknowledgementConflictError(
                f"subscription {subscription!r} of {topic} has an acknowledgement pending in "
                f"transaction {', '.join(map(str, holders))}, which is open: its query or consumer "
                "is alive. Stop it; its transaction ends with its lease, or at once with "
                "pulsar-txn txn abort"
            )
    raise AcknowledgementConflictError(
        f"subscription {subscription!r} of {topic}: transactions keep acknowledging in it. Stop "
        "its query or consumer first"
    )


def _refuse_single(run: Runtime, segment: SegmentRef, subscription: str) -> None:
    """Refuse to leave a cursor where it stands if it does not say all that is acknowledged."""
    acks = run.store.read_acks(segment.id, subscription)
    if acks is not None and (acks.deleted or acks.cursor.taken_after[1]):
        raise AcknowledgementConflictError(
            f"subscription {subscription!r} of segment {segment.id}: its cursor stands at "
            f"{acks.cursor}, and clients have acknowledged single messages behind it "
            f"({len(acks.deleted)} ranges): freed here, it would deliver them again. Let a client "
            "acknowledge what lies between them, to the end of an entry, or reset to 'earliest' "
            "or 'latest'. Nothing was changed"
        )
