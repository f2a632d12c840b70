"""Counts how often a process waits for the server, and how often for the server's disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
        How often a reply was waited for, after whatever number of commands went out before it.
    synced : int
        Those of them in which the server changed something. Its append-only file is synced to
        disk before such a reply (``appendfsync always``).
    """

    total: int = 0
    synced: int = 0
    _asking: set[int] = field(default_factory=set)


def meet_all_coordinators(components: Components) -> None:
    """Let no transaction that is counted be the first one of its coordinator."""
    for tc in range(components.store.identity.coordinators):
        components.store.transactions.lowest_open(tc)


@contextmanager
def round_trips(redis_client: redis.Redis) -> Iterator[RoundTrips]:
    """Count the round trips of this process, whichever connections they take.

    Parameters
    ----------
    redis_client : redis.Redis
        Of the server; it is asked how much was changed, on a connection that is not counted.
    """
    counted = RoundTrips()
    lock = threading.RLock()
    send: Any = AbstractConnection.send_packed_command
    read: Any = AbstractConnection.read_response
    pool: Any = redis_client.connection_pool
    own: Any = pool.get_connection()
    # What is counted finds an open connection: a new one asks for the server's settings.
    pool.release(pool.get_connection())

    def changes() -> int:
        own.send_packed_command(own.pack_command("INFO", "persistence"), check_health=False)
        lines = read(own).decode().splitlines()
        return int(dict(line.split(":", 1) for line in lines if ":" in line)[_CHANGES])

    changed = changes()

    def counted_send(self: Any, *args: Any, **named: Any) -> Any:
        if self is not own:
            counted._asking.add(id(self))
        return send(self, *args, **named)

    def counted_read(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal changed
        try:
            return read(self, *args, **named)
        finally:
            with lock:
                if self is not own and id(self) in counted._asking:
                    counted._asking.discard(id(self))
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
        pool.release(own)


_CHANGES = "rdb_changes_since_last_save"
