"""Small micro-batches where the metadata store is not on the same machine.

The store is a Redis on a port, which syncs each write. A proxy makes each round trip to it longer.
On the embedded backend the segments are there, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from benchmarks.delaying_proxy import DelayingProxy
from benchmarks.embedded import redis_on_port
from benchmarks.measure import Result
from benchmarks.micro_batch import ROW_IN_EACH, SPARED, Kinds, compare_steps, nothing, ours
from benchmarks.place import Place
from benchmarks.throughput import NULL, PLAIN, TRANSACTIONAL, Drop, Report

_ROUND_TRIPS_MS = (2,)
NEAR = "exactly-once, store near"


def far_store(
    spark: SparkSession, place: Place, folder: Path, repetitions: int, report: Report, drop: Drop
) -> Iterator[list[Result]]:
    """Measure micro-batches with a row in each segment, the store so many milliseconds away."""
    with redis_on_port(folder) as url:
        near = place.stored_at(url)
        for round_trip_ms in _ROUND_TRIPS_MS:
            with DelayingProxy(urlsplit(url).port or 0, round_trip_ms) as proxy:
                far = place.stored_at(f"redis://127.0.0.1:{proxy.port}")
                exact, plain, beside = (place.side(kind) for kind in (TRANSACTIONAL, PLAIN, NEAR))
                null_side, spared = place.side(NULL), place.side(SPARED)
                kinds: Kinds = {
                    null_side: partial(nothing, spark, folder, spare=False),
                    spared: partial(nothing, spark, folder, spare=True),
                    exact: partial(ours, spark, far, folder, "true"),
                    plain: partial(ours, spark, far, folder, "false"),
                    beside: partial(ours, spark, near, folder, "true"),
                }
                yield compare_steps(
                    f"micro_batch_far_store_{round_trip_ms}",
                    ROW_IN_EACH,
                    kinds,
                    {
                        exact: (null_side, spared, plain, beside),
                        plain: (null_side, spared),
                        beside: (null_side, spared),
                    },
                    repetitions,
                    report,
                    drop,
                )
