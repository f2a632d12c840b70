"""The client without Spark, on the embedded log: transactions over topics and subscriptions."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis

from pulsar_txn_spark import Admin, client, errors
from pulsar_txn_spark.client import Consumer, Message, Producer, TxnStatus, session
from pulsar_txn_spark.client import consumer as consumer_module
from pulsar_txn_spark.client.claims import Claims
from pulsar_txn_spark.engine import components as runtimes
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    AlreadyClosedError,
    CommitStateUnknownError,
    DataLossError,
    FencedError,
    OptionError,
    ReceiveTimeoutError,
    SchemaError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnsafeError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionDomainError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.retention import Retention
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState, hash_of
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import Code, EndedBy, TxnId
from pulsar_txn_spark.store.redis.subscriptions import RedisSubscriptionStore
from tests.support.round_trips import meet_all_coordinators
from tests.support.scenario import Fault, Loss, LossyClient

SOON_S = 5.0  # docs/performance.md has what is measured
FAR_S = 3600.0


class Service:
    """A client, and what tests ask it over and over again."""

    def __init__(self, path: str, options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.options = options if options is not None else {"store.path": path}
        self.client = client.connect(self.options)
        self.run = self.client._components
        self._good: Any = self.run.store.scripts.client
        self._numbers = itertools.count()

    def another_process(self) -> Service:
        """Return a client that shares nothing with this one but the server."""
        runtimes._opened.clear()
        return Service(self.path, self.options)

    def topic(self, segments: int = 1) -> str:
        topic = f"topic://public/default/t{next(self._numbers)}"
        Admin(self.options).create_topic(topic, segments=segments)
        return topic

    def topic_again(self, topic: str) -> None:
        Admin(self.options).create_topic(topic, segments=2)

    def split(self, topic: str) -> None:
        name = TopicName.parse(topic)
        [parent] = self.run.topics.require(name).active
        self.run.topics.changes.split(name, parent.descriptor)

    def delete_first_segment(self, topic: str) -> None:
        """Delete a topic's oldest segment, data and all, as retention would."""
        topology = self.run.topics.require(TopicName.parse(topic))
        first = topology.segments[0]
        self.run.log.delete(first.ref)
        after = topology.with_state([first.ref.id], SegmentState.DELETED)
        self.run.store.topics.swap(topic, topology.version, after.serialize())

    def send(self, topic: str, *values: str, key: str | None = None) -> None:
        """Send in one transaction, so that all of them are one entry."""
        with self.client.producer(topic) as producer, self.client.new_txn() as txn:
            for value in values:
                producer.send(value, key=key, txn=txn)

    def visible(self, topic: str) -> list[str]:
        """Return what a new subscription at the beginning gets."""
        with self.client.consumer(topic, f"look-{next(self._numbers)}") as consumer:
            return drained(consumer)

    def lose(
        self,
        losses: Mapping[str, Sequence[Fault | None]] | None = None,
        always: Mapping[str, Fault] | None = None,
    ) -> None:
        """Put a bad network between this client and the store."""
        store: Any = self.run.store
        store.scripts.client = LossyClient(self._good, losses, always)

    def mend(self) -> None:
        """Take the bad network away."""
        self.run.store.scripts.client = self._good

    def expire(self, txn: client.Transaction) -> None:
        """Let the lease be over by the store's clock, and somebody find that out."""
        key, tag = txn.id.key, f"{{tc{txn.id.tc}}}"
        self._good.hset(f"{tag}:txn:{key}", "deadline_ms", "1")
        assert self.run.coordinator.complete_on_behalf([txn.id], set())


@pytest.fixture
def service(redis_path: str, redis_client: redis.Redis) -> Iterator[Service]:
    found = Service(redis_path)
    yield found
    found.client.close()


def text(message: Message) -> str:
    assert message.value is not None
    return message.value.decode()


def take(consumer: Consumer, count: int) -> list[Message]:
    return [consumer.receive(timeout_ms=5_000) for _ in range(count)]


def texts(consumer: Consumer, count: int) -> list[str]:
    return [text(message) for message in take(consumer, count)]


def drained(consumer: Consumer) -> list[str]:
    """Receive until there is nothing."""
    found = []
    while True:
        try:
            found.append(text(consumer.receive(timeout_ms=0)))
        except ReceiveTimeoutError:
            return found


def nothing_comes(consumer: Consumer) -> bool:
    return drained(consumer) == []


# -- producing -------------------------------------------------------------------------------------


def test_a_transaction_over_two_topics_becomes_visible_as_one(service: Service) -> None:
    one, two = service.topic(2), service.topic()
    with service.client.producer(one) as p, service.client.producer(two) as q:
        txn = service.client.new_txn()
        p.send("a", key="k", txn=txn)
        q.send("b", txn=txn)
        p.flush()
        q.flush()
        assert service.visible(one) == service.visible(two) == []
        assert txn.status() is TxnStatus.OPEN
        txn.commit()
        assert txn.status() is TxnStatus.COMMITTED
    assert service.visible(one) == ["a"]
    assert service.visible(two) == ["b"]


def test_an_exception_aborts_everything_that_was_sent(service: Service) -> None:
    one, two = service.topic(), service.topic()
    p, q = service.client.producer(one), service.client.producer(two)
    with pytest.raises(ZeroDivisionError), service.client.new_txn() as txn:  # noqa: PT012 — its block fails
        p.send("a", txn=txn)
        p.flush()
        q.send("b", txn=txn)
        raise ZeroDivisionError
    assert txn.status() is TxnStatus.ABORTED
    assert service.visible(one) == service.visible(two) == []


def test_a_message_outside_of_transactions_is_visible_when_send_returns(service: Service) -> None:
    topic = service.topic()
    with service.client.producer(topic) as producer:
        producer.send("a")
        assert service.visible(topic) == ["a"]
        service.split(topic)
        producer.send("b", key="k")
        assert sorted(service.visible(topic)) == ["a", "b"]


def test_everything_that_a_message_carries_arrives(service: Service) -> None:
    topic = service.topic()
    before = datetime.now(UTC)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=2)))
    with service.client.producer(topic) as producer, service.client.new_txn() as txn:
        producer.send(b"\x00\xff", key=b"k\x80", properties={"p": "q"}, event_time=moment, txn=txn)
        producer.send(None, txn=txn)
    with service.client.consumer(topic, "s") as consumer:
        full, empty = take(consumer, 2)
    assert (full.value, full.key, full.properties) == (b"\x00\xff", b"k\x80", {"p": "q"})
    assert full.event_time == moment.replace(microsecond=678_000)
    assert full.event_time.tzinfo is UTC
    assert before - timedelta(seconds=1) < full.publish_time <= datetime.now(UTC)
    assert (empty.value, empty.key, empty.properties, empty.event_time) == (None, None, {}, None)
    assert (full.topic, full.segment) == (topic, empty.segment)
    assert full.message_id != empty.message_id
    assert "@1:0:0" in str(full.message_id)


def test_ending_twice_the_same_way_is_no_error_and_the_other_way_is(service: Service) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    committed, aborted = service.client.new_txn(), service.client.new_txn()
    producer.send("a", txn=committed)
    committed.commit()
    committed.commit()
    aborted.abort()
    aborted.abort()
    with pytest.raises(TransactionConflictError, match="was committed before"):
        committed.abort()
    with pytest.raises(TransactionAbortedError):
        aborted.commit()
    for over in (committed, aborted):
        with pytest.raises(TransactionConflictError):
            producer.send("b", txn=over)
    assert service.visible(topic) == ["a"]


def lose_answers_of_commits(service: Service, step: str) -> None:
    """Lose one answer, which is found out, and then all of them until the store is back."""
    topic = service.topic()
    producer = service.client.producer(topic)
    with service.client.new_txn() as txn:
        producer.send("a", txn=txn)
        service.lose({step: [Loss.REPLY]})
    assert txn.status() is TxnStatus.COMMITTED
    unknown = service.client.new_txn()
    producer.send("b", txn=unknown)
    producer.flush()
    service.lose(always={step: Loss.REPLY, "txn_read": Loss.REQUEST})
    with pytest.raises(CommitStateUnknownError):
        unknown.commit()
    with pytest.raises(TransactionConflictError, match="its commit was begun"):
        producer.send("c", txn=unknown)
    service.mend()
    unknown.commit()
    assert service.visible(topic) == ["a", "b"]


@pytest.mark.usefixtures("single_steps")
def test_a_commit_whose_answer_is_lost_is_found_out_or_unknown(service: Service) -> None:
    lose_answers_of_commits(service, "txn_end")


def test_a_commit_in_one_step_whose_answer_is_lost_is_found_out_or_unknown(
    service: Service,
) -> None:
    lose_answers_of_commits(service, "txn_commit")


def flushed(service: Service) -> tuple[str, Producer, client.Transaction]:
    topic = service.topic()
    producer = service.client.producer(topic)
    txn = service.client.new_txn()
    producer.send("a", txn=txn)
    producer.flush()
    return topic, producer, txn


def test_a_full_store_commits_what_is_flushed_and_begins_no_other_transaction(
    service: Service, limit_memory: Callable[[int], None]
) -> None:
    topic, producer, txn = flushed(service)
    limit_memory(1)
    txn.commit()
    later = service.client.new_txn()
    producer.send("b", txn=later)
    with pytest.raises(StoreFullError):
        producer.flush()
    limit_memory(0)
    assert service.visible(topic) == ["a"]


@pytest.mark.usefixtures("single_steps")
def test_a_full_cluster_aborts_what_has_no_operation_records_yet(
    service: Service, limit_memory: Callable[[int], None]
) -> None:
    topic, _, txn = flushed(service)
    limit_memory(1)
    with pytest.raises(StoreFullError):
        txn.commit()
    assert txn.status() is TxnStatus.ABORTED
    limit_memory(0)
    assert service.visible(topic) == []


@pytest.mark.usefixtures("single_steps")
@pytest.mark.parametrize("fault", [Loss.REQUEST, StoreError("OOM"), StoreUnsafeError("a replica")])
def test_a_commit_that_lost_the_store_after_the_decision_is_unknown_and_not_failed(
    service: Service, fault: Fault
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    txn = service.client.new_txn()
    producer.send("a", txn=txn)
    producer.flush()
    service.lose(always={"seg_materialize": fault})
    with pytest.raises(CommitStateUnknownError, match="may be committed"):
        txn.commit()
    service.mend()
    txn.commit()
    assert service.visible(topic) == ["a"]


def test_a_transaction_in_which_something_failed_cannot_be_committed(service: Service) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    txn = service.client.new_txn()
    producer.send("a", txn=txn)
    producer.flush()
    other = service.client.producer(service.topic())
    service.lose(always={"txn_admit": Loss.REQUEST})
    other.send("b", txn=txn)
    with pytest.raises(StoreUnavailableError):
        other.flush()
    service.mend()
    with pytest.raises(TransactionConflictError, match="takes nothing more"):
        producer.send("c", txn=txn)
    with pytest.raises(TransactionAbortedError, match="something in it failed"):
        txn.commit()
    assert txn.status() is TxnStatus.ABORTED
    assert service.visible(topic) == []


def test_the_store_hears_of_a_transaction_once_something_is_done_in_it(service: Service) -> None:
    topic = service.topic()
    producer, consumer = service.client.producer(topic), service.client.consumer(topic, "s")
    service.send(topic, "a")
    before = service.run.store.round_trips
    unused, aborted = service.client.new_txn(), service.client.new_txn()
    assert unused.status() is TxnStatus.OPEN
    aborted.abort()
    assert aborted.status() is TxnStatus.ABORTED
    assert "without an id" in repr(unused)
    assert service.run.store.round_trips == before
    with pytest.raises(TransactionAbortedError, match="begin a new one"):
        assert aborted.id
    with pytest.raises(TransactionAbortedError):
        producer.send("b", txn=aborted)
    message = consumer.receive(timeout_ms=5_000)
    with pytest.raises(TransactionAbortedError):
        consumer.acknowledge(message, aborted)
    consumer.acknowledge(message, unused)
    assert service.run.coordinator.status(unused.id) is TxnStatus.OPEN
    unused.commit()
    with service.client.new_txn() as empty:
        pass
    assert service.run.coordinator.status(empty.id) is TxnStatus.COMMITTED


def test_a_transaction_whose_first_reply_was_lost_is_aborted_all_the_same(
    service: Service,
) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    service.send(topic, "before")
    txn = service.client.new_txn()
    service.lose(always={"txn_open": Loss.REPLY, "txn_create": Loss.REPLY})
    producer.send("a", txn=txn)
    with pytest.raises(StoreUnavailableError):
        producer.flush()
    service.mend()
    txn.abort()
    assert service.run.coordinator.status(txn.id) is TxnStatus.ABORTED
    service.send(topic, "after")
    assert service.visible(topic) == ["before", "after"], "nobody waits for its lease"


def test_an_abort_that_gets_no_answer_leaves_the_rest_to_the_lease(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a")
    consumer, producer = service.client.consumer(topic, "s"), service.client.producer(topic)
    with pytest.raises(ZeroDivisionError) as caught, service.client.new_txn() as txn:  # noqa: PT012 — its block fails
        producer.send("b", txn=txn)
        consumer.acknowledge(consumer.receive(timeout_ms=5_000), txn)
        service.lose(always={"txn_end": Loss.REQUEST})
        raise ZeroDivisionError
    assert "was not aborted" in caught.value.__notes__[0]
    service.mend()
    with pytest.raises(TransactionConflictError, match="its abort was begun"):
        producer.send("c", txn=txn)
    assert nothing_comes(consumer)
    service.expire(txn)
    assert drained(consumer) == ["a"]
    txn.abort()
    assert txn.status() is TxnStatus.ABORTED


def test_a_split_while_a_transaction_is_open_moves_its_rows_and_loses_none(
    service: Service,
) -> None:
    topic = service.topic()
    with service.client.producer(topic) as producer, service.client.new_txn() as txn:
        for number in range(20):
            producer.send(f"a{number}", key=f"k{number % 4}", txn=txn)
        producer.flush()
        service.split(topic)
        for number in range(20, 40):
            producer.send(f"a{number}", key=f"k{number % 4}", txn=txn)
    found = service.visible(topic)
    assert sorted(found) == sorted(f"a{number}" for number in range(40))
    for key in range(4):
        numbers = [int(value[1:]) for value in found if int(value[1:]) % 4 == key]
        assert numbers == sorted(numbers)


def elsewhere(service: Service, action: Callable[[], object]) -> None:
    """Do something of which this process learns nothing, as if another one did it."""
    topics = service.run.topics
    last_read = dict(topics._last_read)
    action()
    topics._last_read = last_read


def test_a_transaction_is_not_begun_by_the_topology_of_an_earlier_one(service: Service) -> None:
    topic, admin = service.topic(), Admin({"store.path": service.path})
    meet_all_coordinators(service.run)  # else the steps are single ones, by a topology read anew
    with service.client.producer(topic) as producer:

        def send(value: str) -> None:
            with service.client.new_txn() as txn:
                for key in range(8):
                    producer.send(value, key=f"k{key}", txn=txn)

        send("a")
        elsewhere(service, lambda: service.split(topic))
        send("b")
        assert sorted(service.visible(topic)) == sorted("ab" * 8)
        elsewhere(service, lambda: admin.delete_topic(topic))
        with pytest.raises(TopicNotFoundError):
            send("nowhere")
        service.topic_again(topic)
        send("c")

        def create_anew() -> None:
            admin.delete_topic(topic)
            service.topic_again(topic)

        elsewhere(service, create_anew)
        send("d")
        assert service.visible(topic) == ["d"] * 8


class SplittingClient(LossyClient):
    """Loses the reply to the first txn_open, and splits the topic before it is asked again."""

    def __init__(self, service: Service, topic: str) -> None:
        super().__init__(service._good, {"txn_open": [Loss.REPLY]})
        self._service, self._topic = service, topic

    def _through(self, name: str, send: Callable[[], Any]) -> Any:
        try:
            return super()._through(name, send)
        except redis.TimeoutError:
            self._service.mend()
            elsewhere(self._service, lambda: self._service.split(self._topic))
            store: Any = self._service.run.store
            store.scripts.client = self
            raise


@pytest.mark.parametrize("ends", ["commit", "abort", "expire"])
def test_a_topic_that_is_split_behind_a_lost_reply_keeps_nothing_of_what_was_opened(
    service: Service, ends: str
) -> None:
    topic = service.topic()
    meet_all_coordinators(service.run)
    service.send(topic, "before")
    with service.client.producer(topic) as producer:
        txn = service.client.new_txn()
        lossy: Any = SplittingClient(service, topic)
        service.run.store.scripts.client = lossy
        for key in range(8):
            producer.send("a", key=f"k{key}", txn=txn)
        producer.flush()
        assert lossy.calls["txn_open"] == 3, "it took effect, was refused, and then found again"
        service.mend()
        service.expire(txn) if ends == "expire" else getattr(txn, ends)()
        service.send(topic, "after")
    # The parent has a pin of the first attempt, which goes with the transaction.
    assert sorted(service.visible(topic)) == sorted(
        ["before", "after", *["a"] * (8 if ends == "commit" else 0)]
    )


# -- the lease -------------------------------------------------------------------------------------


def test_a_living_client_keeps_its_lease_and_one_that_lost_it_hears_of_it(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "a")
    consumer = service.client.consumer(topic, "s")
    txn = service.client.new_txn(timeout_ms=1_000)
    [message] = take(consumer, 1)
    consumer.acknowledge(message, txn)
    key = f"{{tc{txn.id.tc}}}:txn:{txn.id.key}"
    redis_client: Any = service.run.store.scripts.client
    first = int(redis_client.hget(key, "deadline_ms"))
    # The heartbeat comes four times per lease.
    deadline = time.monotonic() + 5
    while int(redis_client.hget(key, "deadline_ms")) == first:
        assert time.monotonic() < deadline, "no heartbeat came"
    service.run.coordinator.abort(txn.id, EndedBy.ADMIN, cause="an administrator did")
    # Nobody asks for it: the heartbeat finds out, and the message comes again by itself.
    assert texts(consumer, 1) == ["a"]
    with pytest.raises(TransactionAbortedError, match="ended by somebody else"):
        consumer.acknowledge(message, txn)
    with pytest.raises(TransactionAbortedError):
        txn.commit()


def test_a_transaction_that_is_dropped_is_left_to_its_lease_and_its_messages_come_again(
    service: Service,
) -> None:
    # The server refuses each script once: its errors keep nothing of their callers alive.
    service._good.script_flush()
    topic = service.topic()
    service.send(topic, "a")
    consumer, producer = service.client.consumer(topic, "s"), service.client.producer(topic)
    leases = service.client._leases

    def begin_and_forget() -> TxnId:
        txn = service.client.new_txn(timeout_ms=1_000)
        producer.send("b", txn=txn)
        producer.flush()
        consumer.acknowledge(consumer.receive(timeout_ms=5_000), txn)
        assert len(leases._due) == 1
        return txn.id

    forgotten = begin_and_forget()
    deadline = time.monotonic() + SOON_S
    while leases._due:  # a heartbeat of this moment holds it until it has come
        assert time.monotonic() < deadline, "it is kept alive"
    assert texts(consumer, 1) == ["a"], "within a second or two its lease is over"
    assert service.run.coordinator.status(forgotten) is TxnStatus.ABORTED


def test_closing_the_client_aborts_what_is_open(service: Service) -> None:
    topic = service.topic()
    other = service.another_process()
    txn = other.client.new_txn()
    with other.client.producer(topic) as producer:
        producer.send("a", txn=txn)
        producer.flush()
    other.client.close()
    assert service.run.coordinator.status(txn.id) is TxnStatus.ABORTED
    with pytest.raises(AlreadyClosedError):
        other.client.new_txn()
    with pytest.raises(AlreadyClosedError):
        producer.send("b")
    assert service.visible(topic) == []


@pytest.mark.parametrize("kind", ["Transaction", "Producer", "Consumer"])
def test_what_is_made_while_the_client_is_closed_is_closed_with_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    topic, other = service.topic(), service.another_process().client
    made: list[Any] = []
    calls: dict[str, Callable[[], object]] = {
        "Transaction": other.new_txn,
        "Producer": lambda: other.producer(topic),
        "Consumer": lambda: other.consumer(topic, "s"),
    }
    make = getattr(session, kind)

    def beside(*args: Any) -> Any:
        made.append(make(*args))
        other.close()
        return made[0]

    monkeypatch.setattr(session, kind, beside)
    with pytest.raises(AlreadyClosedError, match="the client is closed"):
        calls[kind]()
    assert made[0].ended if kind == "Transaction" else made[0]._closed


def test_a_commit_carries_the_last_seen_sequence_number_of_each_segment_that_it_touched(
    service: Service,
) -> None:
    source, target = service.topic(), service.topic()
    service.send(source, "a")
    with service.client.consumer(source, "s") as consumer, service.client.new_txn() as txn:
        [a] = take(consumer, 1)
        consumer.acknowledge(a, txn)
        service.client.producer(target).send("b", txn=txn)
    header = service.run.store.transactions.read(txn.id)
    assert header is not None
    outcome = Outcome.FromString(header.outcome)
    [written] = service.run.topics.require(TopicName.parse(target)).active
    assert set(outcome.last_seen) == {f"seg:{a.segment}", f"seg:{written.ref.id}"}
    assert [(w.segment, w.HasField("bound")) for w in outcome.winners] == [(written.ref.id, False)]
    assert (outcome.messages, outcome.bytes > 0) == (1, True)


# -- receiving -------------------------------------------------------------------------------------


def test_a_waiting_receiver_is_woken_by_the_commit(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "warm")
    consumer = service.client.consumer(topic, "s")
    assert texts(consumer, 1) == ["warm"]
    consumer._reader._watcher._recheck_s = FAR_S  # none that could stand in for the event
    other = service.another_process()
    with other.client.producer(topic) as producer:
        txn = other.client.new_txn()
        producer.send("a", txn=txn)
        producer.flush()
        found: list[tuple[str, float]] = []
        waiting = threading.Event()

        def receive() -> None:
            waiting.set()
            found.append((text(consumer.receive(timeout_ms=10_000)), time.monotonic()))

        thread = threading.Thread(target=receive)
        thread.start()
        assert waiting.wait(5)
        txn.commit()
        decided = time.monotonic()
        thread.join(10)
    [(value, received)] = found
    assert value == "a"
    assert received - decided < SOON_S
    other.client.close()


def test_nothing_of_an_open_transaction_is_received_and_nothing_behind_it(
    service: Service,
) -> None:
    topic = service.topic()
    consumer = service.client.consumer(topic, "s")
    producer = service.client.producer(topic)
    txn = service.client.new_txn()
    producer.send("open", txn=txn)
    producer.flush()
    producer.send("behind")
    assert nothing_comes(consumer)
    txn.abort()
    assert drained(consumer) == ["behind"]


def test_a_timeout_is_no_fault_and_iteration_ends_when_the_consumer_is_closed(
    service: Service,
) -> None:
    topic = service.topic()
    consumer = service.client.consumer(topic, "s")
    with pytest.raises(TimeoutError):
        consumer.receive(timeout_ms=20)
    service.send(topic, "a", "b")
    found = []
    # From another thread, while this one waits for the next message.
    closing = threading.Timer(0.05, consumer.close)
    for message in consumer:
        found.append(text(message))
        if message.value == b"b":
            closing.start()
    closing.join()
    assert found == ["a", "b"]
    with pytest.raises(AlreadyClosedError):
        consumer.receive()


def test_a_new_subscription_begins_where_it_is_told_and_an_old_one_where_it_stands(
    service: Service,
) -> None:
    topic = service.topic(2)
    service.send(topic, "a", "b", key="k")
    with service.client.consumer(topic, "late", "latest") as late:
        assert nothing_comes(late)
        service.send(topic, "c", key="k")
        assert drained(late) == ["c"]
    with service.client.consumer(topic, "late", "earliest") as late:
        assert drained(late) == ["c"], "what was not acknowledged comes again"
        late.redeliver_unacknowledged()
        [c] = take(late, 1)
        late.acknowledge(c)
    with service.client.consumer(topic, "late") as late:
        assert nothing_comes(late)


def test_a_subscription_at_the_end_whose_making_was_cut_short_begins_at_the_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    service.send(topic, *"abcdefgh", key="k")
    service.split(topic)
    service.send(topic, "i", key="k")
    for claimed in (1, 2):
        claims = iter([True] * claimed)
        real = RedisSubscriptionStore.claim_cursor

        def claim(*args: object, real: object = real, claims: Iterator[bool] = claims) -> object:
            assert callable(real)
            if next(claims, False):
                return real(*args)
            raise StoreUnavailableError("the process died here")

        with monkeypatch.context() as patch:
            patch.setattr(RedisSubscriptionStore, "claim_cursor", claim)
            with pytest.raises(StoreUnavailableError):
                service.client.consumer(topic, f"s{claimed}", "latest")
        with service.client.consumer(topic, f"s{claimed}", "latest") as consumer:
            assert nothing_comes(consumer)


def test_a_subscription_at_the_end_misses_nothing_of_children_s_children(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "old")
    with service.client.consumer(topic, "s", "latest") as consumer:
        service.split(topic)
        name = TopicName.parse(topic)
        for child in service.run.topics.require(name).active:
            service.run.topics.changes.split(name, child.descriptor)
        service.send(topic, "new")  # before the consumer has looked at the children
        assert drained(consumer) == ["new"]


def test_several_topics_are_one_subscription(service: Service) -> None:
    topics = [service.topic(2), service.topic()]
    for number, topic in enumerate(topics):
        service.send(topic, f"a{number}", f"b{number}", key="k")
    with service.client.consumer(topics, "s") as consumer:
        assert consumer.topics == tuple(topics)
        messages = take(consumer, 4)
        assert sorted(map(text, messages)) == ["a0", "a1", "b0", "b1"]
        with service.client.new_txn() as txn:
            consumer.acknowledge(messages, txn)
    with service.client.consumer(topics, "s") as consumer:
        assert nothing_comes(consumer)


def test_more_messages_than_are_read_ahead_all_come_in_order(service: Service) -> None:
    topic = service.topic()
    for start in range(0, 3_000, 500):
        service.send(topic, *(f"{number}" for number in range(start, start + 500)))
    with service.client.consumer(topic, "s") as consumer:
        assert drained(consumer) == [f"{number}" for number in range(3_000)]


def test_a_busy_segment_does_not_hide_the_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_txn_spark.client.reader._MESSAGES_AHEAD", 2)
    topic = service.topic(2)
    keys = {hash_of(key.encode()) >> 15: key for key in map(str, range(20))}
    for number in range(10):
        service.send(topic, f"busy{number}", key=keys[0])
    with service.client.consumer(topic, "s") as consumer:
        texts(consumer, 1)
        service.send(topic, "other", key=keys[1])
        assert "other" in texts(consumer, 7)


def test_children_come_after_all_of_their_parent_also_when_it_comes_again(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "p1", "p2", key="k")
    consumer = service.client.consumer(topic, "s")
    [p1] = take(consumer, 1)
    service.split(topic)
    service.send(topic, "c1", key="k")
    service.send(topic, "c2", key="k")
    assert texts(consumer, 3) == ["p2", "c1", "c2"]
    consumer.redeliver_unacknowledged()
    assert texts(consumer, 4) == ["p1", "p2", "c1", "c2"]
    consumer.acknowledge(p1)
    consumer.close()
    with service.client.consumer(topic, "s") as again:
        assert drained(again) == ["p2", "c1", "c2"]


def test_a_parent_that_ends_in_aborted_rows_is_acknowledged_to_its_end(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "p", key="k")
    producer = service.client.producer(topic)
    with pytest.raises(ZeroDivisionError), service.client.new_txn() as txn:  # noqa: PT012 — its block fails
        producer.send("aborted", key="k", txn=txn)
        producer.flush()
        raise ZeroDivisionError
    service.split(topic)
    service.send(topic, "c", key="k")
    with service.client.consumer(topic, "s") as consumer:
        messages = take(consumer, 2)
        with service.client.new_txn() as txn:
            consumer.acknowledge_cumulative(messages[-1], txn)
        parent = next(s for s in service.run.topics.require(TopicName.parse(topic)).segments)
        [cursor] = service.run.store.subscriptions.read_cursors([parent.ref.id], "s")
        assert cursor is not None
        assert parent.sealed_at is not None
        assert cursor.position == parent.sealed_at


def test_messages_that_were_deleted_before_they_were_received_are_an_error(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "a")
    service.client.consumer(topic, "s").close()
    service.send(topic, "b")
    [segment] = service.run.topics.require(TopicName.parse(topic)).active
    service.run.log.trim(segment.ref, Position(1, 0))
    with service.client.consumer(topic, "s") as consumer, pytest.raises(DataLossError):
        consumer.receive(timeout_ms=1_000)


def test_a_subscription_that_comes_while_retention_trims_begins_behind_what_goes(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "old")
    service.send(topic, "kept")
    [segment] = service.run.topics.require(TopicName.parse(topic)).segments
    # Retention has looked at the subscriptions, and has not trimmed yet.
    service.run.store.segments.mark_trimmed(segment.ref.id, Position(1, 0))
    with service.client.consumer(topic, "s") as consumer:
        service.run.log.trim(segment.ref, Position(1, 0))
        assert drained(consumer) == ["kept"]


def test_a_subscription_that_comes_while_a_segment_is_deleted_begins_behind_it(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "old")
    service.split(topic)
    service.send(topic, "kept")
    [parent, *_] = service.run.topics.require(TopicName.parse(topic)).segments
    assert parent.sealed_at is not None
    service.run.store.segments.retire(parent.ref.id, parent.sealed_at, [])
    with service.client.consumer(topic, "s") as consumer:
        assert drained(consumer) == ["kept"]


def test_a_cumulative_acknowledgement_passes_over_a_parent_that_was_deleted_meanwhile(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "a", "b")
    consumer, out = service.client.consumer(topic, "s"), service.topic()
    parents = take(consumer, 2)
    service.split(topic)
    service.send(topic, "c", key="k")
    [c] = take(consumer, 1)
    for message in parents:
        consumer.acknowledge(message)
    name = TopicName.parse(topic)
    parent = service.run.topics.require(name).segments[0]
    assert parent.sealed_at is not None
    # Retention has handed the subscription over, and shut the door.
    handed_over = service.run.store.subscriptions.names(parent.ref.id)
    answer = service.run.store.segments.retire(parent.ref.id, parent.sealed_at, handed_over)
    assert answer.code is Code.OK
    with service.client.new_txn() as txn:
        service.client.producer(out).send("of c", txn=txn)
        consumer.acknowledge_cumulative(c, txn)
    assert service.visible(out) == ["of c"]
    consumer.close()
    with service.client.consumer(topic, "s") as after:
        assert drained(after) == []


def test_a_message_of_a_segment_that_was_deleted_meanwhile_is_acknowledged_already(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, "a")
    consumer = service.client.consumer(topic, "s")
    [a] = take(consumer, 1)
    consumer.acknowledge(a)
    service.split(topic)
    assert nothing_comes(consumer)
    parent = service.run.topics.require(TopicName.parse(topic)).segments[0]
    assert parent.sealed_at is not None
    handed_over = service.run.store.subscriptions.names(parent.ref.id)
    answer = service.run.store.segments.retire(parent.ref.id, parent.sealed_at, handed_over)
    assert answer.code is Code.OK
    consumer.acknowledge(a)
    with pytest.raises(AcknowledgementConflictError, match="is acknowledged already"):
        consumer.acknowledge(a, service.client.new_txn())


@pytest.mark.parametrize(
    "request_name, number", [("claim_cursor", 1), ("read_acks", 1), ("read_acks", 2)]
)
def test_a_consumer_goes_on_behind_a_segment_that_is_deleted_while_it_takes_over(
    service: Service, monkeypatch: pytest.MonkeyPatch, request_name: str, number: int
) -> None:
    topic = service.topic()
    service.send(topic, "old")
    with service.client.consumer(topic, "s") as before:
        before.acknowledge(before.receive(timeout_ms=0))
    service.split(topic)
    service.send(topic, "kept")
    service.run.store.topics.change_property(
        topic, "__retention", Retention(size_bytes=0).serialize()
    )
    asked = getattr(RedisSubscriptionStore, request_name)
    requests = itertools.count(1)
    deleted: list[str] = []

    def beside(store: RedisSubscriptionStore, *args: Any, **kwargs: Any) -> Any:
        if next(requests) == number:
            deleted.extend(service.run.retention().sweep(lambda _: None).deleted)
        return asked(store, *args, **kwargs)

    monkeypatch.setattr(RedisSubscriptionStore, request_name, beside)
    with service.client.consumer(topic, "s") as consumer:
        assert drained(consumer) == ["kept"]
    [parent, *_] = service.run.topics.require(TopicName.parse(topic)).segments
    assert deleted == [parent.ref.id]


def test_a_consumer_that_goes_back_forgets_a_segment_that_is_deleted_meanwhile(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    service.send(topic, "old")
    with service.client.consumer(topic, "s") as consumer:
        consumer.acknowledge(consumer.receive(timeout_ms=0))
        service.split(topic)
        service.send(topic, "kept")
        assert drained(consumer) == ["kept"]
        service.run.store.topics.change_property(
            topic, "__retention", Retention(size_bytes=0).serialize()
        )
        read = RedisSubscriptionStore.read_acks
        deleted: list[str] = []

        def beside(store: RedisSubscriptionStore, *args: Any) -> Any:
            if not deleted:
                deleted.extend(service.run.retention().sweep(lambda _: None).deleted)
            return read(store, *args)

        monkeypatch.setattr(RedisSubscriptionStore, "read_acks", beside)
        consumer.redeliver_unacknowledged()
        assert drained(consumer) == ["kept"]
        assert len(deleted) == 1


def test_a_consumer_whose_subscription_is_deleted_while_it_takes_over_is_told(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    service.send(topic, "a")
    service.client.consumer(topic, "s").close()
    read = RedisSubscriptionStore.read_acks

    def beside(store: RedisSubscriptionStore, segment: str, name: str) -> Any:
        service.run.store.subscriptions.delete_cursor(segment, name)
        return read(store, segment, name)

    monkeypatch.setattr(RedisSubscriptionStore, "read_acks", beside)
    with pytest.raises(AcknowledgementConflictError, match="is not there"):
        service.client.consumer(topic, "s")


def test_a_segment_that_was_read_and_then_deleted_is_forgotten(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "p", key="k")
    consumer = service.client.consumer(topic, "s")
    [p] = take(consumer, 1)
    consumer.acknowledge(p)
    service.split(topic)
    service.send(topic, "c", key="k")
    assert texts(consumer, 1) == ["c"]
    service.delete_first_segment(topic)
    consumer.redeliver_unacknowledged()
    assert drained(consumer) == ["c"]
    consumer.close()
    with service.client.consumer(topic, "s") as again:
        assert drained(again) == ["c"]
    with service.client.consumer(topic, "new") as new:
        assert drained(new) == ["c"]


def test_a_segment_that_was_deleted_before_it_was_read_is_an_error(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a", key="k")
    consumer = service.client.consumer(topic, "s")
    [a] = take(consumer, 1)
    consumer.acknowledge(a)
    service.send(topic, "b", key="k")
    service.split(topic)
    service.delete_first_segment(topic)
    with pytest.raises(DataLossError, match="was deleted"):
        consumer.receive(timeout_ms=0)
    with pytest.raises(DataLossError, match="was deleted"):
        service.client.consumer(topic, "s")


def test_a_topic_that_was_made_anew_is_not_the_one_that_was_subscribed_to(
    service: Service,
) -> None:
    topic = service.topic()
    consumer = service.client.consumer(topic, "s")
    service.run.topics.delete(TopicName.parse(topic))
    Admin({"store.path": service.path}).create_topic(topic, segments=1)
    with pytest.raises(DataLossError, match="deleted and created again"):
        consumer.receive(timeout_ms=0)


def test_an_error_between_two_segments_loses_nothing_of_the_first(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic(2)
    keys = {hash_of(key.encode()) >> 15: key for key in map(str, range(20))}
    consumer = service.client.consumer(topic, "s")
    for key in keys.values():
        service.send(topic, f"to {key}", key=key)
    real = type(service.run.log).read
    reads = itertools.count()

    def read(*args: object, **options: object) -> object:
        if next(reads) == 1:
            raise errors.SegmentLogUnavailableError("the second segment does not answer")
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(service.run.log), "read", read)
    with pytest.raises(errors.SegmentLogUnavailableError):
        consumer.receive(timeout_ms=0)
    assert sorted(drained(consumer)) == sorted(f"to {key}" for key in keys.values())


# -- acknowledging ---------------------------------------------------------------------------------


def test_what_an_aborted_transaction_acknowledged_comes_again_in_order(service: Service) -> None:
    source, target = service.topic(), service.topic()
    service.send(source, "a", "b", "c", "d")
    consumer, producer = service.client.consumer(source, "s"), service.client.producer(target)
    with pytest.raises(ZeroDivisionError), service.client.new_txn() as txn:  # noqa: PT012 — its block fails
        for message in take(consumer, 3):
            producer.send(text(message).upper(), txn=txn)
            consumer.acknowledge(message, txn)
        raise ZeroDivisionError
    with service.client.new_txn() as txn:
        for message in take(consumer, 4):
            producer.send(text(message).upper(), txn=txn)
            consumer.acknowledge(message, txn)
    assert nothing_comes(consumer)
    assert service.visible(target) == ["A", "B", "C", "D"]
    consumer.close()
    with service.client.consumer(source, "s") as again:
        assert nothing_comes(again)


def test_single_messages_of_a_batch_are_acknowledged_and_the_rest_comes_again(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, *"abcdef")
    with service.client.consumer(topic, "s") as consumer:
        messages = take(consumer, 6)
        assert [m.position.batch_index for m in messages[:5]] == [0, 1, 2, 3, 4]
        with service.client.new_txn() as txn:
            consumer.acknowledge([messages[0], messages[1], messages[4]], txn)
        consumer.acknowledge(messages[2])
    with service.client.consumer(topic, "s") as consumer:
        d, f = take(consumer, 2)
        assert [text(d), text(f)] == ["d", "f"]
        with service.client.new_txn() as txn:
            consumer.acknowledge([d, f], txn)
    [cursor] = service.run.store.subscriptions.read_cursors([d.segment], "s")
    assert cursor is not None
    assert (cursor.position, cursor.taken) == (Position(1, 0), 0)


def test_two_transactions_cannot_acknowledge_the_same_message(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a", "b")
    consumer = service.client.consumer(topic, "s")
    a, b = take(consumer, 2)
    one, two = service.client.new_txn(), service.client.new_txn()
    consumer.acknowledge(a, one)
    consumer.acknowledge(a, one)  # again in the same one is no conflict
    with pytest.raises(AcknowledgementConflictError, match="which is open"):
        consumer.acknowledge(a, two)
    with pytest.raises(TransactionAbortedError, match="something in it failed"):
        two.commit()
    one.commit()
    late = service.client.new_txn()
    with pytest.raises(AcknowledgementConflictError, match="acknowledged already"):
        consumer.acknowledge(a, late)
    late.abort()
    consumer.acknowledge(b)
    consumer.acknowledge(b)  # outside of transactions it is no conflict
    assert nothing_comes(consumer)


@pytest.mark.parametrize("first", ["individual", "cumulative"])
@pytest.mark.parametrize("second", ["individual", "cumulative"])
def test_individual_and_cumulative_acknowledgements_conflict_across_transactions(
    service: Service, first: str, second: str
) -> None:
    topic = service.topic()
    service.send(topic, *"abcd")
    consumer = service.client.consumer(topic, "s")
    messages = take(consumer, 4)
    ways = {"individual": consumer.acknowledge, "cumulative": consumer.acknowledge_cumulative}
    one, two = service.client.new_txn(), service.client.new_txn()
    ways[first](messages[1], one)
    with pytest.raises(AcknowledgementConflictError):
        # Cumulatively also behind it: whatever is before the other one's is not to be eaten.
        ways[second](messages[1 if second == "individual" else 3], two)
    two.abort()
    one.commit()


def test_within_a_transaction_acknowledgements_add_up(service: Service) -> None:
    topic = service.topic()
    service.send(topic, *"abcdef")
    consumer = service.client.consumer(topic, "s")
    messages = take(consumer, 6)
    with service.client.new_txn() as txn:
        consumer.acknowledge(messages[1], txn)
        consumer.acknowledge_cumulative(messages[2], txn)
        consumer.acknowledge(messages[4], txn)
        consumer.acknowledge_cumulative(messages[3], txn)
        consumer.acknowledge_cumulative(messages[4], txn)
    consumer.close()
    with service.client.consumer(topic, "s") as again:
        assert drained(again) == ["f"]


def test_a_cumulative_acknowledgement_takes_what_was_received_before_in_every_segment(
    service: Service,
) -> None:
    topics = [service.topic(2), service.topic()]
    for number in range(12):
        service.send(topics[number % 2], f"m{number}", key=f"k{number}")
    consumer = service.client.consumer(topics, "s")
    messages = take(consumer, 12)
    with service.client.new_txn() as txn:
        consumer.acknowledge_cumulative(messages[8], txn)
    consumer.close()
    with service.client.consumer(topics, "s") as again:
        assert sorted(drained(again)) == sorted(map(text, messages[9:]))
        again.redeliver_unacknowledged()
        *_, last = take(again, 3)
        again.acknowledge_cumulative(last)
        with pytest.raises(AcknowledgementConflictError, match="acknowledged already"):
            again.acknowledge_cumulative(last)


def test_a_cumulative_acknowledgement_asks_nothing_of_segments_without_news(
    service: Service,
) -> None:
    topic = service.topic(4)
    for number in range(12):
        service.send(topic, f"m{number}", key=f"k{number}")
    consumer = service.client.consumer(topic, "s")
    *_, last = take(consumer, 12)
    consumer.acknowledge_cumulative(last)
    service.send(topic, "new", key="k1")
    [new] = take(consumer, 1)
    txn = service.client.new_txn()
    assert service.run.coordinator.status(txn.id) is TxnStatus.OPEN
    before = service.run.store.round_trips
    consumer.acknowledge_cumulative(new, txn)
    assert service.run.store.round_trips - before == 2, "the intent, and one acknowledgement"
    txn.commit()
    consumer.close()
    with service.client.consumer(topic, "s") as again:
        assert nothing_comes(again)


def test_an_aborted_cumulative_acknowledgement_eats_nothing_that_comes_later(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, *"abcdef")
    consumer = service.client.consumer(topic, "s")
    messages = take(consumer, 6)
    first = service.client.new_txn()
    consumer.acknowledge_cumulative(messages[2], first)
    first.abort()
    second = service.client.new_txn()
    with pytest.raises(AcknowledgementConflictError, match="went back to its cursor"):
        consumer.acknowledge_cumulative(messages[4], second)
    second.abort()
    assert texts(consumer, 3) == ["a", "b", "c"]
    [d] = take(consumer, 1)
    with service.client.new_txn() as third:
        consumer.acknowledge_cumulative(d, third)
    consumer.close()
    with service.client.consumer(topic, "s") as again:
        assert drained(again) == ["e", "f"]


def test_a_cumulative_acknowledgement_does_not_take_what_a_dead_transaction_gave_back(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, *"abc")
    consumer = service.client.consumer(topic, "s")
    a, b, c = take(consumer, 3)
    dead = service.client.new_txn()
    consumer.acknowledge([a, b], dead)
    # Somebody else ends it, and nobody has told this client yet.
    service.expire(dead)
    later = service.client.new_txn()
    with pytest.raises(AcknowledgementConflictError, match="was not acknowledged"):
        consumer.acknowledge_cumulative(c, later)
    later.abort()
    assert drained(consumer) == ["a", "b", "c"]
    with pytest.raises(TransactionAbortedError):
        dead.commit()


def test_a_message_that_is_refused_comes_again_before_those_not_received(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, *"abcd")
    consumer = service.client.consumer(topic, "s")
    a, b, _ = take(consumer, 3)
    with service.client.new_txn() as txn:
        consumer.acknowledge(a, txn)
        consumer.negative_acknowledge(a)  # acknowledged in a transaction: nothing happens
        consumer.negative_acknowledge(b)
        consumer.negative_acknowledge(b)
    assert drained(consumer) == ["b", "d"]
    consumer.redeliver_unacknowledged()
    assert drained(consumer) == ["b", "c", "d"]


def test_what_one_open_transaction_locks_is_not_delivered_when_another_one_aborts(
    service: Service,
) -> None:
    topic = service.topic()
    service.send(topic, *"abcd")
    consumer = service.client.consumer(topic, "s")
    a, b, c, _ = take(consumer, 4)
    one, two = service.client.new_txn(), service.client.new_txn()
    consumer.acknowledge(a, one)
    consumer.acknowledge(b, two)
    one.abort()
    assert texts(consumer, 1) == ["a"]
    consumer.acknowledge(c, two)  # of before the consumer went back, and lying ready again
    assert drained(consumer) == ["d"]
    two.abort()
    assert drained(consumer) == ["a", "b", "c", "d"]


def test_the_end_of_an_unknown_commit_is_found_out_by_the_consumer(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a")
    consumer = service.client.consumer(topic, "s")
    [a] = take(consumer, 1)
    with pytest.raises(CommitStateUnknownError), service.client.new_txn() as txn:  # noqa: PT012
        consumer.acknowledge(a, txn)
        service.lose(always={"txn_commit": Loss.REQUEST})
    service.mend()
    assert nothing_comes(consumer), "it may be committed"
    service.expire(txn)
    assert texts(consumer, 1) == ["a"]


# -- one consumer at a time ------------------------------------------------------------------------


def test_the_newest_consumer_of_a_subscription_takes_over(service: Service) -> None:
    source, target = service.topic(), service.topic()
    service.send(source, "a", "b")
    older = service.client.consumer(source, "s")
    a, b = take(older, 2)
    txn = service.client.new_txn()
    with service.client.producer(target) as producer:
        producer.send("of the older one", txn=txn)
    older.acknowledge(a, txn)
    other = service.another_process()
    newer = other.client.consumer(source, "s")
    # The older one's transaction is over at once, so that nobody waits for its lease.
    assert texts(newer, 2) == ["a", "b"]
    with pytest.raises(TransactionAbortedError, match="was aborted"):
        txn.commit()
    with pytest.raises(FencedError, match="taken over"):
        older.acknowledge(b)
    with pytest.raises(FencedError, match="taken over"):
        older.receive(timeout_ms=5_000)
    assert service.visible(target) == []
    other.client.close()


def test_a_consumer_that_waits_learns_that_it_was_taken_over(service: Service) -> None:
    topic = service.topic()
    older = service.client.consumer(topic, "s")
    found: list[BaseException] = []

    def receive() -> None:
        try:
            older.receive(timeout_ms=20_000)
        except FencedError as error:
            found.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    newer = service.client.consumer(topic, "s")
    thread.join(10)
    assert [type(error) for error in found] == [FencedError]
    newer.close()


def test_an_older_consumer_cannot_go_on_in_a_child_either(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "p", key="k")
    older = service.client.consumer(topic, "s")
    [p] = take(older, 1)
    newer = service.client.consumer(topic, "s")
    with pytest.raises(FencedError, match="taken over"):
        older.acknowledge_cumulative(p)
    service.split(topic)
    service.send(topic, "c", key="k")
    with pytest.raises(FencedError):
        older.receive(timeout_ms=1_000)
    assert texts(newer, 2) == ["p", "c"]


def test_a_subscription_that_was_reset_ends_its_consumer(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a")
    consumer = service.client.consumer(topic, "s")
    [a] = take(consumer, 1)
    Admin({"store.path": service.path}).reset_subscription(topic, "s", to="latest")
    with pytest.raises(AcknowledgementConflictError, match="belongs to nobody"):
        consumer.acknowledge(a)
    with pytest.raises(AcknowledgementConflictError, match="was reset"):
        consumer.receive(timeout_ms=0)
    with service.client.consumer(topic, "s") as again:
        assert nothing_comes(again)


def test_a_subscription_is_not_freed_over_messages_acknowledged_one_by_one(
    service: Service,
) -> None:
    topic = service.topic(2)
    service.send(topic, *"abc", key="k")
    consumer = service.client.consumer(topic, "s")
    a, b, c = take(consumer, 3)
    options = {"store.path": service.path}
    for message in (a, c):
        consumer.acknowledge(message)
        with pytest.raises(AcknowledgementConflictError, match="would deliver them again"):
            Admin(options).reset_subscription(topic, "s", to="here")
    consumer.acknowledge(b)
    Admin(options).reset_subscription(topic, "s", to="here")
    with service.client.consumer(topic, "s") as again:
        assert nothing_comes(again)


def test_a_subscription_of_a_query_is_refused_and_says_whose_it_is(service: Service) -> None:
    topic = service.topic()
    [segment] = service.run.topics.require(TopicName.parse(topic)).active
    service.run.store.subscriptions.claim_cursor(segment.ref.id, "s", "a-query-id", 1, EARLIEST)
    with pytest.raises(AcknowledgementConflictError, match="belongs to query a-query-id"):
        service.client.consumer(topic, "s")


def test_an_adopted_topic_may_go_on_under_its_old_name(service: Service) -> None:
    topic = service.topic()
    old = topic.replace("topic://", "persistent://")
    options = {"store.path": service.path, "domain.overrides": "public/default=topic"}
    with client.connect(options) as found:
        with found.producer(old) as producer, found.new_txn() as txn:
            producer.send("a", txn=txn)
        with found.consumer(old, "s") as consumer:
            assert text(consumer.receive(timeout_ms=5_000)) == "a"
    assert service.visible(topic) == ["a"]


# -- bad input -------------------------------------------------------------------------------------


def test_bad_arguments_are_refused_before_anything_is_sent(service: Service) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    with pytest.raises(SchemaError, match="value: expected bytes, text or None, found int"):
        producer.send(7)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="time zone"):
        producer.send("a", event_time=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(SchemaError, match="property 'a'"):
        producer.send("a", properties={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(OptionError, match="timeout_ms: expected a whole number from 1000 to"):
        service.client.new_txn(timeout_ms=10)
    with pytest.raises(TopicNotFoundError):
        service.client.producer("absent")
    with pytest.raises(TransactionDomainError):
        service.client.consumer("persistent://public/default/t", "s")
    with pytest.raises(OptionError, match="subscription: expected"):
        service.client.consumer(topic, "a b")
    with pytest.raises(OptionError, match="initial_position: expected one of earliest, latest"):
        service.client.consumer(topic, "s", "middle")
    with pytest.raises(OptionError, match="each once"):
        service.client.consumer([topic, topic], "s")
    with pytest.raises(OptionError, match=r"unknown option 'store\.pth'"):
        client.connect({"store.pth": "x"})
    with pytest.raises(OptionError, match="options: expected a mapping"):
        client.connect("orders-store")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"topic: expected a name such as .*found \['orders'\]"):
        service.client.producer(["orders"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"timeout_ms: expected .*found '1m' \(str\)"):
        service.client.new_txn("1m")  # type: ignore[arg-type]
    consumer = service.client.consumer(topic, "s")
    with pytest.raises(OptionError, match="at least 0"):
        consumer.receive(timeout_ms=-1)
    with pytest.raises(OptionError, match=r"timeout_ms: .* found '1s' \(str\)"):
        consumer.receive(timeout_ms="1s")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"message: expected one .*found None"):
        consumer.acknowledge(None)  # type: ignore[arg-type]
    assert service.visible(topic) == []


def test_messages_and_transactions_of_others_are_refused(service: Service) -> None:
    topic = service.topic()
    service.send(topic, "a")
    one, two = (service.client.consumer(topic, name) for name in ("one", "two"))
    [message] = take(one, 1)
    with pytest.raises(OptionError, match="each consumer acknowledges its own"):
        two.acknowledge(message)
    other = client.connect({"store.path": service.path})
    txn = other.new_txn()
    with pytest.raises(OptionError, match="a transaction of this client"):
        one.acknowledge(message, txn)
    producer: Producer = service.client.producer(topic)
    with pytest.raises(OptionError, match="a transaction of this client"):
        producer.send("b", txn=txn)
    other.close()


def test_a_forked_process_is_told_to_connect_anew(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = service.topic()
    producer, consumer = service.client.producer(topic), service.client.consumer(topic, "s")
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(AlreadyClosedError, match="Connect after the fork"):
            producer.send("a")
        # A thread of the parent has the lock, and is not there to release it.
        with consumer._receiving, pytest.raises(AlreadyClosedError, match="Connect after the fork"):
            consumer.receive(timeout_ms=1)
        service.client.close()  # what it shares with its parent is the parent's
    producer.send("b")
    assert service.visible(topic) == ["b"]


def test_several_threads_may_send_in_one_transaction(service: Service) -> None:
    topic = service.topic(2)
    producer = service.client.producer(topic)
    with service.client.new_txn() as txn, ThreadPoolExecutor(4) as pool:
        for number in range(200):
            pool.submit(producer.send, f"{number}", key=f"k{number % 7}", txn=txn)
    assert sorted(map(int, service.visible(topic))) == list(range(200))


def test_the_client_needs_no_spark() -> None:
    code = "import sys, pulsar_txn_spark.client; print('pyspark' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


# -- claims ----------------------------------------------------------------------------------------


def test_what_others_have_locked_is_left_out_of_a_cumulative_acknowledgement() -> None:
    def at(number: int) -> MessagePosition:
        return MessagePosition(1, number)

    one, two = TxnId(0, 1), TxnId(0, 2)
    claims = Claims()
    for number in (3, 4, 8):
        claims.add(AckInterval(at(number - 1), at(number)), one)
    claims.add(AckInterval(at(5), at(6)), two)
    whole = AckInterval(at(0), at(9))
    assert claims.left_of(whole, two) == [
        AckInterval(at(0), at(2)),
        AckInterval(at(4), at(7)),
        AckInterval(at(8), at(9)),
    ]
    assert claims.left_of(AckInterval(at(2), at(4)), two) == []
    assert [claims.contains(at(number)) for number in (2, 3, 4, 5, 6)] == [
        False, True, True, False, True,
    ]  # fmt: skip
    claims.drop(one)
    assert claims.left_of(whole, two) == [whole]


# -- the documentation -----------------------------------------------------------------------------


def test_the_example_of_the_documentation_prints_what_it_says(
    redis_path: str, redis_client: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    said = page.split("It prints `")[1].split("`")[0]
    code = code.replace('"orders-store"', repr(redis_path))
    exec(compile(code, "docs/client.md", "exec"), {})
    assert capsys.readouterr().out.strip() == said


def test_a_conflict_of_acknowledgements_ends_its_transaction_at_once(service: Service) -> None:
    topic, out = service.topic(), service.topic()
    service.send(topic, "a", "b")
    consumer, producer = service.client.consumer(topic, "s"), service.client.producer(out)
    a, b = take(consumer, 2)
    one, two = service.client.new_txn(), service.client.new_txn()
    consumer.acknowledge(a, one)
    producer.send("of two", txn=two)
    consumer.acknowledge(b, two)
    with pytest.raises(AcknowledgementConflictError, match="which is open"):
        consumer.acknowledge(a, two)
    assert two.status() is TxnStatus.ABORTED  # nobody waits for its lease
    assert two.ended
    for again in (two.commit, two.flush, lambda: consumer.acknowledge(b, two)):
        with pytest.raises(TransactionAbortedError, match="something in it failed"):
            again()
    two.abort()
    one.commit()
    assert drained(consumer) == ["b"]
    assert service.visible(out) == []


def test_a_block_whose_transaction_a_conflict_has_ended_does_not_seem_to_commit(
    service: Service,
) -> None:
    topic, out = service.topic(), service.topic()
    service.send(topic, "a")
    consumer, producer = service.client.consumer(topic, "s"), service.client.producer(out)
    [a] = take(consumer, 1)

    def block() -> None:
        with service.client.new_txn() as two:
            producer.send("of two", txn=two)
            with suppress(AcknowledgementConflictError):
                consumer.acknowledge(a, two)

    with service.client.new_txn() as one:
        consumer.acknowledge(a, one)
        with pytest.raises(TransactionAbortedError, match="something in it failed"):
            block()
    assert one.status() is TxnStatus.COMMITTED
    assert service.visible(out) == []


def test_a_block_whose_client_is_closed_meanwhile_does_not_seem_to_commit(
    service: Service,
) -> None:
    topic = service.topic()
    other = service.another_process()
    producer = other.client.producer(topic)

    def block() -> None:
        with other.client.new_txn() as txn:
            producer.send("a", txn=txn)
            txn.flush()
            closing = threading.Thread(target=other.client.close)
            closing.start()
            closing.join()

    with pytest.raises(TransactionAbortedError, match="its client was closed"):
        block()
    assert service.visible(topic) == []


def test_a_block_that_has_heard_how_its_transaction_ended_ends_quietly(service: Service) -> None:
    topic = service.topic()
    producer = service.client.producer(topic)
    with service.client.new_txn() as txn:
        producer.send("a", txn=txn)
        txn.abort()
    with service.client.new_txn() as txn:
        producer.send("b", txn=txn)
        txn.fail(ValueError("something was not sent"))
        with pytest.raises(TransactionAbortedError):
            txn.commit()
    with service.client.new_txn() as txn:
        producer.send("c", txn=txn)
        txn.commit()
    assert service.visible(topic) == ["c"]


def test_a_message_is_acknowledged_by_its_id_alone(service: Service) -> None:
    topic = service.topic()
    service.send(topic, *"abcdef")
    consumer = service.client.consumer(topic, "s")
    ids = [message.message_id for message in take(consumer, 6)]
    with service.client.new_txn() as txn:
        consumer.acknowledge(ids[1], txn)
        consumer.acknowledge([ids[3], ids[4]], txn)
    consumer.acknowledge_cumulative(ids[0])
    consumer.close()
    with service.client.consumer(topic, "s") as again:
        left = take(again, 2)
        assert [text(message) for message in left] == ["c", "f"]
        with pytest.raises(OptionError, match="Of an older one give the message itself"):
            again.acknowledge(ids[1])
        with service.client.new_txn() as txn:
            again.acknowledge_cumulative(left[1].message_id, txn)
        assert nothing_comes(again)


def test_ids_are_kept_of_the_latest_messages_only(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "IDS_KEPT", 2)
    topic = service.topic()
    service.send(topic, *"abc")
    consumer = service.client.consumer(topic, "s")
    a, b, c = take(consumer, 3)
    with pytest.raises(OptionError, match="one of the latest 2 messages"):
        consumer.acknowledge(a.message_id)
    consumer.acknowledge([a, b.message_id, c.message_id])
    assert nothing_comes(consumer)


def test_each_name_that_stands_for_one_of_pulsars_api_is_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
    table = page.partition("## From Pulsar's API")[2].partition("## ")[0]
    here = "".join(line.split("|")[2] for line in table.splitlines() if line.startswith("| `"))
    named = re.findall(r"`(\w+)\.(\w+)", here)
    assert len(named) >= 13
    for kind, member in named:
        assert hasattr(getattr(client, kind), member), f"{kind}.{member}"


# --- connections --------------------------------------------------------------------------------


def test_a_transaction_over_256_segments_needs_no_connection_for_each(service: Service) -> None:
    topic = service.topic(segments=256)
    values = [f"v{number}" for number in range(1500)]
    with service.client.producer(topic) as producer, service.client.new_txn() as txn:
        for value in values:
            producer.send(value, key=value, txn=txn)
    assert sorted(service.visible(topic)) == sorted(values)


def test_a_hundred_open_transactions_that_are_flushed_need_no_connection_each(
    service: Service,
) -> None:
    topic = service.topic(segments=1)
    txns = [service.client.new_txn() for _ in range(120)]
    with service.client.producer(topic) as producer:
        for number, txn in enumerate(txns):
            producer.send(f"v{number}", txn=txn)
            txn.flush()
        for txn in txns:
            txn.commit()
    assert len(service.visible(topic)) == len(txns)
