"""Writing to a Pulsar topic through ``pulsar-client``, entry by entry.

The client calls every callback under the interpreter's lock, so only the last row of each entry
has one. The client never decides where an entry ends: its own limits are too high for that. After
the entry's last row it is flushed explicitly. The receipt's batch index must be the number of rows
less one: this proves that exactly these rows are one entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
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
from pulsar_txn_spark.backends.pulsar.receipt_ledger import InFlight, SentEntry
from pulsar_txn_spark.backends.pulsar.segment_writer import (
    ENTRY_BYTES,
    ENTRY_ROWS,
    IN_FLIGHT_BYTES,
    SEND_TIMEOUT_MS,
    EntrySettings,
    EntryWriter,
)
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import PulsarTxnError, SchemaError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef, checked_event_times, checked_properties

_ROW_OVERHEAD_BYTES = 32  # about what a row's own metadata takes in an entry
_OUT_OF_REACH = 2**31 - 1  # for the client's own limits on a batch
_NEVER_MS = 24 * 3600 * 1000
_GRACE_SECONDS = 10.0  # the client fails what is overdue by itself; this is for one that hangs
_FLUSH_RETRY_SECONDS = 0.02
_COMPRESSION = {"NONE": "NONE", "LZ4": "LZ4", "ZLIB": "ZLib", "ZSTD": "ZSTD", "SNAPPY": "SNAPPY"}


@dataclass(frozen=True, slots=True)
class WriterSettings(EntrySettings):
    """How to write through ``pulsar-client``: made from the options ``pulsar.producer.*``.

    Parameters
    ----------
    producer : Mapping[str, Any]
        Arguments of ``pulsar.Client.create_producer``.
    """

    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)

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
        options = parse_passthrough("producer", dict(config.producer))
        pending = options.get("max_pending_messages", 2 * IN_FLIGHT_BYTES // _ROW_OVERHEAD_BYTES)
        timeout_ms = options.get("send_timeout_millis", SEND_TIMEOUT_MS)
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
                pulsar.CompressionType, _COMPRESSION[options.get("compression_type", "NONE")]
            ),
        }
        if "encryption_key" in options:
            producer["encryption_key"] = options["encryption_key"]
            producer["crypto_key_reader"] = pulsar.CryptoKeyReader(
                options["crypto_public_key_path"], options.get("crypto_private_key_path", "")
            )
        # Half of the client's queue, so that a full one always has an entry to send.
        rows = min(options.get("batching_max_messages", ENTRY_ROWS), max(1, pending // 2))
        return cls(
            producer=producer,
            entry_bytes=options.get("batching_max_bytes", ENTRY_BYTES),
            entry_rows=rows,
            timeout_s=timeout_ms / 1000 + _GRACE_SECONDS,
        )


class PulsarSegmentWriter(EntryWriter):
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
        Called with the last position of the rows that were acknowledged, before the receipt is
        handed out.
    max_message_bytes : Callable
        Returns the broker's limit.
    """

    buffered_entries = 1
    row_overhead_bytes = _ROW_OVERHEAD_BYTES

    def __init__(
        self,
        segment: SegmentRef,
        producer: Any,
        settings: WriterSettings,
        *,
        before_report: Callable[[Position], None],
        max_message_bytes: Callable[[], int],
    ) -> None:
        super().__init__(segment, settings, InFlight(), before_report)
        self._producer = producer._producer  # noqa: SLF001 - the layer above costs 20 %
        self._send = self._producer.send_async
        self._settings = settings
        self._max_message_bytes = max_message_bytes

    def _release(self) -> None:
        close_quietly(self._producer)

    def _send_buffered(self, *, everything: bool) -> None:
        """Send the full entries of what is buffered, and with `everything` the rest too."""
        rows = self._buffer.drain()
        encoded = _Rows.of(rows)
        start = 0
        settings = self._settings
        for end in encoded.cuts(settings.entry_bytes, settings.entry_rows, everything=everything):
            self._send_entry(encoded, start, end)
            start = end
        if start < rows.num_rows:
            self._buffer.add(rows.slice(start), int(encoded.sizes[start:].sum()))

    def _send_entry(self, rows: _Rows, start: int, end: int) -> None:
        entry = rows.entry(self._ledger.next_number, start, end)
        # How large one is that gets compressed is not known here: then the client has to see.
        if entry.cost_bytes > ENTRY_BYTES and not self._settings.compresses:
            allowed = self._max_message_bytes()
            if entry.cost_bytes > allowed - ENTRY_MARGIN_BYTES:
                raise self._too_large(entry)
        self._wait(lambda: self._ledger.has_room(entry.cost_bytes))
        self._ledger.register(entry)
        try:
            rows.send(self._send, start, end, partial(self._on_receipt, entry))
        except (pulsar.PulsarException, TypeError, ValueError, RuntimeError) as failed:
            raise translate(type(failed).__name__, "append to", self._segment) from failed
        self._end_entry()
        self._ledger.check()

    def _end_entry(self) -> None:
        """Make the client send what it has batched as one entry."""
        deadline = time.monotonic() + self._settings.timeout_s
        while True:
            refused: list[Any] = []
            self._producer.flush_async(refused.append)
            # An answer at once is a refusal: while the client reconnects it does not flush.
            if not refused or refused[0].name == "Ok" or self._ledger.failed:
                return
            if time.monotonic() > deadline:
                raise translate(refused[0].name, "append to", self._segment)
            time.sleep(_FLUSH_RETRY_SECONDS)

    def _on_receipt(self, entry: SentEntry, result: Any, message_id: Any) -> None:
        """Settle an entry, on the client's thread: an exception in here would end the process."""
        try:
            name = result.name
            position = Position(message_id.ledger_id(), message_id.entry_id())
            rows = message_id.batch_index() + 1
        except Exception as surprise:  # noqa: BLE001 - reported by the writer's thread
            name, position, rows = type(surprise).__name__, EARLIEST, 0
        if name == "Ok":
            # Without an index: a client that sends a batch of one row without the envelope.
            self._ledger.settle(entry.number, position, 1 if entry.rows == 1 and not rows else rows)
        elif name == "MessageTooBig":
            self._ledger.fail(partial(self._too_large, entry))
        else:
            self._ledger.fail(partial(translate, name, "append to", self._segment))

    def _too_large(self, entry: SentEntry) -> PulsarTxnError:
        return too_large(self._segment, entry.rows, entry.cost_bytes, self._max_message_bytes())


class _Rows:
    """A row batch as Python objects, with each row's size; `of` checks what cannot be sent."""

    def __init__(
        self,
        values: list[bytes | None],
        keys: list[str | None] | None,
        times: list[int | None] | None,
        properties: list[Any] | None,
        payload: entry_codec.Sizes,
        sizes: entry_codec.Sizes,
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
        payload = entry_codec.payload_sizes(rows)
        keys = None if key is None else _text_keys(key)
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

    def entry(self, number: int, start: int, end: int) -> SentEntry:
        payload_bytes = int(self._payload[start:end].sum())
        return SentEntry(number, end - start, payload_bytes, int(self.sizes[start:end].sum()))

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


def _properties_bytes(pairs: Any) -> int:
    return sum(len(name) + len(text) + 8 for name, text in pairs or ())


def _text_keys(column: Any) -> list[str | None]:
    if pc.any(pc.equal(pc.binary_length(column), 0)).as_py():
        raise SchemaError(
            "an empty key cannot be told from no key by pulsar-client: expected null or at least "
            "one byte. Map '' to null, or use the transport 'wire'"
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
