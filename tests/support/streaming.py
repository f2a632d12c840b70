"""A streaming query as Spark runs it, without Spark: offset log, micro-batches, commit log.

The source is the real one, its driver's side and its tasks; the sink is the real transaction of a
micro-batch, which writes nothing, so that what it would have written can be looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

from pyspark.sql.types import BinaryType, StructField, StructType

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.source import task as task_module
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.source.task import read_partition
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite
from pulsar_txn_spark.txn.batch import BatchKey, BatchTransactions, SinkRules, new_nonce

Row = tuple[str, int]

SCHEMA = StructType([StructField("__key", BinaryType()), StructField("value", BinaryType())])
_attempts = itertools.count()


class Killed(Exception):  # noqa: N818 — not an error of anybody's
    """The driver died."""


class StreamingQuery:
    """One query with its checkpoint.

    Parameters
    ----------
    run : Runtime
    path : str
        Of the store.
    name : str
        The query's id.
    options : str
        Of the source; with an underscore at the end where Python needs it.
    """

    def __init__(self, run: Components, path: str, name: str, /, **options: str) -> None:
        self.run, self.id = run, name
        self.options = {"store.path": path, **options}
        self.offsets: list[dict[str, Any]] = []  # Spark's offset log: the end of each batch
        self.committed = 0  # batches in Spark's commit log
        self.output: list[list[Row]] = []  # what the sink's transactions have written
        self.batches = BatchTransactions(run.coordinator, 60_000)
        self.rules = SinkRules()
        self.found: list[Row] | None = None  # of the batch whose transaction is being committed
        self.reader: PulsarTxnStreamReader
        self.restart()

    @property
    def rows(self) -> list[Row]:
        """Everything that the sink has."""
        return [row for batch in self.output for row in batch]

    @property
    def values(self) -> list[int]:
        """The values of it."""
        return [value for _, value in self.rows]

    def restart(self) -> None:
        """Start a new process on the checkpoint."""
        self.reader = PulsarTxnStreamReader(self.options, SCHEMA)

    def trigger(
        self,
        dies: str = "",
        *,
        needs_rows: bool = True,
        tasks: int | None = None,
        writes: bool = True,
    ) -> bool:
        """Run a micro-batch, or die in it; tell whether there was one.

        Where Spark needs no row, as of a join with an empty table, it runs no task that reads. Or
        it runs the first `tasks` only. A function that writes sometimes may not write this time.
        """
        batch = self.committed
        # A waiting source looks when something happens, or once a second: here it always looks.
        with (
            mock.patch.object(IdleWatch, "unchanged_since", return_value=False),
            mock.patch.object(IdleWatch, "watch"),
        ):
            if len(self.offsets) == batch and not self._plan(batch, dies):
                return False
            self._die(dies, "planned")
            start = self.offsets[batch - 1] if batch else self.reader.initialOffset()
            planned = self.reader.partitions(start, self.offsets[batch])
        partitions = [p for p in planned if isinstance(p, SourcePartition) and needs_rows][:tasks]
        execution_id = f"app-{next(_attempts)}"
        self.found = None
        found = [row for at, p in enumerate(partitions) for row in self._task(p, execution_id, at)]
        self._die(dies, "read")
        if writes:
            self._sink(batch, found, execution_id)
        self._die(dies, "decided")
        self.committed += 1
        return True

    def run_all(self) -> None:
        """Run until there is nothing left to read."""
        while self.trigger():
            pass

    def _plan(self, batch: int, dies: str) -> bool:
        start = self.offsets[-1] if batch else self.reader.initialOffset()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        # The first batch comes whether there is anything or not.
        if batch and end == start:
            return False
        self.offsets.append(end)
        self._die(dies, "logged")
        if batch:
            self.reader.commit(start)
        return True

    def _task(self, partition: SourcePartition, execution_id: str, number: int) -> list[Row]:
        facts = TaskFacts(self.id, self.committed, execution_id, number, next(_attempts))
        with (
            mock.patch.object(TaskFacts, "of_task", return_value=facts),
            mock.patch.object(task_module, "freeze_loaded_modules"),
        ):
            batches = list(read_partition(self.reader._options, partition, SCHEMA))
        return [
            (row["__key"].decode(), int(row["value"])) for one in batches for row in one.to_pylist()
        ]

    def _sink(self, batch: int, found: list[Row], execution_id: str) -> None:
        key = BatchKey(f"sink-{self.id}", self.id, batch)
        attempt = self.batches.begin(key, new_nonce(), rules=self.rules)
        self.found = None if attempt.replay else found
        task = TaskWrite(partition=0, txn_id=attempt.txn.key)
        self.batches.commit(attempt, [[task]], execution_id, acknowledge=True)
        if attempt.replay:
            left = [row for row in self.output[batch] if row in found]
            is_whole = found in (self.output[batch], [])
            may_skip = self.options.get("failOnDataLoss") == "false"
            assert is_whole or (may_skip and found == left), "a replay reads what is left"
        else:
            self.output += [[] for _ in range(len(self.output), batch)]  # not written
            assert len(self.output) == batch
            self.output.append(found)

    def _die(self, dies: str, here: str) -> None:
        if dies == here:
            self.restart()
            raise Killed


Query = Callable[..., StreamingQuery]
