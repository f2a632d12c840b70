"""Reading the segments of topics for one subscription: what is committed, parents first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pulsar_txn_spark.client.message import Delivery, Message, moment
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    DataLossError,
    PulsarTxnError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.log import READ_SCHEMA
from pulsar_txn_spark.segments.reading_order import ReadingOrder
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, SegmentState, Topology
from pulsar_txn_spark.store.ack_ranges import AckInterval, SubscriptionState
from pulsar_txn_spark.store.records import Code, CursorStart, SubscriptionRef, TxnId
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER, MetadataPendingAckStore, taken_over
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange

_LOG = logging.getLogger(__name__)
_MESSAGES_AHEAD = 1_000  # so many messages, or bytes, are read ahead of the application
_BYTES_AHEAD = 4 * 1024 * 1024
_COLUMNS = frozenset(READ_SCHEMA.names) - {
    *("first_ledger", "first_entry", "producer_name", "sequence_id")
}
_TRIES = 64  # each lost race means that somebody changed the topic


@dataclass(slots=True)
class Reading:
    """One segment as it is read.

    Parameters
    ----------
    segment : Segment
    where : SubscriptionRef
    state : SubscriptionState
        What was acknowledged when the reading (re)started at the cursor.
    position : Position
        All entries up to here were read.
    previous : MessagePosition
        The last visible message that was passed.
    """

    segment: Segment
    where: SubscriptionRef
    state: SubscriptionState
    position: Position
    previous: MessagePosition
    closed_tail: bool = False

    @classmethod
    def at_cursor(
        cls, segment: Segment, where: SubscriptionRef, state: SubscriptionState
    ) -> Reading:
        """Begin at the cursor."""
        return cls(segment, where, state, state.cursor.taken_after[0], state.cursor)


@dataclass(frozen=True, slots=True)
class Read:
    """Messages that were read, and those passed over because a transaction has locked them."""

    messages: tuple[Message, ...] = ()
    locked: tuple[tuple[str, AckInterval, TxnId], ...] = ()
    progress: bool = False


class SubscriptionReader:
    """Reads for one consumer; used by one thread at a time.

    Parameters
    ----------
    components : Components
    topics : sequence of TopicName
    subscription : str
    latest : bool
        Whether a subscription that is not there yet begins at the end rather than at the beginning.
    consumer : object
        On whose behalf; stands in the messages.
    """

    def __init__(
        self,
        components: Components,
        topics: Sequence[TopicName],
        subscription: str,
        *,
        latest: bool,
        consumer: object,
    ) -> None:
        self._components = components
        self._topics = topics
        self._subscription = subscription
        self._latest = latest
        self._consumer = consumer
        self._acks = MetadataPendingAckStore(components.coordinator)
        self._source_epoch = components.store.meta.next_source_epoch()
        self._readings: dict[str, Reading] = {}
        self._seen: set[str] = set()
        self._gone: set[str] = set()
        self._due: set[str] = set()
        self._followed: tuple[str, ...] = ()
        self._known: dict[TopicName, bool] = {}
        self._instance_ids: dict[TopicName, str] = {}
        self._round = 0
        self._attach_all()
        self._watcher = components.watcher()

    # -- subscribing ---------------------------------------------------------------------------

    def _attach_all(self) -> None:
        """Claim every segment, until there is none that is not claimed.

        An older consumer that is still there can then acknowledge nothing, in no segment. What
        happens to a key's messages happens in their order also across a take-over.
        """
        for topic in self._topics:
            for _ in range(_TRIES):
                if not self._attach(self._topology(topic)):
                    break
        # Only once all are claimed: until then the older consumer could acknowledge more.
        self._begin(self._readings)

    def _begin(self, segments: Iterable[str]) -> None:
        """End what an older consumer has left open, and read from the cursor on."""
        for id_ in list(segments):
            where = self._readings[id_].where
            state = self._unless_retired(where, partial(self._acks.take_over, where))
            if state is not None:
                self._restart(self._readings[id_], state)

    def _topology(self, topic: TopicName) -> Topology:
        topology = self._components.topics.require(topic)
        known = self._instance_ids.setdefault(topic, topology.instance_id)
        if known != topology.instance_id:
            raise DataLossError(
                f"topic {topic} was deleted and created again since this consumer subscribed: what "
                "it had not received then is gone. Subscribe again"
            )
        changes = self._components.topics.changes
        if not topology.active:  # it is being adopted: nothing can be read yet
            return changes.await_or_finish(topology)
        if topology.unfinished:
            try:
                return changes.finish(topology)
            except PulsarTxnError as error:
                # A reader need not have the rights for it; whoever writes will come by.
                _LOG.warning("a change of %s is not finished yet: %s", topic, error)
        return topology

    def _attach(self, topology: Topology) -> list[str]:
        """Claim the segments of a topic that are not claimed yet, and return their ids."""
        new = [s for s in topology.segments if s.ref.id not in self._seen]
        if not new:
            return []
        cursors = dict(
            zip(
                (s.ref.id for s in new),
                self._components.store.subscriptions.read_cursors(
                    [s.ref.id for s in new], self._subscription
                ),
                strict=True,
            )
        )
        known = self._known.get(topology.topic, any(cursors.values()))
        self._known[topology.topic] = known
        readable = {s.ref.id for s in topology.readable}
        claimable = [s for s in new if s.ref.id in readable]
        had = {id_ for id_, cursor in cursors.items() if cursor} | self._readings.keys()
        entered = _with_entered_children(topology, had)
        fresh = [s for s in claimable if cursors[s.ref.id] is None]
        starts = self._starts(claimable, {s.ref.id for s in fresh}, had, entered)
        # If this dies halfway, what has a cursor must not make the rest look read, or new. From
        # the beginning parents are claimed first, from the end children are.
        for segment in reversed(claimable) if self._latest and not known else claimable:
            where = SubscriptionRef(
                segment.ref.id, self._subscription, CLIENT_OWNER, self._source_epoch
            )
            if cursors[segment.ref.id] is None:
                # Retention sees the cursor, or it begins behind what retention has let go.
                start = CursorStart(starts[segment.ref.id], may_skip=True)
                planting = {segment.ref.id: start}
                [answer] = self._components.store.subscriptions.create_cursors(
                    self._subscription, planting
                )
                if answer.code is Code.DELETED:
                    # Retired by retention, with nothing left in it for this subscription.
                    self._gone.add(segment.ref.id)
                    continue
            if not self._acks.claim(where, starts[segment.ref.id]):
                # The same: no segment is retired before its subscriptions have read all of it.
                self._gone.add(segment.ref.id)
                continue
            state = self._replay(where)
            if state is not None:
                self._readings[segment.ref.id] = Reading.at_cursor(segment, where, state)
        for segment in new:
            cursor = cursors[segment.ref.id]
            if segment.state is SegmentState.DELETED and cursor is not None:
                self._deleted_at(topology, segment, cursor.position)
        self._seen.update(s.ref.id for s in new if s.state is not SegmentState.PLANNED)
        return [s.ref.id for s in claimable if s.ref.id in self._readings]

    def _starts(
        self, segments: Sequence[Segment], fresh: set[str], had: set[str], entered: set[str]
    ) -> dict[str, Position]:
        """Tell where each segment begins that has no cursor yet.

        Parameters
        ----------
        segments : sequence of Segment
            Parents before their children.
        fresh : set of str
            Which of them have no cursor.
        had : set of str
            Segments that had one before, or are read already.
        entered : set of str
            Segments of which a descendant has one.
        """
        starts: dict[str, Position] = {}
        came_later: set[str] = set()  # than the subscription: descendants of what it has
        for segment in segments:
            id_ = segment.ref.id
            if (had | came_later).intersection(segment.parents):
                came_later.add(id_)
            if id_ not in fresh:
                starts[id_] = EARLIEST
            elif id_ in entered:
                # Left behind for a child by whoever set this subscription up.
                starts[id_] = segment.sealed_at or EARLIEST
            elif self._latest and id_ not in came_later:
                # It was there when the subscription was made, or its making was cut short.
                starts[id_] = self._committed_end(segment)
            else:
                starts[id_] = self._components.log.trimmed_to(segment.ref)
        return starts

    def _deleted_at(self, topology: Topology, segment: Segment, position: Position) -> None:
        if segment.sealed_at is not None and not segment.drained_at(position):
            self._refuse_deleted(topology.topic, segment, position)

    def _refuse_deleted(self, topic: TopicName, segment: Segment, position: Position) -> None:
        raise DataLossError(
            f"segment {segment.descriptor} of {topic} was deleted with all that it had up to "
            f"{segment.sealed_at}, but subscription {self._subscription!r} has acknowledged only "
            f"up to {position}. The rest is lost. Nothing was skipped: reset the subscription "
            "(pulsar_txn_spark.Admin.reset_subscription) to go on with what is left"
        )

    def _committed_end(self, segment: Segment) -> Position:
        def last_confirmed(_: str) -> Position:
            return self._components.log.last_confirmed(segment.ref)

        return self._components.buffer.get_max_read_position(segment.ref.id, last_confirmed)

    # -- back to the cursor --------------------------------------------------------------------

    def _rewind(self) -> None:
        for reading in list(self._readings.values()):
            state = self._replay(reading.where)
            if state is not None:
                self._restart(reading, state)

    def _replay(self, where: SubscriptionRef) -> SubscriptionState | None:
        replay = partial(self._acks.replay, where.segment, where.subscription)
        return self._unless_retired(where, replay)

    def _unless_retired(
        self, where: SubscriptionRef, read: Callable[[], SubscriptionState]
    ) -> SubscriptionState | None:
        """Read what is acknowledged in a segment that is claimed; None if it was deleted meanwhile.

        Retention deletes none that a subscription has not read to its end: nothing is left there.
        """
        try:
            return read()
        except AcknowledgementConflictError:
            if not self._components.store.segments.retained([where.segment])[0].retired:
                raise
        self._gone.add(where.segment)
        self._readings.pop(where.segment, None)
        return None

    def _restart(self, reading: Reading, state: SubscriptionState) -> None:
        fresh = Reading.at_cursor(reading.segment, reading.where, state)
        self._readings[reading.where.segment] = fresh
        self._due.add(reading.where.segment)

    def origins(self) -> dict[SubscriptionRef, MessagePosition]:
        """Return where the reading of each segment (re)started."""
        return {reading.where: reading.state.cursor for reading in self._readings.values()}

    def deliverable(self, where: SubscriptionRef, message: MessagePosition) -> bool:
        """Tell whether a message is neither acknowledged nor claimed."""
        return self._acks.replay(where.segment, self._subscription).deliverable(message)

    def acknowledged(self, segment: str, intervals: Iterable[AckInterval]) -> bool:
        """Tell whether all of them are acknowledged for good."""
        state = self._components.store.subscriptions.read_acks(segment, self._subscription)
        # A subscription that is not there: its segment was deleted, or the next reading says so.
        return state is None or all(map(state.has_deleted, intervals))

    # -- reading -------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> None:
        """Wait until something happens to a segment, or :meth:`wake` is called."""
        self._due.update(self._watcher.wait(timeout_s))

    def poll_everywhere(self) -> None:
        """Let the next reading poll every segment, whether an event came for it or not."""
        self._due.update(self._followed)

    def wake(self) -> None:
        """Let the thread that waits return; from any thread."""
        self._watcher.wake()

    def read(self, redelivery_epoch: int, *, rewind: bool) -> Read:
        """Poll the segments that are due, and read what may be read.

        With `rewind`, everything comes again that is not acknowledged.

        Raises
        ------
        FencedError
            If a newer consumer has taken the subscription over.
        DataLossError
            If messages that were not acknowledged are gone.
        AcknowledgementConflictError
            If the subscription was reset.
        StoreError, SegmentLogError
        """
        # The order matters: what is sealed, then LAC, then the gate.
        topologies = [self._topology(topic) for topic in self._topics]
        for topology in topologies:
            self._forget_deleted(topology)
        self._require_claims()
        if rewind:
            self._rewind()
        for topology in topologies:
            self._begin(self._attach(topology))
        released = [segment for topology in topologies for segment in self._released(topology)]
        ids = tuple(segment.ref.id for segment in released)
        if ids != self._followed:
            self._due.update(set(ids) - set(self._followed))
            self._watcher.follow(ids)
            self._followed = ids
        # Also where some are due already: a busy segment must not hide the others.
        self._due.update(self._watcher.poll())
        self._due &= set(ids)
        due = [segment for segment in self._round_robin(released) if segment.ref.id in self._due]
        if not due:
            return Read()
        return self._read_due(due, self._readable(due), redelivery_epoch)

    def _forget_deleted(self, topology: Topology) -> None:
        """Forget segments that were deleted after they had been read; others are an error later."""
        for segment in topology.segments:
            reading = self._readings.get(segment.ref.id)
            if reading is None or segment.state is not SegmentState.DELETED:
                continue
            if not segment.drained_at(reading.position):
                self._refuse_deleted(topology.topic, segment, reading.position)
            del self._readings[segment.ref.id]

    def _require_claims(self) -> None:
        """Raise if a newer consumer is there, or the subscription was reset or deleted."""
        cursors = self._components.store.subscriptions.read_cursors(
            list(self._readings), self._subscription
        )
        for reading, cursor in zip(self._readings.values(), cursors, strict=True):
            where = reading.where
            if cursor is not None and cursor.query == CLIENT_OWNER:
                if cursor.source_epoch > self._source_epoch:
                    raise taken_over(where)
                if cursor.cursor_version == reading.state.cursor_version:
                    continue
            if cursor is None and self._was_deleted(reading.segment):
                continue
            raise AcknowledgementConflictError(
                f"{where} was reset or deleted since this consumer subscribed: subscribe again to "
                "go on where it stands then"
            )

    def _was_deleted(self, segment: Segment) -> bool:
        """Tell whether a segment went since the topology was read, and its cursors with it."""
        topology = self._components.topics.require(TopicName.parse(segment.ref.topic))
        segment_now = topology.by_id.get(segment.ref.id)
        return segment_now is not None and segment_now.state is SegmentState.DELETED

    def _released(self, topology: Topology) -> list[Segment]:
        """Return the segments that may be read next (INV-10)."""
        at = {}
        for segment in topology.segments:
            reading = self._readings.get(segment.ref.id)
            if reading is not None:
                reading.segment = segment
                at[segment.descriptor] = reading.position
            elif segment.ref.id in self._gone and segment.sealed_at is not None:
                at[segment.descriptor] = segment.sealed_at
        order = ReadingOrder.of(topology, at, known=self._known[topology.topic])
        for segment in order.lost:
            self._refuse_deleted(topology.topic, segment, at.get(segment.descriptor, EARLIEST))
        for segment in topology.segments:
            if segment.descriptor in order.passed and segment.ref.id in self._readings:
                self._close_tail(self._readings[segment.ref.id])
        released = [s for s in topology.segments if s.descriptor in order.released]
        # What went since the topology was read is nobody's to read.
        return [segment for segment in released if segment.ref.id in self._readings]

    def _close_tail(self, reading: Reading) -> None:
        """Acknowledge what lies behind the last visible message of a segment that is read through.

        Nobody will ever see it, and else the cursor would never come to the segment's end.
        """
        end = reading.segment.sealed_at
        if reading.closed_tail or end is None:
            return
        if reading.previous < MessagePosition.whole(end):
            tail = AckInterval(reading.previous, MessagePosition.whole(end))
            self._acks.acknowledge_now(reading.where, [tail])
        reading.closed_tail = True

    def _round_robin(self, segments: Sequence[Segment]) -> list[Segment]:
        """Rotate the segments: each one comes first in some round."""
        self._round += 1
        at = self._round % len(segments) if segments else 0
        return [*segments[at:], *segments[:at]]

    def _readable(self, due: Sequence[Segment]) -> list[ReadableRange]:
        by_id = {segment.ref.id: segment.ref for segment in due}
        return self._components.buffer.readable(
            list(by_id),
            lambda segment_id: self._components.log.last_confirmed(by_id[segment_id]),
            [self._readings[id_].position for id_ in by_id],
        )

    def _read_due(
        self, due: Sequence[Segment], ranges: Iterable[ReadableRange], redelivery_epoch: int
    ) -> Read:
        messages: list[Message] = []
        locked: list[tuple[str, AckInterval, TxnId]] = []
        passed: dict[str, tuple[Position, MessagePosition]] = {}
        done: set[str] = set()
        progress = False
        for segment, readable in zip(due, ranges, strict=True):
            id_ = segment.ref.id
            reading = self._readings[id_]
            self._watcher.blocked_by(id_, readable.blocked_by)
            if readable.end <= reading.position:
                done.add(id_)
                continue
            if len(messages) >= _MESSAGES_AHEAD:
                progress = True
                continue
            before = {
                other.where: passed[name][1] if name in passed else other.previous
                for name, other in self._readings.items()
                if other is not reading
            }
            part, end, previous = self._read_range(reading, readable, redelivery_epoch, before)
            messages += part.messages
            locked += part.locked
            passed[id_] = (end, previous)
            progress = True
            if end >= readable.end:
                done.add(id_)
        # All or nothing: what an error kept back has to be read again.
        self._due -= done
        for id_, (end, previous) in passed.items():
            self._readings[id_].position = end
            self._readings[id_].previous = previous
        return Read(tuple(messages), tuple(locked), progress)

    def _read_range(
        self,
        reading: Reading,
        readable: ReadableRange,
        redelivery_epoch: int,
        before: Mapping[SubscriptionRef, MessagePosition],
    ) -> tuple[Read, Position, MessagePosition]:
        """Read whole entries, until enough lies ready; return up to where, and the last message."""
        messages: list[Message] = []
        locked: list[tuple[str, AckInterval, TxnId]] = []
        size = 0
        previous, entry = reading.previous, reading.position
        ref = reading.segment.ref
        for row in self._rows(reading, readable):
            following = Position(row["ledger"], row["entry"])
            if following != entry and (len(messages) >= _MESSAGES_AHEAD or size >= _BYTES_AHEAD):
                return Read(tuple(messages), tuple(locked)), entry, previous
            entry = following
            at = _position_of(row)
            interval = AckInterval(previous, at)
            holder = reading.state.holder_of(at)
            # Also what is not delivered is passed: visible messages are a chain.
            previous = max(previous, at)
            if holder is None:
                delivery = Delivery(
                    self._consumer, redelivery_epoch, reading.where, interval, before
                )
                messages.append(_message(ref.topic, ref.id, at, row, delivery))
                size += len(row["value"] or b"")
            elif holder:
                locked.append((ref.id, interval, TxnId.parse(holder)))
        return Read(tuple(messages), tuple(locked)), readable.end, previous

    def _rows(self, reading: Reading, readable: ReadableRange) -> Iterator[dict[str, Any]]:
        for batch in self._components.log.read(
            reading.segment.ref,
            reading.position,
            readable.end,
            visible=readable.visibility,
            columns=_COLUMNS,
            max_rows=_MESSAGES_AHEAD,
        ):
            yield from batch.to_pylist()

    def close(self) -> None:
        """Let go of the connections."""
        self._watcher.close()


def _with_entered_children(topology: Topology, has_cursor: set[str]) -> set[str]:
    """Return the segments of which a descendant has a cursor."""
    entered: set[str] = set()
    for segment in reversed(topology.segments):
        if any(child in entered or child in has_cursor for child in segment.children):
            entered.add(segment.ref.id)
    return entered


def _position_of(row: Mapping[str, Any]) -> MessagePosition:
    position = Position(row["ledger"], row["entry"])
    if row["batch_index"] < 0:  # not part of a batch
        return MessagePosition.whole(position)
    return MessagePosition.of_message(position, row["batch_index"], row["batch_size"])


def _message(
    topic: str, segment: str, position: MessagePosition, row: Mapping[str, Any], delivery: Delivery
) -> Message:
    event_time = row["event_time_ms"]
    return Message(
        topic=topic,
        segment=segment,
        position=position,
        value=row["value"],
        key=row["key"],
        properties=dict(row["properties"] or ()),
        event_time=None if event_time is None else moment(event_time),
        publish_time=moment(row["publish_time_ms"]),
        delivery=delivery,
    )
