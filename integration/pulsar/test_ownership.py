"""Gated segments and coordinators move between two brokers, and no client notices but by a pause.

The observers are those of test_observers.py.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator

import pulsar as pulsar_client
import pytest

from integration.pulsar.test_observers import name_of
from integration.support.addresses import listened_beyond_loopback
from integration.support.coordinated import SETTINGS, coordinated
from integration.support.gated import QUIET, Gated
from integration.support.java_client import JavaClient
from integration.support.observed_topic import ObservedTopic
from integration.support.observers import (
    AllObservers,
    Observers,
    PythonObservers,
    go_observers,
    java_observers,
)
from integration.support.plain_client import ordinary, received, subscribe
from pulsar_txn_spark.testing.pulsar_cluster import PulsarCluster
from pulsar_txn_spark.testing.redis_server import RedisServer
from pulsar_txn_spark.txn.coordinator import TxnStatus

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
    ),
]
COORDINATORS = tuple(
    f"persistent://pulsar/system/transaction_coordinator_assign-partition-{number}"
    for number in range(2)
)


@pytest.fixture(scope="module")
def cluster(store: RedisServer) -> Iterator[PulsarCluster]:
    with PulsarCluster(
        store_url=store.url,
        settings=SETTINGS,
        coordinators=len(COORDINATORS),
        short_lived=True,
    ) as found:
        assert listened_beyond_loopback() == []
        yield found


@pytest.fixture(scope="module")
def gated(cluster: PulsarCluster, store: RedisServer) -> Gated:
    return coordinated(cluster, store)


@pytest.fixture(scope="module")
def observers(gated: Gated) -> Iterator[AllObservers]:
    url = gated.server.service_url
    with contextlib.ExitStack() as stack:
        languages: list[Observers] = [
            stack.enter_context(java_observers(url)),
            stack.enter_context(PythonObservers(url)),
        ]
        go = go_observers(url)
        if go is not None:
            languages.append(stack.enter_context(go))
        yield AllObservers(languages)


# --- segments -------------------------------------------------------------------------------------


def moved(topic: ObservedTopic, cluster: PulsarCluster) -> None:
    """Its owner gives it away and takes it back, as a load balancer would have it."""
    topic.commit("1")
    lost, kept = topic.begin(), topic.begin()
    topic.send(lost, "never")
    topic.send(kept, "2")
    topic.abort("nor this")
    owner = cluster.owner_of(topic.segment)
    topic.interrupt()
    cluster.move(topic.segment, cluster.other_than(owner))
    topic.sees("1")
    topic.send(kept, "3")
    topic.send(lost, "never")
    kept.commit()
    topic.sees("1")
    cluster.move(topic.segment, owner)
    topic.sees("1")
    lost.abort()
    topic.sees("1", "2", "3")
    cluster.move(topic.segment, cluster.other_than(owner))
    topic.watch(topic.segment)
    topic.sees("1", "2", "3")


def moved_behind_a_decision(topic: ObservedTopic, cluster: PulsarCluster) -> None:
    """A driver decides and says so to nobody; then the segment gets another owner."""
    lost, kept = topic.begin(), topic.begin()
    topic.send(lost, "never")
    topic.send(kept, "1")
    topic.sees()
    lost.abort()
    topic.decide(kept)
    topic.interrupt()
    cluster.move(topic.segment, cluster.other_than(cluster.owner_of(topic.segment)))
    topic.sees("1")


def owner_killed(topic: ObservedTopic, cluster: PulsarCluster) -> None:
    """Its owner dies; the other broker takes over when ZooKeeper says so."""
    survivor, owner = cluster.brokers  # the admin API that is used here is the first one's
    topic.interrupt()
    cluster.move(topic.segment, owner)
    topic.commit("1")
    lost, kept = topic.begin(), topic.begin()
    topic.send(lost, "never")
    topic.send(kept, "2")
    topic.abort("nor this")
    topic.sees("1")
    owner.kill()
    try:
        cluster.await_owner(topic.segment, survivor)
        topic.sees("1")
        topic.send(kept, "3")
        kept.commit()
        topic.sees("1")
        lost.abort()
        topic.sees("1", "2", "3")
    finally:
        owner.start()
    cluster.move(topic.segment, owner)
    topic.commit("4")
    topic.sees("1", "2", "3", "4")


@pytest.mark.parametrize("scenario", [moved, moved_behind_a_decision, owner_killed], ids=name_of)
def test_observers_see_what_is_committed_whoever_owns_the_segment(
    gated: Gated,
    cluster: PulsarCluster,
    observers: AllObservers,
    scenario: Callable[[ObservedTopic, PulsarCluster], None],
) -> None:
    with contextlib.ExitStack() as cleanup:
        scenario(ObservedTopic(gated, observers, cleanup), cluster)


# --- coordinators ---------------------------------------------------------------------------------


def give_away(cluster: PulsarCluster) -> None:
    """Make the first broker's coordinators the second one's."""
    for topic in COORDINATORS:
        cluster.move(topic, cluster.brokers[1])


def kill_owner(cluster: PulsarCluster) -> None:
    """Kill the second broker, which has all coordinators."""
    survivor, owner = cluster.brokers
    owner.kill()
    for topic in COORDINATORS:
        cluster.await_owner(topic, survivor)


def test_a_coordinators_next_owner_ends_what_was_opened_before(
    gated: Gated, cluster: PulsarCluster
) -> None:
    """Clients go on with their transactions; the former owner's hold on them is taken away."""
    found = gated.components()
    with contextlib.ExitStack() as stack:
        java = stack.enter_context(JavaClient(gated.server.service_url))
        plain = pulsar_client.Client(gated.server.service_url, logger=QUIET)
        stack.callback(plain.close)
        for topic in COORDINATORS:
            cluster.move(topic, cluster.brokers[0])
        for change in (give_away, kill_owner):
            _, segment = gated.topic()
            topics = [segment, ordinary()]
            for topic in topics:
                cluster.move(topic, cluster.brokers[0])
            before = {}
            for name in ("committed", "aborted", "left"):
                txn = java.begin(name)
                for topic in topics:
                    assert java("send", name, topic, name) == "done"
                header = found.store.transactions.read(txn)
                assert header is not None
                before[txn] = header.nonce
            consumers = [subscribe(plain, topic) for topic in topics]
            assert [received(one, 0) for one in consumers] == [[], []]
            change(cluster)
            assert java("commit", "committed") == "done"
            assert java("abort", "aborted") == "done"
            assert java("send", "left", segment, "more") == "done"
            assert java("commit", "left") == "done"
            assert received(consumers[0], 3) == ["committed", "left", "more"]
            assert received(consumers[1], 2) == ["committed", "left"]
            states = []
            for txn, nonce in before.items():
                header = found.store.transactions.read(txn)
                assert header is not None
                assert header.nonce != nonce  # the former owner's writes are refused
                states.append(found.coordinator.status(txn))
            assert states == [TxnStatus.COMMITTED, TxnStatus.ABORTED, TxnStatus.COMMITTED]
        cluster.brokers[1].start()
