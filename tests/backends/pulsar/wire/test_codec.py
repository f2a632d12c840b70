"""The codecs of the wire transport: frames, compression, batches. No broker is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_txn_spark.backends import entry_codec
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandSend,
    MessageMetadata,
    SingleMessageMetadata,
)
from pulsar_txn_spark.backends.pulsar.wire import batch, compression, frames
from pulsar_txn_spark.backends.pulsar.wire.frames import FrameError, FrameParser
from pulsar_txn_spark.errors import SchemaError
from pulsar_txn_spark.segments.log import ROW_SCHEMA

LIMIT = 1 << 20
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
rows = st.tuples(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=200),
    st.none() | st.integers(1, 2**63 - 1),
    st.none() | st.dictionaries(text, text, min_size=1, max_size=3).map(lambda d: list(d.items())),
)


@pytest.fixture(scope="module", autouse=True, params=[True, False], ids=["one by one", "columns"])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Encode and decode rows one by one, or by columns, however few there are."""
    with pytest.MonkeyPatch.context() as patched:
        if not request.param:
            patched.setattr(batch, "FEW_TO_ENCODE", 0)
            patched.setattr(batch, "FEW_TO_DECODE", 0)
        yield


def batch_of(found: list[Any]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) or [()] * 4
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, ROW_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=ROW_SCHEMA)


def as_rows(found: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.get(name) for name in ROW_SCHEMA.names) for row in found.to_pylist()]


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=8), st.data())
def test_rows_come_back_from_whatever_part_of_a_batch(found: list[Any], data: Any) -> None:
    encoded = batch.encode(entry_codec.normalize(batch_of(found)))
    cut = data.draw(st.integers(0, len(found)))
    for start, end in ((0, cut), (cut, len(found))):
        part = batch.decode(encoded.payload(start, end), end - start)
        assert part.num_rows == end - start
        assert as_rows(part) == found[start:end]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_152])
@pytest.mark.parametrize("keyed", [True, False])
def test_plain_rows_of_every_width_come_back(size: int, keyed: bool) -> None:
    found = [(b"x" * size, b"k%d" % row if keyed else None, None, None) for row in range(3)]
    encoded = batch.encode(entry_codec.normalize(batch_of(found)))
    assert as_rows(batch.decode(encoded.payload(0, 3), 3)) == found


@settings(deadline=None)
@given(st.lists(rows, max_size=8))
def test_rows_are_the_same_bytes_in_whichever_way_they_are_encoded(found: list[Any]) -> None:
    normalized = entry_codec.normalize(batch_of(found))
    one_by_one, columns = batch._encode_few(normalized), batch._encode_many(normalized)
    assert one_by_one.offsets.tolist() == columns.offsets.tolist()
    assert one_by_one.payload(0, len(found)) == columns.payload(0, len(found))


def test_rows_of_a_slice_come_back_alone() -> None:
    found = [(b"v%d" % row, b"k%d" % row, row + 1, [("p", str(row))]) for row in range(9)]
    encoded = batch.encode(entry_codec.normalize(batch_of(found).slice(3, 4)))
    assert as_rows(batch.decode(encoded.payload(0, 4), 4)) == found[3:7]


def test_a_message_of_another_client_with_fields_that_we_do_not_write_is_read() -> None:
    row = (
        SingleMessageMetadata(partition_key="k", payload_size=1).SerializeToString()
        + b"\x3a\x01o\x40\x07"
    )
    payload = len(row).to_bytes(4) + row + b"v"
    assert as_rows(batch.decode(payload, 1)) == [(b"v", b"k", None, None)]


foreign = st.tuples(
    st.none() | st.text("abc", max_size=140),
    st.binary(max_size=300),
    st.binary(max_size=12) | st.integers(0, 2**64 - 1).map(lambda n: b"\x40" + varint(n)),
)


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


@settings(deadline=None, max_examples=300)
@given(st.lists(foreign, max_size=5))
def test_the_quick_way_reads_the_same_as_the_thorough_one(found: list[Any]) -> None:
    payload = b""
    for key, value, rest in found:
        row = (
            SingleMessageMetadata(partition_key=key, payload_size=len(value)).SerializeToString()
            + rest
        )
        payload += len(row).to_bytes(4) + row + value
    try:
        expected = as_rows(batch._decode_any(payload, len(found)))
    except Exception:  # noqa: BLE001 - the rest of a metadata was noise
        with pytest.raises(FrameError):
            batch.decode(payload, len(found))
    else:
        assert as_rows(batch.decode(payload, len(found))) == expected


def test_messages_with_sequence_ids_take_the_quick_way() -> None:
    row = SingleMessageMetadata(partition_key="k", payload_size=1).SerializeToString()
    for number in (0, 127, 128, 2**64 - 1):
        head = row + b"\x40" + varint(number)
        assert batch._decode_plain(len(head).to_bytes(4) + head + b"v", 1) is not None


def test_a_metadata_of_more_than_255_bytes_is_read() -> None:
    row = SingleMessageMetadata(partition_key="k", payload_size=1).SerializeToString()
    head = row + b"\x3a" + varint(250) + b"o" * 250  # an ordering key
    payload = (len(head).to_bytes(4) + head + b"v") * 3
    assert as_rows(batch.decode(payload, 3)) == [(b"v", b"k", None, None)] * 3


def test_an_event_time_before_1970_is_refused() -> None:
    with pytest.raises(SchemaError, match="-1"):
        batch.encode(batch_of([(b"v", None, -1, None)]))


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(-1, 40))
def test_a_damaged_batch_is_an_error_and_nothing_else(payload: bytes, messages: int) -> None:
    with contextlib.suppress(FrameError):
        assert batch.decode(payload, messages).num_rows == messages


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=4), st.data())
def test_a_batch_that_was_cut_off_is_refused(found: list[Any], data: Any) -> None:
    payload = batch.encode(entry_codec.normalize(batch_of(found))).payload(0, len(found))
    short = payload[: data.draw(st.integers(0, len(payload) - 1))]
    with pytest.raises(FrameError):
        batch.decode(short, len(found))


@pytest.mark.parametrize("name", compression.NUMBERS)
def test_each_compression_unpacks_to_what_went_in_and_to_nothing_else(name: str) -> None:
    number = compression.NUMBERS[name]
    for content in (b"", b"x", b"again and again " * 1000):
        packed = compression.compress(content, number)
        assert compression.decompress(packed, number, len(content)) == content
    if number:
        for wrong in (15_999, 16_001, 1 << 40):
            with pytest.raises(FrameError):
                compression.decompress(packed, number, wrong)
        with pytest.raises(FrameError):
            compression.decompress(packed[: len(packed) // 2], number, 16_000)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(FrameError, match="client"):
        compression.decompress(b"x", 9, 1)


def sent(payload: bytes) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=2))
    metadata = MessageMetadata(producer_name="w", sequence_id=2, publish_time=3)
    return b"".join(frames.encode_send(command, metadata, payload))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=4), st.integers(1, 40))
def test_frames_come_back_in_whatever_pieces_they_arrive(contents: list[bytes], step: int) -> None:
    stream = b"".join(sent(content) for content in contents)
    stream += frames.encode_command(BaseCommand(type=BaseCommand.PING))
    parser, found = FrameParser(LIMIT), []
    for at in range(0, len(stream), step):
        found += list(parser.feed(stream[at : at + step]))
    assert parser.buffered_bytes == 0
    assert found.pop().command.type == BaseCommand.PING
    for frame, content in zip(found, contents, strict=True):
        metadata, payload = frames.decode_entry(frame.body)
        assert (metadata.producer_name, bytes(payload)) == ("w", content)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300), st.integers(1, 64))
def test_noise_is_refused_in_bounded_memory(noise: bytes, step: int) -> None:
    parser = FrameParser(100)
    try:
        for at in range(0, len(noise), step):
            for frame in parser.feed(noise[at : at + step]):
                frames.decode_entry(frame.body)
            assert parser.buffered_bytes <= 104
    except FrameError:
        pass


damage = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert"]),
        st.integers(0, 400),  # where; taken modulo the length
        st.integers(1, 8),  # the bit, or how many bytes are gone
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=3,
)


def damaged(stream: bytes, edits: list[Any]) -> tuple[bytes, int]:
    """Return a stream with damage done to it, and how many bytes at its beginning are intact."""
    found, intact = bytearray(stream), len(stream)
    for kind, where, amount, noise in edits:
        at = where % (len(found) or 1)
        if kind == "flip" and found:
            found[at] ^= 1 << amount - 1
        elif kind == "cut":
            del found[at : at + amount]
        elif kind == "insert":
            found[at:at] = noise
        intact = min(intact, at)
    return bytes(found), intact


@settings(deadline=None, max_examples=400)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), damage, st.integers(1, 64))
def test_a_damaged_stream_gives_the_frames_before_the_damage_and_never_a_wrong_entry(
    contents: list[bytes], edits: list[Any], step: int
) -> None:
    pieces = [sent(content) for content in contents]
    stream, intact = damaged(b"".join(pieces), edits)
    whole = [end for end in accumulate(map(len, pieces)) if end <= intact]
    parser = FrameParser(512)
    found: list[frames.Frame] = []
    try:
        for at in range(0, len(stream), step):
            # One by one: those before an error count too.
            found.extend(parser.feed(stream[at : at + step]))
            assert parser.buffered_bytes <= 512 + 4
    except FrameError:
        with pytest.raises(FrameError):  # nothing is read on behind the damage
            list(parser.feed(pieces[0]))
    assert len(found) >= len(whole)
    payloads = []
    for frame in found:
        with contextlib.suppress(FrameError):
            metadata, payload = frames.decode_entry(frame.body)
            assert metadata.producer_name == "w"
            payloads.append(bytes(payload))
    assert payloads[: len(whole)] == contents[: len(whole)]
    left = iter(contents)
    assert all(payload in left for payload in payloads), "in order, and none twice"


def test_a_frame_that_is_too_large_is_refused_before_it_is_gathered() -> None:
    parser = FrameParser(100)
    for _ in range(2):  # a parser that failed stays so
        with pytest.raises(FrameError, match=r"service\.url"):
            list(parser.feed((101).to_bytes(4)))


def test_each_flipped_bit_of_an_entry_is_noticed() -> None:
    (frame,) = FrameParser(LIMIT).feed(sent(b"payload"))
    for bit in range(len(frame.body) * 8):
        damaged = bytearray(frame.body)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameError):
            frames.decode_entry(bytes(damaged))


def test_the_brokers_own_metadata_before_an_entry_is_passed_over() -> None:
    (frame,) = FrameParser(LIMIT).feed(sent(b"payload"))
    body = b"\x0e\x02" + (3).to_bytes(4) + b"abc" + frame.body
    assert bytes(frames.decode_entry(body)[1]) == b"payload"
    for end in range(len(body) - 1):
        with pytest.raises(FrameError):
            frames.decode_entry(body[:end])


def test_a_part_that_is_larger_than_what_holds_it_is_refused() -> None:
    ping = frames.encode_command(BaseCommand(type=BaseCommand.PING))
    with pytest.raises(FrameError, match="a command"):
        list(FrameParser(LIMIT).feed(ping[:4] + (len(ping) - 7).to_bytes(4) + ping[8:]))
    # With a checksum that fits, so that only the size is wrong.
    metadata = MessageMetadata(producer_name="w", sequence_id=2, publish_time=3)
    checked = (metadata.ByteSize() + 1).to_bytes(4) + metadata.SerializeToString()
    body = b"\x0e\x01" + google_crc32c.value(checked).to_bytes(4) + checked
    with pytest.raises(FrameError, match="metadata"):
        frames.decode_entry(body)
