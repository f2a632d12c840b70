"""How much memory Spark's processes take at most, for small rows and for large ones.

Each side and size of rows gets a Spark of its own (``local[2]``, Spark's default heap of 1 GiB), so
that nobody finds another's memory. Counted are the highest resident sets of a run by Linux
(``VmHWM``), after a collection in the JVM. First it is that of the largest Python worker, of
which the JVM connector has none. Then it is that of the JVM and all Python workers together, where
a page that two workers share counts twice. The user's own Python process on the driver is left out
on every side.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

from benchmarks import null
from benchmarks.data import PROCESSES
from benchmarks.measure import Result, Series, SideError, compare
from benchmarks.own_spark import OwnSpark
from benchmarks.peer import SIDE as JVM
from benchmarks.peer import Peer
from benchmarks.place import Place
from benchmarks.throughput import BY_CLIENT, NULL, PLAIN, TRANSACTIONAL, Bench
from pulsar_txn_spark.environment import FORMAT

WORKER, TOGETHER = "MiB/worker", "MiB in all"
_ROW_BYTES = {100: 64 << 20, 10_000: 128 << 20, 1_000_000: 256 << 20}
"""Size of a row -> bytes in all: buffers fill, and the slowest side takes some seconds."""
_BYTES_PER_ROW = 256  # of the command line's number of rows: fewer of them, less volume
_RUNS = 3


class _Side:
    """What writes and reads: a Spark, a data source and its options for a topic.

    `transactions` is an option of the sink alone.
    """

    def __init__(
        self,
        spark: Callable[[], OwnSpark],
        source: str,
        topic: Callable[[], AbstractContextManager[str]],
        options: Callable[[str], Mapping[str, str]],
        transactions: str = "",
    ) -> None:
        self.spark, self.source, self.topic, self.options = spark, source, topic, options
        self._sink = {"transactions": transactions} if transactions else {}

    def peaks(self, rows: int, size: int) -> Iterator[tuple[str, dict[str, float]]]:
        """Write and read rows several times; give what was done, and its peaks."""
        spark = self.spark()
        try:
            for _ in range(_RUNS):
                with self.topic() as topic:
                    options = dict(self.options(topic))
                    sink = {**options, **self._sink}
                    yield (
                        "sink",
                        spark.ask(
                            "written", source=self.source, options=sink, rows=rows, size=size
                        ),
                    )
                    yield "source", spark.ask("read", source=self.source, options=options)
        finally:
            spark.close()


def peaks(bench: Bench, place: Place, peer: Peer | None) -> Iterator[list[Result]]:
    """Measure a batch write and a batch read of each side, by the size of rows."""
    for size, total in _ROW_BYTES.items():
        rows = max(PROCESSES, min(total, bench.rows * _BYTES_PER_ROW) // size)
        figures: dict[tuple[str, str], dict[str, Series]] = {}
        for name, side in _sides(bench, place, peer, rows, size).items():
            cases = _measured(bench, name, side, rows, size)
            for case, series in cases.items():
                figures.setdefault(case, {})[name] = series
        ours = place.side(TRANSACTIONAL)
        against = (place.side(NULL), place.side(PLAIN), place.side(BY_CLIENT), JVM)
        for (what, unit), by_side in sorted(figures.items()):
            together = "" if unit == WORKER else "_with_jvm"
            yield compare(f"{what}_peak_memory{together}_{size}_bytes", by_side, {ours: against})


def _measured(
    bench: Bench, name: str, side: _Side, rows: int, size: int
) -> dict[tuple[str, str], Series]:
    """Return the series of one side, by what was done and what is counted."""
    cases: dict[tuple[str, str], Series] = {}
    try:
        for what, peak in side.peaks(rows, size):
            for unit, figure in ((WORKER, peak["worker"]), (TOGETHER, peak["all"])):
                if not figure:
                    continue  # no Python worker
                series = cases.setdefault((what, unit), Series(unit))
                if series.first is None:
                    series.first = figure
                series.runs.append(figure)
                bench.report(f"{what}_peak_memory_{size}_bytes", f"{name}, {unit}", figure)
    except SideError as error:
        bench.drop(f"peak memory, rows of {size} bytes", name, error)
        return {}
    return cases


def _sides(bench: Bench, place: Place, peer: Peer | None, rows: int, size: int) -> dict[str, _Side]:
    def spark() -> OwnSpark:
        sources = [(null.__name__, null.NullDataSource.__name__)]
        settings = {"cores": PROCESSES, "folder": str(bench.folder), "sources": sources}
        own = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        return OwnSpark(sys.executable, settings, {**os.environ, **own})

    def ours(place: Place, transactions: str = "true") -> _Side:
        def options(topic: str) -> dict[str, str]:
            return {**place.options, "topic": topic}

        return _Side(spark, FORMAT, place.topic, options, transactions)

    nothing = {"rows": str(rows), "size": str(size)}
    sides = {
        place.side(NULL): _Side(spark, null.FORMAT, lambda: nullcontext(""), lambda _: nothing),
        place.side(TRANSACTIONAL): ours(place),
        place.side(PLAIN): ours(place, "false"),
    }
    if place.service_url:
        sides[place.side(BY_CLIENT)] = ours(place.by("client"))
    if peer is not None:
        sides[JVM] = _Side(peer.spark, "pulsar", peer.topic, peer.options)
    return sides
