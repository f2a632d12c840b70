"""What the tests of the command line share: a store, a topic of it, and one with data."""

from __future__ import annotations

import secrets

import pytest
import redis

import pulsar_txn_spark
from pulsar_txn_spark import client


@pytest.fixture
def option(redis_path: str, redis_client: redis.Redis) -> str:
    return f"store.path={redis_path}"


@pytest.fixture
def topic() -> str:
    return f"topic://public/default/{secrets.token_hex(4)}"


@pytest.fixture
def busy(option: str, topic: str) -> str:
    """Give a topic of eight segments with a subscription of a client."""
    given = {"store.path": option.partition("=")[2]}
    pulsar_txn_spark.Admin(given).create_topic(topic, segments=8)
    with client.connect(given) as connected:
        producer = connected.producer(topic)
        for number in range(80):
            producer.send(f"value {number}", key=f"k{number}")
        producer.flush()
        with connected.consumer(topic, "sub") as consumer:
            messages = [consumer.receive(timeout_ms=5_000) for _ in range(30)]
            consumer.acknowledge([*messages[:5], *messages[7:9]])
    return topic
