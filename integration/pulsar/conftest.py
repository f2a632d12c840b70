"""What the tests of brokers with the plug-in share; each module has a `gated` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pulsar as pulsar_client
import pytest

from integration.support.gated import QUIET, Gated
from integration.support.holding_proxy import HoldingProxy
from integration.support.java_client import JavaClient
from pulsar_txn_spark.backends.pulsar.library import reader
from pulsar_txn_spark.testing.redis_server import RedisServer


@pytest.fixture(autouse=True)
def look_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a reader of pulsar-client that gets nothing ask the broker sooner: it is near."""
    monkeypatch.setattr(reader, "_POLL_MS", 100)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(store: RedisServer) -> Iterator[HoldingProxy]:
    """Give what stands between the broker and the store; drivers go past it."""
    proxy = HoldingProxy(store.port)
    yield proxy
    proxy.close()


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
