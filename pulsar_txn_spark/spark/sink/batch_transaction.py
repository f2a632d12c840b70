"""The transaction of one micro-batch in ``foreachBatch``: several writes, one commit.

The first task that writes begins it. The writes and their attempts are those of
:mod:`pulsar_txn_spark.spark.sink.staging`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from enum import Enum, auto
from functools import partial
from types import TracebackType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pulsar_txn_spark import steps
from pulsar_txn_spark.backports import Self, add_note
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.engine.lease import Lease, Leases
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.errors import OptionError, PulsarTxnError, TransactionConflictError
from pulsar_txn_spark.options import SCOPE_OPTION, SCOPE_WRITE, Options
from pulsar_txn_spark.spark.checkpoint import (
    Checkpoint,
    JvmCheckpoint,
    LocalCheckpoint,
    evidence_rule,
)
from pulsar_txn_spark.spark.connect import attempt_of_connect, is_connect, query_of_connect
from pulsar_txn_spark.spark.local_properties import LocalProperties
from pulsar_txn_spark.spark.sink.job import sink_rules
from pulsar_txn_spark.spark.sink.staging import SlotAttempt, staged_writes
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite
from pulsar_txn_spark.store.records import EndedBy, TxnId, TxnState
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, BatchTransactions, new_nonce

_LOG = logging.getLogger(__name__)
_UNNAMED = "#"
"""What the name of a write begins with to which the function gives none."""
_NO_ROWS = ("CAST(NULL AS BINARY) AS value", "CAST(NULL AS STRING) AS __topic")
"""Columns that every sink takes, for a DataFrame that has no rows."""


def transaction_options(options: Mapping[str, str]) -> Options:
    """Parse the options of a sink; serve metrics from this process if they ask for it.

    The endpoint is this process's own: its options are not passed on.

    Raises
    ------
    OptionError
    """
    parsed = Options(options, SCOPE_WRITE)
    if not parsed.get("transactions"):
        raise OptionError(
            "transactions=false has no meaning in a transaction of several writes: use "
            "df.write.format('pulsar_txn') without it"
        )
    if parsed.get("metrics.port") is not None:
        from pulsar_txn_spark.prometheus import serve_if_asked

        serve_if_asked(parsed, open_components(parsed))
    return parsed.without_endpoint()


class _ScopeState(Enum):
    """What a scope is ready for: to be entered, for writes, or for nothing more."""

    CREATED = auto()
    ENTERED = auto()
    ENDED = auto()


class BatchTransaction:
    """The transaction of one micro-batch in ``foreachBatch``, as a context manager.

    Leaving it normally commits every write, together with the acknowledgement of what the batch
    has read; leaving it by an exception aborts them all.

    Parameters
    ----------
    options : mapping of str to str, or Options
        Options of the sink; those given to :meth:`write` come on top.
    batch_id : int
        As Spark gave it to the function.
    session_of : DataFrame
        The micro-batch, which tells the query where Spark Classic knows it. Make the object in the
        thread in which Spark calls the function; :meth:`write` works in others, too. Join them
        before the block ends: later writes are refused.
    name : str
        Distinguishes several transactions of one batch, unless ``sinkId`` is given.
    """

    def __init__(
        self,
        options: Mapping[str, str] | Options,
        batch_id: int,
        session_of: DataFrame,
        name: str,
    ) -> None:
        parsed = options if isinstance(options, Options) else transaction_options(options)
        self._options = parsed
        self._components: Components = open_components(parsed)
        self._batch_id = batch_id
        self._nonce = new_nonce()
        self._shard = self._components.coordinator.shard(self._nonce)
        self._sink_id: str | None = parsed.get("sinkId")
        self._name = name
        self._df = session_of
        self._properties = LocalProperties(session_of)
        self._rules = sink_rules(parsed, once=True)
        self._query_id = self._properties.query_id
        self._attempt = ""  # where the tasks know it
        session: Any = session_of.sparkSession
        self._checkpoint: Checkpoint | None = LocalCheckpoint.at(parsed.get("checkpointlocation"))
        if is_connect(session):
            self._query_id = query_of_connect(session, self._checkpoint)
            self._attempt = attempt_of_connect(batch_id)
        elif self._checkpoint is None:
            self._checkpoint = JvmCheckpoint.of(session, self._query_id)
        self._timeout_ms: int = parsed.get("txn.timeoutMs")
        self._lock = threading.Lock()  # a function may write from several threads
        self._state = _ScopeState.CREATED
        self._declared: dict[str, int] = {}  # slot -> number of its last attempt
        self._unnamed = 0  # writes without a name so far
        self._succeeded: dict[str, int] = {}
        self._has_committed_staged = False
        self._leases = Leases()
        self._lease = Lease(
            self._timeout_ms,
            partial(
                _heartbeat,
                self._components,
                self._shard,
                self._nonce,
                self._timeout_ms,
                self._declared,
            ),
        )

    # -- writing -----------------------------------------------------------------------------

    def write(self, df: DataFrame, topic: str | None = None, *, slot: str | None = None) -> None:
        """Write a DataFrame as part of the transaction.

        Parameters
        ----------
        df : DataFrame
            With the columns of the sink.
        topic : str, optional
            Topic of rows without ``__topic``; the option `topic` by default.
        slot : str, optional
            Name of this write, for code that tries one again: of several attempts at a slot the
            last counts. By default every call is a slot of its own. A name has no ``/`` and does
            not begin with ``#``.

        Raises
        ------
        OptionError
            If the name of the slot is not allowed. Nothing was declared or written then.
        TransactionConflictError
            If the block has not begun, or has ended meanwhile: this write is not committed.
        Exception
            What Spark raises if the write fails. Unless the slot is tried again, the transaction
            can then not commit.
        """
        try:
            self._write(df, topic, slot, _ScopeState.ENTERED)
        except PySparkException as error:
            # Without the frames of py4j: the user's own are those that count.
            raise error.with_traceback(None) from None

    def _write(
        self, df: DataFrame, topic: str | None, slot: str | None, expected: _ScopeState
    ) -> None:
        self._lease.require()
        name, number = self._declare(slot, expected)
        options = dict(self._options.raw)
        if topic is not None:
            options["topic"] = str(self._options.domains.segmented(topic))
        options[SCOPE_OPTION] = SlotAttempt(
            nonce=self._nonce,
            slot=name,
            number=number,
            sink_id=self._sink_id,
            sink_suffix=self._name,
            query_id=self._query_id,
            batch_id=self._batch_id,
            driver=self._properties.driver,
            checkpoint_query_id=self._checkpoint.query if self._checkpoint else "",
            attempt=self._attempt,
        ).to_option()
        with self._properties.in_this_thread(df):
            df.write.format(FORMAT).mode("append").options(**options).save()
        with self._lock:
            self._require(expected)  # a later success is not committed
            # Another thread may have begun a later attempt meanwhile, which has to succeed now.
            if self._declared[name] == number:
                self._succeeded[name] = number

    def _declare(self, slot: str | None, expected: _ScopeState) -> tuple[str, int]:
        """Declare an attempt at a slot before it starts: unless it succeeds, no commit follows."""
        if slot is not None:
            _check_slot(slot)
        with self._lock:
            self._require(expected)
            if slot is None:
                self._unnamed += 1
            name = slot if slot is not None else f"{_UNNAMED}{self._unnamed}"
            number = self._declared.get(name, 0) + 1
            self._declared[name] = number
            self._succeeded.pop(name, None)
        self._components.store.stages.declare_attempt(self._shard, self._nonce, name, number)
        return name, number

    def _require(self, expected: _ScopeState) -> None:
        """Raise unless the scope is in this state; called with the lock."""
        if self._state is expected:
            return
        if self._state is _ScopeState.CREATED:
            raise TransactionConflictError(
                f"the transaction of batch {self._batch_id} has not begun: nothing was written. "
                "Write within 'with BatchTransaction(...) as txn'"
            )
        raise TransactionConflictError(
            f"the transaction of batch {self._batch_id} is over: it does not contain this write. "
            "Join the function's threads before it returns"
        )

    # -- ending ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with self._lock:
            if self._state is not _ScopeState.CREATED:
                raise TransactionConflictError(
                    f"the transaction of batch {self._batch_id} has begun before: it cannot begin "
                    "a second time. Make another BatchTransaction"
                )
            self._state = _ScopeState.ENTERED
        self._leases.keep(self._lease)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:  # first: no thread declares a write, or succeeds, behind what is compared
            self._state = _ScopeState.ENDED
        try:
            if error is None:
                self._commit_or_abort()
            else:
                self._abort(error, f"its function raised {type(error).__name__}")
        finally:
            self._leases.end(self._lease)
            self._delete_staged()

    def _delete_staged(self) -> None:
        """Delete what was staged, unless the commit has done so."""
        if not self._declared or self._has_committed_staged:
            return
        try:
            self._components.store.stages.touch(self._shard, self._nonce, ended=True)
        except PulsarTxnError as error:
            _LOG.warning("what a scope has staged stays until a sweep finds it: %s", error)

    def _commit_or_abort(self) -> None:
        try:
            self._commit()
        except BaseException as error:  # an interrupt, too: nobody else would let the readers go on
            self._abort(error, f"its commit raised {type(error).__name__}")
            raise

    def _commit(self) -> None:
        if not self._declared and not self._rules.every_batch:
            return  # nothing was written: the source acknowledges the batch once Spark is done
        if not self._declared and self._query_id is not None:
            self._commit_nothing(self._query_id)
            return
        if not self._declared:
            # The query is not known here: only a task knows it.
            no_rows = self._df.limit(0).selectExpr(*_NO_ROWS)
            self._write(no_rows, None, None, _ScopeState.ENDED)
        self._lease.require()
        failed = sorted(self._declared.keys() - self._succeeded.keys())
        if failed:
            raise TransactionConflictError(
                f"the transaction cannot commit: write {failed[0]!r} was declared but did not "
                "succeed: its error was swallowed, or its thread was not joined. Nothing became "
                "visible; let the error through, join the thread, or run the same slot again"
            )
        writes = staged_writes(self._components, self._shard, self._nonce, self._succeeded)
        first = writes[0]
        attempt = Attempt(
            self._key(first.query), self._nonce, TxnId.parse(first.txn_id), first.replay
        )
        self._finish(attempt, [list(write.tasks) for write in writes], first.execution_id)
        self._has_committed_staged = not first.replay

    def _commit_nothing(self, query_id: str) -> None:
        """Record a batch in which nothing was written, and acknowledge what it has read.

        Without the record, a batch that was lost would look like one that wrote nothing (INV-11).
        """
        execution_id = self._properties.execution_id
        owner = f"{self._properties.driver}|{self._attempt or execution_id}"
        attempt = self._transactions().begin(self._key(query_id), self._nonce, owner, self._rules)
        self._finish(attempt, [], execution_id)

    def _finish(self, attempt: Attempt, slots: list[list[TaskWrite]], execution_id: str) -> None:
        store = self._components.store.identity.uuid
        rule = evidence_rule(self._options, self._checkpoint, attempt.key.query, store)
        self._transactions().commit(
            attempt,
            slots,
            execution_id,
            acknowledge=True,
            rule=rule,
            once_in=self._attempt or execution_id,
        )
        self._components.sweeps.trigger()
        # The last step is Spark's: its commit log. A crash from here on leads to a replay.
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.BEFORE)

    def _key(self, query_id: str) -> BatchKey:
        return BatchKey(self._sink_id or f"{query_id}/{self._name}", query_id, self._batch_id)

    def _transactions(self) -> BatchTransactions:
        return BatchTransactions(self._components.coordinator, self._timeout_ms)

    def _abort(self, error: BaseException, cause: str) -> None:
        """Abort what this scope has begun, as its owner.

        Where no task has begun it, or it is a replay, a task that is late finds the nonce aborted.
        The error is what the user is told; a note says if the transaction was not aborted.
        """
        try:
            txn = self._components.store.transactions.of_nonce(self._shard, self._nonce)
            if txn is None:
                if self._declared:
                    self._transactions().abort_nonce(self._nonce, cause)
                return
            state = self._components.coordinator.abort(
                txn, EndedBy.OWNER, nonce=self._nonce, cause=cause
            )
        except PulsarTxnError as failed:
            add_note(
                error,
                f"the abort of batch {self._batch_id} failed, too: {failed} The next attempt at "
                "the batch ends its transaction, or the end of the lease does",
            )
            return
        if state is TxnState.COMMITTED:
            add_note(
                error,
                f"transaction {txn} of batch {self._batch_id} is COMMITTED: all of it is visible. "
                "Start the query again: it finds that out, and writes nothing twice",
            )


def _check_slot(name: object) -> None:
    """Refuse a name that could be that of an unnamed write, or of a staged attempt at another."""
    if not isinstance(name, str) or name.startswith(_UNNAMED) or "/" in name:
        raise OptionError(
            f"slot={name!r} is not allowed: expected a string without '/' that does not begin with "
            f"{_UNNAMED!r}. Such names are those of writes without a slot, and of staged results, "
            "so that one write could replace another. Give the slot another name"
        )


def _heartbeat(
    components: Components, shard: int, nonce: str, timeout_ms: int, declared: Collection[str]
) -> None:
    """Extend the lease, between writes too: only this process knows that it is alive.

    Before a task has begun the transaction, there is only what was staged, if anything.
    """
    txn = components.store.transactions.of_nonce(shard, nonce)
    if txn is not None:
        components.coordinator.heartbeat(txn, nonce, timeout_ms)
    elif declared:
        components.store.stages.touch(shard, nonce)
