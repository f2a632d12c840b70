"""Following the `events` streams: a blocking read stands at the server while nobody reads.

On one Redis all streams are in one ``XREAD BLOCK``. On a Redis Cluster a command may not touch two
slots, so each slot has a connection and a read of its own. A read that was sent stays there over
many calls of :meth:`RedisEventFeed.wait`. Its last ids are explicit. So whatever was added between
a reply and the next read comes with the next reply.

A primary that becomes a replica breaks the reads that stand there. A read that comes later would
stand there for good. So a server that has no events for a while is asked for its role.

A server may refuse a read, for example as its slot is being moved. It refuses the next one as well,
so that one follows a while after the first. What was added meanwhile comes with its reply.
"""

from __future__ import annotations

import math
import os
import select
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import (
    MovedError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from pulsar_txn_spark.errors import StoreError, StoreUnavailableError
from pulsar_txn_spark.store.redis.connection import is_primary

_BLOCK_MS = 5_000  # the server answers at least so often: silence means a dead connection
_SILENCE_S = 10.0  # so long after sending, a read without any answer is given up
_PAUSE_S = 1.0  # so long after a read was sent that a server has refused, the next one is
_COUNT = 64  # events of one stream in one reply; the rest comes with the next one


@dataclass(slots=True)
class _Read:
    """A blocking read that stands at a server: its streams, and the connection that waits."""

    keys: list[str]
    pool: redis.ConnectionPool | None = None  # of the server that was asked last
    node: str | None = None  # its name in a cluster
    connection: redis.Connection | None = None
    sent_at: float = field(default=0.0)
    not_before: float = field(default=0.0)

    @property
    def due_at(self) -> float:
        """When it is to be sent; never while it stands."""
        return self.not_before if self.connection is None else math.inf

    def drop(self) -> None:
        """Give the connection back, if there is one."""
        connection, self.connection = self.connection, None
        if connection is not None and self.pool is not None:
            # An answer that nobody reads must not reach the connection's next user.
            connection.disconnect()  # type: ignore[no-untyped-call]
            self.pool.release(connection)


class RedisEventFeed:
    """The feed of one waiting thread; see :class:`~pulsar_txn_spark.store.protocol.EventFeed`.

    A feed that was dropped without :meth:`close` lets go of its connections as well.

    Parameters
    ----------
    client : redis.Redis or redis.RedisCluster
        Its connections are verified when they are made.
    newest : callable
        Returns the ids of the newest events of some tags, '0-0' where there is none.
    """

    def __init__(
        self,
        client: redis.Redis | redis.RedisCluster,
        newest: Callable[[Sequence[str]], list[str]],
    ) -> None:
        self._client: Any = client
        self._cluster = isinstance(client, redis.RedisCluster)
        self._newest = newest
        self._tags: dict[str, str] = {}  # by key
        self._last: dict[str, str] = {}  # key -> id of the last event that was seen
        self._reads: list[_Read] = []
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._let_go = weakref.finalize(self, _let_go, self._reads, (self._woken, self._wake))
        self._let_go.atexit = False  # the operating system closes what is left then

    def follow(self, tags: Collection[str]) -> None:
        """Follow these tags and no others, new ones from now on: read their state afterwards.

        Raises
        ------
        StoreUnavailableError, StoreRolledBackError
        """
        keys = {f"{{{tag}}}:events": tag for tag in tags}
        if keys == self._tags:
            return
        new = [key for key in keys if key not in self._last]
        newest = self._newest([keys[key] for key in new]) if new else []
        _hang_up(self._reads)
        self._tags = keys
        self._last = {key: last for key, last in self._last.items() if key in keys}
        self._last.update(zip(new, newest, strict=True))
        self._reads[:] = self._group(sorted(keys))

    def _group(self, keys: list[str]) -> list[_Read]:
        if not self._cluster:
            return [_Read(keys)] if keys else []
        by_slot: dict[int, list[str]] = {}
        for key in keys:
            by_slot.setdefault(self._client.keyslot(key), []).append(key)
        return [_Read(own) for own in by_slot.values()]

    def _find_server(self, read: _Read) -> redis.ConnectionPool:
        client = self._client
        if self._cluster:
            node = client.get_node_from_key(read.keys[0])
            read.node = node.name
            client = client.get_redis_connection(node)
        pool: redis.ConnectionPool = client.connection_pool
        return pool

    def _ask_for_slots(self, failed: str | None) -> None:
        """Ask a cluster who has which slot; a server that has failed is asked last.

        redis-py does so after a command that failed. A read that stands is none of its commands.
        """
        if self._cluster:
            with suppress(RedisError, RedisClusterException, OSError):
                self._client.nodes_manager.initialize(last_failed_node_name=failed)

    def wait(self, timeout_s: float) -> set[str]:
        """Wait for events and return the tags that have some; empty = time is over, or woken.

        Tags whose connection was lost are among them: what it would have told is not known.

        Raises
        ------
        StoreUnavailableError
            If the store cannot be reached.
        StoreUnsafeError
            If its server is no primary any more, or may lose data.
        StoreError
            If its user may not read the events.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            for read in self._reads:
                if read.due_at <= time.monotonic():
                    self._stand(read)
            until = min([deadline, *(read.due_at for read in self._reads)])
            changed = self._collect(min(max(0.0, until - time.monotonic()), _SILENCE_S))
            if changed is not None:
                return changed
            if time.monotonic() >= deadline:
                return set()

    def _stand(self, read: _Read) -> None:
        """Send a read that does not stand."""
        try:
            # Each time: of a server that is gone for good, another one has the slot now.
            read.pool = self._find_server(read)
            connection = read.connection = read.pool.get_connection()
            self._send(read, connection)
        except (RedisError, RedisClusterException, OSError, StoreError) as error:
            read.drop()
            self._ask_for_slots(read.node)
            if isinstance(error, StoreError):
                raise
            raise StoreUnavailableError(
                f"the metadata store's events cannot be followed ({type(error).__name__}: "
                f"{error}): check that the Redis server runs and can be reached; nothing is lost"
            ) from error

    def _send(self, read: _Read, connection: redis.Connection) -> None:
        packed = connection.pack_command(  # type: ignore[no-untyped-call]
            *("XREAD", "COUNT", _COUNT, "BLOCK", _BLOCK_MS, "STREAMS"),
            *read.keys,
            *(self._last[key] for key in read.keys),
        )
        connection.send_packed_command(packed, check_health=False)  # type: ignore[no-untyped-call]
        read.sent_at = time.monotonic()

    def _collect(self, timeout_s: float) -> set[str] | None:
        """Return what came within a time; None if nothing did."""
        waiting = {_socket_of(read.connection): read for read in self._reads if read.connection}
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]
        changed: set[str] = set()
        for descriptor in ready:
            if descriptor != self._woken:
                changed |= self._receive(waiting[descriptor])
        now = time.monotonic()
        for read in self._reads:
            if read.connection is not None and now - read.sent_at > _SILENCE_S:
                changed |= self._lost(read)
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 64)
            return changed
        return changed or None

    def _receive(self, read: _Read) -> set[str]:
        connection = read.connection
        assert connection is not None
        try:
            streams = connection.read_response() or []
            if not streams and not is_primary(connection):
                return self._lost(read)  # the next one is verified
            changed = set()
            for key, events in streams:
                name = key.decode()
                self._last[name] = events[-1][0].decode()
                changed.add(self._tags[name])
            self._send(read, connection)
        except ResponseError as error:
            return self._refused(read, error)
        except (RedisError, OSError):
            return self._lost(read)
        return changed

    def _refused(self, read: _Read, error: ResponseError) -> set[str]:
        read.not_before = read.sent_at + _PAUSE_S
        if isinstance(error, NoPermissionError):
            read.drop()
            raise StoreError(
                f"the metadata store refuses to tell its events: {error}. Allow this user XREAD on "
                "the store's keys (ACL SETUSER); conf/redis-acl.conf has all that it needs"
            ) from error
        if self._cluster and isinstance(error, MovedError):
            self._client.nodes_manager.move_slot(error)
        return self._lost(read)

    def _lost(self, read: _Read) -> set[str]:
        read.drop()
        return {self._tags[key] for key in read.keys}

    def wake(self) -> None:
        """Let the thread that waits, or the next one, return."""
        with suppress(BlockingIOError, OSError):
            os.write(self._wake, b"w")

    def close(self) -> None:
        """Let go of the connections."""
        self._let_go()
        self._woken = self._wake = -1


def _hang_up(reads: Sequence[_Read]) -> None:
    for read in reads:
        read.drop()


def _let_go(reads: list[_Read], pipe: tuple[int, int]) -> None:
    """Let go of all that a feed has."""
    _hang_up(reads)
    reads.clear()
    for descriptor in pipe:
        os.close(descriptor)


def _socket_of(connection: Any) -> int:
    descriptor: int = connection._sock.fileno()  # noqa: SLF001 - redis-py waits on one socket only
    return descriptor
