"""What a task knows of the micro-batch that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
JOB_GROUP = "spark.jobGroup.id"


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
        The job group: Spark's run id, unless the user's ``setJobGroup`` replaced it.
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
        return cls(
            query=context.getLocalProperty(QUERY_ID) or "",
            batch=int(batch) if batch else -1,
            run=context.getLocalProperty(JOB_GROUP) or "",
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
        )
