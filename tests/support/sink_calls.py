"""Calls the sink's writers and tasks as Spark does, without Spark."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_txn_spark.engine import components as runtime_module
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.sink.job import TaskCommitMessage
from pulsar_txn_spark.spark.sink.writers import PulsarTxnStreamWriter, PulsarTxnWriter

TOPIC = TopicName.parse("out")
SCHEMA = StructType([StructField("value", StringType()), StructField("__key", StringType())])
QUERY = "query"
attempt_ids = itertools.count(1)


class Spark:
    """Calls data source writers as Spark does."""

    def __init__(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options = {"store.path": path, "topic": str(TOPIC)}
        self.run: Components = runtime_module.open_components(
            Options({"store.path": path}, Use.CONNECT)
        )
        self.run.topics.create(TOPIC, 2)
        self.batch, self.execution, self.partition = 0, 0, 0
        monkeypatch.setattr(TaskFacts, "of_task", self._facts)

    def _facts(self) -> TaskFacts:
        run = f"app/{self.execution}"
        return TaskFacts(QUERY, self.batch, run, self.partition, next(attempt_ids))

    def stream_writer(self, **options: str) -> PulsarTxnStreamWriter:
        return PulsarTxnStreamWriter({**self.options, **options}, SCHEMA, overwrite=False)

    def task(
        self, writer: PulsarTxnStreamWriter | PulsarTxnWriter, partition: int, *values: str
    ) -> TaskCommitMessage:
        self.partition = partition
        keys = [f"key-{value}" for value in values]
        return writer.write(iter([pa.record_batch([list(values), keys], ["value", "__key"])]))

    def micro_batch(self, *values: str) -> None:
        """Run one micro-batch of the streaming sink in two tasks."""
        writer = self.stream_writer()
        results = [self.task(writer, n, *values[n::2]) for n in range(2)]
        self.stream_writer().commit(results, self.batch)  # in a worker of its own

    def segments(self) -> list[SegmentRef]:
        return [segment.ref for segment in self.run.topics.require(TOPIC).segments]

    def visible(self) -> Counter[str]:
        found: Counter[str] = Counter()
        refs = {ref.id: ref for ref in self.segments()}
        readable = self.run.buffer.readable(
            list(refs), lambda id_: self.run.log.last_confirmed(refs[id_]), [EARLIEST] * len(refs)
        )
        for ref, what in zip(refs.values(), readable, strict=True):
            for rows in self.run.log.read(
                ref,
                EARLIEST,
                what.end,
                visible=what.visibility,
                columns=frozenset({"value"}),
                max_rows=100,
            ):
                found.update(value.decode() for value in rows.column(0).to_pylist())
        return found
