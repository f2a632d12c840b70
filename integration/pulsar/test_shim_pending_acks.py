"""Brokers with pending acks in the metadata store: Java clients consume and produce, once each."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator

import pulsar as pulsar_client
import pytest
import redis

from integration.pulsar.test_shim import drained, received, send, subscribe
from integration.pulsar.test_shim_coordinator import (
    HOUR_MS,
    JavaClient,
    components,
    reconfigure,
)
from integration.support.gated import QUIET, Gated, await_, numbers
from pulsar_txn_spark import client
from pulsar_txn_spark.testing.broker_jar import COORDINATOR, PENDING_ACKS
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)
TYPES = ("Exclusive", "Shared", "Key_Shared")
VALUES = ["a", "b", "c"]
PATIENCE_S = 120.0
SETTINGS = {
    "transactionMetadataStoreProviderClassName": COORDINATOR,
    "transactionPendingAckStoreProviderClassName": PENDING_ACKS,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def gated(store: RedisServer) -> Iterator[Gated]:
    with PulsarServer(store_url=store.url, settings=SETTINGS, short_lived=True) as server:
        found = Gated.of(server, store)
        components(found)  # a store has to be there before a broker's coordinator
        yield found


@pytest.fixture
def plain(gated: Gated) -> Iterator[pulsar_client.Client]:
    """Give a client that knows nothing of this package."""
    client = pulsar_client.Client(gated.server.service_url, logger=QUIET)
    yield client
    client.close()


@pytest.fixture
def java(gated: Gated) -> Iterator[JavaClient]:
    with JavaClient(gated.server.service_url) as program:
        yield program


def filled(gated: Gated, *values: str, one_batch: bool = False) -> str:
    """Create a gated segment with messages; return its name."""
    topic, segment = gated.topic()
    with client.connect(gated.options) as service:
        for part in [values] if one_batch else [[value] for value in values]:
            with service.new_txn() as txn:
                send(service, topic, txn, *part)
    return segment


def records(gated: Gated) -> dict[bytes, bytes]:
    """Return what the store has of all subscriptions."""
    found: dict[bytes, bytes] = {}
    with redis.Redis.from_url(gated.store.url) as connection:
        for key in connection.keys("*}:broker-acks:*"):
            found |= connection.hgetall(key)
    return found


def transform(java: JavaClient, source: str, out: str, verb: str = "acknowledge") -> str:
    """Consume a message and produce it in one transaction; return what came of it."""
    name = f"t{next(numbers)}"
    if not java("begin", name, HOUR_MS).startswith("("):
        return "not begun"
    value = java(verb, name, source, "service", 2_000)
    if value != "none" and "Exception" not in value and java("send", name, out, value) == "done":
        return java("commit", name)
    java("abort", name)
    return value


def left(plain: pulsar_client.Client, java: JavaClient, source: str) -> list[str]:
    """Return what the subscription has left, when its consumer has gone."""
    java("leave", source, "service")
    consumer = plain.subscribe(source, "service", pulsar_client.ConsumerType.Shared)
    found = []
    try:
        while True:
            found.append(consumer.receive(1_000).data().decode())
    except pulsar_client.Timeout:
        consumer.close()
        return found


def finish(plain: pulsar_client.Client, java: JavaClient, source: str, out: str) -> None:
    """Consume what is left, and see that every message was produced once."""
    consumer = subscribe(plain, out)
    produced: list[str] = []

    def is_done() -> bool:
        transform(java, source, out)  # fails while the client connects again
        produced.extend(drained(consumer))
        return len(produced) >= len(VALUES)

    await_(is_done, PATIENCE_S)
    assert sorted(produced) == VALUES
    assert left(plain, java, source) == []
    assert drained(consumer) == []


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_consumed_and_produced_in_a_transaction_counts_once(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient, kind: str
) -> None:
    source = filled(gated, *VALUES)
    _, out = gated.topic()
    java("subscribe", source, "service", kind)
    assert transform(java, source, out) == "done"
    assert records(gated)
    # An abort: the broker delivers the message again to a consumer that is there.
    java.begin("aborted")
    assert java("acknowledge", "aborted", source, "service") == "b"
    assert java("abort", "aborted") == "done"
    gated.admin.unload(source)
    finish(plain, java, source, out)


@pytest.mark.parametrize("kind", TYPES)
def test_messages_of_one_batch_are_acknowledged_one_by_one(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient, kind: str
) -> None:
    source = filled(gated, *VALUES, one_batch=True)
    java("subscribe", source, "service", kind)
    java.begin("first")
    java.begin("second")
    assert java("acknowledge", "first", source, "service") == "a"
    assert java("acknowledge", "second", source, "service") == "b"
    assert java("commit", "first") == "done"
    assert java("abort", "second") == "done"
    java("leave", source, "service")
    gated.admin.unload(source)
    java("subscribe", source, "service", kind)
    java.begin("third")
    found = [java("acknowledge", "third", source, "service") for _ in range(2)]
    assert found == ["b", "c"]
    assert java("commit", "third") == "done"
    assert left(plain, java, source) == []


def test_a_cumulative_acknowledgement_counts_when_its_transaction_is_committed(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    source = filled(gated, *VALUES)
    _, out = gated.topic()
    assert transform(java, source, out, "acknowledgeUpTo") == "done"
    java.begin("lost")
    assert java("acknowledgeUpTo", "lost", source, "service") == "b"
    assert java("abort", "lost") == "done"
    java("leave", source, "service")
    java.begin("kept")
    assert java("acknowledgeUpTo", "kept", source, "service") == "b"
    gated.admin.unload(source)
    assert java("commit", "kept") == "done"
    assert left(plain, java, source) == ["c"]


@pytest.mark.long
def test_pending_acks_of_a_cluster_move_over_and_back(store: RedisServer) -> None:
    """Every transaction is ended where it has acknowledged, and no message is lost or repeated."""
    settings = {name: value for name, value in SETTINGS.items() if value != PENDING_ACKS}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PulsarServer(store_url=store.url, settings=settings))
        gated = Gated.of(server, store)
        components(gated)
        source = filled(gated, *"abcdef")
        java = stack.enter_context(JavaClient(server.service_url))

        def acknowledge(name: str, value: str) -> None:
            java.begin(name)
            java("subscribe", source, "service", "Shared")
            assert java("acknowledge", name, source, "service") == value
            assert java("leave", source, "service") == "done"

        acknowledge("stock", "a")
        reconfigure(server, transactionPendingAckStoreProviderClassName=PENDING_ACKS)
        acknowledge("ours", "b")
        assert len(records(gated)) == 1
        acknowledge("ours-aborted", "c")
        assert java("commit", "stock") == java("commit", "ours") == "done"
        assert java("abort", "ours-aborted") == "done"
        acknowledge("last", "c")
        reconfigure(server, pulsarTxnSparkPendingAcksEnabled="false")
        acknowledge("back", "d")
        assert java("commit", "last") == java("commit", "back") == "done"
        await_(lambda: not records(gated))
        reconfigure(server, transactionPendingAckStoreProviderClassName=None)
        acknowledge("stock-again", "e")
        assert java("commit", "stock-again") == "done"
        plain = pulsar_client.Client(server.service_url, logger=QUIET)
        stack.callback(plain.close)
        consumer = plain.subscribe(source, "service", pulsar_client.ConsumerType.Shared)
        assert received(consumer, 1) == ["f"]
