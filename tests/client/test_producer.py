"""Producers of the client: their threads, their end, and what they leave to others."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import redis

from pulsar_txn_spark.backends.embedded.log import _EmbeddedWriter
from pulsar_txn_spark.client import Producer, Transaction
from pulsar_txn_spark.client.transaction import BYTES_GATHERED
from pulsar_txn_spark.engine import topic_writers
from pulsar_txn_spark.engine.lease import Leases
from pulsar_txn_spark.errors import (
    AlreadyClosedError,
    SegmentLogUnavailableError,
    StoreUnavailableError,
    TransactionAbortedError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.segments.log import Receipt
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import hash_of
from tests.client.test_client import Service
from tests.engine.test_lease import ManualClock, thread_of
from tests.segments.test_changes import forget
from tests.support.scenario import Loss

PATIENCE_S = 20  # what comes, comes at once: this is how long a failing test takes


@pytest.fixture
def service(redis_path: str, redis_client: redis.Redis) -> Iterator[Service]:
    del redis_client  # which begins with an empty store
    opened = Service(redis_path)
    yield opened
    opened.client.close()


# -- flush ---------------------------------------------------------------------------------------


def is_flushed(txn: Transaction) -> bool:
    return bool(txn._written)


def test_what_is_gathered_is_bounded_with_its_properties(service: Service) -> None:
    producer = service.client.producer(service.topic())
    with service.client.new_txn() as txn:
        producer.send("a", properties={"p": "x" * BYTES_GATHERED}, txn=txn)
        assert not any(txn._rows.values()), "it was handed over at once"


def test_a_flush_and_the_sends_of_other_threads_do_not_disturb_each_other(
    service: Service,
) -> None:
    producer = service.client.producer(service.topic())
    first, second, late = (service.client.new_txn() for _ in range(3))
    with ThreadPoolExecutor(1) as pool:
        sending: list[Future[None]] = []

        class Overtaken(weakref.WeakSet[Transaction]):
            def __iter__(self) -> Iterator[Transaction]:
                for txn in super().__iter__():
                    if not sending:
                        sending.append(pool.submit(producer.send, "c", txn=late))
                        # Time enough for it, unless it has to wait until this is over.
                        overtaken.wait(0.2)
                    yield txn

            def add(self, item: Transaction) -> None:
                super().add(item)
                overtaken.set()

        overtaken = threading.Event()
        for txn in (first, second):
            producer.send("a", txn=txn)
        producer._txns = Overtaken(producer._txns)
        overtaken.clear()
        producer.flush()
        sending[0].result(PATIENCE_S)
    assert is_flushed(first)
    assert is_flushed(second)
    for txn in (first, second, late):
        txn.abort()


def abort(txn: Transaction) -> None:
    txn.abort()


def lose_lease(txn: Transaction) -> None:
    txn.lost(TransactionAbortedError("an administrator did"))


def fail(txn: Transaction) -> None:
    txn.fail(ValueError("something was not sent"))


def begin_commit(txn: Transaction) -> None:
    with txn._lock:
        txn._prepare()


@pytest.mark.parametrize("end", [abort, lose_lease, fail, begin_commit])
def test_a_flush_passes_over_transactions_that_take_nothing_more(
    service: Service, end: Callable[[Transaction], None]
) -> None:
    producer = service.client.producer(service.topic())
    over, own = service.client.new_txn(), service.client.new_txn()
    for txn in (over, own):
        producer.send("a", txn=txn)
    end(over)
    producer.flush()
    assert is_flushed(own)
    own.abort()


def test_a_flush_that_fails_says_so_once_the_others_are_flushed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = service.client.producer(service.topic())
    txns = [service.client.new_txn() for _ in range(4)]
    for txn in txns:
        producer.send("a", txn=txn)

    def fail_to_write() -> None:
        raise StoreUnavailableError("the store is restarted")

    for txn in txns[1:3]:
        monkeypatch.setattr(txn, "_finish_writing", fail_to_write)
    with pytest.raises(StoreUnavailableError, match="restarted"):
        producer.flush()
    assert [is_flushed(txn) for txn in txns] == [True, False, False, True]
    producer.flush()  # those have failed, and say so when they are committed
    for txn in txns:
        txn.abort()


# -- without a transaction -----------------------------------------------------------------------


def test_a_message_without_a_receipt_is_an_error_and_is_not_sent_a_second_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    with monkeypatch.context() as patch:
        forget(patch, losses=1, after=0)
        with pytest.raises(UnverifiedReceiptError):
            producer.send("a")
    producer.send("b")
    assert service.visible(topic) == ["a", "b"], "a was stored, and nobody could tell"


def test_a_message_whose_fate_the_log_does_not_tell_does_not_go_to_the_children_as_well(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    producer.send("a")
    flush = _EmbeddedWriter.flush

    def lose(writer: _EmbeddedWriter) -> Receipt:
        flush(writer)
        service.split(topic)  # somebody seals it before the topology is read again
        raise SegmentLogUnavailableError("the reply was lost")

    with monkeypatch.context() as patch:
        patch.setattr(_EmbeddedWriter, "flush", lose)
        with pytest.raises(SegmentLogUnavailableError, match="the reply was lost"):
            producer.send("b")
    producer.send("c")
    assert service.visible(topic) == ["a", "b", "c"]


def test_a_producer_may_live_through_any_number_of_splits(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_writers, "_MOST_CHANGES", 1)
    topic = service.topic()
    name = TopicName.parse(topic)
    producer = service.client.producer(topic)
    for value in "abcd":
        producer.send(value, key="k")
        active = service.run.topics.require(name).active
        [owner] = [s for s in active if s.hash_start <= hash_of(b"k") <= s.hash_end]
        service.run.topics.changes.split(name, owner.descriptor)
        assert not any(o._left for o in getattr(producer._writers, "_outputs", {}).values())
    assert service.visible(topic) == list("abcd")


# -- the end -------------------------------------------------------------------------------------


class ClosedMeanwhile:
    """A lock before which somebody else closes the producer, whoever takes it first."""

    def __init__(self, producer: Producer) -> None:
        self._lock = threading.Lock()
        self._close: Callable[[], None] | None = producer.close

    def __enter__(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            close()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return False


def test_a_send_that_waited_behind_the_close_opens_nothing(service: Service) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    lock: Any = ClosedMeanwhile(producer)
    producer._lock = lock
    with pytest.raises(AlreadyClosedError, match="make a new one"):
        producer.send("a")
    assert producer._writers is None
    assert service.visible(topic) == []


def test_a_dropped_producer_has_its_writers_closed_by_a_thread_and_not_by_who_drops_it(
    service: Service,
) -> None:
    clock = ManualClock()
    leases = service.client._leases = Leases(clock)
    topic = service.topic()
    producer = service.client.producer(topic)
    producer.send("a")
    writers = producer._writers
    assert writers is not None
    assert writers.is_open
    clock.settle()
    del producer
    gc.collect()
    assert writers.is_open, "a finalizer may run in the middle of anything"
    clock.pass_by(15, thread_ends=thread_of(leases))
    assert not writers.is_open
    assert service.visible(topic) == ["a"]


def test_a_producer_that_was_closed_leaves_nothing_to_the_thread(service: Service) -> None:
    leases = service.client._leases
    with service.client.producer(service.topic()) as producer:
        producer.send("a")
        writers = producer._writers
    assert writers is not None
    assert not writers.is_open
    assert not leases._due
    del producer
    gc.collect()
    assert not leases._forgotten


def test_a_producer_is_of_use_where_no_thread_can_be_started(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    topic = service.topic()
    with service.client.producer(topic) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            producer.send("a")
        producer.send("b")
    assert service.visible(topic) == ["a", "b"]


@pytest.mark.timeout(30)  # a close that waits for the lock would wait for ever
def test_the_end_of_a_producer_in_a_fork_leaves_the_parents_writers_open(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    producer.send("a")
    writers, parent = producer._writers, os.getpid()
    assert writers is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        with producer._lock, producer:  # another thread of the parent had it, and is not there
            pass
        producer.close()
    assert writers.is_open
    producer.send("b")
    assert producer._writers is writers
    assert service.visible(topic) == ["a", "b"]


# -- dropped transactions ------------------------------------------------------------------------


def test_of_transactions_that_were_dropped_before_they_began_nothing_is_kept(
    service: Service,
) -> None:
    producer = service.client.producer(service.topic())
    for _ in range(100):
        producer.send("a", txn=service.client.new_txn())
    gc.collect()
    assert not service.client._leases._forgotten


def test_of_dropped_transactions_that_the_store_did_not_begin_nothing_is_kept(
    service: Service,
) -> None:
    producer = service.client.producer(service.topic())

    def fail_and_forget() -> None:
        txn = service.client.new_txn()
        producer.send("a", txn=txn)
        with pytest.raises(StoreUnavailableError):
            txn.flush()

    service.lose(always={"txn_open": Loss.REQUEST, "txn_create": Loss.REQUEST})
    for _ in range(3):
        fail_and_forget()
    service.mend()
    gc.collect()
    assert not service.client._leases._forgotten
