"""The rows that a writer has accepted and not sent yet."""

from __future__ import annotations

import pyarrow as pa

from pulsar_txn_spark.backends.row_buffer import RowBuffer


def test_rows_of_different_columns_come_out_in_order_and_as_one_batch() -> None:
    buffer = RowBuffer()
    buffer.add(pa.record_batch({"value": pa.array([b"1", b"2"])}), 10)
    buffer.add(pa.record_batch({"value": pa.array([b"3"]), "key": pa.array([b"k"])}), 5)
    assert (buffer.rows, buffer.bytes) == (3, 15)
    assert buffer.drain().to_pylist() == [
        {"value": b"1", "key": None},
        {"value": b"2", "key": None},
        {"value": b"3", "key": b"k"},
    ]


def test_what_was_drained_or_dropped_does_not_come_out_again() -> None:
    buffer = RowBuffer()
    for number, empty in enumerate((buffer.drain, buffer.clear)):
        buffer.add(pa.record_batch({"value": pa.array([b"%d" % number])}), 1)
        empty()
        assert (buffer.rows, buffer.bytes) == (0, 0)
    buffer.add(pa.record_batch({"value": pa.array([b"last"])}), 1)
    assert buffer.drain().to_pylist() == [{"value": b"last"}]
