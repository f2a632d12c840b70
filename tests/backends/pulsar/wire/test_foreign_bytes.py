"""Messages of other clients whose keys and properties are no UTF-8, and times behind Arrow's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from pulsar_txn_spark.backends.pulsar.library.reader import ClientEntry, RowCollector
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import MessageMetadata
from pulsar_txn_spark.backends.pulsar.wire.frames import FrameError
from pulsar_txn_spark.backends.pulsar.wire.reader import EntryRows, WireEntry
from pulsar_txn_spark.errors import SegmentLogError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef

SEGMENT = SegmentRef("s1", "topic://public/default/t", "persistent://public/default/s1")
AT = Position(7, 4)
KEY = b"\xffid\x00"  # as Go and C++ send it, without base64
COLUMNS = frozenset({"value", "key", "event_time_ms", "properties", "producer_name"})


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def varint(number: int, value: int) -> bytes:
    return bytes([number << 3, value])


def metadata(extra: bytes, producer: bytes = b"go") -> MessageMetadata:
    return MessageMetadata.FromString(field(1, producer) + varint(2, 1) + varint(3, 1) + extra)


def pair(name: bytes, value: bytes) -> bytes:
    return field(1, name) + field(2, value)


def single(key: bytes, properties: bytes = b"", rest: bytes = b"") -> bytes:
    row = properties + field(2, key) + varint(3, 1) + rest
    return len(row).to_bytes(4) + row + b"v"


def rows_of(meta: MessageMetadata, payload: bytes) -> list[dict[str, Any]]:
    rows = EntryRows(COLUMNS, 1000, SEGMENT, lambda *_: iter(()))
    rows.add(WireEntry(AT, meta, payload))
    [batch] = rows.batches(everything=True)
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


FLAG = varint(6, 1)
PROPERTY = field(1, pair(b"a", b"b"))


@pytest.mark.parametrize(
    "messages, payload, extra",
    [
        pytest.param(17, single(KEY) * 17, varint(11, 17), id="columns"),
        pytest.param(16, single(KEY) * 16, varint(11, 16), id="one by one"),
        pytest.param(17, single(KEY, PROPERTY) * 17, varint(11, 17), id="with a property"),
        pytest.param(1, single(KEY, rest=FLAG), varint(11, 1), id="said to be base64"),
        pytest.param(1, b"v", field(6, KEY), id="no batch"),
    ],
)
def test_a_key_of_any_bytes_is_read(messages: int, payload: bytes, extra: bytes) -> None:
    assert [row["key"] for row in rows_of(metadata(extra), payload)] == [KEY] * messages


@pytest.mark.parametrize("batched", [True, False])
def test_of_a_property_that_is_no_text_the_readable_part_is_read(batched: bool) -> None:
    properties = pair(b"\xffn", b"\xff\x01")
    meta = metadata(varint(11, 1) if batched else field(4, properties), producer=b"\xffgo")
    payload = single(b"k", field(1, properties)) if batched else b"v"
    [row] = rows_of(meta, payload)
    assert row["properties"] == [("\ufffdn", "\ufffd\x01")]
    assert row["producer_name"] == "\ufffdgo"


@pytest.mark.parametrize("time, shown", [(2**64 - 1, -1), (2**63, -(2**63)), (5, 5)])
def test_an_event_time_is_a_signed_number_as_in_java(time: int, shown: int) -> None:
    meta = metadata(b"")
    meta.event_time = time
    assert rows_of(meta, b"v")[0]["event_time_ms"] == shown


@pytest.mark.parametrize(
    "payload", [single(b"no base64", rest=FLAG), single(b"k") + b"x"], ids=["key", "size"]
)
def test_an_entry_that_cannot_be_read_is_named(payload: bytes) -> None:
    with pytest.raises(FrameError, match=r"entry 7:4 of segment s1 .*is damaged"):
        rows_of(metadata(varint(11, 1)), payload)


def test_pulsar_client_names_the_transport_that_reads_such_a_key() -> None:
    message = mock.Mock()
    message.partition_key.side_effect = KEY.decode
    rows = RowCollector(frozenset({"key"}), 1000, SEGMENT)
    with pytest.raises(SegmentLogError, match=r"entry 7:4 .*'key'.*transport 'wire'"):
        rows.add(ClientEntry([message], AT, 0))


def test_pulsar_client_shows_an_event_time_as_a_signed_number() -> None:
    message = mock.Mock()
    message.event_timestamp.return_value = 2**64 - 1
    rows = RowCollector(frozenset({"event_time_ms"}), 1000, SEGMENT)
    rows.add(ClientEntry([message], AT, 0))
    [batch] = rows.batches(everything=True)
    assert batch.column(0).to_pylist() == [-1]
