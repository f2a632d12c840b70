"""Random histories of a consumer against a model: nothing is acknowledged twice, or eaten."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import redis

from pulsar_txn_spark.client import Consumer, Message, Transaction
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.engine import components as engine_components
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    ReceiveTimeoutError,
    TransactionAbortedError,
)
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.redis.connection import connect
from tests.client.test_client import Service, drained, text

HISTORIES = int(os.environ.get("HISTORIES", "10"))
STEPS = 60
KEYS = 3
MOST_SEGMENTS = 6


class Life:
    """A consumer with its transactions, and what a simple model says must be so."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.random = random.Random(seed)
        self.topic = service.topic()
        self.sent: list[str] = []
        self.gone: set[str] = set()  # acknowledged for good
        self.open: dict[Transaction, set[str]] = {}
        self.dead: set[Transaction] = set()  # somebody else has ended them
        self.consumer: Consumer
        self.received: list[Message] = []  # since the consumer was at its cursor last
        self.older: list[Message] = []
        self.returned: set[str] = set()  # since then, by a negative acknowledgement
        self.epoch = 0
        self.subscribe()

    # -- what may happen -----------------------------------------------------------------------

    def subscribe(self) -> None:
        """Take over from whatever consumer there was."""
        self.consumer = self.service.client.consumer(self.topic, "s")
        self.dead |= {txn for txn, locked in self.open.items() if locked}
        self.received, self.older, self.epoch = [], [], 0
        self.returned = set()

    def send(self) -> None:
        key = self.random.randrange(KEYS)
        values = [f"{key}-{len(self.sent) + n}" for n in range(self.random.randrange(1, 5))]
        self.service.send(self.topic, *values, key=f"key{key}")
        self.sent += values

    def receive(self) -> None:
        try:
            message = self.consumer.receive(timeout_ms=0)
        except ReceiveTimeoutError:
            self.notice()
            return
        self.notice()
        value = text(message)
        assert value not in self.gone, "it was acknowledged for good"
        holders = [txn for txn, locked in self.open.items() if value in locked]
        assert not set(holders) - self.dead, "an open transaction holds it"
        if value in self.returned:
            self.returned.remove(value)
            return
        assert value not in map(text, self.received), "it came twice, with no reason to"
        key = value.split("-")[0]
        before = [text(m) for m in self.received if text(m).split("-")[0] == key]
        numbers = [int(v.split("-")[1]) for v in [*before, value]]
        assert numbers == sorted(numbers), "a key's messages come in order"
        self.received.append(message)

    def begin(self) -> None:
        if len(self.open) < 3:
            self.open[self.service.client.new_txn()] = set()

    def acknowledge(self) -> None:
        self._in_a_transaction(
            [*self.received, *self.older],
            self.consumer.acknowledge,
            lambda m: {text(m)} - self.gone,
        )

    def acknowledge_cumulative(self) -> None:
        def covered(message: Message) -> set[str]:
            upto = self.received.index(message) + 1
            return {text(m) for m in self.received[:upto]} - self.gone

        self._in_a_transaction(self.received, self.consumer.acknowledge_cumulative, covered)

    def _in_a_transaction(
        self,
        messages: list[Message],
        acknowledge: Callable[[Message, Transaction], None],
        covered: Callable[[Message], set[str]],
    ) -> None:
        if not messages or not self.open:
            return
        message = self.random.choice(messages)
        txn = self.random.choice(list(self.open))
        wanted = covered(message)
        living = [locked for t, locked in self.open.items() if t is not txn and t not in self.dead]
        try:
            acknowledge(message, txn)
        except TransactionAbortedError:
            assert txn in self.dead
            self.end(txn)
        except AcknowledgementConflictError:
            self.end(txn)
        else:
            assert txn not in self.dead
            assert not any(wanted & locked for locked in living), "two transactions hold it"
            # What it holds itself may lie before what was acknowledged for good.
            assert wanted or self.open[txn], "all of it was acknowledged before"
            self.open[txn] |= wanted

    def acknowledge_now(self) -> None:
        if not self.received:
            return
        message = self.random.choice(self.received)
        self.consumer.acknowledge(message)
        locked = [txn for txn, values in self.open.items() if text(message) in values]
        if not set(locked) - self.dead:
            self.gone.add(text(message))

    def commit(self) -> None:
        if not self.open:
            return
        txn = self.random.choice(list(self.open))
        try:
            txn.commit()
        except TransactionAbortedError:
            assert txn in self.dead
            self.end(txn)
        else:
            assert txn not in self.dead
            self.gone |= self.open.pop(txn)

    def abort(self) -> None:
        if self.open:
            self.end(self.random.choice(list(self.open)))

    def end(self, txn: Transaction) -> None:
        txn.abort()
        del self.open[txn]
        self.dead.discard(txn)
        self.notice()

    def expire(self) -> None:
        """Let somebody else end a transaction, of which nobody tells this client."""
        living = [txn for txn in self.open if txn not in self.dead]
        if living:
            txn = self.random.choice(living)
            self.service.expire(txn)
            self.dead.add(txn)

    def redeliver(self) -> None:
        self.consumer.redeliver_unacknowledged()
        self.notice()

    def acknowledge_late(self) -> None:
        """Acknowledge something that was received before, while copies of it lie ready."""
        self.redeliver()
        self.receive()
        self.begin()
        self.acknowledge()
        self.commit()

    def give_back(self) -> None:
        if not self.received:
            return
        message = self.random.choice(self.received)
        value = text(message)
        self.consumer.negative_acknowledge(message)
        holders = [txn for txn, locked in self.open.items() if value in locked]
        if value not in self.gone and not set(holders) - self.dead:
            self.returned.add(value)

    def split(self) -> None:
        name = TopicName.parse(self.topic)
        active = self.service.run.topics.require(name).active
        if len(active) < MOST_SEGMENTS:
            segment = self.random.choice(active)
            self.service.run.topics.changes.split(name, segment.descriptor)

    def notice(self) -> None:
        """Note that the consumer went back to its cursor, if it did."""
        if self.consumer._redelivery_epoch != self.epoch:
            self.epoch = self.consumer._redelivery_epoch
            self.older += self.received
            self.received = []
            self.returned = set()

    # -- a life --------------------------------------------------------------------------------

    def run(self) -> None:
        weighed = {
            self.send: 6,
            self.receive: 20,
            self.begin: 5,
            self.acknowledge: 8,
            self.acknowledge_cumulative: 6,
            self.acknowledge_now: 2,
            self.commit: 6,
            self.abort: 2,
            self.expire: 2,
            self.redeliver: 1,
            self.acknowledge_late: 3,
            self.give_back: 3,
            self.split: 1,
            self.subscribe: 1,
        }
        for _ in range(STEPS):
            [action] = self.random.choices(list(weighed), list(weighed.values()))
            action()
        for txn in list(self.open):
            self.end(txn)
        with self.service.client.consumer(self.topic, "s") as last:
            left = drained(last)
        assert sorted(left) == sorted(set(self.sent) - self.gone), "what is left is what comes"


def live(service: Service, seed: int) -> None:
    try:
        Life(service, seed).run()
    finally:
        service.client.close()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_a_consumer_does_nothing_is_acknowledged_twice_or_eaten(
    redis_path: str, redis_client: redis.Redis, seed: int
) -> None:
    live(Service(redis_path), seed)


@pytest.mark.long
def test_whatever_a_consumer_does_on_a_cluster_nothing_is_acknowledged_twice_or_eaten(
    cluster: str,
) -> None:
    for seed in range(HISTORIES):
        connect(StoreConfig(url=cluster)).flushall()
        engine_components._opened.clear()
        live(Service("", {"store.url": cluster}), seed)
