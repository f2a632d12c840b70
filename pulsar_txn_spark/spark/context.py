"""What a task knows of the micro-batch that it belongs to."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass

from pyspark import TaskContext

from pulsar_txn_spark.runtime import Runtime

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
_APPLICATION = "spark.app.id"
ROOT_EXECUTION = "spark.sql.execution.root.id"

_begun: Counter[str] = Counter()


def spare_collections(kind: str) -> None:
    """Keep what the first task of a kind has loaded out of later garbage collections.

    After each task Spark's worker runs a full collection before it takes the next one. With our
    modules loaded that is 30 ms of looking at objects that live as long as the process; frozen,
    they are not looked at. Called when a task begins, in Spark's worker processes only.
    """
    _begun[kind] += 1
    if _begun[kind] == 2:  # noqa: PLR2004 - once the first one has imported all that it needs
        gc.freeze()


def deliver_if_overdue(run: Runtime) -> None:
    """Deliver what this worker has counted, if nothing else has taken it along for a while."""
    if run.store.tally.overdue:
        run.store.deliver_tally()


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Facts about the running task.

    Parameters
    ----------
    query : str
        Spark's query id; empty outside of a stream, and in threads that a user started.
    batch : int
        Spark's batch id, -1 where there is none.
    run : str
        Names one attempt at a micro-batch, for every read and write in it: Spark's application and
        the SQL execution that all others are part of. Not the job group, which is Spark's run id
        only until the user's ``setJobGroup`` replaces it. Empty where Spark does not tell.
    partition : int
        Index of the task's partition.
    attempt : int
        Task attempt id, unique in one Spark application.
    """

    query: str
    batch: int
    run: str
    partition: int
    attempt: int

    @classmethod
    def of_task(cls) -> TaskFacts:
        """Read the facts of the task that this code runs in.

        Raises
        ------
        RuntimeError
            If it runs in no Spark task.
        """
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("no Spark task runs in this process")
        batch = context.getLocalProperty(BATCH_ID)
        application = context.getLocalProperty(_APPLICATION)
        root = context.getLocalProperty(ROOT_EXECUTION)
        return cls(
            query=context.getLocalProperty(QUERY_ID) or "",
            batch=int(batch) if batch else -1,
            run=f"{application}/{root}" if application and root else "",
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
        )
