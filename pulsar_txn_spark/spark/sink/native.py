"""``writeStream.format("pulsar_txn")`` under Pulsar's own transactions (``transactions=native``).

Spark makes a writer on the driver for each attempt at a micro-batch, pickles it for the tasks. It
makes another one in the worker that commits. The transaction begins with the pickling: so there is
one for each attempt, and none where there are no tasks. docs/native-transactions.md has the
protocol; neither the metadata store nor a source of this package takes part.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.native_sink import NativeBatch, NativeSink, NativeTaskWriter
from pulsar_txn_spark.errors import OptionError, PulsarTxnError, TransactionConflictError
from pulsar_txn_spark.options import NO_OPTIONS, Options, Use, refuse_endpoint
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.checkpoint import LocalCheckpoint, evidence_rule, wants_fingerprint
from pulsar_txn_spark.spark.context import TaskFacts, freeze_loaded_modules
from pulsar_txn_spark.spark.error_boundary import plain_errors
from pulsar_txn_spark.spark.row_codec import record_batches
from pulsar_txn_spark.spark.rows import check_writable, to_row_batch, topics_of
from pulsar_txn_spark.spark.sink.commit import Messages
from pulsar_txn_spark.spark.sink.fingerprint import InputRows
from pulsar_txn_spark.spark.sink.job import sink_rules
from pulsar_txn_spark.spark.sink.task import Topics
from pulsar_txn_spark.spark.versions import DataSourceStreamArrowWriter
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.metadata_pb2 import EarlierBatch, TaskWrite
from pulsar_txn_spark.txn.native_history import CommittedBatch, Decision, decide
from pulsar_txn_spark.txn.replay_evidence import (
    evidence_of,
    require_same_batch,
    require_same_lineage,
)


@dataclass(frozen=True)
class NativeCommitMessage(WriterCommitMessage):
    """What a task sends to the driver.

    Parameters
    ----------
    batch : NativeBatch
    decision : Decision
    query, batch_id : str and int
        As Spark attempts the task.
    attempt : str
        Names the attempt at the task.
    wrote : bool
        Whether the attempt has taken the task.
    record : bytes
        A serialized ``TaskWrite``.
    """

    batch: NativeBatch
    decision: Decision
    query: str
    batch_id: int
    attempt: str
    wrote: bool
    record: bytes


@dataclass(frozen=True)
class _Begun:
    """What a task gets: the attempt at the micro-batch, or why there is none."""

    outcome: NativeBatch | PulsarTxnError

    def batch(self) -> NativeBatch:
        if isinstance(self.outcome, PulsarTxnError):
            raise self.outcome
        return self.outcome


class _Plan:
    """Begins the transaction once, when it is pickled."""

    def __init__(self, options: Options, sink: str) -> None:
        self._options, self._sink = options, sink
        self._begun: _Begun | None = None

    def __reduce__(self) -> tuple[type[_Begun], tuple[NativeBatch | PulsarTxnError]]:
        if self._begun is None:
            try:
                sink = native_sink(self._options, self._sink)
                self._begun = _Begun(sink.begin(self._options.get("txn.timeoutMs")))
            except PulsarTxnError as error:
                # PySpark would report it as a writer that cannot be pickled; a task reports it.
                self._begun = _Begun(error)
        return _Begun, (self._begun.outcome,)

    def batch(self) -> NativeBatch:
        raise TransactionConflictError("a native transaction begins on the driver, not in a task")


def native_sink(options: Options, sink: str) -> NativeSink:
    """Return the sink of some options.

    Raises
    ------
    OptionError
    """
    assert options.pulsar is not None
    topic: TopicName = options.get("topic")
    namespace = f"{topic.tenant}/{topic.namespace}"
    return NativeSink(options.pulsar, namespace, sink, scalable=topic.scalable)


@plain_errors
class NativeStreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch in one of Pulsar's own transactions."""

    def __init__(self, raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        freeze_loaded_modules("plan or commit")
        options = Options(raw, Use.WRITE | Use.STREAM)
        refuse_endpoint(options, "a sink has no process of its own that outlives a micro-batch")
        if overwrite:
            raise OptionError("a topic cannot be overwritten: use outputMode('append')")
        check_writable(schema, default_topic=True, hint=NO_OPTIONS)
        checkpoint = LocalCheckpoint.at(options.get("checkpointlocation"))
        sink: str | None = options.get("sinkId") or (checkpoint.query if checkpoint else None)
        if sink is None:
            raise OptionError(
                "option 'sinkId' is missing: transactions=native needs it where the checkpoint is "
                "not in a local file system, or is not given as the option checkpointLocation. "
                "The query's id is read from there. Give each query a name of its own, and keep it"
            )
        native_sink(options, sink).check_access(options.get("topic"))
        self._options, self._schema, self._sink = options, schema, sink
        self._checkpoint_query_id = checkpoint.query if checkpoint else ""
        self._plan: _Plan | _Begun = _Plan(options, sink)

    def write(self, iterator: Iterator[Any]) -> NativeCommitMessage:
        """Write one task's rows, which a worker may hand over one by one."""
        freeze_loaded_modules("write")
        batch, facts = self._plan.batch(), TaskFacts.of_task()
        rules = sink_rules(self._options, once=False)
        decision = decide(self._sink, batch.last, facts.query, facts.batch, rules)
        replay = decision is Decision.REPLAY
        rows = InputRows(
            fingerprint=wants_fingerprint(
                self._options,
                query=facts.query,
                readable=self._checkpoint_query_id,
                replay=replay,
            )
        )
        attempt = f"{facts.attempt}-{secrets.token_hex(6)}"
        batches = record_batches(iterator, self._schema)
        wrote = False
        if replay:
            # A stateful query needs its rows consumed, or its state stores would not commit.
            for each in batches:
                rows.skip(each)
        else:
            writer = native_sink(self._options, self._sink).writer(batch, facts.partition, attempt)
            wrote = self._append(writer, batches, rows)
        record = TaskWrite(partition=facts.partition, rows=rows.count, fingerprint=rows.fingerprint)
        return NativeCommitMessage(
            batch,
            decision,
            facts.query,
            facts.batch,
            attempt,
            wrote,
            record.SerializeToString(deterministic=True),
        )

    def _append(self, writer: NativeTaskWriter, batches: Iterator[Any], rows: InputRows) -> bool:
        """Write rows and wait for every receipt; return whether there were any."""
        topics = Topics(self._options)
        try:
            for each in batches:
                if not each.num_rows:
                    continue
                row_batch, names = to_row_batch(each), topics_of(each)
                rows.add(row_batch, names)
                for topic, part in topics.route(row_batch, names):
                    writer.append(topic, part)
            writer.finish()
        except Exception as error:
            writer.leave_error(error)
            raise
        finally:
            writer.close()
        return writer.wrote

    def commit(self, messages: Messages, batchId: int) -> None:
        """Commit the micro-batch, or find a replay to be the batch that is committed."""
        sent = [message for message in messages if isinstance(message, NativeCommitMessage)]
        attempts = {(each.batch, each.decision, each.query, each.batch_id) for each in sent}
        if len(sent) != len(messages) or len(attempts) != 1:
            raise TransactionConflictError(
                f"expected {len(messages)} results of one attempt, found {len(sent)} of "
                f"{len(attempts)}: the batch is not whole, nothing was committed"
            )
        ((batch, decision, query, _),) = attempts
        sink = native_sink(self._options, self._sink)
        checkpoint = LocalCheckpoint.at(self._options.get("checkpointlocation"))
        rule = evidence_rule(self._options, checkpoint, query, store=None)
        tasks = [TaskWrite.FromString(each.record) for each in sent]
        try:
            evidence = evidence_of(rule, batchId, [], tasks)
            if decision is Decision.REPLAY:
                assert batch.last is not None
                where = f"sink {self._sink!r} has committed {batch.last}"
                require_same_batch(where, rule, (b"", batch.last.decoded), (b"", evidence))
            else:
                if batch.last is not None and batch.last.query == query:
                    planned = batch.last.decoded.planned
                    before = EarlierBatch(
                        batch_id=batch.last.batch, planned=[planned] if planned else []
                    )
                    require_same_lineage(self._sink, rule, before)
                writers = {
                    task.partition: each.attempt
                    for task, each in zip(tasks, sent, strict=True)
                    if each.wrote
                }
                sink.close_batch(batch, writers)
        except PulsarTxnError:
            sink.abort(batch)
            raise
        if decision is Decision.REPLAY:
            sink.abort(batch)  # it is empty
        else:
            record = evidence.SerializeToString(deterministic=True)
            sink.commit(batch, CommittedBatch(query, batchId, record))
        # The last step is Spark's: its commit log. A crash from here on leads to a replay.
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.BEFORE)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Abort the attempt's transaction, if any message names it.

        Otherwise the next attempt aborts it, or its timeout does.
        """
        batches = {each.batch for each in messages if isinstance(each, NativeCommitMessage)}
        for batch in batches:
            native_sink(self._options, self._sink).abort(batch)
