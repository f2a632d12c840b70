"""One micro-batch, one transaction: begin, replay, fence, commit.

The crash points, and who repairs each:

=============================  =================================================================
the process dies               what is there, and who repairs it
=============================  =================================================================
before the header              nothing
header, no pointer             an orphan that nothing names; its lease ends it
pointer, before the decision   OPEN under a retired nonce: the next attempt aborts it (INV-8);
                               readers are blocked until then or until the lease is over
decision, still pending        whoever is blocked materializes it; the next attempt does it at once
materialized, not in Spark's   the replay finds COMMITTED, writes nothing and compares what it
commit log                     read with what the header says was read (INV-7)
=============================  =================================================================

Spark's checkpoint is evidence, too: a query that begins batch N + 1 says that batch N is done. So a
sink that records every batch must know batch N as COMMITTED. If it does not, the store lost it, or
the sink has another name than before, or it is new. That is asked, not guessed (INV-11).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_txn_spark import metrics, steps
from pulsar_txn_spark.errors import (
    BatchNotRecordedError,
    DataLossError,
    FencedError,
    StoreCorruptError,
    StoreRolledBackError,
    TransactionConflictError,
)
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.decoding import outcome_of, pointer_of
from pulsar_txn_spark.store.metadata_pb2 import (
    EarlierBatch,
    Evidence,
    Outcome,
    Pointer,
    TaskWrite,
)
from pulsar_txn_spark.store.records import (
    Code,
    Cursor,
    EndedBy,
    PointerRead,
    SinkEntry,
    TxnAnswer,
    TxnHeader,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, require_open
from pulsar_txn_spark.txn.participants import ack_intent, pointer_intent, write_intent
from pulsar_txn_spark.txn.pending_ack import (
    MetadataPendingAckStore,
    ReadPlan,
    acknowledgements,
    digest_of,
    plans_of_attempt,
)
from pulsar_txn_spark.txn.replay_evidence import (
    DEFAULT_RULE,
    EvidenceRule,
    evidence_of,
    require_same_batch,
    require_same_lineage,
)
from pulsar_txn_spark.txn.seen import note_segments, noted_in

_PLANNINGS_KEPT = 8  # of one batch: each is a restore of the checkpoint to the batch before
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
    """One attempt at a batch: its transaction, or the one that committed the batch before.

    `before` is a serialized ``EarlierBatch``: the batch that the sink had when the attempt began.
    """

    key: BatchKey
    nonce: str
    txn: TxnId
    replay: bool
    before: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class SinkRules:
    """What is known of how a query writes to a sink.

    Parameters
    ----------
    once : bool
        Whether one attempt may write a batch to the sink only once. Where a user's function writes,
        the same sink id twice in a batch would look like a replay and lose rows.
    every_batch : bool
        Whether the sink records every batch of its query, so that a batch that it does not know
        was lost. Of a function that writes in some batches only nobody can tell.
    first_batch : int or None
        The batch from which on the user vouches for the sink: before it, nothing is missed.
    """

    once: bool = False
    every_batch: bool = True
    first_batch: int | None = None


_STRICT = SinkRules()


@dataclass(frozen=True, slots=True)
class _Found:
    """What a pointer's transaction was found to be; no header where the pointer tells."""

    txn: TxnId
    state: TxnState
    header: TxnHeader | None


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

    def begin(
        self, key: BatchKey, nonce: str, owner: str = "", rules: SinkRules = _STRICT
    ) -> Attempt:
        """Open the transaction of an attempt, or join it, or find that the batch is committed.

        Parameters
        ----------
        key : BatchKey
        nonce : str
        owner : str
            ``<process>|<attempt>``, stands in the header: the driver's process, and the attempt
            at the micro-batch, which is the same for all of its writes.
        rules : SinkRules

        Raises
        ------
        FencedError
            If another attempt that began later, a later batch or another query has taken the sink
            over.
        BatchNotRecordedError
            If the sink does not know the batch before as COMMITTED, and should.
        TransactionConflictError
            If this very attempt has committed the batch before and may not. Also if the sink is new
            and another one of the query has committed this batch in an earlier attempt.
        TransactionAbortedError
            If the attempt was aborted before its transaction began.
        StoreRolledBackError
            If the store has lost the pointer of a commit, or the decision that it names.
        """
        with steps.at(Step.BEGIN):
            if not key.streaming:
                return Attempt(key, nonce, self._open(key, nonce, owner), replay=False)
            for _ in range(_BEGIN_TRIES):
                attempt = self._try_begin(key, nonce, owner, rules)
                if attempt is None:
                    continue
                self._coordinator.begun.note(key.sink, attempt.txn)
                return attempt
        raise FencedError(
            f"sink {key.sink!r}: other attempts took batch {key.batch} over {_BEGIN_TRIES} times "
            "while this one tried to begin: more than one driver runs on this checkpoint"
        )

    def _try_begin(self, key: BatchKey, nonce: str, owner: str, rules: SinkRules) -> Attempt | None:
        read, last = self._read_pointer(key)
        pointer = pointer_of(key.sink, read.own) if read.own else None
        previous: _Found | None = None
        if pointer is not None:
            self._refuse_fenced(key, nonce, pointer, read.current_query)
            if pointer.nonce == nonce:
                return _joined(key, pointer)
            previous = self._follow(key, nonce, rules, read, pointer, last)
            if previous is None:
                return None
            if previous.state is TxnState.COMMITTED and pointer.batch_id == key.batch:
                if rules.once:
                    _refuse_second_write(key, pointer, owner)
                self._register(key, owner)
                return Attempt(key, nonce, TxnId.parse(pointer.txn_id), replay=True)
        elif self._enter(key, owner, rules, read) is None:
            return None
        pointer_now = Pointer(
            batch_id=key.batch, nonce=nonce, owner=owner, every_batch=rules.every_batch
        )
        if pointer is not None and pointer.batch_id == key.batch:
            pointer_now.retired_nonces.extend([*pointer.retired_nonces, pointer.nonce])
        if pointer is not None and previous is not None:
            self._note_earlier(key, pointer, pointer_now, previous.header)
        if self._take_over(key, nonce, owner, read, pointer_now):
            return _joined(key, pointer_now)
        return None

    def _read_pointer(self, key: BatchKey) -> tuple[PointerRead, TxnHeader | None]:
        """Read the sink's pointer, and at once the header that it will most likely name."""
        guess = self._coordinator.begun.get(key.sink)
        if guess is None:
            return self._store.sinks.read_pointer(key.sink, key.query), None
        return self._store.sinks.read_pointer_and_header(key.sink, key.query, guess)

    def _take_over(
        self, key: BatchKey, nonce: str, owner: str, read: PointerRead, pointer: Pointer
    ) -> bool:
        """Register the sink, open the transaction, and let the sink's pointer name it.

        One step where one server holds all of it. Returns False if the pointer is no longer what
        was read.
        """
        attempt = _attempt_of(owner)
        begun = self._store.merged.begin(
            self._coordinator.shard(nonce),
            nonce,
            owner,
            self._timeout_ms,
            sink=key.sink,
            query=key.query,
            batch=key.batch,
            attempt=attempt,
            intents=_intents_of(key),
            expected=read,
            pointer=pointer.SerializeToString(deterministic=True),
        )
        if begun is not None and begun.txn is not None:
            _require_unended(key, begun.txn, begun.state)
            pointer.txn_id = begun.txn.key
            return begun.swapped
        if begun is not None:
            others = begun.others
        else:
            # Before the transaction: whatever commits is registered.
            others = self._store.queries.register_sink(key.query, key.sink, key.batch, attempt)
        self._end_elsewhere(key, attempt, others)
        pointer.txn_id = self._open(key, nonce, owner).key
        record = pointer.SerializeToString(deterministic=True)
        return self._store.sinks.swap_pointer(key.sink, key.query, read, record, current=key.query)

    def _register(self, key: BatchKey, owner: str) -> None:
        """Register the sink, and end what an earlier attempt at the batch left open elsewhere."""
        attempt = _attempt_of(owner)
        others = self._store.queries.register_sink(key.query, key.sink, key.batch, attempt)
        self._end_elsewhere(key, attempt, others)

    def _end_elsewhere(self, key: BatchKey, attempt: str, others: Collection[str]) -> None:
        """End what an earlier attempt at the batch left open in other sinks.

        That is a sibling's, which would end it as well. Or it is that of the same sink under a name
        that it had in the meantime, whose late commit would write the rows twice.
        """
        for name in others if attempt else ():
            self._committed_before(BatchKey(name, key.query, key.batch), attempt)

    def _follow(
        self,
        key: BatchKey,
        nonce: str,
        rules: SinkRules,
        read: PointerRead,
        pointer: Pointer,
        last: TxnHeader | None,
    ) -> _Found | None:
        """End what the pointer names, and return how it ended; None if the pointer has changed.

        `last` is the header of some transaction, perhaps of that one.
        """
        previous = self._find(key, read, pointer, last)
        if previous is None:
            return None
        if pointer.batch_id < key.batch:
            self._refuse_gap(key, rules, pointer, previous.state)
        if previous.state is TxnState.OPEN:
            # A late task of an attempt that was aborted must not end a newer one.
            self._coordinator.require_not_aborted(nonce)
        state = TxnState.COMMITTED if self._finish(previous) else TxnState.ABORTED
        # A decided header does not change any more; one that was OPEN has to be read again.
        header = previous.header if previous.state is state else None
        return _Found(previous.txn, state, header)

    def _enter(self, key: BatchKey, owner: str, rules: SinkRules, read: PointerRead) -> bool | None:
        """Let a query begin with a sink; None if its pointer has changed."""
        self._refuse_unknown(key, owner, rules)
        if not read.current:
            return True
        # A new query on this sink id (another checkpoint): the old one is over.
        last = self._find(key, read, pointer_of(key.sink, read.current))
        return None if last is None else self._finish(last) or True

    def _note_earlier(
        self, key: BatchKey, pointer: Pointer, pointer_now: Pointer, header: TxnHeader | None
    ) -> None:
        """Take along what the sink knows of the batch before: the pointer is its last trace."""
        if pointer.batch_id == key.batch:
            pointer_now.before.CopyFrom(pointer.before)
            return
        _, evidence = self._committed(TxnId.parse(pointer.txn_id), pointer, header)
        if evidence is not None:
            planned = [evidence.planned, *pointer.also_planned] if evidence.planned else []
            pointer_now.before.CopyFrom(EarlierBatch(batch_id=pointer.batch_id, planned=planned))
        elif pointer.HasField("before"):  # that one was aborted
            pointer_now.before.CopyFrom(pointer.before)

    def _committed(
        self, txn: TxnId, pointer: Pointer | None, header: TxnHeader | None = None
    ) -> tuple[bytes, Evidence | None]:
        """Return the digest and the evidence that a decided transaction has left."""
        header = header or self._store.transactions.read(txn)
        record: Outcome | Pointer | None = pointer
        if header is not None:
            record = outcome_of(header)
        if record is None:
            return b"", None
        return record.digest, record.evidence if record.HasField("evidence") else None

    def _open(self, key: BatchKey, nonce: str, owner: str) -> TxnId:
        txn, state = self._coordinator.open_txn(
            nonce,
            timeout_ms=self._timeout_ms,
            owner=owner,
            sink=key.sink,
            query=key.query,
            batch=str(key.batch),
            intents=_intents_of(key),
        )
        _require_unended(key, txn, state)
        return txn

    def abort_nonce(self, nonce: str, cause: str) -> None:
        """Abort the transaction of an attempt of which no task has told anything.

        It is opened if no task has: one that is still on its way then finds it ABORTED.
        """
        txn = self._coordinator.new_txn(nonce, timeout_ms=self._timeout_ms)
        self._coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause=cause)

    def abort_begun(self, key: BatchKey, process: str, cause: str) -> None:
        """Abort the attempt that a process has begun for a batch, if the sink's pointer names it.

        Parameters
        ----------
        key : BatchKey
        process : str
            The part of the owner in front of ``|``. Attempts of other processes stay open.
        cause : str
        """
        read = self._store.sinks.read_pointer(key.sink, key.query)
        pointer = pointer_of(key.sink, read.own)
        begun_by, _, _ = pointer.owner.partition("|")
        is_undecided = bool(read.own) and pointer.decision == Pointer.UNDECIDED
        if is_undecided and (pointer.batch_id, begun_by) == (key.batch, process):
            txn = TxnId.parse(pointer.txn_id)
            self._coordinator.abort(txn, EndedBy.OWNER, nonce=pointer.nonce, cause=cause)

    # -- what a sink must know, as Spark's checkpoint says so ------------------------------------

    def _refuse_gap(
        self, key: BatchKey, rules: SinkRules, pointer: Pointer, state: TxnState
    ) -> None:
        """Refuse to follow a batch that should be COMMITTED and is not (INV-11)."""
        if not rules.every_batch or rules.first_batch == key.batch:
            return
        if pointer.batch_id == key.batch - 1 and state is TxnState.COMMITTED:
            return
        known = f"its last batch is {pointer.batch_id}, {state}"
        raise BatchNotRecordedError(
            f"sink {key.sink!r} has no record that batch {key.batch - 1} of query {key.query} was "
            f"committed ({known}), though Spark's checkpoint says that it is done. Nothing of "
            f"batch {key.batch} was written. Either the metadata store lost its last writes. "
            f"Restore its newest state, or delete the entries from {_repeat_from(pointer, state)} "
            "on in the checkpoint's folder 'commits', so that Spark runs that batch again "
            "(docs/operations.md). Or the function that writes has swallowed an error. Or it "
            "writes in some batches only: then say everyBatch=false. To go on without that batch, "
            f"give sinkFirstBatch={key.batch} once"
        )

    def _refuse_unknown(self, key: BatchKey, owner: str, rules: SinkRules) -> None:
        """Refuse a sink without a record that should have one, or whose rows another one wrote."""
        others = {
            name: entry
            for name, entry in self._store.queries.read_sinks(key.query).items()
            if name != key.sink
        }
        for name, entry in others.items():
            if entry.batch > key.batch:
                raise FencedError(
                    f"sink {key.sink!r} is new, and query {key.query} has begun batch "
                    f"{entry.batch} in sink {name!r}, this is batch {key.batch}. The checkpoint is "
                    "an older copy, or another driver runs on it. Nothing was written; restore the "
                    "newest checkpoint, or start with a new one"
                )
        if rules.first_batch == key.batch:
            return
        self._refuse_moved(key, _attempt_of(owner), others)
        if not rules.every_batch or key.batch == 0:
            return
        known = ", ".join(f"{name!r} (batch {entry.batch})" for name, entry in others.items())
        raise BatchNotRecordedError(
            f"sink {key.sink!r} has no record of query {key.query}, though Spark's checkpoint says "
            f"that the query's batches before {key.batch} are done. Nothing of batch {key.batch} "
            f"was written. The query has written to these sinks: {known or 'none'}. If the sink "
            "was renamed or moved (another sinkId, another function, another kind of sink), give "
            "sinkId=<the name before>. If it is new in this query, give "
            f"sinkFirstBatch={key.batch} once. If it is neither, the metadata store has lost its "
            "record: restore its newest state. If it is written in some batches only, say "
            "everyBatch=false"
        )

    def _refuse_moved(self, key: BatchKey, attempt: str, others: Mapping[str, SinkEntry]) -> None:
        """Refuse a new sink where another one has committed the batch in an earlier attempt.

        A sibling that was committed before is replayed before, by this attempt, and registered
        with it. What is left is the same sink under another name, or siblings whose order is not
        the same in every attempt.
        """
        for name, entry in others.items():
            if entry.batch != key.batch or not attempt or entry.attempt == attempt:
                continue
            if self._committed_before(BatchKey(name, key.query, key.batch), attempt):
                raise TransactionConflictError(
                    f"sink {key.sink!r} is new, but batch {key.batch} of query {key.query} was "
                    f"committed to sink {name!r} in an earlier attempt. This one has not come "
                    "by there yet. If that is the same sink under another name, these rows would "
                    f"be written twice: give sinkId={name}. If it is another sink of this query, "
                    f"write to it first, or give this one sinkFirstBatch={key.batch}. Nothing "
                    "was written"
                )

    def _committed_before(self, key: BatchKey, attempt: str) -> bool:
        """Tell whether an earlier attempt has committed a batch to a sink; end one that is OPEN."""
        for _ in range(_BEGIN_TRIES):
            read = self._store.sinks.read_pointer(key.sink, key.query)
            pointer = pointer_of(key.sink, read.own) if read.own else None
            if pointer is None or pointer.batch_id != key.batch:
                return False
            if _attempt_of(pointer.owner) == attempt:
                return False
            previous = self._find(key, read, pointer)
            if previous is not None:
                return self._finish(previous)
        raise FencedError(f"sink {key.sink!r}: its pointer changes all the time")

    def require_recorded(self, cursor: Cursor, subscription: str) -> tuple[str, str]:
        """Require that the sink that moved a cursor last has recorded the batches since (INV-11).

        Called where Spark's checkpoint is ahead of the cursor: a batch is done that read further.
        A sink of ours has then committed it, without an acknowledgement if Spark did not need the
        rows; or the sink is not ours.

        Returns
        -------
        (str, str)
            Sink and batch by which the cursor may now be moved; empty where no sink of ours did.

        Raises
        ------
        BatchNotRecordedError
        """
        if not cursor.sink or not cursor.batch.isdigit():
            return "", ""
        key = BatchKey(cursor.sink, cursor.query, int(cursor.batch))
        for _ in range(_BEGIN_TRIES):
            read = self._store.sinks.read_pointer(key.sink, key.query)
            pointer = pointer_of(key.sink, read.own) if read.own else None
            if pointer is not None:
                if not pointer.every_batch:
                    # A sink that writes sometimes, or of a version that did not say.
                    return "", ""
                previous = self._find(key, read, pointer)
                if previous is None:
                    continue
                # It has begun a batch only after it committed the one before.
                last = pointer.batch_id - (previous.state is not TxnState.COMMITTED)
                if last > key.batch:
                    return cursor.sink, str(last)
            raise BatchNotRecordedError(
                f"subscription {subscription!r} stands where batch {key.batch} of query "
                f"{key.query} has put it, in the transaction of sink {key.sink!r}. Spark's "
                "checkpoint says that the query has read further, but that sink has no record of "
                f"a later batch that was committed. The cursor was not moved. Either the metadata "
                "store lost its last writes. Restore its newest state, or delete the entries "
                f"after {key.batch} in the checkpoint's folder 'commits', so that Spark runs that "
                "batch again (docs/operations.md). Or the query writes to another sink than "
                "before: if it is not of this package, free the subscription "
                "(pulsar-txn subscription reset --to here)"
            )
        raise FencedError(f"sink {key.sink!r}: its pointer changes all the time")

    # -- who may begin -------------------------------------------------------------------------

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
                f"batch {key.batch}. The checkpoint is an older copy, or another driver runs on "
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

    def _find(
        self,
        key: BatchKey,
        read: PointerRead,
        pointer: Pointer,
        header: TxnHeader | None = None,
    ) -> _Found | None:
        """Look the state of a pointer's transaction up, unless its `header` was read already.

        None says that the pointer has changed since it was read, so that it has to be read again.
        """
        txn = TxnId.parse(pointer.txn_id)
        if pointer.decision != Pointer.UNDECIDED:
            committed = pointer.decision == Pointer.COMMITTED
            return _Found(txn, TxnState.COMMITTED if committed else TxnState.ABORTED, None)
        # One that was decided since is found so by the compare-and-set that would abort it.
        if header is None or header.txn != txn:
            header = self._store.transactions.read(txn)
        if header is None and self._store.sinks.read_pointer(key.sink, key.query) != read:
            # A sweep has taught it the decision, and then removed the header.
            return None
        if header is not None and header.nonce != pointer.nonce:
            raise StoreRolledBackError(
                f"the sink's pointer names transaction {txn} of batch {pointer.batch_id}, which "
                f"belongs to another attempt now. Tag {{tc{txn.tc}}} lost acknowledged writes, and "
                "gave the number to another transaction. Nothing was written; restore the newest "
                "state of the store, or start with a new checkpoint and new topics "
                "(docs/operations.md)"
            )
        if header is None:
            raise StoreCorruptError(
                f"the sink's pointer names transaction {txn} of batch {pointer.batch_id}, whose "
                "header is gone before the pointer learned its decision: it is not guessed. "
                "Restore the store"
            )
        return _Found(txn, header.state, header)

    def _finish(self, recorded: _Found) -> bool:
        """Bring an earlier attempt to its end; tell whether it is COMMITTED."""
        if recorded.header is None:
            return recorded.state is TxnState.COMMITTED
        if recorded.state is TxnState.OPEN:
            # The transaction of a dead or fenced attempt ends at once (INV-8), unless it committed.
            state = self._coordinator.abort(
                recorded.txn, EndedBy.FENCE, cause="a newer attempt took the batch over"
            )
            return state is TxnState.COMMITTED
        self._coordinator.materialize(recorded.header)
        return recorded.state is TxnState.COMMITTED

    # -- commit ------------------------------------------------------------------------------

    def commit(
        self,
        attempt: Attempt,
        slots: Sequence[Sequence[TaskWrite]],
        execution_id: str,
        *,
        acknowledge: bool,
        rule: EvidenceRule = DEFAULT_RULE,
        once_in: str = "",
    ) -> None:
        """Commit what the tasks wrote, together with what the batch has read.

        Parameters
        ----------
        attempt : Attempt
            As its tasks began it.
        slots : sequence of sequence of TaskWrite
            For each write of the transaction, one for each task whose success the driver saw.
        execution_id : str
            Names the attempt at the micro-batch that the tasks ran in; empty if unknown.
        acknowledge : bool
            Whether this transaction acknowledges what the batch read.
        rule : EvidenceRule
            What tells a replay of the batch from other data.
        once_in : str
            Names the attempt at the micro-batch in which no other write may replay the batch.
            Empty if it is unknown, or if the sink may be written several times.

        Raises
        ------
        TransactionAbortedError, FencedError
            If a newer attempt or the lease ended the transaction, or if the checkpoint is a copy
            that went another way than the sink. Nothing is visible.
        TransactionConflictError
            If the tasks do not fit together, or a replay has read other data than the original.
            Also if another write of this attempt has replayed the batch.
        StoreRolledBackError
            If the store has lost what a task had written to it.
        DataLossError
            If rows of the batch were deleted, and the sink has not committed it before.
        CommitStateUnknownError
            If the store did not answer; the next attempt finds out.
        """
        before = self._store.round_trips
        for slot in slots:
            _require_whole(attempt, slot)
        tasks = [task for slot in slots for task in slot]
        for task in tasks:
            self._store.counters.add(task.counters)
            self._store.raise_last_seen(noted_in(task))
        plans = self._plans(attempt, execution_id)
        evidence = None
        if attempt.key.streaming:
            evidence = evidence_of(rule, attempt.key.batch, plans, tasks)
            if attempt.replay:
                for _ in range(_BEGIN_TRIES):
                    if self._compare(attempt, rule, digest_of(plans), evidence, once_in):
                        return
                raise FencedError(f"sink {attempt.key.sink!r}: its pointer changes all the time")
            earlier = [task.before for task in tasks if task.HasField("before")]
            earlier.append(EarlierBatch.FromString(attempt.before))
            require_same_lineage(attempt.key.sink, rule, earlier[0])
        acks = []
        if acknowledge:
            key = attempt.key
            acks = acknowledgements(plans, query=key.query, sink=key.sink, batch=str(key.batch))
        self._pending_acks.acknowledge(attempt.txn, attempt.nonce, self._timeout_ms, acks)
        outcome = Outcome(
            winners=[winner for task in tasks for winner in task.winners],
            digest=digest_of(plans),
            evidence=evidence,
            messages=sum(task.messages for task in tasks),
            bytes=sum(task.bytes for task in tasks),
        )
        touched = {w.segment for w in outcome.winners} | {a.segment for a in acks}
        note_segments(outcome, self._store.seen, touched)
        trips = sum(task.round_trips for task in tasks) + self._store.round_trips - before
        counts = {
            **metrics.observation(metrics.BATCH_MESSAGES, outcome.messages),
            **metrics.observation(metrics.BATCH_BYTES, outcome.bytes),
            **metrics.observation(metrics.BATCH_ROUND_TRIPS, trips + 1),  # and the decision
        }
        intents = {write_intent(w.segment, w.writer) for w in outcome.winners}
        intents |= {ack_intent(ack.segment, ack.subscription) for ack in acks}
        if attempt.key.streaming:
            intents.add(pointer_intent(attempt.key.query, attempt.key.sink))
        self._coordinator.commit(attempt.txn, attempt.nonce, outcome, counts, intents=intents)

    def _plans(self, attempt: Attempt, execution_id: str) -> list[ReadPlan]:
        """Return what the batch has read; same errors as :meth:`commit`."""
        key = attempt.key
        if not key.streaming:
            return []
        records = self._read_plans(key)
        plans = [ReadPlan.parse(record) for record in records.values()]
        marks = {plan.execution_id for plan in plans if plan.incomplete}
        if execution_id and execution_id in marks and not attempt.replay:
            raise DataLossError(
                f"rows of batch {key.batch} of query {key.query} were deleted after other sinks "
                f"had committed it, and sink {key.sink!r} has not written it yet. From what is "
                "left, its output would be incomplete: nothing was committed. If it does not need "
                "these rows, start the query again with failOnDataLoss=false"
            )
        return plans_of_attempt([plan for plan in plans if not plan.incomplete], execution_id)

    def _read_plans(self, key: BatchKey) -> dict[str, bytes]:
        """Read what the batch has read, and let its query know which pointer it has.

        In a cluster the pointer's server may lose it alone. On one Redis all of the store goes back
        at once, so that nothing is noted.
        """
        seen = self._store.seen(f"sink:{key.sink}")
        if self._store.merged.possible or not seen.seq:
            return self._store.queries.read_plans(key.query, str(key.batch))
        return self._store.queries.read_plans_and_note(key.query, str(key.batch), key.sink, seen)

    def _compare(
        self,
        attempt: Attempt,
        rule: EvidenceRule,
        digest: bytes,
        evidence: Evidence,
        once_in: str,
    ) -> bool:
        """Refuse a replay of other data than was committed, and a second one of the same attempt.

        Returns False if the sink's pointer has changed meanwhile: then compare again.
        """
        key = attempt.key
        read = self._store.sinks.read_pointer(key.sink, key.query)
        pointer = pointer_of(key.sink, read.own)
        if pointer.batch_id != key.batch:
            # With its header, the evidence may be gone by now: nothing could be compared.
            raise FencedError(
                f"sink {key.sink!r}: another driver went on to batch {pointer.batch_id} while this "
                f"one replayed batch {key.batch}. Nothing was written; let one driver run"
            )
        header = self._store.transactions.read(attempt.txn)
        if header is None and pointer.decision == Pointer.UNDECIDED:
            # A sweep has taught it the decision, and what to compare with, since it was read.
            return False
        committed = self._committed(attempt.txn, pointer, header)
        where = (
            f"sink {key.sink!r}: batch {key.batch} of this query was committed by transaction "
            f"{attempt.txn}"
        )
        replayed_in, _, nonce = pointer.replayed_by.rpartition(" ")
        if once_in and replayed_in == once_in and nonce != attempt.nonce:
            raise _second_write(key)
        require_same_batch(where, rule, committed, (digest, evidence))
        before = pointer.SerializeToString(deterministic=True)
        if once_in:
            pointer.replayed_by = f"{once_in} {attempt.nonce}"
        known = {b"", *pointer.also_planned, committed[1].planned if committed[1] else b""}
        if evidence.planned not in known:
            # The same rows, planned anew: the batches behind it may follow this planning, too.
            pointer.also_planned.append(evidence.planned)
            del pointer.also_planned[:-_PLANNINGS_KEPT]
        record = pointer.SerializeToString(deterministic=True)
        return record == before or self._store.sinks.swap_pointer(
            key.sink, key.query, read, record, current=read.current_query
        )

    def abort(self, attempt: Attempt, cause: str) -> None:
        """Abort an attempt's transaction; nothing happens where it is decided or was a replay."""
        if not attempt.replay:
            self._coordinator.abort(attempt.txn, EndedBy.OWNER, nonce=attempt.nonce, cause=cause)


def _intents_of(key: BatchKey) -> list[str]:
    return [pointer_intent(key.query, key.sink)] if key.streaming else []


def _require_unended(key: BatchKey, txn: TxnId, state: TxnState) -> None:
    if key.streaming and state is not TxnState.OPEN:
        # Its intents need not name the pointer: so the pointer must not come to name it.
        require_open(txn, TxnAnswer(Code.DECIDED, state))


def _joined(key: BatchKey, pointer: Pointer) -> Attempt:
    return Attempt(
        key,
        pointer.nonce,
        TxnId.parse(pointer.txn_id),
        replay=False,
        before=pointer.before.SerializeToString() if pointer.HasField("before") else b"",
    )


def _refuse_second_write(key: BatchKey, pointer: Pointer, owner: str) -> None:
    if _attempt_of(pointer.owner) == _attempt_of(owner):
        raise _second_write(key)


def _second_write(key: BatchKey) -> TransactionConflictError:
    return TransactionConflictError(
        f"sink {key.sink!r} was written already in batch {key.batch} of this run: a second "
        "write to it would be taken for a replay and dropped. Give each write of a batch its "
        "own sinkId, or write them in one transaction (pulsar_txn_spark.transactional)"
    )


def _repeat_from(pointer: Pointer, state: TxnState) -> int:
    """Return the batch from which on Spark has to run again what the sink does not know."""
    return int(pointer.batch_id) + (state is TxnState.COMMITTED)


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
    others = sorted({task.txn_id for task in tasks} - {attempt.txn.key})
    if others:
        raise TransactionConflictError(
            f"transaction {attempt.txn}: tasks wrote in other transactions as well ({others}): "
            "nothing was committed"
        )
