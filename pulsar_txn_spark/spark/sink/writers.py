"""The sink: one micro-batch, or one batch write, is one transaction."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    TransactionConflictError,
)
from pulsar_txn_spark.options import SCOPE_OPTION, Options, Use, refuse_endpoint
from pulsar_txn_spark.spark.checkpoint import LocalCheckpoint, evidence_rule
from pulsar_txn_spark.spark.context import (
    deliver_if_overdue,
    driver_name,
    spare_collections,
)
from pulsar_txn_spark.spark.error_boundary import plain_errors
from pulsar_txn_spark.spark.rows import check_writable
from pulsar_txn_spark.spark.sink.task import (
    WriteResult,
    WriteTarget,
    run_write_task,
)
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.metadata_pb2 import StagedWrite, TaskWrite
from pulsar_txn_spark.store.records import Code
from pulsar_txn_spark.txn.batch import Attempt, BatchTransactions, SinkRules, new_nonce

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SlotRun:
    """One run of one write slot of a scope (see ``scope.py``), as an internal option carries it."""

    nonce: str
    slot: str
    run: int
    sink: str | None
    sink_kind: str
    query: str | None
    batch: int
    driver: str
    readable: str

    def to_option(self) -> str:
        """Return the option's text."""
        return json.dumps([getattr(self, name) for name in self.__dataclass_fields__])

    @classmethod
    def from_option(cls, text: str) -> SlotRun:
        """Read the option's text."""
        return cls(*json.loads(text))


def checked_options(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, use: Use
) -> Options:
    """Check everything about a write that can be known before the first row.

    Raises
    ------
    OptionError, SchemaError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
    """
    options = Options(given, use)
    refuse_endpoint(options, "a sink has no process of its own that outlives a micro-batch")
    if overwrite:
        raise OptionError(
            "a segmented topic cannot be overwritten: use mode('append') and outputMode('append')"
        )
    check_writable(schema, default_topic=options.get("topic") is not None)
    run = runtime(options)
    topic = options.get("topic")
    if topic is not None:
        run.topics.reach(run.topics.require(topic))
    return options


def rules_of(options: Options, *, once: bool) -> SinkRules:
    """Return how a query writes to a sink."""
    return SinkRules(
        once=once,
        every_batch=options.get("everyBatch"),
        first_batch=options.get("sinkFirstBatch"),
    )


@plain_errors
class PulsarTxnStreamWriter(DataSourceStreamArrowWriter):
    """``writeStream.format("pulsar_txn")``.

    Made anew for each batch attempt on the driver, so its nonce stands for the attempt; and made
    again in the worker that commits, where only the tasks' messages say which attempt that is.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        spare_collections("plan or commit")
        use = Use.WRITE | Use.STREAM
        options = checked_options(given, schema, overwrite=overwrite, use=use)
        checkpoint = LocalCheckpoint.at(options.get("checkpointlocation"))
        self._target = WriteTarget(
            options=options,
            nonce=new_nonce(),
            sink=options.get("sinkId"),
            driver=driver_name(),
            rules=rules_of(options, once=False),
            readable=checkpoint.query if checkpoint else "",
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        """Write one task's rows."""
        return run_write_task(self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the micro-batch together with what it has read."""
        run = _commit(self._target, messages, acknowledge=True)
        run.sweeps.nudge()
        # The last step is Spark's: its commit log. What dies from here on is replayed.
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.BEFORE)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the attempt's transaction, if any message tells which that is.

        Where none does, the next attempt aborts it, or its lease does.
        """
        _abort(self._target, messages)


@plain_errors
class PulsarTxnWriter(DataSourceArrowWriter):
    """``write.format("pulsar_txn")``: one transaction, or one slot of a scope's transaction."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        use = Use.WRITE | Use.BATCH
        options = checked_options(given, schema, overwrite=overwrite, use=use)
        topic = options.get("topic")
        scope = options.get(SCOPE_OPTION)
        checkpoint = LocalCheckpoint.at(options.get("checkpointlocation"))
        self._slot = SlotRun.from_option(scope) if scope else None
        readable = checkpoint.query if checkpoint else ""
        self._target = WriteTarget(
            options=options,
            nonce=self._slot.nonce if self._slot else new_nonce(),
            sink=self._slot.sink if self._slot else options.get("sinkId"),
            query=self._slot.query if self._slot else None,
            batch=self._slot.batch if self._slot else None,
            driver=self._slot.driver if self._slot else driver_name(),
            rules=rules_of(options, once=True),
            sink_kind=self._slot.sink_kind if self._slot else f"write/{topic or '*'}",
            readable=self._slot.readable if self._slot else readable,
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        """Write one task's rows."""
        return run_write_task(self._target, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the write, or stage it for the scope that it belongs to."""
        if self._slot is None:
            _commit(self._target, messages, acknowledge=False).sweeps.nudge()
        else:
            self._stage(self._slot, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the write's transaction; a scope's is the scope's to abort."""
        if self._slot is None:
            _abort(self._target, messages)
            # Unlike a stream's writer this object is the one that the tasks had: its nonce tells
            # the transaction also where no task came to an end. Nobody tries a batch again, so
            # readers would be held up until the lease is over.
            _abort_nonce(self._target)

    def _stage(self, slot: SlotRun, messages: Sequence[WriterCommitMessage | None]) -> None:
        run, results = _results(self._target, messages)
        deliver_if_overdue(run)
        attempt = _one_attempt(results)
        staged = StagedWrite(
            tasks=[TaskWrite.FromString(result.record) for result in results],
            txn_id=attempt.txn.key,
            replay=attempt.replay,
            query=attempt.key.query,
            run_id=results[0].run,
        )
        answer = run.store.stages.stage(
            run.coordinator.shard(slot.nonce),
            slot.nonce,
            slot.slot,
            slot.run,
            staged.SerializeToString(deterministic=True),
        )
        if answer.code is not Code.OK:
            raise TransactionConflictError(
                f"write {slot.slot!r} of the transaction was run again (run {answer.values[0]}), "
                f"this was run {slot.run}: its rows are dropped"
            )


def _results(
    target: WriteTarget, messages: Sequence[WriterCommitMessage | None]
) -> tuple[Runtime, list[WriteResult]]:
    results = [message for message in messages if isinstance(message, WriteResult)]
    if len(results) != len(messages) or not results:
        raise TransactionConflictError(
            f"expected a result of each of {len(messages)} tasks, found {len(results)}: the batch "
            "is not whole, nothing was committed"
        )
    return runtime(target.options), results


def _one_attempt(results: Sequence[WriteResult]) -> Attempt:
    attempts = {result.attempt for result in results}
    if len(attempts) != 1:
        raise TransactionConflictError(
            f"the tasks of one batch wrote for {len(attempts)} attempts: "
            f"{sorted(map(str, attempts))}; nothing was committed"
        )
    attempt = attempts.pop()
    if attempt is None:
        raise TransactionConflictError("a write with transactions=false cannot be part of a scope")
    return attempt


def _commit(
    target: WriteTarget, messages: Sequence[WriterCommitMessage | None], *, acknowledge: bool
) -> Runtime:
    run, results = _results(target, messages)
    if all(result.attempt is None for result in results):
        return run  # transactions=false: the rows are visible already
    attempt = _one_attempt(results)
    options = target.options
    transactions = BatchTransactions(run.coordinator, options.get("txn.timeoutMs"))
    tasks = [TaskWrite.FromString(result.record) for result in results]
    checkpoint = LocalCheckpoint.at(options.get("checkpointlocation"))
    rule = evidence_rule(options, checkpoint, attempt.key.query)
    transactions.commit(attempt, [tasks], results[0].run, acknowledge=acknowledge, rule=rule)
    return run


def _abort_nonce(target: WriteTarget) -> None:
    options = target.options
    if not options.get("transactions"):
        return
    try:
        transactions = BatchTransactions(runtime(options).coordinator, options.get("txn.timeoutMs"))
        transactions.abort_nonce(target.nonce, cause="its Spark job failed")
    except PulsarTxnError as error:
        _LOG.warning("the transaction of a failed write was not aborted now: %s", error)


def _abort(target: WriteTarget, messages: Sequence[WriterCommitMessage | None]) -> None:
    results = [message for message in messages if isinstance(message, WriteResult)]
    attempts = {result.attempt for result in results if result.attempt is not None}
    if not attempts:
        return
    run = runtime(target.options)
    transactions = BatchTransactions(run.coordinator, target.options.get("txn.timeoutMs"))
    for attempt in attempts:
        try:
            transactions.abort(attempt, cause="its Spark job failed")
        except PulsarTxnError as error:
            # Spark reports the error that made it abort; that this failed too must not hide it.
            _LOG.warning("transaction %s was not aborted now: %s", attempt.txn, error)
