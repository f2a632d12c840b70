"""Writing to a Pulsar topic through ``pulsar-client``, entry by entry.

The client hands every callback over through the interpreter's lock, so there is one only on the
last row of each entry. The client never decides where an entry ends (its own limits stand out of
reach): after the entry's last row it is flushed explicitly, and the receipt's batch index, which
must be the number of rows less one, proves that exactly these rows went as one entry.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import _pulsar
import numpy as np
import pulsar
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.pulsar.errors import ENTRY_MARGIN_BYTES, too_large, translate
from pulsar_txn_spark.backends.pulsar.library.connections import close_quietly
from pulsar_txn_spark.backends.pulsar.passthrough import parse_passthrough
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    PulsarTxnError,
    SchemaError,
    SegmentLogError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import (
    Receipt,
    SegmentRef,
    checked_event_times,
    checked_properties,
)

_ENTRY_BYTES = 512 * 1024  # large entries read fast; well below the broker's 5 MiB
_ENTRY_ROWS = 10_000
_ROW_OVERHEAD_BYTES = 32  # about what a row's own metadata takes in an entry
_IN_FLIGHT_BYTES = 32 * 1024 * 1024  # bound on memory; several times bandwidth x delay of a LAN
_OUT_OF_REACH = 2**31 - 1  # for the client's own limits on a batch
_NEVER_MS = 24 * 3600 * 1000
_SEND_TIMEOUT_MS = 30_000
_GRACE_SECONDS = 10.0  # the client fails what is overdue by itself; this is for one that hangs
_CUT_RETRY_SECONDS = 0.02
_COMPRESSION = {"NONE": "NONE", "LZ4": "LZ4", "ZLIB": "ZLib", "ZSTD": "ZSTD", "SNAPPY": "SNAPPY"}


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """How to write: made from the options ``pulsar.producer.*``.

    Parameters
    ----------
    producer : Mapping[str, Any]
        Arguments of ``pulsar.Client.create_producer``.
    entry_bytes, entry_rows : int
        Where an entry is full.
    timeout_s : float
        Bound on waiting without any progress.
    """

    producer: Mapping[str, Any] = field(repr=False)
    entry_bytes: int
    entry_rows: int
    timeout_s: float

    @property
    def compresses(self) -> bool:
        """Return whether entries get smaller on their way out."""
        return bool(self.producer["compression_type"] != pulsar.CompressionType.NONE)

    @classmethod
    def of(cls, config: PulsarConfig) -> WriterSettings:
        """Read the options.

        Raises
        ------
        OptionError
            If one is unknown, refused or malformed.
        """
        given = parse_passthrough("producer", dict(config.producer))
        pending = given.get("max_pending_messages", 2 * _IN_FLIGHT_BYTES // _ROW_OVERHEAD_BYTES)
        timeout_ms = given.get("send_timeout_millis", _SEND_TIMEOUT_MS)
        producer: dict[str, Any] = {
            "send_timeout_millis": timeout_ms,
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
        # Half of the client's queue, so that a full one always has an entry to send.
        rows = min(given.get("batching_max_messages", _ENTRY_ROWS), max(1, pending // 2))
        return cls(
            producer=producer,
            entry_bytes=given.get("batching_max_bytes", _ENTRY_BYTES),
            entry_rows=rows,
            timeout_s=timeout_ms / 1000 + _GRACE_SECONDS,
        )


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
        self._total = Receipt(None, None, 0, 0, 0)

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
                self._sum = _plus(self._sum, position, entry)
                self._total = _plus(self._total, position, entry)
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

    @property
    def total(self) -> Receipt:
        """Return the sum since the writer was opened: of a prefix of its entries."""
        with self._changed:
            return self._total

    def wait_below(self, cost_bytes: int, timeout_s: float) -> bool:
        """Wait until at most that is in flight; False if nothing moved for `timeout_s`."""
        with self._changed:
            # Every entry costs something, so that 0 means that nothing is in flight.
            while self._pending_bytes > cost_bytes and self._failure is None:
                before = self._pending
                self._changed.wait(timeout_s)
                if self._pending == before and self._failure is None:
                    return False
            return True

    def collect(self) -> Receipt:
        """Return the sum since the last call; nothing may be in flight."""
        with self._changed:
            assert not self._pending, self._pending
            assert self._failure is None, self._failure
            receipt, self._sum = self._sum, Receipt(None, None, 0, 0, 0)
            return receipt


def _plus(receipt: Receipt, position: Position, entry: _Entry) -> Receipt:
    return Receipt(
        receipt.first or position,
        position,
        receipt.entries + 1,
        receipt.messages + entry.rows,
        receipt.bytes + entry.payload_bytes,
    )


class PulsarSegmentWriter:
    """Appends row batches through one producer.

    Parameters
    ----------
    segment : SegmentRef
        Where to.
    producer : pulsar.Producer
        Made with ``settings.producer``; of this writer alone.
    settings : WriterSettings
        Where entries end, and how long to wait.
    before_report : Callable
        Called after rows were acknowledged and before the receipt is handed out.
    max_message_bytes : Callable
        Returns the broker's limit.
    """

    def __init__(
        self,
        segment: SegmentRef,
        producer: Any,
        settings: WriterSettings,
        *,
        before_report: Callable[[], None],
        max_message_bytes: Callable[[], int],
    ) -> None:
        self._segment = segment
        self._producer = producer._producer  # noqa: SLF001 - the layer above costs 20 %
        self._send = self._producer.send_async
        self._settings = settings
        self._before_report = before_report
        self._max_message_bytes = max_message_bytes
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
        rows = entry_codec.normalize(rows)
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._held_bytes += rows.nbytes + _ROW_OVERHEAD_BYTES * rows.num_rows
        settings = self._settings
        if self._held_rows >= settings.entry_rows or self._held_bytes >= settings.entry_bytes:
            self._drain(everything=False)

    def flush(self) -> Receipt:
        """Wait for every receipt; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`."""
        self._check()
        self._drain(everything=True)
        self._check(moved=self._tally.wait_below(0, self._settings.timeout_s))
        receipt = self._tally.collect()
        if receipt.entries:
            try:
                self._before_report()
            except PulsarTxnError as failed:
                self._failure = failed
                raise
        return receipt

    def acknowledged(self) -> Receipt:
        """Return what was acknowledged; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`.

        Raises
        ------
        SegmentLogUnavailableError
            If the log's origin, which a first receipt needs, could not be noted.
        """
        receipt = self._tally.total
        if receipt.entries:
            self._before_report()
        return receipt

    def close(self) -> None:
        """Let go of the producer; what was not flushed may or may not be in the log."""
        if not self._closed:
            self._closed = True
            self._held.clear()
            close_quietly(self._producer)

    def _check(self, *, moved: bool = True) -> None:
        """Raise what went wrong; a writer that failed stays so."""
        if self._failure is None:
            if self._tally.failure is not None:
                self._failure = self._explain(*self._tally.failure)
            elif not moved:
                self._failure = translate("Timeout", "append to", self._segment)
            elif self._closed:
                raise SegmentLogError(f"the writer of segment {self._segment.id} is closed")
        if self._failure is not None:
            raise self._failure

    def _explain(self, fault: str, entry: _Entry) -> PulsarTxnError:
        if fault.startswith("unverified: "):
            return UnverifiedReceiptError(
                f"segment {self._segment.id} ({self._segment.log_name}): "
                f"{fault.removeprefix('unverified: ')}; nobody may take these rows as written, "
                "so they go out again under a new name"
            )
        if fault == "MessageTooBig":
            return self._too_large(entry)
        return translate(fault, "append to", self._segment)

    def _too_large(self, entry: _Entry) -> PulsarTxnError:
        return too_large(self._segment, entry.rows, entry.cost_bytes, self._max_message_bytes())

    def _drain(self, *, everything: bool) -> None:
        """Send the complete entries of what is held, and with `everything` the rest too."""
        if not self._held_rows:
            return
        rows = entry_codec.combine(self._held)
        encoded = _Rows.of(rows)
        start = 0
        settings = self._settings
        for end in encoded.cuts(settings.entry_bytes, settings.entry_rows, everything=everything):
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
        # How large one is that gets compressed is not known here: then the client has to see.
        if entry.cost_bytes > _ENTRY_BYTES and not self._settings.compresses:
            allowed = self._max_message_bytes()
            if entry.cost_bytes > allowed - ENTRY_MARGIN_BYTES:
                self._failure = self._too_large(entry)
                raise self._failure
        room = max(0, _IN_FLIGHT_BYTES - entry.cost_bytes)
        self._check(moved=self._tally.wait_below(room, self._settings.timeout_s))
        callback = self._tally.expect(entry)
        try:
            rows.send(self._send, start, end, callback)
        except (pulsar.PulsarException, TypeError, ValueError, RuntimeError) as failed:
            self._failure = translate(type(failed).__name__, "append to", self._segment)
            raise self._failure from failed
        self._cut()
        self._check()

    def _cut(self) -> None:
        """End the entry here: make the client send what it has batched."""
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            refused: list[Any] = []
            self._producer.flush_async(refused.append)
            # An answer at once is a refusal: while the client reconnects it does not flush.
            if not refused or refused[0].name == "Ok" or self._tally.failure is not None:
                return
            if time.monotonic() > deadline:
                self._failure = translate(refused[0].name, "append to", self._segment)
                raise self._failure
            time.sleep(_CUT_RETRY_SECONDS)


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
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        value = columns.get("value", pa.nulls(rows.num_rows, pa.binary()))
        key, event_time = columns.get("key"), columns.get("event_time_ms")
        properties = columns.get("properties")
        payload = _lengths(value)
        keys = None
        if key is not None:
            payload = payload + _lengths(key)
            keys = _text_keys(key)
        sizes = payload + _ROW_OVERHEAD_BYTES
        pairs = None
        if properties is not None:
            pairs = checked_properties(properties).to_pylist()
            sizes = sizes + np.fromiter(map(_properties_bytes, pairs), np.int64, len(pairs))
        if event_time is not None:
            checked_event_times(event_time)
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
        """Hand rows over, `end` excluded; `last` gets the receipt of the last one."""
        builder, stop = _pulsar.MessageBuilder, end - 1
        values = self._values[start:stop]
        keys = None if self._keys is None else self._keys[start:stop]
        # Nearly all time goes by in these loops: the usual cases have one of their own.
        if self._plain and keys is None and None not in values:
            for value in values:
                send(builder().content(value).build(), None)
        elif self._plain and keys is not None and None not in values and None not in keys:
            for value, key in zip(values, keys, strict=True):
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
                message.property(name, text)
        return message.build()


def _lengths(column: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths: np.ndarray[Any, np.dtype[np.int64]] = (
        pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return lengths


def _properties_bytes(pairs: Any) -> int:
    return sum(len(name) + len(text) + 8 for name, text in pairs or ())


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
