"""From a producer's send on a job's input topic to a reader's sight of the row in its output.

One process has the producer and the reader, both without Spark. The job copies rows from topic to
topic and starts a micro-batch as soon as there is something. Rows come one at a time, at moments
that have nothing to do with those of the job.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.measure import Result, SideError
from benchmarks.micro_batch import MILLISECONDS
from benchmarks.place import Place
from benchmarks.throughput import PLAIN, TRANSACTIONAL, Bench, read_stream
from pulsar_txn_spark import client
from pulsar_txn_spark.client import Consumer, Producer
from pulsar_txn_spark.environment import FORMAT

CASE = "produce_to_visible"
_SIDES = {"true": TRANSACTIONAL, "false": PLAIN}
_BLOCKS = 2  # of each side: with, without, without, with
_ROWS = 20  # of a block, for each repetition
_COLD = 5  # rows of a block that do not count: the first micro-batches of a query
_LONGEST_PAUSE_S = 0.4
_TIMEOUT_MS = 60_000
_SEED = 20_260_102


def produce_to_visible(bench: Bench, place: Place) -> list[Result]:
    """Measure p50 and p99 with transactions and without."""
    pauses = random.Random(_SEED)  # noqa: S311 - no secret
    times: dict[str, list[float]] = {transactions: [] for transactions in _SIDES}
    for block in range(_BLOCKS):
        for transactions in list(times) if block % 2 == 0 else list(times)[::-1]:
            with _job(bench, place, transactions) as (producer, consumer):
                for number in range(_COLD + _ROWS * bench.repetitions):
                    time.sleep(pauses.uniform(0, _LONGEST_PAUSE_S))
                    passed_ms = _seen(producer, consumer, b"%d" % number)
                    if number >= _COLD:
                        times[transactions].append(passed_ms)
                        bench.report(CASE, place.side(_SIDES[transactions]), passed_ms)
    by_kind = {_SIDES[transactions]: own for transactions, own in times.items()}
    figures = {kind: by_percentile(own) for kind, own in by_kind.items()}
    results = []
    for kind, own in by_kind.items():
        for what, figure in figures[kind].items():
            result = Result(CASE, place.side(f"{kind}, {what}"), MILLISECONDS, figure, tuple(own))
            if kind == TRANSACTIONAL:
                other = place.side(f"{PLAIN}, {what}")
                result = replace(result, ratio_to=other, ratio=figure / figures[PLAIN][what])
            results.append(result)
    return results


def by_percentile(times: Sequence[float]) -> dict[str, float]:
    """Return p50 and p99."""
    return {"p50": statistics.median(times), "p99": statistics.quantiles(times, n=100)[98]}


@contextmanager
def _job(bench: Bench, place: Place, transactions: str) -> Iterator[tuple[Producer, Consumer]]:
    """Run a job; give a producer of its input and a consumer of its output."""
    with (
        place.topic() as source,
        place.topic() as output,
        client.connect(place.options) as service,
        service.producer(source) as producer,
        service.consumer(output, "bench") as consumer,
    ):
        query = (
            read_stream(bench, place, source)
            .writeStream.format(FORMAT)
            .options(**{**place.options, "topic": output, "transactions": transactions})
            .option("checkpointLocation", bench.checkpoint())
            .start()
        )
        try:
            yield producer, consumer
        finally:
            query.stop()


def _seen(producer: Producer, consumer: Consumer, value: bytes) -> float:
    """Send a row, wait for it behind the job, and return the milliseconds in between."""
    began = time.perf_counter()
    producer.send(value, key=b"key")
    message = consumer.receive(timeout_ms=_TIMEOUT_MS)
    passed_ms = (time.perf_counter() - began) * 1000
    if message.value != value:
        raise SideError(f"{value!r} was sent, {message.value!r} came")
    consumer.acknowledge(message)
    return passed_ms
