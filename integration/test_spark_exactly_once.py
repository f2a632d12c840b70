"""One micro-batch, one transaction: replays, retries, fencing, restored and deleted checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from integration.spark_support import (
    FORMAT,
    Lab,
    Meeting,
    copied,
    ended,
    failure,
    fails_once,
    forget_last_commit,
    on_value,
    restored,
)
from pulsar_txn_spark import BatchTransaction, TransactionalSink, reset_subscription, transactional

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
            f.concat_ws("=", f.col("window.start").cast("long"), "n").alias("value")
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
    lab.produce(job.source, "1", "2")
    lab.produce(job.source, "12", segment=1)
    lab.drain(writer(job))
    before = {topic: lab.rows(topic) for topic in sides}
    stood = lab.cursor(job.source, "s")
    forget_last_commit(job.checkpoint)
    lab.produce(job.source, "23")
    query = lab.drain(writer(job))
    assert stood is not None
    assert lab.cursor(job.source, "s") == lab.end(job.source) > stood
    assert query.lastProgress is not None
    for topic in sides:
        # In front stands what was there before; behind it only the new rows.
        new = [row["value"].decode() for row in lab.rows(topic)[len(before[topic]) :]]
        assert lab.rows(topic)[: len(before[topic])] == before[topic]
        assert new == (["10=1"] if job.stateful else ["23"])
        held = lab.physical(topic)
        assert held.rows == len(before[topic]) + 1, "a replay that writes is not a replay"
        assert held.aborted_rows == 0


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
    replay(job, writer, [getattr(job, name) for name in outputs])
