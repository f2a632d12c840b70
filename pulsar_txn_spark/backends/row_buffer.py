"""The rows that a writer has accepted and not sent yet."""

from __future__ import annotations

import pyarrow as pa

from pulsar_txn_spark.backends import entry_codec


class RowBuffer:
    """Normalized row batches in order, with the sum of their rows and bytes."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self.rows = 0
        self.bytes = 0

    def add(self, rows: pa.RecordBatch, size_bytes: int) -> None:
        """Add rows that count as `size_bytes`; see :func:`~.entry_codec.normalize`."""
        self._batches.append(rows)
        self.rows += rows.num_rows
        self.bytes += size_bytes

    def drain(self) -> pa.RecordBatch:
        """Return all rows as one batch and leave the buffer empty; there has to be a row."""
        rows = entry_codec.combine(self._batches)
        self.clear()
        return rows

    def clear(self) -> None:
        """Drop every row."""
        self._batches, self.rows, self.bytes = [], 0, 0
