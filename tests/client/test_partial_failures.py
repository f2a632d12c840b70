"""A transaction in which something failed is never committed, whoever saw that it failed."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any
from unittest import mock

import pytest

from pulsar_txn_spark.client import aio
from pulsar_txn_spark.client.consumer import Consumer
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import (
    ReceiveTimeoutError,
    StoreUnavailableError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from tests.client.test_aio import Run, received, run, service, values
from tests.client.test_client import Service

__all__ = ["run", "service"]  # fixtures

PATIENCE_S = 10


def test_rows_that_an_interrupt_has_taken_along_are_missed_by_the_commit(service: Service) -> None:
    topic = service.topic()
    producer, txn = service.client.producer(topic), service.client.new_txn()
    producer.send("lost", txn=txn)
    with (
        mock.patch.object(TopicWriters, "append", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        txn.flush()
    with pytest.raises(TransactionConflictError, match="KeyboardInterrupt"):
        producer.send("kept", txn=txn)
    with pytest.raises(TransactionAbortedError, match="KeyboardInterrupt"):
        txn.commit()
    assert service.visible(topic) == []


def test_an_acknowledgement_that_was_interrupted_is_missed_by_the_commit(service: Service) -> None:
    source, target = service.topic(), service.topic()
    service.send(source, "a")
    consumer, producer = service.client.consumer(source, "s"), service.client.producer(target)
    message = consumer.receive(timeout_ms=5_000)
    txn = service.client.new_txn()
    producer.send("A", txn=txn)
    with (
        mock.patch.object(
            MetadataPendingAckStore, "acknowledge_individual", side_effect=KeyboardInterrupt
        ),
        pytest.raises(KeyboardInterrupt),
    ):
        consumer.acknowledge(message, txn)
    with pytest.raises(TransactionAbortedError, match="KeyboardInterrupt"):
        txn.commit()
    assert service.visible(target) == []
    assert consumer.receive(timeout_ms=5_000).value == b"a"


class Paused:
    """A call that waits where it begins, and may fail then."""

    def __init__(self, real: Any, error: Exception | None = None) -> None:
        self.real, self.error = real, error
        self.reached, self.go = threading.Event(), threading.Event()

    def method(self) -> Any:
        """Return what stands for the real one in its class."""

        def call(*args: Any, **named: Any) -> Any:
            self.reached.set()
            assert self.go.wait(PATIENCE_S)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            return self.real(*args, **named)

        return call


async def cancelled(call: Any, paused: Paused) -> None:
    """Cancel the task of a call while its thread is in the middle of it."""
    task = asyncio.ensure_future(call)
    assert await asyncio.to_thread(paused.reached.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_acknowledgement_that_fails_when_its_task_is_gone_is_missed_by_the_commit(
    run: Run,
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, target = service.topic(), service.topic()
    service.send(source, "a")
    paused = Paused(TransactionCoordinator.new_txn, StoreUnavailableError("the store is away"))

    async def scenario(client: aio.AsyncClient) -> None:
        consumer, producer = await client.consumer(source, "s"), await client.producer(target)
        [message] = await received(consumer, 1)
        monkeypatch.setattr(TransactionCoordinator, "new_txn", paused.method())
        txn = client.new_txn()
        await producer.send("A", txn=txn)
        await cancelled(consumer.acknowledge(message, txn), paused)
        paused.go.set()
        with pytest.raises(TransactionConflictError, match="the store is away"):
            await txn.commit()
        assert service.visible(target) == []

    run(scenario)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_an_acknowledgement_that_its_consumer_refuses_is_missed_by_the_commit(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = service.topic(), service.topic()
    service.send(source, "a")
    paused = Paused(Consumer._pieces)

    async def scenario(client: aio.AsyncClient) -> None:
        consumer, producer = await client.consumer(source, "s"), await client.producer(target)
        [message] = await received(consumer, 1)
        monkeypatch.setattr(Consumer, "_pieces", paused.method())
        txn = client.new_txn()
        await producer.send("A", txn=txn)
        await cancelled(consumer.acknowledge_cumulative(message, txn), paused)
        await consumer.redeliver_unacknowledged()
        paused.go.set()
        with pytest.raises(TransactionConflictError, match="went back to its cursor"):
            await txn.commit()
        assert service.visible(target) == []
        assert values(await received(consumer, 1)) == [b"a"]

    run(scenario)


def test_a_message_for_a_cancelled_task_waits_for_those_that_come_again_before_it(
    run: Run, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = service.topic()
    service.send(source, "a", "b", "c")
    paused = Paused(Consumer.receive)

    async def scenario(client: aio.AsyncClient) -> None:
        consumer = await client.consumer(source, "s")
        [first] = await received(consumer, 1)
        txn = client.new_txn()
        await consumer.acknowledge(first, txn)
        monkeypatch.setattr(Consumer, "receive", paused.method())
        await cancelled(consumer.receive(), paused)
        paused.go.set()
        assert consumer._receiving is not None
        await asyncio.wait({consumer._receiving})
        await txn.abort()
        assert values(await received(consumer, 3)) == [b"a", b"b", b"c"]
        with pytest.raises(ReceiveTimeoutError):
            await consumer.receive(timeout_ms=0)

    run(scenario)
