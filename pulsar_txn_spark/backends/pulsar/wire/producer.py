"""Writing to a topic over the wire: rows to entries, entries in flight, receipts checked.

**When the connection is lost**, entries without a receipt may or may not be in the log. The
producer opens again under its name, and the broker says the last sequence id of that name that it
stored. If that is just the last one that was acknowledged, none of the others is there: they are
sent again, in order. In every other case (also where nothing was acknowledged yet: a broker that
does not deduplicate would answer the same) nobody can tell, and the writer fails with
:class:`~pulsar_txn_spark.errors.UnverifiedReceiptError`: the rows without a receipt go out again
under a new name, see :mod:`~pulsar_txn_spark.engine.topic_writers`.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.pulsar.errors import ENTRY_MARGIN_BYTES, too_large, translate
from pulsar_txn_spark.backends.pulsar.passthrough import parse_passthrough
from pulsar_txn_spark.backends.pulsar.wire import batch
from pulsar_txn_spark.backends.pulsar.wire.client import RETRIED, Backoff, WireClient
from pulsar_txn_spark.backends.pulsar.wire.compression import NUMBERS, compress
from pulsar_txn_spark.backends.pulsar.wire.connection import Connection, RefusedError, positive_id
from pulsar_txn_spark.backends.pulsar.wire.frames import encode_send
from pulsar_txn_spark.backends.pulsar.wire.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
    MessageMetadata,
)
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    PulsarTxnError,
    SegmentLogError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import Receipt, SegmentRef

_ENTRY_BYTES = 512 * 1024  # large entries read fast; well below the broker's 5 MiB
_ENTRY_ROWS = 10_000
_HELD_ENTRIES = 2  # encoded at a time: each time takes some 0.2 ms, however few rows there are
_ENCODED_BYTES = 8 * 1024 * 1024  # at a time, however large a batch Spark gives
_ROW_OVERHEAD_BYTES = 8  # about what a row's own metadata takes in an entry
_IN_FLIGHT_BYTES = 32 * 1024 * 1024  # of all writers; several times bandwidth x delay of a LAN
_SEND_TIMEOUT_MS = 30_000
_CLOSE_SECONDS = 5.0  # a broker answers once what it was storing is stored, or has failed
_BROKEN_CHECKSUM = 9
_MOST_RETURNS = 16  # without any receipt in between: a topic that opens and takes nothing
_NOTHING = Receipt(None, None, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class WireWriterSettings:
    """How to write: made from the options ``pulsar.producer.*``.

    Parameters
    ----------
    entry_bytes, entry_rows : int
        Where an entry is full.
    in_flight_bytes : int
        Bound on what all writers of a connection's configuration have without a receipt.
    compression : int
        Pulsar's number of it.
    timeout_s : float
        Bound on waiting without any progress, and on being without the broker.
    """

    entry_bytes: int = _ENTRY_BYTES
    entry_rows: int = _ENTRY_ROWS
    in_flight_bytes: int = _IN_FLIGHT_BYTES
    compression: int = 0
    timeout_s: float = _SEND_TIMEOUT_MS / 1000

    @classmethod
    def of(cls, config: PulsarConfig) -> WireWriterSettings:
        """Read the options.

        Raises
        ------
        OptionError
            If one is unknown, refused or malformed.
        """
        given = parse_passthrough("producer", dict(config.producer))
        return cls(
            entry_bytes=given.get("batching_max_bytes", _ENTRY_BYTES),
            entry_rows=given.get("batching_max_messages", _ENTRY_ROWS),
            compression=NUMBERS[given.get("compression_type", "NONE")],
            timeout_s=given.get("send_timeout_millis", _SEND_TIMEOUT_MS) / 1000,
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry without a receipt: what is sent, and what its receipt has to prove."""

    sequence_id: int
    frame: list[bytes]
    rows: int
    payload_bytes: int  # values and keys: what the user wrote

    @property
    def cost_bytes(self) -> int:
        return sum(map(len, self.frame))


class WireSegmentWriter:
    """Appends row batches through one producer; of one thread at a time.

    Parameters
    ----------
    segment : SegmentRef
        Where to.
    name : str
        The producer's.
    client : WireClient
        Whose connections to use.
    settings : WireWriterSettings
        Where entries end, and how long to wait.
    before_report : Callable
        Called after rows were acknowledged and before the receipt is handed out.

    Raises
    ------
    SegmentNotFoundError, SegmentSealedError, SegmentLogUnavailableError
    """

    def __init__(
        self,
        segment: SegmentRef,
        name: str,
        client: WireClient,
        settings: WireWriterSettings,
        *,
        before_report: Callable[[], None],
    ) -> None:
        self._segment = segment
        self._name = name
        self._client = client
        self._settings = settings
        self._before_report = before_report
        self._number = client.next_number()
        self._epoch = 0
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        # From here on under client.changed.
        self._unacknowledged: collections.deque[_Entry] = collections.deque()
        self._in_flight_bytes = 0
        self._highest = EARLIEST
        self._sum = _NOTHING  # since the last flush
        self._total = _NOTHING
        self._lost: RefusedError | None = None
        self._returns = (-1, 0)  # how often the producer was opened again after this receipt
        self._failure: PulsarTxnError | None = None
        self._closed = False
        self._connection, ready = self._open(client.settings.operation_s)
        self._acknowledged_id = ready.last_sequence_id
        self._next_id = self._acknowledged_id + 1

    # --- the Protocol -------------------------------------------------------------------------

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
        enough = _HELD_ENTRIES * settings.entry_bytes
        if self._held_rows >= settings.entry_rows or self._held_bytes >= enough:
            self._drain()

    def flush(self) -> Receipt:
        """Wait for every receipt; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`."""
        self._check()
        self._drain()
        self._wait(lambda: not self._unacknowledged)
        with self._client.changed:
            receipt, self._sum = self._sum, _NOTHING
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
        with self._client.changed:
            receipt = self._total
        if receipt.entries:
            self._before_report()
        return receipt

    def close(self) -> None:
        """Let go of the producer; what was not flushed may or may not be in the log."""
        with self._client.changed:
            if self._closed:
                return
            self._closed = True
            self._held.clear()
            self._unacknowledged.clear()
            self._count(-self._in_flight_bytes)
            self._client.changed.notify_all()
        self._leave(self._connection)

    # --- rows to entries ----------------------------------------------------------------------

    def _drain(self) -> None:
        """Send what is held."""
        if not self._held_rows:
            return
        rows, size = entry_codec.combine(self._held), self._held_bytes
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        step = max(1, rows.num_rows * _ENCODED_BYTES // max(size, 1))
        for first in range(0, rows.num_rows, step):
            part = rows.slice(first, step)
            encoded, payload, start = batch.encode(part), _payload_sizes(part), 0
            for end in self._cuts(encoded.offsets):
                self._send_rows(encoded, start, end, int(payload[start:end].sum()))
                start = end

    def _cuts(self, offsets: Any) -> Iterator[int]:
        """Yield the ends of entries: about as large as each other, so that none waits for more."""
        settings, start, rows = self._settings, 0, len(offsets) - 1
        while start < rows:
            left = int(offsets[-1] - offsets[start])
            parts = max(-(-left // settings.entry_bytes), -(-(rows - start) // settings.entry_rows))
            share = int(offsets[start]) + -(-left // parts)
            end = int(np.searchsorted(offsets, share, side="right")) - 1
            end = max(start + 1, min(end, start + settings.entry_rows))
            yield end
            start = end

    def _send_rows(
        self, encoded: batch.EncodedRows, start: int, end: int, payload_bytes: int
    ) -> None:
        plain = encoded.payload(start, end)
        metadata = MessageMetadata(
            producer_name=self._name,
            sequence_id=self._next_id,
            publish_time=time.time_ns() // 1_000_000,
            num_messages_in_batch=end - start,
        )
        packed = plain
        if self._settings.compression:
            packed = compress(plain, self._settings.compression)
            metadata.compression = self._settings.compression
            metadata.uncompressed_size = len(plain)
        size, allowed = len(packed) + metadata.ByteSize(), self._connection.max_message_bytes
        if size > allowed - ENTRY_MARGIN_BYTES:
            self._failure = too_large(self._segment, end - start, size, allowed)
            raise self._failure
        send = CommandSend(
            producer_id=self._number, sequence_id=self._next_id, num_messages=end - start
        )
        frame = encode_send(BaseCommand(type=BaseCommand.SEND, send=send), metadata, packed)
        self._send(_Entry(self._next_id, frame, end - start, payload_bytes))

    def _send(self, entry: _Entry) -> None:
        cost = entry.cost_bytes
        client, limit = self._client, self._settings.in_flight_bytes
        # One entry is always let through: what others hold back does not depend on this writer.
        self._wait(lambda: not self._in_flight_bytes or client.in_flight_bytes + cost <= limit)
        with client.changed:
            self._unacknowledged.append(entry)
            self._count(cost)
            self._next_id = entry.sequence_id + 1
            lost = self._lost
        if lost is None:
            with contextlib.suppress(RefusedError):  # told by on_lost too; then it is sent again
                self._connection.post(entry.frame)

    # --- receipts, on the connection's thread -------------------------------------------------

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """Check a receipt: it has to prove that the next entry is in the log."""
        with self._client.changed:
            if self._closed or self._failure is not None:
                return
            fault = self._fault(receipt)
            if fault is not None:
                self._failure = self._unverified(fault)
            else:
                entry = self._unacknowledged.popleft()
                position = Position(*positive_id(receipt.message_id))
                self._count(-entry.cost_bytes)
                self._acknowledged_id = entry.sequence_id
                self._highest = position
                self._sum = _plus(self._sum, position, entry)
                self._total = _plus(self._total, position, entry)
            self._client.changed.notify_all()

    def on_error(self, error: CommandSendError) -> None:
        """Note that an entry was refused."""
        with self._client.changed:
            if self._failure is None and not self._closed:
                why = RefusedError.of(error.error, error.message)
                if error.error == _BROKEN_CHECKSUM:
                    self._failure = self._unverified("an entry was damaged on its way")
                elif why.result in RETRIED:
                    # The topic is being sealed or moved: opened again, it says which.
                    self._lost = self._lost or why
                else:
                    self._failure = self._translate("append to", why)
            self._client.changed.notify_all()

    def on_lost(self, why: RefusedError) -> None:
        """Note that the producer is gone; the writer's own thread opens it again."""
        with self._client.changed:
            self._lost = self._lost or why
            self._client.changed.notify_all()

    def _fault(self, receipt: CommandSendReceipt) -> str | None:
        """Say what a receipt fails to prove, None if it proves that the next entry is there."""
        expected = self._unacknowledged[0].sequence_id if self._unacknowledged else None
        if receipt.sequence_id != expected:
            return f"expected the receipt of entry {expected}, found {receipt.sequence_id}"
        position = Position(*positive_id(receipt.message_id))
        if not receipt.HasField("message_id") or position.ledger < 0 or position.entry < 0:
            return "'deduplicated' is no acknowledgement of these rows"
        if position <= self._highest:
            return f"expected a position after {self._highest}, found {position}"
        return None

    def _count(self, more_bytes: int) -> None:
        self._in_flight_bytes += more_bytes
        self._client.in_flight_bytes += more_bytes

    # --- waiting, and coming back -------------------------------------------------------------

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done`, opening the producer again where it was lost."""
        while True:
            with self._client.changed:
                seen, deadline = self._acknowledged_id, self._deadline()
                while self._failure is None and self._lost is None and not done():
                    self._client.changed.wait(max(0.0, deadline - time.monotonic()))
                    if seen != self._acknowledged_id:  # others' receipts are no progress
                        seen, deadline = self._acknowledged_id, self._deadline()
                    elif time.monotonic() >= deadline and not done():
                        self._failure = self._translate("append to", RefusedError("Timeout"))
            self._check()
            if self._lost is None:
                return
            self._come_back()

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.timeout_s

    def _come_back(self) -> None:
        assert self._lost is not None
        acknowledged, times = self._returns
        times = times + 1 if acknowledged == self._acknowledged_id else 1
        self._returns = self._acknowledged_id, times
        if times > _MOST_RETURNS:
            self._failure = self._translate("append to", self._lost)
            raise self._failure
        self._close_old()
        self._client.forget(self._segment.log_name)
        self._epoch += 1
        # Step 1: the old connection says nothing any more; what it said is all there is to know.
        with self._client.changed:
            self._lost = None
        # Step 2: open again, and hear what the broker has stored under this name.
        try:
            self._connection, ready = self._open(self._settings.timeout_s)
        except SegmentLogError as failed:
            self._failure = failed
            raise
        # Step 3: only if none of what waits can be there, it goes out again.
        with self._client.changed:
            waiting = list(self._unacknowledged)
        stored = ready.last_sequence_id
        proven = stored == self._acknowledged_id and stored >= 0
        if (waiting and not proven) or stored > self._acknowledged_id:
            self._failure = self._unverified(
                f"{len(waiting)} entries have no receipt; after a reconnect expected the broker "
                f"to have stored sequence id {self._acknowledged_id} last, found {stored}"
            )
            raise self._failure
        with contextlib.suppress(RefusedError):  # lost once more: on_lost has said so
            for entry in waiting:
                self._connection.post(entry.frame)

    def _open(self, timeout_s: float) -> tuple[Connection, CommandProducerSuccess]:
        backoff = Backoff(timeout_s)
        while True:
            connection = None
            try:
                connection = self._client.connection_of(self._segment.log_name, backoff.left_s)
                # Before the answer: from then on the producer may be lost.
                connection.add_producer(self._number, self)
                ready = connection.request(self._create, backoff.left_s).producer_success
            except RefusedError as refused:
                if connection is not None:
                    self._leave(connection)
                self._client.forget(self._segment.log_name)
                try:
                    backoff.again(refused)
                except RefusedError as last:
                    raise self._translate("open a writer of", last) from None
                self._lost = None
                continue
            if ready.producer_name != self._name:
                self._leave(connection)
                raise SegmentLogError(
                    f"expected a producer named {self._name} of segment {self._segment.id}, found "
                    f"{ready.producer_name!r}: readers could not tell whose rows these are"
                )
            return connection, ready

    def _create(self, number: int) -> BaseCommand:
        producer = CommandProducer(
            topic=self._segment.log_name,
            producer_id=self._number,
            request_id=number,
            producer_name=self._name,
            epoch=self._epoch,
            user_provided_producer_name=True,
        )
        return BaseCommand(type=BaseCommand.PRODUCER, producer=producer)

    def _close_old(self) -> None:
        """Close the producer, and let the broker say all that it has to say of it.

        The next one has the same number: a late refusal would be taken for one of its entries.
        """
        self._connection.remove(self._number)
        patience_s = min(_CLOSE_SECONDS, self._settings.timeout_s)
        with contextlib.suppress(RefusedError):  # lost, or gone already: then nothing comes either
            self._connection.request(self._close_command, patience_s)

    def _leave(self, connection: Connection) -> None:
        """Let go of the producer on a connection, without waiting for the broker."""
        connection.remove(self._number)
        connection.tell(self._close_command)

    def _close_command(self, number: int) -> BaseCommand:
        closing = CommandCloseProducer(producer_id=self._number, request_id=number)
        return BaseCommand(type=BaseCommand.CLOSE_PRODUCER, close_producer=closing)

    def _check(self) -> None:
        """Raise what went wrong; a writer that failed stays so."""
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise SegmentLogError(f"the writer of segment {self._segment.id} is closed")

    def _translate(self, doing: str, why: RefusedError) -> SegmentLogError:
        # Busy: the name is still open on a connection that the broker takes for alive.
        result = "Retryable" if why.result in RETRIED - {"Timeout"} else why.result
        return translate(result, doing, self._segment, why.detail)

    def _unverified(self, fault: str) -> UnverifiedReceiptError:
        return UnverifiedReceiptError(
            f"segment {self._segment.id} ({self._segment.log_name}): {fault}; nobody may take "
            "these rows as written, so they go out again under a new name"
        )


def _plus(receipt: Receipt, position: Position, entry: _Entry) -> Receipt:
    return Receipt(
        receipt.first or position,
        position,
        receipt.entries + 1,
        receipt.messages + entry.rows,
        receipt.bytes + entry.payload_bytes,
    )


def _payload_sizes(rows: pa.RecordBatch) -> Any:
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("value", "key"):
        if name in rows.schema.names:
            lengths = pc.fill_null(pc.binary_length(rows.column(name)), 0)
            sizes += lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes
