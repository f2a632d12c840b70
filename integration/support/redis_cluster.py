"""A Redis Cluster on the loopback address, as the store of drivers and of brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from redis.crc import key_slot

from pulsar_txn_spark.testing.redis_server import RedisServer
from tests.support.redis_servers import await_cluster, free_port, join_cluster

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
            self.nodes.append(RedisServer(own, port=free_port(), options=_OPTIONS))

    @property
    def _ports(self) -> list[int]:
        return [node.port for node in self.nodes]

    @property
    def url(self) -> str:
        """Return the URL, for ``store.url`` and for brokers."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"redis+cluster://{hosts}"

    def node_of(self, tag: str) -> RedisServer:
        """Return the server that has a tag."""
        return self.nodes[key_slot(tag.encode()) % len(self.nodes)]

    def start(self) -> None:
        """Start the servers, and let them meet."""
        for node in self.nodes:
            node.start()
        join_cluster(self._ports)

    def await_ok(self) -> None:
        """Wait until every server knows that all slots are served."""
        await_cluster(self._ports)

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
