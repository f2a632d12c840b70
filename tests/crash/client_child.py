"""A service without Spark that consumes, transforms and produces, and is killed at it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pulsar_txn_spark import client, steps
from pulsar_txn_spark.errors import ReceiveTimeoutError

INPUT, OUTPUT = "client-in", "client-out"
SUBSCRIPTION = "service"
MESSAGES_A_TRANSACTION = 2


def work(service: client.Client) -> None:
    """Copy in transactions what there is, in capitals."""
    with (
        service.consumer(INPUT, SUBSCRIPTION) as consumer,
        service.producer(OUTPUT) as producer,
    ):
        cumulative = False
        while messages := some(consumer):
            with service.new_txn() as txn:
                for message in messages:
                    assert message.value is not None
                    producer.send(message.value.upper(), key=message.key, txn=txn)
                if cumulative:
                    consumer.acknowledge_cumulative(messages[-1], txn)
                else:
                    consumer.acknowledge(messages, txn)
            cumulative = not cumulative


def some(consumer: client.Consumer) -> list[client.Message]:
    """Receive the messages of one transaction; none = there are no more."""
    messages: list[client.Message] = []
    try:
        while len(messages) < MESSAGES_A_TRANSACTION:
            messages.append(consumer.receive(timeout_ms=0))
    except ReceiveTimeoutError:
        pass
    return messages


def main(path: str, environment: Mapping[str, str]) -> None:
    """Run as a process of its own, with the faults that the environment asks for."""
    os.environ.update(environment)
    steps._faults = steps.Fault.all_from_environment()
    with client.connect({"store.path": path}) as service:
        work(service)
