"""The segment log on Apache Pulsar, through ``pulsar-client``.

**Sending.** The client hands every callback over through the interpreter's lock, so there is one
only on the last row of each entry. The client never decides where an entry ends (its own limits
stand out of reach): after the entry's last row it is flushed explicitly, and the receipt's batch
index, which must be the number of rows less one, proves that exactly these rows went as one entry.

**Reading.** A Pulsar reader has a cursor that lives and dies with its connection: nothing is left
behind when the process is killed. The size of an entry's batch stands in its first message's id,
so that one look per entry is enough.

**What is gone.** The topic property :data:`ORIGIN_PROPERTY` says up to where data was given up on
purpose and which ledger comes next. A first ledger beyond that one was removed by somebody else.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import _pulsar
import numpy as np
import pulsar
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    DataLossError,
    MessageTooLargeError,
    PulsarTxnError,
    SchemaError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    SegmentSealedError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments import pulsar_layout
from pulsar_txn_spark.segments.log import READ_SCHEMA, RangeSize, Receipt, SegmentRef, Visible
from pulsar_txn_spark.segments.pulsar_admin import PulsarAdmin
from pulsar_txn_spark.segments.pulsar_layout import Layout
from pulsar_txn_spark.segments.pulsar_options import Credentials, parse_passthrough

INTERNAL_SUBSCRIPTION = "__pulsar_txn_spark"
"""Durable subscription of every segment that keeps what was not read."""

SEGMENT_PROPERTY = "pulsar_txn_spark.segment"
"""Topic property with the segment's id: a topic without it is not a segment of ours."""

ORIGIN_PROPERTY = "pulsar_txn_spark.origin"
"""Topic property ``<position>,<ledger>``: everything up to the position was given up on purpose,
and the ledger is the first one after it that holds data."""

_LOGGER = logging.getLogger(__name__)

_ENTRY_BYTES = 512 * 1024  # large entries read fast; well below the broker's 5 MiB
_ENTRY_ROWS = 10_000
_ROW_OVERHEAD_BYTES = 32  # about what a row's own metadata takes in an entry
_IN_FLIGHT_BYTES = 32 * 1024 * 1024  # bound on memory; several times bandwidth x delay of a LAN
_OUT_OF_REACH = 2**31 - 1  # for the client's own limits on a batch
_NEVER_MS = 24 * 3600 * 1000
_SEND_TIMEOUT_MS = 30_000
_GRACE_SECONDS = 10.0  # the client fails what is overdue by itself; this is for a client that hangs
_FLUSH_RETRY_SECONDS = 0.02
_READ_POLL_MS = 1000
_PROGRESS_SECONDS = 30.0  # a broker that restarts is back by then
_RECEIVER_BYTES = 32 * 1024 * 1024  # bound on what a reader prefetches
_RECEIVER_ROWS = 20_000
_BATCH_BYTES = 16 * 1024 * 1024  # bound on one record batch on its way out
_COUNTED_ENTRIES = 4  # a range this small is counted entry by entry (2 ms each)
_MEAN_SECONDS = 60.0  # how long a mean size may serve before it is asked for again
_IDLE_CLIENTS = 2


# --- clients --------------------------------------------------------------------------------------


class _Clients:
    """One ``pulsar.Client`` per configuration in this process, shared by its logs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[PulsarConfig, tuple[Any, int]] = {}
        self._idle: dict[PulsarConfig, Any] = {}
        self._foreign: list[object] = []

    def acquire(self, config: PulsarConfig) -> Any:
        with self._lock:
            client, users = self._used.get(config, (None, 0))
            if client is None:
                client = self._idle.pop(config, None) or _new_client(config)
            self._used[config] = (client, users + 1)
            return client

    def release(self, config: PulsarConfig) -> None:
        with self._lock:
            client, users = self._used.pop(config)
            if users > 1:
                self._used[config] = (client, users - 1)
                return
            # Kept for the next log: Spark's workers open one per task.
            self._idle[config] = client
            surplus = list(self._idle)[:-_IDLE_CLIENTS]
            closing = [self._idle.pop(one) for one in surplus]
        for client in closing:
            _close_quietly(client)

    def close_idle(self) -> None:
        with self._lock:
            closing = list(self._idle.values())
            self._idle.clear()
        for client in closing:
            _close_quietly(client)

    def forget(self) -> None:
        """In a forked child: the connections and threads belong to the parent."""
        self._lock = threading.Lock()
        # Kept alive, as their destructors would wait for threads that are not there.
        self._foreign += [self._used, self._idle]
        self._used, self._idle = {}, {}


_CLIENTS = _Clients()
atexit.register(_CLIENTS.close_idle)
os.register_at_fork(after_in_child=_CLIENTS.forget)


def _new_client(config: PulsarConfig) -> Any:
    settings = parse_passthrough("client", dict(config.client))
    credentials: Credentials = settings.pop("credentials")
    settings.setdefault("tls_validate_hostname", True)
    return pulsar.Client(
        config.service_url,
        authentication=_authentication(credentials),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn),
        **settings,
    )


def _authentication(credentials: Credentials) -> Any:
    if credentials.method == "token":
        # A function: the client asks again when it reconnects.
        return pulsar.AuthenticationToken(credentials.token)
    if credentials.method == "tls":
        return pulsar.AuthenticationTLS(credentials["tlsCertFile"], credentials["tlsKeyFile"])
    if credentials.method == "basic":
        return pulsar.AuthenticationBasic(credentials["userId"], credentials["password"])
    if credentials.method == "oauth2":
        return pulsar.AuthenticationOauth2(credentials["json"])
    if credentials.method == "athenz":
        return pulsar.AuthenticationAthenz(credentials["json"])
    return None


def _close_quietly(resource: Any) -> None:
    # A client, producer or reader that is closed or whose topic is sealed raises on closing.
    with contextlib.suppress(pulsar.PulsarException):
        resource.close()


# --- errors ---------------------------------------------------------------------------------------

_REFUSED = frozenset({"AuthenticationError", "AuthorizationError", "ErrorGettingAuthenticationData"})
_QUOTA = frozenset({"ProducerBlockedQuotaExceededError", "ProducerBlockedQuotaExceededException"})
_UNAVAILABLE = frozenset(
    {
        "AlreadyClosed",
        "BrokerMetadataError",
        "BrokerPersistenceError",
        "ConnectError",
        "Disconnected",
        "Interrupted",
        "LookupError",
        "NotConnected",
        "ReadError",
        "Retryable",
        "ServiceUnitNotReady",
        "TimeOut",
        "Timeout",
        "TooManyLookupRequestException",
    }
)


def _error(name: str, doing: str, segment: SegmentRef) -> PulsarTxnError:
    """Translate the client's result `name` into one of this package's errors."""
    what = f"cannot {doing} segment {segment.id} ({segment.log_name})"
    if name == "TopicTerminated":
        return SegmentSealedError(f"{what}: it was sealed and takes no more entries")
    if name == "TopicNotFound":
        return SegmentNotFoundError(f"{what}: there is no such topic on the broker")
    if name == "MessageTooBig":
        return MessageTooLargeError(f"{what}: an entry exceeds the broker's maxMessageSize")
    if name in _REFUSED:
        return SegmentLogUnavailableError(
            f"{what}: Pulsar refuses us ({name}); check pulsar.client.authPluginClassName, "
            "pulsar.client.authParams and the role's permission on the namespace"
        )
    if name in _QUOTA:
        return SegmentLogUnavailableError(
            f"{what}: a backlog quota holds producers back ({name}), although the segment was "
            "created without one; check the policies of the topic and its namespace"
        )
    if name in _UNAVAILABLE:
        return SegmentLogUnavailableError(
            f"{what}: Pulsar did not answer ({name}); check service.url, the network and the "
            "broker's health"
        )
    return SegmentLogError(f"{what}: Pulsar answers {name}")


# --- writing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry that was handed to the client: what its receipt has to prove."""

    rows: int
    payload_bytes: int  # values and keys: what the user wrote
    cost_bytes: int  # what it counts against the bound on what is in flight


class _Tally:
    """Receipts of one writer. The client's thread puts them in, the writer's thread waits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending = 0
        self._pending_bytes = 0
        self._failure: tuple[str, _Entry] | None = None
        self._highest = EARLIEST
        self._sum = Receipt(None, None, 0, 0, 0)

    def expect(self, entry: _Entry) -> Callable[[Any, Any], None]:
        """Note an entry as sent; returns the callback for its last row."""
        with self._changed:
            self._pending += 1
            self._pending_bytes += entry.cost_bytes

        def acknowledged(result: Any, message_id: Any) -> None:
            # An exception in here would end the process.
            try:
                name = result.name
                position = Position(message_id.ledger_id(), message_id.entry_id())
                index = message_id.batch_index()
            except Exception as surprise:  # noqa: BLE001 - reported by the writer's thread
                name, position, index = type(surprise).__name__, EARLIEST, -1
            self._settle(entry, name, position, index)

        return acknowledged

    def _settle(self, entry: _Entry, name: str, position: Position, index: int) -> None:
        with self._changed:
            self._pending -= 1
            self._pending_bytes -= entry.cost_bytes
            fault = name if name != "Ok" else self._fault(entry, position, index)
            if fault is not None:
                self._failure = self._failure or (fault, entry)
            elif self._failure is None:
                self._highest = position
                self._sum = Receipt(
                    self._sum.first or position,
                    position,
                    self._sum.entries + 1,
                    self._sum.messages + entry.rows,
                    self._sum.bytes + entry.payload_bytes,
                )
            self._changed.notify_all()

    def _fault(self, entry: _Entry, position: Position, index: int) -> str | None:
        """Say what a receipt fails to prove, None if it proves that the entry is in the log."""
        if position.ledger < 0 or position.entry < 0:
            return "unverified: 'deduplicated' is no acknowledgement of these rows"
        # -1: a client that sends a batch of one row without the batch's envelope.
        if index != entry.rows - 1 and not (entry.rows == 1 and index == -1):
            return f"unverified: expected a batch of {entry.rows} rows, found {index + 1}"
        if position <= self._highest:
            return f"unverified: expected a position after {self._highest}, found {position}"
        return None

    @property
    def failure(self) -> tuple[str, _Entry] | None:
        """Return the first fault and its entry."""
        return self._failure

    def wait_below(self, cost_bytes: int, timeout_s: float) -> bool:
        """Wait until less than that is in flight; False if nothing moved for `timeout_s`."""
        with self._changed:
            while self._pending and self._pending_bytes > cost_bytes and not self._failure:
                before = self._pending
                self._changed.wait(timeout_s)
                if self._pending == before and not self._failure:
                    return False
            return True

    def collect(self) -> Receipt:
        """Return the sum since the last call; nothing may be in flight."""
        with self._changed:
            assert not self._pending, self._pending
            assert self._failure is None, self._failure
            receipt, self._sum = self._sum, Receipt(None, None, 0, 0, 0)
            return receipt


class PulsarSegmentWriter:
    """Appends row batches through one producer; made by :meth:`PulsarSegmentLog.writer`."""

    def __init__(
        self,
        log: PulsarSegmentLog,
        segment: SegmentRef,
        producer: Any,
        settings: Mapping[str, Any],
    ) -> None:
        self._log = log
        self._segment = segment
        self._producer = producer._producer  # noqa: SLF001 - the thin layer above costs 20 %
        self._send = self._producer.send_async
        self._send_timeout_s = settings["send_timeout_millis"] / 1000
        self._entry_bytes = settings["batching_max_bytes"]
        # Half of the queue, so that a full one always has an entry to send.
        self._entry_rows = max(
            1, min(settings["batching_max_messages"], settings["max_pending_messages"] // 2)
        )
        self._tally = _Tally()
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._failure: PulsarTxnError | None = None
        self._closed = False

    def append(self, rows: pa.RecordBatch) -> None:
        """Queue rows; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`."""
        self._check()
        if rows.num_rows == 0:
            return
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes + _ROW_OVERHEAD_BYTES * rows.num_rows
        if self._held_rows >= self._entry_rows or self._held_bytes >= self._entry_bytes:
            self._drain(everything=False)

    def flush(self) -> Receipt:
        """Wait for every receipt; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`."""
        self._check()
        self._drain(everything=True)
        moved = self._tally.wait_below(-1, self._send_timeout_s + _GRACE_SECONDS)
        self._check(moved=moved)
        receipt = self._tally.collect()
        if receipt.entries:
            try:
                self._log._mark_origin(self._segment)  # noqa: SLF001 - one unit
            except PulsarTxnError as failed:
                self._failure = failed
                raise
        return receipt

    def close(self) -> None:
        """Let go of the producer; what was not flushed may or may not be in the log."""
        if not self._closed:
            self._closed = True
            self._held.clear()
            _close_quietly(self._producer)
            self._log._writers.discard(self)  # noqa: SLF001 - one unit

    def _check(self, *, moved: bool = True) -> None:
        """Raise what went wrong; a writer that failed stays so."""
        if self._failure is None:
            if self._tally.failure is not None:
                self._failure = self._explain(*self._tally.failure)
            elif not moved:
                self._failure = _error("Timeout", "append to", self._segment)
            elif self._closed:
                raise SegmentLogError(f"the writer of segment {self._segment.id} is closed")
        if self._failure is not None:
            raise self._failure

    def _explain(self, fault: str, entry: _Entry) -> PulsarTxnError:
        if fault.startswith("unverified: "):
            return UnverifiedReceiptError(
                f"segment {self._segment.id} ({self._segment.log_name}): "
                f"{fault.removeprefix('unverified: ')}; nobody may take these rows as written, "
                "so the attempt fails and is repeated under a new name"
            )
        if fault == "MessageTooBig":
            limit = self._log._admin.max_message_bytes()  # noqa: SLF001 - one unit
            return MessageTooLargeError(
                f"a message of {entry.cost_bytes} bytes (with its metadata) exceeds what Pulsar "
                f"takes for segment {self._segment.id}: {limit} bytes; make the value smaller or "
                "raise maxMessageSize on brokers and bookies"
            )
        return _error(fault, "append to", self._segment)

    def _drain(self, *, everything: bool) -> None:
        """Send the complete entries of what is held, and with `everything` the rest too."""
        if not self._held_rows:
            return
        rows = self._held[0]
        if len(self._held) > 1:
            rows = pa.Table.from_batches(_same_columns(self._held)).combine_chunks().to_batches()[0]
        encoded = _Rows.of(rows)
        start = 0
        for end in encoded.cuts(self._entry_bytes, self._entry_rows, everything=everything):
            self._send_entry(encoded, start, end)
            start = end
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        if start < rows.num_rows:
            rest = rows.slice(start)
            self._held = [rest]
            self._held_rows = rest.num_rows
            self._held_bytes = int(encoded.sizes[start:].sum())

    def _send_entry(self, rows: _Rows, start: int, end: int) -> None:
        entry = rows.entry(start, end)
        room = max(0, _IN_FLIGHT_BYTES - entry.cost_bytes)
        moved = self._tally.wait_below(room, self._send_timeout_s + _GRACE_SECONDS)
        self._check(moved=moved)
        callback = self._tally.expect(entry)
        try:
            rows.send(self._send, start, end, callback)
        except (pulsar.PulsarException, TypeError, ValueError, RuntimeError) as failed:
            self._failure = _error(type(failed).__name__, "append to", self._segment)
            raise self._failure from failed
        self._cut()
        self._check()

    def _cut(self) -> None:
        """End the entry here: make the client send what it has batched."""
        deadline = time.monotonic() + self._send_timeout_s + _GRACE_SECONDS
        while True:
            refused: list[Any] = []
            self._producer.flush_async(refused.append)
            # An answer at once is a refusal: while the client reconnects it does not flush.
            if not refused or refused[0].name == "Ok" or self._tally.failure is not None:
                return
            if time.monotonic() > deadline:
                self._failure = _error(refused[0].name, "append to", self._segment)
                raise self._failure
            time.sleep(_FLUSH_RETRY_SECONDS)


def _same_columns(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the batches with the columns of all of them; an absent one is null in every row."""
    schema = pa.unify_schemas([batch.schema for batch in batches])
    return [
        pa.RecordBatch.from_arrays(
            [
                batch.column(field.name)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ],
            schema=schema,
        )
        for batch in batches
    ]


class _Rows:
    """A row batch as Python objects, with each row's size; `of` checks what cannot be sent."""

    def __init__(
        self,
        values: list[bytes | None],
        keys: list[str | None] | None,
        times: list[int | None] | None,
        properties: list[Any] | None,
        payload: np.ndarray[Any, np.dtype[np.int64]],
        sizes: np.ndarray[Any, np.dtype[np.int64]],
    ) -> None:
        self._values = values
        self._keys = keys
        self._times = times
        self._properties = properties
        self._payload = payload
        self.sizes = sizes
        self._plain = times is None and properties is None

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> _Rows:
        value = _column(rows, "value")
        if value is None:
            raise SchemaError("expected a column 'value' in the rows to write, found none")
        key, event_time = _column(rows, "key"), _column(rows, "event_time_ms")
        properties = _column(rows, "properties")
        payload = _lengths(value)
        keys = None
        if key is not None:
            payload = payload + _lengths(key)
            keys = _text_keys(key)
        sizes = payload + _ROW_OVERHEAD_BYTES
        pairs = None
        if properties is not None:
            pairs = properties.to_pylist()
            sizes = sizes + np.fromiter(map(_properties_bytes, pairs), np.int64, len(pairs))
        if event_time is not None and (pc.min(event_time).as_py() or 0) < 0:
            raise SchemaError(
                f"an event time is a number of milliseconds since 1970 that is not negative, "
                f"found {pc.min(event_time).as_py()}"
            )
        return cls(
            value.to_numpy(zero_copy_only=False).tolist(),
            keys,
            None if event_time is None else event_time.to_pylist(),
            pairs,
            payload,
            sizes,
        )

    def cuts(self, max_bytes: int, max_rows: int, *, everything: bool) -> Iterator[int]:
        """Yield the ends of entries; the rest stays open unless `everything` is to go."""
        total = np.cumsum(self.sizes)
        start, rows = 0, len(self.sizes)
        while start < rows:
            before = int(total[start - 1]) if start else 0
            end = int(np.searchsorted(total, before + max_bytes, side="right"))
            end = max(start + 1, min(end, start + max_rows))
            if end >= rows and not everything and end - start < max_rows:
                return
            end = min(end, rows)
            yield end
            start = end

    def entry(self, start: int, end: int) -> _Entry:
        return _Entry(
            end - start, int(self._payload[start:end].sum()), int(self.sizes[start:end].sum())
        )

    def send(
        self, send: Callable[[Any, Any], None], start: int, end: int, last: Callable[..., None]
    ) -> None:
        """Hand rows `start` to `end` (excluded) over; `last` is called with the last one's receipt."""
        builder = _pulsar.MessageBuilder
        stop = end - 1
        if self._plain and self._keys is None and None not in (values := self._values[start:end]):
            for value in values[:-1]:
                send(builder().content(value).build(), None)
        elif (
            self._plain
            and self._keys is not None
            and None not in (values := self._values[start:end])
            and None not in (keys := self._keys[start:end])
        ):
            for value, key in zip(values[:-1], keys[:-1], strict=True):
                send(builder().content(value).partition_key(key).build(), None)
        else:
            for row in range(start, stop):
                send(self._message(row), None)
        send(self._message(stop), last)

    def _message(self, row: int) -> Any:
        message = _pulsar.MessageBuilder()
        value = self._values[row]
        if value is None:
            message.set_null_value()
        else:
            message.content(value)
        if self._keys is not None and (key := self._keys[row]) is not None:
            message.partition_key(key)
        # 0 is Pulsar's own "no event time".
        if self._times is not None and (event_time := self._times[row]):
            message.event_timestamp(event_time)
        if self._properties is not None:
            for name, text in self._properties[row] or ():
                message.property(name, "" if text is None else text)
        return message.build()


def _column(rows: pa.RecordBatch, name: str) -> Any:
    """Return a column, None if it is absent or null in every row (but `value` is always there)."""
    if name not in rows.schema.names:
        return None
    column = rows.column(name)
    return None if name != "value" and column.null_count == len(column) else column


def _lengths(column: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths: np.ndarray[Any, np.dtype[np.int64]] = (
        pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _properties_bytes(pairs: Any) -> int:
    return sum(len(name) + len(text or "") + 8 for name, text in pairs or ())


def _text_keys(column: Any) -> list[str | None]:
    if pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
        raise SchemaError(
            "an empty key cannot be told from no key by pulsar-client: expected null or at least "
            "one byte; map '' to null, or use the transport 'wire'"
        )
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:
        raise SchemaError(
            "pulsar-client takes keys that are text only, found a key that is not valid UTF-8; "
            "encode it (hex, base64), or use the transport 'wire'"
        ) from None
    keys: list[str | None] = text.to_numpy(zero_copy_only=False).tolist()
    return keys


# --- reading --------------------------------------------------------------------------------------


class _Columns:
    """Collects rows and hands them out as record batches of the columns that were asked for."""

    def __init__(self, columns: frozenset[str], max_rows: int) -> None:
        self._schema = pa.schema([field for field in READ_SCHEMA if field.name in columns])
        self._max_rows = max_rows
        self._lists: dict[str, list[Any]] = {name: [] for name in self._schema.names}
        self._rows = 0
        self._bytes = 0

    def add(self, position: Position, messages: list[Any], batch_size: int) -> None:
        """Add one entry's messages."""
        count = len(messages)
        for name, found in self._lists.items():
            if name == "value":
                values = [message.data() for message in messages]
                self._bytes += sum(map(len, values))
                if b"" in values:  # an empty value, or none at all
                    values = [
                        None if value == b"" and messages[row].has_null_value() else value
                        for row, value in enumerate(values)
                    ]
                found += values
            elif name == "key":
                found += [message.partition_key() or None for message in messages]
            elif name == "event_time_ms":
                found += [message.event_timestamp() or None for message in messages]
            elif name == "properties":
                found += [
                    list(pairs.items()) if (pairs := message.properties()) else None
                    for message in messages
                ]
            elif name == "publish_time_ms":
                found += [messages[0].publish_timestamp()] * count  # one for the whole entry
            elif name == "ledger":
                found += [position.ledger] * count
            elif name == "entry":
                found += [position.entry] * count
            elif name == "batch_index":
                found += range(count) if batch_size else [-1]
            else:
                found += [batch_size] * count
        self._rows += count

    def batches(self, *, everything: bool) -> Iterator[pa.RecordBatch]:
        """Yield full batches, and with `everything` the rest too."""
        if not (everything or self._rows >= self._max_rows or self._bytes >= _BATCH_BYTES):
            return
        if not self._rows:
            return
        arrays = [
            _array(self._lists[field.name], field.type) for field in self._schema
        ]
        rows, self._rows, self._bytes = self._rows, 0, 0
        for found in self._lists.values():
            found.clear()
        if arrays:
            whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        else:
            whole = pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))
        for start in range(0, rows, self._max_rows):
            yield whole.slice(start, self._max_rows)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind) and values and isinstance(values[0], str | None):
        with contextlib.suppress(TypeError):
            return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


class _Feed:
    """Messages of one reader in order, with a bound on waiting."""

    def __init__(self, reader: Any, segment: SegmentRef) -> None:
        self._reader = reader._reader  # noqa: SLF001 - the thin layer above costs 20 %
        self._next = self._reader.read_next
        self._segment = segment

    def next(self) -> Any:
        """Return the next message, None if the broker has none after the last one."""
        try:
            return self._next(_READ_POLL_MS)
        except pulsar.Timeout:
            return self._patiently()
        except pulsar.PulsarException as failed:
            raise _error(type(failed).__name__, "read", self._segment) from failed

    def rest(self, count: int) -> list[Any]:
        """Return the next `count` messages, which belong to an entry that has begun."""
        read, found = self._next, []
        try:
            while len(found) < count:
                found.append(read(_READ_POLL_MS))
        except pulsar.Timeout:
            # The client lost its connection in the middle of the entry and fetches it again.
            while len(found) < count:
                message = self.next()
                if message is None:
                    raise _error("Timeout", "read", self._segment) from None
                found.append(message)
        except pulsar.PulsarException as failed:
            raise _error(type(failed).__name__, "read", self._segment) from failed
        return found

    def _patiently(self) -> Any:
        deadline = time.monotonic() + _PROGRESS_SECONDS
        last = "Timeout"
        while time.monotonic() < deadline:
            try:
                if not self._reader.has_message_available():
                    return None
                return self._next(_READ_POLL_MS)
            except pulsar.PulsarException as not_yet:
                last = type(not_yet).__name__
                if last not in _UNAVAILABLE or last == "AlreadyClosed":
                    raise _error(last, "read", self._segment) from not_yet
                if last not in {"Timeout", "TimeOut"}:
                    time.sleep(_FLUSH_RETRY_SECONDS)  # it fails at once while it reconnects
        raise _error(last, "read", self._segment)


def _batch_size(message_id: Any) -> int:
    """Return how many messages the entry holds, 0 if it is no batch.

    pulsar-client does not show it, but it is field 6 of the serialized ``MessageIdData``
    (PulsarApi.proto).
    """
    data: bytes = message_id.serialize()
    offset = size = 0
    while offset < len(data):
        tag, offset = _varint(data, offset)
        if tag & 7 == 0:
            value, offset = _varint(data, offset)
            if tag >> 3 == 6:
                size = value
        else:  # length-delimited: no other kind occurs in that message
            length, offset = _varint(data, offset)
            offset += length
    return size if message_id.batch_index() >= 0 else 0


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7


# --- the log --------------------------------------------------------------------------------------


class PulsarSegmentLog:
    """Segments as Pulsar topics; see :class:`~pulsar_txn_spark.segments.log.SegmentLog`.

    Parameters
    ----------
    config : PulsarConfig
        URLs and pass-through options.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed.
    """

    backend = "pulsar"

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._producer_settings = _producer_settings(config)
        self._reader_settings = _reader_settings(config)
        self._admin = PulsarAdmin(config)
        self._client = _CLIENTS.acquire(config)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._origins: dict[str, tuple[Position, int] | None] = {}
        self._means: dict[str, tuple[float, float]] = {}
        self._writers: set[PulsarSegmentWriter] = set()
        self._closed = False

    @property
    def admin(self) -> PulsarAdmin:
        """Return the admin API, for what goes beyond one segment's log."""
        return self._admin

    def create(self, segment: SegmentRef) -> None:
        """Create the topic with all that keeps its data; see the Protocol."""
        topic = segment.log_name
        # Step 1: the topic, and at once the subscription that holds its data.
        if self._admin.properties(topic) is None:
            self._admin.create_topic(topic)
        self._admin.create_subscription(topic, INTERNAL_SUBSCRIPTION)
        # Step 2: nothing else may drop data, and resends after a reconnect are recognized.
        self._admin.keep_all_data(topic)
        self._admin.deduplicate(topic)
        # Step 3: only now it counts as a segment; an adopted topic may hold data already.
        found = self._admin.properties(topic) or {}
        owner = found.get(SEGMENT_PROPERTY)
        if owner is not None and owner != segment.id:
            raise SegmentLogError(
                f"the topic {topic} belongs to segment {owner}, expected {segment.id}: two "
                "segments in one topic would read each other's rows; use another name"
            )
        marks = {SEGMENT_PROPERTY: segment.id}
        layout = self._admin.layout(topic)
        if layout.ledgers and ORIGIN_PROPERTY not in found:
            marks[ORIGIN_PROPERTY] = f"{EARLIEST},{layout.first_ledger}"
        self._admin.set_properties(topic, marks)

    def delete(self, segment: SegmentRef) -> None:
        """Delete the topic; see the Protocol."""
        self._admin.delete_topic(segment.log_name)
        with self._lock:
            self._origins.pop(segment.log_name, None)
            self._means.pop(segment.log_name, None)

    def writer(self, segment: SegmentRef, name: str) -> PulsarSegmentWriter:
        """Open a producer of that name; see the Protocol."""
        self._check_process()
        self._check_exists(segment)
        settings = self._producer_settings
        try:
            producer = self._client.create_producer(
                segment.log_name, producer_name=name, **settings["producer"]
            )
        except pulsar.PulsarException as failed:
            raise _error(type(failed).__name__, "open a writer of", segment) from failed
        writer = PulsarSegmentWriter(self, segment, producer, settings)
        self._writers.add(writer)
        return writer

    def last_confirmed(self, segment: SegmentRef) -> Position:
        """Return the LAC; see the Protocol. One admin call of about 2 ms."""
        return self._admin.layout(segment.log_name).last

    def trimmed_to(self, segment: SegmentRef) -> Position:
        """Return up to where data is gone; see the Protocol."""
        first = self._admin.layout(segment.log_name).first_ledger
        return self._gone(segment, first)

    def measure(self, segment: SegmentRef, start: Position, end: Position) -> RangeSize:
        """Count entries, and estimate or count the rest; see the Protocol."""
        layout = self._admin.layout(segment.log_name)
        pieces = layout.pieces(start, end)
        entries = sum(piece.entries for piece in pieces)
        if entries <= _COUNTED_ENTRIES:
            counted = self._count(segment, pieces)
            if counted is not None:
                return RangeSize(
                    entries, sum(one for one, _ in counted), sum(two for _, two in counted), True
                )
        messages = round(entries * self._messages_per_entry(segment, layout, pieces))
        return RangeSize(entries, messages, round(sum(piece.bytes for piece in pieces)), False)

    def limit(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        max_messages: int | None,
        max_bytes: int | None,
    ) -> Position:
        """Return how far one may read within the limits; see the Protocol."""
        layout = self._admin.layout(segment.log_name)
        pieces = layout.pieces(start, end)
        entries = sum(piece.entries for piece in pieces)
        if entries <= 1 or (max_messages is None and max_bytes is None):
            return end
        counted = self._count(segment, pieces) if entries <= _COUNTED_ENTRIES else None
        if counted is not None:
            taken, messages, size = 0, 0, 0
            for entry_messages, entry_bytes in counted:
                messages, size = messages + entry_messages, size + entry_bytes
                too_many = max_messages is not None and messages > max_messages
                if too_many or (max_bytes is not None and size > max_bytes):
                    break
                taken += 1
            taken = max(taken, 1)
        else:
            mean = self._messages_per_entry(segment, layout, pieces) if max_messages else 0.0
            taken = pulsar_layout.take(pieces, mean, max_messages, max_bytes)
        return end if taken >= entries else pulsar_layout.nth(pieces, taken)

    def split(
        self, segment: SegmentRef, start: Position, end: Position, parts: int
    ) -> list[Position]:
        """Cut a range into parts of about equal bytes; see the Protocol."""
        if start >= end:
            return []
        pieces = self._admin.layout(segment.log_name).pieces(start, end)
        if not pieces:
            return [end]
        cuts = pulsar_layout.cut(pieces, parts)
        return [*(pulsar_layout.nth(pieces, number) for number in cuts[:-1]), end]

    def read(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        *,
        visible: Visible,
        columns: frozenset[str],
        max_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the visible rows of a range; see the Protocol."""
        if start >= end:
            return
        self._check_process()
        self._check_exists(segment)
        reader = self._open_reader(segment, start)
        try:
            feed = _Feed(reader, segment)
            rows = _Columns(columns, max_rows)
            previous, whole = start, True
            while previous < end:
                head = feed.next()
                if head is None:  # nothing that a reader gets to see lies before `end`
                    whole = False
                    break
                position, size = _head_of_entry(head, previous, segment)
                whole = whole and position == (previous.ledger, previous.entry + 1)
                if position > end:
                    break
                messages = [head]
                if size > 1:
                    messages += feed.rest(size - 1)
                    _check_tail(messages[-1], position, size, segment)
                previous = position
                if visible(head.producer_name(), position):
                    rows.add(position, messages, size)
                    yield from rows.batches(everything=False)
        finally:
            _close_quietly(reader)
        # Positions without a hole prove that nothing is missing; else the broker has to say so.
        if not whole:
            self._check_whole(segment, start, end)
        yield from rows.batches(everything=True)

    def close(self) -> None:
        """Close the writers and let go of the client; see the Protocol."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            for writer in list(self._writers):
                writer.close()
            _CLIENTS.release(self._config)
        self._admin.close()

    # --- what is there ------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._closed:
            raise SegmentLogError("this log is closed: open another one")
        if self._pid != os.getpid():
            raise SegmentLogError(
                "this log was opened in the parent of this process: its connections do not "
                "survive a fork; open another one here"
            )

    def _check_exists(self, segment: SegmentRef) -> None:
        """Raise unless the topic is that segment: a client would conjure up a missing one."""
        if segment.log_name not in self._origins:
            self._read_origin(segment)

    def _read_origin(self, segment: SegmentRef) -> tuple[Position, int] | None:
        """Return up to where data was given up and the ledger after that, None if never written."""
        found = self._admin.properties(segment.log_name)
        if found is None or found.get(SEGMENT_PROPERTY) != segment.id:
            what = "there is none" if found is None else "the one there is not it"
            raise SegmentNotFoundError(
                f"expected segment {segment.id} in the topic {segment.log_name}, but {what}; it "
                "was deleted on the broker, or never created there: check service.url and "
                "admin.url"
            )
        text = found.get(ORIGIN_PROPERTY)
        origin = None
        if text is not None:
            position, _, ledger = text.partition(",")
            origin = (Position.parse(position), int(ledger))
        with self._lock:
            self._origins[segment.log_name] = origin
        return origin

    def _mark_origin(self, segment: SegmentRef) -> None:
        """Note the first ledger with data, before the first write is reported as done.

        An empty ledger may be replaced by another one at any time, so the topic's creation is too
        early for that; afterwards the internal subscription holds it.
        """
        if self._origins.get(segment.log_name) is not None:
            return
        if self._read_origin(segment) is None:
            first = self._admin.layout(segment.log_name).first_ledger
            self._admin.set_properties(
                segment.log_name, {ORIGIN_PROPERTY: f"{EARLIEST},{first}"}
            )
            self._read_origin(segment)

    def _gone(self, segment: SegmentRef, first_ledger: int) -> Position:
        origin = self._origins.get(segment.log_name)
        if origin is None or first_ledger > origin[1]:
            origin = self._read_origin(segment)
        if origin is None:
            return EARLIEST
        given_up, next_ledger = origin
        if first_ledger <= next_ledger:
            return given_up
        return Position(first_ledger, -1)

    def _check_whole(self, segment: SegmentRef, start: Position, end: Position) -> None:
        gone = self.trimmed_to(segment)
        if start < gone:
            raise DataLossError(
                f"rows of ({start}, {end}] of segment {segment.id} ({segment.log_name}) are gone: "
                f"everything up to {gone} was deleted before it was read; start from the "
                "earliest position in a new checkpoint if that is acceptable, and find out what "
                f"deleted it (subscription {INTERNAL_SUBSCRIPTION} skipped or removed?)"
            )

    # --- sizes --------------------------------------------------------------------------------

    def _count(
        self, segment: SegmentRef, pieces: list[pulsar_layout.Piece]
    ) -> list[tuple[int, int]] | None:
        found = []
        for position in pulsar_layout.positions(pieces):
            size = self._admin.entry_size(segment.log_name, position)
            if size is None:
                return None
            found.append(size)
        return found

    def _messages_per_entry(
        self, segment: SegmentRef, layout: Layout, pieces: list[pulsar_layout.Piece]
    ) -> float:
        if not pieces:
            return 0.0
        if layout.added_since_load > 0:
            messages, _ = self._admin.messages_since_load(segment.log_name)
            if messages > 0:
                return messages / layout.added_since_load
        # Nothing was written since the topic was loaded: a sample has to do.
        first, last = pulsar_layout.nth(pieces, 1), Position(pieces[-1].ledger, pieces[-1].last)
        sizes = [self._admin.entry_size(segment.log_name, one) for one in {first, last}]
        known = [size[0] for size in sizes if size is not None]
        return sum(known) / len(known) if known else 1.0

    def _receiver_queue(self, segment: SegmentRef, start: Position) -> int:
        """Return how many messages a reader may prefetch, by their mean size."""
        now = time.monotonic()
        mean, until = self._means.get(segment.log_name, (0.0, 0.0))
        if now > until:
            messages, size = self._admin.messages_since_load(segment.log_name)
            if not messages:
                layout = self._admin.layout(segment.log_name)
                pieces = layout.pieces(start, layout.last)
                sample = (
                    self._admin.entry_size(segment.log_name, pulsar_layout.nth(pieces, 1))
                    if pieces
                    else None
                )
                messages, size = sample or (1, 0)
            mean = max(1.0, size / max(1, messages))
            with self._lock:
                self._means[segment.log_name] = (mean, now + _MEAN_SECONDS)
        return max(1, min(_RECEIVER_ROWS, int(_RECEIVER_BYTES / mean)))

    def _open_reader(self, segment: SegmentRef, start: Position) -> Any:
        settings = dict(self._reader_settings)
        if "receiver_queue_size" not in settings:
            settings["receiver_queue_size"] = self._receiver_queue(segment, start)
        # The entry after `start`, or the first one of a later ledger if there is none.
        first = pulsar.MessageId(-1, start.ledger, start.entry + 1, -1)
        if start == EARLIEST:
            first = pulsar.MessageId.earliest
        try:
            return self._client.create_reader(
                segment.log_name, first, start_message_id_inclusive=True, **settings
            )
        except pulsar.PulsarException as failed:
            raise _error(type(failed).__name__, "open a reader of", segment) from failed


def _head_of_entry(
    message: Any, previous: Position, segment: SegmentRef
) -> tuple[Position, int]:
    """Return an entry's position and batch size from its first message."""
    message_id = message.message_id()
    position = Position(message_id.ledger_id(), message_id.entry_id())
    index = message_id.batch_index()
    if index > 0 or position <= previous:
        raise SegmentLogError(
            f"expected the beginning of an entry after {previous} of segment {segment.id}, found "
            f"message {index} of {position}: the reader cannot vouch for the order; try again"
        )
    return position, _batch_size(message_id)


def _check_tail(message: Any, position: Position, size: int, segment: SegmentRef) -> None:
    message_id = message.message_id()
    found = Position(message_id.ledger_id(), message_id.entry_id())
    if found != position or message_id.batch_index() != size - 1:
        raise SegmentLogError(
            f"expected message {size - 1} of entry {position} of segment {segment.id}, found "
            f"{message_id.batch_index()} of {found}: the entry did not come whole; try again"
        )


def _producer_settings(config: PulsarConfig) -> dict[str, Any]:
    """Return what a producer is made with, and our own limits."""
    given = parse_passthrough("producer", dict(config.producer))
    pending = given.get("max_pending_messages", 2 * _IN_FLIGHT_BYTES // _ROW_OVERHEAD_BYTES)
    timeout = given.get("send_timeout_millis", _SEND_TIMEOUT_MS)
    producer = {
        "send_timeout_millis": timeout,
        "max_pending_messages": pending,
        "block_if_queue_full": True,
        "batching_enabled": True,
        # These never strike first: where an entry ends is our decision.
        "batching_max_messages": _OUT_OF_REACH,
        "batching_max_allowed_size_in_bytes": _OUT_OF_REACH,
        "batching_max_publish_delay_ms": _NEVER_MS,
        "compression_type": getattr(
            pulsar.CompressionType, _COMPRESSION[given.get("compression_type", "NONE")]
        ),
    }
    if "encryption_key" in given:
        producer["encryption_key"] = given["encryption_key"]
        producer["crypto_key_reader"] = pulsar.CryptoKeyReader(
            given["crypto_public_key_path"], given.get("crypto_private_key_path", "")
        )
    return {
        "producer": producer,
        "send_timeout_millis": timeout,
        "max_pending_messages": pending,
        "batching_max_messages": given.get("batching_max_messages", _ENTRY_ROWS),
        "batching_max_bytes": given.get("batching_max_bytes", _ENTRY_BYTES),
    }


_COMPRESSION = {
    "NONE": "NONE",
    "LZ4": "LZ4",
    "ZLIB": "ZLib",
    "ZSTD": "ZSTD",
    "SNAPPY": "SNAPPY",
}


def _reader_settings(config: PulsarConfig) -> dict[str, Any]:
    given = parse_passthrough("reader", dict(config.reader))
    public = given.pop("crypto_public_key_path", "")
    private = given.pop("crypto_private_key_path", "")
    if private:
        given["crypto_key_reader"] = pulsar.CryptoKeyReader(public, private)
    return given
