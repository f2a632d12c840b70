"""What the number of segments does to a writing job, and what a split costs one that runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import pulsar_txn_spark
from benchmarks.measure import Result, compare, interleave
from benchmarks.micro_batch import MILLISECONDS, Progress
from benchmarks.place import Place
from benchmarks.throughput import Bench, appended, filled, read_stream, stream_into, turned
from pulsar_txn_spark.spark.datasource import FORMAT

_COUNTS = (1, 2, 4, 8)
_MICRO_BATCHES = 12
_COLD = 2  # the first micro-batches of a query do not count
_PROGRESS_SECONDS = 120.0
STEADY, CHANGING = "steady", "a-change-in-each"


def scaling(bench: Bench, place: Place) -> Iterator[list[Result]]:
    """Measure a writing job, and the log alone, with 1, 2, 4 and 8 segments."""
    for case, write in (("sink_stream_by_segments", stream_into), ("log_by_segments", appended)):
        sides: dict[str, Callable[[], float]] = {
            _side(place, count): partial(write, bench, place, count) for count in _COUNTS
        }
        one = _side(place, 1)
        yield bench.run_case(case, sides, {side: (one,) for side in sides if side != one})


def _side(place: Place, count: int) -> str:
    return place.side(f"{count}-segment{'s' if count > 1 else ''}")


def split_cost(bench: Bench, place: Place) -> Iterator[list[Result]]:
    """Measure micro-batches of a job, and those during which its output is split or merged."""
    case = "micro_batch_while_segments_change"
    with filled(bench, place) as topic:
        sides: dict[str, Callable[[], float]] = {
            place.side(STEADY): lambda: _micro_batch(bench, place, topic, None),
            place.side(CHANGING): lambda: _micro_batch(bench, place, topic, _change),
        }
        series = interleave(
            sides,
            bench.repetitions,
            MILLISECONDS,
            lambda side, figure: bench.report(case, side, figure),
        )
        yield compare(case, series, {place.side(CHANGING): (place.side(STEADY),)})


def _change(place: Place, output: str, number: int) -> None:
    """Split a segment, or merge what was split: the number of segments stays where it is."""
    active = pulsar_txn_spark.find_topic(place.options, output).active
    if number % 2 == 0:
        pulsar_txn_spark.split_segment(place.options, output, active[0].descriptor)
    else:
        names = [segment.descriptor for segment in active[:2]]
        pulsar_txn_spark.merge_segments(place.options, output, names)


def _micro_batch(
    bench: Bench,
    place: Place,
    topic: str,
    change: Callable[[Place, str, int], None] | None,
) -> float:
    """Run a job in several micro-batches, and return the median time of one."""
    progress = Progress()
    bench.spark.streams.addListener(progress)
    try:
        with place.topic() as output:
            query = (
                turned(
                    read_stream(
                        bench, place, topic, maxMessagesPerTrigger=bench.rows // _MICRO_BATCHES
                    )
                )
                .writeStream.format(FORMAT)
                .options(**{**place.options, "topic": output})
                .option("checkpointLocation", bench.checkpoint())
                .trigger(availableNow=True)
                .start()
            )
            times: list[float] = []
            rows = 0
            while rows < bench.rows:
                found = progress.found.get(timeout=_PROGRESS_SECONDS)
                if not found.numInputRows:
                    continue
                rows += found.numInputRows
                times.append(found.durationMs["triggerExecution"])
                if change is not None and rows < bench.rows:
                    change(place, output, len(times))  # the next micro-batch is on its way
            query.awaitTermination()
            bench.rate(1.0, rows)
    finally:
        bench.spark.streams.removeListener(progress)
    return statistics.median(times[_COLD:])
