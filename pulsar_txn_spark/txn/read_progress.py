"""Where a subscription stands, against how far Spark's checkpoint says that its query has read.

A sink of ours moves the cursors in the transaction of the batch. None of ours
does where the sink is another one, or where a function writes outside of a scope. There the source
moves them once Spark has noted the batch as done. Before it does so it makes sure that it does not
cover up a batch that a sink of ours should have recorded (INV-11).

The driver's side of a source moves the cursors that its own tasks have claimed: it does not know
which query it serves. What an earlier start has left behind, the first task of a start moves. Spark
never asks a source that starts again to acknowledge the batch before the one that it repeats.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pulsar_txn_spark.errors import (
    BatchNotRecordedError,
    CommitStateUnknownError,
    PulsarTxnError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import AckRequest, Cursor, EndedBy, TxnId, TxnState
from pulsar_txn_spark.txn.batch import BatchTransactions, new_nonce
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore, ReadPlan

_LOG = logging.getLogger(__name__)
_TRIES = 8  # each one more means that somebody has aborted the transaction of the one before
_DECIDED_ELSEWHERE = (TransactionConflictError, CommitStateUnknownError)


def claimed_by(cursor: Cursor, source_epoch: int) -> bool:
    """Tell whether a task of this start of a source has claimed a cursor for its query.

    No two starts have one epoch. So a cursor of another query, or of nobody, never passes.
    """
    return bool(cursor.query) and cursor.source_epoch == source_epoch


def _went_on(cursor: Cursor, start: Position) -> bool:
    """Tell whether the query of a cursor has come to `start` from where the cursor stands.

    It has not in the very batch with which it took over a cursor that stands elsewhere. What lies
    in between is not known to be that query's.
    """
    return bool(cursor.txn) or cursor.begun is None or cursor.begun < start


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
        *,
        before: int | None = None,
        name: str = "",
    ) -> None:
        """Move cursors to where Spark's commit log says that the query has read.

        Parameters
        ----------
        subscription : str
        source_epoch : int
            That of the source.
        behind : mapping
            Segment → its cursor, which belongs to a query, and the position behind that.
        before : int, optional
            The micro-batch that begins at these positions: Spark has noted those before it as done.
        name : str
            Callers with one name move the same cursors, and do it together. A new one by default.

        Raises
        ------
        BatchNotRecordedError
            If a sink of ours should have moved them. Nothing was moved.
        """
        moved_by = self.require_recorded(subscription, (cursor for cursor, _ in behind.values()))
        for sink, batch in moved_by.values():
            if sink and before is not None and int(batch) < before - 1:
                raise _not_recorded(subscription, sink, batch, before)
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
        if requests:
            self._move(requests, name or new_nonce())

    def catch_up_with_plan(
        self, plan: ReadPlan, query: str, batch: int, starts: Mapping[str, Position]
    ) -> None:
        """Move the claimed cursors that are behind where a micro-batch begins.

        Spark plans a batch when it has noted the one before as done. It then tells the source's
        driver so, but not where that starts again and repeats the planned batch.

        Parameters
        ----------
        plan : ReadPlan
            Of the source whose task has claimed the cursors.
        query : str
        batch : int
        starts : mapping of str to Position
            Segment → where the batch begins there.

        Raises
        ------
        BatchNotRecordedError
            If a sink of ours should have moved them. Nothing was moved.
        FencedError
            If a newer source of the query has claimed them meanwhile.
        """
        subscription = plan.subscription
        cursors = self._coordinator.store.subscriptions.read_cursors(list(starts), subscription)
        behind: dict[str, tuple[Cursor, Position]] = {}
        elsewhere = []
        for (segment, start), cursor in zip(starts.items(), cursors, strict=True):
            if cursor is None or cursor.query != query or cursor.position >= start:
                continue
            if not claimed_by(cursor, plan.source_epoch):
                continue  # by a newer source, which fences this one
            moved = last_moved(cursor, cursors)
            if _went_on(cursor, start):
                behind[segment] = moved, start
            else:
                elsewhere.append(moved)
        self.require_recorded(subscription, elsewhere)
        name = f"{plan.source}-{batch}"
        self.catch_up(subscription, plan.source_epoch, behind, before=batch, name=name)

    def _move(self, requests: Sequence[AckRequest], name: str) -> None:
        """Acknowledge ranges that are read and done with, in a transaction of their own.

        Whoever has the same name works at the same transaction, and may complete it.
        """
        for number in range(_TRIES):
            nonce = f"{name}-{number}"
            txn, state = self._coordinator.open_txn(
                nonce, timeout_ms=self._timeout_ms, query=requests[0].query
            )
            if state is TxnState.COMMITTED:
                return
            if state is TxnState.ABORTED:
                continue
            try:
                acks = MetadataPendingAckStore(self._coordinator)
                acks.acknowledge(txn, nonce, self._timeout_ms, requests, catches_up=True)
                self._coordinator.commit(txn, nonce, Outcome())
            except PulsarTxnError as error:
                # Else what it has locked would be in everybody's way until its lease is over.
                end = self._end(txn, nonce)
                if end is TxnState.COMMITTED and isinstance(error, _DECIDED_ELSEWHERE):
                    return
                if not isinstance(error, TransactionAbortedError):
                    raise
            else:
                return
        raise TransactionAbortedError(
            f"the acknowledgements for subscription {requests[0].subscription!r} were aborted "
            f"{_TRIES} times by others: more than one driver runs on this checkpoint"
        )

    def _end(self, txn: TxnId, nonce: str) -> TxnState | None:
        """Abort a transaction unless it is decided; None if the store does not say how it ended."""
        cause = "its acknowledgements failed"
        try:
            return self._coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause=cause)
        except PulsarTxnError as error:
            _LOG.warning("transaction %s stays open until its lease is over: %s", txn, error)
            return None


def _not_recorded(subscription: str, sink: str, last: str, batch: int) -> BatchNotRecordedError:
    return BatchNotRecordedError(
        f"subscription {subscription!r} is behind micro-batch {batch}, of which Spark's checkpoint "
        f"says that all before it are done. Sink {sink!r}, which moved it last, has committed up "
        f"to batch {last}. The cursor was not moved. Either the metadata store lost its last "
        f"writes. Restore its newest state, or delete the entries after {last} in the "
        "checkpoint's folder 'commits', so that Spark runs that batch again (docs/operations.md). "
        "Or the query writes to another sink than before: then reset the subscription to where "
        "the checkpoint goes on (pulsar-txn subscription reset)"
    )
