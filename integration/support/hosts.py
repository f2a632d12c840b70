"""Hosts of their own for a Spark cluster: network namespaces, with a bridge between them.

The first host has the bridge. Each has one address, and a loopback interface of its own, so that a
process reaches another host by the address that the cluster has told it, or not at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

from pulsar_txn_spark.store.redis.server import find_server_binary
from pulsar_txn_spark.testing.spark_cluster import Host
from pulsar_txn_spark.watchdog import Ending, OwnedServer

_NETWORK = "10.77.0"
_REDIS_PORT = 6379


def missing() -> str:
    """Return what is missing for network namespaces; empty if they can be made."""
    if shutil.which("ip") is None:
        return "the command 'ip' (package iproute2)"
    if os.geteuid() != 0:
        return "root, to make network namespaces"
    probe = f"ptx{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if made.returncode != 0:
        return f"network namespaces: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return ""


class Hosts:
    """Network namespaces; a context manager.

    Parameters
    ----------
    count : int
        How many.
    folder : Path
        For the data of :attr:`redis_url`.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._names = [f"ptx{os.getpid()}-{number}" for number in range(count)]
        self._made: list[str] = []
        self._folder = folder
        self._redis: OwnedServer | None = None

    @property
    def all(self) -> list[Host]:
        """Return the hosts; the first is that of Redis."""
        return [
            Host(f"{_NETWORK}.{number}", ("ip", "netns", "exec", name))
            for number, name in enumerate(self._names, 1)
        ]

    @property
    def redis_url(self) -> str:
        """Return the URL of a durable Redis on the first host."""
        return f"redis://{self.all[0].address}:{_REDIS_PORT}"

    @property
    def socket_url(self) -> str:
        """Return the URL of the same Redis for this process, which is on none of the hosts."""
        return f"unix://{self._folder / 'redis.sock'}"

    def __enter__(self) -> Self:
        try:
            self._connect()
            self._start_redis()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._redis is not None:
            self._redis.end(Ending.DISCARD)
        for name in self._made:
            _ip("netns", "delete", name)
        self._made.clear()

    def _connect(self) -> None:
        for host, name in zip(self.all, self._names, strict=True):
            _ip("netns", "add", name)
            self._made.append(name)
            _ip("-netns", name, "link", "set", "lo", "up")
            if name == self._names[0]:
                _ip("-netns", name, "link", "add", "bridge", "type", "bridge")
                inside = "bridge"
            else:
                inside, port = "host", f"to-{name}"[:15]
                hub = self._names[0]
                _ip(
                    *("-netns", hub, "link", "add", port, "type", "veth"),
                    *("peer", "name", inside, "netns", name),
                )
                _ip("-netns", hub, "link", "set", port, "master", "bridge", "up")
            _ip("-netns", name, "address", "add", f"{host.address}/24", "dev", inside)
            _ip("-netns", name, "link", "set", inside, "up")

    def _start_redis(self) -> None:
        self._folder.mkdir()
        first = self.all[0]
        command = [*first.prefix, find_server_binary()]
        command += ["--bind", first.address, "--port", str(_REDIS_PORT), "--protected-mode", "no"]
        command += ["--unixsocket", str(self._folder / "redis.sock"), "--appendonly", "yes"]
        command += ["--appendfsync", "always", "--dir", str(self._folder), "--save", ""]
        self._redis = OwnedServer(command, self._folder, self._folder.with_suffix(".log"))


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
