"""An embedded server for what is measured without Spark; every write is synced before its reply."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Result, Series
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.testing.pulsar_server import free_ports
from pulsar_txn_spark.watchdog import Ending, OwnedServer

TIMEOUT_MS = 60_000
_START_SECONDS, _POLL_SECONDS = 30.0, 0.02


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


@contextmanager
def redis_on_port(folder: Path) -> Iterator[str]:
    """Run a Redis on a port, which syncs each write: the embedded one has a unix socket only."""
    (port,) = free_ports(1)
    data = Path(tempfile.mkdtemp(prefix="redis-", dir=folder))
    command = [server.find_server_binary(), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", str(data)]
    redis = OwnedServer(command, data, data / "redis.log")
    try:
        _wait_for(port, redis)
        yield f"redis://127.0.0.1:{port}"
    finally:
        redis.end(Ending.DISCARD)


def _wait_for(port: int, redis: OwnedServer) -> None:
    """Wait until a server listens on a port of the loopback address."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if redis.exit_code() is not None or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)  # a server that starts tells nobody
        else:
            return


def row(
    case: str, side: str, figures: Series, against: str | None, series: dict[str, Series]
) -> Result:
    """Return a row of the results, compared with another side if that is another one."""
    other = None if against in (None, side) else against
    ratio = figures.median / series[other].median if other else None
    return Result(
        case, side, figures.unit, figures.median, tuple(figures.runs), other, ratio, figures.first
    )
