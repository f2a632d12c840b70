"""A broker whose metadata store is a Redis Cluster: gate, coordinator, and a server that dies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pulsar as pulsar_client
import pytest

from integration.support.coordinated import SETTINGS, coordinated
from integration.support.gated import Gated
from integration.support.java_client import JavaClient
from integration.support.plain_client import ordinary, received, send, subscribe
from integration.support.redis_cluster import RedisCluster
from pulsar_txn_spark import client
from pulsar_txn_spark.segments.topic_name import TopicName
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
    with PulsarServer(store_url=store.url, settings=SETTINGS, short_lived=True) as server:
        yield coordinated(server, store)


def test_clients_of_both_kinds_share_transactions_in_a_store_on_a_cluster(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    topic, segment = gated.topic()
    other = ordinary()
    consumer, beside = subscribe(plain, segment), subscribe(plain, other)
    coordinator = gated.components().coordinator
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
    (own,) = gated.components().topics.require(TopicName.parse(topic)).active
    node = store.node_of(f"seg:{own.ref.id}")
    node.kill()
    assert received(consumer, 0) == []
    node.start()
    store.await_ok()
    assert java("commit", "held") == "done"
    assert received(consumer, 1) == ["a"]
