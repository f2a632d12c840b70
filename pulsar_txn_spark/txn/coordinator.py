"""The transaction coordinator: opens, extends, decides and materializes transactions.

A TC is a shard of the store, not a process: any driver, reader or sweeper may execute any step
of any transaction. Every step may be repeated. What is decided is decided by one
compare-and-set on the header (INV-1); everything after it only materializes that decision.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence

from pulsar_txn_spark import steps
from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    FencedError,
    StoreCorruptError,
    StoreError,
    StoreRolledBackError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.metrics import OpLogCounts
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.decoding import outcome_of
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.metadata_pb2 import Position as PositionRecord
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import (
    Code,
    CommitAnswer,
    EndedBy,
    Pin,
    SegmentDecision,
    TxnAnswer,
    TxnHeader,
    TxnId,
    TxnState,
    WriterFate,
)
from pulsar_txn_spark.txn.ids import require_own
from pulsar_txn_spark.txn.op_log import OpLog
from pulsar_txn_spark.txn.participants import Participants
from pulsar_txn_spark.txn.seen import noted_in

DEFAULT_TIMEOUT_MS = 60_000
"""Lease of a transaction: how long the others wait for a driver that died (DESIGN's default)."""


class TxnAction(StrEnum):
    """How an owner ends a transaction (PIP-31's ``TxnAction``)."""

    COMMIT = "COMMIT"
    ABORT = "ABORT"


class TxnStatus(StrEnum):
    """Status of a transaction, by the names of PIP-31.

    A decided transaction that some participant may not have materialized yet is COMMITTING or
    ABORTING. An OPEN one whose lease is over is still OPEN: until somebody aborts it, its owner
    may commit it.
    """

    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"


_SINKS_NOTED = 64  # a process writes to a handful of sinks
_DECISION_TRIES = 3  # the compare-and-set is repeated so often when its reply stays unknown


def as_position(record: PositionRecord) -> Position:
    """Return the position that a record stands for."""
    return Position(record.ledger, record.entry)


def as_record(position: Position) -> PositionRecord:
    """Return the record that stands for a position."""
    return PositionRecord(ledger=position.ledger, entry=position.entry)


class LastBegun:
    """Which transaction this process has begun or joined last, by sink.

    The sink's pointer may name another one by now. So this is only a guess at what will be asked.
    """

    def __init__(self) -> None:
        self._noting = threading.Lock()
        self._by_sink: dict[str, TxnId] = {}

    def get(self, sink: str) -> TxnId | None:
        """Return the last transaction of a sink; None if this process knows none."""
        return self._by_sink.get(sink)

    def note(self, sink: str, txn: TxnId) -> None:
        """Remember the transaction of a sink; the sink that was noted first may be forgotten."""
        with self._noting:
            self._by_sink[sink] = txn
            while len(self._by_sink) > _SINKS_NOTED:
                del self._by_sink[next(iter(self._by_sink))]


class TransactionCoordinator:
    """Runs transactions on a metadata store.

    Parameters
    ----------
    store : MetadataStore
        Where headers, intents, pins and cursors live.
    """

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.ops = OpLog(store.op_log, require_open, OpLogCounts(store.counters))
        self.begun = LastBegun()

    def shard(self, nonce: str) -> int:
        """Return the TC id that a nonce's transaction belongs to."""
        return zlib.crc32(nonce.encode()) % self.store.identity.coordinators

    def new_txn(
        self,
        nonce: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        owner: str = "",
        sink: str = "",
        query: str = "",
        batch: str = "",
        intents: Sequence[str] = (),
    ) -> TxnId:
        """Open the transaction of an attempt nonce; idempotent."""
        txn, _ = self.open_txn(
            nonce,
            timeout_ms=timeout_ms,
            owner=owner,
            sink=sink,
            query=query,
            batch=batch,
            intents=intents,
        )
        return txn

    def open_txn(
        self,
        nonce: str,
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        owner: str = "",
        sink: str = "",
        query: str = "",
        batch: str = "",
        intents: Sequence[str] = (),
    ) -> tuple[TxnId, TxnState]:
        """Open the transaction of an attempt nonce, or find it; return its state as well.

        Of one that is decided already the intents may not be among its own.
        """
        return self.store.transactions.create(
            tc=self.shard(nonce),
            nonce=nonce,
            owner=owner,
            sink=sink,
            query=query,
            batch=batch,
            timeout_ms=timeout_ms,
            intents=intents,
        )

    def intend(self, txn: TxnId, nonce: str, timeout_ms: int, intents: Sequence[str]) -> None:
        """Record participants of an OPEN transaction, and extend its lease.

        Raises
        ------
        TransactionAbortedError, TransactionConflictError, FencedError, TransactionNotFoundError
            If the transaction is not OPEN under this nonce.
        """
        self._require_own(txn)
        require_open(txn, self.store.transactions.intend(txn, nonce, timeout_ms, intents))

    def heartbeat(self, txn: TxnId, nonce: str, timeout_ms: int) -> None:
        """Extend the lease; same errors as :meth:`intend`."""
        self.intend(txn, nonce, timeout_ms, ())

    def append_ops(self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]) -> None:
        """Append named operation records; same errors as :meth:`intend`.

        They are stored when this returns, by themselves or gathered with those of others.
        """
        self._require_own(txn)
        self.ops.append(txn, nonce, ops)

    def ops_go_along(self, txn: TxnId) -> bool:
        """Tell whether operation records may go along with the decision (:meth:`commit`)."""
        return self.store.merged.possible and not self.ops.gathers(txn.tc)

    def add_partition(self, txn: TxnId, segments: Sequence[str], *, nonce: str) -> None:
        """Answer PIP-31's ``addPartitionToTxn``: changes nothing, as PIP-471 has it.

        The writer itself registers where it writes, before it does (``buffer.admit``). So this
        only says whether the transaction takes more; same errors as :meth:`intend`.
        """
        del segments  # a participant registers itself
        self._require_open(txn, nonce)

    def add_subscription(
        self, txn: TxnId, subscriptions: Sequence[tuple[str, str]], *, nonce: str
    ) -> None:
        """Answer PIP-31's ``addSubscriptionToTxn`` for (segment, subscription) pairs.

        Changes nothing, like :meth:`add_partition`: the acknowledgement registers itself.
        """
        del subscriptions
        self._require_open(txn, nonce)

    def status(self, txn: TxnId) -> TxnStatus:
        """Look the status of a transaction up.

        Raises
        ------
        TransactionNotFoundError
            If there is no header: it never existed, or was collected after its decision.
        """
        header = self._header(txn)
        if header.state is TxnState.OPEN:
            return TxnStatus.OPEN
        if header.state is TxnState.COMMITTED:
            return TxnStatus.COMMITTED if header.materialized else TxnStatus.COMMITTING
        return TxnStatus.ABORTED if header.materialized else TxnStatus.ABORTING

    def _require_open(self, txn: TxnId, nonce: str) -> None:
        header = self._header(txn)
        if header.nonce != nonce:
            require_open(txn, TxnAnswer(Code.FENCED))
        if header.state is not TxnState.OPEN:
            require_open(txn, TxnAnswer(Code.DECIDED, header.state))

    def require_not_aborted(self, nonce: str) -> None:
        """Raise if the header of an attempt nonce says that its transaction was aborted.

        Raises
        ------
        TransactionAbortedError
        """
        txn = self.store.transactions.of_nonce(self.shard(nonce), nonce)
        header = None if txn is None else self.store.transactions.read(txn)
        if header is not None and header.state is TxnState.ABORTED:
            raise _aborted(header)

    # -- the decision ------------------------------------------------------------------------

    def end_txn(
        self,
        txn: TxnId,
        action: TxnAction,
        *,
        nonce: str,
        outcome: Outcome | None = None,
        cause: str = "its owner aborted it",
    ) -> None:
        """End a transaction as its owner: PIP-31's ``endTxn``, one compare-and-set.

        Ending it again the same way succeeds, however often.

        Parameters
        ----------
        txn : TxnId
        action : TxnAction
        nonce : str
            The one that the transaction was opened with: who holds it is the owner. An
            administrator, who is whoever holds the store's credentials, aborts by :meth:`abort`.
        outcome : Outcome, optional
            For COMMIT: the writers that count. Left out, nothing may have been written.
        cause : str
            For ABORT: stands in the header.

        Raises
        ------
        FencedError
            If the nonce is not the owner's, whatever the state.
        TransactionConflictError
            If the transaction was decided the other way (after an abort it is a
            TransactionAbortedError) or with other writers. Also if a COMMIT without an outcome
            would drop what was written.
        TransactionNotFoundError
            If there is no header.
        CommitStateUnknownError
            If the store did not answer: ask again once it does.
        """
        if action is TxnAction.COMMIT:
            self._commit(txn, nonce, outcome)
            return
        if self.abort(txn, EndedBy.OWNER, nonce=nonce, cause=cause) is TxnState.COMMITTED:
            raise TransactionConflictError(
                f"transaction {txn} was committed before: it cannot be aborted any more, and all "
                "of it stays visible"
            )

    def _commit(self, txn: TxnId, nonce: str, outcome: Outcome | None) -> None:
        if outcome is not None:
            self.commit(txn, nonce, outcome)
            return
        header = self._header(txn)
        writers = Participants.of(header.intents).writers if header.nonce == nonce else {}
        if header.state is TxnState.OPEN and writers:
            raise TransactionConflictError(
                f"transaction {txn} has writers in {len(writers)} segments, and its commit names "
                "none of them: their rows would be dropped. Name the writers that count in the "
                "outcome"
            )
        same = header.state is TxnState.COMMITTED and header.nonce == nonce
        self.commit(txn, nonce, outcome_of(header) if same else Outcome())

    def commit(
        self,
        txn: TxnId,
        nonce: str,
        outcome: Outcome,
        counts: Mapping[str, int] | None = None,
        *,
        intents: Collection[str] | None = None,
        ops: Mapping[str, bytes] | None = None,
    ) -> None:
        """Decide for COMMITTED, winners and bounds included, and materialize it.

        Parameters
        ----------
        txn : TxnId
        nonce : str
        outcome : Outcome
        counts : mapping of str to int, optional
            Added to the metrics in the same step.
        intents : collection of str, optional
            All intents of the transaction, as far as the caller knows. Where they are all, and one
            server holds the store, decision and materialization are one step.
        ops : mapping of str to bytes, optional
            Operation records that go along with the decision.

        Raises
        ------
        TransactionAbortedError
            If the transaction was aborted before (lease over, newer attempt).
        FencedError, TransactionConflictError, TransactionNotFoundError
            If it is not this owner's, was decided with another outcome, or is not there.
        CommitStateUnknownError
            If the store did not answer: read the header once it does.
        StoreRolledBackError
            If the store has lost what the outcome says of it, or an abort that a segment has
            materialized. In a cluster the decision may stand. No segment materializes it, so that
            whoever meets a pin of the transaction finds the loss out.
        """
        record = outcome.SerializeToString(deterministic=True)
        merged: CommitAnswer | None = None
        if intents is not None and self.store.merged.possible:
            merged = self._commit_at_once(txn, nonce, outcome, record, counts, intents, ops or {})
        if merged is not None:
            if merged.materialized:
                return
            answer, header = merged.answer, merged.header
        else:
            if ops:
                with steps.at(Step.OP_RECORD):
                    self._append_ops_unless_decided(txn, nonce, ops)
            with steps.at(Step.DECIDE):
                answer = self._decide(txn, TxnState.COMMITTED, record, EndedBy.OWNER, nonce, counts)
            header = None
        if answer.code is Code.FENCED:
            raise FencedError(
                f"transaction {txn} belongs to another attempt: this one may not commit it"
            )
        header = header or self.store.transactions.read(txn)
        if header is None:
            # Materialized by others, and collected before it was read here.
            if answer.code is not Code.OK:
                raise _decided_before(txn, answer)
            return
        if header.state is TxnState.ABORTED:
            raise _aborted(header)
        # INV-1: a retry under the same nonce of its own decision succeeds, any other does not.
        if not _same_decision(header, record):
            raise TransactionConflictError(
                f"transaction {txn} was committed already, with other writers than those named now"
            )
        self.materialize(header)

    def _append_ops_unless_decided(self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]) -> None:
        """Append operation records in front of a decision that may be a repeated one."""
        try:
            self.append_ops(txn, nonce, ops)
        except TransactionAbortedError:
            raise
        except TransactionConflictError:
            pass  # it is COMMITTED: the decision says whether by this very commit

    def _commit_at_once(
        self,
        txn: TxnId,
        nonce: str,
        outcome: Outcome,
        record: bytes,
        counts: Mapping[str, int] | None,
        intents: Collection[str],
        ops: Mapping[str, bytes],
    ) -> CommitAnswer | None:
        """Store records, decide and materialize in one step; None: it has to be single steps."""
        self._require_own(txn)
        decisions = _decisions(outcome, Participants.of(intents), committed=True)
        last_seen = noted_in(outcome)
        self.store.raise_last_seen(last_seen)
        passed = [Step.OP_RECORD] if ops else []
        unknown: CommitStateUnknownError | None = None
        for _ in range(_DECISION_TRIES):
            try:
                with steps.at_once(*passed, Step.DECIDE, Step.MATERIALIZE):
                    answered = self.store.merged.commit(
                        txn, nonce, record, counts or {}, intents, ops, decisions
                    )
            except CommitStateUnknownError as error:
                unknown = error
                continue
            except StoreError as error:
                # This try was refused or never sent, but an earlier one may still take effect.
                if unknown is not None:
                    raise unknown from error
                raise
            if answered is None and unknown is not None:
                raise unknown
            if answered is None:
                # A tag may lack what the outcome says of it: that is told before the decision.
                tags = (tag.partition(":") for tag in last_seen)
                self.store.segments.gates([name for kind, _, name in tags if kind == "seg"])
            if answered is not None and answered.answer.code is Code.ABSENT:
                # An earlier try may have ended it, and its header was collected since.
                raise unknown or _no_header(txn)
            # Records that were refused bring no settings along.
            if answered is not None and answered.ops is not None and answered.ops.stored:
                self.ops.learn(txn.tc, answered.ops.settings)
            return answered
        assert unknown is not None
        raise unknown

    def abort(self, txn: TxnId, by: EndedBy, *, nonce: str = "", cause: str) -> TxnState:
        """Decide for ABORTED unless it is decided, materialize the decision, and return it.

        Raises
        ------
        TransactionConflictError
            If `by` is EXPIRED and the lease is not over.
        FencedError
            If `by` is OWNER and the nonce is not the owner's.
        TransactionNotFoundError
            If there is no header.
        """
        record = Outcome(cause=cause).SerializeToString(deterministic=True)
        answer = self._decide(txn, TxnState.ABORTED, record, by, nonce)
        if answer.code is Code.ALIVE:
            raise TransactionConflictError(
                f"transaction {txn} is alive until {answer.deadline_ms} ms: only its owner "
                "may end it"
            )
        if answer.code is Code.FENCED:
            raise FencedError(f"transaction {txn} belongs to another attempt")
        header = self._header(txn)
        self.materialize(header)
        return header.state

    def _decide(
        self,
        txn: TxnId,
        state: TxnState,
        record: bytes,
        by: EndedBy,
        nonce: str,
        counts: Mapping[str, int] | None = None,
    ) -> TxnAnswer:
        """Run the compare-and-set; where its reply is lost, read the header first."""
        self._require_own(txn)
        last: CommitStateUnknownError | None = None
        for _ in range(_DECISION_TRIES):
            try:
                answer = self.store.transactions.end(txn, state, record, by, nonce, counts)
            except CommitStateUnknownError as error:
                last = error
                try:
                    header = self.store.transactions.read(txn)
                except StoreError as refused:
                    raise error from refused
                if header is not None and by is EndedBy.OWNER and header.nonce != nonce:
                    return TxnAnswer(Code.FENCED)
                if header is not None and header.state is not TxnState.OPEN:
                    return TxnAnswer(Code.DECIDED, header.state)
                continue
            except StoreError as error:
                # This try was refused or never sent, but an earlier one may still take effect.
                if last is not None:
                    raise last from error
                raise
            if answer.code is Code.ABSENT:
                raise last or _no_header(txn)
            if answer.code is Code.ILLEGAL:
                raise StoreCorruptError(f"illegal end of transaction {txn}: {state} by {by}")
            return answer
        assert last is not None
        raise last

    def _require_own(self, txn: TxnId) -> None:
        """Refuse an id of Pulsar's own transactions, before the store is asked for anything."""
        require_own(txn, self.store.identity.coordinators)

    def _header(self, txn: TxnId) -> TxnHeader:
        self._require_own(txn)
        header = self.store.transactions.read(txn)
        if header is None:
            raise _no_header(txn)
        return header

    # -- materialization ---------------------------------------------------------------------

    def materialize(self, header: TxnHeader, *, repeat: bool = False) -> None:
        """Materialize a decision everywhere: segment by segment, each in one step (INV-3).

        The header must have been read after the decision, so that its intents are all there are.
        `repeat` does it even where the header says that it was done.

        Raises
        ------
        StoreRolledBackError
            If a segment has materialized the other decision, or lost what this one has seen of it.
            In a cluster nothing is materialized then: all segments are asked before.
        """
        if header.state is TxnState.OPEN:
            raise StoreCorruptError(
                f"transaction {header.txn} is not decided: nothing to materialize"
            )
        if header.materialized and not repeat:
            return
        outcome = outcome_of(header)
        self.store.raise_last_seen(noted_in(outcome))
        participants = Participants.of(header.intents)
        committed = header.state is TxnState.COMMITTED
        decisions = _decisions(outcome, participants, committed=committed)
        self._require_no_other_mark(header, participants.segments)
        while decisions:
            # Each pass is a step of its own: whoever dies in between has materialized a part.
            with steps.at(Step.MATERIALIZE):
                answers = self.store.segments.materialize(header.txn, header.state, decisions)
            for decision, answer in zip(decisions, answers, strict=True):
                if answer.code is Code.CONFLICT:
                    raise _decided_twice(header, decision.segment)
            # It ends: nothing is added any more, as the first pass notes it as resolved.
            decisions = [
                decision
                for decision, answer in zip(decisions, answers, strict=True)
                if answer.code is Code.MORE
            ]
        self.store.op_log.forget(header.txn, header.nonce)

    def _require_no_other_mark(self, header: TxnHeader, segments: Sequence[str]) -> None:
        """Raise if a segment cannot take a decision, before any other materializes it.

        A single segment refuses by itself. Where one server holds all tags, they go back together.
        """
        if not segments[1:] or self.store.merged.possible:
            return
        marks = self.store.segments.marks(header.txn, segments)
        for segment, mark in zip(segments, marks, strict=True):
            if mark not in (None, header.state):
                raise _decided_twice(header, segment)

    def complete_on_behalf(self, txns: Iterable[TxnId], missing: set[TxnId]) -> bool:
        """Complete transactions that block somebody, where that is allowed.

        Parameters
        ----------
        txns : iterable of TxnId
            Which transactions block, as it was just seen.
        missing : set of TxnId
            Which headers were missing when the same caller asked before; empty at first. A header
            goes after its pins: who sees a pin, and then no header, has to look for the pin again.

        Returns
        -------
        bool
            Whether anything was materialized, so that another read is worth it.

        Raises
        ------
        StoreCorruptError
            If a pin or a pending acknowledgement has no header: INV-6 is broken.
        """
        completed = False
        blocking = sorted(set(txns))
        headers = self.store.transactions.read_many(blocking)
        for txn, header in zip(blocking, headers, strict=True):
            if header is None and txn not in missing:
                missing.add(txn)
                completed = True
                continue
            if header is None:
                raise StoreCorruptError(
                    f"transaction {txn} has a pin or a pending acknowledgement, but has no "
                    "header: its outcome cannot be known, and is not guessed. Restore the "
                    "metadata store"
                )
            if header.state is TxnState.OPEN:
                if not header.expired:
                    continue
                try:
                    self.abort(txn, EndedBy.EXPIRED, cause="its lease was over")
                except TransactionConflictError:
                    continue  # its owner came back with a heartbeat in between
                except TransactionNotFoundError:
                    missing.add(txn)  # others have aborted it, and collected its header
            else:
                # The flag says that all is done; whoever is still blocked proves that it is not.
                self.materialize(header, repeat=True)
            completed = True
        return completed

    def complete_pins(self, pins: Iterable[Pin], missing: set[TxnId]) -> bool:
        """Like :meth:`complete_on_behalf`, for the transactions of pins."""
        return self.complete_on_behalf((pin.txn for pin in pins), missing)


def require_open(txn: TxnId, answer: TxnAnswer) -> None:
    """Raise unless a step found the transaction OPEN under the caller's nonce."""
    if answer.code is Code.OK:
        return
    if answer.code is Code.FENCED:
        raise FencedError(f"transaction {txn} belongs to another attempt: a newer one took over")
    if answer.code is Code.ABSENT:
        raise _no_header(txn)
    if answer.state is TxnState.ABORTED:
        raise TransactionAbortedError(
            f"transaction {txn} was aborted (a newer attempt took over, or its lease ended because "
            "its driver was silent for too long). This attempt can write nothing more"
        )
    raise TransactionConflictError(
        f"transaction {txn} is {answer.state} already: it takes no more writes"
    )


def _decisions(
    outcome: Outcome, participants: Participants, *, committed: bool
) -> list[SegmentDecision]:
    """Return what a decision means in each segment."""
    won = {(w.segment, w.writer): w for w in outcome.winners} if committed else {}
    decisions = []
    for segment in participants.segments:
        fates = []
        high: Position | None = None
        for writer in participants.writers.get(segment, ()):
            winner = won.get((segment, writer))
            if winner is None:
                fates.append(WriterFate(writer, EARLIEST))
                continue
            bound = as_position(winner.bound) if winner.HasField("bound") else None
            fates.append(WriterFate(writer, bound))
            if winner.HasField("last"):
                last = as_position(winner.last)
                high = last if high is None else max(high, last)
        subscriptions = tuple(participants.subscriptions.get(segment, ()))
        decisions.append(SegmentDecision(segment, tuple(fates), subscriptions, high))
    return decisions


def _same_decision(header: TxnHeader, requested: bytes) -> bool:
    """Tell whether a header's outcome and another one decide the same.

    What it has last seen is no part of that: who commits again may have seen more of the store.
    """
    outcomes = [outcome_of(header), Outcome.FromString(requested)]
    for outcome in outcomes:
        outcome.ClearField("last_seen")
        outcome.ClearField("histories")
    return bool(outcomes[0] == outcomes[1])


def _aborted(header: TxnHeader) -> TransactionAbortedError:
    """Return the error of a commit that finds its transaction ABORTED."""
    return TransactionAbortedError(
        f"transaction {header.txn} was aborted before its commit ({_cause(header)}): nothing of "
        "it is visible. Start the query again to write the batch anew"
    )


def _decided_before(txn: TxnId, answer: TxnAnswer) -> TransactionError:
    """Return the error of a commit that came behind a decision whose header is gone."""
    if answer.state is TxnState.ABORTED:
        return TransactionAbortedError(
            f"transaction {txn} was aborted before its commit: nothing of it is visible. Start "
            "the query again to write the batch anew"
        )
    return CommitStateUnknownError(
        f"transaction {txn} was committed before, and its header was collected meanwhile: by "
        "which writers is not known here. Look for its rows before its work is done again"
    )


def _decided_twice(header: TxnHeader, segment: str) -> StoreRolledBackError:
    """Return the error of a decision where a segment has materialized the other one before."""
    other = TxnState.ABORTED if header.state is TxnState.COMMITTED else TxnState.COMMITTED
    return StoreRolledBackError(
        f"transaction {header.txn} is {header.state} in its header, but segment {segment} has "
        f"materialized it as {other}. Tag {{tc{header.txn.tc}}} lost that decision: it was a "
        "failover of a cluster's server to a replica that lagged, or a part that was restored. "
        "Nothing more is written on that ground. Restore the newest state of the store, or start "
        "with a new checkpoint and new topics (docs/operations.md)"
    )


def _no_header(txn: TxnId) -> TransactionNotFoundError:
    return TransactionNotFoundError(
        f"transaction {txn} has no header: it never existed, or was collected after its decision"
    )


def _cause(header: TxnHeader) -> str:
    return outcome_of(header).cause or "no cause given"
