"""Several writes, one transaction: ``foreachBatch`` sinks.

A scope has a nonce of its own and named *slots*, one for each write. A slot is declared before its
write runs and each run of it has a number, so that the commit names exactly the runs whose success
this code saw; what a user's code saw fail is never committed. The transaction itself is begun by
the first task that writes: it knows the query's id without py4j, as Spark Connect demands.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, overload

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.engine.lease import Lease, Leases
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    TransactionConflictError,
)
from pulsar_txn_spark.options import SCOPE_OPTION, Options, Use
from pulsar_txn_spark.spark.checkpoint import (
    Checkpoint,
    JvmCheckpoint,
    LocalCheckpoint,
    evidence_rule,
)
from pulsar_txn_spark.spark.context import (
    BATCH_ID,
    QUERY_ID,
    ROOT_EXECUTION,
    driver_name_of,
    name_of_attempt,
)
from pulsar_txn_spark.spark.error_boundary import plain_call, plain_errors
from pulsar_txn_spark.spark.sink.writers import SlotRun, rules_of
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.metadata_pb2 import StagedWrite, TaskWrite
from pulsar_txn_spark.store.records import EndedBy, TxnId
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, BatchTransactions, new_nonce

_LOG = logging.getLogger(__name__)
_NO_ROWS = ("CAST(NULL AS BINARY) AS value", "CAST(NULL AS STRING) AS __topic")
"""Columns that every sink takes, for a DataFrame that has no rows."""


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
        The micro-batch; tells the query, where Spark Classic knows it. Make the object in the
        thread in which Spark calls the function; :meth:`write` works in others, too.
    name : str
        Tells several transactions of one batch apart, unless ``sinkId`` is given.
    """

    def __init__(
        self,
        options: Mapping[str, str] | Options,
        batch_id: int,
        session_of: DataFrame,
        name: str,
    ) -> None:
        parsed = options if isinstance(options, Options) else _serving(options)
        self._options = parsed
        self._run: Runtime = runtime(parsed)
        self._batch = batch_id
        self._nonce = new_nonce()
        self._shard = self._run.coordinator.shard(self._nonce)
        self._sink: str | None = parsed.get("sinkId")
        self._name = name
        self._df = session_of
        self._facts = _ThreadFacts(session_of)
        self._rules = rules_of(parsed, once=True)
        self._query = self._facts.query
        session: Any = session_of.sparkSession
        self._checkpoint: Checkpoint | None = LocalCheckpoint.at(parsed.get("checkpointlocation"))
        if self._checkpoint is None:
            self._checkpoint = JvmCheckpoint.of(session, self._query)
        self._timeout_ms: int = parsed.get("txn.timeoutMs")
        self._lock = threading.Lock()  # a function may write from several threads
        self._runs: dict[str, int] = {}
        self._succeeded: dict[str, int] = {}
        self._went_with_transaction = False  # what was staged
        self._leases = Leases()
        self._lease = Lease(
            self._timeout_ms,
            functools.partial(
                _heartbeat, self._run, self._shard, self._nonce, self._timeout_ms, self._runs
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
            Name of this write, for code that tries one again: of several runs of a slot the last
            counts. By default every call is a slot of its own.

        Raises
        ------
        Exception
            What Spark raises if the write fails. Unless the slot is run again, the transaction
            can then not commit.
        """
        self._lease.require()
        with self._lock:
            name = slot if slot is not None else f"write-{len(self._runs)}"
            run = self._runs.get(name, 0) + 1
            # Declared before it runs: a commit misses it if it does not succeed.
            self._runs[name] = run
            self._succeeded.pop(name, None)
        self._run.store.stages.declare_run(self._shard, self._nonce, name, run)
        slot_run = SlotRun(
            nonce=self._nonce,
            slot=name,
            run=run,
            sink=self._sink,
            sink_kind=self._name,
            query=self._query,
            batch=self._batch,
            driver=self._facts.driver,
            readable=self._checkpoint.query if self._checkpoint else "",
        )
        options = dict(self._options.given)
        if topic is not None:
            options["topic"] = str(self._options.domains.segmented(topic))
        options[SCOPE_OPTION] = slot_run.to_option()
        with self._facts.in_this_thread(df):
            try:
                df.write.format(FORMAT).mode("append").options(**options).save()
            except PySparkException as error:
                # Without the frames of py4j: the user's own are those that count.
                raise error.with_traceback(None) from None
        with self._lock:
            # Another thread may have begun a later run meanwhile: that one has to succeed now.
            if self._runs[name] == run:
                self._succeeded[name] = run

    # -- ending ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._leases.keep(self._lease)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._abort(f"its function raised {type(error).__name__}")
        finally:
            self._leases.end(self._lease)
            self._forget_staged()

    def _forget_staged(self) -> None:
        """Delete what was staged, unless it went with the transaction."""
        if not self._runs or self._went_with_transaction:
            return
        try:
            self._run.store.stages.touch(self._shard, self._nonce, ended=True)
        except PulsarTxnError as error:
            _LOG.warning("what a scope has staged stays until a sweep finds it: %s", error)

    def _commit(self) -> None:
        if not self._runs and not self._rules.every_batch:
            return  # nothing was written: the source acknowledges the batch once it is through
        if not self._runs and self._query is not None:
            self._commit_nothing(self._query)
            return
        if not self._runs:
            # Only a task knows the query.
            self.write(self._df.limit(0).selectExpr(*_NO_ROWS))
        failed = sorted(self._runs.keys() - self._succeeded.keys())
        if failed:
            self._abort(f"write {failed[0]!r} failed")
            raise TransactionConflictError(
                f"the transaction cannot commit: write {failed[0]!r} was declared but did not "
                "succeed, and its error was swallowed. Nothing became visible; let the error "
                "through, or run the same slot again"
            )
        staged = self._run.store.stages.read(self._shard, self._nonce)
        writes = []
        for name, run in self._succeeded.items():
            record = staged.get(f"{name}/{run}")
            if record is None:
                raise TransactionConflictError(
                    f"write {name!r} (run {run}) succeeded, but its result is not in the store: "
                    "nothing was committed"
                )
            writes.append(StagedWrite.FromString(record))
        found = {(write.txn_id, write.replay, write.query) for write in writes}
        if len(found) != 1:
            raise TransactionConflictError(
                f"the writes of one transaction ended up in several: {sorted(found)}; nothing was "
                "committed"
            )
        txn_key, replay, query = found.pop()
        sink = self._sink or f"{query}/{self._name}"
        key = BatchKey(sink, query, self._batch)
        attempt = Attempt(key, self._nonce, TxnId.parse(txn_key), replay)
        slots: list[list[TaskWrite]] = [list(write.tasks) for write in writes]
        BatchTransactions(self._run.coordinator, self._timeout_ms).commit(
            attempt,
            slots,
            writes[0].run_id,
            acknowledge=True,
            rule=evidence_rule(self._options, self._checkpoint, query),
        )
        self._went_with_transaction = not replay
        self._run.sweeps.nudge()
        # The last step is Spark's: its commit log. What dies from here on is replayed.
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.BEFORE)

    def _commit_nothing(self, query: str) -> None:
        """Record a batch in which nothing was written, and acknowledge what it has read.

        Else a batch that was lost could not be told from one that wrote nothing (INV-11).
        """
        transactions = BatchTransactions(self._run.coordinator, self._timeout_ms)
        key = BatchKey(self._sink or f"{query}/{self._name}", query, self._batch)
        owner = f"{self._facts.driver}|{self._facts.run}"
        attempt = transactions.begin(key, self._nonce, owner, self._rules)
        rule = evidence_rule(self._options, self._checkpoint, query)
        transactions.commit(attempt, [], self._facts.run, acknowledge=True, rule=rule)
        self._run.sweeps.nudge()
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.BEFORE)

    def _abort(self, cause: str) -> None:
        try:
            txn = self._run.store.transactions.of_nonce(self._shard, self._nonce)
            if txn is not None:
                self._run.coordinator.abort(txn, EndedBy.OWNER, nonce=self._nonce, cause=cause)
        except PulsarTxnError as error:
            # The user's own error is what matters; the next attempt or the lease ends this one.
            _LOG.warning("the transaction of batch %s was not aborted now: %s", self._batch, error)


def _heartbeat(
    run: Runtime, shard: int, nonce: str, timeout_ms: int, declared: Collection[str]
) -> None:
    """Extend a scope's lease, between writes too: only this process knows that it is alive.

    Before a task has begun its transaction, there is only what was staged, if anything.
    """
    txn = run.store.transactions.of_nonce(shard, nonce)
    if txn is not None:
        run.coordinator.heartbeat(txn, nonce, timeout_ms)
    elif declared:
        run.store.stages.touch(shard, nonce)


class _ThreadFacts:
    """What Spark Classic keeps with the thread that calls a function, and no other thread has.

    Nothing under Spark Connect, where there are no such threads.
    """

    def __init__(self, df: DataFrame) -> None:
        context: Any = getattr(df.sparkSession, "_sc", None)
        self._properties: dict[str, str] = {}
        for key in (QUERY_ID, BATCH_ID, ROOT_EXECUTION) if context is not None else ():
            value = context.getLocalProperty(key)
            if value is not None:
                self._properties[key] = value
        self.driver = driver_name_of(df.sparkSession)
        self._application = context.applicationId if context is not None else ""

    @property
    def run(self) -> str:
        """The attempt at the micro-batch, as the tasks name it."""
        root = self._properties.get(ROOT_EXECUTION)
        run = f"{self._application}/{root}" if self._application and root else ""
        return name_of_attempt(run, self.driver)

    @property
    def query(self) -> str | None:
        """The query's id."""
        return self._properties.get(QUERY_ID)

    @contextmanager
    def in_this_thread(self, df: DataFrame) -> Iterator[None]:
        """Lend them to the current thread, which may be one of a user's pool."""
        session: Any = df.sparkSession
        context = getattr(session, "_sc", None)
        if context is None or not self._properties or context.getLocalProperty(QUERY_ID):
            yield
            return
        # Without it Spark does not find a format that is written in Python.
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001 — PySpark has no public way
        for key, value in self._properties.items():
            context.setLocalProperty(key, value)
        try:
            yield
        finally:
            for key in self._properties:
                context.setLocalProperty(key, None)


def _serving(options: Mapping[str, str]) -> Options:
    """Check the options of a sink; serve metrics from this process if they ask for it.

    The endpoint is this process's own: its options are not passed on.

    Raises
    ------
    OptionError
    """
    parsed = Options(options, Use.WRITE | Use.BATCH | Use.SCOPE)
    if not parsed.get("transactions"):
        raise OptionError(
            "transactions=false has no meaning in a transaction of several writes: use "
            "df.write.format('pulsar_txn') without it"
        )
    if parsed.get("metrics.port") is not None:
        from pulsar_txn_spark.prometheus import serve_if_asked

        serve_if_asked(parsed, runtime(parsed))
    return parsed.without_endpoint()


@plain_errors
class TransactionalSink:
    """A ``foreachBatch`` sink: each micro-batch is one transaction.

    Works in every output mode, update mode included.

    Parameters
    ----------
    options : mapping of str to str
        Options of the sink, as for ``format("pulsar_txn")``.

    Raises
    ------
    OptionError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
        If an option is wrong, the topic is not there, or Redis or Pulsar cannot be used: when the
        sink is made, so before the query starts. (Topics of rows with ``__topic`` are met later.)

    Examples
    --------
    >>> sink = TransactionalSink({"topic": "topic://public/default/out"})  # doctest: +SKIP
    >>> df.writeStream.foreachBatch(sink).start()  # doctest: +SKIP
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        parsed = _serving(options)
        self._options = parsed
        topic = parsed.get("topic")
        self._name = f"foreachBatch/{topic or '*'}"
        run = runtime(parsed)
        if topic is not None:
            run.topics.reach(run.topics.require(topic))

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        with BatchTransaction(self._options, batch_id, df, self._name) as txn:
            txn.write(df)


Function = Callable[[DataFrame, int, BatchTransaction], None]
BatchFunction = Callable[[DataFrame, int], None]


@overload
def transactional(options: Function) -> BatchFunction: ...
@overload
def transactional(
    options: Mapping[str, str] | None = None,
) -> Callable[[Function], BatchFunction]: ...
def transactional(
    options: Mapping[str, str] | Function | None = None,
) -> Callable[[Function], BatchFunction] | BatchFunction:
    """Turn a function into a ``foreachBatch`` function whose writes are one transaction.

    Parameters
    ----------
    options : mapping of str to str, optional
        Options of the sink. Without them, as ``@transactional`` alone, all is embedded.

    Returns
    -------
    callable
        Decorator of a function ``(df, batch_id, txn)``, which calls ``txn.write(df, topic=...)``
        for each of its outputs.

    Raises
    ------
    OptionError
        If an option is wrong, before the query starts. Servers are asked by the first micro-batch:
        to import the module with the function connects to nothing.
    """
    if callable(options):
        return transactional({})(options)
    parsed = _serving(options or {})

    def decorate(function: Function) -> BatchFunction:
        name = f"function/{function.__qualname__}".replace("<locals>", "locals")

        @plain_call
        @functools.wraps(function)
        def process(df: DataFrame, batch_id: int) -> None:
            with BatchTransaction(parsed, batch_id, df, name) as txn:
                function(df, batch_id, txn)

        return process

    return decorate
