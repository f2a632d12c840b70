"""What the driver sends to the tasks of a write, and what each task sends back."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, BatchTransactions, SinkRules


@dataclass(frozen=True)
class TaskCommitMessage(WriterCommitMessage):
    """What a task sends to the driver. Only that of the attempt that Spark took counts.

    Parameters
    ----------
    attempt : Attempt or None
        None without transactions.
    record : bytes
        A serialized ``TaskWrite``.
    execution_id : str
        Of the SQL execution that the task ran in; empty if unknown.
    """

    attempt: Attempt | None
    record: bytes
    execution_id: str


@dataclass(frozen=True)
class WriteJob:
    """What all tasks of one write have in common; pickled to them.

    Parameters
    ----------
    options : Options
    store_uuid : str
        Of the metadata store that the driver reaches.
    nonce : str
        New for each attempt at the write.
    sink_id : str or None
        None for the default.
    query_id : str or None
        Where the driver knows it; None for the task's.
    batch_id : int or None
        Where the driver knows it; None for the task's.
    driver : str
        Names the driver's process, as part of the header's owner and of the execution id.
    rules : SinkRules
        How the query writes to the sink.
    sink_suffix : str
        Distinguishes the default sink ids of several writes in one batch.
    checkpoint_query_id : str
        The query whose checkpoint the driver can read, which identifies its replays.
    attempt : str
        Names the attempt at the micro-batch; empty where the tasks know it by their SQL execution.
    topology : Topology or None
        The default topic as the driver has found it; None for each task to look it up.
    """

    options: Options
    store_uuid: str
    nonce: str
    sink_id: str | None
    query_id: str | None = None
    batch_id: int | None = None
    driver: str = ""
    rules: SinkRules = field(default_factory=SinkRules)
    sink_suffix: str = ""
    checkpoint_query_id: str = ""
    attempt: str = ""
    topology: Topology | None = None

    def key(self, facts: TaskFacts) -> BatchKey:
        """Return the key of the batch that a task belongs to.

        Raises
        ------
        OptionError
            If the write belongs to a transaction of a micro-batch that is not known here.
        """
        query_id = facts.query or self.query_id or ""
        batch_id = self.batch_id if self.batch_id is not None else facts.batch
        return self.key_of(query_id, batch_id)

    def key_of(self, query_id: str, batch_id: int) -> BatchKey:
        """Return the key of a query's batch, -1 where there is none; raises as :meth:`key`."""
        if query_id and batch_id < 0:
            raise OptionError(
                "the write runs in a thread in which Spark has lost the id of the micro-batch (a "
                "thread pool in foreachBatch). Write in foreachBatch's own thread, or with "
                "pulsar_txn_spark.transactional, which knows the batch"
            )
        if self.batch_id is not None and not query_id:
            raise OptionError(
                "the query's id cannot be told in this thread: write in foreachBatch's own thread"
            )
        if not query_id:
            return BatchKey("", "", 0)
        default = f"{query_id}/{self.sink_suffix}" if self.sink_suffix else query_id
        return BatchKey(self.sink_id or default, query_id, batch_id)

    def transactions(self) -> BatchTransactions:
        """Return what begins, commits and aborts the transactions of this write.

        Raises
        ------
        StoreUnavailableError, StoreUnsafeError, SegmentLogUnavailableError
        """
        components = open_components(self.options)
        return BatchTransactions(components.coordinator, self.options.get("txn.timeoutMs"))


def store_uuid(options: Options) -> str:
    """Return which metadata store this process reaches.

    Raises
    ------
    StoreUnavailableError, StoreUnsafeError, SegmentLogUnavailableError
    """
    return open_components(options).store.identity.uuid


def sink_rules(options: Options, *, once: bool) -> SinkRules:
    """Return how a query writes to a sink; `once`: whether Spark runs the write once in a batch."""
    return SinkRules(
        once=once,
        every_batch=options.get("everyBatch"),
        first_batch=options.get("sinkFirstBatch"),
    )
