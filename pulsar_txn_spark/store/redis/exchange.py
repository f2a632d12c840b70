"""Commands past what redis-py does around each: write them, read the replies.

Around a command redis-py takes a connection from its pool, tests it, and counts it. It wraps the
command in its retries, and gives the connection back. That is most of the CPU time of a
transaction of a service (docs/performance.md). Connecting, logging in, TLS, the verification of the
server and the parsing of replies stay redis-py's and :mod:`.connection`'s. ``hiredis`` packs and
parses in C; it is left out where somebody installs the packages by hand.
"""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import redis
from redis.exceptions import ResponseError

from pulsar_txn_spark.process_lock import ProcessLock

Part: TypeAlias = str | bytes | int
"""A part of a command."""


try:
    import hiredis
except ImportError:
    _IN_C: Any = None
else:
    # Not redis-py's way to it: that looks at each part first, which takes five times as long.
    _IN_C = hiredis.pack_command


def pack(command: Sequence[Part]) -> bytes:
    """Return a command as it is sent (RESP)."""
    if _IN_C is not None:
        packed: bytes = _IN_C(tuple(command))
        return packed
    values = [part if part.__class__ is bytes else str(part).encode() for part in command]
    parts = [b"$%d\r\n%b\r\n" % (len(value), value) for value in values]
    return b"*%d\r\n%b" % (len(values), b"".join(parts))


class IdleConnections:
    """Verified connections of a pool that are ready for the next command.

    They stay the pool's: it counts them as in use, and closes them when it is closed.

    Parameters
    ----------
    pool : redis.ConnectionPool
        Held weakly: connections end with it.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = weakref.ref(pool)
        self._pid = os.getpid()
        self._idle: list[redis.Connection] = []

    @property
    def idle(self) -> tuple[redis.Connection, ...]:
        """Those that nobody has taken now."""
        return tuple(self._idle)

    def take(self) -> redis.Connection:
        """Return a connection that nobody else has.

        Raises
        ------
        redis.RedisError, StoreUnavailableError, StoreUnsafeError
            If none is idle, and none can be made.
        """
        if os.getpid() != self._pid:
            # A fork: the parent goes on with these sockets.
            self._pid, self._idle = os.getpid(), []
        for connection in self._popped():
            if _is_quiet(connection):
                return connection
            self._discard(connection)
        return self._of_pool().get_connection()

    def _popped(self) -> Iterator[redis.Connection]:
        """Yield idle connections as long as there are any: other threads take some meanwhile."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            yield connection

    def give_back(self, connection: redis.Connection) -> None:
        """Take back a connection all of whose replies were read."""
        if connection.is_connected and not connection.should_reconnect():  # type: ignore[no-untyped-call]
            self._idle.append(connection)
        else:
            self._discard(connection)

    def cut(self, connection: redis.Connection, error: BaseException | None = None) -> None:
        """Close a connection: replies that nobody has read must not reach its next user.

        With the error of a lost connection it closes the idle ones as well. A network forgets them
        all at once, and a server that is no primary any more is left. Each would take one of the
        few tries that a step has.
        """
        connection.disconnect()  # type: ignore[no-untyped-call]
        self._discard(connection)
        if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
            self.cut_idle()

    def cut_idle(self) -> None:
        """Close all that nobody has taken."""
        for connection in self._popped():
            self.cut(connection)
        pool = self._pool()
        if pool is not None:
            pool.disconnect(inuse_connections=False)

    def call(self, *command: Part) -> Any:
        """Send a command, and return its reply.

        Raises
        ------
        redis.ResponseError
            What the server sent in place of a reply.
        redis.ConnectionError, redis.TimeoutError
            No reply came: the command may have been run.
        """
        [reply] = self.call_all([command])
        if isinstance(reply, ResponseError):
            try:
                raise reply
            finally:
                del reply  # or error and frame would keep each other, and what all callers have
        return reply

    def call_all(self, commands: Iterable[Sequence[Part]]) -> list[Any]:
        """Send commands in one write, and return the replies, an error in place of a reply.

        Raises
        ------
        redis.ConnectionError, redis.TimeoutError
            Not all replies came: every command may have been run.
        """
        return self.send_all(commands).replies()

    def send_all(self, commands: Iterable[Sequence[Part]]) -> Request:
        """Send commands in one write, and wait for nothing.

        Returns
        -------
        Request
            To be asked for the replies, or given up.

        Raises
        ------
        redis.RedisError, StoreUnavailableError, StoreUnsafeError
            If they could not be sent: every command may have been run all the same.
        """
        packed = [pack(command) for command in commands]
        connection = self.take()
        try:
            connection.send_packed_command([b"".join(packed)], check_health=False)  # type: ignore[no-untyped-call]
        except BaseException as error:
            self.cut(connection, error)
            raise
        return Request(self, connection, len(packed))

    def _discard(self, connection: redis.Connection) -> None:
        pool = self._pool()
        if pool is not None:
            pool.release(connection)

    def _of_pool(self) -> redis.ConnectionPool:
        pool = self._pool()
        if pool is None:
            raise redis.ConnectionError("the client of this connection was closed")
        return pool


class Request:
    """Commands that were sent, whose replies nobody has read yet.

    Parameters
    ----------
    connections : IdleConnections
    connection : redis.Connection
        Of them, taken.
    commands : int
        How many were sent.
    """

    def __init__(
        self, connections: IdleConnections, connection: redis.Connection, commands: int
    ) -> None:
        self._connections = connections
        self._connection: redis.Connection | None = connection
        self._commands = commands

    def replies(self) -> list[Any]:
        """Return the replies, an error in place of a reply; call it once.

        Raises
        ------
        redis.ConnectionError, redis.TimeoutError
            Not all replies came: every command may have been run.
        """
        connection, replies = self._connection, []
        assert connection is not None
        try:
            for _ in range(self._commands):
                try:
                    replies.append(connection.read_response())
                except ResponseError as error:
                    # Without this frame, which has the replies: they would keep each other.
                    replies.append(error.with_traceback(None))
        except BaseException as error:
            self.give_up(error)
            raise
        self._connection = None
        self._connections.give_back(connection)
        return replies

    def give_up(self, error: BaseException | None = None) -> None:
        """Close the connection unless its replies were read: nobody may get them. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.cut(connection, error)


def socket_of(connection: Any) -> Any:
    """Return a connection's socket, None while it is not connected."""
    return connection._sock  # noqa: SLF001 - redis-py has no look that costs as little


def _is_quiet(connection: Any) -> bool:
    """Tell whether a connection is open, and nothing has come that nobody has asked for."""
    sock = socket_of(connection)
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return not poll.poll(0)


_lock = ProcessLock()
_by_pool: weakref.WeakKeyDictionary[redis.ConnectionPool, IdleConnections] = (
    weakref.WeakKeyDictionary()
)


def idle_connections(pool: redis.ConnectionPool) -> IdleConnections:
    """Return the idle connections of a pool, the same for all who ask."""
    connections = _by_pool.get(pool)  # most often; it costs less than the lock
    if connections is not None:
        return connections
    with _lock:
        return _by_pool.setdefault(pool, IdleConnections(pool))
