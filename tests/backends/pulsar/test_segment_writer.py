"""What the writers of both transports share."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.receipt_ledger import InFlight, SentEntry
from pulsar_txn_spark.backends.pulsar.segment_writer import EntrySettings, EntryWriter
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import Receipt, SegmentRef

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")


class Writer(EntryWriter):
    """Sends all that is buffered as one entry, which the log acknowledges at once."""

    buffered_entries = 1
    row_overhead_bytes = 10

    def __init__(self, settings: EntrySettings) -> None:
        super().__init__(SEGMENT, settings, InFlight(), lambda _last: None)
        self.sent: list[int] = []
        self.released = 0
        self.failure: BaseException | None = None

    def _send_buffered(self, *, everything: bool) -> None:
        del everything
        rows = self._buffer.drain()
        if self.failure is not None:
            raise self.failure
        number = self._ledger.next_number
        self._ledger.register(SentEntry(number, rows.num_rows, 1, 1))
        self.sent.append(rows.num_rows)
        self._ledger.settle(number, Position(7, number))

    def _release(self) -> None:
        self.released += 1


def rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"x"] * count, pa.binary())})


@pytest.mark.parametrize(
    "settings", [EntrySettings(entry_rows=4), EntrySettings(entry_bytes=4 * (10 + 1 + 4))]
)
def test_rows_are_sent_as_soon_as_an_entry_is_full_or_with_a_flush(
    settings: EntrySettings,
) -> None:
    writer = Writer(settings)
    for _ in range(5):
        writer.append(rows(1))
    writer.append(rows(0))
    assert writer.sent == [4]
    assert writer.flush() == Receipt(Position(7, 0), Position(7, 1), 2, 5, 2)
    assert writer.sent == [4, 1]
    assert writer.flush().entries == 0


@pytest.mark.parametrize("failure", [MemoryError("no room"), KeyboardInterrupt(), ValueError("v")])
def test_a_writer_whose_rows_could_not_be_sent_never_reports_the_ones_behind_them(
    failure: BaseException,
) -> None:
    writer = Writer(EntrySettings(entry_rows=2))
    writer.append(rows(2))
    writer.failure = failure
    with pytest.raises(type(failure)):
        writer.append(rows(2))
    writer.failure = None
    for _ in range(2):
        with pytest.raises(SegmentLogError, match="has failed"):
            writer.flush()
        with pytest.raises(SegmentLogError, match="has failed"):
            writer.append(rows(2))
    assert writer.acknowledged().messages == 2
    assert writer.sent == [2]


def test_a_writer_is_released_once() -> None:
    writer = Writer(EntrySettings())
    writer.append(rows(1))
    writer.close()
    writer.close()
    assert (writer.released, writer.sent) == (1, [])
    with pytest.raises(SegmentLogError, match="closed"):
        writer.flush()
