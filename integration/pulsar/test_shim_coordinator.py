"""Brokers whose coordinators are on the metadata store: one kind of transaction for all clients."""

from __future__ import annotations

import contextlib
import json
import shutil
import urllib.request
from collections.abc import Iterator
from typing import Any

import pulsar as pulsar_client
import pytest
from pyspark.sql import SparkSession

import pulsar_txn_spark
from integration.support.coordinated import SETTINGS, coordinated, decide, reconfigure, unended
from integration.support.gated import QUIET, Gated, await_
from integration.support.java_client import JavaClient
from integration.support.plain_client import ordinary, received, send, subscribe
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.store.records import EndedBy
from pulsar_txn_spark.testing.broker_jar import COORDINATOR
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer
from pulsar_txn_spark.txn.coordinator import TxnStatus

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)


@pytest.fixture(scope="module")
def gated(store: RedisServer) -> Iterator[Gated]:
    with PulsarServer(store_url=store.url, settings=SETTINGS, short_lived=True) as server:
        yield coordinated(server, store)


def ask(gated: Gated, path: str) -> Any:
    with urllib.request.urlopen(f"{gated.server.admin_url}/admin/v3/transactions/{path}") as answer:
        return json.load(answer)


def test_a_transaction_of_a_java_client_is_one_like_a_drivers(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    topic, segment = gated.topic()
    other = ordinary()
    consumer, beside = subscribe(plain, segment), subscribe(plain, other)
    coordinator = gated.components().coordinator
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


def ended_rows(plain: pulsar_client.Client, topics: list[str], count: int) -> list[list[str]]:
    return [received(subscribe(plain, topic), count) for topic in topics]


def test_a_transaction_that_takes_too_long_is_aborted_everywhere(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    _, segment = gated.topic()
    topics = [segment, ordinary()]
    late = java.begin("late", 1_500)
    for topic in topics:
        java("send", "late", topic, "never")
    java.begin("next")
    for topic in topics:
        java("send", "next", topic, "a")
    assert java("commit", "next") == "done"
    assert ended_rows(plain, topics, 1) == [["a"], ["a"]]  # behind the other one
    assert gated.components().coordinator.status(late) is TxnStatus.ABORTED
    assert "Exception" in java("commit", "late")


def test_what_an_administrator_aborts_is_aborted_in_pulsars_own_topics_too(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    _, segment = gated.topic()
    topics = [segment, ordinary()]
    txn = java.begin("txn")
    for topic in topics:
        java("send", "txn", topic, "never")
    coordinator = gated.components().coordinator
    coordinator.abort(txn, EndedBy.ADMIN, cause="a test")
    java.begin("next")
    for topic in topics:
        java("send", "next", topic, "a")
    assert java("commit", "next") == "done"
    assert ended_rows(plain, topics, 1) == [["a"], ["a"]]
    assert "Exception" in java("commit", "txn")
    refused = java("send", "txn", segment, "zombie")
    assert "Exception" in refused, refused


def test_messages_are_consumed_and_produced_in_one_transaction(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    topic, segment = gated.topic()
    _, out = gated.topic()
    source = ordinary()
    plain.create_producer(source).send(b"x")
    with client.connect(gated.options) as service, service.new_txn() as txn:
        send(service, topic, txn, "y")
    for attempt, action in (("first", "abort"), ("second", "commit")):
        java.begin(attempt)
        found = [java("acknowledge", attempt, one, "service") for one in (source, segment)]
        assert found == ["x", "y"]
        for value in found:
            java("send", attempt, out, f"{value}-{attempt}")
        assert java(action, attempt) == "done"
        for one in (source, segment):
            java("leave", one, "service")
    assert received(subscribe(plain, out), 2) == ["x-second", "y-second"]
    for one in (source, segment):  # nothing is left of it
        assert received(plain.subscribe(one, "service"), 0) == []


def test_the_brokers_admin_api_shows_its_transactions(gated: Gated, java: JavaClient) -> None:
    _, segment = gated.topic()
    java.begin("first")  # opens the coordinator
    before = ask(gated, "coordinatorStats?coordinatorId=0")
    txn = java.begin("shown")
    java("send", "shown", segment, "a")
    during = ask(gated, "coordinatorStats?coordinatorId=0")
    assert (during["state"], during["leastSigBits"]) == ("Ready", txn.counter)
    assert during["ongoingTxnSize"] == before["ongoingTxnSize"] + 1
    shown = ask(gated, f"transactionMetadata/0/{txn.counter}")
    assert (shown["status"], list(shown["producedPartitions"])) == ("OPEN", [segment])
    java("abort", "shown")
    java("abort", "first")
    after = ask(gated, "coordinatorStats?coordinatorId=0")
    assert after["ongoingTxnSize"] == before["ongoingTxnSize"] - 1


def test_a_segment_is_split_in_the_middle_of_a_clients_transaction(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    topic, parent = gated.topic()
    java.begin("over")
    assert java("send", "over", parent, "a") == "done"
    split = Admin(gated.options).split_segment(topic, "0000-ffff-0")
    child = split.active[0].ref.log_name
    assert java("send", "over", child, "b") == "done"
    consumers = [subscribe(plain, where) for where in (parent, child)]
    assert [received(one, 0) for one in consumers] == [[], []]
    # Nothing is appended to a sealed segment for that.
    assert java("commit", "over") == "done"
    assert [received(one, 1) for one in consumers] == [["a"], ["b"]]
    # A client that finds its segment sealed gets an error, and begins anew.
    java.begin("late")
    assert "Terminated" in java("send", "late", parent, "never")
    assert java("abort", "late") == "done"


@pytest.mark.long
def test_another_broker_goes_on_wherever_the_one_before_it_died(
    gated: Gated, plain: pulsar_client.Client, java: JavaClient
) -> None:
    _, segment = gated.topic()
    topics = [segment, ordinary()]
    found = gated.components()
    txns = {name: java.begin(name) for name in ("committed", "aborted", "decided", "left")}
    for name in txns:
        for topic in topics:
            assert java("send", name, topic, name) == "done"
    # The broker dies behind the compare-and-set: neither materialized, nor told to any topic.
    header = decide(gated, txns["decided"])
    gated.server.restart(crash=True)
    assert java("commit", "committed") == "done"
    assert java("abort", "aborted") == "done"
    after = found.store.transactions.read(txns["left"])
    assert after is not None
    assert after.nonce != header.nonce
    assert java("commit", "left") == "done"
    everything = ["committed", "decided", "left"]
    assert ended_rows(plain, topics, 3) == [everything, everything]
    await_(lambda: txns["decided"].key.encode() not in unended(gated))


@pytest.mark.long
def test_spark_reads_what_java_clients_have_committed(
    gated: Gated, java: JavaClient, spark: SparkSession
) -> None:
    topic, segment = gated.topic()
    for name in ("committed", "aborted", "open"):
        java.begin(name)
        java("send", name, segment, name)
    java("commit", "committed")
    java("abort", "aborted")
    pulsar_txn_spark.register(spark)
    source = spark.read.format("pulsar_txn").options(**gated.options).option("topic", topic)
    assert [bytes(row.value) for row in source.load().collect()] == [b"committed"]
    java("commit", "open")
    assert [bytes(row.value) for row in source.load().collect()] == [b"committed", b"open"]


@pytest.mark.long
def test_a_cluster_with_transactions_of_its_own_moves_over_and_back(store: RedisServer) -> None:
    """Every transaction is ended where it was opened, and no number is given out twice."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PulsarServer(store_url=store.url, short_lived=True))
        gated = Gated.of(server, store)
        _, segment = gated.topic()
        topic = ordinary()
        java = stack.enter_context(JavaClient(server.service_url))
        given = []

        def begin(name: str, *topics: str) -> None:
            given.append(java.begin(name).counter)
            for where in topics:
                assert java("send", name, where, name) == "done"

        def end(name: str, action: str = "commit") -> None:
            assert java(action, name) == "done"

        begin("stock-aborted", topic)
        assert "Exception" in java("send", "stock-aborted", segment, "never")
        end("stock-aborted", "abort")
        begin("stock", topic)
        reconfigure(server, transactionMetadataStoreProviderClassName=COORDINATOR)
        begin("ours-aborted", topic, segment)
        end("ours-aborted", "abort")
        begin("ours", topic, segment)
        end("stock")
        end("ours")
        begin("last", topic, segment)
        reconfigure(server, pulsarTxnSparkCoordinatorEnabled="false")
        begin("back", topic)
        end("last")
        end("back")
        assert ask(gated, "coordinatorStats?coordinatorId=0")["ongoingTxnSize"] == 0
        reconfigure(server, transactionMetadataStoreProviderClassName=None)
        begin("stock-again", topic)
        end("stock-again")
        assert given == sorted(set(given))
        plain = pulsar_client.Client(server.service_url, logger=QUIET)
        stack.callback(plain.close)
        found = received(subscribe(plain, topic), 5)
        assert found == ["stock", "ours", "last", "back", "stock-again"]
        assert received(subscribe(plain, segment), 2) == ["ours", "last"]
