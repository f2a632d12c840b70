"""The time of nearly empty micro-batches, and how often each of them asks the metadata store.

One streaming query runs with a trigger interval; between two triggers, rows are put into its input
from outside of Spark. Its source acknowledges under a subscription, in its sink's transaction.
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import null
from benchmarks.bare_log import append_one
from benchmarks.data import SEGMENTS
from benchmarks.measure import Result, Series, compare
from benchmarks.monitor import Monitor
from benchmarks.place import Place
from benchmarks.throughput import NULL, PLAIN, TRANSACTIONAL, Report
from pulsar_txn_spark.spark.datasource import FORMAT
from pulsar_txn_spark.store.protocol import EndedBy
from pulsar_txn_spark.txn.batch import new_nonce
from pulsar_txn_spark.txn.buffer import writer_name

MILLISECONDS = "ms"
ROUND_TRIPS = "round trips"
_INTERVAL = "500 milliseconds"
_PROGRESS_SECONDS = 60.0
_BLOCKS = 2  # null, ours, ours, null: drift cancels
_WARM_UP = 2  # micro-batches of each shape that do not count


@dataclass(frozen=True, slots=True)
class Shape:
    """What one micro-batch is made of."""

    case: str
    segments: int
    rows: int  # in each of these segments, 0 or 1


SHAPES = (
    Shape("empty_micro_batch", SEGMENTS, 0),
    Shape(f"one_row_micro_batch_{SEGMENTS}_segments", 1, 1),
    Shape(f"row_in_each_of_{SEGMENTS}_segments_micro_batch", SEGMENTS, 1),
)


class _Progress(StreamingQueryListener):
    """Hands the progress of micro-batches over."""

    def __init__(self) -> None:
        self.found: queue.Queue[Any] = queue.Queue()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.found.put(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


@dataclass(frozen=True, slots=True)
class Stepper:
    """A running query that makes one micro-batch at a time."""

    push: Callable[[Shape], None]
    found: queue.Queue[Any]

    def step(self, shape: Shape) -> Mapping[str, int]:
        """Make a micro-batch of that shape and return Spark's own account of its time (ms).

        Raises
        ------
        RuntimeError
            If the micro-batch was not of that shape.
        """
        self.push(shape)
        return self.wait(shape)

    def wait(self, shape: Shape) -> Mapping[str, int]:
        """Wait for the micro-batch that was pushed; see :meth:`step`."""
        while True:
            progress = self.found.get(timeout=_PROGRESS_SECONDS)
            # A trigger without anything new makes no micro-batch and does not count.
            if "addBatch" in progress.durationMs:
                break
        if progress.numInputRows != shape.rows * shape.segments:
            raise RuntimeError(f"a micro-batch of {progress.numInputRows} rows instead of {shape}")
        times: Mapping[str, int] = progress.durationMs
        return times


def put(place: Place, topic: str, shape: Shape) -> None:
    """Put rows into a topic; those of an empty micro-batch belong to an aborted transaction."""
    segments = place.segments(topic)[: shape.segments]
    if shape.rows:
        append_one(place, segments, f"bench-{new_nonce()}")
        return
    run, nonce, timeout_ms = place.run, new_nonce(), 60_000
    txn = run.coordinator.new_txn(nonce, timeout_ms=timeout_ms)
    name = writer_name(txn, 0, "bench")
    run.buffer.admit(txn, nonce, timeout_ms, name, [segment.id for segment in segments])
    append_one(place, segments, name)
    run.coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause="the benchmark says so")


@contextmanager
def ours(
    spark: SparkSession, place: Place, folder: Path, transactions: str
) -> Iterator[Stepper]:
    """Run our source into our sink."""
    with place.topic() as source, place.topic() as sink:
        query = (
            spark.readStream.schema(null.SCHEMA)
            .format(FORMAT)
            .options(**place.options)
            .option("topic", source)
            .option("subscription", f"bench-{time.monotonic_ns()}")
            .option("startingOffsets", "earliest")
            .load()
            .writeStream.format(FORMAT)
            .options(**place.options)
            .option("topic", sink)
            .option("transactions", transactions)
            .option("checkpointLocation", tempfile.mkdtemp(prefix="checkpoint-", dir=folder))
            .trigger(processingTime=_INTERVAL)
        )
        with _stepping(spark, query.start(), lambda shape: put(place, source, shape)) as stepper:
            yield stepper


@contextmanager
def nothing(spark: SparkSession, folder: Path) -> Iterator[Stepper]:
    """Run a null source into a null sink."""
    scratch = Path(tempfile.mkdtemp(prefix="null-", dir=folder))
    pushed = scratch / "pushed"
    pushed.touch()
    query = (
        spark.readStream.format(null.FORMAT)
        .option("path", str(pushed))
        .load()
        .writeStream.format(null.FORMAT)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(processingTime=_INTERVAL)
    )

    def push(shape: Shape) -> None:
        null.push(pushed, shape.segments, shape.rows)

    with _stepping(spark, query.start(), push) as stepper:
        yield stepper


@contextmanager
def _stepping(
    spark: SparkSession, query: StreamingQuery, push: Callable[[Shape], None]
) -> Iterator[Stepper]:
    progress = _Progress()
    spark.streams.addListener(progress)
    try:
        yield Stepper(push, progress.found)
    finally:
        query.stop()
        spark.streams.removeListener(progress)


def latency(
    spark: SparkSession, place: Place, folder: Path, repetitions: int, report: Report
) -> list[Result]:
    """Measure micro-batches of each shape: ours, ours without transactions, and null ones."""
    kinds: dict[str, Callable[[], Any]] = {
        NULL: lambda: nothing(spark, folder),
        place.side(TRANSACTIONAL): lambda: ours(spark, place, folder, "true"),
        place.side(PLAIN): lambda: ours(spark, place, folder, "false"),
    }
    measured = {shape: {side: Series(MILLISECONDS) for side in kinds} for shape in SHAPES}
    for block in range(_BLOCKS):
        for side in list(kinds) if block % 2 == 0 else list(reversed(kinds)):
            with kinds[side]() as stepper:
                for turn in range(_WARM_UP + repetitions):
                    for shape in SHAPES:
                        spent = stepper.step(shape)["triggerExecution"]
                        series = measured[shape][side]
                        if series.first is None:
                            series.first = spent
                        if turn >= _WARM_UP:
                            series.runs.append(spent)
                            report(shape.case, side, spent)
    ratios = {
        place.side(TRANSACTIONAL): (NULL, place.side(PLAIN)),
        place.side(PLAIN): (NULL,),
    }
    return [
        row for shape in SHAPES for row in compare(shape.case, measured[shape], ratios)
    ]


def account(spark: SparkSession, place: Place, folder: Path, repetitions: int) -> dict[str, Any]:
    """Return the mean of Spark's own account of a one-row micro-batch, by side and phase (ms)."""
    shape = SHAPES[1]
    means = {}
    for side, start in {
        NULL: lambda: nothing(spark, folder),
        place.side(TRANSACTIONAL): lambda: ours(spark, place, folder, "true"),
    }.items():
        totals: Counter[str] = Counter()
        with start() as stepper:
            for turn in range(_WARM_UP + repetitions):
                spent = stepper.step(shape)
                if turn >= _WARM_UP:
                    totals.update(spent)
        means[side] = {phase: total / repetitions for phase, total in totals.items()}
    return means


def round_trips(
    spark: SparkSession, place: Place, folder: Path, repetitions: int, report: Report
) -> tuple[list[Result], dict[str, float]]:
    """Count what a micro-batch with a row in each segment asks the metadata store.

    Everything from one micro-batch's end to the next one's is counted, planning and the source's
    ``commit`` included, as long as it comes from Spark's processes.

    Returns
    -------
    results : list of Result
    scripts : dict of str to float
        Commands in a micro-batch, by name of script or command.
    """
    case, series, scripts = "store_round_trips_per_micro_batch", {}, Counter[str]()
    for kind, transactions in ((TRANSACTIONAL, "true"), (PLAIN, "false")):
        side = place.side(kind)
        series[side] = Series(ROUND_TRIPS)
        with ours(spark, place, folder, transactions) as stepper, Monitor(place) as monitor:
            for turn in range(_WARM_UP + repetitions):
                stepper.push(SHAPES[2])
                with monitor.counting() as counted:
                    stepper.wait(SHAPES[2])
                if series[side].first is None:
                    series[side].first = counted.round_trips
                if turn >= _WARM_UP:
                    series[side].runs.append(counted.round_trips)
                    report(case, side, counted.round_trips)
                    if kind == TRANSACTIONAL:
                        scripts.update(counted.commands)
    ratios = {place.side(TRANSACTIONAL): (place.side(PLAIN),)}
    means = {name: count / repetitions for name, count in scripts.most_common()}
    return compare(case, series, ratios), means
