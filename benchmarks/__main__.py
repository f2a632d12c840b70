"""Runs the benchmarks and prints one table: ``python -m benchmarks --help``.

The environment variable ``BENCH_JSON`` names a file that gets the results as JSON, anew after each
case.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks import far_store, memory, micro_batch, null, segments, throughput, visible
from benchmarks.broker import broker
from benchmarks.coordination import gates, looks, operation_records, visibility
from benchmarks.coordinator import coordinator
from benchmarks.data import PROCESSES, write_input
from benchmarks.embedded import StoreBench, embedded_server
from benchmarks.kafka import kafka
from benchmarks.measure import Result, Results, SideError
from benchmarks.peer import JAR_VARIABLE, Peer, peer
from benchmarks.peer import SIDE as JVM
from benchmarks.place import Place
from benchmarks.processes import Crew
from benchmarks.report import EXACT, print_counts, print_results
from benchmarks.services import services
from benchmarks.store_memory import store_memory
from benchmarks.throughput import Bench, Drop, Report
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.testing.pulsar_server import choose_broker

JSON_VARIABLE = "BENCH_JSON"
_BACKENDS = ("embedded", "pulsar")
_SPARK_PARTS = (
    "sink",
    "source",
    "pipeline",
    "transactions",
    "peer",
    "latency",
    "segments",
    "wide",
    "far_store",
    "visible",
    "scaling",
    "memory",
    "store",
)
_STORE_PARTS: Mapping[str, Callable[[StoreBench], list[Result]]] = {
    "coordinator": coordinator,
    "services": services,
    "visibility": visibility,
    "op_log": operation_records,
    "gates": gates,
    "looks": looks,
    "store_memory": store_memory,
}
"""Without Spark, each on an embedded server of its own; they do not depend on the backend."""
_SERVER_PARTS: Mapping[str, Callable[[Path, int, int, Report, Drop], Iterator[list[Result]]]] = {
    "broker": broker,
    "kafka": kafka,
}
"""On brokers of their own, Pulsar's or Kafka's too; the second one with Sparks of its own."""
_PARTS = (*_SPARK_PARTS, *_STORE_PARTS, *_SERVER_PARTS)
_Details = list[tuple[str, dict[str, dict[str, float]]]]
_ROWS, _QUICK_ROWS = 1_000_000, 200_000
_REPETITIONS = 5
_LEAST_REPETITIONS = 3  # for a median that one bad run does not move
_MICRO_BATCHES = 5  # of each shape in each block
_COUNTED_MICRO_BATCHES = 5
_WIDTH = 200  # of the table in a file
_LONGEST_REASON = 400


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
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    began = time.monotonic()
    # Spark's workers find this package, and servers that one of them starts end with this process.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ[server.OWNER_VARIABLE] = str(os.getpid())
    target = os.environ.get(JSON_VARIABLE)
    results = Results(Path(target) if target else None)
    details: _Details = []
    dropped: list[tuple[str, str, str]] = []

    def drop(case: str, side: str, error: SideError) -> None:
        dropped.append((case, side, _shortened(str(error))))
        console.print(f"{case}: without {side}: {error}", markup=False)

    def report(case: str, side: str, figure: float) -> None:
        passed = time.monotonic() - began
        decimals = 0 if figure >= EXACT else 2
        console.print(f"[dim]{passed:6.0f} s[/]  {case:36} {side:24} {figure:12,.{decimals}f}")

    parts = chosen.part or _PARTS
    with_spark = any(part in _SPARK_PARTS for part in parts)
    header = _header(chosen, with_spark=with_spark)
    console.print(header, markup=False)
    try:
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as name:
            for part in [part for part in _STORE_PARTS if part in parts]:
                with embedded_server(Path(name) / part) as path:
                    shown = partial(report, part)
                    measured = _STORE_PARTS[part](StoreBench(path, chosen.repetitions, shown))
                    results.add(measured)
            if "pulsar" in (chosen.backend or _BACKENDS):
                _with_servers(chosen, Path(name), report, drop, results)
            if with_spark:
                _with_spark(chosen, Path(name), report, drop, results, details)
    finally:  # what was measured before an error stands
        print_results(console, header, results.rows)
        for title, counts in details:
            print_counts(console, title, counts)
        for case, side, why in dropped:
            console.print(f"{case}: without {side}, which failed: {why}", markup=False)
        console.print(f"load {_load()} at the end, {time.monotonic() - began:.0f} s in all")
    return 1 if any(side != JVM for _, side, _ in dropped) else 0


def _header(chosen: argparse.Namespace, *, with_spark: bool) -> str:
    """Say what is measured, with which command."""
    named = {name: os.environ.get(name) for name in (JAR_VARIABLE, JSON_VARIABLE)}
    settings = [f"{name}={Path(value).name}" for name, value in named.items() if value]
    command = shlex.join([*settings, "python", "-m", "benchmarks", *sys.argv[1:]])
    size = f"{chosen.rows:,} rows, {PROCESSES} cores or processes, " if with_spark else ""
    runs = f"{chosen.repetitions} runs after the first one"
    return f"{command}\n{size}{runs}; load {_load()} at the beginning"


def _shortened(reason: str) -> str:
    """Leave the beginning and the end of a long message: its trace is in between."""
    words = " ".join(reason.split())
    half = _LONGEST_REASON // 2
    return words if len(words) <= _LONGEST_REASON else f"{words[:half]} ... {words[-half:]}"


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def _with_servers(
    chosen: argparse.Namespace, folder: Path, report: Report, drop: Drop, results: Results
) -> None:
    """Run the parts that start brokers of their own."""
    for part in [part for part in _SERVER_PARTS if part in (chosen.part or _PARTS)]:
        try:
            for measured in _SERVER_PARTS[part](
                folder, chosen.rows, chosen.repetitions, report, drop
            ):
                results.add(measured)
        except SideError as error:
            drop(part, "all sides", error)


def _with_spark(
    chosen: argparse.Namespace,
    folder: Path,
    report: Report,
    drop: Drop,
    results: Results,
    details: _Details,
) -> None:
    """Run the parts that need Spark, on each backend."""
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
            drop=drop,
        )
        for name in chosen.backend or _BACKENDS:
            with (
                _place(name, folder) as place,
                peer(place.service_url, place.admin_url, folder, bench.input_folder) as other,
            ):
                for result in _measure(bench, place, chosen.part or _PARTS, details, other):
                    results.add(result)


def _measure(
    bench: Bench,
    place: Place,
    parts: Sequence[str],
    details: _Details,
    other: Peer | None,
) -> Iterator[list[Result]]:
    spark, folder, report, drop = bench.spark, bench.folder, bench.report, bench.drop
    yield from _throughput(bench, place, parts, other)
    if "latency" in parts:
        results, spent = micro_batch.latency(spark, place, folder, _MICRO_BATCHES, report, drop)
        yield results
        details.append((f"{place.name}: where a one-row micro-batch spends its time (ms)", spent))
    if "segments" in parts:
        yield from micro_batch.by_segments(
            spark, place, folder, _MICRO_BATCHES, report, drop, other
        )
    each = (spark, place, folder, _MICRO_BATCHES, report, drop)
    if "wide" in parts:
        yield from micro_batch.one_row_each(*each)
    if "far_store" in parts:
        yield from far_store.far_store(*each)
    if "visible" in parts:
        yield visible.produce_to_visible(bench, place)
    if "memory" in parts:
        yield from memory.peaks(bench, place, other)
    if "store" in parts:
        results, scripts = micro_batch.round_trips(
            spark, place, folder, _COUNTED_MICRO_BATCHES, report
        )
        yield results
        what = "commands to the store in a micro-batch with a row in each segment"
        details.append((f"{place.name}: {what}", scripts))
    if "scaling" in parts:
        yield from segments.scaling(bench, place)
        yield from segments.split_cost(bench, place)


def _throughput(
    bench: Bench, place: Place, parts: Sequence[str], other: Peer | None
) -> Iterator[list[Result]]:
    if "sink" in parts:
        yield from throughput.sinks(bench, place, other)
    if not {"source", "pipeline", "transactions", "peer"}.intersection(parts):
        return
    with throughput.filled(bench, place) as topic:
        if "source" in parts:
            yield from throughput.source(bench, place, topic, other)
        if "pipeline" in parts:
            yield from throughput.pipeline(bench, place, topic, other)
        if "transactions" in parts:
            yield from throughput.transaction_cost(bench, place, topic)
            if place.service_url:
                yield throughput.native_cost(bench, place)
        if "peer" in parts and other is not None:
            yield from throughput.beside_peer(bench, place, topic, other)


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
