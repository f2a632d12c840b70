"""The sink's tasks and writers, called as Spark calls them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine import components as runtime_module
from pulsar_txn_spark.engine.lease import Lease
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import (
    FencedError,
    PulsarTxnError,
    StoreRolledBackError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.sink import task as write_task
from pulsar_txn_spark.spark.sink.writers import PulsarTxnStreamWriter, PulsarTxnWriter
from pulsar_txn_spark.store.metadata_pb2 import OpRecord, Outcome
from pulsar_txn_spark.store.redis import connection
from pulsar_txn_spark.txn.coordinator import as_position
from pulsar_txn_spark.txn.op_log import read_ops
from pulsar_txn_spark.txn.transaction_buffer import txn_of_writer
from tests.store.redis.test_store_histories import new_replication_id
from tests.store.redis.test_store_identity import restore, snapshot
from tests.support.sink_calls import SCHEMA, TOPIC, Spark


@pytest.fixture
def spark(redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(redis_path, monkeypatch)


def test_what_all_tasks_wrote_becomes_visible_with_the_commit(spark: Spark) -> None:
    writer = spark.stream_writer()
    results = [spark.task(writer, n, f"a{n}", f"b{n}") for n in range(2)]
    assert spark.visible() == Counter()
    writer.commit(results, 0)
    assert spark.visible() == Counter(["a0", "b0", "a1", "b1"])


@pytest.mark.parametrize("transactions", ["true", "false"])
def test_an_executor_that_reaches_another_store_writes_nothing(
    spark: Spark, transactions: str
) -> None:
    # Nobody who reads by the driver's store would know the writer: its rows would be visible.
    writer = spark.stream_writer(transactions=transactions)
    writer._job = replace(writer._job, store_uuid="another")
    with pytest.raises(StoreRolledBackError, match="this executor reaches metadata store"):
        spark.task(writer, 0, "a")
    assert spark.visible() == Counter()


def test_no_entry_is_appended_before_its_writer_is_pinned(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    # INV-2, seen from the log: whenever a writer is opened or appends, its pin is there.
    looked: list[bool] = []
    open_writer = EmbeddedSegmentLog.writer

    def writer_and_look(log: EmbeddedSegmentLog, segment: SegmentRef, name: str) -> Any:
        writer = open_writer(log, segment, name)
        append = writer.append

        def look_and_append(rows: pa.RecordBatch) -> None:
            [gate] = spark.run.store.segments.gates([segment.id])
            looked.append(name in [pin.writer for pin in gate.pins])
            append(rows)

        monkeypatch.setattr(writer, "append", look_and_append)
        return writer

    monkeypatch.setattr(EmbeddedSegmentLog, "writer", writer_and_look)
    spark.task(spark.stream_writer(), 0, *"abcdef")
    assert len(looked) == 2, "one append for each segment"
    assert all(looked)


def test_one_transaction_writes_to_topics_of_several_namespaces(spark: Spark) -> None:
    topics = [TopicName.parse(f"topic://{tenant}/{space}/out") for tenant, space in ("ab", "cd")]
    for topic in topics:
        spark.run.topics.create(topic, 1)
    schema = StructType([StructField("value", StringType()), StructField("__topic", StringType())])
    options = {"store.path": spark.options["store.path"]}
    writer = PulsarTxnStreamWriter(options, schema, overwrite=False)
    names = [str(topic) for topic in topics]
    rows = pa.record_batch([["row", "row"], names], ["value", "__topic"])
    result = writer.write(iter([rows]))
    refs = [spark.run.topics.require(topic).active[0].ref for topic in topics]
    ends = {ref.id: spark.run.log.last_confirmed(ref) for ref in refs}

    def readable() -> list[bool]:
        found = spark.run.buffer.readable([r.id for r in refs], ends.__getitem__, [EARLIEST] * 2)
        return [one.end == ends[ref.id] for one, ref in zip(found, refs, strict=True)]

    assert readable() == [False, False]
    assert result.attempt is not None
    writer.commit([result], 0)
    assert readable() == [True, True]
    header = spark.run.store.transactions.read(result.attempt.txn)
    assert header is not None
    segments = {w.segment for w in Outcome.FromString(header.outcome).winners}
    assert {segment.rsplit("/", 2)[0] for segment in segments} == {"a/b/out", "c/d/out"}


def test_each_task_records_what_it_wrote_and_where(spark: Spark) -> None:
    result = spark.task(spark.stream_writer(), 0, *"abcdef")
    assert result.attempt is not None
    ops = read_ops(spark.run.store.op_log, result.attempt.txn)
    found = [OpRecord.FromString(op.record) for op in ops]
    assert [op.name for op in ops] == [f"{r.writer}/{r.segment}" for r in found]
    assert sorted(record.segment for record in found) == sorted(s.id for s in spark.segments())
    for record in found:
        assert record.kind == OpRecord.WRITE
        assert txn_of_writer(record.writer) == result.attempt.txn
        assert record.HasField("first")
        assert as_position(record.first) <= as_position(record.last)
    assert sum(record.messages for record in found) == 6
    assert all(record.bytes > 0 for record in found)


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
def test_a_segment_that_was_sealed_meanwhile_is_materialized_without_a_write_to_its_log(
    spark: Spark, commit: bool
) -> None:
    writer = spark.stream_writer()
    result = spark.task(writer, 0, *"abcdef")
    sealed = spark.segments()
    for segment in spark.run.topics.require(TOPIC).active:
        spark.run.topics.changes.seal(TOPIC, segment.descriptor)
    before = [spark.run.log.last_confirmed(ref) for ref in sealed]
    if commit:
        writer.commit([result], 0)
    else:
        writer.abort([result], 0)
    assert [spark.run.log.last_confirmed(ref) for ref in sealed] == before
    assert spark.visible() == (Counter("abcdef") if commit else Counter())
    assert [gate.pins for gate in spark.run.store.segments.gates([ref.id for ref in sealed])] == [
        (),
        (),
    ]


def test_a_failed_and_a_speculative_attempt_of_a_task_are_no_winners(spark: Spark) -> None:
    writer = spark.stream_writer()
    spark.task(writer, 0, "a", "b")  # it published, and then its process died
    results = [spark.task(writer, 0, "a", "b"), spark.task(writer, 1, "c")]
    spark.task(writer, 1, "c")  # a speculative copy that came second
    writer.commit(results, 0)
    assert spark.visible() == Counter("abc")


def test_a_batch_that_misses_a_message_of_a_task_is_not_committed(spark: Spark) -> None:
    writer = spark.stream_writer()
    done = spark.task(writer, 0, "a")
    for messages in ([done, None], [None], []):
        with pytest.raises(TransactionConflictError, match="not whole"):
            writer.commit(messages, 0)
    assert spark.visible() == Counter()


def test_a_replayed_batch_consumes_its_rows_and_writes_nothing(spark: Spark) -> None:
    spark.micro_batch("a", "b")
    before = [spark.run.log.last_confirmed(ref) for ref in spark.segments()]
    writer = spark.stream_writer()
    consumed = []

    def rows() -> Any:
        for value in ("a", "b"):
            consumed.append(value)
            yield pa.record_batch([[value], [f"key-{value}"]], ["value", "__key"])

    spark.partition = 0
    result = writer.write(rows())
    writer.commit([result], 0)
    assert consumed == ["a", "b"]
    assert [spark.run.log.last_confirmed(ref) for ref in spark.segments()] == before
    assert spark.visible() == Counter("ab")


def test_a_zombie_driver_is_fenced(spark: Spark) -> None:
    zombie = spark.stream_writer()
    results = [spark.task(zombie, 0, "a")]
    spark.micro_batch("a", "b")
    with pytest.raises(TransactionAbortedError):
        zombie.commit(results, 0)
    with pytest.raises(FencedError):
        spark.task(zombie, 1, "b")
    assert spark.visible() == Counter("ab")


def test_an_aborted_batch_stays_invisible_and_is_written_anew(spark: Spark) -> None:
    writer = spark.stream_writer()
    writer.abort([spark.task(writer, 0, "a"), None], 0)
    assert spark.visible() == Counter()
    spark.micro_batch("a", "b")
    assert spark.visible() == Counter("ab")


def test_an_empty_micro_batch_commits(spark: Spark) -> None:
    writer = spark.stream_writer()
    writer.commit([spark.task(writer, 0)], 0)
    assert spark.visible() == Counter()
    spark.batch = 1
    spark.micro_batch("a")
    assert spark.visible() == Counter("a")


def test_a_task_that_lost_its_lease_writes_no_more(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = threading.Event()
    appended: list[int] = []

    def heartbeat(*_: object) -> None:
        if appended:
            raise TransactionAbortedError("its lease was over")

    class Listening(Lease):
        def lost(self, error: PulsarTxnError) -> None:
            super().lost(error)
            lost.set()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch([["a"], ["k"]], ["value", "__key"])
        assert lost.wait(10)
        yield pa.record_batch([["b"], ["k"]], ["value", "__key"])

    def append(writers: TopicWriters, topic: TopicName, batch: pa.RecordBatch) -> None:
        appended.append(batch.num_rows)
        appends(writers, topic, batch)

    appends = TopicWriters.append
    monkeypatch.setattr(TopicWriters, "append", append)
    monkeypatch.setattr(write_task, "Lease", Listening)
    monkeypatch.setattr(spark.run.coordinator, "heartbeat", heartbeat)
    writer = spark.stream_writer(**{"txn.timeoutMs": "1000"})
    with pytest.raises(TransactionAbortedError, match="nothing more is written"):
        writer.write(rows())
    assert appended == [1]


def test_a_task_that_begins_after_its_failed_write_was_aborted_does_not_stop_the_sink(
    spark: Spark,
) -> None:
    writer = PulsarTxnWriter(spark.options, SCHEMA, overwrite=False)
    writer.abort([None])
    with pytest.raises(TransactionAbortedError):
        spark.task(writer, 0, "late")
    for _ in range(2):
        spark.run.sweeper(0).sweep()
    for spark.execution in (1, 2):
        again = PulsarTxnWriter(spark.options, SCHEMA, overwrite=False)
        again.commit([spark.task(again, 0, "a")])
    assert spark.visible() == Counter("a")


def test_a_second_write_of_one_sink_is_refused_in_each_replay_too(spark: Spark) -> None:
    for spark.execution in range(3):  # the first commits, the others replay
        first = PulsarTxnWriter(spark.options, SCHEMA, overwrite=False)
        first.commit([spark.task(first, 0, "a")])
        second = PulsarTxnWriter(spark.options, SCHEMA, overwrite=False)
        with pytest.raises(TransactionConflictError, match="was written already"):
            second.commit([spark.task(second, 0, "b")])
    assert spark.visible() == Counter("a")


def test_a_commit_of_a_replay_that_spark_repeats_is_no_second_write(spark: Spark) -> None:
    for spark.execution in range(2):
        writer = PulsarTxnWriter(spark.options, SCHEMA, overwrite=False)
        messages = [spark.task(writer, 0, "a")]
        writer.commit(messages)
        writer.commit(messages)
    assert spark.visible() == Counter("a")


def test_rows_of_a_topic_that_is_named_in_several_ways_stay_in_order(spark: Spark) -> None:
    schema = StructType([StructField(n, StringType()) for n in ("value", "__key", "__topic")])
    writer = PulsarTxnStreamWriter(spark.options, schema, overwrite=False)
    names = [None, "out", None, str(TOPIC), "public/default/out"] * 2
    values = [str(number) for number in range(len(names))]
    rows = pa.record_batch(
        [values, ["k"] * len(names), pa.array(names, pa.string())], ["value", "__key", "__topic"]
    )
    writer.commit([writer.write(iter([rows]))], 0)
    found = []
    for segment in spark.segments():
        for batch in spark.run.log.read(
            segment,
            EARLIEST,
            spark.run.log.last_confirmed(segment),
            visible=lambda _name, _position: True,
            columns=frozenset({"value"}),
            max_rows=100,
        ):
            found += [value.decode() for value in batch.column(0).to_pylist()]
    assert found == values


def test_a_commit_notices_that_the_store_has_lost_what_a_task_had_written(
    spark: Spark, redis_client: Any
) -> None:
    """By what the task has seen: the process of the commit remembers nothing of it."""
    writer = spark.stream_writer()
    header, kept = b"", dict[bytes, bytes]()

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal header, kept
        yield pa.record_batch([["a"], ["k"]], ["value", "__key"])
        [header] = [key for key in redis_client.keys("{tc*}:txn:*") if key.count(b":") == 3]
        kept = snapshot(redis_client, tag_of(header))

    messages = [writer.write(rows())]
    # A failover to a replica that lacks the end of the task, and goes on.
    restore(redis_client, tag_of(header), kept)
    new_replication_id(redis_client)
    another_process()
    messages.append(spark.task(writer, 1, "b"))
    another_process()
    with pytest.raises(StoreRolledBackError, match="was seen before"):
        spark.stream_writer().commit(messages, 0)
    assert redis_client.hget(header, "state") == b"OPEN"


@pytest.mark.usefixtures("single_steps")
def test_a_batch_does_not_begin_again_whose_pointer_the_store_has_lost(
    spark: Spark, redis_client: Any
) -> None:
    """By what the task has seen: the process of the commit does not ask the sink."""
    spark.micro_batch("a", "b")
    [pointers] = redis_client.keys("{sink:*}:pointers")
    kept = snapshot(redis_client, tag_of(pointers))
    spark.batch = 1
    messages = [spark.task(spark.stream_writer(), 0, "c")]
    another_process()
    spark.stream_writer().commit(messages, 1)
    restore(redis_client, tag_of(pointers), kept)
    another_process()
    with pytest.raises(StoreRolledBackError, match="was seen before"):
        spark.task(spark.stream_writer(), 0, "c")
    assert spark.visible() == Counter("abc")


def tag_of(key: bytes) -> str:
    return key.decode().partition("}")[0].removeprefix("{")


def another_process() -> None:
    connection.close_all()
    runtime_module._opened.clear()
