"""One connection for all that a thread appends, however many writers it has.

A lane holds a connection only while something on it is unanswered. So a process needs one
connection for each thread that appends at this moment, however many segments and transactions.
Answers come in the order of the requests.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import NoScriptError, ResponseError

from pulsar_txn_spark.errors import SegmentLogUnavailableError
from pulsar_txn_spark.store.redis.exchange import IdleConnections, pack, socket_of

_IN_FLIGHT_BYTES = 4 * 1024 * 1024  # hides the fsync of one entry behind the encoding of the next


@dataclass(slots=True, eq=False)
class Request:
    """A command that is on its way.

    Parameters
    ----------
    size : int
        Bytes of its payload.
    answered : callable
        Gets the reply, or the error that the server sent in place of one. Must not raise.
    lost : callable
        Gets the reason why no reply will come. Must not raise.
    wanted : callable
        Whether anybody still waits for the reply.
    """

    size: int
    answered: Callable[[Any], None]
    lost: Callable[[Exception], None]
    wanted: Callable[[], bool]


@dataclass(slots=True)
class _Line:
    """The connection of a lane, while it has one."""

    pool: IdleConnections
    connection: redis.Connection | None = None

    def give_back(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            self.pool.give_back(connection)

    def cut(self, error: BaseException | None = None) -> None:
        """Close the connection: replies that nobody has read must not reach its next user."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.pool.cut(connection, error)


class AppendLane:
    """Sends commands on one connection, a bounded number of bytes ahead of their replies.

    A lane that is dropped while replies are outstanding, because its thread has ended before its
    writers were closed, gives the connection back as well.

    Parameters
    ----------
    pool : IdleConnections
        Where the connection comes from, and goes back to when every reply is there.
    prepare : sequence of str
        A command that is sent first on each connection: it loads the script that follows.
    """

    def __init__(self, pool: IdleConnections, prepare: Sequence[str]) -> None:
        self._line = _Line(pool)
        self._prepare = pack(prepare)
        self._prepared: weakref.WeakSet[Any] = weakref.WeakSet()  # sockets
        self._lock = threading.RLock()
        self._sent: deque[Request] = deque()
        self._bytes = 0
        weakref.finalize(self, self._line.cut).atexit = False

    def send(self, command: Sequence[Any], request: Request) -> None:
        """Send a command; waits for replies while too much is in flight."""
        with self._lock:
            while self._sent and self._bytes + request.size > _IN_FLIGHT_BYTES:
                self._receive()
            try:
                connection = self._ready()
                connection.send_packed_command([pack(command)], check_health=False)  # type: ignore[no-untyped-call]
            except BaseException as error:
                self._let_go(error)
                raise
            self._sent.append(request)
            self._bytes += request.size

    def wait(self, done: Callable[[], bool]) -> None:
        """Receive replies until it is done."""
        with self._lock:
            while not done():
                self._receive()

    def abandon(self) -> None:
        """Let go of the connection if nobody waits for any of the replies that are outstanding."""
        with self._lock:
            if self._sent and not any(request.wanted() for request in self._sent):
                self._let_go(SegmentLogUnavailableError("the writer was closed"))

    def _ready(self) -> redis.Connection:
        if self._line.connection is not None:
            return self._live()
        connection = self._line.connection = self._line.pool.take()
        sock = socket_of(connection)
        if sock not in self._prepared:
            connection.send_packed_command([self._prepare], check_health=False)  # type: ignore[no-untyped-call]
            self._sent.append(Request(0, lambda _: None, lambda _: None, lambda: False))
            self._prepared.add(sock)
        return connection

    def _live(self) -> redis.Connection:
        # redis-py silently connects again when a connection was closed, for example by another
        # thread. The replies to earlier commands would be missing, and later ones taken for them.
        connection = self._line.connection
        assert connection is not None
        if not connection.is_connected:
            raise SegmentLogUnavailableError(
                "the connection was closed before the server's reply came"
            )
        return connection

    def _receive(self) -> None:
        try:
            reply: Any = self._live().read_response()
        except ResponseError as error:
            if isinstance(error, NoScriptError):
                self._prepared.clear()  # somebody has flushed the server's scripts
            reply = error
        except BaseException as error:
            self._let_go(error)
            raise
        request = self._sent.popleft()
        self._bytes -= request.size
        request.answered(reply)
        if not self._sent:
            self._line.give_back()

    def _let_go(self, error: BaseException) -> None:
        """Tell everybody whose reply will not come, and close the connection."""
        lost, self._sent, self._bytes = self._sent, deque(), 0
        reason = error if isinstance(error, Exception) else SegmentLogUnavailableError(repr(error))
        for request in lost:
            request.lost(reason)
        self._line.cut(error)
