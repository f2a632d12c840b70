"""What the number of segments does to a writing job, and what a split costs one that runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import pyarrow as pa
import urllib3

import pulsar_txn_spark
from benchmarks.data import BATCH_ROWS, PROCESSES, load
from benchmarks.measure import Result, Series, SideError, compare, interleave
from benchmarks.micro_batch import MILLISECONDS, Progress
from benchmarks.place import Place
from benchmarks.throughput import Bench, appended, read_stream, sink_stream, turned
from pulsar_txn_spark.engine.topic_writers import TopicWriters, winners_of
from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.txn.batch import new_nonce
from pulsar_txn_spark.txn.coordinator import DEFAULT_TIMEOUT_MS
from pulsar_txn_spark.txn.transaction_buffer import writer_name

_COUNTS = (1, 2, 4, 8)
_MICRO_BATCHES = 12
_COLD = 2  # the first micro-batches of a query do not count
_PROGRESS_SECONDS = 120.0
STEADY = "steady"
OUTPUT, INPUT = "output-changes-in-each", "input-changes-in-each"
"""A segment is split, or two are merged, in each micro-batch."""


def scaling(bench: Bench, place: Place) -> Iterator[list[Result]]:
    """Measure a writing job, and the log alone, with 1, 2, 4 and 8 segments.

    The job has a task for each of the two cores, whatever the number of segments. Then it has a
    single one, which shows what one task gains from several segments. Where one segment takes all
    that the cores can give, more cannot help. On Pulsar the broker is therefore told to take less
    from each: so it is where a segment's disk or broker is the limit.
    """
    cases: dict[str, Callable[[Bench, Place, int], float]] = {
        "sink_stream_by_segments": _streamed,
        "sink_stream_of_one_task_by_segments": partial(_streamed, tasks=1),
        "log_by_segments": appended,
    }
    if place.service_url:
        cases["sink_stream_by_slow_segments"] = partial(_streamed, a_second=bench.rows // 10)
    for case, write in cases.items():
        sides: dict[str, Callable[[], float]] = {
            _side(place, count): partial(write, bench, place, count) for count in _COUNTS
        }
        single = _side(place, 1)
        yield bench.run_case(case, sides, {side: (single,) for side in sides if side != single})


def _streamed(
    bench: Bench, place: Place, count: int, tasks: int = PROCESSES, a_second: int | None = None
) -> float:
    """Write the input with transactions into a topic of so many segments; return rows/s."""
    with place.topic(count) as topic:
        if a_second is not None:
            for segment in place.segments(topic):
                _slow_down(place, segment.log_name, a_second)
        return bench.rate(sink_stream(bench, {**place.options, "topic": topic}, tasks), bench.rows)


def _slow_down(place: Place, log_name: str, messages_a_second: int) -> None:
    """Let the broker take so many messages a second from all producers of a segment.

    What it may take in the first second (its token bucket is full) it takes at once.
    """
    path = f"{place.admin_url}/admin/v2/{log_name.replace('://', '/')}/publishRate"
    rate = {"publishThrottlingRateInMsg": messages_a_second, "publishThrottlingRateInByte": -1}
    answer = urllib3.request("POST", path, json=rate)
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise SideError(f"the broker refused a publish rate for {log_name}: {answer.status}")
    deadline = time.monotonic() + _PROGRESS_SECONDS
    # Policies go through a topic of their own; the broker tells nobody when it has read it.
    while rate.items() - (urllib3.request("GET", path).json() or {}).items():
        if time.monotonic() > deadline:
            raise SideError(f"the broker does not take a publish rate for {log_name}")
        time.sleep(0.05)


def _side(place: Place, count: int) -> str:
    return place.side(f"{count}-segment{'s' if count > 1 else ''}")


@dataclass(slots=True)
class _Found:
    """What the runs of one side found besides their median."""

    longest: list[float]
    batches: list[float]


def split_cost(bench: Bench, place: Place) -> Iterator[list[Result]]:
    """Measure micro-batches of a job, and those during which its output or input changes.

    The job gets the same number of rows again and again, each time in one transaction. It is
    measured by the time of its micro-batches until all of them have passed. Where its input
    changes, it does so in the middle of these rows. So half of them are in the parents and half
    in the children. As parents are read before their children, these take two micro-batches.
    """
    case = "micro_batch_while_segments_change"
    also: dict[str, _Found] = {}

    def measured(kind: str) -> Callable[[], float]:
        costs = also[place.side(kind)] = _Found([], [])

        def run() -> float:
            times, batches = _job(bench, place, kind)
            costs.longest.append(max(times))
            costs.batches.append(batches)
            return statistics.median(times)

        return run

    sides = {place.side(kind): measured(kind) for kind in (STEADY, OUTPUT, INPUT)}
    series = interleave(
        sides,
        bench.repetitions,
        MILLISECONDS,
        lambda side, figure: bench.report(case, side, figure),
    )
    ratios = {place.side(kind): (place.side(STEADY),) for kind in (OUTPUT, INPUT)}
    yield compare(case, series, ratios)
    longest = {side: costs.longest for side, costs in also.items()}
    batches = {side: costs.batches for side, costs in also.items()}
    for what, unit, figures in (
        ("longest", MILLISECONDS, longest),
        ("number", "micro-batches", batches),
    ):
        second = {side: Series(unit, runs[0], runs[1:]) for side, runs in figures.items()}
        yield compare(f"{case}_{what}", second, ratios)


def _change(place: Place, topic: str, number: int) -> None:
    """Split a segment, or merge what was split: the number of segments stays where it is."""
    active = pulsar_txn_spark.Admin(place.options).find_topic(topic).active
    if number % 2 == 0:
        pulsar_txn_spark.Admin(place.options).split_segment(topic, active[0].descriptor)
    else:
        names = [segment.descriptor for segment in active[:2]]
        pulsar_txn_spark.Admin(place.options).merge_segments(topic, names)


def _job(bench: Bench, place: Place, kind: str) -> tuple[list[float], float]:
    """Run a job; return each share's time, and the mean number of micro-batches it took."""
    table = pa.concat_tables([load(str(part)) for part in bench.parts])
    share = table.num_rows // _MICRO_BATCHES
    progress = Progress()
    bench.spark.streams.addListener(progress)
    times: list[float] = []
    batches = 0
    with place.topic() as source, place.topic() as output:
        query = (
            turned(read_stream(bench, place, source))
            .writeStream.format(FORMAT)
            .options(**{**place.options, "topic": output})
            .option("checkpointLocation", bench.checkpoint())
            .start()
        )
        try:
            for number in range(_MICRO_BATCHES):
                between = partial(_change, place, source, number) if kind == INPUT else None
                _put(place, source, table.slice(number * share, share), between)
                if kind == OUTPUT:
                    _change(place, output, number)  # the micro-batch is on its way
                spent, count = _passed(progress, share)
                times.append(spent)
                batches += count
        finally:
            query.stop()
            bench.spark.streams.removeListener(progress)
    return times[_COLD:], batches / _MICRO_BATCHES


def _writer(txn: TxnId, part: int, generation: int) -> str:
    return writer_name(txn, part, f"bench{generation}")


def _put(place: Place, topic: str, rows: pa.Table, between: Callable[[], None] | None) -> None:
    """Write rows in one transaction, in two halves."""
    components, nonce = place.components, new_nonce()
    txn = components.coordinator.new_txn(nonce, timeout_ms=DEFAULT_TIMEOUT_MS)
    middle = rows.num_rows // 2
    written = []
    for part, half in enumerate((rows.slice(0, middle), rows.slice(middle))):
        if part and between is not None:
            between()
        name = partial(_writer, txn, part)
        writers = TopicWriters(
            components,
            name,
            lambda generation, segments, name=name: components.buffer.admit(  # type: ignore[misc]
                txn, nonce, DEFAULT_TIMEOUT_MS, name(generation), segments
            ),
            0,
        )
        try:
            for batch in half.to_batches(max_chunksize=BATCH_ROWS):
                writers.append(TopicName.parse(topic), batch)
            written += writers.finish()
        finally:
            writers.close()
    components.coordinator.commit(txn, nonce, Outcome(winners=winners_of(written)))


def _passed(progress: Progress, rows: int) -> tuple[float, int]:
    """Wait until so many rows have passed; return the time of the micro-batches, and how many."""
    spent, batches = 0.0, 0
    while rows > 0:
        progressed = progress.progresses.get(timeout=_PROGRESS_SECONDS)
        if "addBatch" in progressed.durationMs:  # a trigger without anything new makes none
            rows -= progressed.numInputRows
            spent += progressed.durationMs["triggerExecution"]
            batches += 1
    if rows:
        raise RuntimeError(f"rows were doubled: found {-rows} too many")
    return spent, batches
