"""A TCP proxy in front of a Redis that stops a client at a script of the test's choice."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import BinaryIO, Literal

from pulsar_txn_spark.store.redis import scripts

OF_A_BROKER = (
    *("seg_gate", "seg_fates", "txn_end", "seg_materialize", "txn_forget_ops"),
    *("txn_create", "txn_admit", "txn_commit", "txn_ended"),  # of its coordinators
    *("broker_acks_open", "broker_acks_write"),
)
When = Literal["request", "reply"]
"""What is held: the request, so that the script does not run; or its reply."""


@dataclass
class Hold:
    """One stop."""

    script: str
    number: int
    when: When
    seen: int = 0
    reached: threading.Event = field(default_factory=threading.Event)

    def is_due(self, script: str) -> bool:
        """Whether this is the script to stop at, counted from when the hold began."""
        self.seen += script == self.script
        return script == self.script and self.seen == self.number


class HoldingProxy:
    """Passes everything on until a hold is reached; that connection goes no further."""

    def __init__(self, port: int) -> None:
        self._redis = ("127.0.0.1", port)
        self._hold: Hold | None = None
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, script: str, number: int, when: When) -> Hold:
        """Stop at so many-th script of that name from now on, once."""
        with self._lock:
            self._hold = Hold(script, number, when)
            return self._hold

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
                redis = socket.create_connection(self._redis)
                self._open += [client, redis]
                stop = Stop()
                for task, source, target in (
                    (self._requests, client, redis),
                    (self._replies, redis, client),
                ):
                    threading.Thread(target=task, args=(source, target, stop), daemon=True).start()

    def _requests(self, client: socket.socket, redis: socket.socket, stop: Stop) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as stream:
            for words, request in _commands(stream):
                due = self._due(words)
                if due is not None and due.when == "request":
                    due.reached.set()
                    continue
                stop.hold = due or stop.hold
                redis.sendall(request)
        _end(redis)

    def _due(self, words: list[bytes]) -> Hold | None:
        script = script_of(words)
        with self._lock:
            if script is None or self._hold is None or not self._hold.is_due(script):
                return None
            due, self._hold = self._hold, None
            return due

    @staticmethod
    def _replies(redis: socket.socket, client: socket.socket, stop: Stop) -> None:
        with contextlib.suppress(OSError):
            while reply := redis.recv(65536):
                if stop.hold is not None:
                    stop.hold.reached.set()
                else:
                    client.sendall(reply)
        _end(client)


@dataclass
class Stop:
    """From which request on a connection passes no reply on, nor those of requests just before."""

    hold: Hold | None = None


@cache
def _names() -> dict[str, str]:
    return {scripts.script(name)[1]: name for name in OF_A_BROKER}


def script_of(words: list[bytes]) -> str | None:
    """Return the name of the script that a command runs, None if it is none of a broker's."""
    if words[0].upper() == b"EVAL":
        return _names().get(hashlib.sha1(words[1], usedforsecurity=False).hexdigest())
    return _names().get(words[1].decode()) if words[0].upper() == b"EVALSHA" else None


def _commands(stream: BinaryIO) -> Iterator[tuple[list[bytes], bytes]]:
    while head := stream.readline():
        words, whole = [], head
        for _ in range(int(head[1:])):
            size = stream.readline()
            word = stream.read(int(size[1:]) + 2)
            words.append(word[:-2])
            whole += size + word
        yield words, whole


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
