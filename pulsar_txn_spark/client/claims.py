"""Which messages the transactions of one consumer hold, as far as that consumer knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pulsar_txn_spark.position import MessagePosition
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.records import TxnId


class Claims:
    """What is claimed in one segment; a value of one consumer, guarded by its lock.

    A cumulative acknowledgement must not take what another transaction has acknowledged. That one
    may have been aborted meanwhile without anybody here knowing it. Then its messages have to come
    again. So it asks for what lies between them only, and the store sees to it that nothing
    before each piece was given back.
    """

    def __init__(self) -> None:
        self._intervals: dict[TxnId | None, list[AckInterval]] = {}

    def add(self, interval: AckInterval, txn: TxnId | None) -> None:
        """Note that a transaction holds an interval; None = it is acknowledged for good."""
        intervals = self._intervals.setdefault(txn, [])
        if intervals and intervals[-1].start <= interval.start <= intervals[-1].end:
            intervals[-1] = AckInterval(intervals[-1].start, max(intervals[-1].end, interval.end))
        else:
            intervals.append(interval)

    @classmethod
    def of(cls, intervals: Iterable[AckInterval]) -> Claims:
        """Return what is acknowledged for good by these."""
        claims = cls()
        for interval in intervals:
            claims.add(interval, None)
        return claims

    def drop(self, txn: TxnId) -> list[AckInterval]:
        """Forget a transaction, and return what it held."""
        return self._intervals.pop(txn, [])

    def holders(self) -> Iterator[TxnId]:
        """Yield the transactions that hold something."""
        return (txn for txn in self._intervals if txn is not None)

    def locked_by(self, txn: TxnId) -> Sequence[AckInterval]:
        """Return what a transaction has locked."""
        return tuple(self._intervals.get(txn, ()))

    def contains(self, message: MessagePosition) -> bool:
        """Tell whether a message is claimed."""
        return any(
            interval.start < message <= interval.end
            for locked in self._intervals.values()
            for interval in locked
        )

    def left_of(self, whole: AckInterval, txn: TxnId) -> list[AckInterval]:
        """Return, ascending, what is left of an interval without that which others hold."""
        others = sorted(
            interval
            for key, intervals in self._intervals.items()
            if key != txn
            for interval in intervals
        )
        pieces = []
        at = whole.start
        for other in others:
            if other.start >= whole.end:
                break
            if other.start > at:
                pieces.append(AckInterval(at, other.start))
            at = max(at, other.end)
        if at < whole.end:
            pieces.append(AckInterval(at, whole.end))
        return pieces
