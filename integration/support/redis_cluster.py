"""A Redis Cluster on the loopback address, as the store of drivers and of brokers."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, Self

import redis
from redis.crc import key_slot

from pulsar_txn_spark.testing.pulsar_server import free_ports
from pulsar_txn_spark.testing.redis_server import RedisServer

_BUS = 10_000  # the servers talk to each other on ports that are higher by it
_HIGHEST_PORT = 65_535
_SLOTS = 16_384
_PATIENCE_S = 60.0
_OPTIONS = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")


class RedisCluster:
    """Three primaries that share the slots; a context manager.

    Parameters
    ----------
    folder : Path
        Of its own, which is there.
    """

    def __init__(self, folder: Path) -> None:
        self.nodes = []
        for number in range(3):
            (own := folder / str(number)).mkdir()
            self.nodes.append(RedisServer(own, port=_port(), options=_OPTIONS))

    @property
    def url(self) -> str:
        """Return the URL, for ``store.url`` and for brokers."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    def node_of(self, tag: str) -> RedisServer:
        """Return the server that has a tag."""
        return self.nodes[key_slot(tag.encode()) % len(self.nodes)]

    def start(self) -> None:
        """Start the servers, and let them meet."""
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            _ask(node, "ADDSLOTS", *range(number, _SLOTS, len(self.nodes)))
            _ask(node, "SET-CONFIG-EPOCH", str(number + 1))
        for node in self.nodes[1:]:
            _ask(self.nodes[0], "MEET", "127.0.0.1", str(node.port))
        self.await_ok()

    def await_ok(self) -> None:
        """Wait until every server knows that all slots are served."""
        deadline = time.monotonic() + _PATIENCE_S
        while not all(map(self._is_ok, self.nodes)):
            assert time.monotonic() < deadline, "the cluster does not settle"
            time.sleep(0.01)  # nobody tells when it has

    def _is_ok(self, node: RedisServer) -> bool:
        with contextlib.suppress(redis.RedisError):
            state = _ask(node, "INFO")
            known = int(state["cluster_known_nodes"])
            slots = int(state["cluster_slots_ok"])
            return bool(
                state["cluster_state"] == "ok" and known == len(self.nodes) and slots == _SLOTS
            )
        return False

    def stop(self) -> None:
        """Stop the servers, and keep their data."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _ask(node: RedisServer, *arguments: object) -> Any:
    with redis.Redis(port=node.port) as connection:
        return connection.cluster(*arguments)


def _port() -> int:
    while True:
        (port,) = free_ports(1)
        if port + _BUS <= _HIGHEST_PORT:
            return port
