"""Writers of transactions take turns with producers, and each entry has its writer's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand, CommandSendReceipt
from pulsar_txn_spark.backends.pulsar.wire import connection
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS
from pulsar_txn_spark.backends.pulsar.wire.connection import wire_id
from pulsar_txn_spark.backends.pulsar.wire.opened_producer import SHARED_NAME
from pulsar_txn_spark.backends.pulsar.wire.reader import WireEntryFeed, WireReaderSettings
from pulsar_txn_spark.backends.pulsar.wire.transport import WireTransport
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import UnverifiedReceiptError
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.log import SegmentRef, SegmentWriter
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.support.fake_pulsar import Act, FakePulsar

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
OTHER = SegmentRef("s2", "topic://public/default/t", "persistent://public/default/s2")


class World:
    def __init__(self, broker: FakePulsar) -> None:
        self.broker = broker
        self.config = PulsarConfig(
            broker.url,
            "http://x",
            client=(("operationTimeoutMs", "5000"),),
            producer=(("batchingMaxMessages", "4"), ("sendTimeoutMs", "5000")),
            transport="wire",
        )
        self.transport = WireTransport(self.config)

    def writer(self, number: int, segment: SegmentRef = SEGMENT) -> SegmentWriter:
        name = writer_name(TxnId(0, number), 0, "aa")
        return self.transport.writer(segment, name, lambda _last: None)

    def producers(self) -> list[str]:
        """Return the names of the producers that were opened."""
        return [
            command.producer.producer_name
            for command in self.broker.heard
            if command.type == BaseCommand.PRODUCER
        ]

    def entries(self, segment: SegmentRef = SEGMENT) -> list[tuple[str, int]]:
        """Return the writer and the sequence id of each entry."""
        client = CLIENTS.acquire(self.config)
        feed = WireEntryFeed(segment, EARLIEST, client, WireReaderSettings(poll_s=0.01))
        found, previous = [], EARLIEST
        while (entry := feed.next_entry(previous)) is not None:
            previous = entry.position
            found.append((entry.producer_name, entry.metadata.sequence_id))
        feed.close()
        CLIENTS.release(self.config)
        return found

    def close_producers(self) -> None:
        """Take the topics away from their producers, and wait until those know it."""
        for peer in self.broker.peers:
            for number in list(peer._producers):
                peer.close_producer(number)
        self.await_answers()

    def await_answers(self) -> None:
        """Wait until all is known that the broker has said before."""
        self.broker.partitions["any"] = 0
        client = CLIENTS.acquire(self.config)
        assert client.partitions("any") == 0
        CLIENTS.release(self.config)


def rows(count: int = 1) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"row"] * count, pa.binary())})


def put(writer: SegmentWriter, count: int = 1) -> None:
    writer.append(rows(count))
    writer.flush()


def names(*numbers: int) -> list[str]:
    return [f"ptxn-0-{number}-0-aa" for number in numbers]


@pytest.fixture
def world(broker: FakePulsar) -> Iterator[World]:
    world = World(broker)
    yield world
    world.transport.release()


def test_writers_use_a_producer_one_after_the_other_with_ascending_sequence_ids(
    world: World,
) -> None:
    for number in range(3):
        writer = world.writer(number)
        put(writer, 8)
        writer.close()
    [producer] = world.producers()
    assert producer.startswith(SHARED_NAME)
    assert world.entries() == list(zip(names(0, 0, 1, 1, 2, 2), range(6), strict=True))
    assert world.broker.count(BaseCommand.CLOSE_PRODUCER) == 0


def test_writers_of_one_moment_and_of_other_topics_have_producers_of_their_own(
    world: World,
) -> None:
    first, second, other = world.writer(1), world.writer(2), world.writer(3, OTHER)
    for writer in (first, second, other):
        put(writer)
    assert len(set(world.producers())) == 3
    for writer in (first, second, other):
        writer.close()
    again = [world.writer(4), world.writer(5), world.writer(6, OTHER)]
    for writer in again:
        put(writer)
        writer.close()
    assert len(world.producers()) == 3
    assert sorted(writer for writer, _ in world.entries()) == names(1, 2, 4, 5)
    assert [writer for writer, _ in world.entries(OTHER)] == names(3, 6)


def test_a_writer_outside_of_transactions_has_a_producer_of_its_name(world: World) -> None:
    for _ in range(2):
        writer = world.transport.writer(SEGMENT, "plain", lambda _last: None)
        put(writer)
        writer.close()
    assert world.producers() == ["plain", "plain"]


def test_a_producer_is_not_used_again_while_an_entry_has_no_receipt(world: World) -> None:
    world.broker.on_send = lambda sequence, _name: "silent" if sequence == 1 else None
    writer = world.writer(1)
    put(writer)
    writer.append(rows())
    writer.send()
    world.broker.await_heard(BaseCommand.SEND, 2)
    writer.close()
    world.broker.await_heard(BaseCommand.CLOSE_PRODUCER)
    put(world.writer(2))
    assert len(set(world.producers())) == 2


def test_a_producer_is_not_used_again_after_a_failure(world: World) -> None:
    writer = world.writer(1)
    put(writer)
    [peer] = world.broker.peers
    [number] = peer._producers
    receipt = CommandSendReceipt(
        producer_id=number, sequence_id=0, message_id=wire_id(world.broker.ledger, 5)
    )
    peer.say(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt))
    world.await_answers()
    with pytest.raises(UnverifiedReceiptError, match="receipt of entry None, found 0"):
        put(writer)
    writer.close()
    world.broker.await_heard(BaseCommand.CLOSE_PRODUCER)
    put(world.writer(2))
    assert len(set(world.producers())) == 2


@pytest.mark.parametrize("kind", ["closed", "cut"])
def test_a_producer_that_was_lost_while_it_waited_is_not_used_again(
    world: World, kind: str
) -> None:
    writer = world.writer(1)
    put(writer)
    writer.close()
    if kind == "cut":
        client = CLIENTS.acquire(world.config)
        connection = client.any_connection()
        world.broker.peers[-1].cut()
        connection._thread.join(5)
        assert not connection.usable
        CLIENTS.release(world.config)
    else:
        world.close_producers()
    put(world.writer(2))
    assert len(set(world.producers())) == 2
    assert [writer for writer, _ in world.entries()] == names(1, 2)


def test_a_producer_that_is_lost_before_its_next_writer_sends_is_opened_again(
    world: World,
) -> None:
    writer = world.writer(1)
    put(writer)
    writer.close()
    writer = world.writer(2)
    world.close_producers()
    put(writer)
    put(writer)
    assert [writer for writer, _ in world.entries()] == names(1, 2, 2)
    first, again = world.producers()
    assert first == again


class Snapshot(dict[str, int]):
    """What a topic's next broker knows of sequence ids: it reads the later ones from entries."""

    def __setitem__(self, name: str, number: int) -> None:
        del name, number


def test_the_next_broker_proves_nothing_of_entries_under_another_name(world: World) -> None:
    writer = world.writer(1)
    put(writer)
    topic = world.broker.topic(SEGMENT.log_name)
    topic.stored = Snapshot(topic.stored)

    def cut_once(sequence: int, _name: str) -> Act:
        return "store-cut" if sequence == 1 and len(topic.entries) == 1 else None

    world.broker.on_send = cut_once
    with pytest.raises(UnverifiedReceiptError, match="no broker can prove one"):
        put(writer)
    assert world.entries() == [(names(1)[0], 0), (names(1)[0], 1)]  # nothing went out again


def open_writer(world: World) -> None:
    world.writer(1)


def open_reader(world: World) -> None:
    client = CLIENTS.acquire(world.config)
    try:
        WireEntryFeed(SEGMENT, EARLIEST, client, WireReaderSettings(poll_s=0.01))
    finally:
        CLIENTS.release(world.config)


@pytest.mark.parametrize(
    "opening, opened, closing",
    [
        (open_writer, BaseCommand.PRODUCER_SUCCESS, BaseCommand.CLOSE_PRODUCER),
        (open_reader, BaseCommand.SUCCESS, BaseCommand.CLOSE_CONSUMER),
    ],
    ids=["producer", "reader"],
)
def test_who_is_interrupted_while_it_opens_leaves_nothing_open(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    opening: Callable[[World], None],
    opened: BaseCommand.Type,
    closing: BaseCommand.Type,
) -> None:
    wait = connection._Waiter.wait

    def interrupted(waiter: connection._Waiter, timeout_s: float) -> BaseCommand:
        answer = wait(waiter, timeout_s)
        if answer.type == opened:
            raise KeyboardInterrupt
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(connection._Waiter, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            opening(world)
    world.await_answers()
    assert world.broker.count(closing) == 1
