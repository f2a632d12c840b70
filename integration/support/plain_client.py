"""Clients that know nothing of this package, and what they see."""

from __future__ import annotations

import contextlib

import pulsar as pulsar_client
import pytest

from integration.support.gated import NOTHING_MS, SOON_S, numbers
from pulsar_txn_spark.client import Client, Transaction


def subscribe(
    plain: pulsar_client.Client,
    topic: str,
    kind: pulsar_client.ConsumerType = pulsar_client.ConsumerType.Exclusive,
) -> pulsar_client.Consumer:
    earliest = pulsar_client.InitialPosition.Earliest
    return plain.subscribe(topic, f"s{next(numbers)}", kind, initial_position=earliest)


def received(consumer: pulsar_client.Consumer, count: int) -> list[str]:
    """Receive so many messages, and see that no more come."""
    found = [consumer.receive(int(SOON_S * 1000)).data().decode() for _ in range(count)]
    with pytest.raises(pulsar_client.Timeout):
        consumer.receive(NOTHING_MS)
    return found


def drained(consumer: pulsar_client.Consumer) -> list[str]:
    """Receive until nothing comes."""
    found = []
    with contextlib.suppress(pulsar_client.Timeout):
        while True:
            found.append(consumer.receive(NOTHING_MS).data().decode())
    return found


def send(service: Client, topic: str, txn: Transaction, *values: str) -> None:
    producer = service.producer(topic)
    for value in values:
        producer.send(value, key="k", txn=txn)
    producer.flush()


def ordinary() -> str:
    return f"persistent://public/default/ordinary-{next(numbers)}"
