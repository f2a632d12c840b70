"""Servers of a metadata store on ports of the loopback address, alone or as a cluster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from pulsar_txn_spark import watchdog
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis import connection, server

SAFE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
    "save": "",
}
StartRedis = Callable[..., int]
SLOTS = 16_384
PATIENCE_S = 60.0


def free_port() -> int:
    """Return a port whose cluster bus (port + 10000) is free as well.

    Both lie below those that Linux gives to whoever connects, which come and go at any time.
    """
    while True:
        port = random.randrange(12_000, 22_000)
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            return port


@contextmanager
def redis_servers(tmp_path: Path) -> Iterator[StartRedis]:
    """Yield a function that starts a server with some settings and returns its port."""
    started: list[int] = []

    def start(**settings: str) -> int:
        port = free_port()
        folder = tmp_path / str(port)
        folder.mkdir()
        pid_file = folder / "redis.pid"
        named = {name.replace("_", "-"): value for name, value in settings.items()}
        lines = [f'{name} "{value}"' for name, value in (SAFE | named).items()]
        lines += [f"port {port}", "bind 127.0.0.1", f"dir {folder}", f"pidfile {pid_file}"]
        lines += ["daemonize yes", f"logfile {folder}/log"]
        (folder / "redis.conf").write_text("\n".join(lines))
        watchdog.attach(os.getpid(), pid_file)
        subprocess.run([server.find_server_binary(), str(folder / "redis.conf")], check=True)
        until(lambda: _listens(port))  # newer ones than Redis 7.0 write their pid before
        pid = watchdog.read_pid(pid_file)
        assert pid is not None, (folder / "log").read_text()
        started.append(pid)
        return port

    try:
        yield start
    finally:
        connection.close_all()
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def append_only_file(folder: Path) -> Path:
    """Return the file that the server of a folder appends to: one part of several since Redis 7."""
    parts = (folder / "appendonlydir").glob("*.incr.aof")
    return max(
        parts, key=lambda part: int(part.name.split(".")[2]), default=folder / "appendonly.aof"
    )


def url_of(port: int) -> StoreConfig:
    """Return how a server is found."""
    return StoreConfig(url=f"redis://127.0.0.1:{port}")


def demote(port: int) -> None:
    """Make a replica of a server, of one that is not there."""
    with redis.Redis(port=port) as plain:
        plain.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))


def promote(port: int) -> None:
    """Make it a primary again."""
    with redis.Redis(port=port) as plain:
        plain.execute_command("REPLICAOF", "NO", "ONE")


def start_cluster(start_redis: StartRedis, nodes: int = 1, **settings: str) -> int:
    """Start a cluster of some servers that share the slots, and return the port of one."""
    return _start_primaries(start_redis, nodes, **settings)[0]


def start_replicated_cluster(start_redis: StartRedis, nodes: int = 1) -> tuple[int, int]:
    """Start a cluster of some primaries, and a replica of the first; return the ports of both."""
    primaries = _start_primaries(start_redis, nodes)
    first, second = primaries[0], start_redis(cluster_enabled="yes")
    _ask(first, "MEET", "127.0.0.1", str(second))
    until(lambda: _ask(second, "INFO")["cluster_slots_assigned"] == str(SLOTS))
    with redis.Redis(port=first) as primary, redis.Redis(port=second) as replica:
        known: Any = primary
        first_id = known.execute_command("CLUSTER", "MYID").decode()
        _ask(second, "REPLICATE", first_id)
        until(lambda: replica.info("replication").get("master_link_status") == "up")
        # Primaries that do not know the replica yet never follow its takeover: only the first one
        # tells them of it.
        until(lambda: all(_ask(port, "REPLICAS", first_id) for port in primaries))
        # Clients learn of the replica from the primary.
        until(
            lambda: all(
                len(part) > 3 or part[2][1] != first
                for part in known.execute_command("CLUSTER", "SLOTS")
            )
        )
    return first, second


def fail_over(primary: redis.Redis, second: int) -> None:
    """Kill the primary of such a cluster, and let its replica take over."""
    os.kill(primary.info("server")["process_id"], signal.SIGKILL)
    _ask(second, "FAILOVER", "TAKEOVER")
    until(lambda: _ask(second, "INFO")["cluster_state"] == "ok")


def until(true: Callable[[], bool]) -> None:
    """Wait for a server to say so."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "the servers do not come to it"
        time.sleep(0.01)  # nobody tells when it has


def join_cluster(ports: Sequence[int]) -> None:
    """Let servers that have started meet, and share the slots."""
    for number, port in enumerate(ports):
        _ask(port, "ADDSLOTS", *range(number, SLOTS, len(ports)))
        _ask(port, "SET-CONFIG-EPOCH", str(number + 1))
    for port in ports[1:]:
        _ask(ports[0], "MEET", "127.0.0.1", str(port))
    await_cluster(ports)


def await_cluster(ports: Sequence[int]) -> None:
    """Wait until every server knows all others, and that all slots are served."""
    until(lambda: all(_is_joined(port, len(ports)) for port in ports))


class SlotMove:
    """A slot on its way from one server of a cluster to the other, until `finish` is called.

    Parameters
    ----------
    client : redis.RedisCluster
        Of a cluster of two servers.
    key : str
        Whose slot it is.
    """

    def __init__(self, client: Any, key: str) -> None:
        self.slot = client.keyslot(key)
        own = client.get_node_from_key(key)
        (other,) = [node for node in client.get_primaries() if node.name != own.name]
        self.old: Any = redis.Redis(port=own.port)
        self.new: Any = redis.Redis(port=other.port)
        self._port = other.port
        servers: tuple[Any, ...] = (self.old, self.new)
        self._ids = [server_.execute_command("CLUSTER", "MYID").decode() for server_ in servers]
        self.new.cluster("SETSLOT", self.slot, "IMPORTING", self._ids[0])
        self.old.cluster("SETSLOT", self.slot, "MIGRATING", self._ids[1])

    def take(self, *keys: str) -> None:
        """Move some keys to the new server."""
        self.old.migrate("127.0.0.1", self._port, list(keys), 0, 5_000)

    def finish(self) -> None:
        """Move all keys that are left, and give the slot to the new server."""
        left = self.old.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000)
        if left:
            self.take(*left)
        for server_ in (self.new, self.old):
            server_.cluster("SETSLOT", self.slot, "NODE", self._ids[1])
            server_.close()


def _start_primaries(start_redis: StartRedis, nodes: int, **settings: str) -> list[int]:
    ports = [start_redis(cluster_enabled="yes", **settings) for _ in range(nodes)]
    join_cluster(ports)
    return ports


def _is_joined(port: int, nodes: int) -> bool:
    with contextlib.suppress(redis.RedisError):
        found = _ask(port, "INFO")
        counted = int(found["cluster_known_nodes"]), int(found["cluster_slots_ok"])
        return found["cluster_state"] == "ok" and counted == (nodes, SLOTS)
    return False


def _listens(port: int) -> bool:
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _ask(port: int, *arguments: object) -> Any:
    with redis.Redis(port=port) as connection_:
        return connection_.cluster(*arguments)
