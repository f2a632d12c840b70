"""What the writers of both transports share: rows are gathered, sent as entries, and verified."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.pulsar.receipt_ledger import InFlight, ReceiptLedger
from pulsar_txn_spark.backends.row_buffer import RowBuffer
from pulsar_txn_spark.errors import PulsarTxnError, SegmentLogError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import Receipt, SegmentRef

ENTRY_BYTES = 512 * 1024
"""An entry is full here: large entries read fast, and 5 MiB is the broker's limit."""

ENTRY_ROWS = 10_000
IN_FLIGHT_BYTES = 32 * 1024 * 1024
"""Bound on memory; several times bandwidth x delay of a LAN."""

SEND_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class EntrySettings:
    """Where entries end and how long to wait: made from the options ``pulsar.producer.*``.

    Parameters
    ----------
    entry_bytes, entry_rows : int
        Where an entry is full.
    in_flight_bytes : int
        Bound on the bytes without a receipt, of all writers that share it.
    timeout_s : float
        Bound on waiting without any progress.
    """

    entry_bytes: int = ENTRY_BYTES
    entry_rows: int = ENTRY_ROWS
    in_flight_bytes: int = IN_FLIGHT_BYTES
    timeout_s: float = SEND_TIMEOUT_MS / 1000


class EntryWriter(ABC):
    """A :class:`~pulsar_txn_spark.segments.log.SegmentWriter`; of one thread at a time.

    Parameters
    ----------
    segment : SegmentRef
        Where to.
    settings : EntrySettings
        Where entries end, and how long to wait.
    in_flight : InFlight
        The bytes of this writer and of those that share the bound.
    before_report : Callable
        Called with the last position of the rows that were acknowledged, before the receipt is
        handed out.
    """

    buffered_entries: int
    """How many full entries are gathered before any of them is encoded."""

    row_overhead_bytes: int
    """About what a row's own metadata takes in an entry."""

    def __init__(
        self,
        segment: SegmentRef,
        settings: EntrySettings,
        in_flight: InFlight,
        before_report: Callable[[Position], None],
    ) -> None:
        self._segment = segment
        self._before_report = before_report
        self._full_rows = settings.entry_rows
        self._full_bytes = self.buffered_entries * settings.entry_bytes
        self._buffer = RowBuffer()
        self._ledger = ReceiptLedger(
            segment, in_flight, settings.in_flight_bytes, settings.timeout_s
        )

    def append(self, rows: pa.RecordBatch) -> None:
        """Queue rows; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`."""
        with self._used():
            if rows.num_rows == 0:
                return
            rows = entry_codec.normalize(rows)
            self._buffer.add(rows, rows.nbytes + self.row_overhead_bytes * rows.num_rows)
            if self._buffer.rows >= self._full_rows or self._buffer.bytes >= self._full_bytes:
                self._send_buffered(everything=False)

    def send(self) -> None:
        """Send what is queued; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`."""
        with self._used():
            if self._buffer.rows:
                self._send_buffered(everything=True)

    def flush(self) -> Receipt:
        """Wait for every receipt; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`."""
        with self._used():
            if self._buffer.rows:
                self._send_buffered(everything=True)
            self._wait(self._ledger.is_settled)
            receipt = self._ledger.drain()
            if receipt.last is not None:
                self._before_report(receipt.last)
            return receipt

    def acknowledged(self) -> Receipt:
        """Return what was acknowledged; see :class:`~pulsar_txn_spark.segments.log.SegmentWriter`.

        Raises
        ------
        SegmentLogUnavailableError
            If the log's origin, which a first receipt needs, could not be noted.
        """
        receipt = self._ledger.total
        if receipt.last is not None:
            self._before_report(receipt.last)
        return receipt

    def close(self) -> None:
        """Release the producer; rows that were not flushed may or may not be in the log."""
        if self._ledger.close():
            self._buffer.clear()
            self._release()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Let the first error be final: rows that were not sent would be missing from then on."""
        self._ledger.check()
        try:
            yield
        except BaseException as failed:
            error: PulsarTxnError = SegmentLogError(
                f"the writer of segment {self._segment.id} has failed: {failed!r}"
            )
            if isinstance(failed, PulsarTxnError):
                error = failed
            self._ledger.fail(lambda: error)
            raise

    def _wait(self, done: Callable[[], bool]) -> None:
        """Wait until `done`; see :meth:`ReceiptLedger.wait`."""
        self._ledger.wait(done)

    @abstractmethod
    def _send_buffered(self, *, everything: bool) -> None:
        """Send the buffered rows, of which there are some; all of them where `everything`."""

    @abstractmethod
    def _release(self) -> None:
        """Release the producer."""
