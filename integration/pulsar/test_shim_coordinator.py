"""Brokers whose coordinators are on the metadata store: one kind of transaction for all clients."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pulsar as pulsar_client
import pytest

from integration.pulsar.test_shim import received, send, subscribe
from integration.support.gated import QUIET, Gated, Redis, numbers
from pulsar_txn_spark import client
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.testing.broker_jar import COORDINATOR
from pulsar_txn_spark.testing.pulsar_server import PulsarServer, find_java, resolve_classpath
from pulsar_txn_spark.txn.coordinator import TxnStatus

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)
HOUR_MS = 3_600_000
PROGRAM = Path(__file__).parents[1] / "java" / "Coordinated.java"


class JavaClient:
    """Pulsar's own client, in a JVM that ends with this object."""

    def __init__(self, service_url: str) -> None:
        command = [find_java(), "-Xmx128m", "-cp", resolve_classpath(), str(PROGRAM)]
        self._jvm = subprocess.Popen(
            [*command, service_url],
            stdin=subprocess.PIPE,  # closed when this process dies, which ends the JVM
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, *words: object) -> str:
        """Carry a command out; return its answer, an error's class and message included."""
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        self._jvm.stdin.write(" ".join(map(str, words)) + "\n")
        self._jvm.stdin.flush()
        for line in self._jvm.stdout:
            if line.startswith("> "):
                return line[2:].strip()
        raise AssertionError(f"the JVM ended at {words!r}")

    def begin(self, name: str, timeout_ms: int = HOUR_MS) -> TxnId:
        """Open a transaction; return its id as this package has it."""
        most, least = self("begin", name, timeout_ms).strip("()").split(",")
        return TxnId(int(most), int(least))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.communicate(timeout=30)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def gated(store: Redis) -> Iterator[Gated]:
    settings = {"transactionMetadataStoreProviderClassName": COORDINATOR}
    with PulsarServer(store_url=store.url, settings=settings, short_lived=True) as server:
        urls = {"service.url": server.service_url, "admin.url": server.admin_url}
        options = {**urls, "store.url": store.url}
        open_components(Options(options, Use.CONNECT))  # a store has to be there before a broker
        yield Gated(server, store, options)


@pytest.fixture
def plain(gated: Gated) -> Iterator[pulsar_client.Client]:
    """Give a client that knows nothing of this package."""
    client = pulsar_client.Client(gated.server.service_url, logger=QUIET)
    yield client
    client.close()


@pytest.fixture(scope="module")
def java(gated: Gated) -> Iterator[JavaClient]:
    with JavaClient(gated.server.service_url) as program:
        yield program


def ordinary() -> str:
    return f"persistent://public/default/ordinary-{next(numbers)}"


def components(gated: Gated) -> Components:
    return open_components(Options(gated.options, Use.CONNECT))


def ask(gated: Gated, path: str) -> Any:
    with urllib.request.urlopen(f"{gated.server.admin_url}/admin/v3/transactions/{path}") as answer:
        return json.load(answer)


def test_a_transaction_of_a_java_client_is_one_like_a_drivers(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    topic, segment = gated.topic()
    other = ordinary()
    consumer, beside = subscribe(plain, segment), subscribe(plain, other)
    coordinator = components(gated).coordinator
    with client.connect(gated.options) as service, service.consumer(topic, "ours") as ours:
        kept = java.begin("kept")
        lost = java.begin("lost")
        for value in ("a", "b"):
            assert java("send", "kept", segment, value) == "done"
        assert java("send", "kept", other, "x") == "done"
        assert java("send", "lost", segment, "never") == "done"
        assert java("send", "lost", other, "never") == "done"
        assert coordinator.status(kept) is TxnStatus.OPEN
        with service.new_txn() as behind:  # a transaction of this package, in the same order
            send(service, topic, behind, "c")
        assert received(consumer, 0) == received(beside, 0) == []
        assert java("commit", "kept") == "done"
        assert java("abort", "lost") == "done"
        assert received(consumer, 3) == ["a", "b", "c"]
        assert received(beside, 1) == ["x"]
        found = [ours.receive(timeout_ms=20_000).value for _ in range(3)]
        assert found == [b"a", b"b", b"c"]
    assert coordinator.status(kept) is TxnStatus.COMMITTED
    assert coordinator.status(lost) is TxnStatus.ABORTED
    gated.admin.unload(segment)  # what the broker knew is forgotten
    assert received(subscribe(plain, segment), 3) == ["a", "b", "c"]
