"""A broker whose metadata store is a Redis Cluster: gate, coordinator, and a server that dies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pulsar as pulsar_client
import pytest

from integration.pulsar.test_shim import received, send, subscribe
from integration.pulsar.test_shim_coordinator import JavaClient, components, ordinary
from integration.support.gated import QUIET, Gated
from integration.support.redis_cluster import RedisCluster
from pulsar_txn_spark import client
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.testing.broker_jar import COORDINATOR
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.txn.coordinator import TxnStatus

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("redis")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gated(store: RedisCluster) -> Iterator[Gated]:
    settings = {"transactionMetadataStoreProviderClassName": COORDINATOR}
    with PulsarServer(store_url=store.url, settings=settings, short_lived=True) as server:
        found = Gated.of(server, store)
        components(found)  # a store has to be there before a broker's coordinator
        yield found


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


def test_clients_of_both_kinds_share_transactions_in_a_store_on_a_cluster(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    topic, segment = gated.topic()
    other = ordinary()
    consumer, beside = subscribe(plain, segment), subscribe(plain, other)
    coordinator = components(gated).coordinator
    with client.connect(gated.options) as service:
        with service.new_txn() as txn:
            send(service, topic, txn, "a")
        lost = service.new_txn()
        send(service, topic, lost, "never")
        kept, dropped = java.begin("kept"), java.begin("dropped")
        assert java("send", "kept", segment, "b") == "done"
        assert java("send", "kept", other, "x") == "done"
        assert java("send", "dropped", segment, "never") == "done"
        assert java("send", "dropped", other, "never") == "done"
        assert java("commit", "kept") == "done"
        assert received(consumer, 1) == ["a"], "the others wait for the one that is open"
        lost.abort()
        assert java("abort", "dropped") == "done"
    assert received(consumer, 1) == ["b"]
    assert received(beside, 1) == ["x"]
    assert coordinator.status(kept) is TxnStatus.COMMITTED
    assert coordinator.status(dropped) is TxnStatus.ABORTED
    gated.admin.unload(segment)  # what the broker knew is forgotten
    assert received(subscribe(plain, segment), 2) == ["a", "b"]


def test_a_server_of_the_store_that_dies_holds_consumers_until_it_is_back(
    gated: Gated, store: RedisCluster, plain: pulsar_client.Client, java: JavaClient
) -> None:
    topic, segment = gated.topic()
    consumer = subscribe(plain, segment)
    java.begin("held")
    assert java("send", "held", segment, "a") == "done"
    (own,) = components(gated).topics.require(TopicName.parse(topic)).active
    node = store.node_of(f"seg:{own.ref.id}")
    node.kill()
    assert received(consumer, 0) == []
    node.start()
    store.await_ok()
    assert java("commit", "held") == "done"
    assert received(consumer, 1) == ["a"]
