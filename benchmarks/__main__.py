"""Runs the benchmarks and prints one table: ``python -m benchmarks --help``.

The environment variable ``BENCH_JSON`` names a file that gets the results as JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks import memory, micro_batch, null, segments, throughput
from benchmarks.coordination import gates, operation_records, visibility
from benchmarks.coordinator import coordinator
from benchmarks.data import PROCESSES, write_input
from benchmarks.embedded import StoreBench, embedded_server
from benchmarks.measure import Result, write_json
from benchmarks.peer import Peer, peer
from benchmarks.place import Place
from benchmarks.processes import Crew
from benchmarks.report import EXACT, print_counts, print_results
from benchmarks.store_memory import store_memory
from benchmarks.throughput import Bench
from pulsar_txn_spark.pulsar_server import choose_broker
from pulsar_txn_spark.store import connection, server

JSON_VARIABLE = "BENCH_JSON"
_BACKENDS = ("embedded", "pulsar")
_SPARK_PARTS = ("sink", "source", "pipeline", "latency", "segments", "scaling", "memory", "store")
_STORE_PARTS: Mapping[str, Callable[[StoreBench], list[Result]]] = {
    "coordinator": coordinator,
    "visibility": visibility,
    "op_log": operation_records,
    "gates": gates,
    "store_memory": store_memory,
}
"""Without Spark, each on an embedded server of its own; they do not depend on the backend."""
_PARTS = (*_SPARK_PARTS, *_STORE_PARTS)
_Details = list[tuple[str, dict[str, dict[str, float]]]]
_ROWS, _QUICK_ROWS = 1_000_000, 200_000
_REPETITIONS = 5
_LEAST_REPETITIONS = 3  # for a median that one bad run does not move
_MICRO_BATCHES = 5  # of each shape in each block
_COUNTED_MICRO_BATCHES = 5


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--backend", action="append", choices=_BACKENDS, help="both by default")
    parser.add_argument("--part", action="append", choices=_PARTS, help="all by default")
    parser.add_argument("--rows", type=int, help=f"{_ROWS} by default")
    parser.add_argument("--repetitions", type=int, default=_REPETITIONS, help="after the first")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_ROWS} rows, three runs")
    parser.add_argument("--keep-log", action="store_true", help="let Spark tell its warnings")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.repetitions = _LEAST_REPETITIONS
    if chosen.repetitions < _LEAST_REPETITIONS:
        parser.error(f"a median needs at least {_LEAST_REPETITIONS} repetitions")
    chosen.rows = chosen.rows or (_QUICK_ROWS if chosen.quick else _ROWS)
    if chosen.rows < PROCESSES:
        parser.error(f"expected at least {PROCESSES} rows")
    return chosen


def main() -> int:
    """Run what the command line asks for."""
    chosen = arguments()
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    began = time.monotonic()
    # Spark's workers find this package, and servers that one of them starts end with this process.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ[server.OWNER_VARIABLE] = str(os.getpid())
    results: list[Result] = []
    details: _Details = []

    def report(case: str, side: str, figure: float) -> None:
        passed = time.monotonic() - began
        decimals = 0 if figure >= EXACT else 2
        console.print(f"[dim]{passed:6.0f} s[/]  {case:36} {side:24} {figure:12,.{decimals}f}")

    parts = chosen.part or _PARTS
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as name:
        for part in [part for part in _STORE_PARTS if part in parts]:
            with embedded_server(Path(name) / part) as path:
                shown = partial(report, part)
                results += _STORE_PARTS[part](StoreBench(path, chosen.repetitions, shown))
        if any(part in _SPARK_PARTS for part in parts):
            found, details = _with_spark(chosen, Path(name), report)
            results += found
    print_results(console, results)
    for title, counts in details:
        print_counts(console, title, counts)
    with_spark = any(part in _SPARK_PARTS for part in parts)
    console.print(
        (f"{chosen.rows:,} rows, {PROCESSES} cores or processes, " if with_spark else "")
        + f"{chosen.repetitions} runs after the first one, {time.monotonic() - began:.0f} s in all"
    )
    target = os.environ.get(JSON_VARIABLE)
    if target:
        write_json(Path(target), results)
    return 0


def _with_spark(
    chosen: argparse.Namespace, folder: Path, report: Callable[[str, str, float], None]
) -> tuple[list[Result], _Details]:
    """Run the parts that need Spark, on each backend."""
    results: list[Result] = []
    details: _Details = []
    with ExitStack() as stack:
        parts = write_input(folder / "input", chosen.rows)
        spark = stack.enter_context(_spark(folder, "WARN" if chosen.keep_log else "OFF"))
        spark.dataSource.register(null.NullDataSource)
        bench = Bench(
            spark=spark,
            crew=stack.enter_context(Crew(PROCESSES)),
            folder=folder,
            input_folder=folder / "input",
            parts=parts,
            rows=chosen.rows,
            repetitions=chosen.repetitions,
            report=report,
        )
        for name in chosen.backend or _BACKENDS:
            with (
                _place(name, folder) as place,
                peer(place.service_url, place.admin_url, folder, bench.input_folder) as other,
            ):
                for found in _measure(bench, place, chosen.part or _PARTS, details, other):
                    results += found
    return results, details


def _measure(
    bench: Bench,
    place: Place,
    parts: Sequence[str],
    details: _Details,
    other: Peer | None,
) -> Iterator[list[Result]]:
    spark, folder, report = bench.spark, bench.folder, bench.report
    if "sink" in parts:
        yield from throughput.sinks(bench, place, other)
    if "source" in parts or "pipeline" in parts:
        with throughput.filled(bench, place) as topic:
            if "source" in parts:
                yield from throughput.source(bench, place, topic, other)
            if "pipeline" in parts:
                yield from throughput.pipeline(bench, place, topic, other)
    if "latency" in parts:
        found, spent = micro_batch.latency(spark, place, folder, _MICRO_BATCHES, report)
        yield found
        details.append((f"{place.name}: where a one-row micro-batch spends its time (ms)", spent))
    if "segments" in parts:
        yield from micro_batch.by_segments(spark, place, folder, _MICRO_BATCHES, report, other)
    if "memory" in parts:
        yield from memory.peaks(bench, place)
    if "store" in parts:
        found, scripts = micro_batch.round_trips(
            spark, place, folder, _COUNTED_MICRO_BATCHES, report
        )
        yield found
        what = "commands to the store in a micro-batch with a row in each segment"
        details.append((f"{place.name}: {what}", {"mean": scripts}))
    if "scaling" in parts:
        yield from segments.scaling(bench, place)
        yield from segments.split_cost(bench, place)


@contextmanager
def _spark(folder: Path, log_level: str) -> Iterator[SparkSession]:
    builder = SparkSession.builder.appName("benchmarks").master(f"local[{PROCESSES}]")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": log_level,
        "spark.sql.shuffle.partitions": str(PROCESSES),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    assert isinstance(session, SparkSession)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _place(name: str, folder: Path) -> Iterator[Place]:
    store = str(folder / f"store-{name}")
    options = {"store.path": store}
    with ExitStack() as stack:
        if name == "pulsar":
            broker = stack.enter_context(choose_broker())
            options |= {"service.url": broker.service_url, "admin.url": broker.admin_url}
            options["transport"] = "auto"
        server.ensure_server(store)
        try:
            yield Place(name, options)
        finally:
            connection.close_all()
            server.stop_server(store)


if __name__ == "__main__":
    sys.exit(main())
