"""Brokers with pending acks in the metadata store: Java clients consume and produce, once each."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator

import pulsar as pulsar_client
import pytest
import redis

from integration.support import coordinated
from integration.support.gated import QUIET, Gated, await_
from integration.support.java_client import JavaClient
from integration.support.pending_acks import (
    SETTINGS,
    TYPES,
    VALUES,
    filled,
    finish,
    left,
    transform,
)
from integration.support.plain_client import received
from pulsar_txn_spark.testing.broker_jar import PENDING_ACKS
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)


@pytest.fixture(scope="module")
def gated(store: RedisServer) -> Iterator[Gated]:
    with PulsarServer(store_url=store.url, settings=SETTINGS, short_lived=True) as server:
        yield coordinated.coordinated(server, store)


def records(gated: Gated) -> dict[bytes, bytes]:
    """Return what the store has of all subscriptions."""
    found: dict[bytes, bytes] = {}
    with redis.Redis.from_url(gated.store.url) as connection:
        for key in connection.keys("*}:broker-acks:*"):
            found |= connection.hgetall(key)
    return found


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


def test_the_brokers_endpoint_counts_pending_acks(gated: Gated, java: JavaClient) -> None:
    def shown(labels: str) -> int:
        sample = rf"^pulsar_txn_metadata_store_pending_ack{labels} (\d+)$"
        (found,) = re.findall(sample, gated.metrics(), re.MULTILINE)
        return int(found)

    def pending() -> int:
        return shown('s{.*state="open"}')

    source = filled(gated, *VALUES)
    java("subscribe", source, "service", "Shared")
    before = pending()
    java.begin("counted")
    assert java("acknowledge", "counted", source, "service") == "a"
    await_(lambda: pending() == before + 1)
    replays = shown('_replays_total{.*result="ok"}')
    gated.admin.unload(source)
    await_(lambda: shown('_replays_total{.*result="ok"}') == replays + 1)
    await_(lambda: pending() == before + 1)
    assert java("commit", "counted") == "done"
    await_(lambda: pending() == before)


@pytest.mark.long
@pytest.mark.timeout(900)  # it starts four brokers, one after the other
def test_pending_acks_of_a_cluster_move_over_and_back(store: RedisServer) -> None:
    """Every transaction is ended where it has acknowledged, and no message is lost or repeated."""
    with contextlib.ExitStack() as stack:
        server = PulsarServer(store_url=store.url, settings=coordinated.SETTINGS)
        gated = coordinated.coordinated(stack.enter_context(server), store)
        source = filled(gated, *"abcdef")
        java = stack.enter_context(JavaClient(server.service_url))

        def acknowledge(name: str, value: str) -> None:
            java.begin(name)
            java("subscribe", source, "service", "Shared")
            assert java("acknowledge", name, source, "service") == value
            assert java("leave", source, "service") == "done"

        acknowledge("stock", "a")
        coordinated.reconfigure(server, transactionPendingAckStoreProviderClassName=PENDING_ACKS)
        acknowledge("ours", "b")
        assert len(records(gated)) == 1
        acknowledge("ours-aborted", "c")
        assert java("commit", "stock") == java("commit", "ours") == "done"
        assert java("abort", "ours-aborted") == "done"
        acknowledge("last", "c")
        coordinated.reconfigure(server, pulsarTxnSparkPendingAcksEnabled="false")
        acknowledge("back", "d")
        assert java("commit", "last") == java("commit", "back") == "done"
        await_(lambda: not records(gated))
        coordinated.reconfigure(server, transactionPendingAckStoreProviderClassName=None)
        acknowledge("stock-again", "e")
        assert java("commit", "stock-again") == "done"
        plain = pulsar_client.Client(server.service_url, logger=QUIET)
        stack.callback(plain.close)
        consumer = plain.subscribe(source, "service", pulsar_client.ConsumerType.Shared)
        assert received(consumer, 1) == ["f"]
