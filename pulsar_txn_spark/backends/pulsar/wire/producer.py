"""Writing to a topic over the wire: rows to entries, entries in flight, receipts checked.

**Whose entries these are** stands in each of them: the writer's name. The producer of a writer
outside of transactions has that name, too. In a transaction a writer uses a producer that waits for
it (:mod:`~pulsar_txn_spark.backends.pulsar.wire.idle_producers`).

**When the connection is lost**, entries without a receipt may or may not be in the log. The
producer opens again under its name, and the broker says the last sequence id of that name that it
stored. If that is just the last one that was acknowledged, none of the others is there: they are
sent again, in order. In every other case nobody can tell, and the writer fails with
:class:`~pulsar_txn_spark.errors.UnverifiedReceiptError`. That includes

- that nothing was acknowledged yet: a broker without deduplication would answer the same;
- that the producer has another name than the entries. The topic's next broker learns of sequence
  ids from the entries, and so under their names.

The rows without a receipt are then sent under a new name, see
:mod:`~pulsar_txn_spark.engine.topic_writers`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.pulsar.errors import ENTRY_MARGIN_BYTES, too_large, unverified
from pulsar_txn_spark.backends.pulsar.passthrough import parse_passthrough
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
    MessageMetadata,
)
from pulsar_txn_spark.backends.pulsar.receipt_ledger import SentEntry
from pulsar_txn_spark.backends.pulsar.segment_writer import (
    ENTRY_BYTES,
    ENTRY_ROWS,
    SEND_TIMEOUT_MS,
    EntrySettings,
    EntryWriter,
)
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire import batch
from pulsar_txn_spark.backends.pulsar.wire.client import RETRIED, WireClient, explain
from pulsar_txn_spark.backends.pulsar.wire.compression import NUMBERS, compress
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError, positive_id
from pulsar_txn_spark.backends.pulsar.wire.frames import encode_send
from pulsar_txn_spark.backends.pulsar.wire.opened_producer import OpenedProducer
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import FencedError, SegmentLogError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topology import key_groups_of

_ENCODED_BYTES = 8 * 1024 * 1024  # at a time, however large a batch Spark gives
_CLOSE_SECONDS = 5.0  # a broker answers once what it was storing is stored, or has failed
_BROKEN_CHECKSUM = 9
_FENCED = "pulsar_txn_spark FENCED"  # so the plug-in of a broker begins what it says
_NO_ANSWER = "pulsar_txn_spark UNAVAILABLE"
_MOST_REOPENINGS = 16  # without any receipt in between: a topic that opens and takes nothing


@dataclass(frozen=True, slots=True)
class WireWriterSettings(EntrySettings):
    """How to write over the wire: made from the options ``pulsar.producer.*``.

    Parameters
    ----------
    compression : int
        Pulsar's number of it.
    """

    compression: int = 0

    @classmethod
    def of(cls, config: PulsarConfig) -> WireWriterSettings:
        """Read the options.

        Raises
        ------
        OptionError
            If one is unknown, refused or malformed.
        """
        options = parse_passthrough("producer", dict(config.producer))
        return cls(
            entry_bytes=options.get("batching_max_bytes", ENTRY_BYTES),
            entry_rows=options.get("batching_max_messages", ENTRY_ROWS),
            compression=NUMBERS[options.get("compression_type", "NONE")],
            timeout_s=options.get("send_timeout_millis", SEND_TIMEOUT_MS) / 1000,
        )


class WireSegmentWriter(EntryWriter):
    """Appends row batches through one producer.

    Where the brokers gate the segment, other consumers than this package's are to be served. A
    Key_Shared subscription gives an entry to a consumer as a whole, by the entry's ordering key. So
    an entry has keys of one group only there, and the group is its ordering key. Not so under
    Pulsar's own transactions: a broker takes their entries one after the other.

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
        Called with the last position of the rows that were acknowledged, before the receipt is
        handed out.
    bits : TxnBits, optional
        Of the transaction, where the brokers gate the topic.
    gated : bool
        Whether the brokers gate the topic. An entry then takes keys of one group only.
    native : bool
        Whether it is one of Pulsar's own transactions.
    shared : bool
        Whether its producer is one that other writers use before and after it.

    Raises
    ------
    SegmentNotFoundError, SegmentSealedError, SegmentLogUnavailableError
    """

    buffered_entries = 2  # encoding takes some 0.2 ms, however few rows there are
    row_overhead_bytes = 8

    def __init__(
        self,
        segment: SegmentRef,
        name: str,
        client: WireClient,
        settings: WireWriterSettings,
        *,
        before_report: Callable[[Position], None],
        bits: TxnBits | None = None,
        gated: bool = False,
        native: bool = False,
        shared: bool = False,
    ) -> None:
        super().__init__(segment, settings, client.in_flight, before_report)
        self._name = name
        self._bits = bits
        self._gated = gated
        self._native = native
        self._shared = shared
        self._client = client
        self._settings = settings
        self._reopened = (-1, 0)  # how often the producer was opened again after this receipt
        topic = segment.log_name
        waiting = client.idle_producers.take(topic) if shared else None
        if waiting is not None:
            self._producer: OpenedProducer = waiting
        elif shared:
            self._producer = OpenedProducer.shared(topic, client)
        else:
            self._producer = OpenedProducer(topic, name, client, native=native)
        self._producer.attach(self)
        last = self._open(client.settings.operation_s) if waiting is None else waiting.last_number
        self._ledger.start_after(last)

    def _release(self) -> None:
        producer = self._producer
        # What still has no receipt may be refused, or stored, when another writer has begun.
        if self._shared and self._ledger.closed_whole:
            producer.detach(self._ledger.acknowledged_number)
            self._client.idle_producers.put(producer)
        else:
            producer.leave()

    # --- rows to entries ----------------------------------------------------------------------

    def _send_buffered(self, *, everything: bool) -> None:  # noqa: ARG002 - always everything
        """Send what is buffered."""
        size, rows = self._buffer.bytes, self._buffer.drain()
        step = max(1, rows.num_rows * _ENCODED_BYTES // max(size, 1))
        for first in range(0, rows.num_rows, step):
            part = rows.slice(first, step)
            encoded, payload = batch.encode(part), entry_codec.payload_sizes(part)
            for first_row, last, ordering_key in self._runs(part):
                start = first_row
                for end in self._cuts(encoded.offsets, start, last):
                    self._send_rows(
                        encoded, start, end, int(payload[start:end].sum()), ordering_key
                    )
                    start = end

    def _runs(self, rows: pa.RecordBatch) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield what may be in one entry: rows ``[start, end)``, and the entry's ordering key.

        Rows stay in the order in which they came, as their receipts prove a prefix of them.
        """
        if not self._gated:
            yield 0, rows.num_rows, None
            return
        groups = key_groups_of(rows)
        starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), rows.num_rows]
        for start, end in pairwise(starts):
            group = int(groups[start])
            yield start, end, b"%d" % group if group >= 0 else None

    def _cuts(self, offsets: Any, start: int, rows: int) -> Iterator[int]:
        """Yield the ends of entries: about as large as each other, so that none waits for more."""
        settings = self._settings
        while start < rows:
            left = int(offsets[rows] - offsets[start])
            parts = max(-(-left // settings.entry_bytes), -(-(rows - start) // settings.entry_rows))
            share = int(offsets[start]) + -(-left // parts)
            end = int(np.searchsorted(offsets, share, side="right")) - 1
            end = max(start + 1, min(end, start + settings.entry_rows, rows))
            yield end
            start = end

    def _send_rows(
        self,
        encoded: batch.EncodedRows,
        start: int,
        end: int,
        payload_bytes: int,
        ordering_key: bytes | None,
    ) -> None:
        plain, number = encoded.payload(start, end), self._ledger.next_number
        metadata = MessageMetadata(
            producer_name=self._name,
            sequence_id=number,
            publish_time=time.time_ns() // 1_000_000,
            num_messages_in_batch=end - start,
        )
        send = CommandSend(
            producer_id=self._producer.id, sequence_id=number, num_messages=end - start
        )
        if self._bits is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = self._bits
            send.txnid_most_bits, send.txnid_least_bits = self._bits
        if ordering_key is not None:
            metadata.ordering_key = ordering_key
        packed = plain
        if self._settings.compression:
            packed = compress(plain, self._settings.compression)
            metadata.compression = self._settings.compression
            metadata.uncompressed_size = len(plain)
        size = len(packed) + metadata.ByteSize()
        allowed = self._producer.connection.max_message_bytes
        if size > allowed - ENTRY_MARGIN_BYTES:
            raise too_large(self._segment, end - start, size, allowed)
        frame = encode_send(BaseCommand(type=BaseCommand.SEND, send=send), metadata, packed)
        cost = sum(map(len, frame))
        self._wait(lambda: self._ledger.has_room(cost), sends=True)
        with self._client.in_flight.changed:
            self._ledger.register(SentEntry(number, end - start, payload_bytes, cost, frame))
            lost = self._producer.lost
        if lost is None:
            with contextlib.suppress(RefusedError):  # then the producer is lost, and opened again
                self._producer.connection.post(frame)

    # --- receipts, on the connection's thread -------------------------------------------------

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """Check a receipt; see :meth:`ReceiptLedger.settle`."""
        stored = receipt.HasField("message_id")
        position = Position(*positive_id(receipt.message_id)) if stored else EARLIEST
        self._ledger.settle(receipt.sequence_id, position)

    def on_error(self, error: CommandSendError) -> None:
        """Note that an entry was refused."""
        why = RefusedError.of(error.error, error.message)
        if error.error == _BROKEN_CHECKSUM:
            fault = "an entry was damaged on its way"
            self._ledger.fail(partial(unverified, self._segment, fault))
        elif self._bits is not None and _FENCED in why.detail:
            self._ledger.fail(partial(_fenced, self._segment, self._name, why.detail))
        elif self._bits is not None and _NO_ANSWER in why.detail:
            self._ledger.fail(
                partial(explain, RefusedError("Retryable", why.detail), "append to", self._segment)
            )
        elif why.result in RETRIED:
            # The topic is being sealed or moved: opened again, it says which.
            self._producer.on_lost(why)
        else:
            self._ledger.fail(partial(explain, why, "append to", self._segment))

    # --- reconnecting -------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool], *, sends: bool = False) -> None:
        """Wait until `done`, opening the producer again where it was lost and is still needed."""
        while True:
            self._ledger.wait(lambda: self._producer.lost is not None or done())
            # Only a native topic has to show, behind its receipts, that it is still the same.
            needed = sends or self._native or not self._ledger.is_settled()
            if self._producer.lost is None or not needed:
                return
            self._reopen(self._producer.lost)

    def _reopen(self, why: RefusedError) -> None:
        number, times = self._reopened
        acknowledged = self._ledger.acknowledged_number
        times = times + 1 if number == acknowledged else 1
        self._reopened = acknowledged, times
        if times > _MOST_REOPENINGS:
            raise explain(why, "append to", self._segment)
        # Resend step 1: the old connection says nothing any more; no more than it said is known.
        self._producer.close(min(_CLOSE_SECONDS, self._settings.timeout_s))
        self._client.forget(self._segment.log_name)
        # Resend step 2: open again, and hear what the broker has stored under this name.
        stored = self._open(self._settings.timeout_s)
        # Resend step 3: only if none of what waits can be there, it goes out again.
        waiting, acknowledged = self._ledger.unacknowledged(), self._ledger.acknowledged_number
        proven = not self._shared and stored == acknowledged and stored >= 0
        # Nothing else tells of a native topic whether it is still the one of the receipts.
        is_other = self._native and acknowledged >= 0
        # A broker that does not gate the topic would never end what has transaction bits. Whoever
        # opens a writer there asks it first.
        is_gated = self._bits is not None and not self._native
        needs_proof = waiting or is_other
        if (needs_proof and not proven) or is_gated or stored > acknowledged:
            raise unverified(self._segment, self._unproven(why, len(waiting), stored))
        with contextlib.suppress(RefusedError):  # lost once more, which the producer knows
            for entry in waiting:
                self._producer.connection.post(entry.frame)

    def _unproven(self, why: RefusedError, waiting: int, stored: int) -> str:
        lost = f"The producer was lost by {why.result}: {why.detail or 'no details'}"
        if self._shared or self._bits is not None:
            return f"{waiting} entries have no receipt, and no broker can prove one now. {lost}"
        return (
            f"{waiting} entries have no receipt; after a reconnect expected the broker to have "
            f"stored sequence id {self._ledger.acknowledged_number} last, found {stored}. {lost}"
        )

    def _open(self, timeout_s: float) -> int:
        """Open the producer; return the last sequence id that is stored under its name."""
        try:
            name, stored = self._producer.open(timeout_s)
        except RefusedError as refused:
            raise explain(refused, "open a writer of", self._segment) from None
        if name != self._producer.name:
            self._producer.leave()
            raise SegmentLogError(
                f"expected a producer named {self._producer.name} of segment {self._segment.id}, "
                f"found {name!r}: readers could not tell whose rows these are"
            )
        return stored


def _fenced(segment: SegmentRef, name: str, detail: str) -> FencedError:
    return FencedError(
        f"the broker of segment {segment.id} ({segment.log_name}) takes nothing more from writer "
        f"{name}. Its transaction was decided without it, by a newer attempt or after its lease. "
        f"No consumer sees what it has written ({detail})"
    )
