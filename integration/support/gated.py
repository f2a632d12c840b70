"""A broker with the plug-in, and the Redis that it gates by: for the tests of what clients see."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pulsar as pulsar_client
import redis

from pulsar_txn_spark import Admin
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin, TransactionState
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.store.redis.server import find_server_binary
from pulsar_txn_spark.testing.pulsar_server import PulsarServer, free_ports

QUIET = pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Warn)
SOON_S = 20.0
NOTHING_MS = 300
"""So long a consumer waits for what must not come."""

numbers = itertools.count()


def await_(condition: Callable[[], bool], patience_s: float = SOON_S) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Redis:
    """A Redis that brokers reach, on a port: the embedded one has a unix socket only."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._command = [find_server_binary(), "--port", str(self.port), "--bind", "127.0.0.1"]
        self._command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._command += ["--dir", str(folder)]
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        with redis.Redis(port=self.port) as connection:
            await_(lambda: answers(connection))

    def kill(self) -> None:
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def answers(connection: redis.Redis) -> bool:
    """Whether a server answers."""
    try:
        return bool(connection.ping())
    except redis.RedisError:
        return False


@dataclass
class Gated:
    """A broker with the plug-in, and the store that it gates by."""

    server: PulsarServer
    store: Redis
    options: Mapping[str, str]

    @classmethod
    def of(cls, server: PulsarServer, store: Redis) -> Self:
        urls = {"service.url": server.service_url, "admin.url": server.admin_url}
        return cls(server, store, {**urls, "store.url": store.url})

    def topic(self, gate: str = "broker") -> tuple[str, str]:
        """Create a topic of one segment; return its name, and that of the segment's topic."""
        name = f"topic://public/default/gated-{next(numbers)}"
        created = Admin(self.options).create_topic(name, segments=1, gate=gate)
        return name, created.active[0].ref.log_name

    @property
    def admin(self) -> PulsarAdmin:
        return PulsarAdmin(PulsarConfig(self.server.service_url, self.server.admin_url))

    def buffer_of(self, segment: str) -> TransactionState:
        """Ask the broker for a segment's transaction buffer."""
        found = self.admin.settled_transactions_of(segment)
        assert found is not None
        return found
