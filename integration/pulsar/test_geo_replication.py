"""What another cluster gets of a gated topic that Pulsar replicates, and what comes from there.

The replicator of a broker reads as far as consumers may, and sends no entry that they do not get.
So another cluster has committed rows only, as ordinary messages: nothing is gated there.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pulsar as pulsar_client
import pytest

from integration.support.admin_rest import AdminRest
from integration.support.gated import QUIET, Gated, numbers
from integration.support.observers import (
    AllObservers,
    ByKey,
    Observers,
    PythonObservers,
    SourceObserver,
    agree,
    java_observers,
)
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.client import Transaction
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
    ),
]
NAMESPACE = "public/geo"
KEYS = ("a", "b", "c")


@dataclass
class Clusters:
    """One whose brokers gate segments, and one that knows nothing of this package."""

    gating: Gated
    plain: PulsarServer
    at_gating: AllObservers
    at_plain: AllObservers


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(RedisServer(tmp_path_factory.mktemp("redis")))
        east, west = (
            stack.enter_context(
                PulsarServer(settings={"clusterName": name}, store_url=url, short_lived=True)
            )
            for name, url in (("east", store.url), ("west", None))
        )
        for here, other, name in ((east, west, "west"), (west, east, "east")):
            rest = AdminRest(here.admin_url)
            stack.callback(rest.close)
            urls = {"serviceUrl": other.admin_url, "brokerServiceUrl": other.service_url}
            rest("PUT", f"clusters/{name}", urls)
            rest("POST", "tenants/public", {"allowedClusters": ["east", "west"]})
            rest("PUT", f"namespaces/{NAMESPACE}", {"replication_clusters": ["east", "west"]})

        def observers(url: str) -> AllObservers:
            languages: list[Observers] = [
                stack.enter_context(java_observers(url)),
                stack.enter_context(PythonObservers(url)),
            ]
            return AllObservers(languages)

        yield Clusters(
            Gated.of(east, store), west, observers(east.service_url), observers(west.service_url)
        )


class ReplicatedTopic:
    """A gated topic of one segment that is replicated, and its observers in both clusters."""

    def __init__(self, clusters: Clusters, cleanup: contextlib.ExitStack) -> None:
        self._clusters, options = clusters, clusters.gating.options
        self.topic = f"topic://{NAMESPACE}/replicated-{next(numbers)}"
        created = Admin(options).create_topic(self.topic, segments=1, gate="broker")
        self.segment = created.active[0].ref.log_name
        self.service = cleanup.enter_context(client.connect(options))
        self._source = SourceObserver(options, self.topic)
        other = pulsar_client.Client(clusters.plain.service_url, logger=QUIET)
        cleanup.callback(other.close)
        self.remote = other.create_producer(self.segment)
        cleanup.enter_context(clusters.at_gating.of(self.segment))
        cleanup.enter_context(clusters.at_plain.of(self.segment))

    def send(self, txn: Transaction | None, *values: str) -> None:
        producer = self.service.producer(self.topic)
        for value in values:
            for key in KEYS:
                producer.send(value, key=key, txn=txn)
        producer.flush()

    def seen(self, *values: str, here: ByKey | None = None, there: ByKey | None = None) -> None:
        """Check who sees what: these values under each key, and what else is given."""
        rows = {key: list(values) for key in KEYS if values}
        agree(self._clusters.at_plain, None, {self.segment: rows | (there or {})})
        source = self._source if here is None else None
        agree(self._clusters.at_gating, source, {self.segment: rows | (here or {})})


def test_another_cluster_gets_committed_rows_only_and_in_order(clusters: Clusters) -> None:
    with contextlib.ExitStack() as cleanup:
        topic = ReplicatedTopic(clusters, cleanup)
        with topic.service.new_txn() as txn:
            topic.send(txn, "1")
        topic.seen("1")
        lost, kept = topic.service.new_txn(), topic.service.new_txn()
        topic.send(lost, "never")
        topic.send(kept, "2")
        with topic.service.new_txn() as behind:
            topic.send(behind, "3")
        topic.seen("1")
        clusters.at_gating.interrupt(topic.segment)
        clusters.gating.admin.unload(topic.segment)  # the replicator begins anew
        topic.seen("1")
        kept.commit()
        topic.seen("1")
        lost.abort()
        topic.seen("1", "2", "3")
        late = topic.service.new_txn()
        topic.send(late, "nor this")
        late.abort()  # at the log's end
        topic.send(None, "4")
        topic.seen("1", "2", "3", "4")


def test_what_comes_from_another_cluster_waits_behind_open_transactions(
    clusters: Clusters,
) -> None:
    with contextlib.ExitStack() as cleanup:
        topic = ReplicatedTopic(clusters, cleanup)
        topic.remote.send(b"before", partition_key="x")
        topic.seen(here={"x": ["before"]}, there={"x": ["before"]})
        txn = topic.service.new_txn()
        topic.send(txn, "1")
        topic.remote.send(b"behind", partition_key="y")
        topic.seen(here={"x": ["before"]}, there={"x": ["before"], "y": ["behind"]})
        txn.commit()
        everything = {"x": ["before"], "y": ["behind"]}
        topic.seen("1", here=everything, there=everything)
