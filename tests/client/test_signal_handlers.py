"""What a signal handler may call while it has interrupted a call of the client on its thread."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pulsar_txn_spark.client import Consumer, Producer, TxnStatus
from pulsar_txn_spark.client.reader import SubscriptionReader
from pulsar_txn_spark.client.transaction import Transaction
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.errors import AlreadyClosedError
from pulsar_txn_spark.store.records import TxnState
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from tests.client.test_client import Service, service, text, texts

__all__ = ["service"]  # a fixture

pytestmark = pytest.mark.timeout(60)  # who waits for what it has interrupted waits for ever
PATIENCE_S = 10

Interrupt = Callable[[type[Any], str, Callable[[], object]], None]
Handle = Callable[[Callable[[], object]], None]


@pytest.fixture
def handle() -> Iterator[Handle]:
    """Return what sets the handler of SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)

    def to(call: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: call())

    yield to
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch, handle: Handle) -> Interrupt:
    """Return what lets a signal handler interrupt the next call of a method, as it begins."""

    def arrange(owner: type[Any], name: str, call: Callable[[], object]) -> None:
        real = getattr(owner, name)

        def interrupted(*args: Any, **named: Any) -> Any:
            monkeypatch.setattr(owner, name, real)
            signal.raise_signal(signal.SIGUSR1)
            return real(*args, **named)

        handle(call)
        monkeypatch.setattr(owner, name, interrupted)

    return arrange


def is_reader_closed(consumer: Consumer) -> bool:
    return consumer._reader._watcher._closed


IN_RECEIVE = [
    (SubscriptionReader, "wait"),
    (SubscriptionReader, "read"),
    (Consumer, "_note_received"),
    (Consumer, "_claims_of"),
]


def test_a_handler_amid_a_change_does_not_wait_for_a_thread_that_receives(
    service: Service, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    consumer = service.client.consumer(topic, "s")
    service.send(topic, "a")
    message = consumer.receive(timeout_ms=60_000)
    reads, goes_on = threading.Event(), threading.Event()
    read = SubscriptionReader.read

    def slow(reader: SubscriptionReader, *args: Any, **named: Any) -> Any:
        reads.set()
        assert goes_on.wait(PATIENCE_S)
        return read(reader, *args, **named)

    def closes() -> None:
        goes_on.set()
        consumer.close()

    monkeypatch.setattr(SubscriptionReader, "read", slow)
    ended = []

    def receive() -> None:
        with pytest.raises(AlreadyClosedError) as caught:
            consumer.receive(timeout_ms=60_000)
        ended.append(caught.value)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    assert reads.wait(PATIENCE_S)
    interrupt(Consumer, "_late_of", closes)
    with service.client.new_txn() as txn, suppress(AlreadyClosedError):
        consumer.acknowledge(message, txn)
    thread.join(PATIENCE_S)
    assert ended
    assert is_reader_closed(consumer)


@pytest.mark.parametrize("owner, name", IN_RECEIVE)
@pytest.mark.parametrize("closes_client", [False, True])
def test_a_signal_handler_stops_the_loop_of_its_thread(
    service: Service, interrupt: Interrupt, owner: type[Any], name: str, closes_client: bool
) -> None:
    topic = service.topic()
    consumer = service.client.consumer(topic, "s")
    received = []
    service.send(topic, "a")
    interrupt(owner, name, service.client.close if closes_client else consumer.close)
    for message in consumer:
        received.append(text(message))  # noqa: PERF401 - a loop is what is stopped
    assert received == ([] if name == "read" else ["a"])
    assert is_reader_closed(consumer)
    consumer.close()
    with service.another_process().client.consumer(topic, "s") as newer:
        assert texts(newer, 1) == ["a"]


def test_a_signal_wakes_a_loop_that_waits_for_a_message(
    service: Service, monkeypatch: pytest.MonkeyPatch, handle: Handle
) -> None:
    consumer = service.client.consumer(service.topic(), "s")
    waiting, wait = threading.Event(), SubscriptionReader.wait

    def waits(reader: SubscriptionReader, timeout_s: float) -> None:
        waiting.set()
        wait(reader, timeout_s)

    def send_signal(receiver: int | None) -> None:
        assert receiver is not None
        if waiting.wait(PATIENCE_S):
            signal.pthread_kill(receiver, signal.SIGUSR1)

    monkeypatch.setattr(SubscriptionReader, "wait", waits)
    handle(consumer.close)
    sender = threading.Thread(target=send_signal, args=[threading.get_ident()])
    sender.start()
    assert list(consumer) == []
    sender.join()
    assert is_reader_closed(consumer)


def test_a_handler_that_receives_amid_a_receive_is_refused(
    service: Service, interrupt: Interrupt
) -> None:
    topic = service.topic()
    service.send(topic, "a", "b")
    consumer = service.client.consumer(topic, "s")

    def receive() -> None:
        with pytest.raises(RuntimeError, match=r"receive\(\) was called by a signal handler"):
            consumer.receive()

    interrupt(SubscriptionReader, "read", receive)
    assert texts(consumer, 2) == ["a", "b"]


@pytest.mark.parametrize("closes_client", [False, True])
def test_a_producer_that_a_handler_closes_amid_a_send_is_closed_as_that_ends(
    service: Service, interrupt: Interrupt, closes_client: bool
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    interrupt(TopicWriters, "append", service.client.close if closes_client else producer.close)
    producer.send("a")
    assert producer._writers is None
    with pytest.raises(AlreadyClosedError):
        producer.send("b")
    assert service.another_process().visible(topic) == ["a"]


def test_a_handler_that_sends_amid_a_send_is_refused(
    service: Service, interrupt: Interrupt
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)

    def send() -> None:
        with pytest.raises(RuntimeError, match=r"send\(\) was called by a signal handler"):
            producer.send("b")

    interrupt(TopicWriters, "append", send)
    producer.send("a")
    assert service.visible(topic) == ["a"]


def test_a_commit_goes_on_though_a_handler_closes_the_client_amid_it(
    service: Service, interrupt: Interrupt
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    with service.client.new_txn() as txn:
        producer.send("a", txn=txn)
        interrupt(TransactionCoordinator, "commit", service.client.close)
    assert txn.status() == TxnStatus(TxnState.COMMITTED)
    assert service.another_process().visible(topic) == ["a"]


@pytest.mark.parametrize("owner, name", [(TopicWriters, "append"), (TopicWriters, "finish")])
def test_a_transaction_in_use_is_left_to_its_owner_by_a_handler_that_closes_the_client(
    service: Service, interrupt: Interrupt, owner: type[Any], name: str
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    txn = service.client.new_txn()
    producer.send("a", txn=txn)
    interrupt(owner, name, service.client.close)
    txn.flush()
    assert txn not in service.client._leases._due
    with pytest.raises(AlreadyClosedError), txn:
        producer.send("b", txn=txn)
    assert txn.status() == TxnStatus(TxnState.ABORTED)
    assert service.another_process().visible(topic) == []


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.abort])
def test_a_handler_ends_no_transaction_amid_a_call_in_it(
    service: Service, interrupt: Interrupt, end: Callable[[Transaction], None]
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    with service.client.new_txn() as txn:

        def end_it() -> None:
            with pytest.raises(RuntimeError, match="a method of a transaction was called by"):
                end(txn)

        producer.send("a", txn=txn)
        interrupt(TopicWriters, "append", end_it)
        txn.flush()
        producer.send("b", txn=txn)
    assert service.visible(topic) == ["a", "b"]


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.abort])
def test_a_handler_that_ends_a_transaction_amid_a_delivery_has_its_consumer_find_that_out(
    service: Service, interrupt: Interrupt, end: Callable[[Transaction], None]
) -> None:
    topic = service.topic()
    service.send(topic, "a", "b")
    consumer = service.client.consumer(topic, "s")
    txn = service.client.new_txn()
    consumer.acknowledge(consumer.receive(timeout_ms=0), txn)
    interrupt(Consumer, "_note_received", lambda: end(txn))
    second = consumer.receive(timeout_ms=0)
    assert text(second) == "b"
    again = ["b"] if end is Transaction.commit else ["a", "b"]
    assert texts(consumer, len(again)) == again


def test_what_is_made_while_a_handler_closes_the_client_is_closed_with_it(
    service: Service, interrupt: Interrupt, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Producer] = []

    def close(producer: Producer) -> None:
        closed.append(producer)

    monkeypatch.setattr(Producer, "_close", close)
    topic = service.topic()
    interrupt(weakref.WeakSet, "add", service.client.close)
    with pytest.raises(AlreadyClosedError, match="connect anew"):
        service.client.producer(topic)
    assert len(closed) == 1
