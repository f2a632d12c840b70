"""Java clients that consume and produce in one transaction, with pending acks in the store."""

from __future__ import annotations

import pulsar as pulsar_client

from integration.support import coordinated
from integration.support.gated import Gated, await_, numbers
from integration.support.java_client import HOUR_MS, JavaClient
from integration.support.plain_client import drained, send, subscribe
from pulsar_txn_spark import client
from pulsar_txn_spark.testing.broker_jar import PENDING_ACKS

TYPES = ("Exclusive", "Shared", "Key_Shared")
VALUES = ["a", "b", "c"]
PATIENCE_S = 120.0
SETTINGS = {
    **coordinated.SETTINGS,
    "transactionPendingAckStoreProviderClassName": PENDING_ACKS,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
}


def filled(gated: Gated, *values: str, one_batch: bool = False) -> str:
    """Create a gated segment with messages; return its name."""
    topic, segment = gated.topic()
    with client.connect(gated.options) as service:
        for part in [values] if one_batch else [[value] for value in values]:
            with service.new_txn() as txn:
                send(service, topic, txn, *part)
    return segment


def transform(java: JavaClient, source: str, out: str, verb: str = "acknowledge") -> str:
    """Consume a message and produce it in one transaction; return what came of it."""
    name = f"t{next(numbers)}"
    if not java("begin", name, HOUR_MS).startswith("("):
        return "not begun"
    value = java(verb, name, source, "service", 2_000)
    if value != "none" and "Exception" not in value and java("send", name, out, value) == "done":
        return java("commit", name)
    java("abort", name)
    return value


def left(plain: pulsar_client.Client, java: JavaClient, source: str) -> list[str]:
    """Return what the subscription has left, when its consumer has gone."""
    java("leave", source, "service")
    consumer = plain.subscribe(source, "service", pulsar_client.ConsumerType.Shared)
    found = []
    try:
        while True:
            found.append(consumer.receive(1_000).data().decode())
    except pulsar_client.Timeout:
        consumer.close()
        return found


def finish(plain: pulsar_client.Client, java: JavaClient, source: str, out: str) -> None:
    """Consume what is left, and see that every message was produced once."""
    consumer = subscribe(plain, out)
    produced: list[str] = []

    def is_done() -> bool:
        transform(java, source, out)  # fails while the client connects again
        produced.extend(drained(consumer))
        return len(produced) >= len(VALUES)

    await_(is_done, PATIENCE_S)
    assert sorted(produced) == VALUES
    assert left(plain, java, source) == []
    assert drained(consumer) == []
