"""One micro-batch, one transaction: begin, replay, fence, commit.

The crash points, and who repairs each:

=============================  =================================================================
the process dies               what is there, and who repairs it
=============================  =================================================================
before the header              nothing
header, no pointer             an orphan that nothing names; its lease ends it
pointer, before the decision   OPEN under a retired nonce: the next attempt aborts it (INV-8);
                               readers are held until then or until the lease is over
decision, not carried out      whoever is held carries it out; the next attempt does it at once
carried out, not in Spark's    the replay finds COMMITTED, writes nothing and compares what it
commit log                     read with what the header says was read (INV-7)
=============================  =================================================================
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_txn_spark import measures, steps
from pulsar_txn_spark.errors import FencedError, StoreCorruptError, TransactionConflictError
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Pointer, TaskWrite
from pulsar_txn_spark.store.protocol import EndedBy, PointerRead, TxnId, TxnState
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.participants import pointer_intent
from pulsar_txn_spark.txn.pending_ack import (
    MetadataPendingAckStore,
    ReadPlan,
    acknowledgements,
    digest_of,
    plans_of_attempt,
)

_BEGIN_TRIES = 32  # each lost race means that another task or driver got on


def new_nonce() -> str:
    """Return a random attempt nonce: who holds it may act for the attempt."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What must be committed at most once (INV-7).

    Parameters
    ----------
    sink : str
        Id of the sink.
    query : str
        Spark's query id, which lives in the checkpoint; empty for a write outside of a stream.
    batch : int
        Spark's batch id; grows by one in a query.
    """

    sink: str
    query: str
    batch: int

    @property
    def streaming(self) -> bool:
        """Whether the batch can be replayed, so that a pointer has to remember it."""
        return bool(self.query)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a batch: its transaction, or the one that committed the batch before."""

    key: BatchKey
    nonce: str
    txn: TxnId
    replay: bool


class BatchTransactions:
    """Maps micro-batches to transactions.

    Parameters
    ----------
    coordinator : TransactionCoordinator
    timeout_ms : int
        Lease of the transactions.
    """

    def __init__(self, coordinator: TransactionCoordinator, timeout_ms: int) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._pending_acks = MetadataPendingAckStore(coordinator)
        self._timeout_ms = timeout_ms

    # -- begin -------------------------------------------------------------------------------

    def begin(self, key: BatchKey, nonce: str, owner: str = "", *, once: bool = False) -> Attempt:
        """Open the transaction of an attempt, or join it, or find that the batch is committed.

        Parameters
        ----------
        key : BatchKey
        nonce : str
        owner : str
            ``<process>|<attempt>``, stands in the header: the driver's process, and the attempt
            at the micro-batch, which is the same for all of its writes.
        once : bool
            Whether one run may write the batch to this sink only once. Where a user's function
            writes, the same sink id twice in a batch would look like a replay and lose rows.

        Raises
        ------
        FencedError
            If a newer attempt, a later batch or another query has taken the sink over.
        TransactionConflictError
            If `once` and this very run has committed the batch before.
        """
        with steps.at(Step.BEGIN):
            if not key.streaming:
                return Attempt(key, nonce, self._open(key, nonce, owner), replay=False)
            for _ in range(_BEGIN_TRIES):
                attempt = self._try_begin(key, nonce, owner, once=once)
                if attempt is None:
                    continue
                return attempt
        raise FencedError(
            f"sink {key.sink!r}: other attempts took batch {key.batch} over {_BEGIN_TRIES} times "
            "while this one tried to begin: more than one driver runs on this checkpoint"
        )

    def _try_begin(self, key: BatchKey, nonce: str, owner: str, *, once: bool) -> Attempt | None:
        read = self._store.read_pointer(key.sink, key.query)
        pointer = Pointer.FromString(read.own) if read.own else None
        if pointer is not None:
            self._refuse_fenced(key, nonce, pointer, read.current_query)
            if pointer.nonce == nonce:
                return Attempt(key, nonce, TxnId.parse(pointer.txn_id), replay=False)
            committed = self._finish(key, read, pointer)
            if committed is None:
                return None
            if committed and pointer.batch_id == key.batch:
                if once:
                    _refuse_second_write(key, pointer, owner)
                return Attempt(key, nonce, TxnId.parse(pointer.txn_id), replay=True)
        # A new query on this sink id (another checkpoint): the old one's run is over.
        elif read.current and self._finish(key, read, Pointer.FromString(read.current)) is None:
            return None
        txn = self._open(key, nonce, owner)
        pointer_now = Pointer(batch_id=key.batch, txn_id=txn.key, nonce=nonce, owner=owner)
        if pointer is not None and pointer.batch_id == key.batch:
            pointer_now.retired_nonces.extend([*pointer.retired_nonces, pointer.nonce])
        record = pointer_now.SerializeToString(deterministic=True)
        if self._store.swap_pointer(key.sink, key.query, read, record, current=key.query):
            return Attempt(key, nonce, txn, replay=False)
        return None

    def _open(self, key: BatchKey, nonce: str, owner: str) -> TxnId:
        return self._coordinator.new_txn(
            nonce,
            timeout_ms=self._timeout_ms,
            owner=owner,
            sink=key.sink,
            query=key.query,
            batch=str(key.batch),
            intents=[pointer_intent(key.query, key.sink)] if key.streaming else [],
        )

    def _refuse_fenced(self, key: BatchKey, nonce: str, pointer: Pointer, current: str) -> None:
        sink = f"sink {key.sink!r}"
        if current != key.query:
            raise FencedError(
                f"{sink} was taken over by query {current}: query {key.query} may not write to it "
                "any more. Two queries need two sink ids"
            )
        if key.batch < pointer.batch_id:
            raise FencedError(
                f"{sink} has committed or begun batch {pointer.batch_id} of this query, this is "
                f"batch {key.batch}: the checkpoint is an older copy, or another driver runs on "
                "it. Nothing was written; restore the newest checkpoint, or start with a new one"
            )
        if nonce in pointer.retired_nonces:
            raise FencedError(
                f"{sink}: a newer attempt took batch {key.batch} over; this one may not write"
            )
        if pointer.nonce == nonce and pointer.batch_id != key.batch:
            raise FencedError(
                f"{sink}: this attempt was made for batch {pointer.batch_id}, not for {key.batch}"
            )

    def _finish(self, key: BatchKey, read: PointerRead, pointer: Pointer) -> bool | None:
        """Bring an earlier attempt to its end; tell whether it is COMMITTED.

        None says that the pointer has changed since it was read, so that it has to be read again.
        """
        if pointer.decision != Pointer.UNDECIDED:
            return pointer.decision == Pointer.COMMITTED
        txn = TxnId.parse(pointer.txn_id)
        header = self._store.read_txn(txn)
        if header is None and self._store.read_pointer(key.sink, key.query) != read:
            # A sweep has taught it the decision, and then removed the header.
            return None
        if header is None:
            raise StoreCorruptError(
                f"the sink's pointer names transaction {txn} of batch {pointer.batch_id}, whose "
                "header is gone before the pointer learned its decision: it is not guessed. "
                "Restore the store"
            )
        if header.state is TxnState.OPEN:
            # The transaction of a dead or fenced run ends at once (INV-8), unless it committed.
            state = self._coordinator.abort(
                txn, EndedBy.FENCE, cause="a newer attempt took the batch over"
            )
            return state is TxnState.COMMITTED
        self._coordinator.materialize(header)
        return header.state is TxnState.COMMITTED

    # -- commit ------------------------------------------------------------------------------

    def commit(
        self,
        attempt: Attempt,
        slots: Sequence[Sequence[TaskWrite]],
        run_id: str,
        *,
        acknowledge: bool,
    ) -> None:
        """Commit what the tasks wrote, together with what the batch has read.

        Parameters
        ----------
        attempt : Attempt
            As its tasks began it.
        slots : sequence of sequence of TaskWrite
            For each write of the transaction, one for each task whose success the driver saw.
        run_id : str
            Names the attempt at the micro-batch that the tasks ran in; empty if unknown.
        acknowledge : bool
            Whether this transaction acknowledges what the batch read.

        Raises
        ------
        TransactionAbortedError, FencedError
            If a newer attempt or the lease ended the transaction: nothing is visible.
        TransactionConflictError
            If the tasks do not fit together, or a replay has read other data than the original.
        CommitStateUnknownError
            If the store did not answer; the next attempt finds out.
        """
        before = self._store.round_trips
        for slot in slots:
            _require_whole(attempt, slot)
        tasks = [task for slot in slots for task in slot]
        for task in tasks:
            self._store.tally.add(task.tally)
        plans = self._plans(attempt.key, run_id)
        if attempt.replay:
            self._compare(attempt, digest_of(plans))
            return
        acks = []
        if acknowledge:
            key = attempt.key
            acks = acknowledgements(plans, query=key.query, sink=key.sink, batch=str(key.batch))
        self._pending_acks.acknowledge(attempt.txn, attempt.nonce, self._timeout_ms, acks)
        outcome = Outcome(
            winners=[winner for task in tasks for winner in task.winners],
            digest=digest_of(plans),
            messages=sum(task.messages for task in tasks),
            bytes=sum(task.bytes for task in tasks),
        )
        touched = {f"seg:{w.segment}" for w in outcome.winners} | {f"seg:{a.segment}" for a in acks}
        for tag in sorted(touched):
            outcome.witnesses[tag] = self._store.witness(tag)
        trips = sum(task.round_trips for task in tasks) + self._store.round_trips - before
        counts = {
            **measures.observation(measures.BATCH_MESSAGES, outcome.messages),
            **measures.observation(measures.BATCH_BYTES, outcome.bytes),
            **measures.observation(measures.BATCH_ROUND_TRIPS, trips + 1),  # and the decision
        }
        self._coordinator.commit(attempt.txn, attempt.nonce, outcome, counts)

    def _plans(self, key: BatchKey, run_id: str) -> list[ReadPlan]:
        if not key.streaming:
            return []
        records = self._store.read_plans(key.query, str(key.batch))
        return plans_of_attempt([ReadPlan.parse(record) for record in records.values()], run_id)

    def _compare(self, attempt: Attempt, digest: bytes) -> None:
        """Refuse a replay that has read other data than the batch that was committed."""
        header = self._store.read_txn(attempt.txn)
        if header is None:
            pointer = Pointer.FromString(
                self._store.read_pointer(attempt.key.sink, attempt.key.query).own
            )
            committed = pointer.digest
        else:
            committed = Outcome.FromString(header.outcome).digest
        if committed != digest:
            raise TransactionConflictError(
                f"sink {attempt.key.sink!r}: batch {attempt.key.batch} of this query was committed "
                f"by transaction {attempt.txn} with other input than it has now: the checkpoint "
                "was restored from elsewhere, or its offsets were changed. Nothing was written; "
                "start with the checkpoint that the committed batch belongs to, or with a new one"
            )

    def abort(self, attempt: Attempt, cause: str) -> None:
        """Abort an attempt's transaction; nothing happens where it is decided or was a replay."""
        if not attempt.replay:
            self._coordinator.abort(attempt.txn, EndedBy.OWNER, nonce=attempt.nonce, cause=cause)


def _refuse_second_write(key: BatchKey, pointer: Pointer, owner: str) -> None:
    if _attempt_of(pointer.owner) == _attempt_of(owner):
        raise TransactionConflictError(
            f"sink {key.sink!r} was written already in batch {key.batch} of this run: a second "
            "write to it would be taken for a replay and dropped. Give each write of a batch its "
            "own sinkId, or write them in one transaction (pulsar_txn_spark.transactional)"
        )


def _attempt_of(owner: str) -> str:
    # The process does not count where the attempt is known: Spark may start its workers' anew.
    return owner.rpartition("|")[2] or owner


def _require_whole(attempt: Attempt, tasks: Sequence[TaskWrite]) -> None:
    """Refuse a commit that misses a task, names one twice, or mixes transactions."""
    partitions = sorted(task.partition for task in tasks)
    if partitions != list(range(len(partitions))):
        raise TransactionConflictError(
            f"transaction {attempt.txn}: expected one result for each partition, found partitions "
            f"{partitions}: the batch is not whole, nothing was committed"
        )
    strangers = sorted({task.txn_id for task in tasks} - {attempt.txn.key})
    if strangers:
        raise TransactionConflictError(
            f"transaction {attempt.txn}: tasks wrote in other transactions as well ({strangers}): "
            "nothing was committed"
        )
