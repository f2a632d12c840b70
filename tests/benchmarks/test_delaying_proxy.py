"""The proxy delays each round trip once, loses nothing, and passes the end on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.delaying_proxy import DelayingProxy

_ROUND_TRIP_MS = 60.0


@pytest.fixture
def echo() -> Iterator[int]:
    """Give the port of a server that sends back what it gets, on one connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection = listening.accept()[0]
        while received := connection.recv(1 << 16):
            connection.sendall(received)
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1]
    thread.join(10)
    listening.close()
    assert not thread.is_alive(), "the server was not told of the end"


def test_an_answer_takes_a_round_trip_longer_and_nothing_is_lost(echo: int) -> None:
    sent = bytes(range(256)) * 4_000
    with (
        DelayingProxy(echo, _ROUND_TRIP_MS) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        began = time.monotonic()
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        received = client.recv(1 << 16)
        passed_ms = (time.monotonic() - began) * 1000
        while len(received) < len(sent):
            received += client.recv(1 << 16)
        sender.join()

    assert passed_ms >= _ROUND_TRIP_MS
    assert received == sent


def test_what_is_sent_ahead_of_the_answers_waits_once(echo: int) -> None:
    with (
        DelayingProxy(echo, 400.0) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        began = time.monotonic()
        for _ in range(8):
            client.sendall(b"x")
            time.sleep(0.01)  # so that they are packets of their own
        received = b""
        while len(received) < 8:
            received += client.recv(8)
        passed = time.monotonic() - began

    assert passed < 8 * 0.4, "each waited for the one before"
