"""The sink's tasks and scopes, called as Spark calls them, without a Spark that runs."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Self, cast

import pyarrow as pa
import pytest
import redis
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine import components as runtime_module
from pulsar_txn_spark.engine.components import Runtime
from pulsar_txn_spark.engine.lease import Lease
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import (
    BatchNotRecordedError,
    FencedError,
    PulsarTxnError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.context import BATCH_ID, QUERY_ID, TaskFacts
from pulsar_txn_spark.spark.sink import task as write_task
from pulsar_txn_spark.spark.sink.batch_transaction import BatchTransaction
from pulsar_txn_spark.spark.sink.job import TaskCommitMessage
from pulsar_txn_spark.spark.sink.writers import PulsarTxnStreamWriter, PulsarTxnWriter
from pulsar_txn_spark.store.metadata_pb2 import OpRecord, Outcome
from pulsar_txn_spark.store.records import EndedBy
from pulsar_txn_spark.txn.coordinator import as_position
from pulsar_txn_spark.txn.op_log import read_ops
from pulsar_txn_spark.txn.transaction_buffer import txn_of_writer
from tests.support.frames import WritableFrame

TOPIC = TopicName.parse("out")
SCHEMA = StructType([StructField("value", StringType()), StructField("__key", StringType())])
QUERY = "query"
attempt_ids = itertools.count(1)


class Spark:
    """Calls data source writers as Spark does."""

    def __init__(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options = {"store.path": path, "topic": str(TOPIC)}
        self.run: Runtime = runtime_module.runtime(Options({"store.path": path}, Use.CONNECT))
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


@pytest.fixture
def spark(redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(redis_path, monkeypatch)


# --- tasks ------------------------------------------------------------------------------------


def test_what_all_tasks_wrote_becomes_visible_with_the_commit(spark: Spark) -> None:
    writer = spark.stream_writer()
    results = [spark.task(writer, n, f"a{n}", f"b{n}") for n in range(2)]
    assert spark.visible() == Counter()
    writer.commit(results, 0)
    assert spark.visible() == Counter(["a0", "b0", "a1", "b1"])


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
    ops = read_ops(spark.run.store, result.attempt.txn)
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


# --- scopes -----------------------------------------------------------------------------------


class Frame(WritableFrame):
    """A DataFrame that a scope can write: it calls the sink in the thread that saves it."""

    def __init__(self, spark: Spark, *values: str, after: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._spark, self._values, self._after = spark, values, after

    def limit(self, _: int) -> Frame:
        return Frame(self._spark)

    def selectExpr(self, *_: str) -> Self:  # noqa: N802 - as PySpark has it
        return self

    def save(self) -> None:
        writer = PulsarTxnWriter(self.given, SCHEMA, overwrite=False)
        result = self._spark.task(writer, 0, *self._values)
        if self._after is not None:
            self._after()
        writer.commit([result])


def scope(spark: Spark, name: str = "function/f") -> BatchTransaction:
    return BatchTransaction(spark.options, spark.batch, frame(spark), name)


def frame(spark: Spark, *values: str, after: Callable[[], None] | None = None) -> DataFrame:
    return cast("DataFrame", Frame(spark, *values, after=after))


def fail() -> None:
    raise RuntimeError("the job fails after its tasks have published")


def test_all_writes_of_a_scope_are_one_transaction(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
        txn.write(frame(spark, "b"))
        assert spark.visible() == Counter()
    assert spark.visible() == Counter("ab")


def test_a_scope_that_lost_its_lease_writes_no_more(spark: Spark) -> None:
    txn = scope(spark)
    with pytest.raises(TransactionAbortedError, match="nothing more is written"), txn:  # noqa: PT012 - the block is what ends the scope
        txn.write(frame(spark, "a"))
        id_ = spark.run.store.transactions.of_nonce(txn._shard, txn._nonce)
        assert id_ is not None
        spark.run.coordinator.abort(id_, EndedBy.ADMIN, cause="an administrator did")
        with pytest.raises(TransactionAbortedError) as caught:
            txn._lease.beat()
        txn._lease.lost(caught.value)
        txn.write(frame(spark, "b"))
    assert list(txn._declared) == ["write-0"], "the second one was not begun"
    assert spark.visible() == Counter()


def test_a_scope_extends_the_lease_of_its_transaction_or_of_what_it_has_staged(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []
    monkeypatch.setattr(
        spark.run.store.stages, "touch", lambda _, nonce, **__: touched.append(nonce)
    )
    with scope(spark) as txn:
        txn._lease.beat()
        assert touched == [], "there is nothing to be kept yet"
        txn._declared["declared"] = 1
        txn._lease.beat()
        assert touched == [txn._nonce]
        del txn._declared["declared"]
        txn.write(frame(spark, "a"))
        id_ = spark.run.store.transactions.of_nonce(txn._shard, txn._nonce)
        assert id_ is not None
        header = spark.run.store.transactions.read(id_)
        assert header is not None
        txn._lease.beat()
        later = spark.run.store.transactions.read(id_)
        assert later is not None
        assert later.deadline_ms > header.deadline_ms
        assert touched == [txn._nonce]


def test_a_scope_that_raises_leaves_nothing(spark: Spark) -> None:
    def write_and_fail() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            fail()

    with pytest.raises(RuntimeError):
        write_and_fail()
    assert spark.visible() == Counter()
    assert [
        gate.pins for gate in spark.run.store.segments.gates([r.id for r in spark.segments()])
    ] == [
        (),
        (),
    ]


def test_a_write_whose_error_was_swallowed_keeps_the_scope_from_committing(spark: Spark) -> None:
    def swallow() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            with pytest.raises(RuntimeError):
                txn.write(frame(spark, "b", after=fail))

    with pytest.raises(TransactionConflictError, match="its error was swallowed"):
        swallow()
    assert spark.visible() == Counter()


def test_of_a_slot_that_failed_and_ran_again_only_the_second_run_counts(spark: Spark) -> None:
    with scope(spark) as txn:
        with pytest.raises(RuntimeError):
            txn.write(frame(spark, "first run", after=fail), slot="out")
        txn.write(frame(spark, "second run"), slot="out")
    assert spark.visible() == Counter(["second run"])


def test_a_slot_that_ran_well_and_then_failed_does_not_commit(spark: Spark) -> None:
    # The result of the first run is staged, but the last that the user's code saw is a failure.
    def run_again_and_fail() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "first run"), slot="out")
            with pytest.raises(RuntimeError):
                txn.write(frame(spark, "second run", after=fail), slot="out")

    with pytest.raises(TransactionConflictError, match="did not succeed"):
        run_again_and_fail()
    assert spark.visible() == Counter()


def test_a_run_of_a_slot_that_ends_after_the_next_has_begun_is_refused(spark: Spark) -> None:
    with scope(spark) as txn:

        def run_again() -> None:
            txn.write(frame(spark, "second run"), slot="out")

        with pytest.raises(TransactionConflictError, match="was run again"):
            txn.write(frame(spark, "first run", after=run_again), slot="out")
    assert spark.visible() == Counter(["second run"])


def test_a_success_that_is_seen_late_does_not_hide_the_failure_of_a_later_run(
    spark: Spark,
) -> None:
    # Two threads run one slot: the first is done, but slow to return; the second then fails.
    def both() -> None:
        with scope(spark) as txn:
            first = Frame(spark, "first run")
            save = first.save

            def save_and_let_the_other_fail() -> None:
                save()
                with pytest.raises(RuntimeError):
                    txn.write(frame(spark, "second run", after=fail), slot="out")

            first.save = save_and_let_the_other_fail  # type: ignore[method-assign]
            txn.write(cast("DataFrame", first), slot="out")

    with pytest.raises(TransactionConflictError, match="did not succeed"):
        both()
    assert spark.visible() == Counter()


def test_a_replayed_scope_writes_nothing(spark: Spark) -> None:
    for execution in range(2):
        spark.execution = execution
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            txn.write(frame(spark, "b"))
    assert spark.visible() == Counter("ab")


def test_a_second_scope_of_one_name_in_one_run_is_no_replay(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
    with pytest.raises(TransactionConflictError, match="was written already"), scope(spark) as txn:
        txn.write(frame(spark, "b"))


def test_an_empty_scope_of_a_sink_that_is_written_sometimes_leaves_no_transaction(
    spark: Spark,
) -> None:
    spark.options["everyBatch"] = "false"
    with scope(spark):
        pass
    for tc in range(spark.run.store.identity.coordinators):
        assert spark.run.store.transactions.list_open(tc, deadline_ms=None, limit=9) == []
        assert spark.run.store.transactions.list_final(tc, limit=9) == []


# --- one sink under two names, siblings, and what is left behind ------------------------------


def test_a_renamed_function_does_not_write_a_committed_batch_again(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a", "b"))
    spark.execution += 1  # Spark has not noted the batch as done
    renamed = scope(spark, "function/renamed")
    with pytest.raises(TransactionConflictError, match="sinkId=query/function/f"), renamed as txn:
        txn.write(frame(spark, "a", "b"))
    assert spark.visible() == Counter("ab")
    spark.options["sinkId"] = "query/function/f"
    spark.execution += 1
    with scope(spark, "function/renamed") as txn:
        txn.write(frame(spark, "a", "b"))
    assert spark.visible() == Counter("ab")


@pytest.mark.parametrize("batch", [0, 1])
def test_a_sink_that_moves_from_format_to_a_function_does_not_write_a_batch_again(
    spark: Spark, batch: int
) -> None:
    for spark.batch in range(batch + 1):
        spark.execution += 1
        spark.micro_batch("a")
    spark.execution += 1
    with pytest.raises((TransactionConflictError, BatchNotRecordedError)), scope(spark) as txn:
        txn.write(frame(spark, "a"))
    assert spark.visible() == Counter({"a": batch + 1})
    spark.options["sinkId"] = "another"
    with pytest.raises((TransactionConflictError, BatchNotRecordedError)):
        spark.micro_batch("a")
    spark.options["sinkId"] = QUERY
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
    assert spark.visible() == Counter({"a": batch + 1})


def test_siblings_of_a_batch_go_on_after_a_crash_between_them(spark: Spark) -> None:
    with scope(spark, "function/first") as txn:
        txn.write(frame(spark, "a"))
    spark.execution += 1
    for name, value in (("function/first", "a"), ("function/second", "b")):
        with scope(spark, name) as txn:
            txn.write(frame(spark, value))
    assert spark.visible() == Counter("ab")
    spark.batch += 1
    spark.execution += 1
    for name in ("function/second", "function/first"):  # the order matters for new ones only
        with scope(spark, name) as txn:
            txn.write(frame(spark, "c"))
    assert spark.visible() == Counter("abcc")


def test_siblings_whose_order_changes_between_attempts_are_asked_for(spark: Spark) -> None:
    with scope(spark, "function/first") as txn:
        txn.write(frame(spark, "a"))
    spark.execution += 1
    second = scope(spark, "function/second")
    with pytest.raises(TransactionConflictError, match="sinkFirstBatch=0"), second as txn:
        txn.write(frame(spark, "b"))
    spark.options["sinkFirstBatch"] = "0"
    spark.execution += 1
    for name, value in (("function/second", "b"), ("function/first", "a")):
        with scope(spark, name) as txn:
            txn.write(frame(spark, value))
    assert spark.visible() == Counter("ab")


def test_a_function_that_writes_nothing_records_its_batch(spark: Spark) -> None:
    for spark.batch in range(3):
        spark.execution += 1
        with scope(spark) as txn:
            if spark.batch != 1:
                txn.write(frame(spark, str(spark.batch)))
    assert spark.visible() == Counter("02")


class Context:
    """What Spark Classic keeps with the thread that calls a function."""

    applicationId = "app"  # noqa: N815 - as PySpark has it

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - as PySpark has it
        known = {QUERY_ID: QUERY, BATCH_ID: str(self._spark.batch)}
        return known.get(key, str(self._spark.execution))


def test_a_function_that_writes_nothing_records_its_batch_on_the_driver(spark: Spark) -> None:
    with scope(spark) as txn:
        txn.write(frame(spark, "a"))
    spark.batch, spark.execution = 1, 1
    silent = frame(spark)
    silent.sparkSession = SimpleNamespace(_sc=Context(spark))  # type: ignore[misc,assignment]
    for spark.execution in (1, 2):  # the second is its replay
        with BatchTransaction(spark.options, 1, silent, "function/f"):
            pass
    spark.batch, spark.execution = 2, 3
    with scope(spark) as txn:
        txn.write(frame(spark, "c"))
    assert spark.visible() == Counter("ac")


def test_a_function_that_swallows_the_error_of_its_scope_is_found_out(spark: Spark) -> None:
    def swallow() -> None:
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
            fail()

    with contextlib.suppress(RuntimeError):
        swallow()
    spark.batch, spark.execution = 1, 1
    with pytest.raises(BatchNotRecordedError, match="swallowed"), scope(spark) as txn:
        txn.write(frame(spark, "b"))
    spark.options["everyBatch"] = "false"
    with scope(spark) as txn:
        txn.write(frame(spark, "b"))
    assert spark.visible() == Counter("b")


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


def staged(spark: Spark) -> list[Any]:
    return sorted(spark.run.store.scripts.client.keys("*:stage:*"))


def test_what_a_scope_has_staged_goes_with_it_whatever_its_end(spark: Spark) -> None:
    for execution in range(2):  # the second is a replay
        spark.execution = execution
        with scope(spark) as txn:
            txn.write(frame(spark, "a"))
        assert staged(spark) == []

    def fail_before_the_transaction_begins() -> None:
        with scope(spark, "function/other") as txn:
            txn.write(frame(spark, "a"), topic="topic://public/default/missing")

    with pytest.raises(TopicNotFoundError):
        fail_before_the_transaction_begins()
    assert staged(spark) == []


def test_what_a_dead_scope_has_staged_is_swept_after_a_day(spark: Spark) -> None:
    store = spark.run.store
    for nonce in ("dead", "alive", "begun"):
        store.stages.declare_run(1, nonce, "slot", 1)
    store.transactions.create(
        tc=1, nonce="begun", owner="", sink="", query="", batch="", timeout_ms=60_000, intents=[]
    )
    store.scripts.client.zadd("{tc1}:idx:stages", {"dead": 1, "alive": 1, "begun": 1})
    store.stages.touch(1, "alive")
    assert spark.run.sweeper(60_000).sweep().stages_removed == 1
    assert staged(spark) == [b"{tc1}:stage:alive", b"{tc1}:stage:begun"]
