"""Runs several models side by side on one server: what they send at a time goes out together.

A model that runs alone waits for the server most of the time, and the server for it. Here each has
a database of its own, and pauses with each command. Those of half of the models go out in one
write, and while the server runs them, the other half goes on with its replies.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import hiredis
import redis
from greenlet import getcurrent, greenlet
from redis.commands import CoreCommands
from redis.exceptions import ResponseError

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.exchange import pack, socket_of

_DATABASES = 16  # that a server has unless it is told otherwise
_GARBAGE = 50_000  # objects until the collector looks: a seventh of the time went there
_READ_SIZE = 1 << 16


class Lane(CoreCommands):
    """One database of the server, as models take it for a client.

    The other models go on until a reply is there; only pipelines make all of them wait.
    """

    _event_dispatcher: Any = None  # of redis-py, which has no use for it here

    def __init__(self, lanes: SideBySide, number: int, client: redis.Redis) -> None:
        self._lanes, self._number = lanes, number
        self._select = pack(["SELECT", number])
        self._callbacks: Any = client.response_callbacks
        self.pipeline = client.pipeline

    def evalsha(self, *args: Any) -> Any:
        """Run a script, whose reply is used as it is."""
        reply = self._lanes.exchange(self._number, self._select + pack(["EVALSHA", *args]))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command for redis-py's method of its name."""
        reply = self._lanes.exchange(self._number, self._select + pack(args))
        if isinstance(reply, Exception):
            raise reply
        options.pop("keys", None)  # what redis-py's cache would need
        callback = self._callbacks.get(args[0])
        return reply if callback is None else callback(reply, **options)


class SideBySide:
    """The databases of one server, each for one model at a time.

    Parameters
    ----------
    socket : str
        Path of the server's unix socket.
    """

    def __init__(self, socket: str) -> None:
        configs = [
            StoreConfig(url=f"unix://{socket}?db={number}", accept_data_loss=True)
            for number in range(_DATABASES)
        ]
        clients: list[Any] = [connect(config) for config in configs]
        self.lanes = [Lane(self, *numbered) for numbered in enumerate(clients)]
        self.running = 0
        """The number of the lane whose model runs now."""
        self._pool = clients[0].connection_pool
        self._connection = self._pool.get_connection()
        self._socket = socket_of(self._connection)
        self._replies = hiredis.Reader(replyError=ResponseError)
        self._requests: list[bytes] = []
        self._paused: list[greenlet] = []
        self._main = getcurrent()

    def run(self, models: Iterable[Callable[[Lane], None]]) -> None:
        """Run models until there is none left; raise what any of them raised."""
        self._main = getcurrent()
        left = iter(models)
        threshold = gc.get_threshold()
        gc.set_threshold(_GARBAGE, *threshold[1:])  # a model is one large cycle
        started = [greenlet(self._run_lane) for _ in self.lanes]
        under_way: deque[list[greenlet]] = deque()
        try:
            for half in (0, 1):
                for number in range(half, len(started), 2):
                    started[number].switch(number, left)
                under_way.append(self._send())
            while under_way:
                paused = under_way.popleft()
                for model, reply in zip(paused, self._receive(len(paused)), strict=True):
                    model.switch(reply)
                if self._paused:
                    under_way.append(self._send())
        finally:
            gc.set_threshold(*threshold)
            # If one has failed, the others end, and what was on its way reaches nobody.
            for lane in started:
                if not lane.dead:
                    lane.throw()
            self._requests, self._paused = [], []
            for paused in under_way:
                self._receive(len(paused))

    def exchange(self, number: int, request: bytes) -> Any:
        """Send a request, let the others run, and return the reply."""
        self._requests.append(request)
        self._paused.append(getcurrent())
        reply = self._main.switch()
        self.running = number
        return reply

    def close(self) -> None:
        """Give the connection back."""
        self._connection.disconnect()
        self._pool.release(self._connection)

    def _run_lane(self, number: int, models: Iterator[Callable[[Lane], None]]) -> None:
        for model in models:
            self.running = number
            model(self.lanes[number])

    def _send(self) -> list[greenlet]:
        paused, self._paused = self._paused, []
        requests, self._requests = self._requests, []
        self._socket.sendall(b"".join(requests))
        return paused

    def _receive(self, count: int) -> list[Any]:
        """Return the replies to so many requests, behind that to the SELECT before each."""
        replies: list[Any] = []
        while len(replies) < 2 * count:
            reply = self._replies.gets()
            if reply is False:
                read = self._socket.recv(_READ_SIZE)
                assert read, "the server has closed the connection"
                self._replies.feed(read)
            else:
                replies.append(reply)
        return replies[1::2]
