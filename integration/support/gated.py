"""A broker with the plug-in, and the Redis that it gates by: for the tests of what clients see."""

from __future__ import annotations

import itertools
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import pulsar as pulsar_client

from integration.support.redis_cluster import RedisCluster
from pulsar_txn_spark import Admin
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin, TransactionState
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.testing.pulsar_cluster import PulsarCluster
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer

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


@dataclass
class Gated:
    """A broker with the plug-in, and the store that it gates by."""

    server: PulsarServer | PulsarCluster
    store: RedisServer | RedisCluster
    options: Mapping[str, str]

    @classmethod
    def of(cls, server: PulsarServer | PulsarCluster, store: RedisServer | RedisCluster) -> Self:
        urls = {"service.url": server.service_url, "admin.url": server.admin_url}
        return cls(server, store, {**urls, "store.url": store.url})

    def components(self) -> Components:
        """Open the components of a driver."""
        return open_components(Options(self.options, Use.CONNECT))

    def topic(self, gate: str = "broker") -> tuple[str, str]:
        """Create a topic of one segment; return its name, and that of the segment's topic."""
        name = f"topic://public/default/gated-{next(numbers)}"
        created = Admin(self.options).create_topic(name, segments=1, gate=gate)
        return name, created.active[0].ref.log_name

    @property
    def admin(self) -> PulsarAdmin:
        return PulsarAdmin(PulsarConfig(self.server.service_url, self.server.admin_url))

    def metrics(self) -> str:
        """Return what the broker's own endpoint shows."""
        with urllib.request.urlopen(f"{self.server.admin_url}/metrics/") as answer:
            return str(answer.read().decode())

    def buffer_of(self, segment: str) -> TransactionState:
        """Ask the broker for a segment's transaction buffer."""
        found = self.admin.settled_transactions_of(segment)
        assert found is not None
        return found
