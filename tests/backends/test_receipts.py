"""The sums of what a log has acknowledged of one writer."""

from __future__ import annotations

from pulsar_txn_spark.backends.receipts import NO_RECEIPT, ReceiptSums
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import Receipt


def test_a_drained_sum_starts_anew_and_the_total_goes_on() -> None:
    sums = ReceiptSums()
    assert (sums.highest, sums.total, sums.drain()) == (EARLIEST, NO_RECEIPT, NO_RECEIPT)
    sums.add(Position(0, 0), 3, 30)
    sums.add(Position(0, 4), 1, 10)
    assert sums.drain() == Receipt(Position(0, 0), Position(0, 4), 2, 4, 40)
    sums.add(Position(1, 0), 2, 20)
    assert sums.drain() == Receipt(Position(1, 0), Position(1, 0), 1, 2, 20)
    assert sums.drain() == NO_RECEIPT
    assert sums.total == Receipt(Position(0, 0), Position(1, 0), 3, 6, 60)
    assert sums.highest == Position(1, 0)
