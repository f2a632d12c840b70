"""A TCP proxy that lets a server of this machine answer as if it were some milliseconds away."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from types import TracebackType
from typing import Self

_BYTES = 1 << 16


class DelayingProxy:
    """Passes bytes on after half of a round trip, in each direction; a context manager.

    What follows does not wait for what went before: it is on its way, too, as on a long line.

    Parameters
    ----------
    port : int
        Of the server, on the loopback address.
    round_trip_ms : float
        How much longer an answer takes through the proxy.

    Attributes
    ----------
    port : int
        Where the proxy listens.
    """

    def __init__(self, port: int, round_trip_ms: float) -> None:
        self._server = ("127.0.0.1", port)
        self._delay_s = round_trip_ms / 2000
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _end(self._listening)
        for connection in self._open:
            _end(connection)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                server = socket.create_connection(self._server)
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    # A small packet does not wait for the one before to be acknowledged.
                    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    for task, end in ((self._receive, source), (self._deliver, target)):
                        threading.Thread(target=task, args=(end, line), daemon=True).start()

    def _receive(self, source: socket.socket, line: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        received = b""
        with contextlib.suppress(OSError):
            while received := source.recv(_BYTES):
                line.put((time.monotonic() + self._delay_s, received))
        line.put((time.monotonic() + self._delay_s, b""))  # its end takes the same way

    @staticmethod
    def _deliver(target: socket.socket, line: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, received = line.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not received:
                    break
                target.sendall(received)
        _end(target)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
