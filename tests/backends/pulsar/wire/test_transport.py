"""Connection, producer and reader of the wire transport against a broker in this process."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructType

from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPing,
    CommandPong,
    CommandSend,
    CommandSendError,
    EncryptionKeys,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsar_txn_spark.backends.pulsar.transport import choose
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire import batch
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS, WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import Connection, RefusedError
from pulsar_txn_spark.backends.pulsar.wire.frames import encode_command, encode_send
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.backends.pulsar.wire.reader import (
    EntryRows,
    WireEntry,
    WireEntryFeed,
    WireReaderSettings,
)
from pulsar_txn_spark.backends.pulsar.wire.settings import ConnectionSettings, parse_addresses
from pulsar_txn_spark.backends.pulsar.wire.transport import WireTransport
from pulsar_txn_spark.config import PulsarConfig, as_pairs
from pulsar_txn_spark.errors import (
    FencedError,
    MessageTooLargeError,
    OptionError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentSealedError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import READ_SCHEMA, Receipt, SegmentRef
from pulsar_txn_spark.segments.topology import KEY_GROUPS, hash_of
from pulsar_txn_spark.spark.rows import RowOrigin, needed_columns, to_spark_batches
from tests.support.fake_pulsar import LEDGER, TERMINATED, Act, FakePulsar, Peer

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
NOT_ALLOWED = 22
PERSISTENCE = 2  # what the broker says of a topic that is fenced
SMALL = WireWriterSettings(entry_rows=4, timeout_s=5)


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def settings_of(broker: FakePulsar, **options: str) -> ConnectionSettings:
    config = PulsarConfig(broker.url, "http://x", client=as_pairs(options))
    return replace(ConnectionSettings.of(config), operation_s=5, connect_s=5)


@pytest.fixture
def client(broker: FakePulsar) -> Iterator[WireClient]:
    client = WireClient(settings_of(broker))
    yield client
    client.close()


def writer_on(
    client: WireClient,
    settings: WireWriterSettings = SMALL,
    name: str = "w",
    bits: TxnBits | None = None,
    *,
    gated: bool = False,
    native: bool = False,
) -> WireSegmentWriter:
    return WireSegmentWriter(
        SEGMENT,
        name,
        client,
        settings,
        before_report=lambda _last: None,
        bits=bits,
        gated=gated,
        native=native,
    )


def writer_at(broker: FakePulsar, opened: contextlib.ExitStack) -> WireSegmentWriter:
    """Return a writer of a client of its own."""
    client = WireClient(settings_of(broker))
    opened.callback(client.close)
    return writer_on(client, name="elsewhere")


def put_through(writer: WireSegmentWriter, rows: pa.RecordBatch) -> None:
    writer.append(rows)  # may raise already what the flush would
    writer.flush()


def numbered(count: int, start: int = 0) -> pa.RecordBatch:
    values = [b"%06d" % number for number in range(start, start + count)]
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def read(
    client: WireClient,
    start: Position = EARLIEST,
    columns: frozenset[str] = frozenset({"value"}),
) -> list[Any]:
    def entries(start: Position, end: Position) -> Iterator[WireEntry]:
        feed = WireEntryFeed(SEGMENT, start, client, WireReaderSettings(poll_s=0.01))
        previous = start
        while (entry := feed.next_entry(previous)) is not None and entry.position < end:
            previous = entry.position
            yield entry
        feed.close()

    rows = EntryRows(columns, 1000, SEGMENT, entries)
    for entry in entries(start, Position(LEDGER + 1, 0)):
        rows.add(entry)
    return [row for found in rows.batches(everything=True) for row in found.to_pylist()]


def values(found: list[Any]) -> list[bytes]:
    return [row["value"] for row in found]


def expected(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def once(sequence_id: int, act: Act) -> Callable[[int, str], Act]:
    done: list[int] = []

    def choose(found: int, _name: str) -> Act:
        if found == sequence_id and not done:
            done.append(found)
            return act
        return None

    return choose


# --- writing --------------------------------------------------------------------------------------


def test_the_transaction_bits_stand_in_the_command_and_in_the_entry_after_a_reconnect_too(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_send = once(1, "cut")
    writer = writer_on(client, bits=TxnBits(1 << 62, 7), native=True)
    put_through(writer, numbered(8))
    sent = [command.send for command in broker.heard if command.type == BaseCommand.SEND]
    assert len(sent) >= 2
    assert {(send.txnid_most_bits, send.txnid_least_bits) for send in sent} == {(1 << 62, 7)}
    feed = WireEntryFeed(SEGMENT, EARLIEST, client, WireReaderSettings(poll_s=0.01))
    entry = feed.next_entry(EARLIEST)
    assert entry is not None
    metadata = entry.metadata
    assert (metadata.txnid_most_bits, metadata.txnid_least_bits) == (1 << 62, 7)
    feed.close()


def entries_of(client: WireClient) -> list[tuple[bytes | None, list[bytes | None]]]:
    """Return each entry's ordering key, and the keys of its rows."""
    feed = WireEntryFeed(SEGMENT, EARLIEST, client, WireReaderSettings(poll_s=0.01))
    found = []
    previous = EARLIEST
    while (entry := feed.next_entry(previous)) is not None:
        previous = entry.position
        metadata = entry.metadata
        rows = batch.decode(bytes(entry.payload), metadata.num_messages_in_batch).to_pylist()
        ordering = metadata.ordering_key if metadata.HasField("ordering_key") else None
        own: list[bytes | None] = [row.get("key") for row in rows]
        found.append((ordering, own))
    feed.close()
    return found


@pytest.mark.parametrize("bits", [TxnBits(1 << 62, 7), None], ids=["in a transaction", "outside"])
def test_an_entry_of_a_gated_segment_has_keys_of_one_group_and_the_group_as_its_ordering_key(
    broker: FakePulsar, client: WireClient, bits: TxnBits | None
) -> None:
    keys = [None, *(b"%d" % (number % 5) for number in range(40)), None]
    rows = pa.record_batch({"value": pa.array(keys), "key": pa.array(keys, pa.binary())})
    put_through(writer_on(client, bits=bits, gated=True), rows)
    found = entries_of(client)
    # In the order in which they came, as receipts prove a prefix.
    assert [key for _, own in found for key in own] == keys
    for ordering, own in found:
        groups = {None if key is None else b"%d" % (hash_of(key) % KEY_GROUPS) for key in own}
        assert groups == {ordering}
    assert len({ordering for ordering, _ in found}) > 2


@pytest.mark.parametrize("native", [False, True])
def test_entries_of_other_segments_and_of_native_topics_have_rows_of_all_keys(
    client: WireClient, native: bool
) -> None:
    keys: list[bytes | None] = [b"a", b"b", b"a"]
    rows = pa.record_batch({"value": pa.array(keys), "key": pa.array(keys, pa.binary())})
    bits = TxnBits(1 << 62, 7) if native else None
    put_through(writer_on(client, WireWriterSettings(), bits=bits, native=native), rows)
    assert entries_of(client) == [(None, keys)]


def test_a_writer_without_bits_sends_none(broker: FakePulsar, client: WireClient) -> None:
    put_through(writer_on(client), numbered(1))
    (sent,) = (command.send for command in broker.heard if command.type == BaseCommand.SEND)
    assert not sent.HasField("txnid_most_bits")
    assert not sent.HasField("txnid_least_bits")


@pytest.mark.parametrize(
    "detail, error",
    [
        ("pulsar_txn_spark FENCED: an entry is refused", FencedError),
        ("pulsar_txn_spark UNAVAILABLE: an entry is refused", SegmentLogUnavailableError),
        ("pulsar_txn_spark INVALID: an entry is refused", SegmentLogError),
    ],
)
def test_what_a_gating_broker_refuses_has_an_error_of_its_own(
    broker: FakePulsar, client: WireClient, detail: str, error: type[Exception]
) -> None:
    broker.on_send = once(0, (NOT_ALLOWED, detail))
    writer = writer_on(client, name="ptxn-0-1-0-aa", bits=TxnBits(1 << 62, 1))
    with pytest.raises(error, match="an entry is refused") as refused:
        put_through(writer, numbered(1))
    assert refused.type is error


def test_rows_go_out_in_entries_and_every_receipt_is_summed_up(client: WireClient) -> None:
    writer = writer_on(client)
    writer.append(numbered(10))
    assert writer.flush() == Receipt(Position(LEDGER, 0), Position(LEDGER, 2), 3, 10, 60)
    assert writer.flush() == Receipt(None, None, 0, 0, 0)
    writer.append(numbered(1, 10))
    assert writer.flush() == Receipt(Position(LEDGER, 3), Position(LEDGER, 3), 1, 1, 6)
    assert values(read(client)) == expected(11)
    assert client.in_flight.bytes == 0


@pytest.mark.parametrize("kind", ["cut", "close"])
def test_a_resend_follows_where_the_broker_shows_that_nothing_of_it_was_stored(
    broker: FakePulsar, client: WireClient, kind: str
) -> None:
    writer = writer_on(client)
    writer.append(numbered(4))
    writer.flush()
    broker.on_send = once(1, kind)
    writer.append(numbered(40, 4))
    assert writer.flush().messages == 40
    assert values(read(client)) == expected(44)


@pytest.mark.parametrize("kind", ["store-cut", "store-close"])
def test_an_entry_that_was_stored_without_a_receipt_fails_the_attempt(
    broker: FakePulsar, client: WireClient, kind: str
) -> None:
    writer = writer_on(client)
    writer.append(numbered(4))
    writer.flush()
    broker.on_send = once(1, kind)
    with pytest.raises(UnverifiedReceiptError, match=r"sequence id 0 last, found [12]"):
        put_through(writer, numbered(8, 4))
    stored = [body for body, _ in broker.topic(SEGMENT.log_name).entries]
    assert len(stored) == len(set(stored))  # nothing went out again
    with pytest.raises(UnverifiedReceiptError):
        writer.append(numbered(1))


@pytest.mark.parametrize("acknowledged", [0, 1])
def test_a_broker_that_does_not_deduplicate_gets_nothing_again(
    broker: FakePulsar, client: WireClient, acknowledged: int
) -> None:
    broker.deduplicates = False
    writer = writer_on(client)
    if acknowledged:
        writer.append(numbered(4))
        writer.flush()
    broker.on_send = once(acknowledged, "store-cut")
    why = "found -1. The producer was lost by Disconnected: .*closed the connection"
    with pytest.raises(UnverifiedReceiptError, match=why):
        put_through(writer, numbered(4))
    assert len(broker.topic(SEGMENT.log_name).entries) == 1 + acknowledged


def test_a_writer_with_nothing_in_flight_survives_a_cut(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client)
    for start in range(0, 12, 4):
        writer.append(numbered(4, start))
        writer.flush()
        broker.peers[-1].cut()
    assert values(read(client)) == expected(12)


@pytest.mark.parametrize("kind", ["cut", "close"])
def test_a_writer_with_transaction_bits_does_not_go_on_at_another_broker(
    broker: FakePulsar, client: WireClient, kind: str
) -> None:
    """One without the plug-in would never end what has bits, and block its readers."""
    writer = writer_on(client, bits=TxnBits(1 << 62, 7), gated=True)
    put_through(writer, numbered(4))
    if kind == "cut":
        broker.peers[-1].cut()
    else:
        [number] = broker.peers[-1]._producers
        broker.peers[-1].close_producer(number)
    with client.in_flight.changed:
        assert client.in_flight.changed.wait_for(lambda: writer._producer.lost is not None, 5)
    sent = broker.count(BaseCommand.SEND)
    with pytest.raises(UnverifiedReceiptError, match="0 entries have no receipt"):
        put_through(writer, numbered(4))
    assert broker.count(BaseCommand.SEND) == sent


@pytest.mark.parametrize("bits", [None, TxnBits(1 << 62, 7)])
def test_a_lost_producer_is_not_opened_again_where_every_row_has_a_receipt(
    broker: FakePulsar, client: WireClient, bits: TxnBits | None
) -> None:
    writer = writer_on(client, bits=bits, gated=bits is not None)
    put_through(writer, numbered(4))
    broker.peers[-1].cut()
    with client.in_flight.changed:
        assert client.in_flight.changed.wait_for(lambda: writer._producer.lost is not None, 5)
    assert writer.flush() == Receipt(None, None, 0, 0, 0)
    assert writer.acknowledged().messages == 4
    assert broker.count(BaseCommand.PRODUCER) == 1


def test_a_receipt_of_a_duplicate_is_no_acknowledgement(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_send = once(0, "duplicate")
    writer = writer_on(client)
    with pytest.raises(UnverifiedReceiptError, match="deduplicated"):
        put_through(writer, numbered(4))


def test_a_receipt_out_of_turn_is_no_acknowledgement(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_send = once(0, "silent")
    writer = writer_on(client)
    with pytest.raises(UnverifiedReceiptError, match="receipt of entry 0, found 1"):
        put_through(writer, numbered(8))


def test_a_segment_that_was_sealed_says_so_on_opening_and_on_sending(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client)
    broker.on_send = once(0, (TERMINATED, "terminated"))
    with pytest.raises(SegmentSealedError):
        put_through(writer, numbered(4))
    other = writer_on(client, name="other")
    broker.topic(SEGMENT.log_name).terminated = True
    broker.on_send = once(0, "close")
    with pytest.raises(SegmentSealedError):
        put_through(other, numbered(4))
    with pytest.raises(SegmentSealedError):
        writer_on(client, name="third")


def test_a_topic_that_is_fenced_is_opened_again_to_hear_whether_it_was_sealed(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client)
    writer.append(numbered(4))
    writer.flush()
    broker.on_send = once(1, (PERSISTENCE, "fenced"))
    writer.append(numbered(4, 4))
    assert writer.flush().messages == 4
    assert values(read(client)) == expected(8)

    def seal(_number: int, _name: str) -> Act:
        broker.topic(SEGMENT.log_name).terminated = True
        return (PERSISTENCE, "fenced")

    broker.on_send = seal
    with pytest.raises(SegmentSealedError):
        put_through(writer, numbered(4, 8))


def test_what_a_broker_still_says_of_the_old_producer_is_not_taken_for_the_new_ones(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client)
    writer.append(numbered(4))
    writer.flush()
    opened_early: list[bool] = []

    def answer_late(peer: Peer, closing: CommandCloseProducer) -> bool:
        def answer() -> None:
            with broker.changed:  # who does not wait for the answer opens the next one at once
                early = broker.changed.wait_for(lambda: broker.count(BaseCommand.PRODUCER) > 1, 0.3)
            opened_early.append(early)
            error = CommandSendError(
                producer_id=closing.producer_id, sequence_id=1, error=0, message="too late"
            )
            peer.say(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=error))
            peer.succeed(closing.request_id)

        threading.Thread(target=answer, daemon=True).start()
        return False

    broker.on_close = answer_late
    broker.on_send = once(1, (PERSISTENCE, "fenced"))
    writer.append(numbered(4, 4))
    assert writer.flush().messages == 4
    assert opened_early == [False]
    assert values(read(client)) == expected(8)


@pytest.mark.parametrize("close", ["never answered", "refused"])
def test_a_producer_that_cannot_be_closed_is_opened_again_all_the_same(
    broker: FakePulsar, client: WireClient, close: str
) -> None:
    writer = writer_on(client, replace(SMALL, timeout_s=2))
    writer.append(numbered(4))
    writer.flush()
    if close == "refused":
        broker.refuses[BaseCommand.CLOSE_PRODUCER] = [(0, "not registered on the connection")]
    else:
        broker.on_close = lambda _peer, _closing: False
    broker.on_send = once(1, (PERSISTENCE, "fenced"))
    writer.append(numbered(4, 4))
    assert writer.flush().messages == 4
    assert values(read(client)) == expected(8)


def test_a_topic_that_opens_and_takes_nothing_is_given_up(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client)
    writer.append(numbered(4))
    writer.flush()
    broker.on_send = lambda *_: (PERSISTENCE, "fenced")
    with pytest.raises(SegmentLogUnavailableError, match="fenced"):
        put_through(writer, numbered(4, 4))


def test_a_broker_names_its_limit_to_whoever_connects(
    broker: FakePulsar, client: WireClient
) -> None:
    assert client.max_message_bytes() == broker.max_message_bytes


def test_an_entry_that_is_damaged_on_its_way_fails_the_attempt(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_send = once(0, (9, "checksum"))
    writer = writer_on(client)
    with pytest.raises(UnverifiedReceiptError, match="damaged"):
        put_through(writer, numbered(4))


def test_a_message_larger_than_the_broker_takes_is_refused_before_it_is_sent(
    broker: FakePulsar, client: WireClient
) -> None:
    # A bookie's frame is no larger than the broker's limit, unless it is told otherwise.
    for size in (1 << 20, (1 << 20) - 100, (1 << 20) - 1024):
        writer = writer_on(client)
        with pytest.raises(MessageTooLargeError, match=str(broker.max_message_bytes)):
            put_through(writer, pa.record_batch({"value": pa.array([b"x" * size], pa.binary())}))
    assert broker.count(BaseCommand.SEND) == 0
    fits = pa.record_batch({"value": pa.array([b"x" * ((1 << 20) - 1200)], pa.binary())})
    put_through(writer_on(client), fits)


def test_a_broker_that_says_nothing_fails_the_writer_in_time(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_send = lambda _sequence, _name: "silent"
    writer = writer_on(client, replace(SMALL, timeout_s=0.2))
    with pytest.raises(SegmentLogUnavailableError, match="Timeout"):
        put_through(writer, numbered(4))


def test_what_is_in_flight_is_bounded_over_all_writers(
    broker: FakePulsar, client: WireClient
) -> None:
    most: list[int] = []
    gate = threading.Event()

    def hold(_sequence: int, _name: str) -> Act:
        most.append(client.in_flight.bytes)
        gate.wait(0.01)
        return None

    broker.on_send = hold
    settings = WireWriterSettings(entry_bytes=10_000, in_flight_bytes=40_000, timeout_s=5)
    writers = [writer_on(client, settings, name) for name in ("a", "b")]
    rows = pa.record_batch({"value": pa.array([b"x" * 1000] * 100, pa.binary())})
    for writer in writers:
        writer.append(rows)
        writer.append(rows)
    assert sum(writer.flush().messages for writer in writers) == 400
    assert max(most) < 40_000 + 2 * 11_000
    assert client.in_flight.bytes == 0


def test_a_name_that_is_still_taken_is_tried_again(broker: FakePulsar, client: WireClient) -> None:
    broker.refuses[BaseCommand.PRODUCER] = [(16, "busy"), (6, "not ready")]
    writer = writer_on(client)
    writer.append(numbered(1))
    assert writer.flush().messages == 1


@pytest.mark.parametrize(
    "error, detail, result",
    [
        (1, "Encryption is required in persistent://a/b/c", "BrokerMetadataError"),
        (16, "Producer with name 'w' is already connected", "Retryable"),
    ],
)
def test_a_reason_that_the_broker_gives_is_not_taken_for_silence(
    broker: FakePulsar, error: int, detail: str, result: str
) -> None:
    broker.refuses[BaseCommand.PRODUCER] = [(error, detail)] * 100
    client = WireClient(replace(settings_of(broker), operation_s=0.1))
    with pytest.raises(SegmentLogUnavailableError) as raised:
        writer_on(client, replace(SMALL, timeout_s=0.1))
    assert f"see what it said ({result}: {detail})" in str(raised.value)
    assert "did not answer" not in str(raised.value)
    client.close()


def test_a_backlog_quota_of_an_ordinary_topic_is_not_called_that_of_a_segment(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.refuses[BaseCommand.PRODUCER] = [(7, "exceeded")]
    with pytest.raises(SegmentLogUnavailableError, match=r"Segments are created without one \("):
        writer_on(client)


@pytest.mark.parametrize("host", ["broker..example.com", "x" * 64])
def test_a_host_whose_name_is_none_is_named(host: str) -> None:
    config = PulsarConfig(f"pulsar://{host}:6650", "http://x")
    (address,) = ConnectionSettings.of(config).addresses
    with pytest.raises(RefusedError, match=rf"ConnectError.*{host}:6650: .*label"):
        Connection(ConnectionSettings.of(config), address)


def test_a_writer_that_is_closed_leaves_nothing_behind(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_send = lambda _sequence, _name: "silent"
    writer = writer_on(client)
    writer.append(numbered(4))
    writer.close()
    writer.close()
    broker.await_heard(BaseCommand.CLOSE_PRODUCER)
    assert client.in_flight.bytes == 0
    with pytest.raises(SegmentLogError, match="closed"):
        writer.append(numbered(1))


@pytest.mark.parametrize("compression", range(5))
def test_compressed_entries_come_back(client: WireClient, compression: int) -> None:
    writer = writer_on(client, replace(SMALL, compression=compression))
    writer.append(numbered(10))
    writer.flush()
    assert values(read(client)) == expected(10)


# --- reading --------------------------------------------------------------------------------------


def test_a_range_begins_behind_its_start_and_knows_where_each_row_stood(
    client: WireClient,
) -> None:
    writer = writer_on(client)
    writer.append(numbered(12))
    writer.flush()
    found = read(client, Position(LEDGER, 1), columns=frozenset(READ_SCHEMA.names))
    assert values(found) == expected(12)[8:]
    assert [(row["entry"], row["batch_index"], row["batch_size"]) for row in found] == [
        (2, index, 4) for index in range(4)
    ]
    assert read(client, Position(LEDGER, 2)) == []


@pytest.mark.parametrize("cut", ["connection", "subscription"])
def test_a_reader_goes_on_where_it_was_cut_off(
    broker: FakePulsar, client: WireClient, cut: str
) -> None:
    writer = writer_on(client)
    writer.append(numbered(400))
    writer.flush()
    if cut == "connection":
        broker.cut_after_deliveries = 3
        assert values(read(client)) == expected(400)
        assert broker.count(BaseCommand.SUBSCRIBE) == 2
        return
    settings = WireReaderSettings(poll_s=0.01, max_permits=4)
    feed = WireEntryFeed(SEGMENT, EARLIEST, client, settings)
    first = feed.next_entry(EARLIEST)
    assert first is not None
    broker.peers[-1].close_consumers()
    rows = EntryRows(frozenset({"value"}), 1000, SEGMENT, lambda _start, _end: iter(()))
    rows.add(first)
    previous = first.position
    while (entry := feed.next_entry(previous)) is not None:
        previous = entry.position
        rows.add(entry)
    (found,) = rows.batches(everything=True)
    assert values(found.to_pylist()) == expected(400)


def test_prefetched_bytes_are_bounded_even_where_sizes_jump(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client, WireWriterSettings(entry_rows=1, timeout_s=5))
    large = pa.record_batch({"value": pa.array([b"x" * 50_000] * 40, pa.binary())})
    writer.append(numbered(200))
    writer.append(large)
    writer.flush()
    settings = WireReaderSettings(budget_bytes=50_000, poll_s=0.01)
    feed = WireEntryFeed(SEGMENT, EARLIEST, client, settings)
    most, previous, count = 0, EARLIEST, 0
    while (entry := feed.next_entry(previous)) is not None:
        previous, count = entry.position, count + 1
        most = max(most, feed._subscription._buffered_bytes)
    assert count == 240
    assert most <= 4 * 50_000
    assert broker.count(BaseCommand.SUBSCRIBE) > 1  # the jump was misjudged, and survived


def put(broker: FakePulsar, metadata: MessageMetadata, payload: bytes) -> None:
    frame = b"".join(
        encode_send(
            BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=0, sequence_id=0)),
            metadata,
            payload,
        )
    )
    command = int.from_bytes(frame[4:8])
    broker.topic(SEGMENT.log_name).entries.append((frame[8 + command :], 1))


def metadata(**fields: Any) -> MessageMetadata:
    given: dict[str, Any] = {"producer_name": "java", "sequence_id": 0, "publish_time": 5}
    return MessageMetadata(**given | fields)


def permits_of(broker: FakePulsar) -> list[int]:
    return [c.flow.messagePermits for c in broker.heard if c.type == BaseCommand.FLOW]


def test_a_feed_of_a_short_range_fetches_one_entry_until_it_is_read(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client)
    put_through(writer, numbered(12))  # three entries
    feed = WireEntryFeed(
        SEGMENT, EARLIEST, client, WireReaderSettings(poll_s=0.01, budget_bytes=1), entries=3
    )
    broker.await_heard(BaseCommand.FLOW)
    previous, positions = EARLIEST, []
    while (entry := feed.next_entry(previous)) is not None:
        positions.append(previous := entry.position)
    feed.close()
    assert positions == [Position(LEDGER, entry) for entry in range(3)]
    assert permits_of(broker)[0] == 1


@pytest.mark.parametrize("entries", [0, 3], ids=["long", "short"])
def test_a_reader_that_begins_behind_the_last_entry_is_sent_only_what_comes_later(
    broker: FakePulsar, client: WireClient, entries: int
) -> None:
    # Such a broker has lost the topic to another one, or has lost entries.
    for number in range(20):
        put(broker, metadata(), b"%d" % number)
    for ledger, entry in ((LEDGER, 30), (LEDGER + 1, -1)):
        start = Position(ledger, entry)
        feed = WireEntryFeed(
            SEGMENT, start, client, WireReaderSettings(poll_s=0.05), entries=entries
        )
        assert feed.next_entry(start) is None
        assert feed._behind == start, "nothing came"
        feed.leave()
    feed = WireEntryFeed(SEGMENT, Position(LEDGER, 19), client, WireReaderSettings(poll_s=0.05))
    assert feed.next_entry(Position(LEDGER, 19)) is None
    put(broker, metadata(), b"20")
    broker.peers[-1].deliver(feed._subscription.number)
    entry_20 = feed.next_entry(Position(LEDGER, 19))
    assert entry_20 is not None
    assert bytes(entry_20.payload) == b"20"
    feed.leave()


def test_entries_that_are_not_wanted_do_not_keep_a_reader_waiting(
    broker: FakePulsar, client: WireClient
) -> None:
    for number in range(20):
        put(broker, metadata(), b"%d" % number)
    feed = WireEntryFeed(SEGMENT, EARLIEST, client, WireReaderSettings(timeout_s=-1.0))
    with pytest.raises(SegmentLogUnavailableError, match="Timeout"):
        feed.next_entry(Position(LEDGER, 10))
    assert feed._behind < Position(LEDGER, 10)
    feed.leave()


def test_nothing_is_granted_behind_the_last_entry_that_is_asked_for(
    broker: FakePulsar, client: WireClient
) -> None:
    put_through(writer_on(client), numbered(4))
    feed = WireEntryFeed(SEGMENT, EARLIEST, client, WireReaderSettings(), entries=5)
    entry = feed.next_entry(EARLIEST)
    feed.close()
    assert entry is not None
    assert feed.can_wait()
    assert permits_of(broker) == [1]


def test_messages_of_every_shape_that_is_no_batch_are_read(
    broker: FakePulsar, client: WireClient
) -> None:
    put(broker, metadata(), b"plain")
    put(broker, metadata(null_value=True, partition_key="k", event_time=9), b"")
    put(broker, metadata(partition_key="AP8=", partition_key_b64_encoded=True), b"")
    put(broker, metadata(properties=[KeyValue(key="a", value="b")]), b"p")
    put(broker, metadata(marker_type=10), b"")
    found = read(client, columns=frozenset(READ_SCHEMA.names))
    assert [(row["value"], row["key"], row["event_time_ms"]) for row in found] == [
        (b"plain", None, None),
        (None, b"k", 9),
        (b"", b"\x00\xff", None),
        (b"p", None, None),
    ]
    assert found[3]["properties"] == [("a", "b")]
    assert {(row["batch_index"], row["batch_size"]) for row in found} == {(-1, 0)}


def test_a_message_has_its_own_sequence_id_or_that_of_its_entry(
    broker: FakePulsar, client: WireClient
) -> None:
    own = [
        SingleMessageMetadata(payload_size=1, sequence_id=number).SerializeToString()
        for number in (7, 2**64 - 1)  # Java's -1
    ]
    without = SingleMessageMetadata(payload_size=1).SerializeToString()
    payload = b"".join(len(row).to_bytes(4) + row + b"v" for row in (*own, without))
    put(broker, metadata(num_messages_in_batch=3, sequence_id=5), payload)
    put(broker, metadata(sequence_id=9), b"alone")
    for columns in ({"sequence_id"}, {"sequence_id", "value", "producer_name"}):
        found = read(client, columns=frozenset(columns))
        assert [row["sequence_id"] for row in found] == [7, -1, 5, 9]
    assert {row["producer_name"] for row in found} == {"java"}


def test_of_a_property_that_is_there_twice_the_last_value_counts(
    broker: FakePulsar, client: WireClient
) -> None:
    twice = [
        KeyValue(key="a", value="1"),
        KeyValue(key="b", value="2"),
        KeyValue(key="a", value="3"),
    ]
    put(broker, metadata(properties=twice), b"alone")
    row = SingleMessageMetadata(payload_size=1, properties=twice).SerializeToString()
    put(broker, metadata(num_messages_in_batch=1), len(row).to_bytes(4) + row + b"v")
    for found in read(client, columns=frozenset({"properties"})):
        assert found["properties"] == [("a", "3"), ("b", "2")]


def chunk(broker: FakePulsar, uuid: str, number: int, part: bytes) -> None:
    put(
        broker,
        metadata(uuid=uuid, num_chunks_from_msg=3, chunk_id=number, total_chunk_msg_size=13),
        part,
    )


def test_a_message_in_chunks_is_one_row_where_its_last_chunk_stands(
    broker: FakePulsar, client: WireClient
) -> None:
    chunk(broker, "u", 0, b"one ")
    for number in range(30):  # others write in between
        put(broker, metadata(), b"%d" % number)
    chunk(broker, "v", 0, b"never whole")
    chunk(broker, "u", 1, b"two ")
    chunk(broker, "u", 1, b"two ")  # sent again
    chunk(broker, "u", 2, b"three")
    whole = {"value": b"one two three", "entry": 34}
    found = read(client, columns=frozenset({"value", "entry"}))
    assert found[-1] == whole
    assert len(found) == 31
    for start in (0, 1, 33):  # also where it begins before the range that is read
        assert read(client, Position(LEDGER, start), frozenset({"value", "entry"}))[-1] == whole
        firsts = read(client, Position(LEDGER, start), frozenset({"first_ledger", "first_entry"}))
        assert firsts[-1] == {"first_ledger": LEDGER, "first_entry": 0}
        assert all(one == {"first_ledger": None, "first_entry": None} for one in firsts[:-1])


def test_the_id_of_a_message_in_chunks_names_its_first_one_as_well(
    broker: FakePulsar, client: WireClient
) -> None:
    put(broker, metadata(), b"before")
    for number in range(3):
        chunk(broker, "u", number, b"part")
    alone, in_chunks = (MessageIdData.FromString(id_) for id_ in message_ids_of(client))
    assert (alone.ledgerId, alone.entryId) == (LEDGER, 0)
    assert not alone.HasField("first_chunk_message_id")
    assert (in_chunks.ledgerId, in_chunks.entryId) == (LEDGER, 3)
    # Without it, an inclusive seek would begin within the message, and skip it.
    first = in_chunks.first_chunk_message_id
    assert (first.ledgerId, first.entryId) == (LEDGER, 1)


def message_ids_of(client: WireClient) -> list[bytes]:
    """Read the column __messageId of everything."""
    schema = StructType().add("__messageId", BinaryType())
    rows = pa.RecordBatch.from_pylist(
        read(client, columns=needed_columns(schema)),
        pa.schema([READ_SCHEMA.field(name) for name in sorted(needed_columns(schema))]),
    )
    as_arrow = pa.schema({"__messageId": pa.binary()})
    [found] = to_spark_batches(iter([rows]), schema, as_arrow, RowOrigin(SEGMENT.topic))
    ids: list[bytes] = found.column("__messageId").to_pylist()
    return ids


def test_a_message_whose_first_chunk_is_gone_is_an_error_and_no_row(
    broker: FakePulsar, client: WireClient
) -> None:
    chunk(broker, "u", 1, b"two ")
    chunk(broker, "u", 2, b"three")
    with pytest.raises(SegmentLogError, match=r"expected chunk 0.*no longer in the log"):
        read(client)


def test_an_encrypted_message_names_the_transport_that_reads_it(
    broker: FakePulsar, client: WireClient
) -> None:
    put(broker, metadata(encryption_keys=[EncryptionKeys()]), b"secret")
    with pytest.raises(SegmentLogError, match="'client'"):
        read(client)


def test_a_damaged_entry_is_never_a_row(broker: FakePulsar, client: WireClient) -> None:
    put(broker, metadata(), b"plain")
    body, messages = broker.topic(SEGMENT.log_name).entries[0]
    broker.topic(SEGMENT.log_name).entries[0] = (body[:-1] + b"X", messages)
    with pytest.raises(SegmentLogError, match="checksum"):
        read(client)


# --- connecting -----------------------------------------------------------------------------------


def test_one_connection_serves_every_topic_without_a_thread_for_each(
    broker: FakePulsar, client: WireClient
) -> None:
    before = threading.active_count()
    writers = [writer_on(client, name=f"w{number}") for number in range(8)]
    assert len(broker.peers) == 1
    assert threading.active_count() <= before + 2  # ours, and the fake broker's own
    for writer in writers:
        writer.close()


def test_a_lookup_follows_redirects(
    broker: FakePulsar, client: WireClient, opened: contextlib.ExitStack
) -> None:
    other = FakePulsar()
    opened.callback(other.close)
    broker.on_lookup = lambda _command: CommandLookupTopicResponse(
        response=0, brokerServiceUrl=other.url, authoritative=True
    )
    writer = writer_on(client)
    assert [
        one.lookupTopic.authoritative for one in other.heard if one.type == BaseCommand.LOOKUP
    ] == [True]
    assert other.count(BaseCommand.PRODUCER) == 1
    writer.close()


def test_a_lookup_that_is_passed_round_is_tried_again_until_brokers_agree(
    broker: FakePulsar, client: WireClient
) -> None:
    """Two of them may take each other for the leader while it changes."""
    passed = iter(range(25))
    broker.on_lookup = lambda _command: (
        None
        if next(passed, None) is None
        else CommandLookupTopicResponse(response=0, brokerServiceUrl=broker.url)
    )
    writer_on(client).close()
    assert broker.count(BaseCommand.LOOKUP) == 26


def test_brokers_that_send_each_other_round_are_given_up_in_time(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_lookup = lambda _command: CommandLookupTopicResponse(
        response=0, brokerServiceUrl=broker.url
    )
    with pytest.raises(SegmentLogUnavailableError, match="passed the lookup on"):
        writer_on(client, replace(SMALL, timeout_s=0.1))


def test_a_broker_behind_a_proxy_is_named_to_the_proxy(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.on_lookup = lambda _command: CommandLookupTopicResponse(
        response=1, brokerServiceUrl="pulsar://inside:6650", proxy_through_service_url=True
    )
    writer_on(client).close()
    connects = [one.connect for one in broker.heard if one.type == BaseCommand.CONNECT]
    assert [one.proxy_to_broker_url for one in connects] == ["", "inside:6650"]


# --- partitions -----------------------------------------------------------------------------------


@pytest.fixture
def transport(broker: FakePulsar) -> Iterator[WireTransport]:
    options = as_pairs({"operationTimeoutMs": "1000"})
    transport = WireTransport(PulsarConfig(broker.url, "http://x", client=options))
    yield transport
    transport.release()
    CLIENTS.close_idle()


def not_asked(topic: str) -> int | None:
    raise AssertionError(topic)


def test_any_broker_tells_how_many_partitions_a_topic_has_and_creates_none(
    broker: FakePulsar, transport: WireTransport
) -> None:
    broker.partitions = {"persistent://a/b/parted": 3, "persistent://a/b/plain": 0}
    assert transport.partitions("persistent://a/b/parted", not_asked) == 3
    assert transport.partitions("persistent://a/b/plain", not_asked) == 0
    assert transport.partitions("persistent://a/b/missing", not_asked) is None
    asked = [
        one.partitionMetadata
        for one in broker.heard
        if one.type == BaseCommand.PARTITIONED_METADATA
    ]
    assert [
        one.HasField("metadata_auto_creation_enabled") and not one.metadata_auto_creation_enabled
        for one in asked
    ] == [True] * 3
    assert broker.count(BaseCommand.LOOKUP) == 0
    assert len(broker.peers) == 1


def test_a_broker_that_would_create_the_topic_is_not_asked_for_its_partitions(
    broker: FakePulsar, transport: WireTransport
) -> None:
    broker.asks_without_creating = False
    assert transport.partitions("persistent://a/b/c", lambda _topic: 5) == 5
    assert broker.count(BaseCommand.PARTITIONED_METADATA) == 0


def test_partitions_are_asked_for_again_after_an_error_that_passes(
    broker: FakePulsar, transport: WireTransport
) -> None:
    broker.partitions = {"persistent://a/b/c": 2}
    broker.refuses[BaseCommand.PARTITIONED_METADATA] = [(6, "not ready"), (14, "too many")]
    assert transport.partitions("persistent://a/b/c", not_asked) == 2
    broker.peers[-1].cut()
    assert transport.partitions("persistent://a/b/c", not_asked) == 2
    broker.refuses[BaseCommand.PARTITIONED_METADATA] = [(4, "not yours")]
    with pytest.raises(SegmentLogUnavailableError, match=r"partitions of .*refuses us.*not yours"):
        transport.partitions("persistent://a/b/c", not_asked)


# --- what is no broker ----------------------------------------------------------------------------

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
NO_BROKER = [
    pytest.param(HTTP, "expected a frame of", id="http"),
    pytest.param(b"\x7f\xff\xff\xff", "expected a frame of", id="oversized"),
    pytest.param(b"\x00\x00\x00\x08\x00\x00\x00\x40\xff\xff\xff\xff", "cut off", id="too-short"),
    pytest.param(b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff", "protobuf", id="noise"),
]


@pytest.fixture
def answering(opened: contextlib.ExitStack) -> Callable[[bytes], ConnectionSettings]:
    """Return a function that starts a server which answers everybody with the same bytes."""

    def start(answer: bytes) -> ConnectionSettings:
        listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer = opened.enter_context(listening.accept()[0])
                    peer.recv(1 << 16)
                    peer.sendall(answer)  # and it stays open: nobody hears of an end

        threading.Thread(target=serve, daemon=True).start()
        opened.callback(lambda: listening.shutdown(socket.SHUT_RDWR))
        config = PulsarConfig(f"pulsar://127.0.0.1:{listening.getsockname()[1]}", "http://x")
        return replace(ConnectionSettings.of(config), operation_s=0.3, connect_s=5)

    return start


@pytest.mark.timeout(20)
@pytest.mark.parametrize("answer, told", NO_BROKER)
def test_who_answers_and_is_no_broker_is_refused_at_once_and_named(
    answering: Callable[[bytes], ConnectionSettings], answer: bytes, told: str
) -> None:
    settings = answering(answer)
    with pytest.raises(RefusedError) as refused:
        Connection(settings, settings.addresses[0])
    assert refused.value.result == "ConnectError"
    assert told in refused.value.detail
    client = WireClient(settings)
    with pytest.raises(SegmentLogUnavailableError, match=told):
        writer_on(client)
    client.close()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("answer", [b"", HTTP[:3], (100).to_bytes(4) + b"x" * 50])
def test_who_never_ends_a_frame_is_waited_for_no_longer_than_asked(
    answering: Callable[[bytes], ConnectionSettings], answer: bytes
) -> None:
    settings = replace(answering(answer), connect_s=0.2)
    with pytest.raises(RefusedError, match=r"timed out|did not answer"):
        Connection(settings, settings.addresses[0])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("noise, told", NO_BROKER)
def test_noise_after_the_handshake_ends_the_connection_and_all_who_wait_are_told(
    broker: FakePulsar, noise: bytes, told: str
) -> None:
    settings = settings_of(broker)
    connection = Connection(settings, settings.addresses[0])
    heard: list[RefusedError] = []

    def ask_where(number: int) -> BaseCommand:
        return BaseCommand(
            type=BaseCommand.LOOKUP, lookupTopic=CommandLookupTopic(topic="t", request_id=number)
        )

    def answer(_command: BaseCommand) -> CommandLookupTopicResponse:
        broker.peers[-1].say_bytes(noise)
        return CommandLookupTopicResponse(response=1)

    def ask() -> None:
        try:
            connection.request(ask_where, 15)
        except RefusedError as refused:
            heard.append(refused)

    broker.on_lookup = answer
    waiting = [threading.Thread(target=ask) for _ in range(2)]
    for one in waiting:
        one.start()
    for one in waiting:
        one.join(10)
    assert [refused.result for refused in heard] == ["Disconnected"] * 2
    assert told in heard[0].detail
    assert not connection.usable
    connection.close()


def test_a_writer_with_nothing_in_flight_survives_noise(
    broker: FakePulsar, client: WireClient
) -> None:
    writer = writer_on(client)
    for start in range(0, 12, 4):
        writer.append(numbered(4, start))
        writer.flush()
        broker.peers[-1].say_bytes(HTTP)
        with client.in_flight.changed:
            assert client.in_flight.changed.wait_for(lambda: writer._producer.lost is not None, 5)
    assert values(read(client)) == expected(12)


def test_a_reader_goes_on_at_the_broker_that_a_new_lookup_names(
    broker: FakePulsar, client: WireClient, opened: contextlib.ExitStack
) -> None:
    """The one before has lost the topic, and does not know it yet."""
    put_through(writer_on(client), numbered(4))
    feed = WireEntryFeed(SEGMENT, EARLIEST, client, WireReaderSettings(poll_s=0.01))
    first = feed.next_entry(EARLIEST)
    assert first is not None
    assert feed.next_entry(first.position) is None
    successor = FakePulsar()
    opened.callback(successor.close)
    successor.topics = broker.topics
    broker.topics = {SEGMENT.log_name: replace(broker.topic(SEGMENT.log_name))}
    old = broker.topic(SEGMENT.log_name)
    old.entries = list(old.entries)
    put_through(writer_at(successor, opened), numbered(4, 4))
    assert feed.next_entry(first.position) is None
    broker.on_lookup = lambda _command: CommandLookupTopicResponse(
        response=1, brokerServiceUrl=successor.url, brokerServiceUrlTls=successor.url
    )
    feed.look_up_again(first.position)
    second = feed.next_entry(first.position)
    assert second is not None
    assert second.position == (LEDGER, 1)
    feed.close()


@pytest.mark.parametrize(
    "plugin, params, sent",
    [("token", "token:t1", (b"token", b"t1")), ("basic", "u:p", (b"basic", b"u:p"))],
)
def test_credentials_go_out_on_connecting_and_when_the_broker_wants_them_again(
    broker: FakePulsar, plugin: str, params: str, sent: tuple[bytes, bytes]
) -> None:
    settings = settings_of(broker, authPluginClassName=plugin, authParams=params)
    connection = Connection(settings, settings.addresses[0])
    broker.peers[-1].challenge()
    broker.await_heard(BaseCommand.AUTH_RESPONSE)
    connection.close()
    connect, response = (
        next(one for one in broker.heard if one.type == kind)
        for kind in (BaseCommand.CONNECT, BaseCommand.AUTH_RESPONSE)
    )
    assert (connect.connect.auth_method_name.encode(), connect.connect.auth_data) == sent
    renewed = response.authResponse.response
    assert (renewed.auth_method_name.encode(), renewed.auth_data) == sent
    assert params not in repr(settings)


@pytest.fixture
def tls_broker(certificates: Path) -> Iterator[FakePulsar]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "broker.pem", certificates / "broker.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    broker = FakePulsar(tls=context)
    yield broker
    broker.close()


def ours(certificates: Path) -> dict[str, str]:
    return {
        "tlsTrustCertsFilePath": str(certificates / "ca.pem"),
        "tlsCertificateFilePath": str(certificates / "us.pem"),
        "tlsKeyFilePath": str(certificates / "us.key"),
    }


def test_rows_go_both_ways_through_tls_with_a_ca_and_a_certificate_of_our_own(
    tls_broker: FakePulsar, certificates: Path
) -> None:
    client = WireClient(settings_of(tls_broker, **ours(certificates)))
    writer = writer_on(client, replace(SMALL, entry_rows=1000))
    # Several times what fits into one record of TLS, so that parts of it wait in its buffers.
    large = pa.record_batch({"value": pa.array([b"x" * 300_000] * 3, pa.binary())})
    writer.append(numbered(5000))
    writer.append(large)
    assert writer.flush().messages == 5003
    assert values(read(client)) == expected(5000) + [b"x" * 300_000] * 3
    client.close()


def test_a_certificate_that_does_not_fit_is_refused_at_once(
    tls_broker: FakePulsar, certificates: Path
) -> None:
    elsewhere = tls_broker.url.replace("localhost", "127.0.0.1")  # not what it was made out for
    untrusted = {**ours(certificates), "tlsTrustCertsFilePath": str(certificates / "us.pem")}
    for url, options, tries in (
        (tls_broker.url, untrusted, 1),
        (elsewhere, ours(certificates), 2),
    ):
        config = PulsarConfig(url, "http://x", client=as_pairs(options))
        client = WireClient(ConnectionSettings.of(config))
        with pytest.raises(SegmentLogUnavailableError, match="certificate verify failed"):
            writer_on(client)
        assert len(tls_broker.peers) == tries
        client.close()
    lenient = {**ours(certificates), "tlsHostnameVerificationEnable": "false"}
    config = PulsarConfig(elsewhere, "http://x", client=as_pairs(lenient))
    client = WireClient(ConnectionSettings.of(config))
    writer_on(client).close()
    client.close()


def test_a_broker_that_refuses_the_credentials_is_asked_once(
    broker: FakePulsar, client: WireClient
) -> None:
    broker.refuses[BaseCommand.CONNECT] = [(3, "who are you")]
    with pytest.raises(SegmentLogUnavailableError, match="refuses us"):
        writer_on(client)
    assert broker.count(BaseCommand.CONNECT) == 1


def test_a_silent_broker_is_pinged_and_then_given_up(broker: FakePulsar) -> None:
    settings = replace(settings_of(broker), keep_alive_s=0.5)
    connection = Connection(settings, settings.addresses[0])
    broker.await_heard(BaseCommand.PING, 2)
    assert connection.usable
    broker.answers_pings = False
    with pytest.raises(RefusedError) as refused:
        connection.request(
            lambda _number: BaseCommand(type=BaseCommand.PONG, pong=CommandPong()), 5
        )
    assert refused.value.result == "Timeout"
    assert "silent" in refused.value.detail
    assert not connection.usable


def test_connections_that_have_ended_are_forgotten(broker: FakePulsar) -> None:
    """Brokers may come back under other addresses, again and again."""
    client = WireClient(settings_of(broker))
    client.any_connection().close()
    another = FakePulsar()
    connection = client._connect(settings_of(another).addresses[0])
    assert list(client._connections.values()) == [connection]
    client.close()
    another.close()


def test_a_ping_of_the_broker_is_answered(broker: FakePulsar) -> None:
    settings = settings_of(broker)
    connection = Connection(settings, settings.addresses[0])
    broker.peers[-1].say(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
    broker.await_heard(BaseCommand.PONG)
    connection.close()


def test_a_child_of_a_fork_has_connections_of_its_own(broker: FakePulsar) -> None:
    config = PulsarConfig(broker.url, "http://x")
    parent = CLIENTS.acquire(config)
    writer = writer_on(parent)
    writer.append(numbered(4))
    writer.flush()
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            own = CLIENTS.acquire(config)
            mine = writer_on(own, name="child")
            mine.append(numbered(4))
            status = 0 if own is not parent and mine.flush().messages == 4 else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.append(numbered(4))  # the parent's is untouched
    assert writer.flush().messages == 4
    writer.close()
    CLIENTS.release(config)
    CLIENTS.close_idle()


def test_what_only_the_other_transport_can_do_is_refused() -> None:
    config = PulsarConfig(
        "pulsar://x",
        "http://x",
        client=as_pairs({"authPluginClassName": "athenz", "authParams": '{"a": "b"}'}),
    )
    with pytest.raises(OptionError, match="athenz"):
        ConnectionSettings.of(config)


@pytest.mark.parametrize("url", ["http://x", "pulsar://", "pulsar://x:y", "x:1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="pulsar://host:port"):
        parse_addresses(url)


def test_auto_is_wire_unless_an_option_needs_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    plain = PulsarConfig("pulsar://x", "http://x", transport="auto")
    oauth = {"authPluginClassName": "athenz", "authParams": '{"a": "b"}'}
    athenz = replace(plain, client=as_pairs(oauth))
    assert choose(plain) == "wire"
    assert caplog.messages == ["transport wire: no option needs pulsar-client"]
    caplog.clear()
    assert choose(athenz) == "client"
    [said] = caplog.messages
    assert said.startswith("transport client: ")
    assert "athenz" in said
    assert choose(replace(plain, transport="client")) == "client"
    with pytest.raises(OptionError, match="athenz"):
        choose(replace(athenz, transport="wire"))


def test_a_process_that_speaks_wire_does_not_load_pulsar_client() -> None:
    program = """
import sys
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.backends.pulsar.log import PulsarSegmentLog

PulsarSegmentLog(PulsarConfig("pulsar://127.0.0.1:1", "http://127.0.0.1:1", transport="wire"))
assert not {"pulsar", "_pulsar"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class WatchedQueue(collections.deque[memoryview]):
    """Frames that wait: somebody adds another one while they are gathered for the first time."""

    def __init__(self, add_another: Callable[[], None]) -> None:
        super().__init__()
        self.another = threading.Thread(target=add_another)

    def __iter__(self) -> Iterator[memoryview]:
        pieces = super().__iter__()
        yield next(pieces)
        if self.another.ident is None:
            self.another.start()
            self.another.join(0.2)  # it has to wait, so it cannot be waited for
        yield from pieces


def test_a_frame_that_is_queued_while_others_are_sent_costs_no_connection(
    broker: FakePulsar,
) -> None:
    settings = settings_of(broker)
    connection = Connection(settings, settings.addresses[0])
    ping = encode_command(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
    connection._outgoing = queue = WatchedQueue(lambda: connection.post([ping]))
    connection.post([ping])
    broker.await_heard(BaseCommand.PING, 2)
    assert connection.usable
    queue.another.join()
    connection.close()


def test_a_token_file_is_read_again_when_the_broker_wants_to_know_us_again(
    broker: FakePulsar, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    settings = settings_of(broker, authPluginClassName="token", authParams=f"file://{file}")
    connection = Connection(settings, settings.addresses[0])
    file.write_text("new\n")
    broker.peers[-1].challenge()
    broker.await_heard(BaseCommand.AUTH_RESPONSE)
    connection.close()
    (response,) = (one for one in broker.heard if one.type == BaseCommand.AUTH_RESPONSE)
    assert response.authResponse.response.auth_data == b"new"
