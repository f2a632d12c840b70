"""Brokers are killed at each step that they take for a driver that died, and while they recover."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import get_args

import pulsar as pulsar_client
import pytest

from integration.support.coordinated import SETTINGS, coordinated, unended
from integration.support.gated import QUIET, SOON_S, Gated, await_, numbers
from integration.support.holding_proxy import HoldingProxy, When
from integration.support.java_client import HOUR_MS, JavaClient
from integration.support.observers import by_key
from integration.support.plain_client import ordinary, received, subscribe
from pulsar_txn_spark import Admin, client
from pulsar_txn_spark.client import Client, Transaction
from pulsar_txn_spark.store.redis.merged import RedisMergedSteps
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, TxnStatus

pytestmark = [
    pytest.mark.crash,
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("mvn") is None, reason="there is no 'mvn' on the PATH to fetch a broker with"
    ),
]
KEYS = tuple("abcdefgh")  # of both segments


@dataclass(frozen=True)
class CrashStep:
    """Where the broker stands when it is killed: at a script, which has run or has not."""

    script: str
    number: int
    when: When

    def __str__(self) -> str:
        return f"{self.script}-{self.number}-{self.when}"


ABORT = [CrashStep("txn_end", 1, "request"), CrashStep("txn_end", 1, "reply")]
MATERIALIZATION = [
    CrashStep("seg_materialize", 1, "request"),
    CrashStep("seg_materialize", 1, "reply"),
    CrashStep("seg_materialize", 2, "reply"),
    CrashStep("txn_forget_ops", 1, "reply"),
]
RECOVERY = [CrashStep("seg_gate", 1, "request"), CrashStep("seg_gate", 2, "reply")]
COORDINATOR_STEPS = [
    CrashStep(script, 1, when)
    for script in ("txn_create", "txn_admit", "txn_commit", "txn_ended")
    for when in get_args(When)
]


@pytest.fixture(scope="module")
def gated(store: RedisServer, proxy: HoldingProxy) -> Iterator[Gated]:
    with PulsarServer(store_url=proxy.url, settings=SETTINGS, short_lived=True) as server:
        yield coordinated(server, store)


@pytest.fixture
def service(gated: Gated) -> Iterator[Client]:
    with client.connect(gated.options) as service:
        yield service


class Topic:
    """A gated topic of two segments, and a plain consumer of each."""

    def __init__(self, gated: Gated) -> None:
        self.name = f"topic://public/default/crash-{next(numbers)}"
        created = Admin(gated.options).create_topic(self.name, segments=2, gate="broker")
        self._plain = pulsar_client.Client(gated.server.service_url, logger=QUIET)
        self._consumers = [
            self._plain.subscribe(
                one.ref.log_name, "s", initial_position=pulsar_client.InitialPosition.Earliest
            )
            for one in created.active
        ]
        self._seen: dict[str, tuple[str, str]] = {}

    def send(self, service: Client, txn: Transaction, value: str) -> None:
        producer = service.producer(self.name)
        for key in KEYS:
            producer.send(value, key=key, txn=txn)
        producer.flush()

    def seen(self) -> dict[str, list[str]]:
        """Return the values of each key that the consumers have seen so far, each once."""
        for number, consumer in enumerate(self._consumers):
            with contextlib.suppress(pulsar_client.Timeout):
                while True:
                    message = consumer.receive(100)
                    row = message.partition_key(), message.data().decode()
                    self._seen.setdefault(f"{number} {message.message_id()}", row)
        return by_key(self._seen.values())

    def close(self) -> None:
        self._plain.close()


@pytest.fixture
def topic(gated: Gated) -> Iterator[Topic]:
    topic = Topic(gated)
    yield topic
    topic.close()


def crash_at(gated: Gated, proxy: HoldingProxy, step: CrashStep) -> None:
    """Wait until the broker stands at a step, kill it there, and start it again."""
    hold = proxy.hold(step.script, step.number, step.when)
    assert hold.reached.wait(SOON_S)
    gated.server.restart(crash=True)


@pytest.mark.parametrize("step", [*ABORT, *MATERIALIZATION], ids=str)
def test_a_broker_that_dies_while_it_aborts_for_a_dead_driver_leaves_that_to_the_next_one(
    gated: Gated, proxy: HoldingProxy, service: Client, topic: Topic, step: CrashStep
) -> None:
    dead = service.new_txn(timeout_ms=1_000)
    topic.send(service, dead, "never")
    with service.new_txn() as txn:
        topic.send(service, txn, "1")
    assert topic.seen() == {}
    dead._leave()  # nobody extends its lease
    crash_at(gated, proxy, step)
    expected = {key: ["1"] for key in KEYS}
    await_(lambda: topic.seen() == expected, 60)
    # Where all segments were materialized already, only a sweep is left.
    assert dead.status() in (TxnStatus.ABORTING, TxnStatus.ABORTED)
    assert topic.seen() == expected


@pytest.mark.parametrize("step", [*MATERIALIZATION, *RECOVERY], ids=str)
def test_a_broker_that_dies_while_it_materializes_or_recovers_shows_what_was_committed(
    gated: Gated,
    proxy: HoldingProxy,
    service: Client,
    topic: Topic,
    step: CrashStep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = service.new_txn()
    topic.send(service, lost, "never")
    decided = service.new_txn()
    topic.send(service, decided, "1")
    assert topic.seen() == {}
    # The driver dies between the decision and its materialization: nor does it sweep.
    monkeypatch.setattr(RedisMergedSteps, "possible", False)
    monkeypatch.setattr(TransactionCoordinator, "materialize", lambda *_, **__: None)
    decided.commit()
    if step in RECOVERY:
        gated.server.pause(crash=True)
        hold = proxy.hold(step.script, step.number, step.when)
        gated.server.resume()
        assert hold.reached.wait(60)
        assert topic.seen() == {}
        gated.server.restart(crash=True)
    else:
        crash_at(gated, proxy, step)
    lost.abort()
    expected = {key: ["1"] for key in KEYS}
    await_(lambda: topic.seen() == expected, 60)
    assert decided.status() in (TxnStatus.COMMITTING, TxnStatus.COMMITTED)
    assert lost.status() in (TxnStatus.ABORTING, TxnStatus.ABORTED)
    assert topic.seen() == expected


def transact(java: JavaClient, name: str, topics: Sequence[str]) -> str | None:
    """Commit a row of each topic in one transaction; return the answer, None if it never began."""
    if not java("begin", name, HOUR_MS).startswith("("):
        return None
    answers = [java("send", name, topic, name) for topic in topics]
    return java("commit", name) if set(answers) == {"done"} else f"not sent: {answers}"


@pytest.mark.parametrize("step", COORDINATOR_STEPS, ids=str)
def test_a_broker_that_dies_in_a_clients_transaction_ends_it_in_all_topics_alike(
    gated: Gated, proxy: HoldingProxy, java: JavaClient, step: CrashStep
) -> None:
    _, segment = gated.topic()
    topics = [segment, ordinary()]
    before = set(unended(gated))
    with ThreadPoolExecutor(1) as beside:
        hold = proxy.hold(step.script, step.number, step.when)
        told = beside.submit(transact, java, "first", topics)
        assert hold.reached.wait(SOON_S)
        gated.server.restart(crash=True)
        answer = told.result(180)
    # What the client was not told of is ended by its next word.
    if answer is None or (answer != "done" and java("abort", "first") == "done"):
        expected = []
    else:
        expected = ["first"]
        assert answer == "done" or step.script == "txn_commit", answer
    assert transact(java, "second", topics) == "done"
    rows = [*expected, "second"]
    with contextlib.closing(pulsar_client.Client(gated.server.service_url, logger=QUIET)) as plain:
        assert [received(subscribe(plain, topic), len(rows)) for topic in topics] == [rows, rows]
    # The one of which nobody was told is ended by its timeout.
    orphans = int(str(step) == "txn_create-1-reply")
    await_(lambda: len(set(unended(gated)) - before) == orphans)
