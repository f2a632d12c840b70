"""An embedded server for what is measured without Spark; every write is synced before its reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Result, Series
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.store.redis.store import RedisStore

TIMEOUT_MS = 60_000


@dataclass(frozen=True)
class StoreBench:
    """One embedded server, and how often everything is repeated."""

    path: str
    repetitions: int
    report: Callable[[str, float], None]

    def store(self) -> RedisStore:
        """Return a store as a process sees it that remembers nothing."""
        return RedisStore(connection.connect(StoreConfig(path=self.path)))


@contextmanager
def embedded_server(folder: Path) -> Iterator[str]:
    """Run a server with its default settings in a folder."""
    path = str(folder)
    server.ensure_server(path)
    try:
        yield path
    finally:
        connection.close_all()
        server.stop_server(path)


def row(
    case: str, side: str, figures: Series, against: str | None, series: dict[str, Series]
) -> Result:
    """Return a row of the results, compared with another side if that is another one."""
    other = None if against in (None, side) else against
    ratio = figures.median / series[other].median if other else None
    return Result(
        case, side, figures.unit, figures.median, tuple(figures.runs), other, ratio, figures.first
    )
