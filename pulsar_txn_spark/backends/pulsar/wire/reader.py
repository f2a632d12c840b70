"""Reading a topic over the wire: entries in order, within a budget of bytes, as Arrow.

The subscription is exclusive and not durable: its cursor lives and dies with the connection, and
nothing is left behind. It may be opened again at any position, so that a lost connection costs
nothing but time. Pulsar counts permits in messages, not in bytes: how many are granted follows the
mean size of what came. Where that was misjudged by far, the subscription is closed before memory
is full, and opened again behind the last entry that was taken.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.pulsar.passthrough import parse_passthrough
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandFlow,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandMessage,
    CommandSubscribe,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsar_txn_spark.backends.pulsar.wire import batch
from pulsar_txn_spark.backends.pulsar.wire.client import RETRIED, Backoff, WireClient, explain
from pulsar_txn_spark.backends.pulsar.wire.compression import MAX_PAYLOAD_BYTES, decompress
from pulsar_txn_spark.backends.pulsar.wire.connection import (
    Connection,
    RefusedError,
    positive_id,
    wire_id,
)
from pulsar_txn_spark.backends.pulsar.wire.frames import FrameError, decode_entry, encode_command
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import READ_SCHEMA, ROW_SCHEMA, SegmentRef

BEHIND_ALL = Position(2**63 - 1, 2**63 - 1)
"""A reader that begins here gets only what comes later."""

_BUDGET_BYTES = 16 * 1024 * 1024  # prefetched; several times bandwidth x delay of a LAN
_OVERFLOW = 4  # times the budget: then the subscription is opened again
_FIRST_PERMITS = 16  # before any size is known
_MAX_PERMITS = 1_000_000
_POLL_SECONDS = 1.0  # how often a reader that gets nothing asks whether there is anything
_PROGRESS_SECONDS = 30.0  # a broker that restarts is back by then
_BATCH_BYTES = 16 * 1024 * 1024  # bound on one record batch on its way out
_EXCLUSIVE = 0
_FROM_THE_END, _FROM_THE_BEGINNING = 0, 1
_CUMULATIVE = 1
_LOOK_BACK = 4  # times as many entries as there are chunks, at first
_SUBSCRIPTION = "pulsar-txn-spark-"
_MOST_SKIPPED, _MOST_SKIPPED_BYTES = 16, 64 * 1024  # more is worth another reader


@dataclass(frozen=True, slots=True)
class WireReaderSettings:
    """How to read: made from the options ``pulsar.reader.*``.

    Parameters
    ----------
    budget_bytes : int
        About what is prefetched.
    max_permits : int
        Bound on the messages that are prefetched; 0 = nothing is to be delivered.
    subscription : str
        Beginning of the subscription's name.
    consumer : str
        The consumer's name, "" for none.
    poll_s, timeout_s : float
        Bounds on waiting: before the broker is asked whether there is anything, and altogether.
    asks_last : bool
        Whether what the broker calls its last message is believed. If not, nothing that comes in
        `poll_s` is nothing. It is asked all the same before it may deliver anything. A broker of
        5.0.0-M1 answers when it has found out what is open and aborted, and delivers before.
    """

    budget_bytes: int = _BUDGET_BYTES
    max_permits: int = _MAX_PERMITS
    subscription: str = _SUBSCRIPTION
    consumer: str = ""
    poll_s: float = _POLL_SECONDS
    timeout_s: float = _PROGRESS_SECONDS
    asks_last: bool = True

    @classmethod
    def of(cls, config: PulsarConfig) -> WireReaderSettings:
        """Read the options.

        Raises
        ------
        OptionError
            If one is unknown, refused or malformed.
        """
        options = parse_passthrough("reader", dict(config.reader))
        return cls(
            max_permits=options.get("receiver_queue_size", _MAX_PERMITS),
            subscription=options.get("subscription_role_prefix", "") + _SUBSCRIPTION,
            consumer=options.get("reader_name", ""),
        )


@dataclass(frozen=True, slots=True)
class WireEntry:
    """An entry whose checksum was right; its payload is still packed.

    ``first`` is where a message begins that was put together out of several entries.
    """

    position: Position
    metadata: MessageMetadata
    payload: bytes | memoryview
    first: Position | None = None

    @property
    def producer_name(self) -> str:
        """Return who wrote it."""
        return batch.text_of(self.metadata.producer_name)

    @property
    def messages(self) -> int:
        """Return how many messages Pulsar counts in it."""
        return self.metadata.num_messages_in_batch


class _Subscription:
    """What one subscription has got so far; filled by the connection's thread."""

    def __init__(self, number: int, limit_bytes: int) -> None:
        self.number = number
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._queue: collections.deque[tuple[Position, bytes]] = collections.deque()
        self._buffered_bytes = 0
        self._over: RefusedError | None = None
        self._ended = False

    def on_message(self, delivery: CommandMessage, body: bytes) -> None:
        """Queue an entry, unless it would be too much: then it comes again later."""
        with self._changed:
            if self._over is not None:
                return
            if self._queue and self._buffered_bytes + len(body) > self._limit_bytes:
                self._over = RefusedError("Disconnected", "more came than fits into memory")
            else:
                self._queue.append((Position(*positive_id(delivery.message_id)), body))
                self._buffered_bytes += len(body)
            self._changed.notify()

    def on_lost(self, why: RefusedError) -> None:
        """Note that nothing more will come."""
        with self._changed:
            self._over = self._over or why
            self._changed.notify()

    def on_end(self) -> None:
        """Note that the topic is sealed, and that everything in it was delivered or is hidden."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def is_idle(self) -> bool:
        """Tell whether more may come, and nothing has come that was not taken."""
        with self._changed:
            return self._over is None and not self._queue

    def wait_for_end(self, timeout_s: float) -> bool:
        """Tell whether the broker says in time that the topic has nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._over or self._queue, timeout_s)
            return self._ended and not self._queue

    def poll(self, timeout_s: float) -> tuple[Position, bytes] | None:
        """Return the next entry, None if none comes in time.

        Raises
        ------
        RefusedError
            If nothing more will come.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._over, timeout_s)
            if self._queue:
                taken = self._queue.popleft()
                self._buffered_bytes -= len(taken[1])
                return taken
            if self._over is not None:
                raise self._over
            return None


class WireEntryFeed:
    """Entries of one segment in order, with a bound on memory and on waiting.

    Parameters
    ----------
    segment : SegmentRef
        Which.
    start : Position
        The first entry is the one after it.
    client : WireClient
        Whose connections to use.
    settings : WireReaderSettings
        How much to prefetch, how long to wait.
    entries : int
        How many entries a short range has, 0 for a long one. Of a short range a single entry is
        fetched until somebody reads it, and nothing behind the range. When such a reader is closed,
        it may wait for the next range (:mod:`.idle_feeds`).

    Raises
    ------
    SegmentNotFoundError, SegmentLogUnavailableError
    """

    def __init__(
        self,
        segment: SegmentRef,
        start: Position,
        client: WireClient,
        settings: WireReaderSettings,
        *,
        entries: int = 0,
    ) -> None:
        self._segment = segment
        self.topic = segment.log_name
        self._is_short = entries > 0
        self._left = entries  # of a short range
        self._to_skip = 0  # entries before a range that another reader has read
        self._entry_bytes = 0  # of the last one that was wanted
        self._behind = start  # the last entry that was taken
        self._client = client
        self._settings = settings
        self._mean_bytes = 0.0  # of a message; not known yet
        self._granted = 0  # permits that no message has used up
        self._connection, self._subscription = self._open(start, client.settings.operation_s)

    def next_entry(self, previous: Position) -> WireEntry | None:
        """Return the entry after `previous`, None if the broker has none.

        Raises
        ------
        FrameError
            If the entry is damaged.
        SegmentLogUnavailableError
            If nothing comes in time.
        """
        deadline = time.monotonic() + self._settings.timeout_s
        nothing_more = False
        while True:
            # Now, not when an entry was taken: behind the last one of a range none is wanted.
            self._grant(self._connection, self._subscription)
            try:
                taken = self._subscription.poll(0 if nothing_more else self._settings.poll_s)
                if taken is None:
                    if nothing_more or not self._settings.asks_last:
                        return None
                    nothing_more = self._last(deadline) <= previous
            except RefusedError as lost:
                self._reopen(previous, lost, deadline)
                nothing_more = False
                continue
            if taken is not None:
                position, body = taken
                try:
                    metadata, payload = decode_entry(body)
                except FrameError as damaged:
                    raise _damaged(position, self._segment, damaged) from None
                self._behind = position
                entry = WireEntry(position, metadata, payload)
                self._granted -= entry.messages
                if position > previous:  # a subscription begins an entry early, or some
                    self._note(entry, len(body))
                    return entry
                self._to_skip -= 1
            if time.monotonic() > deadline:
                raise explain(RefusedError("Timeout"), "read", self._segment)

    def look_up_again(self, previous: Position) -> None:
        """Leave the broker, and go on behind `previous` at the one that a new lookup names.

        A broker that has lost its metadata store may serve a topic for a while that another one has
        taken over. It shows nothing of what comes in there.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        why = RefusedError("Disconnected", "the broker does not show what is due")
        self._reopen(previous, why, time.monotonic() + self._settings.timeout_s)

    def ends_at(self, previous: Position, timeout_s: float) -> bool:
        """Tell whether nothing that readers get to see will ever lie behind `previous`.

        The broker says so of a sealed topic, once all that it has delivered is acknowledged, and
        no transaction is open there.
        """
        try:
            if previous.entry >= 0:
                self._acknowledge(previous)
            return self._subscription.wait_for_end(timeout_s)
        except RefusedError:
            return False

    def acknowledged_to(self) -> Position:
        """Return the position up to which nothing is to come any more, as the broker knows it.

        At first it is the one behind which the subscription began. What was aborted the broker
        acknowledges itself, when it comes to it.

        Raises
        ------
        RefusedError
        """
        answer = self._ask_last(self._settings.timeout_s)
        return Position(*positive_id(answer.consumer_mark_delete_position))

    def close(self) -> None:
        """Let go of the subscription, or let it wait for the next range."""
        if not self._is_short:
            self.leave()
            return
        if self.can_wait():
            with contextlib.suppress(RefusedError):
                self._acknowledge(self._behind)  # else brokers would report a growing backlog
        self._client.idle_feeds.put(self)

    def can_wait(self) -> bool:
        """Tell whether it can wait for the next range.

        One with permits would be sent what nobody reads. One that was sent a damaged entry has the
        permits of that entry.
        """
        without_permits = self._granted <= 0
        return without_permits and self._subscription.is_idle() and self._connection.usable

    def can_go_on_at(self, start: Position) -> bool:
        """Tell whether it is cheaper to skip what comes before `start` than to open another one."""
        skipped = start.entry - self._behind.entry
        if start.ledger != self._behind.ledger or not 0 <= skipped <= _MOST_SKIPPED:
            return False
        return skipped * self._entry_bytes <= _MOST_SKIPPED_BYTES

    def leave(self) -> None:
        """Let go of the subscription."""
        self._leave(self._connection, self._subscription)

    def go_on(self, start: Position, entries: int) -> None:
        """Read the next short range."""
        self._left = entries
        self._to_skip = start.entry - self._behind.entry
        self._grant(self._connection, self._subscription)

    def _acknowledge(self, up_to: Position) -> None:
        number, last = self._subscription.number, wire_id(*up_to)
        ack = CommandAck(consumer_id=number, ack_type=_CUMULATIVE, message_id=[last])
        self._connection.post([encode_command(BaseCommand(type=BaseCommand.ACK, ack=ack))])

    def _note(self, entry: WireEntry, size: int) -> None:
        """Learn from an entry how many permits the next ones take."""
        self._left -= 1
        self._entry_bytes = size
        # The larger of its own mean and of a mean that fades: sizes may grow at once.
        mean = size / max(1, entry.messages)
        if self._mean_bytes:
            mean = max(mean, 0.9 * self._mean_bytes + 0.1 * mean)
        self._mean_bytes = mean

    def _grant(self, connection: Connection, subscription: _Subscription) -> None:
        """Grant permits where it is time for more."""
        settings = self._settings
        if not settings.max_permits:
            return
        fitting = _FIRST_PERMITS
        if self._mean_bytes:
            fitting = int(settings.budget_bytes / max(1.0, self._mean_bytes))
        if self._is_short:
            # A broker reads an entry for each permit, however many messages are in it. The first
            # one comes alone, until its size is known.
            wanted = self._left if self._mean_bytes else 1
            fitting = min(fitting, max(self._to_skip, 0) + wanted)
        target = max(1, min(fitting, settings.max_permits))
        if self._granted > (0 if self._is_short else target // 2):
            return
        permits = target - self._granted
        self._granted = target
        flow = CommandFlow(consumer_id=subscription.number, messagePermits=permits)
        try:
            connection.post([encode_command(BaseCommand(type=BaseCommand.FLOW, flow=flow))])
        except RefusedError as lost:
            subscription.on_lost(lost)

    def _last(self, deadline: float) -> Position:
        """Return the last position that the broker has for us."""
        timeout_s = max(self._settings.poll_s, deadline - time.monotonic())
        position = Position(*positive_id(self._ask_last(timeout_s).last_message_id))
        return position if position.entry >= 0 else Position(-1, -1)  # an empty ledger

    def _ask_last(self, timeout_s: float) -> CommandGetLastMessageIdResponse:
        return _last_of(self._connection, self._subscription, timeout_s)

    def _reopen(self, previous: Position, why: RefusedError, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or why.result not in RETRIED:
            raise explain(why, "read", self._segment)
        self._leave(self._connection, self._subscription)
        self._client.forget(self._segment.log_name)
        self._connection, self._subscription = self._open(previous, left)
        self._behind = previous

    def _open(self, start: Position, timeout_s: float) -> tuple[Connection, _Subscription]:
        backoff = Backoff(timeout_s)
        topic = self._segment.log_name

        def attempt() -> tuple[Connection, _Subscription]:
            # A new number each time: what is still on its way for the old one concerns nobody.
            limit = _OVERFLOW * self._settings.budget_bytes
            subscription = _Subscription(self._client.next_number(), limit)
            connection = self._client.connection_of(topic, backoff.left_s)
            connection.add_consumer(subscription.number, subscription)
            try:
                connection.request(
                    lambda number: self._subscribe(number, subscription.number, start),
                    backoff.left_s,
                )
                if self._settings.max_permits and not self._settings.asks_last:
                    _last_of(connection, subscription, backoff.left_s)
            except BaseException:  # an interrupt, too: the broker opens it all the same
                self._leave(connection, subscription)
                self._client.forget(topic)
                raise
            return connection, subscription

        try:
            connection, subscription = backoff.retry(attempt)
        except RefusedError as refused:
            raise explain(refused, "read", self._segment) from None
        self._granted = 0
        self._grant(connection, subscription)
        return connection, subscription

    def _subscribe(self, number: int, consumer: int, start: Position) -> BaseCommand:
        subscribe = CommandSubscribe(
            topic=self._segment.log_name,
            subscription=self._settings.subscription + uuid.uuid4().hex,
            subType=_EXCLUSIVE,
            consumer_id=consumer,
            request_id=number,
            durable=False,
            # Brokers begin at that entry or behind it, depending on their version: never later.
            start_message_id=wire_id(*start),
            # Of a start behind the last entry: a broker would send the whole topic otherwise.
            initialPosition=_FROM_THE_BEGINNING if start == EARLIEST else _FROM_THE_END,
            force_topic_creation=False,
        )
        if self._settings.consumer:
            subscribe.consumer_name = self._settings.consumer
        return BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe)

    def _leave(self, connection: Connection, subscription: _Subscription) -> None:
        connection.remove(subscription.number)
        connection.tell(
            lambda number: BaseCommand(
                type=BaseCommand.CLOSE_CONSUMER,
                close_consumer=CommandCloseConsumer(
                    consumer_id=subscription.number, request_id=number
                ),
            )
        )


def _last_of(
    connection: Connection, subscription: _Subscription, timeout_s: float
) -> CommandGetLastMessageIdResponse:
    """Ask for the last message: a broker answers when it knows the topic's transactions."""
    return connection.request(
        lambda number: BaseCommand(
            type=BaseCommand.GET_LAST_MESSAGE_ID,
            getLastMessageId=CommandGetLastMessageId(
                consumer_id=subscription.number, request_id=number
            ),
        ),
        timeout_s,
    ).getLastMessageIdResponse


@dataclass(slots=True)
class _Chunks:
    """What has come of a message in several entries, and where it begins."""

    first: Position
    parts: list[bytes]


class EntryRows:
    """Collects entries' rows and hands them out as record batches of the columns asked for.

    Parameters
    ----------
    columns : frozenset of str
        Out of READ_SCHEMA.
    max_rows : int
        Bound on a batch.
    segment : SegmentRef
        What is read, for error messages.
    entries : Callable
        Gives the entries between two positions, both excluded: a message in several chunks may
        begin before the range that is read.
    """

    def __init__(
        self,
        columns: frozenset[str],
        max_rows: int,
        segment: SegmentRef,
        entries: Callable[[Position, Position], Iterator[WireEntry]],
    ) -> None:
        self._entries = entries
        self._columns = columns
        self._max_rows = max_rows
        self._segment = segment
        self._schema = pa.schema([column for column in READ_SCHEMA if column.name in columns])
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._chunks: dict[str, _Chunks] = {}

    def add(self, entry: WireEntry) -> None:
        """Add an entry's rows.

        Raises
        ------
        SegmentLogError
            If it is encrypted, damaged, or the rest of a message whose beginning is gone.
        """
        if entry.metadata.HasField("marker_type"):
            return  # Pulsar's own, of a transaction or of replication
        if entry.metadata.encryption_keys:
            raise SegmentLogError(
                f"entry {entry.position} of segment {self._segment.id} is encrypted, which the "
                "transport 'wire' does not read: use the transport 'client' with "
                "pulsar.reader.cryptoPrivateKeyPath"
            )
        whole = self._assembled(entry)
        if whole is None:
            return
        try:
            payload, messages = _unpacked(whole)
            rows = batch.decode(payload, messages)
        except FrameError as damaged:
            raise _damaged(entry.position, self._segment, damaged) from None
        assert set(rows.schema.names) <= set(ROW_SCHEMA.names)
        shown = entry_codec.present(
            rows,
            self._columns,
            ledger=entry.position.ledger,
            entry=entry.position.entry,
            publish_time_ms=batch.signed(entry.metadata.publish_time),
            producer_name=entry.producer_name,
            sequence_id=batch.signed(entry.metadata.sequence_id),
        )
        if "sequence_id" in self._columns:
            shown = _with_own_sequence_ids(shown, batch.sequence_ids(payload, messages))
        if not entry.metadata.HasField("num_messages_in_batch"):
            shown = _with(shown, batch_index=-1, batch_size=0)
        if whole.first is not None:
            shown = _with(shown, first_ledger=whole.first.ledger, first_entry=whole.first.entry)
        self._batches.append(shown)
        self._rows += shown.num_rows
        self._bytes += len(payload)

    def batches(self, *, everything: bool) -> Iterator[pa.RecordBatch]:
        """Yield full batches, and with `everything` the rest too."""
        full = self._rows >= self._max_rows or self._bytes >= _BATCH_BYTES
        if not self._rows or not (full or everything):
            return
        batches, rows, self._batches, self._rows, self._bytes = self._batches, self._rows, [], 0, 0
        if not self._schema.names:  # only how many rows there are
            whole = pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))
        elif len(batches) == 1:
            (whole,) = batches
        else:
            whole = pa.concat_batches(batches)
        for start in range(0, rows, self._max_rows):
            yield whole.slice(start, self._max_rows)

    def _assembled(self, entry: WireEntry) -> WireEntry | None:
        """Return the entry, a message whole out of its chunks, or None where chunks are due."""
        metadata, count = entry.metadata, entry.metadata.num_chunks_from_msg
        if not metadata.HasField("uuid") or count <= 1:
            return entry
        if metadata.chunk_id == 0:
            self._chunks[metadata.uuid] = _Chunks(entry.position, [])
        chunks = self._chunks.get(metadata.uuid)
        if chunks is None:  # it begins before the range that is read
            chunks = self._chunks[metadata.uuid] = self._look_back(entry)
        if metadata.chunk_id < len(chunks.parts):
            return None  # sent again by a client that had lost its connection
        if metadata.chunk_id > len(chunks.parts):
            raise SegmentLogError(
                f"expected chunk {len(chunks.parts)} of a message in segment {self._segment.id}, "
                f"found chunk {metadata.chunk_id} of {count} at {entry.position}. Its "
                "beginning is no longer in the log, so that the message cannot be read. Start "
                "behind it"
            )
        chunks.parts.append(bytes(entry.payload))
        self._forget_oldest(metadata.uuid)
        self._require_fitting(entry, sum(map(len, chunks.parts)))
        if len(chunks.parts) < count:
            return None
        del self._chunks[metadata.uuid]
        return replace(entry, payload=b"".join(chunks.parts), first=chunks.first)

    def _require_fitting(self, entry: WireEntry, size: int) -> None:
        if size > MAX_PAYLOAD_BYTES:
            raise SegmentLogError(
                f"a message in {entry.metadata.num_chunks_from_msg} chunks at {entry.position} of "
                f"segment {self._segment.id} exceeds {MAX_PAYLOAD_BYTES} bytes: it would not fit"
            )

    def _forget_oldest(self, wanted: str) -> None:
        """Bound what is kept of messages that may never be whole: it can be read again."""
        kept = sum(len(part) for chunks in self._chunks.values() for part in chunks.parts)
        for other in [other for other in self._chunks if other != wanted]:
            if kept <= MAX_PAYLOAD_BYTES:
                break
            kept -= sum(map(len, self._chunks.pop(other).parts))

    def _look_back(self, entry: WireEntry) -> _Chunks:
        """Return the chunks of a message that lie before an entry, as far as they are found."""
        wanted, here = entry.metadata.chunk_id, entry.position
        reach = _LOOK_BACK * wanted
        while True:
            # Others may write in between; and it may have begun in an earlier ledger.
            start = EARLIEST
            if reach < here.entry:
                start = Position(here.ledger, here.entry - reach - 1)
            chunks, size = _Chunks(here, []), 0
            for chunk in self._entries(start, here):
                its = chunk.metadata
                if its.uuid != entry.metadata.uuid:
                    continue
                if its.chunk_id == 0:  # sent again, or another message of a producer of that name
                    chunks, size = _Chunks(chunk.position, []), 0
                if its.chunk_id == len(chunks.parts):
                    chunks.parts.append(bytes(chunk.payload))
                    size += len(chunk.payload)
                    self._require_fitting(entry, size)
            # The latest first chunk counts, and all that follows it was seen. There may be more
            # parts than are wanted: a last chunk that was sent again follows a whole message.
            if chunks.parts or start == EARLIEST:
                return chunks
            reach *= _LOOK_BACK


def _damaged(position: Position, segment: SegmentRef, why: FrameError) -> FrameError:
    return FrameError(f"entry {position} of segment {segment.id} ({segment.log_name}): {why}")


def _unpacked(entry: WireEntry) -> tuple[bytes, int]:
    """Return an entry's messages in the form of a batch, and how many they are."""
    metadata = entry.metadata
    payload = decompress(entry.payload, metadata.compression, metadata.uncompressed_size)
    if metadata.HasField("num_messages_in_batch"):
        return payload, metadata.num_messages_in_batch
    # A single message has in the entry's metadata what is in each row's elsewhere.
    row = SingleMessageMetadata(
        properties=metadata.properties,
        payload_size=len(payload),
        event_time=metadata.event_time,
        partition_key_b64_encoded=metadata.partition_key_b64_encoded,
        null_value=metadata.null_value,
        null_partition_key=metadata.null_partition_key,
    )
    if metadata.HasField("partition_key"):
        key: str | bytes = metadata.partition_key
        if isinstance(key, bytes):  # no UTF-8: clients for Go and C++ write any bytes
            key = base64.b64encode(key).decode()
            row.partition_key_b64_encoded = True
        row.partition_key = key
    header = row.SerializeToString()
    return b"".join((len(header).to_bytes(4, "big"), header, payload)), 1


def _with_own_sequence_ids(rows: pa.RecordBatch, own: list[int | None]) -> pa.RecordBatch:
    """Replace an entry's sequence id by those of its messages, where they have one."""
    at = rows.schema.get_field_index("sequence_id")
    field = rows.schema.field(at)
    return rows.set_column(at, field, pc.coalesce(pa.array(own, field.type), rows.column(at)))


def _with(rows: pa.RecordBatch, **constants: int) -> pa.RecordBatch:
    """Replace the columns of an entry's only row, where they are there."""
    for name, value in constants.items():
        at = rows.schema.get_field_index(name)
        if at >= 0:
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pa.array([value], field.type))
    return rows
