"""One consumer that several threads use, or whose messages are acknowledged late."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_txn_spark.client import reader as reader_module
from pulsar_txn_spark.client.consumer import Consumer
from pulsar_txn_spark.client.reader import SubscriptionReader
from pulsar_txn_spark.client.transaction import Transaction
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    ReceiveTimeoutError,
    StoreFullError,
    TransactionConflictError,
)
from pulsar_txn_spark.segments.retention import Retention
from pulsar_txn_spark.txn import pending_ack
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from tests.client.test_aio import service
from tests.client.test_client import Service, drained
from tests.client.test_ends import collect

__all__ = ["service"]  # a fixture

PATIENCE_S = 10


def in_a_thread(call: Callable[[], Any]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def beside(
    monkeypatch: pytest.MonkeyPatch, name: str, end: Callable[[Transaction], None]
) -> Callable[[Transaction], None]:
    """Let another thread end a transaction as soon as it has acknowledged something."""
    real = getattr(Transaction, name)

    def acknowledged(txn: Transaction, *args: Any, **named: Any) -> None:
        real(txn, *args, **named)
        in_a_thread(lambda: end(txn))

    monkeypatch.setattr(Transaction, name, acknowledged)
    return lambda _: monkeypatch.setattr(Transaction, name, real)


@pytest.mark.parametrize("cumulative", [False, True])
def test_a_message_comes_again_whose_transaction_another_thread_has_aborted(
    service: Service, monkeypatch: pytest.MonkeyPatch, cumulative: bool
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3", key="k")
    with service.client.consumer(topic, "s") as consumer:
        first = consumer.receive(0)
        name = "acknowledge_cumulative" if cumulative else "acknowledge"
        txn = service.client.new_txn()
        restore = beside(monkeypatch, name, Transaction.abort)
        getattr(consumer, name)(first, txn)
        restore(txn)
        assert drained(consumer) == ["1", "2", "3"]


@pytest.mark.parametrize("cumulative", [False, True])
def test_a_consumer_goes_on_behind_what_another_thread_has_committed(
    service: Service, monkeypatch: pytest.MonkeyPatch, cumulative: bool
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3")
    with service.client.consumer(topic, "s") as consumer:
        first, second = consumer.receive(0), consumer.receive(0)
        consumer.redeliver_unacknowledged()
        again = consumer.receive(0)
        assert again.message_id == first.message_id  # the second one lies ready
        name = "acknowledge_cumulative" if cumulative else "acknowledge"
        restore = beside(monkeypatch, name, Transaction.commit)
        txn = service.client.new_txn()
        getattr(consumer, name)(again if cumulative else second, txn)
        restore(txn)
        [*_, last] = [consumer.receive(0) for _ in range(2 if cumulative else 1)]
        assert last.value == b"3"
        with service.client.new_txn() as txn:
            if not cumulative:
                consumer.acknowledge(again, txn)
            consumer.acknowledge_cumulative(last, txn)
    with service.client.consumer(topic, "s") as consumer:
        assert drained(consumer) == []


@pytest.mark.parametrize("in_transaction", [True, False])
@pytest.mark.parametrize("returned", [True, False])
def test_what_was_acknowledged_for_good_is_not_delivered_again(
    service: Service, in_transaction: bool, returned: bool
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3")
    with service.client.consumer(topic, "s") as consumer:
        first, second, _ = (consumer.receive(0) for _ in range(3))
        if returned:
            consumer.negative_acknowledge(second)
        else:
            consumer.redeliver_unacknowledged()
            assert consumer.receive(0).message_id == first.message_id  # 2 and 3 lie ready
        if in_transaction:
            with service.client.new_txn() as txn:
                consumer.acknowledge(second, txn)
        else:
            consumer.acknowledge(second)
        assert drained(consumer) == ([] if returned else ["3"])


def test_what_is_committed_while_it_is_read_again_is_not_delivered_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2")
    with service.client.consumer(topic, "s") as consumer:
        first, _ = consumer.receive(0), consumer.receive(0)
        consumer.redeliver_unacknowledged()
        read = SubscriptionReader.read

        def late(reader: SubscriptionReader, *args: Any, **named: Any) -> Any:
            found = read(reader, *args, **named)
            monkeypatch.setattr(SubscriptionReader, "read", read)
            with service.client.new_txn() as txn:
                consumer.acknowledge(first, txn)
            return found

        monkeypatch.setattr(SubscriptionReader, "read", late)
        assert drained(consumer) == ["2"]


def test_a_returned_message_waits_for_the_transaction_that_acknowledges_it(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "1")
    with service.client.consumer(topic, "s") as consumer:
        first = consumer.receive(0)
        consumer.negative_acknowledge(first)
        txn = service.client.new_txn()
        consumer.acknowledge(first, txn)
        assert drained(consumer) == []
        txn.abort()
        assert drained(consumer) == ["1"]


def test_a_cumulative_acknowledgement_passes_over_parents_that_retention_has_deleted(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "1")
    service.split(topic)
    service.send(topic, "2", "3", key="k")
    with service.client.consumer(topic, "s") as consumer:
        with service.client.new_txn() as txn:
            consumer.acknowledge(consumer.receive(0), txn)
        last = [consumer.receive(0) for _ in range(2)][-1]
        service.delete_first_segment(topic)
        assert drained(consumer) == []  # it has learnt of that
        with service.client.new_txn() as txn:
            consumer.acknowledge_cumulative(last, txn)
    with service.client.consumer(topic, "s") as consumer:
        assert drained(consumer) == []


def test_a_refused_acknowledgement_makes_nothing_come_again(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "1", "2")
    with service.client.consumer(topic, "s") as consumer:
        old = [consumer.receive(0) for _ in range(2)]
        consumer.redeliver_unacknowledged()
        first, second = consumer.receive(0), consumer.receive(0)
        with pytest.raises(AcknowledgementConflictError, match="went back to its cursor"):
            consumer.acknowledge_cumulative(old[0])
        with service.client.new_txn() as txn:
            consumer.acknowledge(first, txn)
        with pytest.raises(TransactionConflictError):
            consumer.acknowledge(second, txn)
        del txn
        gc.collect()
        assert drained(consumer) == []
        consumer.acknowledge_cumulative(second)


@pytest.fixture
def back_meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what lets a consumer go back while a plain acknowledgement is under way."""

    def arrange(consumer: Consumer, expected: list[str], error: Exception | None = None) -> None:
        place = MetadataPendingAckStore._place_normal
        chunks: list[None] = []

        def slowly(acks: MetadataPendingAckStore, *args: Any) -> Any:
            chunks.append(None)
            if len(chunks) == 2 and error is not None:
                raise error
            dropped = place(acks, *args)
            if len(chunks) == 1:
                consumer.redeliver_unacknowledged()
                assert drained(consumer) == expected
            return dropped

        monkeypatch.setattr(MetadataPendingAckStore, "_place_normal", slowly)
        monkeypatch.setattr(pending_ack, "_INTERVALS_PER_STEP", 2)

    return arrange


def test_what_a_plain_acknowledgement_had_locked_comes_again_if_it_is_refused(
    service: Service, back_meanwhile: Callable[..., None]
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3", "4")
    with service.client.consumer(topic, "s") as consumer:
        messages = [consumer.receive(0) for _ in range(4)]
        back_meanwhile(consumer, ["3", "4"], StoreFullError("no room"))
        with pytest.raises(StoreFullError):
            consumer.acknowledge(messages)
        assert drained(consumer) == ["1", "2", "3", "4"]


def test_a_plain_acknowledgement_that_is_under_way_makes_nothing_come_again(
    service: Service, back_meanwhile: Callable[..., None]
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3", "4")
    with service.client.consumer(topic, "s") as consumer:
        messages = [consumer.receive(0) for _ in range(4)]
        back_meanwhile(consumer, ["3", "4"])
        consumer.acknowledge(messages[:2])
        assert drained(consumer) == []
        assert not any(list(claims.holders()) for claims in consumer._claims.values())
        consumer.acknowledge_cumulative(messages[3].message_id)
    with service.client.consumer(topic, "s") as consumer:
        assert drained(consumer) == []


def test_a_plain_acknowledgement_that_is_committed_while_it_is_looked_up_takes_nobody_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3", "4")
    place, complete = (
        MetadataPendingAckStore._place_normal,
        TransactionCoordinator.complete_on_behalf,
    )
    placed, go = threading.Event(), threading.Event()

    def paused(acks: MetadataPendingAckStore, *args: Any) -> Any:
        dropped = place(acks, *args)
        placed.set()
        assert go.wait(PATIENCE_S)
        return dropped

    monkeypatch.setattr(MetadataPendingAckStore, "_place_normal", paused)
    with service.client.consumer(topic, "s") as consumer:
        messages = [consumer.receive(0) for _ in range(4)]
        acknowledging = threading.Thread(target=lambda: consumer.acknowledge(messages[:2]))
        acknowledging.start()
        assert placed.wait(PATIENCE_S)
        consumer.redeliver_unacknowledged()
        assert consumer.receive(0).value == b"3"

        def late(coordinator: TransactionCoordinator, *args: Any) -> bool:
            go.set()
            acknowledging.join(PATIENCE_S)
            return complete(coordinator, *args)

        monkeypatch.setattr(TransactionCoordinator, "complete_on_behalf", late)
        assert drained(consumer) == ["4"]
        assert not acknowledging.is_alive()


def collect_holders(service: Service, consumer: Consumer) -> None:
    """Remove the headers of those that have locked something, as sweeps do long after their end."""
    for claims in consumer._claims.values():
        for holder in claims.holders():
            collect(service, holder)


def test_a_plain_acknowledgement_that_was_under_way_and_is_collected_takes_nobody_back(
    service: Service, back_meanwhile: Callable[..., None]
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3", "4")
    with service.client.consumer(topic, "s") as consumer:
        messages = [consumer.receive(0) for _ in range(4)]
        back_meanwhile(consumer, ["3", "4"])
        consumer.acknowledge(messages[:2])
        collect_holders(service, consumer)
        assert drained(consumer) == []
        consumer.acknowledge_cumulative(messages[3].message_id)
    with service.client.consumer(topic, "s") as consumer:
        assert drained(consumer) == []


def test_what_a_plain_acknowledgement_had_locked_comes_again_also_if_it_is_collected(
    service: Service, back_meanwhile: Callable[..., None]
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2", "3", "4")
    with service.client.consumer(topic, "s") as consumer:
        messages = [consumer.receive(0) for _ in range(4)]
        back_meanwhile(consumer, ["3", "4"], StoreFullError("no room"))
        with pytest.raises(StoreFullError):
            consumer.acknowledge(messages)
        collect_holders(service, consumer)
        assert drained(consumer) == ["1", "2", "3", "4"]


def test_a_transaction_that_was_open_at_the_rewind_and_is_collected_takes_nobody_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    for value in "1234":
        service.send(topic, value)
    with service.client.consumer(topic, "s") as consumer:
        messages = [consumer.receive(0) for _ in range(4)]
        with service.client.new_txn() as txn:
            consumer.acknowledge(messages[2], txn)
            consumer.redeliver_unacknowledged()
            monkeypatch.setattr(reader_module, "_MESSAGES_AHEAD", 1)
            assert consumer.receive(0).value == b"1"
        collect(service, txn.id)
        assert drained(consumer) == ["2", "4"]


def test_what_was_locked_in_a_segment_that_was_deleted_takes_nobody_back(
    service: Service, back_meanwhile: Callable[..., None]
) -> None:
    topic = service.topic()
    service.send(topic, "1", "2")
    with service.client.consumer(topic, "s") as consumer:
        messages = [consumer.receive(0) for _ in range(2)]
        back_meanwhile(consumer, [])
        consumer.acknowledge(messages)
        collect_holders(service, consumer)
        service.split(topic)
        service.send(topic, "3")
        service.run.store.topics.change_property(
            topic, "__retention", Retention(size_bytes=0).serialize()
        )
        assert len(service.run.retention().sweep(lambda _: None).deleted) == 1
        assert drained(consumer) == ["3"]


def test_a_timeout_holds_while_another_thread_waits_for_a_message(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    with service.client.consumer(topic, "s") as consumer:
        received: list[bytes | None] = []
        waiting = threading.Event()
        real = SubscriptionReader.wait

        def wait(reader: SubscriptionReader, timeout_s: float) -> None:
            waiting.set()
            real(reader, timeout_s)

        monkeypatch.setattr(SubscriptionReader, "wait", wait)
        thread = threading.Thread(target=lambda: received.append(consumer.receive().value))
        thread.start()
        assert waiting.wait(PATIENCE_S)

        def bounded() -> None:
            with pytest.raises(ReceiveTimeoutError, match="within 1 ms"):
                consumer.receive(timeout_ms=1)

        in_a_thread(bounded)
        service.send(topic, "1")
        thread.join(PATIENCE_S)
        assert received == [b"1"]
