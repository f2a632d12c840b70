"""Which connections a process opens, and which broker of ``service.url`` it asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest

from pulsar_txn_spark.backends.pulsar.wire import client as wire_client
from pulsar_txn_spark.backends.pulsar.wire.client import WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.settings import Address, ConnectionSettings

SILENT, FIRST, SECOND = (Address(host, 6650, tls=False) for host in ("silent", "one", "two"))
WAIT_S = 5  # for what comes at once


@dataclass
class Network:
    """Brokers that accept at once, unless they are away; whoever asks the silent one waits."""

    opened: list[Address] = field(default_factory=list)
    connections: list[FakeConnection] = field(default_factory=list)
    away: set[Address] = field(default_factory=set)
    asked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Counts who waits for the silent broker, or for somebody else who does so."""
    answer: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = field(
        default_factory=lambda: RefusedError("ConnectError", "timed out")
    )
    """How the silent broker has not answered in the end, if so."""


class FakeConnection:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.usable = True

    def close(self) -> None:
        self.usable = False


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    network = Network()

    def connect(
        _settings: ConnectionSettings, address: Address, _behind_proxy: str | None = None
    ) -> FakeConnection:
        network.opened.append(address)
        if address == SILENT:
            network.asked.release()
            network.answer.wait()
            if network.failure is not None:
                raise network.failure
        if address in network.away:
            raise RefusedError("ConnectError", "refused")
        network.connections.append(FakeConnection(address))
        return network.connections[-1]

    class Opening(Future[FakeConnection]):
        def result(self, timeout: float | None = None) -> FakeConnection:
            network.asked.release()
            return super().result(timeout)

    monkeypatch.setattr(wire_client, "Connection", connect)
    monkeypatch.setattr(wire_client, "Future", Opening, raising=False)
    yield network
    network.answer.set()


@pytest.fixture
def start() -> Iterator[Callable[..., Future[Any]]]:
    """Return a function that calls another one in a thread of its own."""
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def client_of(*addresses: Address) -> WireClient:
    return WireClient(ConnectionSettings(addresses))


def await_asking(network: Network) -> None:
    assert network.asked.acquire(timeout=WAIT_S)


def test_a_connection_is_had_while_another_broker_does_not_answer(
    start: Callable[..., Future[Any]], network: Network
) -> None:
    client = client_of(SILENT)
    is_open = client._connect(FIRST)
    silent = start(client._connect, SILENT)
    await_asking(network)
    try:
        assert start(client._connect, FIRST).result(WAIT_S) is is_open
        assert start(client._connect, SECOND).result(WAIT_S).address == SECOND
    finally:
        network.answer.set()
    assert isinstance(silent.exception(WAIT_S), RefusedError)


@pytest.mark.parametrize("fails", [True, False])
def test_all_who_ask_for_a_broker_at_a_time_wait_for_one_connection(
    start: Callable[..., Future[Any]], network: Network, *, fails: bool
) -> None:
    network.failure = network.failure if fails else None
    client = client_of(SILENT)
    asking = [start(client.any_connection) for _ in range(4)]
    try:
        for _ in asking:
            await_asking(network)
    finally:
        network.answer.set()
    if fails:
        assert {str(one.exception(WAIT_S)) for one in asking} == {"('ConnectError', 'timed out')"}
    else:
        assert {one.result(WAIT_S) for one in asking} == set(network.connections)
    assert network.opened == [SILENT]


@pytest.mark.parametrize("moment", ["while it is opened", "once it is open"])
def test_who_waits_for_a_connection_is_not_interrupted_with_the_one_who_opens_it(
    start: Callable[..., Future[Any]],
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    client = client_of(SILENT)
    network.failure = KeyboardInterrupt() if moment == "while it is opened" else None
    with monkeypatch.context() as patched:
        if network.failure is None:
            interrupted = mock.Mock(side_effect=KeyboardInterrupt)
            patched.setattr(client, "_note_opened", interrupted)
        opening = start(client.any_connection)
        await_asking(network)
        waiting = start(client.any_connection)
        await_asking(network)
        network.answer.set()
        assert isinstance(opening.exception(WAIT_S), KeyboardInterrupt)
        assert isinstance(waiting.exception(WAIT_S), RefusedError)
    network.failure = None
    assert client.any_connection().address == SILENT


def test_a_broker_that_failed_may_be_connected_to_later(network: Network) -> None:
    network.answer.set()
    client = client_of(SILENT)
    with pytest.raises(RefusedError):
        client.any_connection()
    network.failure = None
    assert client.any_connection().address == SILENT


def test_an_open_connection_to_any_address_of_the_service_url_will_do(network: Network) -> None:
    client = client_of(FIRST, SECOND)
    is_open = client._connect(SECOND)
    assert client.any_connection() is is_open
    assert network.opened == [SECOND]


def test_an_address_that_failed_last_is_tried_last(network: Network) -> None:
    client = client_of(FIRST, SECOND)
    network.away = {FIRST}
    client.any_connection().close()
    network.opened.clear()
    client.any_connection().close()
    assert network.opened == [SECOND]
    # Then the second one fails, and the first one is back.
    network.away = {SECOND}
    network.opened.clear()
    client.any_connection().close()
    client.any_connection().close()
    assert network.opened == [SECOND, FIRST, FIRST]


def test_a_connection_that_was_opened_behind_the_end_of_its_client_is_closed(
    start: Callable[..., Future[Any]], network: Network
) -> None:
    network.failure = None
    client = client_of(SILENT)
    asking = start(client.any_connection)
    await_asking(network)
    try:
        start(client.close).result(WAIT_S)
    finally:
        network.answer.set()
    assert isinstance(asking.exception(WAIT_S), RefusedError)
    assert [connection.usable for connection in network.connections] == [False]
