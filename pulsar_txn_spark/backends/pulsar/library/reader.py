"""Reading a Pulsar topic through ``pulsar-client``, entry by entry.

A Pulsar reader has a cursor that lives and dies with its connection: nothing is left behind when
the process is killed. The size of an entry's batch stands in its first message's id, so that one
look per entry is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pulsar
import pyarrow as pa

from pulsar_txn_spark.backends.pulsar.errors import TRANSIENT, translate
from pulsar_txn_spark.backends.pulsar.library.connections import close_quietly
from pulsar_txn_spark.backends.pulsar.passthrough import parse_passthrough
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import MessageIdData
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import READ_SCHEMA, SegmentRef

_POLL_MS = 1000  # how often a reader that gets nothing asks whether there is anything
_PROGRESS_SECONDS = 30.0  # a broker that restarts is back by then
_MOST_ANNOUNCED = 3  # so many messages may be announced and not come; then the broker is asked
_RETRY_SECONDS = 0.02
_BATCH_BYTES = 16 * 1024 * 1024  # bound on one record batch on its way out

_Messages = list[Any]


def reader_settings(config: PulsarConfig) -> dict[str, Any]:
    """Return arguments of ``pulsar.Client.create_reader`` from the options ``pulsar.reader.*``.

    Raises
    ------
    OptionError
        If one is unknown, refused or malformed.
    """
    options = parse_passthrough("reader", dict(config.reader))
    public = options.pop("crypto_public_key_path", "")
    private = options.pop("crypto_private_key_path", "")
    if private:
        options["crypto_key_reader"] = pulsar.CryptoKeyReader(public, private)
    return options


def _values(messages: _Messages, _position: Position, _size: int) -> list[bytes | None]:
    values: list[bytes | None] = [message.data() for message in messages]
    if b"" in values:  # an empty value, or none at all
        for row, value in enumerate(values):
            if value == b"" and messages[row].has_null_value():
                values[row] = None
    return values


def _properties(messages: _Messages, _position: Position, _size: int) -> list[Any]:
    # Pulsar does not tell an empty map from none.
    properties = [message.properties() for message in messages]
    return [list(pairs.items()) if pairs else None for pairs in properties]


def _first_chunk(id_: MessageIdData) -> Position | None:
    if not id_.HasField("first_chunk_message_id"):
        return None
    first = id_.first_chunk_message_id
    return Position(first.ledgerId, first.entryId)


def _first_chunks(messages: _Messages, size: int, part: int) -> list[int | None]:
    # A batch is never in chunks.
    first = None if size else _first_chunk(_id_of(messages[0]))
    return [None if first is None else first[part]] * len(messages)


_EXTRACT: Mapping[str, Callable[[_Messages, Position, int], Iterable[Any]]] = {
    "value": _values,
    "key": lambda messages, _position, _size: [
        message.partition_key() or None for message in messages
    ],
    "event_time_ms": lambda messages, _position, _size: [
        message.event_timestamp() or None for message in messages
    ],
    "properties": _properties,
    # One for the whole entry.
    "publish_time_ms": lambda messages, _position, _size: (
        [messages[0].publish_timestamp()] * len(messages)
    ),
    "ledger": lambda messages, position, _size: [position.ledger] * len(messages),
    "entry": lambda messages, position, _size: [position.entry] * len(messages),
    "batch_index": lambda _messages, _position, size: range(size) if size else [-1],
    "batch_size": lambda messages, _position, size: [size] * len(messages),
    "first_ledger": lambda messages, _position, size: _first_chunks(messages, size, 0),
    "first_entry": lambda messages, _position, size: _first_chunks(messages, size, 1),
    "producer_name": lambda messages, _position, _size: (
        [messages[0].producer_name()] * len(messages)
    ),
    "sequence_id": lambda messages, _position, _size: [None] * len(messages),
}
"""Column of READ_SCHEMA -> its values from one entry's messages, position and batch size."""


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """An entry's messages; `size` is 0 where it is no batch.

    ``first`` is where a message begins that was put together out of several entries.
    """

    messages: _Messages
    position: Position
    size: int
    first: Position | None = None

    @property
    def producer_name(self) -> str:
        """Return who wrote it."""
        name: str = self.messages[0].producer_name()
        return name


class RowCollector:
    """Collects rows and hands them out as record batches of the columns that were asked for.

    Parameters
    ----------
    columns : frozenset of str
        Out of READ_SCHEMA.
    max_rows : int
        Bound on a batch.
    segment : SegmentRef
        What is read, for error messages.
    """

    def __init__(self, columns: frozenset[str], max_rows: int, segment: SegmentRef) -> None:
        self._segment = segment
        self._schema = pa.schema([column for column in READ_SCHEMA if column.name in columns])
        self._max_rows = max_rows
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        self._rows = 0
        self._bytes = 0

    def add(self, entry: ClientEntry) -> None:
        """Add one entry's messages.

        Raises
        ------
        SegmentLogError
            If a key or a property that is asked for is no text.
        """
        messages, position, size = entry.messages, entry.position, entry.size
        for name, collected in self._columns.items():
            try:
                values = _EXTRACT[name](messages, position, size)
            except UnicodeDecodeError:
                raise SegmentLogError(
                    f"entry {position} of segment {self._segment.id} ({self._segment.log_name}): "
                    f"expected text in UTF-8 for {name!r}, found other bytes, which pulsar-client "
                    "does not show. Nothing was skipped; read with the transport 'wire'"
                ) from None
            if name == "value":
                self._bytes += sum(len(value) for value in values if value)
            collected.extend(values)
        self._rows += len(messages)

    def batches(self, *, everything: bool) -> Iterator[pa.RecordBatch]:
        """Yield full batches, and with `everything` the rest too."""
        full = self._rows >= self._max_rows or self._bytes >= _BATCH_BYTES
        if not self._rows or not (full or everything):
            return
        arrays = [_array(name, values) for name, values in self._columns.items()]
        if arrays:
            whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        else:  # only how many rows there are
            whole = pa.RecordBatch.from_struct_array(pa.nulls(self._rows, pa.struct([])))
        for collected in self._columns.values():
            collected.clear()
        rows, self._rows, self._bytes = self._rows, 0, 0
        for start in range(0, rows, self._max_rows):
            yield whole.slice(start, self._max_rows)


def _array(name: str, values: list[Any]) -> pa.Array:
    kind = READ_SCHEMA.field(name).type
    if name == "key":
        return pa.array(values, pa.string()).cast(kind)
    if name in {"event_time_ms", "publish_time_ms"}:  # Pulsar's are unsigned, Java's are not
        return pa.array(values, pa.uint64()).view(kind)
    return pa.array(values, kind)


class EntryFeed:
    """Entries of one reader in order, with a bound on waiting.

    Parameters
    ----------
    reader : pulsar.Reader
        Just opened.
    segment : SegmentRef
        What it reads, for error messages.
    """

    def __init__(self, reader: Any, segment: SegmentRef) -> None:
        self._reader = reader._reader  # noqa: SLF001 - the layer above costs 20 %
        self._next = self._reader.read_next
        self._segment = segment

    def next_entry(self, previous: Position) -> ClientEntry | None:
        """Return the entry after `previous`, None if the broker has none.

        Raises
        ------
        SegmentLogError
            If the messages do not come entry by entry.
        SegmentLogUnavailableError
            If nothing comes in time.
        """
        first = self._message()
        if first is None:
            return None
        position, size, first_chunk = _begin_of_entry(first, previous, self._segment)
        messages = [first]
        if size > 1:
            messages += self._messages(size - 1)
            _check_tail(messages[-1], position, size, self._segment)
        return ClientEntry(messages, position, size, first_chunk)

    def look_up_again(self, previous: Position) -> None:
        """Do nothing: pulsar-client looks a topic up when its connection breaks."""

    def close(self) -> None:
        """Close the reader."""
        close_quietly(self._reader)

    def _message(self) -> Any:
        """Return the next message, None if the broker has none after the last one."""
        try:
            return self._next(_POLL_MS)
        except pulsar.Timeout:
            return self._patiently()
        except pulsar.PulsarException as failed:
            raise translate(type(failed).__name__, "read", self._segment) from failed

    def _messages(self, count: int) -> _Messages:
        """Return the next `count` messages, which belong to an entry that has begun."""
        read = self._next
        messages: _Messages = []
        try:
            while len(messages) < count:
                messages.append(read(_POLL_MS))
        except pulsar.Timeout:
            # The client lost its connection in the middle of the entry and fetches it again.
            deadline = time.monotonic() + _PROGRESS_SECONDS
            while len(messages) < count:
                message = self._message()
                if message is not None:
                    messages.append(message)
                elif time.monotonic() > deadline:
                    raise translate("Timeout", "read", self._segment) from None
        except pulsar.PulsarException as failed:
            raise translate(type(failed).__name__, "read", self._segment) from failed
        return messages

    def _patiently(self) -> Any:
        deadline = time.monotonic() + _PROGRESS_SECONDS
        last, announced = "Timeout", 0
        while time.monotonic() < deadline and announced < _MOST_ANNOUNCED:
            try:
                if not self._reader.has_message_available():
                    return None
                announced += 1
                return self._next(_POLL_MS)
            except pulsar.PulsarException as not_yet:
                last = type(not_yet).__name__
                if last not in TRANSIENT or last == "AlreadyClosed":
                    raise translate(last, "read", self._segment) from not_yet
                if last not in {"Timeout", "TimeOut"}:
                    time.sleep(_RETRY_SECONDS)  # it fails at once while it reconnects
        if announced == _MOST_ANNOUNCED or last == "NotConnected":
            # A sealed topic that was read to its end always breaks the connection. While that
            # happens again and again, pulsar-client hears nothing, or announces a message though
            # all that are left are hidden. The caller proves that nothing is due, or that the
            # broker is away.
            return None
        raise translate(last, "read", self._segment)


def _id_of(message: Any) -> MessageIdData:
    """Return a message's id with the fields that pulsar-client does not show."""
    return MessageIdData.FromString(message.message_id().serialize())


def _begin_of_entry(
    message: Any, previous: Position, segment: SegmentRef
) -> tuple[Position, int, Position | None]:
    """Return an entry's position, batch size and first chunk from its first message."""
    message_id = message.message_id()
    position = Position(message_id.ledger_id(), message_id.entry_id())
    index = message_id.batch_index()
    if index > 0 or position <= previous:
        raise SegmentLogError(
            f"expected the beginning of an entry after {previous} of segment {segment.id}, found "
            f"message {index} of {position}: the reader cannot vouch for the order; try again"
        )
    id_ = _id_of(message)
    if index >= 0:
        return position, id_.batch_size, None
    return position, 0, _first_chunk(id_)  # no batch


def _check_tail(message: Any, position: Position, size: int, segment: SegmentRef) -> None:
    message_id = message.message_id()
    last = Position(message_id.ledger_id(), message_id.entry_id())
    if last != position or message_id.batch_index() != size - 1:
        raise SegmentLogError(
            f"expected message {size - 1} of entry {position} of segment {segment.id}, found "
            f"{message_id.batch_index()} of {last}: the entry did not come whole; try again"
        )
