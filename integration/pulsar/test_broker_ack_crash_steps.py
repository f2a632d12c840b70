"""Brokers are killed at each step of pending acks in the metadata store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pulsar as pulsar_client
import pytest
import redis

from integration.support.coordinated import coordinated, decide
from integration.support.gated import SOON_S, Gated
from integration.support.holding_proxy import HoldingProxy, When
from integration.support.java_client import JavaClient
from integration.support.pending_acks import SETTINGS, TYPES, VALUES, filled, finish, transform
from integration.support.plain_client import subscribe
from pulsar_txn_spark.store.records import EndedBy
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer
from pulsar_txn_spark.txn.coordinator import TxnStatus

pytestmark = [
    pytest.mark.crash,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
    ),
]


@pytest.fixture(scope="module")
def gated(store: RedisServer, proxy: HoldingProxy) -> Iterator[Gated]:
    with PulsarServer(store_url=proxy.url, settings=SETTINGS, short_lived=True) as server:
        yield coordinated(server, store)


def forget(gated: Gated) -> None:
    """Leave no records of tests that have run."""
    with redis.Redis.from_url(gated.store.url) as connection:
        for key in connection.keys("*}:broker-acks:*"):
            connection.delete(key)


CRASHES: list[tuple[str, int, When]] = [
    ("broker_acks_write", 1, "request"),  # the acknowledgement
    ("broker_acks_write", 1, "reply"),
    ("txn_commit", 1, "reply"),  # the decision
    ("broker_acks_write", 2, "request"),  # the decision, beside the records
    ("broker_acks_write", 2, "reply"),
]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("step", CRASHES, ids=lambda step: "-".join(map(str, step)))
def test_a_broker_that_dies_in_a_transaction_neither_loses_nor_repeats_a_message(
    gated: Gated,
    proxy: HoldingProxy,
    plain: pulsar_client.Client,
    java: JavaClient,
    kind: str,
    step: tuple[str, int, When],
) -> None:
    forget(gated)  # nothing of another test is written meanwhile
    source = filled(gated, *VALUES)
    _, out = gated.topic()
    java("subscribe", source, "service", kind)
    java.begin("first")  # opens the store's part
    assert java("acknowledge", "first", source, "service") == "a"
    assert java("send", "first", out, "a") == "done"
    with ThreadPoolExecutor(1) as beside:
        java("commit", "first")
        hold = proxy.hold(*step)
        beside.submit(transform, java, source, out)
        assert hold.reached.wait(SOON_S)
        gated.server.restart(crash=True)
    finish(plain, java, source, out)


@pytest.mark.parametrize(
    "step",
    [("broker_acks_open", 1, "reply"), ("broker_acks_write", 1, "request")],
    ids=lambda step: "-".join(map(str, step)),
)
def test_a_broker_that_dies_while_it_replays_leaves_that_to_the_next_one(
    gated: Gated,
    proxy: HoldingProxy,
    plain: pulsar_client.Client,
    java: JavaClient,
    step: tuple[str, int, When],
) -> None:
    forget(gated)
    source = filled(gated, *VALUES)
    _, out = gated.topic()
    java("subscribe", source, "service", "Shared")
    kept, lost, open_ = (java.begin(name) for name in ("kept", "lost", "open"))
    for name, value in zip(("kept", "lost", "open"), VALUES, strict=True):
        assert java("acknowledge", name, source, "service") == value
        assert java("send", name, out, value) == "done"
    gated.server.pause(crash=True)
    found = gated.components()
    decide(gated, kept)
    found.coordinator.abort(lost, EndedBy.ADMIN, cause="a test")
    hold = proxy.hold(*step)
    gated.server.resume()
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(subscribe, plain, source)
        assert hold.reached.wait(60)
        gated.server.restart(crash=True)
        loading.result(120).close()
    assert java("commit", "open") == "done"
    finish(plain, java, source, out)
    statuses = [found.coordinator.status(txn) for txn in (kept, lost, open_)]
    assert statuses == [TxnStatus.COMMITTED, TxnStatus.ABORTED, TxnStatus.COMMITTED]
