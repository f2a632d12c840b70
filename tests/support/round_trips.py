"""Counts how often a process waits for the server, and how often for the server's disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import redis
from redis.connection import AbstractConnection

from pulsar_txn_spark.engine.components import Components


@dataclass
class RoundTrips:
    """What was counted.

    Parameters
    ----------
    total : int
        How often a reply was waited for, after whatever number of commands went out before it. What
        a thread has sent to several servers before it read a first reply is under way together,
        and counts once.
    synced : int
        Those of them in which the server changed something. Its append-only file is synced to
        disk before such a reply (``appendfsync always``).
    """

    total: int = 0
    synced: int = 0


class _Waits(threading.local):
    """Of a thread: the connections on which replies are due."""

    def __init__(self) -> None:
        self.asked: set[int] = set()  # since the last wait began
        self.under_way: set[int] = set()  # when it began

    def sent(self, connection: int) -> None:
        self.under_way.discard(connection)
        self.asked.add(connection)

    def begins(self, connection: int) -> bool:
        """Tell whether a reply that was read is the first one of a wait."""
        if connection in self.under_way or connection not in self.asked:
            return False
        self.under_way, self.asked = self.asked, set()
        return True


def meet_all_coordinators(components: Components) -> None:
    """Let no transaction that is counted be the first one of its coordinator."""
    for tc in range(components.store.identity.coordinators):
        components.store.transactions.lowest_open(tc)


@contextmanager
def round_trips(redis_client: redis.Redis | redis.RedisCluster) -> Iterator[RoundTrips]:
    """Count the round trips of this process to some servers, whichever connections they take.

    Parameters
    ----------
    redis_client : redis.Redis or redis.RedisCluster
        Of the servers; they are asked how much was changed, on connections that are not counted.
    """
    counted, waits = RoundTrips(), _Waits()
    lock = threading.RLock()
    send: Any = AbstractConnection.send_packed_command
    read: Any = AbstractConnection.read_response
    pools: list[Any] = _pools(redis_client)
    own: list[Any] = [pool.get_connection() for pool in pools]
    servers = {_server_of(connection) for connection in own}
    # What is counted finds an open connection: a new one asks for the server's settings.
    for pool in pools:
        pool.release(pool.get_connection())

    def changes() -> int:
        return sum(changes_of(connection) for connection in own)

    def changes_of(connection: Any) -> int:
        packed = connection.pack_command("INFO", "persistence")
        connection.send_packed_command(packed, check_health=False)
        lines = read(connection).decode().splitlines()
        return int(dict(line.split(":", 1) for line in lines if ":" in line)[_CHANGES])

    changed = changes()

    def counted_send(self: Any, *args: Any, **named: Any) -> Any:
        if self not in own and _server_of(self) in servers:
            waits.sent(id(self))
        return send(self, *args, **named)

    def counted_read(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal changed
        try:
            return read(self, *args, **named)
        finally:
            with lock:
                if self not in own and waits.begins(id(self)):
                    before, changed = changed, changes()
                    counted.total += 1
                    counted.synced += changed > before

    try:
        with (
            mock.patch.object(AbstractConnection, "send_packed_command", counted_send),
            mock.patch.object(AbstractConnection, "read_response", counted_read),
        ):
            yield counted
    finally:
        for pool, connection in zip(pools, own, strict=True):
            pool.release(connection)


def _server_of(connection: Any) -> tuple[Any, ...]:
    return tuple(getattr(connection, name, None) for name in ("path", "host", "port"))


def _pools(client: Any) -> list[Any]:
    if not isinstance(client, redis.RedisCluster):
        return [client.connection_pool]
    nodes: Any = client.get_primaries()  # type: ignore[no-untyped-call]
    return [client.get_redis_connection(node).connection_pool for node in nodes]


_CHANGES = "rdb_changes_since_last_save"
