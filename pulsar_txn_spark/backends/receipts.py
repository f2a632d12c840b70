"""What a log has acknowledged of one writer."""

from __future__ import annotations

from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import Receipt

NO_RECEIPT = Receipt(None, None, 0, 0, 0)
"""The sum of no entries."""


class ReceiptSums:
    """Sums of acknowledged entries: since the last flush, and since the writer was opened."""

    def __init__(self) -> None:
        self._since_drain = NO_RECEIPT
        self.total = NO_RECEIPT

    @property
    def highest(self) -> Position:
        """Return the last acknowledged position, EARLIEST if there is none."""
        return self.total.last or EARLIEST

    def add(self, position: Position, messages: int, size_bytes: int) -> None:
        """Add an entry; positions ascend."""
        self._since_drain = _plus(self._since_drain, position, messages, size_bytes)
        self.total = _plus(self.total, position, messages, size_bytes)

    def drain(self) -> Receipt:
        """Return the sum since the last call."""
        receipt, self._since_drain = self._since_drain, NO_RECEIPT
        return receipt


def _plus(receipt: Receipt, position: Position, messages: int, size_bytes: int) -> Receipt:
    return Receipt(
        receipt.first or position,
        position,
        receipt.entries + 1,
        receipt.messages + messages,
        receipt.bytes + size_bytes,
    )
