"""One micro-batch, one transaction: replays, retries, fencing, restored and deleted checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from integration.support.spark import (
    NO_PANDAS_3,
    Lab,
    Meeting,
    copied,
    ended,
    fails_once,
    failure,
    forget_last_commit,
    on_value,
    restored,
    until,
)
from pulsar_txn_spark import Admin, BatchTransaction, TransactionalSink, transactional
from pulsar_txn_spark.position import EARLIEST

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

# Rows so wide that they do not all stand in a pipe: a task that leaves them is found out.
WIDTH = 20_000

# -- a lost entry of Spark's commit log, for every kind of sink ------------------------------------


@dataclass(frozen=True)
class Job:
    """One kind of query from `source` to `main` (and `side`, where it writes to two topics)."""

    lab: Lab
    source: str
    main: str
    side: str
    checkpoint: Path
    stateful: bool = False
    group: str | None = None

    def frame(self) -> DataFrame:
        df = self.lab.source(self.source, subscription="s", startingOffsets="subscription")
        if not self.stateful:
            return df
        # Rows leave it one micro-batch later at the earliest, out of its state store.
        timed = df.withColumn("at", f.to_timestamp(f.col("value").cast("long")))
        counted = timed.withWatermark("at", "0 seconds").groupBy(f.window("at", "10 seconds"))
        return counted.agg(f.count("*").alias("n")).select(
            f.concat_ws("=", f.col("window.start").cast("long"), "n", f.lit("x" * WIDTH)).alias(
                "value"
            )
        )

    def batches(self, function: Callable[[DataFrame, int], object]) -> Any:
        def process(df: DataFrame, batch: int) -> None:
            if self.group is not None:
                self.lab.spark.sparkContext.setJobGroup(self.group, "the user's own")
            function(df, batch)

        return (
            self.frame()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(self.checkpoint))
        )

    def by_format(self) -> Any:
        return self.lab.sink(self.frame(), self.main, self.checkpoint)

    def by_sink(self) -> Any:
        return self.batches(TransactionalSink({**self.lab.options, "topic": self.main}))

    def by_function(self) -> Any:
        @transactional(self.lab.options)
        def process(df: DataFrame, batch: int, txn: BatchTransaction) -> None:
            txn.write(df, topic=self.main)
            txn.write(df, topic=self.side)

        return self.batches(process)

    def by_two_writes(self) -> Any:
        def process(df: DataFrame, batch: int) -> None:
            self.lab.write(df, self.main)
            self.lab.write(df, self.side)

        return self.batches(process)

    def by_two_writes_in_a_group(self) -> Any:
        return Job(**{**vars(self), "group": "mine"}).by_two_writes()

    def by_function_in_a_group(self) -> Any:
        return Job(**{**vars(self), "group": "mine"}).by_function()


def job_on(lab: Lab, *, stateful: bool = False) -> Job:
    return Job(
        lab,
        source=lab.topic(2, name="in"),
        main=lab.topic(name="main"),
        side=lab.topic(name="side"),
        checkpoint=lab.checkpoint(),
        stateful=stateful,
    )


def replay(job: Job, writer: Callable[[Job], Any], sides: list[str]) -> None:
    """Run a query, lose its last commit, go on with it; nothing may be written twice."""
    lab = job.lab
    lab.produce(job.source, *(str(10 * number) for number in range(40)))
    lab.produce(job.source, "1", segment=1)
    lab.drain(writer(job))
    before = {topic: lab.rows(topic) for topic in sides}
    read = lab.end(job.source)
    forget_last_commit(job.checkpoint)
    if "function" in writer.__name__:
        lab.collect()  # what a replay must know outlives the transaction's header
    lab.produce(job.source, "400")
    lab.drain(writer(job))
    # A query whose sink is not ours, but the user's function, acknowledges in its next batch.
    own = "write" not in writer.__name__
    assert lab.cursor(job.source, "s") == (lab.end(job.source) if own else read)
    for topic in sides:
        # In front stands what was there before; behind it only the new rows.
        new = [row["value"].decode() for row in lab.rows(topic)[len(before[topic]) :]]
        new = [value.rstrip("x") for value in new]
        assert lab.rows(topic)[: len(before[topic])] == before[topic]
        assert new == (["390=1="] if job.stateful else ["400"])
        stored = lab.physical(topic)
        assert stored.rows == len(before[topic]) + 1, "a replay that writes is not a replay"
        assert stored.aborted_rows == 0


ONE, BOTH = ["main"], ["main", "side"]


@pytest.mark.parametrize(
    "writer, outputs",
    [
        pytest.param(Job.by_format, ONE, id="format"),
        pytest.param(Job.by_function, BOTH, id="function"),
    ],
)
def test_a_batch_whose_commit_log_entry_is_lost_is_replayed_and_writes_nothing(
    any_lab: Lab, writer: Callable[[Job], Any], outputs: list[str]
) -> None:
    job = job_on(any_lab)
    replay(job, writer, [getattr(job, name) for name in outputs])


@pytest.mark.parametrize(
    "writer, outputs",
    [
        pytest.param(Job.by_sink, ONE, id="sink"),
        pytest.param(Job.by_two_writes, BOTH, id="two-writes"),
        pytest.param(Job.by_two_writes_in_a_group, BOTH, id="two-writes-own-job-group"),
        pytest.param(Job.by_function_in_a_group, BOTH, id="function-own-job-group"),
    ],
)
def test_a_batch_of_foreach_batch_is_replayed_and_writes_nothing(
    lab: Lab, writer: Callable[[Job], Any], outputs: list[str]
) -> None:
    job = job_on(lab)
    replay(job, writer, [getattr(job, name) for name in outputs])


@pytest.mark.parametrize(
    "writer, outputs",
    [
        pytest.param(Job.by_format, ONE, id="format"),
        pytest.param(Job.by_sink, ONE, id="sink"),
        pytest.param(Job.by_function_in_a_group, BOTH, id="function-own-job-group"),
    ],
)
def test_a_stateful_query_goes_on_after_a_replay_that_wrote_nothing(
    lab: Lab, writer: Callable[[Job], Any], outputs: list[str]
) -> None:
    job = job_on(lab, stateful=True)
    with lab.setting("spark.sql.execution.arrow.maxRecordsPerBatch", 1):
        replay(job, writer, [getattr(job, name) for name in outputs])


# -- attempts that fail, and those that Spark does twice -------------------------------------------


def test_a_task_that_published_and_failed_is_retried_and_only_the_retry_counts(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic(2)
    numbers = [str(number) for number in range(600)]
    text = "x" * 10_000  # large rows, in small Arrow batches: the first are in the log early
    lab.produce(source, *(f"{number}-{text}" for number in numbers))
    fail = fails_once(lab.folder / "failed")

    with lab.setting("spark.sql.execution.arrow.maxRecordsPerBatch", 20), Meeting() as meeting:
        meet = meeting.point()

        def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext  # noqa: PLC0415

            context = TaskContext.get()
            assert context is not None
            for batch in batches:
                values = batch.column("value").to_pylist()
                marked = [f"{context.attemptNumber()}-{value}" for value in values]
                yield pa.record_batch([pa.array(marked)], names=["value"])
            meet()
            fail()

        df = lab.source(source)
        df = df.mapInArrow(mark, df.schema)
        query = lab.sink(df, out, lab.checkpoint()).trigger(availableNow=True).start()
        meeting.wait()
        until(lambda: any(lab.end_of(ref) > EARLIEST for ref in lab.segments(out)))
        assert lab.visible(out) == []
        meeting.release()
        ended(query)
    found = [value.split("-")[:2] for value in lab.visible(out)]
    assert sorted(found) == sorted(["1", number] for number in numbers)
    stored = lab.physical(out)
    assert stored.rows - stored.aborted_rows == len(numbers)
    assert stored.aborted_rows > 0
    assert len(stored.aborted_writers) == 1


def test_a_failed_batch_blocks_nobody_although_no_task_came_to_its_end(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "poison")
    assert lab.open_txns() == []
    with Meeting() as meeting:
        meet = meeting.point()

        def burst() -> None:
            meet()
            raise ValueError("this row is poison")

        df = on_value(lab.source(source), "poison", burst)
        query = lab.sink(df, out, lab.checkpoint()).trigger(availableNow=True).start()
        meeting.wait()
        until(lambda: len(lab.open_txns()) == 1)
        meeting.release()
        assert "this row is poison" in failure(lambda: ended(query))
    assert lab.open_txns() == []


def test_a_poisoned_row_makes_its_batch_invisible_until_it_is_fixed(lab: Lab) -> None:
    source, out, later = lab.topic(), lab.topic(2), lab.topic()
    lab.produce(source, "a", "b")
    df = lab.source(source, subscription="s", startingOffsets="subscription")
    lab.drain(lab.sink(df, out, lab.checkpoint()))
    stood = lab.cursor(source, "s")
    lab.produce_each(source, "c", "poison", "d")

    def burst() -> None:
        raise ValueError("this row is poison")

    error = failure(
        lambda: lab.drain(lab.sink(on_value(df, "poison", burst), out, lab.checkpoint()))
    )
    assert "this row is poison" in error
    assert lab.visible(out) == ["a", "b"]
    assert lab.cursor(source, "s") == stood
    lab.drain(lab.sink(df.where("value != 'poison'"), out, lab.checkpoint()))
    assert lab.visible(out) == ["a", "b", "c", "d"]
    assert lab.cursor(source, "s") == lab.end(source)
    # What the failed attempt left in `out` is in no reader's way, and an input like any other.
    lab.drain(lab.sink(lab.source(out), later, lab.checkpoint("later")))
    assert lab.visible(later) == ["a", "b", "c", "d"]


def test_a_batch_without_a_row_is_a_transaction_that_acknowledges(lab: Lab) -> None:
    source, out = lab.topic(2), lab.topic()
    df = lab.source(source, subscription="s", startingOffsets="subscription")
    writer = lab.sink(df.where("value != 'a'"), out, lab.checkpoint())
    lab.drain(writer)  # there is nothing at all yet
    lab.produce(source, "a")
    lab.drain(writer)
    assert lab.visible(out) == []
    assert lab.cursor(source, "s") == lab.end(source)
    forget_last_commit(lab.checkpoint())
    lab.produce(source, "b")
    lab.drain(writer)
    assert lab.visible(out) == ["b"]


def test_two_writes_to_one_sink_in_a_batch_are_an_error_and_lose_nothing(lab: Lab) -> None:
    source, out, side = lab.topic(), lab.topic(), lab.topic()
    lab.produce(source, "a")
    twice: list[str] = [out, out]

    def process(df: DataFrame, batch: int) -> None:
        lab.write(df, twice[0])
        lab.spark.sparkContext.setJobGroup("mine", "replaces Spark's run id")
        lab.collect()
        lab.write(df.selectExpr("upper(value) AS value"), twice[1])

    writer = (
        lab.source(source)
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(lab.checkpoint()))
    )
    error = failure(lambda: lab.drain(writer))
    assert "was written already in batch 0" in error
    assert "sinkId" in error
    assert "transactional" in error
    assert lab.visible(out) == ["a"]
    # A function that is put right goes on: its first write is a replay now.
    twice[1] = side
    lab.drain(writer)
    assert (lab.visible(out), lab.visible(side)) == (["a"], ["A"])


def test_a_function_that_failed_between_two_writes_goes_on_in_the_same_driver_and_job_group(
    lab: Lab,
) -> None:
    source, out, side = lab.topic(), lab.topic(), lab.topic()
    lab.produce(source, "a")
    fail = fails_once(lab.folder / "failed")

    def process(df: DataFrame, batch: int) -> None:
        lab.spark.sparkContext.setJobGroup("mine", "the same in every run")
        lab.write(df, out)
        fail()
        lab.write(df, side)

    writer = (
        lab.source(source)
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(lab.checkpoint()))
    )
    assert "failed once" in failure(lambda: lab.drain(writer))
    lab.drain(writer)
    assert (lab.visible(out), lab.visible(side)) == (["a"], ["a"])


# -- checkpoints that are not what the store knows -------------------------------------------------


def test_a_checkpoint_restored_from_an_older_copy_is_refused(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    writer = lab.sink(lab.source(source), out, lab.checkpoint())
    for value in ("a", "b", "c"):
        lab.produce(source, value)
        lab.drain(writer)
        copied(lab.checkpoint(), lab.checkpoint(value))
    restored(lab.checkpoint(), lab.checkpoint("a"))
    error = failure(lambda: lab.drain(writer))
    assert "FencedError" in error
    assert "The checkpoint is an older copy" in error
    # One batch back, and now its input has grown: the batch is not the one that was committed.
    restored(lab.checkpoint(), lab.checkpoint("b"))
    lab.produce(source, "d")
    error = failure(lambda: lab.drain(writer))
    assert "with other input than it has now" in error
    assert lab.physical(out).rows == 3
    restored(lab.checkpoint(), lab.checkpoint("c"))
    lab.drain(writer)
    assert lab.visible(out) == ["a", "b", "c", "d"]


def test_a_deleted_checkpoint_skips_nothing_under_an_explicit_sink_id(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a", "b")
    sink = f"sink-{out.rpartition('-')[2]}"

    def writer(**options: object) -> Any:
        return lab.sink(lab.source(source, **options), out, lab.checkpoint(), sinkId=sink)

    lab.drain(writer())
    shutil.rmtree(lab.checkpoint())
    lab.drain(writer())
    # Batch 0 of a new query is not batch 0 of the old one.
    assert lab.visible(out) == ["a", "a", "b", "b"]


def test_a_subscription_outlives_a_deleted_checkpoint_and_says_what_to_do(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    df = lab.source(source, subscription="s", startingOffsets="subscription")
    writer = lab.sink(df, out, lab.checkpoint(), sinkId=f"sink-{out.rpartition('-')[2]}")
    lab.drain(writer)
    shutil.rmtree(lab.checkpoint())
    lab.produce(source, "b")
    error = failure(lambda: lab.drain(writer))
    assert "AcknowledgementConflictError" in error
    assert "belongs to query" in error
    assert "reset" in error
    Admin(lab.options).reset_subscription(source, "s", to="here")
    shutil.rmtree(lab.checkpoint())
    lab.drain(writer)
    assert lab.visible(out) == ["a", "b"]


# -- several queries, several drivers --------------------------------------------------------------


def test_of_two_live_queries_with_one_sink_id_the_older_one_is_fenced(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    sink = f"sink-{out.rpartition('-')[2]}"
    upper = lab.source(source).selectExpr("upper(value) AS value")
    older = lab.sink(lab.source(source), out, lab.checkpoint("older"), sinkId=sink).start()
    older.processAllAvailable()
    newer = lab.sink(upper, out, lab.checkpoint("newer"), sinkId=sink).start()
    newer.processAllAvailable()
    lab.produce(source, "b")
    error = failure(lambda: ended(older))
    assert "FencedError" in error
    assert "was taken over by query" in error
    assert "two sink ids" in error
    newer.processAllAvailable()
    newer.stop()
    assert lab.visible(out) == ["A", "B", "a"]


def test_a_subscription_serves_one_query(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce_each(source, "a", "b")
    settings = {"subscription": "s", "startingOffsets": "subscription", "maxMessagesPerTrigger": 1}
    first, second = (
        lab.sink(lab.source(source, **settings), out, lab.checkpoint(name))
        for name in ("first", "second")
    )
    lab.drain(first)
    lab.produce(source, "c")
    error = failure(lambda: lab.drain(second))
    assert "a subscription serves one query" in error
    lab.drain(first)
    assert lab.visible(out) == ["a", "b", "c"]


def test_a_subscription_serves_one_source_of_a_query(lab: Lab) -> None:
    source, out = lab.topic(), lab.topic()
    lab.produce(source, "a")
    settings = {"subscription": "s", "startingOffsets": "subscription"}
    both = lab.source(source, **settings).union(lab.source(source, **settings))
    error = failure(lambda: lab.drain(lab.sink(both, out, lab.checkpoint())))
    assert "used twice in one query" in error
    assert "own subscription" in error
    assert lab.visible(out) == []
    each = lab.source(
        source,
        **settings,
    ).union(lab.source(source, startingOffsets="subscription", subscription="other"))
    Admin(lab.options).reset_subscription(source, "s", to="earliest")
    lab.drain(lab.sink(each, out, lab.checkpoint("each")))
    assert lab.visible(out) == ["a", "a"]
    assert lab.cursor(source, "s") == lab.cursor(source, "other") == lab.end(source)
