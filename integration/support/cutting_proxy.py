"""A TCP proxy in front of a broker that cuts connections at a frame of the test's choice."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal
from urllib.parse import urlsplit

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand

Cut = Literal["before", "amid", "after"] | None
"""Where a connection is cut: before a frame was passed on, in the middle of it, or behind it."""


def never(_command: BaseCommand) -> Cut:
    return None


def at(kind: int, number: int, cut: Cut) -> Callable[[BaseCommand], Cut]:
    """Cut at the frame of that kind that is the `number`-th of all connections, once."""
    seen = 0

    def choose(command: BaseCommand) -> Cut:
        nonlocal seen
        seen += command.type == kind
        return cut if command.type == kind and seen == number else None

    return choose


class CuttingProxy:
    """Passes frames on between clients and one broker; a lookup's answer names the proxy."""

    def __init__(self, service_url: str) -> None:
        parts = urlsplit(service_url)
        self._broker = (str(parts.hostname), int(parts.port or 0))
        self.on_frame: Callable[[BaseCommand], Cut] = never
        self.connections = 0
        self._cut_lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._open:
            _end(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                self.connections += 1
                broker = socket.create_connection(self._broker)
                self._open += [client, broker]
                for source, target in ((client, broker), (broker, client)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            for command, frame in _frames(stream):
                with self._cut_lock:
                    cut = self.on_frame(command)
                if cut == "before":
                    break
                if cut == "amid":
                    target.sendall(frame[: len(frame) // 2])
                    break
                target.sendall(self._own(command, frame))
                if cut == "after":
                    break
        _end(source)
        _end(target)

    def _own(self, command: BaseCommand, frame: bytes) -> bytes:
        if command.type != BaseCommand.LOOKUP_RESPONSE:
            return frame
        command.lookupTopicResponse.brokerServiceUrl = self.url
        encoded = command.SerializeToString()
        return (len(encoded) + 4).to_bytes(4) + len(encoded).to_bytes(4) + encoded


def _frames(stream: BinaryIO) -> Iterator[tuple[BaseCommand, bytes]]:
    while head := stream.read(4):
        content = stream.read(int.from_bytes(head))
        size = int.from_bytes(content[:4])
        yield BaseCommand.FromString(content[4 : 4 + size]), head + content


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
