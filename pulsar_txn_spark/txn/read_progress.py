"""Where a subscription stands, against how far Spark's checkpoint says that its query has read.

A sink of ours moves the cursors in the transaction of the batch. None of ours
does where the sink is another one, or where a function writes outside of a scope. There the source
moves them once Spark has noted the batch as done. Before it does so it makes sure that it does not
cover up a batch that a sink of ours should have recorded (INV-11).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pulsar_txn_spark.position import Position
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import AckRequest, Cursor
from pulsar_txn_spark.txn.batch import BatchTransactions, new_nonce
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore


def last_moved(cursor: Cursor, cursors: Iterable[Cursor | None]) -> Cursor:
    """Return a cursor as moved by the sink that moved a subscription's cursors last.

    One that stands where its query began has not been moved by anybody. The others tell which sink
    moves them, and how far that has come.
    """
    moved = [
        other
        for other in cursors
        if other is not None
        and other.query == cursor.query
        and other.sink
        and other.batch.isdigit()
    ]
    if cursor.sink or not moved:
        return cursor
    last = max(moved, key=lambda other: int(other.batch))
    return replace(cursor, sink=last.sink, batch=last.batch)


class ReadProgress:
    """Holds a subscription's cursors against Spark's checkpoint.

    Parameters
    ----------
    coordinator : TransactionCoordinator
    timeout_ms : int
        Lease of the transactions that move cursors.
    """

    def __init__(self, coordinator: TransactionCoordinator, timeout_ms: int) -> None:
        self._coordinator = coordinator
        self._batches = BatchTransactions(coordinator, timeout_ms)
        self._timeout_ms = timeout_ms

    def require_recorded(
        self, subscription: str, behind: Iterable[Cursor]
    ) -> dict[tuple[str, str], tuple[str, str]]:
        """Require that cursors behind the checkpoint miss no batch of a sink of ours.

        Returns
        -------
        dict
            For the sink and batch that moved a cursor last: those by which it may be moved now.

        Raises
        ------
        BatchNotRecordedError
        """
        batches: dict[tuple[str, str], tuple[str, str]] = {}
        for cursor in behind:
            moved_by = (cursor.sink, cursor.batch)
            if moved_by not in batches:
                batches[moved_by] = self._batches.require_recorded(cursor, subscription)
        return batches

    def catch_up(
        self,
        subscription: str,
        source_epoch: int,
        behind: Mapping[str, tuple[Cursor, Position]],
    ) -> None:
        """Move cursors to where Spark's commit log says that the query has read.

        Parameters
        ----------
        subscription : str
        source_epoch : int
            That of the source.
        behind : mapping
            Segment → its cursor, which belongs to a query, and the position behind that.

        Raises
        ------
        BatchNotRecordedError
            If a sink of ours should have moved them. Nothing was moved.
        """
        moved_by = self.require_recorded(subscription, (cursor for cursor, _ in behind.values()))
        requests = []
        for segment, (cursor, end) in behind.items():
            sink, batch = moved_by[cursor.sink, cursor.batch]
            requests.append(
                AckRequest(
                    segment=segment,
                    subscription=subscription,
                    query=cursor.query,
                    source_epoch=source_epoch,
                    start=cursor.position,
                    end=end,
                    sink=sink,
                    batch=batch,
                )
            )
        if not requests:
            return
        nonce = new_nonce()
        txn = self._coordinator.new_txn(nonce, timeout_ms=self._timeout_ms, query=requests[0].query)
        acks = MetadataPendingAckStore(self._coordinator)
        acks.acknowledge(txn, nonce, self._timeout_ms, requests, catches_up=True)
        self._coordinator.commit(txn, nonce, Outcome())
