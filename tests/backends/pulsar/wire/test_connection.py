"""A connection to a broker whose name stands for several addresses."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_txn_spark.backends.pulsar.wire import connection as wire_connection
from pulsar_txn_spark.backends.pulsar.wire.connection import Connection, RefusedError
from pulsar_txn_spark.backends.pulsar.wire.settings import Address, ConnectionSettings
from tests.support.fake_pulsar import FakePulsar

SILENT = "127.0.0.9"
CONNECT_S = 6.0


@dataclass
class Waits:
    """Seconds: what was waited at silent addresses, and each timeout that a socket was given."""

    silent: list[float] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Let nobody answer at an address, by a clock of its own."""
    waits = Waits()

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:
            if address[0] == SILENT:
                waits.silent.append(self.gettimeout() or 0.0)
                raise TimeoutError("timed out")
            super().connect(address)

        def settimeout(self, value: float | None, /) -> None:
            waits.timeouts.append(value)
            super().settimeout(value)

    monkeypatch.setattr(socket, "socket", Socket)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(waits.silent))
    monkeypatch.setattr(wire_connection, "time", clock)
    return waits


@pytest.fixture
def connect(
    broker: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Connection]]:
    """Return a function that connects to a name, which stands for the given addresses."""

    def connect(*hosts: str) -> Connection:
        resolved = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, broker.port)) for host in hosts
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_given, **_named: resolved)
        address = Address("brokers", broker.port, tls=False)
        connection = Connection(ConnectionSettings((address,), connect_s=CONNECT_S), address)
        stack.callback(connection.close)
        return connection

    with contextlib.ExitStack() as stack:
        yield connect


def test_a_broker_behind_a_silent_address_has_the_whole_time_to_greet(
    waits: Waits, connect: Callable[..., Connection]
) -> None:
    assert connect(SILENT, "127.0.0.1").usable
    assert len(waits.silent) == 1
    assert waits.timeouts[-1] == pytest.approx(CONNECT_S, abs=1)


def test_the_addresses_of_a_name_share_the_time_to_connect(
    waits: Waits, connect: Callable[..., Connection]
) -> None:
    assert connect(SILENT, SILENT, "127.0.0.1").usable
    assert waits.silent == pytest.approx([CONNECT_S / 3, CONNECT_S / 3], abs=1)
    waits.silent.clear()
    with pytest.raises(RefusedError, match="timed out") as refused:
        connect(SILENT, SILENT)
    assert refused.value.result == "ConnectError"
    assert sum(waits.silent) <= CONNECT_S


def test_a_name_without_an_address_is_refused(connect: Callable[..., Connection]) -> None:
    with pytest.raises(RefusedError) as refused:
        connect()
    assert refused.value.result == "ConnectError"
