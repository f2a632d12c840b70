"""The writers: one micro-batch, or one batch write, is one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import NO_OPTIONS, SCOPE_OPTION, Options, Use, refuse_endpoint
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.spark.checkpoint import LocalCheckpoint
from pulsar_txn_spark.spark.context import (
    driver_name,
    flush_counters_if_overdue,
    freeze_loaded_modules,
)
from pulsar_txn_spark.spark.error_boundary import plain_errors
from pulsar_txn_spark.spark.row_codec import record_batches
from pulsar_txn_spark.spark.rows import check_writable
from pulsar_txn_spark.spark.sink.commit import (
    Messages,
    abort,
    abort_by_nonce,
    abort_by_pointer,
    all_messages,
    commit,
    one_attempt,
)
from pulsar_txn_spark.spark.sink.job import TaskCommitMessage, WriteJob, sink_rules, store_uuid
from pulsar_txn_spark.spark.sink.staging import SlotAttempt, stage
from pulsar_txn_spark.spark.sink.task import run_write_task
from pulsar_txn_spark.spark.versions import DataSourceStreamArrowWriter
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.txn.batch import new_nonce

if TYPE_CHECKING:
    import pyarrow as pa

_OF_SPARK = frozenset({"checkpointlocation", "path"})
"""Options that a user gives to Spark, and Spark to every sink."""


def sink_options(
    raw: Mapping[str, str], schema: StructType, *, overwrite: bool, use: Use
) -> tuple[Options, Topology | None]:
    """Parse the options of a sink, and check all of a write that is known before the first row.

    Returns
    -------
    (Options, Topology or None)
        The topology is that of the default topic, if there is one and tasks may begin with it.

    Raises
    ------
    OptionError, SchemaError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
    """
    options = Options(raw, use)
    refuse_endpoint(options, "a sink has no process of its own that outlives a micro-batch")
    if overwrite:
        raise OptionError(
            "a segmented topic cannot be overwritten: use mode('append') and outputMode('append')"
        )
    topic = options.get("topic")
    check_writable(
        schema,
        default_topic=topic is not None,
        may_be_insert=bool(use & Use.BATCH) and not options.get(SCOPE_OPTION),
        hint="" if options.raw.keys() - _OF_SPARK else NO_OPTIONS,
    )
    components = open_components(options)
    if topic is None:
        return options, None
    topology = components.topics.require(topic)
    components.topics.check_access(topology)
    # One that is being adopted has a beginning yet to come.
    return options, topology if topology.active else None


@plain_errors
class PulsarTxnStreamWriter(DataSourceStreamArrowWriter):
    """``writeStream.format("pulsar_txn")``.

    Spark makes one for each batch attempt on the driver, so its nonce stands for the attempt. It
    makes another one in the worker that commits, where only the messages tell the attempt.
    """

    def __init__(self, raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        freeze_loaded_modules("plan or commit")
        options, topology = sink_options(
            raw, schema, overwrite=overwrite, use=Use.WRITE | Use.STREAM
        )
        self._schema = schema
        self._job = WriteJob(
            options=options,
            store_uuid=store_uuid(options),
            nonce=new_nonce(),
            sink_id=options.get("sinkId"),
            driver=driver_name(),
            rules=sink_rules(options, once=False),
            checkpoint_query_id=_checkpoint_query_id(options),
            topology=topology,
        )

    def write(self, iterator: Iterator[Any]) -> TaskCommitMessage:
        """Write one task's rows, which a worker may hand over one by one."""
        return run_write_task(self._job, record_batches(iterator, self._schema))

    def commit(self, messages: Messages, batchId: int) -> None:
        """Commit the micro-batch together with what it has read."""
        commit(self._job, messages, acknowledge=True)
        # The last step is Spark's: its commit log. A crash from here on leads to a replay.
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.BEFORE)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Abort the attempt's transaction, which a message or the sink's pointer names.

        The pointer is not found where the checkpoint cannot be read here. Then, without a message,
        the next attempt aborts it, or the end of its lease does.
        """
        abort(self._job, messages)
        abort_by_pointer(self._job, batchId)


@plain_errors
class PulsarTxnWriter(DataSourceArrowWriter):
    """``write.format("pulsar_txn")``: one transaction, or one slot of a BatchTransaction."""

    def __init__(self, raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        options, topology = sink_options(
            raw, schema, overwrite=overwrite, use=Use.WRITE | Use.BATCH
        )
        scope = options.get(SCOPE_OPTION)
        self._slot = SlotAttempt.from_option(scope) if scope else None
        rules = sink_rules(options, once=True)
        topic = options.get("topic")
        if self._slot is None:
            self._job = WriteJob(
                options=options,
                store_uuid=store_uuid(options),
                nonce=new_nonce(),
                sink_id=options.get("sinkId"),
                driver=driver_name(),
                rules=rules,
                sink_suffix=f"write/{topic or '*'}",
                checkpoint_query_id=_checkpoint_query_id(options),
                topology=topology,
            )
        else:
            self._job = replace(self._slot.job(options, rules), topology=topology)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Write one task's rows."""
        return run_write_task(self._job, iterator)

    def commit(self, messages: Messages) -> None:
        """Commit the write, or stage it for the BatchTransaction that it belongs to."""
        if self._slot is None:
            commit(self._job, messages, acknowledge=False)
            return
        sent = all_messages(messages)
        components = open_components(self._job.options)
        flush_counters_if_overdue(components)
        stage(components, self._slot, one_attempt(sent), sent)

    def abort(self, messages: Messages) -> None:
        """Abort the write's transaction; a BatchTransaction aborts its own."""
        if self._slot is None:
            abort(self._job, messages)
            # Unlike a stream's writer this is the object that the tasks had, so that its nonce
            # names the transaction also where no task ended. Spark does not retry a batch write:
            # without this, readers would be blocked until the end of the lease.
            abort_by_nonce(self._job)


def _checkpoint_query_id(options: Options) -> str:
    checkpoint = LocalCheckpoint.at(options.get("checkpointlocation"))
    return checkpoint.query if checkpoint else ""
