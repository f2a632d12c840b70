"""Resets and deletions of subscriptions: one compare-and-set for each segment's cursor."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_txn_spark.admin.reset_target import ResetTarget, behind_retention, is_retired
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    SegmentNotFoundError,
    SubscriptionNotFoundError,
)
from pulsar_txn_spark.position import MessagePosition
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.store.records import Code, Cursor, CursorAnswer, CursorStart, TxnId

_TRIES = 64  # each lost race means that a transaction or another administrator has made progress


@dataclass(frozen=True, slots=True)
class CursorMove:
    """What a reset does in one segment.

    Parameters
    ----------
    segment : str
        Its id.
    before : MessagePosition or None
        Position of the cursor before the reset; None if there was none.
    after : MessagePosition
        Its position after the reset.
    owner : str
        The id of the query that owned it, ``clients``, or empty.
    active_ms : int or None
        Milliseconds since its owner last committed an acknowledgement here; None if not lately.
    """

    segment: str
    before: MessagePosition | None
    after: MessagePosition
    owner: str
    active_ms: int | None = None


def reset(
    components: Components,
    topic: TopicName,
    subscription: str,
    target: ResetTarget,
    *,
    dry_run: bool,
) -> list[CursorMove]:
    """Move a subscription's cursors and release it; see :meth:`Admin.reset_subscription`."""
    topology = find(components, topic, subscription)
    segments = topology.readable
    target = target.checked(components, topology)
    for segment in segments:  # all of them before the first one moves
        _settle(components, segment.ref.id, subscription, topology)
        if target.leaves(segment):
            _refuse_single(components, segment.ref, subscription)
    number = 0 if dry_run else components.store.meta.next_source_epoch()
    moves = []
    unread: set[str] = set()  # ids of segments at whose end something is left to read
    for segment in segments:  # parents stand before their children
        is_later = any(parent in unread for parent in segment.parents)
        move = _reset(
            components, segment, subscription, topology, target, number, is_later=is_later
        )
        if move is not None:
            moves.append(move)
        # One that was sealed without a row has nothing to read, but stands behind what has.
        if is_later or (move is not None and _leaves_unread(segment, move)):
            unread.add(segment.ref.id)
    return moves


def _leaves_unread(segment: Segment, move: CursorMove) -> bool:
    return segment.sealed and not segment.drained_at(move.after.taken_after[0])


def _reset(
    components: Components,
    segment: Segment,
    subscription: str,
    topology: Topology,
    target: ResetTarget,
    number: int,
    *,
    is_later: bool,
) -> CursorMove | None:
    """Move one cursor by one compare-and-set; None where there is none, and none is to be.

    Sources whose epoch is not above `number` cannot take it back; 0 = only tell what moves.
    """
    id_ = segment.ref.id
    for _ in range(_TRIES):
        [cursor] = components.store.subscriptions.read_cursors([id_], subscription)
        try:
            start = target.of(components, segment, is_later=is_later)
        except SegmentNotFoundError:
            if not is_retired(components, segment):
                raise
            return None
        if cursor is None and start is None:
            return None
        after = MessagePosition.whole(start.position) if start else _acknowledged(cursor)
        if number:
            answer = components.store.subscriptions.reset_cursor(
                id_, subscription, start, cursor, number
            )
            if answer.code is Code.PENDING:
                _settle(components, id_, subscription, topology)
                continue
            if answer.code is Code.SINGLE:
                _refuse_single(components, segment.ref, subscription)
                continue
            if answer.code in (Code.DELETED, Code.ABSENT):
                return None
            if answer.code is Code.CHANGED:
                continue
            _refuse_trimmed(answer, start, segment, topology)
            assert answer.position is not None
            after = answer.position
        before = cursor.acknowledged if cursor else None
        owner = cursor.query if cursor else ""
        return CursorMove(id_, before, after, owner, _active_ms(components, cursor))
    raise AcknowledgementConflictError(
        f"subscription {subscription!r} of segment {id_} moved {_TRIES} times while it was being "
        "reset: its query or consumer runs. Stop it, then reset again"
    )


def _acknowledged(cursor: Cursor | None) -> MessagePosition:
    assert cursor is not None
    return cursor.acknowledged


def _active_ms(components: Components, cursor: Cursor | None) -> int | None:
    """Return how long ago a transaction moved a cursor, as long as its header is there."""
    if cursor is None or not cursor.txn or not cursor.query:
        return None
    header = components.store.transactions.read(TxnId.parse(cursor.txn))
    if header is None or header.finalized_ms is None:
        return None
    return max(0, header.now_ms - header.finalized_ms)


def delete(components: Components, topic: TopicName, subscription: str) -> None:
    """Delete a subscription; see :meth:`Admin.delete_subscription`."""
    topology = find(components, topic, subscription)
    for segment in topology.readable:
        _settle(components, segment.ref.id, subscription, topology)
    for _ in range(_TRIES):
        # Children first: who has a cursor in a child is through with the parents (INV-10). A query
        # that goes on behind half a deletion repeats rows, and skips none.
        for segment in reversed(topology.readable):
            _delete_cursor(components, segment.ref.id, subscription, topology)
        # A sweep may have handed the subscription over to a child, and a split may have come.
        topology = components.topics.lifecycle.reread(topology, "a subscription of it was deleted")
        ids = [segment.ref.id for segment in topology.readable]
        if not any(components.store.subscriptions.read_cursors(ids, subscription)):
            return
    raise _comes_again(subscription, topology)


def _delete_cursor(
    components: Components, segment: str, subscription: str, topology: Topology
) -> None:
    for _ in range(_TRIES):
        answer = components.store.subscriptions.delete_cursor(segment, subscription)
        if answer.code is not Code.PENDING:
            return
        _settle(components, segment, subscription, topology)
    raise _comes_again(subscription, topology)


def _comes_again(subscription: str, topology: Topology) -> AcknowledgementConflictError:
    return AcknowledgementConflictError(
        f"subscription {subscription!r} of {topology.topic} was used again each of {_TRIES} times "
        "that it was deleted: its query or consumer runs. Stop it, then delete again"
    )


def find(components: Components, topic: TopicName, subscription: str) -> Topology:
    """Return the topic of a subscription that exists.

    Raises
    ------
    SubscriptionNotFoundError
        If the subscription has no cursor in any segment.
    TopicNotFoundError
        If there is no such topic.
    """
    topology = components.topics.require(topic)
    ids = [segment.ref.id for segment in topology.readable]
    cursors = components.store.subscriptions.read_cursors(ids, subscription)
    if all(cursor is None for cursor in cursors):
        known = sorted({name for id_ in ids for name in components.store.subscriptions.names(id_)})
        raise SubscriptionNotFoundError(
            f"topic {topology.topic} has no subscription {subscription!r}; there are: "
            f"{', '.join(known) or 'none'}. A query or a client makes one when it starts"
        )
    return topology


# -- what is in the way --------------------------------------------------------------------------


def _settle(components: Components, segment: str, subscription: str, topology: Topology) -> None:
    """Complete decided transactions and abort expired ones; refuse if one is still open.

    Raises
    ------
    AcknowledgementConflictError
    """
    missing: set[TxnId] = set()
    for _ in range(_TRIES):
        acks = components.store.subscriptions.read_acks(segment, subscription)
        if acks is None or not acks.pending:
            return
        holders = [TxnId.parse(key) for key in acks.pending]
        if not components.coordinator.complete_on_behalf(holders, missing):
            raise AcknowledgementConflictError(
                f"subscription {subscription!r} of {topology.topic} has an acknowledgement pending "
                f"in transaction {', '.join(map(str, holders))}, which is open: its query or "
                "consumer is alive. Stop it; its transaction ends with its lease, or at once with "
                "pulsar-txn txn abort"
            )
    raise AcknowledgementConflictError(
        f"subscription {subscription!r} of {topology.topic}: transactions keep acknowledging in "
        "it. Stop its query or consumer first"
    )


def _refuse_trimmed(
    answer: CursorAnswer, start: CursorStart | None, segment: Segment, topology: Topology
) -> None:
    """Refuse a place that retention has passed since it was looked at."""
    if answer.code is Code.TRIMMED and answer.position is not None and start is not None:
        trimmed_to = answer.position.taken_after[0]
        raise behind_retention(topology, segment, start.position, trimmed_to)


def _refuse_single(components: Components, segment: SegmentRef, subscription: str) -> None:
    """Refuse to leave a cursor where it is if single messages behind it are acknowledged."""
    acks = components.store.subscriptions.read_acks(segment.id, subscription)
    if acks is not None and (acks.deleted or acks.cursor.taken_after[1]):
        raise AcknowledgementConflictError(
            f"subscription {subscription!r} of segment {segment.id}: its cursor stands at "
            f"{acks.cursor}, and clients have acknowledged single messages behind it "
            f"({len(acks.deleted)} ranges). Freed here, it would deliver them again. Let a client "
            "acknowledge what lies between them, to the end of an entry, or reset to 'earliest' "
            "or 'latest'. Nothing was changed"
        )
