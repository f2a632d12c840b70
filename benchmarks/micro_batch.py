"""The time of nearly empty micro-batches, and how often each of them asks the metadata store.

One streaming query runs with a trigger interval; between two triggers, rows are put into its input
from outside of Spark. Its source acknowledges under a subscription, in its sink's transaction.
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks import null
from benchmarks.bare_log import append_one
from benchmarks.data import PROCESSES, SEGMENTS
from benchmarks.measure import Result, Series, SideError, compare
from benchmarks.monitor import Monitor
from benchmarks.peer import SIDE as JVM
from benchmarks.peer import Peer
from benchmarks.place import Place
from benchmarks.throughput import BY_CLIENT, NATIVE, NULL, PLAIN, TRANSACTIONAL, Drop, Report
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import EndedBy
from pulsar_txn_spark.txn.batch import new_nonce
from pulsar_txn_spark.txn.coordinator import DEFAULT_TIMEOUT_MS, as_record
from pulsar_txn_spark.txn.transaction_buffer import writer_name

MILLISECONDS = "ms"
ROUND_TRIPS = "round trips"
_INTERVAL = "400 milliseconds"
_PROGRESS_SECONDS = 60.0
_TRIES = 5  # a trigger may strike between two segments of what is put in
_BLOCKS = 2  # null, ours, ours, null: drift cancels
_WARM_UP = 2  # micro-batches of each shape that do not count
_WARM_UP_EACH = 10  # the same where a topic is wide: until each of Spark's workers has its readers


@dataclass(frozen=True, slots=True)
class Shape:
    """What one micro-batch is made of."""

    case: str
    segments: int
    rows: int  # in each of these segments, 0 or 1


SEGMENT_COUNTS = (1, 4, 16)
_EACH_COUNTS = (4, 16, 64, 256)
EMPTY = Shape("empty_micro_batch", SEGMENTS, 0)
ONE_ROW = Shape("one_row_micro_batch", 1, 1)
ROW_IN_EACH = Shape(f"row_in_each_of_{SEGMENTS}_segments_micro_batch", SEGMENTS, 1)
SHAPES = (EMPTY, ONE_ROW, ROW_IN_EACH)
SPARED = f"{NULL}-spared"
"""A null source and sink that keep their modules out of garbage collections, as ours do."""


class Progress(StreamingQueryListener):
    """Hands the progress of micro-batches over."""

    def __init__(self) -> None:
        self.progresses: queue.Queue[Any] = queue.Queue()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Hand it over."""
        self.progresses.put(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing."""


class Steps(Protocol):
    """A query, of whichever side, that makes one micro-batch at a time."""

    def step(self, shape: Shape) -> Mapping[str, int]:
        """Make a micro-batch of that shape and return Spark's own account of its time (ms)."""
        ...


Kinds = Mapping[str, Callable[[], AbstractContextManager[Steps]]]


@dataclass(frozen=True, slots=True)
class Stepper:
    """A running query that makes one micro-batch at a time."""

    push: Callable[[Shape], None]
    progresses: queue.Queue[Any]

    def step(self, shape: Shape) -> Mapping[str, int]:
        """Make a micro-batch of that shape and return Spark's own account of its time (ms).

        Raises
        ------
        RuntimeError
            If the query does not make such a micro-batch.
        """
        for _ in range(_TRIES):
            self.push(shape)
            times = self.wait(shape)
            if times is not None:
                return times
        raise RuntimeError(f"the query does not make a micro-batch of {shape}")

    def wait(self, shape: Shape) -> Mapping[str, int] | None:
        """Wait for all that was pushed; None if it did not come in one micro-batch."""
        missing = shape.rows * shape.segments
        batches = 0
        while True:
            progress = self.progresses.get(timeout=_PROGRESS_SECONDS)
            # A trigger without anything new makes no micro-batch and does not count.
            if "addBatch" not in progress.durationMs:
                continue
            batches += 1
            missing -= progress.numInputRows
            if missing <= 0:
                times: Mapping[str, int] = progress.durationMs
                return times if batches == 1 and missing == 0 else None


def put(place: Place, topic: str, shape: Shape) -> None:
    """Put rows into a topic in one transaction, so that a reader gets all of them at once.

    Those of an empty micro-batch belong to a transaction that is aborted: the source moves past
    them, and no row comes out.
    """
    segments = place.segments(topic)[: shape.segments]
    components, nonce = place.components, new_nonce()
    txn = components.coordinator.new_txn(nonce, timeout_ms=DEFAULT_TIMEOUT_MS)
    name = writer_name(txn, 0, "bench")
    components.buffer.admit(
        txn, nonce, DEFAULT_TIMEOUT_MS, name, [segment.id for segment in segments]
    )
    ends = append_one(place, segments, name)
    if not shape.rows:
        components.coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause="the benchmark says so")
        return
    winners = [
        Winner(segment=ref.id, writer=name, last=as_record(end)) for ref, end in ends.items()
    ]
    components.coordinator.commit(txn, nonce, Outcome(winners=winners))


@contextmanager
def ours(
    spark: SparkSession, place: Place, folder: Path, transactions: str, segments: int = SEGMENTS
) -> Iterator[Stepper]:
    """Run our source into our sink."""
    native = transactions == NATIVE
    with (
        place.topic(segments) as source,
        place.native_topic(segments) if native else place.topic(segments) as sink,
    ):
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
def nothing(spark: SparkSession, folder: Path, *, spare: bool) -> Iterator[Stepper]:
    """Run a null source into a null sink."""
    scratch = Path(tempfile.mkdtemp(prefix="null-", dir=folder))
    pushed = scratch / "pushed"
    pushed.touch()
    query = (
        spark.readStream.format(null.FORMAT)
        .option("path", str(pushed))
        .option("spare", spare)
        .load()
        .writeStream.format(null.FORMAT)
        .option("spare", spare)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .trigger(processingTime=_INTERVAL)
    )

    def push(shape: Shape) -> None:
        tasks = min(shape.segments, PROCESSES)  # as our source has
        null.push(pushed, tasks, shape.rows * shape.segments // tasks)

    with _stepping(spark, query.start(), push) as stepper:
        yield stepper


@dataclass(frozen=True, slots=True)
class _PeerStepper:
    peer: Peer

    def step(self, shape: Shape) -> Mapping[str, int]:
        assert shape is ONE_ROW
        return {"triggerExecution": self.peer.ask("micro_batch")["milliseconds"]}


@contextmanager
def theirs(peer: Peer, partitions: int) -> Iterator[Steps]:
    """Run the JVM connector's source into its sink."""
    with peer.topic(partitions) as topic, peer.topic(partitions) as output:
        peer.ask("begin_micro_batches", topic=topic, output=output)
        try:
            yield _PeerStepper(peer)
        finally:
            peer.ask("end_micro_batches")


@contextmanager
def _stepping(
    spark: SparkSession, query: StreamingQuery, push: Callable[[Shape], None]
) -> Iterator[Stepper]:
    progress = Progress()
    spark.streams.addListener(progress)
    try:
        yield Stepper(push, progress.progresses)
    finally:
        query.stop()
        spark.streams.removeListener(progress)


def stepped(
    kinds: Kinds,
    shapes: Sequence[Shape],
    repetitions: int,
    report: Report,
    drop: Drop,
    *,
    warm_up: int = _WARM_UP,
) -> tuple[dict[Shape, dict[str, Series]], dict[str, Counter[str]]]:
    """Let sides make micro-batches in turn; return their times, and what ONE_ROW's went into.

    Of each query the first `warm_up` micro-batches of a shape do not count.
    """
    measured = {shape: {side: Series(MILLISECONDS) for side in kinds} for shape in shapes}
    phases: dict[str, Counter[str]] = {side: Counter() for side in kinds}
    for block in range(_BLOCKS):
        for side in list(phases) if block % 2 == 0 else list(phases)[::-1]:
            try:
                with kinds[side]() as stepper:
                    for repetition in range(warm_up + repetitions):
                        for shape in shapes:
                            times = stepper.step(shape)
                            spent = times["triggerExecution"]
                            series = measured[shape][side]
                            if series.first is None:
                                series.first = spent
                            if repetition >= warm_up:
                                series.runs.append(spent)
                                report(shape.case, side, spent)
                                if shape is ONE_ROW:
                                    phases[side].update(times)
            except SideError as error:
                drop(shapes[0].case, side, error)
                del phases[side]
                for shape in shapes:
                    del measured[shape][side]
    return measured, phases


def latency(
    spark: SparkSession, place: Place, folder: Path, repetitions: int, report: Report, drop: Drop
) -> tuple[list[Result], dict[str, dict[str, float]]]:
    """Measure micro-batches of each shape: ours, ours without transactions, and null ones.

    Returns
    -------
    results : list of Result
    account : dict
        By side, Spark's own account of the one-row micro-batch: phase -> mean (ms).
    """
    kinds: dict[str, Callable[[], AbstractContextManager[Steps]]] = {
        place.side(NULL): lambda: nothing(spark, folder, spare=False),
        place.side(SPARED): lambda: nothing(spark, folder, spare=True),
        place.side(TRANSACTIONAL): lambda: ours(spark, place, folder, "true"),
        place.side(PLAIN): lambda: ours(spark, place, folder, "false"),
    }
    if place.service_url:
        kinds[place.side(NATIVE)] = lambda: ours(spark, place, folder, NATIVE)
    measured, phases = stepped(kinds, SHAPES, repetitions, report, drop)
    ratios = {
        place.side(TRANSACTIONAL): (
            place.side(NULL),
            place.side(SPARED),
            place.side(PLAIN),
            place.side(NATIVE),
        ),
        place.side(PLAIN): (place.side(NULL), place.side(SPARED)),
        place.side(SPARED): (place.side(NULL),),
    }
    results = [row for shape in SHAPES for row in compare(shape.case, measured[shape], ratios)]
    count = _BLOCKS * repetitions
    account = {
        side: {phase: total / count for phase, total in sorted(figures.items())}
        for side, figures in phases.items()
    }
    return results, account


def by_segments(
    spark: SparkSession,
    place: Place,
    folder: Path,
    repetitions: int,
    report: Report,
    drop: Drop,
    peer: Peer | None,
) -> Iterator[list[Result]]:
    """Measure one-row micro-batches of topics with few and many segments."""
    for segments in SEGMENT_COUNTS:
        case = f"one_row_micro_batch_{segments}_segments"
        null_side, exact, plain = (place.side(kind) for kind in (NULL, TRANSACTIONAL, PLAIN))
        spared, by_client = place.side(SPARED), place.side(BY_CLIENT)
        kinds: dict[str, Callable[[], AbstractContextManager[Steps]]] = {
            null_side: partial(nothing, spark, folder, spare=False),
            spared: partial(nothing, spark, folder, spare=True),
            exact: partial(ours, spark, place, folder, "true", segments),
            plain: partial(ours, spark, place, folder, "false", segments),
        }
        if place.service_url:
            kinds[by_client] = partial(ours, spark, place.by("client"), folder, "true", segments)
        if peer is not None:
            kinds[JVM] = partial(theirs, peer, segments)
        ratios = {
            exact: (null_side, spared, plain, by_client, JVM),
            plain: (null_side, spared, JVM),
            by_client: (null_side, spared, JVM),
            JVM: (null_side,),
        }
        yield compare_steps(case, ONE_ROW, kinds, ratios, repetitions, report, drop)


def one_row_each(
    spark: SparkSession, place: Place, folder: Path, repetitions: int, report: Report, drop: Drop
) -> Iterator[list[Result]]:
    """Measure micro-batches with a row in each of few and of many segments."""
    for segments in _EACH_COUNTS:
        null_side, exact, plain = (place.side(kind) for kind in (NULL, TRANSACTIONAL, PLAIN))
        spared, case = place.side(SPARED), f"one_row_each_{segments}_segments"
        kinds: Kinds = {
            null_side: partial(nothing, spark, folder, spare=False),
            spared: partial(nothing, spark, folder, spare=True),
            exact: partial(ours, spark, place, folder, "true", segments),
            plain: partial(ours, spark, place, folder, "false", segments),
        }
        ratios = {exact: (null_side, spared, plain), plain: (null_side, spared)}
        shape = Shape(case, segments, 1)
        yield compare_steps(
            case, shape, kinds, ratios, repetitions, report, drop, warm_up=_WARM_UP_EACH
        )


def compare_steps(
    case: str,
    shape: Shape,
    kinds: Kinds,
    ratios: Mapping[str, tuple[str, ...]],
    repetitions: int,
    report: Report,
    drop: Drop,
    *,
    warm_up: int = _WARM_UP,
) -> list[Result]:
    """Let sides make micro-batches of one shape in turn, and turn them into the rows of a case."""
    measured, _ = stepped(
        kinds,
        [shape],
        repetitions,
        lambda _, side, figure: report(case, side, figure),
        lambda _, side, error: drop(case, side, error),
        warm_up=warm_up,
    )
    return compare(case, measured[shape], ratios)


def round_trips(
    spark: SparkSession, place: Place, folder: Path, repetitions: int, report: Report
) -> tuple[list[Result], dict[str, dict[str, float]]]:
    """Count what a micro-batch with a row in each segment asks the metadata store.

    Everything from one micro-batch's end to the next one's is counted, planning and the source's
    ``commit`` included, as long as it comes from Spark's processes.

    Returns
    -------
    results : list of Result
        With and without transactions; on Pulsar by each transport.
    scripts : dict
        By side, commands in a micro-batch: name of script or command -> mean.
    """
    case = "store_round_trips_per_micro_batch"
    series: dict[str, Series] = {}
    scripts: dict[str, dict[str, float]] = {}
    ratios: dict[str, tuple[str, ...]] = {}
    for transport in ("wire", "client") if place.service_url else ("",):
        here = place.by(transport) if transport else place
        by = f" by {transport}" if transport else ""
        exact, plain = place.side(TRANSACTIONAL) + by, place.side(PLAIN) + by
        ratios[exact] = (plain,)
        for side, transactions in ((exact, "true"), (plain, "false")):
            series[side] = figures = Series(ROUND_TRIPS)
            commands = Counter[str]()
            with ours(spark, here, folder, transactions) as stepper, Monitor(here) as monitor:
                for repetition in range(_WARM_UP + repetitions):
                    stepper.push(ROW_IN_EACH)
                    with monitor.counting() as counted:
                        stepper.wait(ROW_IN_EACH)
                    if figures.first is None:
                        figures.first = counted.round_trips
                    if repetition >= _WARM_UP:
                        figures.runs.append(counted.round_trips)
                        report(case, side, counted.round_trips)
                        commands.update(counted.commands)
            scripts[side] = {name: n / repetitions for name, n in commands.most_common()}
    return compare(case, series, ratios), scripts
