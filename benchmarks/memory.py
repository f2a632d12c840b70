"""How much memory Spark's Python workers take at most, for small rows and for large ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import functions as f

from benchmarks.data import PROCESSES
from benchmarks.measure import Result, Series, compare
from benchmarks.place import Place
from benchmarks.throughput import TRANSACTIONAL, Bench
from pulsar_txn_spark.spark.datasource import FORMAT

MEBIBYTES = "MiB"
_ROW_BYTES = (100, 10_000, 1_000_000)
_TOTAL_BYTES = 256 * 1024 * 1024
_RUNS = 3
_PEAK, _RESET = "VmHWM:", "5"  # of /proc/<pid>/status and /proc/<pid>/clear_refs


def peaks(bench: Bench, place: Place) -> Iterator[list[Result]]:
    """Measure the largest worker of a batch write and of a batch read, by the size of rows."""
    for size in _ROW_BYTES:
        sink, source = Series(MEBIBYTES), Series(MEBIBYTES)
        for _ in range(_RUNS):
            with place.topic() as topic:
                options = {**place.options, "topic": topic}
                _note(sink, lambda: _write(bench, options, size))  # noqa: B023 - called at once
                _note(source, lambda: _read(bench, options))  # noqa: B023
        for case, series in (("sink", sink), ("source", source)):
            name = f"{case}_peak_memory_{size}_bytes"
            bench.report(name, place.side(TRANSACTIONAL), series.median)
            yield compare(name, {place.side(TRANSACTIONAL): series}, {})


def _write(bench: Bench, options: dict[str, str], size: int) -> None:
    value = f.expr(f"binary(repeat(chr(33 + id % 90), {size}))").alias("value")
    rows = bench.spark.range(0, _TOTAL_BYTES // size, 1, PROCESSES)
    keyed = rows.select(value, f.expr("binary(string(id))").alias("__key"))
    keyed.write.format(FORMAT).options(**options).mode("append").save()


def _read(bench: Bench, options: dict[str, str]) -> None:
    rows = bench.spark.read.format(FORMAT).options(**options).load().select("value", "__key")
    rows.write.format("noop").mode("overwrite").save()


def _note(series: Series, run: Callable[[], None]) -> None:
    for worker in _workers():
        (worker / "clear_refs").write_text(_RESET)
    run()
    peak = max(_peak_mebibytes(worker) for worker in _workers())
    if series.first is None:
        series.first = peak
    series.runs.append(peak)


def _workers() -> list[Path]:
    """Return the folders in /proc of this process's PySpark workers."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])

    def is_ours(pid: int) -> bool:
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    found = []
    for pid in filter(is_ours, parents):
        folder = Path("/proc") / str(pid)
        try:
            if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                found.append(folder)
        except OSError:
            continue
    return found


def _peak_mebibytes(worker: Path) -> float:
    try:
        lines = (worker / "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(_PEAK)), 0.0)
