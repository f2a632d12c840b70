"""The writer of a stream under Pulsar's own transactions, called as Spark calls it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_txn_spark.backends.pulsar.control_topic import ControlTopic
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.errors import (
    FencedError,
    OptionError,
    SchemaError,
    SegmentLogUnavailableError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionDomainError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.spark.sink.native import NativeCommitMessage, NativeStreamWriter
from pulsar_txn_spark.spark.sink.writers import PulsarTxnWriter
from pulsar_txn_spark.txn.native_history import Kind, Record
from tests.support.native_world import TOPIC, World

COLUMNS = ("value", "__key", "__topic")
SCHEMA = StructType([StructField(name, StringType()) for name in COLUMNS])
QUERY = "8b1f0c1e-0000-0000-0000-000000000000"


class Spark:
    """Plans, runs and commits micro-batches, each in processes of their own."""

    def __init__(self, world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoint = folder
        (folder / "offsets").mkdir()
        (folder / "metadata").write_text(json.dumps({"id": QUERY}))
        self.options = {
            "service.url": world.broker.url,
            "admin.url": "http://x",
            "topic": str(TOPIC),
            "transactions": "Native",
            "checkpointLocation": str(folder),
        }
        self._attempts = itertools.count(1)
        self.batch, self.partition = 0, 0
        monkeypatch.setattr(TaskFacts, "of_task", self._facts)

    def _facts(self) -> TaskFacts:
        return TaskFacts(QUERY, self.batch, "app/1", self.partition, next(self._attempts))

    def writer(self, **options: str) -> NativeStreamWriter:
        writer = PulsarTxnDataSource(self.options | options).streamWriter(SCHEMA, overwrite=False)
        assert isinstance(writer, NativeStreamWriter)
        return writer

    def plan(self, batch: int, offsets: str = "") -> bytes:
        """Do what Spark's planning does; return what is sent to the tasks."""
        self.batch = batch
        (self.checkpoint / "offsets" / str(batch)).write_text(offsets or f"v1\n{{}}\n{batch}")
        writer = self.writer()
        dumps: Any = cloudpickle.dumps
        sent: bytes = dumps(writer)
        assert sent == dumps(writer), "it is pickled twice, and begins once"
        return sent

    def task(self, sent: bytes, partition: int, *values: str, topic: str | None = None) -> Any:
        self.partition = partition
        rows = [list(values), [f"key-{value}" for value in values], [topic] * len(values)]
        batch = pa.record_batch([pa.array(column, pa.string()) for column in rows], COLUMNS)
        return cloudpickle.loads(sent).write(iter([batch]))

    def run(self, batch: int, *values: str, offsets: str = "") -> None:
        sent = self.plan(batch, offsets)
        results = [self.task(sent, n, *values[n::2]) for n in range(2)]
        self.writer().commit(results, batch)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(monkeypatch)
    yield found
    found.close()


@pytest.fixture
def spark(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(world, tmp_path, monkeypatch)


def seen(world: World) -> Counter[str]:
    return Counter(value.decode() for value in world.committed().elements())


def test_micro_batches_are_committed_and_a_replay_writes_nothing(
    world: World, spark: Spark
) -> None:
    spark.run(0, "a", "b", "c")
    assert seen(world) == Counter("abc")
    spark.run(0, "a", "b", "c")
    spark.run(1, "d")
    assert seen(world) == Counter("abcd")
    assert world.coordinator.open == {}
    assert world.coordinator.begun == 3


def test_a_writer_that_only_commits_begins_nothing(world: World, spark: Spark) -> None:
    spark.writer()
    assert world.coordinator.begun == 0


def test_a_replay_of_other_input_is_refused(world: World, spark: Spark) -> None:
    spark.run(0, "a")
    with pytest.raises(TransactionConflictError, match="with other input than it has now"):
        spark.run(0, "b", offsets="v1\n{}\nother")
    assert seen(world) == Counter("a")
    assert world.coordinator.open == {}


def test_a_copy_of_the_checkpoint_that_went_another_way_is_fenced(
    world: World, spark: Spark
) -> None:
    spark.run(0, "a")
    (spark.checkpoint / "offsets" / "0").write_text("v1\n{}\nother")
    with pytest.raises(FencedError, match="on a copy of this checkpoint"):
        spark.run(1, "b")
    assert seen(world) == Counter("a")


def test_a_batch_whose_task_was_tried_again_is_aborted_and_written_anew(
    world: World, spark: Spark
) -> None:
    sent = spark.plan(0)
    first = spark.task(sent, 0, "a")
    with pytest.raises(TransactionConflictError, match="may have written"):
        spark.task(sent, 0, "a")
    empty = spark.task(sent, 0)
    with pytest.raises(TransactionConflictError, match="did not succeed"):
        spark.writer().commit([empty], 0)
    assert first.wrote
    assert world.coordinator.open == {}
    spark.run(0, "a")
    assert seen(world) == Counter("a")


def test_a_retry_that_may_not_write_says_what_the_attempt_before_it_failed_with(
    world: World, spark: Spark
) -> None:
    sent = spark.plan(0)
    world.broker.refuses[BaseCommand.ADD_PARTITION_TO_TXN] = [(24, "too late")]
    with pytest.raises(TransactionAbortedError, match="too late"):
        spark.task(sent, 0, "a")
    with pytest.raises(TransactionConflictError, match=r"TransactionAbortedError.*too late"):
        spark.task(sent, 0, "a")


def test_an_attempt_that_cannot_find_out_whether_it_may_write_says_so_too(
    world: World, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = spark.plan(0)

    def fails(*_: object) -> None:
        raise SegmentLogUnavailableError("the reply is lost")

    with monkeypatch.context() as broken:
        broken.setattr(ControlTopic, "read", fails)
        with pytest.raises(SegmentLogUnavailableError):
            spark.task(sent, 0, "a")
    with pytest.raises(TransactionConflictError, match=r"failed with .*the reply is lost"):
        spark.task(sent, 0, "a")


def test_an_attempt_fails_with_its_own_error_also_where_it_cannot_leave_it(
    world: World, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = spark.plan(0)
    append = ControlTopic.append

    def fails(control: ControlTopic, record: bytes, *txn: Any) -> Position:
        if Record.decode(record).kind is Kind.FAILED:
            raise SegmentLogUnavailableError("it is away")
        return append(control, record, *txn)

    monkeypatch.setattr(ControlTopic, "append", fails)
    world.broker.refuses[BaseCommand.ADD_PARTITION_TO_TXN] = [(24, "too late")]
    with pytest.raises(TransactionAbortedError, match="too late"):
        spark.task(sent, 0, "a")


def test_results_of_two_attempts_or_of_some_tasks_are_not_committed(
    world: World, spark: Spark
) -> None:
    one = spark.task(spark.plan(0), 0, "a")
    other = spark.task(spark.plan(0), 1, "b")
    for results in ([one, other], [other, None], []):
        with pytest.raises(TransactionConflictError, match="not whole"):
            spark.writer().commit(results, 0)
    spark.writer().abort([one, other, None], 0)
    assert world.coordinator.open == {}
    assert seen(world) == Counter()


def test_what_keeps_a_batch_from_beginning_is_said_by_its_tasks(world: World, spark: Spark) -> None:
    world.patience_s = 0.3
    world.broker.refuses[62] = [(22, "Transactions are not enabled.")]
    sent = spark.plan(0)
    with pytest.raises(OptionError, match="transactionCoordinatorEnabled=true"):
        spark.task(sent, 0, "a")


def test_rows_name_topics_of_pulsars_only(world: World, spark: Spark) -> None:
    sent = spark.plan(0)
    with pytest.raises(TransactionDomainError, match="none spans both domains"):
        spark.task(sent, 0, "a", topic="topic://public/default/t")
    result = spark.task(sent, 1, "a", topic=str(TOPIC))
    assert isinstance(result, NativeCommitMessage)


def test_a_writer_without_a_name_asks_for_one(spark: Spark) -> None:
    elsewhere = "s3a://bucket/checkpoint"
    with pytest.raises(OptionError, match=r"'sinkId' is missing.*, or is not given as the option"):
        spark.writer(checkpointLocation=elsewhere)
    assert spark.writer(checkpointLocation=elsewhere, sinkId="s")._sink == "s"


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"topic": "t"}, "is a segmented one, expected persistent://"),
        ({"topic": ""}, "topic"),
        ({"service.url": "", "admin.url": ""}, "service.url"),
        ({"transport": "client"}, "needs the transport 'wire'"),
        ({"metrics.port": "0"}, "means nothing here"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    spark: Spark, changed: dict[str, str], message: str
) -> None:
    given = {key: value for key, value in (spark.options | changed).items() if value}
    with pytest.raises(OptionError, match=message):
        NativeStreamWriter(given, SCHEMA, overwrite=False)


def test_other_kinds_of_writes_are_refused(spark: Spark) -> None:
    with pytest.raises(OptionError, match=r"is for writeStream\.format"):
        PulsarTxnWriter(spark.options, SCHEMA, overwrite=False)
    with pytest.raises(OptionError, match=r"is for writeStream\.format"):
        Options(spark.options, Use.WRITE | Use.BATCH | Use.SCOPE)
    with pytest.raises(OptionError, match="cannot be overwritten"):
        NativeStreamWriter(spark.options, SCHEMA, overwrite=True)
    with pytest.raises(SchemaError, match="no column 'value'"):
        NativeStreamWriter(spark.options, StructType([]), overwrite=False)
