"""A transaction of a client: what it writes and acknowledges counts together, or not at all."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Protocol

from pulsar_txn_spark import steps
from pulsar_txn_spark.backports import Self, add_note
from pulsar_txn_spark.client.message import Row, as_batch
from pulsar_txn_spark.client.reentry import is_interrupted, refuse_reentry
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.engine.lease import Leases
from pulsar_txn_spark.engine.topic_writers import TopicWriters, Written, op_records, winners_of
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    AlreadyClosedError,
    CommitStateUnknownError,
    PulsarTxnError,
    StoreError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import SubscriptionRef, TopologyVersion, TxnId, TxnState
from pulsar_txn_spark.txn.coordinator import TxnAction, TxnStatus
from pulsar_txn_spark.txn.participants import ack_intent, write_intent
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from pulsar_txn_spark.txn.seen import note_segments
from pulsar_txn_spark.txn.transaction_buffer import writer_name

_LOG = logging.getLogger(__name__)
ROWS_GATHERED = 1_000  # so many rows, or bytes, go to the log in one piece
BYTES_GATHERED = 512 * 1024


class Acknowledger(Protocol):
    """A consumer, as far as a transaction has to tell it something. None of it waits."""

    def follow(self, txn: Transaction) -> None:
        """Hear that something is going to be acknowledged in a transaction: its end follows."""
        ...

    def committed(self, txn: TxnId) -> None:
        """Hear that the transaction was committed."""
        ...

    def aborted(self, txn: TxnId) -> None:
        """Hear that the transaction was aborted: what it acknowledged has to come again."""
        ...

    def doubtful(self, txn: TxnId) -> None:
        """Hear that nobody here follows the transaction any more, and how it ends is not known."""
        ...


class _Header:
    """A transaction's header in the store, as far as its writers have to do with it.

    It knows nothing of the transaction: with a reference back to it, one that is dropped would
    live on for a while.
    """

    def __init__(self, components: Components, timeout_ms: int, owner: str) -> None:
        self._components = components
        self._timeout_ms = timeout_ms
        self._owner = owner
        self._random = secrets.token_hex(6)
        self.nonce = secrets.token_hex(8)
        self.id: TxnId | None = None
        self.asked_for = False  # it may be there although no reply has said so
        self.opened: Callable[[], None] = lambda: None
        self.intents: set[str] = set()
        self._expected: TopologyVersion | None = None

    def open(self) -> TxnId:
        """Create it, or find it."""
        if self.id is None:
            self.asked_for = True
            with steps.at(Step.BEGIN):
                self._opened(
                    self._components.coordinator.new_txn(
                        self.nonce, timeout_ms=self._timeout_ms, owner=self._owner
                    )
                )
        assert self.id is not None
        return self.id

    def _opened(self, txn: TxnId) -> None:
        self.id = txn
        self.opened()

    def writer(self, topology_generation: int, txn: TxnId | None) -> str:
        """Return the name of the writer of a topology generation."""
        suffix = f"r{topology_generation}" if topology_generation else ""
        return writer_name(txn, 0, f"{self._random}{suffix}")

    def admit(self, topology_generation: int, segments: Sequence[str]) -> None:
        """Let a writer append; the first one opens the transaction with it."""
        buffer = self._components.buffer
        name = partial(self.writer, topology_generation)
        if self.id is None:
            self.asked_for = True

            def opened(txn: TxnId) -> None:
                self._intend(name(txn), segments)
                self._opened(txn)

            expected, self._expected = self._expected, None
            buffer.open(self.nonce, self._timeout_ms, self._owner, name, segments, opened, expected)
        else:
            self._intend(name(self.id), segments)
            buffer.admit(self.id, self.nonce, self._timeout_ms, name(self.id), segments)

    def expect(self, topology: TopologyVersion) -> bool:
        """Tell whether the transaction is going to be opened, and checks a topology then."""
        if self.id is not None or not self._components.store.merged.possible:
            return False
        self._expected = topology
        return True

    def _intend(self, writer: str, segments: Sequence[str]) -> None:
        self.intents.update(write_intent(segment, writer) for segment in segments)


def _writers(components: Components, header: _Header) -> TopicWriters:
    # Rows without a key begin at any segment: else short transactions would all use the first.
    return TopicWriters(
        components,
        lambda topology_generation: header.writer(topology_generation, header.id),
        header.admit,
        secrets.randbelow(1 << 16),
        expect=header.expect,
    )


def _named(error: BaseException) -> str:
    return str(error) or type(error).__name__  # an interrupt has no text


class Transaction:
    """A transaction; made by :meth:`Client.new_txn`, and open until it is committed or aborted.

    As a context manager it is committed at the end of the block, and aborted if an exception
    leaves it. Any thread may use it, and several may at once.

    The store hears of it with the first rows that go to the log, with the first acknowledgement,
    or when its :attr:`id` is asked for. Its lease begins then.
    """

    def __init__(self, components: Components, leases: Leases, timeout_ms: int, owner: str) -> None:
        self._components = components
        self._leases = leases
        self._pid = os.getpid()
        self.timeout_ms = timeout_ms
        self._acks = MetadataPendingAckStore(components.coordinator)
        self._header = _Header(components, timeout_ms, owner)
        self._nonce = self._header.nonce
        self._intents = self._header.intents
        self._lock = threading.RLock()
        self._decided: TxnState | None = None
        self._failed: BaseException | None = None
        self._lost: PulsarTxnError | None = None
        self._conflict: AcknowledgementConflictError | None = None
        self._outcome: Outcome | None = None
        self._in_doubt = False  # its commit was begun, and no answer came
        self._is_client_closed = False
        self._is_ended_by_owner = False  # who has called commit() or abort() knows how it ended
        self._rows: dict[TopicName, list[Row]] = {}
        self._gathered_bytes = 0
        self._acknowledged: set[str] = set()
        self._acknowledgers: dict[Acknowledger, None] = {}
        self._written: list[Written] = []
        self._ops: dict[str, bytes] = {}
        self._writers = _writers(components, self._header)
        # If it is dropped without an end, its lease ends as if its process had died.
        self._dropped = weakref.finalize(self, leases.forgotten, self._writers)
        self._dropped.atexit = False
        mine = weakref.ref(self)

        def keep_lease() -> None:
            if (transaction := mine()) is not None:
                leases.keep(transaction)

        self._header.opened = keep_lease

    @property
    def id(self) -> TxnId:
        """The transaction's id, shown as ``(tc,counter)``. Until it has one, this begins it.

        Raises
        ------
        TransactionAbortedError
            If it was aborted before anything was done in it: it never had one.
        StoreUnavailableError
        """
        if self._header.id is None:
            self._require_own_process()
            with self._alone():
                if self._decided is not None:
                    self.require_open()
                return self._header.open()
        return self._header.id

    @property
    def ended(self) -> bool:
        """Whether it is known here to be committed or aborted."""
        return self._decided is not None

    def __repr__(self) -> str:
        return f"Transaction({self._shown}, {self._decided or TxnState.OPEN})"

    @property
    def _shown(self) -> str:
        return str(self._header.id or "without an id yet")

    def _alone(self) -> AbstractContextManager[object]:
        """Return the lock, unless a signal handler asks for it amid a call of its own thread."""
        refuse_reentry(self._lock, "a method of a transaction")
        return self._lock

    # -- what producers and consumers do in it -------------------------------------------------

    def append(self, topic: TopicName, row: Row) -> None:
        """Queue a row; :meth:`Producer.send` calls it, and says which errors come."""
        with self._alone():
            self.require_open()
            self._rows.setdefault(topic, []).append(row)
            self._gathered_bytes += row.size
            if len(self._rows[topic]) >= ROWS_GATHERED or self._gathered_bytes >= BYTES_GATHERED:
                self._guarded(self._hand_over)

    def flush(self) -> None:
        """Wait until everything that was sent so far lies in the log, invisible."""
        self._require_own_process()
        with self._alone():
            self.require_open()
            self._guarded(self._finish_writing)

    def flush_if_open(self) -> None:
        """Flush it, unless it takes nothing more; :meth:`Producer.flush` calls it."""
        with self._alone():
            ends = (self._decided, self._lost, self._failed, self._outcome)
            if all(end is None for end in ends):
                self._guarded(self._finish_writing)

    def acknowledge(
        self, by: Acknowledger, where: SubscriptionRef, intervals: Sequence[AckInterval]
    ) -> None:
        """Acknowledge single messages; :meth:`Consumer.acknowledge` calls it."""
        with self._alone():
            self._take_part(by, where)
            self._guarded(
                lambda: self._acks.acknowledge_individual(
                    self._header.open(), self._nonce, self.timeout_ms, where, intervals
                )
            )

    def acknowledge_cumulative(
        self,
        by: Acknowledger,
        where: SubscriptionRef,
        interval: AckInterval,
        *,
        nothing_left: bool,
    ) -> None:
        """Acknowledge up to a message; :meth:`Consumer.acknowledge_cumulative` calls it."""
        with self._alone():
            self._take_part(by, where)
            self._guarded(
                lambda: self._acks.acknowledge_cumulative(
                    self._header.open(),
                    self._nonce,
                    self.timeout_ms,
                    where,
                    interval,
                    nothing_left=nothing_left,
                )
            )

    def _take_part(self, by: Acknowledger, where: SubscriptionRef) -> None:
        self.require_open()
        self._guarded(self._header.open)
        # Before the first request: it may take effect although its reply never comes.
        self._acknowledged.add(where.segment)
        self._intents.add(ack_intent(where.segment, where.subscription))
        self._acknowledgers[by] = None
        by.follow(self)

    def require_open(self) -> None:
        """Raise unless something can still be done in it.

        Raises
        ------
        TransactionAbortedError, TransactionConflictError
        """
        if self._lost is not None:
            raise self._aborted_by_others(self._lost) from self._lost
        if self._decided is TxnState.ABORTED and self._conflict is not None:
            raise TransactionAbortedError(
                f"transaction {self._shown} was aborted, because something in it failed before "
                f"({self._conflict}): do its work again in a new one"
            ) from self._conflict
        if self._decided is TxnState.ABORTED and self._is_client_closed:
            raise TransactionAbortedError(
                f"transaction {self._shown} was aborted, because its client was closed: do its "
                "work again with a new client"
            )
        if self._decided is TxnState.ABORTED:
            raise TransactionAbortedError(f"transaction {self._shown} was aborted: begin a new one")
        if self._failed is not None:
            raise TransactionConflictError(
                f"transaction {self._shown} takes nothing more, because something in it failed "
                f"before ({_named(self._failed)}): abort it, and do its work again in a new one"
            ) from self._failed
        if self._decided is TxnState.COMMITTED or self._outcome is not None:
            raise TransactionConflictError(
                f"transaction {self._shown} takes nothing more: it was committed, or its commit "
                "was begun. Begin a new one"
            )

    def _require_own_process(self) -> None:
        """Raise in a fork: it would commit or abort what its parent goes on with."""
        if os.getpid() != self._pid:
            raise AlreadyClosedError(
                f"transaction {self._shown} was begun in process {self._pid}, this is "
                f"{os.getpid()}: only that one may go on with it. Connect after the fork"
            )

    def fail(self, error: BaseException) -> None:
        """Note that something that was to be in it is not: it can only be aborted."""
        with self._alone():
            if self._decided is None and self._outcome is None:
                self._give_up(self._failed or error)

    def _give_up(self, error: BaseException) -> None:
        """Let it only be aborted: by its owner, or by the lease, which nobody extends any more.

        The error's traceback may keep it alive long after its owner has dropped it.
        """
        self._failed = error
        self._leave()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let it be aborted only if the block fails, for whatever reason, an interrupt included."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def _guarded(self, action: Callable[[], object]) -> None:
        """Do something, and remember if it failed: a commit without it would not be whole."""
        try:
            action()
        except AcknowledgementConflictError as error:
            # PIP-31: a conflict ends the transaction, so that nobody waits for its lease.
            self._failed = self._conflict = error
            self._abort_behind(error, "an acknowledgement conflicted with another one")
            raise
        except BaseException as error:  # an interrupt, too: rows may be gone with it
            self._give_up(error)
            raise

    def _hand_over(self) -> None:
        """Give what was gathered to the writers."""
        rows, self._rows, self._gathered_bytes = self._rows, {}, 0
        for topic, gathered in rows.items():
            self._writers.append(topic, as_batch(gathered))

    def _finish_writing(self) -> None:
        self._hand_over()
        with steps.at(Step.APPEND):
            self._written = self._writers.finish()

    # -- the end -------------------------------------------------------------------------------

    def commit(self) -> None:
        """Let everything that was sent and acknowledged count, at once.

        1. everything that was sent is flushed; 2. operation records; 3. one compare-and-set names
        the writers that count: from there on all of it is visible; 4. it is materialized. To commit
        what is committed already is no error.

        Raises
        ------
        TransactionAbortedError
            If the transaction was aborted. That may be by its lease, by a newer consumer of a
            subscription that it acknowledges for, or because something in it had failed. Nothing is
            visible.
        CommitStateUnknownError
            If the store does not answer, or refuses a step. It may be committed: call this again,
            or ask :meth:`status`, and do its work again only once it is known to be aborted.
        SegmentLogError, StoreError
            If what was sent could not be flushed. The transaction is aborted then.
        """
        self._require_own_process()
        with self._alone():
            self._commit()

    def _commit(self) -> None:
        self._is_ended_by_owner = True
        if self._decided is TxnState.COMMITTED:
            return
        if self._outcome is None:
            self._prepare()
        try:
            self._decide()
        except TransactionAbortedError:
            self._note(TxnState.ABORTED)
            raise
        except TransactionNotFoundError as error:
            if self._in_doubt:
                raise CommitStateUnknownError(
                    f"transaction {self._shown} ended so long ago that its header was collected. "
                    "It may have been committed before: look for its rows before its work is done "
                    "again"
                ) from error
            # Without a decision of its owner, it can only have been aborted.
            self._note(TxnState.ABORTED)
            raise self._aborted_by_others(error) from error
        except StoreError as error:
            self._in_doubt = True
            # Also where a server refuses a step: the decision may be behind it already.
            raise CommitStateUnknownError(
                f"transaction {self._shown}: the store failed in the middle of the commit "
                f"({error}). It may be committed: call commit() again, or ask status(), before "
                "its work is done again"
            ) from error
        except BaseException:
            self._in_doubt = True
            raise
        self._note(TxnState.COMMITTED)

    def _decide(self) -> None:
        assert self._outcome is not None
        self._components.coordinator.commit(
            self._header.open(),
            self._nonce,
            self._outcome,
            intents=self._intents,
            ops=self._ops,
        )

    def _aborted_by_others(self, error: PulsarTxnError) -> TransactionAbortedError:
        return TransactionAbortedError(
            f"transaction {self._shown} was ended by somebody else ({error}): nothing of it is "
            "visible. Leave it, and do its work again in a new one"
        )

    def _prepare(self) -> None:
        """Flush, and put together what the commit names."""
        if self._lost is not None and self._decided is None:
            self._note(TxnState.ABORTED)
        if self._failed is None or self._decided is not None or self._lost is not None:
            self.require_open()
        else:
            left = self._abort_quietly("something in it had failed")
            end = "it was aborted" if left is None else f"it was not aborted either ({left})"
            raise TransactionAbortedError(
                f"transaction {self._shown} could not be committed, because something in it failed "
                f"before ({_named(self._failed)}); {end}. Do its work again in a new one"
            ) from self._failed
        try:
            self._finish_writing()
            txn = self._header.open()
            ops = op_records(self._written)
            if self._components.coordinator.ops_go_along(txn):
                self._ops = ops
            elif ops:
                with steps.at(Step.OP_RECORD):
                    self._components.coordinator.append_ops(txn, self._nonce, ops)
        except TransactionNotFoundError as error:
            self._failed = error
            self._note(TxnState.ABORTED)
            raise self._aborted_by_others(error) from error
        except BaseException as error:
            self._give_up(error)
            if isinstance(error, Exception):  # an interrupt does not wait for the store
                self._abort_behind(error, "its rows could not be flushed")
            raise
        outcome = Outcome(
            winners=winners_of(self._written),
            messages=sum(written.receipt.messages for written in self._written),
            bytes=sum(written.receipt.bytes for written in self._written),
        )
        touched = {winner.segment for winner in outcome.winners} | self._acknowledged
        note_segments(outcome, self._components.store.seen, touched)
        self._outcome = outcome

    def abort(self) -> None:
        """Take everything back: nothing of it becomes visible, what it acknowledged comes again.

        To abort what is aborted already is no error.

        Raises
        ------
        TransactionConflictError
            If it was committed.
        CommitStateUnknownError, StoreUnavailableError
            If the store does not answer: when the lease is over, it is aborted in any case.
        """
        self._require_own_process()
        with self._alone():
            self._is_ended_by_owner = True
            if self._decided is TxnState.ABORTED:
                return
            if self._decided is TxnState.COMMITTED:
                raise TransactionConflictError(
                    f"transaction {self._shown} was committed before: it can no longer be aborted"
                )
            self._abort("its owner aborted it")

    def _abort(self, cause: str) -> None:
        self._writers.close()
        if not self._header.asked_for:
            self._note(TxnState.ABORTED)
            return
        if self._failed is None and self._outcome is None:
            self._failed = TransactionConflictError("its abort was begun")
        try:
            self._components.coordinator.end_txn(
                self._header.open(), TxnAction.ABORT, nonce=self._nonce, cause=cause
            )
        except TransactionNotFoundError:
            # Collected after its end. Only a commit of ours could have been another one.
            if self._outcome is not None:
                raise
        except TransactionConflictError:
            self._note(TxnState.COMMITTED)
            raise
        except BaseException:  # an interrupt, too: nobody waits for more than its lease
            self._leave()
            raise
        self._note(TxnState.ABORTED)

    def _abort_quietly(self, cause: str) -> PulsarTxnError | None:
        """Abort where another error is on its way; return the one that came of it."""
        try:
            self._abort(cause)
        except PulsarTxnError as error:
            return error
        return None

    def _abort_behind(self, error: BaseException, cause: str) -> None:
        """Abort where an error is on its way, which says so if that did not work."""
        failed = self._abort_quietly(cause)
        if failed is not None:
            add_note(error, f"transaction {self._shown} was not aborted: {failed}")

    def _note(self, decided: TxnState) -> None:
        if self._decided is not None:
            return
        self._decided = decided
        self._dropped.detach()
        self._leases.let_go(self)
        self._writers.close()
        self._rows.clear()
        for acknowledger in self._acknowledgers:
            if decided is TxnState.COMMITTED:
                acknowledger.committed(self.id)
            else:
                acknowledger.aborted(self.id)
        self._components.sweeps.trigger()

    def _leave(self) -> None:
        """Follow it no more: its lease ends, and its consumers find out what became of it."""
        if self._decided is None:
            self._leases.let_go(self)
            self._writers.close()
            for acknowledger in self._acknowledgers:
                acknowledger.doubtful(self.id)

    def status(self) -> TxnStatus:
        """Look up what has become of it.

        Raises
        ------
        TransactionNotFoundError
            If it ended so long ago that its header was collected, and how is not known here.
        StoreUnavailableError
        """
        self._require_own_process()
        txn = self._header.id
        if txn is None:
            return TxnStatus(self._decided or TxnState.OPEN)
        try:
            return self._components.coordinator.status(txn)
        except TransactionNotFoundError:
            if self._decided is None:
                raise
            return TxnStatus(self._decided)

    # -- the lease -----------------------------------------------------------------------------

    @property
    def tc(self) -> int | None:
        """Number of its coordinator; None until it has an id."""
        return None if self._header.id is None else self._header.id.tc

    def beat(self) -> None:
        """Extend the lease."""
        self._components.coordinator.heartbeat(self.id, self._nonce, self.timeout_ms)

    def lost(self, error: PulsarTxnError) -> None:
        """Note that somebody else has ended it."""
        if self._decided is not None:
            return
        if self._outcome is not None:
            # Its commit may be what has ended it: that one says so, or the header does.
            for acknowledger in list(self._acknowledgers):
                acknowledger.doubtful(self.id)
            return
        self._lost = error
        for acknowledger in list(self._acknowledgers):
            acknowledger.aborted(self.id)

    def close(self) -> None:
        """Abort it if it is open; the store need not answer.

        A signal handler that has interrupted a call in it leaves it to its owner, or to its lease.
        """
        if os.getpid() != self._pid:
            return
        if is_interrupted(self._lock):
            self._header.opened = lambda: None
            self._leases.let_go(self)
            return
        with self._lock:
            if self._decided is None:
                self._is_client_closed = True
                error = self._abort_quietly("its client was closed")
                if error is not None:
                    _LOG.warning("transaction %s was left to its lease: %s", self._shown, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._pid:
            return  # a fork's copy: it is its parent's to end
        with self._alone():
            if self._decided is not None:
                if error is None and not self._is_ended_by_owner:
                    self.require_open()  # it was aborted, and the block would seem to commit
                return
            if error is None:
                try:
                    self._commit()
                except BaseException:  # an interrupt, too: a lease must not be kept for nobody
                    self._leave()
                    raise
                return
            self._abort_behind(error, "an exception left its block")
