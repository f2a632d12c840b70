"""Brokers with the plug-in: any client of Pulsar's sees what is committed, and nothing else."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pulsar as pulsar_client
import pytest

from integration.pulsar.test_observers import CHEAP, changed_at_random, name_of
from integration.support.addresses import listened_beyond_loopback
from integration.support.admin_rest import AdminRest
from integration.support.gated import SOON_S, Gated, await_, numbers
from integration.support.observed_topic import ObservedTopic
from integration.support.observers import AllObservers, PythonObservers, java_observers
from integration.support.plain_client import drained, received, send, subscribe
from integration.support.quiet_histories import check_quiet_histories
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.backends.pulsar.log import GATING_BUFFER
from pulsar_txn_spark.cli.doctor import Level, examine
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import FencedError, OptionError, SegmentLogUnavailableError
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.records import EndedBy, TxnId
from pulsar_txn_spark.store.redis.merged import RedisMergedSteps
from pulsar_txn_spark.testing.pulsar_server import Broker, PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, TxnStatus

pytestmark = pytest.mark.skipif(
    shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
)


@pytest.fixture(scope="module")
def gated(store: RedisServer) -> Iterator[Gated]:
    with PulsarServer(store_url=store.url, short_lived=True) as server:
        yield Gated.of(server, store)


@pytest.fixture(scope="module")
def observers(gated: Gated) -> Iterator[AllObservers]:
    url = gated.server.service_url
    with java_observers(url) as java, PythonObservers(url) as python:
        yield AllObservers([java, python])


@pytest.mark.parametrize("scenario", CHEAP, ids=name_of)
def test_plain_consumers_see_committed_rows_only(
    gated: Gated, observers: AllObservers, scenario: Callable[[ObservedTopic], None]
) -> None:
    with contextlib.ExitStack() as cleanup:
        scenario(ObservedTopic(gated, observers, cleanup))


@pytest.mark.parametrize("nth", range(2))
def test_plain_consumers_see_committed_rows_only_however_segments_change(
    gated: Gated, observers: AllObservers, nth: int
) -> None:
    with contextlib.ExitStack() as cleanup:
        changed_at_random(ObservedTopic(gated, observers, cleanup), nth)


def test_in_quiet_histories_readers_go_on_where_others_have_waited(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Aborted rows are not sent: the readers meet holes, and skip over them.
    def new_topic(_run: Components) -> TopicName:
        name = f"topic://public/default/quiet-{next(numbers)}"
        Admin(gated.options).create_topic(name, segments=2, gate="broker")
        return TopicName.parse(name)

    with contextlib.closing(AdminRest(gated.server.admin_url)) as api:
        check_quiet_histories(dict(gated.options), new_topic, api.unload, monkeypatch)


@pytest.mark.usefixtures("gated")
def test_no_server_of_the_tests_listens_beyond_loopback() -> None:
    assert listened_beyond_loopback() == []


def test_an_unloaded_segment_is_as_before_from_the_store_alone(
    gated: Gated, plain: pulsar_client.Client
) -> None:
    topic, segment = gated.topic()
    with client.connect(gated.options) as service:
        lost, kept = service.new_txn(), service.new_txn()
        send(service, topic, lost, "never")
        send(service, topic, kept, "a")
        gated.admin.unload(segment)
        assert received(subscribe(plain, segment), 0) == []
        lost.abort()
        kept.commit()
        gated.admin.unload(segment)
        assert received(subscribe(plain, segment), 1) == ["a"]


def test_the_gate_is_closed_while_the_store_is_away_and_opens_after(
    gated: Gated, store: RedisServer, plain: pulsar_client.Client
) -> None:
    topic, segment = gated.topic()
    consumer = subscribe(plain, segment)
    with client.connect(gated.options) as service:
        with service.new_txn() as before:
            send(service, topic, before, "a")
        assert received(consumer, 1) == ["a"]
        txn = service.new_txn()
        send(service, topic, txn, "b")
        store.kill()
        try:
            assert received(consumer, 0) == []
            # Loaded anew, the segment shows nothing at all: what is decided is not known.
            gated.admin.unload(segment)
            late = subscribe(plain, segment)
            assert received(late, 0) == []
            assert received(consumer, 0) == []
        finally:
            store.start()
        assert received(late, 1) == ["a"]
        txn.commit()
        assert received(late, 1) == ["b"]
        assert received(consumer, 2) == ["a", "b"]  # the first one again: it has acknowledged none


def test_a_zombie_is_refused_and_told_why(gated: Gated, plain: pulsar_client.Client) -> None:
    topic, segment = gated.topic()
    consumer = subscribe(plain, segment)
    with client.connect(gated.options) as service:
        zombie = service.new_txn()
        send(service, topic, zombie, "never")
        components = gated.components()
        components.coordinator.abort(zombie.id, EndedBy.ADMIN, cause="a test")
        await_(lambda: gated.buffer_of(segment).ongoing == 0)
        with pytest.raises(FencedError, match="takes nothing more from writer"):
            send(service, topic, zombie, "neither")
        with service.new_txn() as other:
            send(service, topic, other, "a")
        assert received(consumer, 1) == ["a"]


DRIVER = """
import json, sys, threading
from pulsar_txn_spark import client
service = client.connect(json.loads(sys.argv[1]))
txn = service.new_txn(timeout_ms=2_000)
producer = service.producer(sys.argv[2])
producer.send("never", key="k", txn=txn)
producer.flush()
print(txn.id.key, flush=True)
threading.Event().wait(60)
"""


def test_a_dead_driver_holds_plain_consumers_no_longer_than_its_lease(
    gated: Gated, plain: pulsar_client.Client
) -> None:
    topic, segment = gated.topic()
    consumer = subscribe(plain, segment)
    command = [sys.executable, "-c", DRIVER, json.dumps(gated.options), topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        dead = TxnId.parse(driver.stdout.readline().strip())
        driver.kill()
    with client.connect(gated.options) as service:
        with service.new_txn() as txn:
            send(service, topic, txn, "a")
        # Nobody sweeps, and no reader of this package comes.
        assert received(consumer, 1) == ["a"]
    coordinator = gated.components().coordinator
    await_(lambda: coordinator.status(dead) is TxnStatus.ABORTED)


def test_a_broker_materializes_what_a_driver_has_decided_before_it_died(
    gated: Gated, plain: pulsar_client.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, segment = gated.topic()
    consumer = subscribe(plain, segment)
    with client.connect(gated.options) as service:
        txn = service.new_txn()
        send(service, topic, txn, "a")
        # A cluster takes single steps, and a driver may die between these two.
        monkeypatch.setattr(RedisMergedSteps, "possible", False)
        monkeypatch.setattr(TransactionCoordinator, "materialize", lambda *_, **__: None)
        txn.commit()
        assert received(consumer, 1) == ["a"]
        await_(lambda: txn.status() is TxnStatus.COMMITTED)


def test_this_packages_readers_see_the_same(gated: Gated) -> None:
    topic, _ = gated.topic()
    with client.connect(gated.options) as service:
        for number in range(3):
            with service.new_txn() as txn:
                send(service, topic, txn, f"{number}")
            lost = service.new_txn()
            send(service, topic, lost, "never")
            lost.abort()
    for transport in ("wire", "client"):
        with (
            client.connect({**gated.options, "transport": transport}) as service,
            service.consumer(topic, f"s-{transport}") as consumer,
        ):
            found = [consumer.receive(timeout_ms=int(SOON_S * 1000)) for _ in range(3)]
            assert [message.value for message in found] == [b"0", b"1", b"2"]


def test_the_children_of_a_gated_segment_are_gated(
    gated: Gated, plain: pulsar_client.Client
) -> None:
    topic, _ = gated.topic()
    with client.connect(gated.options) as service:
        txn = service.new_txn()
        send(service, topic, txn, "a")
        split = Admin(gated.options).split_segment(topic, "0000-ffff-0")
        send(service, topic, txn, "b")
        consumers = [subscribe(plain, child.ref.log_name) for child in split.active]
        assert [received(consumer, 0) for consumer in consumers] == [[], []]
        txn.commit()
        await_(lambda: any(gated.buffer_of(one.ref.log_name).ongoing == 0 for one in split.active))
        shown = [message for one in consumers for message in drained(one)]
        assert shown == ["b"]


def test_an_existing_topic_is_gated_from_its_segments_seal_on(
    gated: Gated, plain: pulsar_client.Client
) -> None:
    topic, segment = gated.topic("reader")
    with client.connect(gated.options) as service:
        with service.new_txn() as before:
            send(service, topic, before, "a")
        txn = service.new_txn()
        send(service, topic, txn, "b")
        (child,) = Admin(gated.options).gate_topic(topic).active
        send(service, topic, txn, "c")
        consumer = subscribe(plain, child.ref.log_name)
        assert received(consumer, 0) == []
        # What was there before the seal stays as it is.
        assert received(subscribe(plain, segment), 2) == ["a", "b"]
        txn.commit()
        assert received(consumer, 1) == ["c"]
        with service.consumer(topic, "ours") as ours:
            found = [ours.receive(timeout_ms=int(SOON_S * 1000)).value for _ in range(3)]
    assert found == [b"a", b"b", b"c"]
    assert gated.buffer_of(child.ref.log_name).buffer == GATING_BUFFER
    (checked,) = [one for one in examine(gated.options) if one.check == "gating brokers"]
    assert checked.level is Level.OK, checked


def test_the_brokers_endpoint_has_the_metrics_of_the_metadata_store(gated: Gated) -> None:
    topic, _ = gated.topic()
    with client.connect(gated.options) as service, service.new_txn() as txn:
        send(service, topic, txn, "a")

    samples = ("op_writes_total", "outstanding_op_records", "index_query_seconds_count")
    await_(lambda: all(f"pulsar_txn_metadata_store_{one}{{" in gated.metrics() for one in samples))


def test_key_shared_consumers_see_each_key_in_order(
    gated: Gated, plain: pulsar_client.Client
) -> None:
    topic, segment = gated.topic()
    kind, earliest = pulsar_client.ConsumerType.KeyShared, pulsar_client.InitialPosition.Earliest
    consumers = [
        plain.subscribe(segment, "shared", kind, initial_position=earliest) for _ in range(3)
    ]
    keys, rounds = [f"key-{number}" for number in range(40)], 6
    with client.connect(gated.options) as service:
        producer = service.producer(topic)
        for number in range(rounds):
            txn = service.new_txn()
            for value in range(3 * number, 3 * number + 3):
                for key in keys:
                    producer.send(f"{value}", key=key, txn=txn)
            producer.flush()
            if number % 3 == 2:
                txn.abort()
            else:
                txn.commit()
    expected = [3 * n + i for n in range(rounds) if n % 3 != 2 for i in range(3)]
    seen: dict[str, list[int]] = {}
    owners: dict[str, set[int]] = {}
    deadline = time.monotonic() + SOON_S
    while sum(map(len, seen.values())) < len(keys) * len(expected):
        assert time.monotonic() < deadline
        for which, consumer in enumerate(consumers):
            with contextlib.suppress(pulsar_client.Timeout):
                message = consumer.receive(20)
                consumer.acknowledge(message)
                seen.setdefault(message.partition_key(), []).append(int(message.data()))
                owners.setdefault(message.partition_key(), set()).add(which)
    assert seen == dict.fromkeys(keys, expected)
    assert {len(own) for own in owners.values()} == {1}
    assert set().union(*owners.values()) == {0, 1, 2}


def test_a_gated_topic_can_be_deleted(gated: Gated) -> None:
    """From 4.2 on, a broker closes the buffer of such a topic by a method of its own."""
    topic, segment = gated.topic()
    with client.connect(gated.options) as service, service.new_txn() as txn:
        send(service, topic, txn, "a")
    Admin(gated.options).delete_topic(topic)
    assert segment not in gated.admin.topics("public", "default")


def test_pulsar_client_may_not_write_to_a_gated_segment(gated: Gated) -> None:
    topic, _ = gated.topic()
    with client.connect({**gated.options, "transport": "client"}) as service:
        txn = service.new_txn()
        with pytest.raises(OptionError, match="set the option 'transport' to 'wire'"):
            send(service, topic, txn, "never")


def test_a_broker_without_the_plug_in_gets_no_row_of_a_gated_segment(
    pulsar: Broker, store: RedisServer
) -> None:
    urls = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    options = {**urls, "store.url": store.url}
    topic = f"topic://public/default/gated-{next(numbers)}"
    Admin(options).create_topic(topic, segments=1, gate="broker")
    with client.connect(options) as service:
        txn = service.new_txn()
        with pytest.raises(SegmentLogUnavailableError, match="has not loaded the plug-in"):
            send(service, topic, txn, "never")


def test_topics_without_a_gate_have_pulsars_own_buffer(
    gated: Gated, plain: pulsar_client.Client
) -> None:
    topic, segment = gated.topic("reader")
    consumer = subscribe(plain, segment)
    assert gated.buffer_of(segment).buffer != GATING_BUFFER
    with client.connect(gated.options) as service:
        txn = service.new_txn()
        send(service, topic, txn, "a")
        assert received(consumer, 1) == ["a"]
        txn.abort()
