"""A batch entry's payload: Arrow rows to bytes and back.

For each message ``[metadata size 4][SingleMessageMetadata][value]``. Writing: the pieces of all
rows are made column by column and joined by Arrow, so that no object is made for a row. A few rows
are quicker made one by one, as Arrow's functions take their time for a single row, too. Reading:
each message says where the next one begins, so that one short step for each finds them. Their
contents are cut out column by column, unless they are few.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pulsar_txn_spark.backends.entry_codec import Sizes, lengths
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import SingleMessageMetadata
from pulsar_txn_spark.backends.pulsar.wire.frames import FrameError
from pulsar_txn_spark.segments.log import ROW_SCHEMA, checked_event_times, checked_properties

_KEY, _SIZE_TAG, _EVENT_TIME, _BASE64, _NULL = b"\x12", b"\x18", b"\x28", b"\x30\x01", b"\x48\x01"
_KEY_TAG, _PAYLOAD_TAG = _KEY[0], _SIZE_TAG[0]
_SEQUENCE_TAG = 0x40
_VARINT_BYTES = 10
_HALF = 1 << 63
_ONE_BYTE, _TWO_BYTES = 1 << 7, 1 << 14  # varints below take a single byte, or two
FEW_TO_ENCODE, FEW_TO_DECODE = 64, 16
"""Up to so many rows are encoded and decoded one by one: half of where both ways take as long."""


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as they stand in a batch payload, one behind the other.

    Parameters
    ----------
    data : pyarrow.Buffer
        Every row's bytes.
    offsets : numpy.ndarray
        Where each row begins, and the end; rows + 1 numbers.
    """

    data: pa.Buffer
    offsets: Sizes

    def payload(self, start: int, end: int) -> bytes:
        """Return the payload of a batch of the rows ``[start, end)``."""
        low, high = int(self.offsets[start]), int(self.offsets[end])
        payload: bytes = self.data.slice(low, high - low).to_pybytes()
        return payload


def encode(rows: pa.RecordBatch) -> EncodedRows:
    """Encode a normalized row batch; see :func:`~..entry_codec.normalize`.

    Raises
    ------
    SchemaError
        If an event time is negative.
    """
    if rows.num_rows <= FEW_TO_ENCODE:
        return _encode_few(rows)
    return _encode_many(rows)


def _encode_few(rows: pa.RecordBatch) -> EncodedRows:
    nothing = [None] * rows.num_rows
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    checks = {"event_time_ms": checked_event_times, "properties": checked_properties}
    lists = {
        name: checks.get(name, lambda unchecked: unchecked)(column).to_pylist()
        for name, column in columns.items()
    }
    pieces: list[bytes] = []
    for value, key, event_time_ms, properties in zip(
        *(lists.get(name, nothing) for name in ROW_SCHEMA.names), strict=True
    ):
        row = SingleMessageMetadata(payload_size=len(value or b""))
        for name, text in properties or ():
            row.properties.add(key=name, value=text)
        if key is not None:
            is_text = _is_text(key)
            row.partition_key = (key if is_text else base64.b64encode(key)).decode()
            if not is_text:
                row.partition_key_b64_encoded = True
        if event_time_ms:
            row.event_time = event_time_ms
        if value is None:
            row.null_value = True
        metadata = row.SerializeToString()
        pieces.append(b"".join((len(metadata).to_bytes(4, "big"), metadata, value or b"")))
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return EncodedRows(pa.py_buffer(b"".join(pieces)), ends)


def _encode_many(rows: pa.RecordBatch) -> EncodedRows:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    count = rows.num_rows
    value = columns.get("value", pa.nulls(count, pa.binary()))
    pieces: list[pa.Array] = []
    if "properties" in columns:
        pieces.append(_properties(columns["properties"]))
    if "key" in columns:
        pieces += _key(columns["key"])
    pieces.append(_tagged(_SIZE_TAG, lengths(value)))
    if "event_time_ms" in columns:
        pieces.append(_event_times(columns["event_time_ms"]))
    if "key" in columns:
        flags = _base64_flags(columns["key"])
        if flags is not None:
            pieces.append(flags)
    if value.null_count:
        pieces.append(_where(value.is_null(), _NULL))
    metadata_bytes = np.zeros(count, np.int64)
    for piece in pieces:
        metadata_bytes += lengths(piece)
    prefix = pa.Array.from_buffers(
        pa.binary(4), count, [None, pa.py_buffer(metadata_bytes.astype(">u4").tobytes())]
    ).cast(pa.binary())
    joined = _join([prefix, *pieces, pc.fill_null(value, b"")])
    return EncodedRows(joined.buffers()[2] or pa.py_buffer(b""), _offsets(joined))


def _join(pieces: list[pa.Array]) -> pa.Array:
    # 64-bit offsets: a batch of Spark's may hold more than 2 GiB.
    large = pa.large_binary()
    return pc.binary_join_element_wise(
        *(piece.cast(large) for piece in pieces), pa.scalar(b"", large)
    )


def _offsets(large: pa.Array) -> Sizes:
    offsets: Sizes = np.frombuffer(large.buffers()[1], np.int64, len(large) + 1, large.offset * 8)
    return offsets


def _tagged(tag: bytes, numbers: Sizes) -> pa.Array:
    """Return each number, none of them negative, as a protobuf varint with a tag before it."""
    count, widest = len(numbers), int(numbers.max(initial=0))
    width = 1 + max(1, -(-widest.bit_length() // 7))
    digits = np.empty((count, width), np.uint8)
    digits[:, 0] = tag[0]
    lengths = np.full(count, 2, np.int32)
    for place in range(width - 1):
        shifted = numbers >> (7 * place)
        digits[:, 1 + place] = (shifted & 0x7F) | np.where(shifted >= _ONE_BYTE, 0x80, 0)
        if place:
            lengths += shifted > 0
    all_whole = int(lengths.min(initial=width)) == width
    kept = digits if all_whole else digits[np.arange(width) < lengths[:, None]]
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(kept).tobytes())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _where(condition: pa.Array, text: bytes) -> pa.Array:
    return pc.if_else(condition, pa.scalar(text, pa.binary()), pa.scalar(b"", pa.binary()))


def _key(column: pa.Array) -> list[pa.Array]:
    text = _as_text(column)
    prefix = _tagged(_KEY, lengths(text))
    if column.null_count:
        prefix = pc.if_else(column.is_valid(), prefix, pa.scalar(b"", pa.binary()))
    return [prefix, pc.fill_null(text, b"")]


def _binary_keys(column: pa.Array) -> pa.Array | None:
    """Say which keys are no text, None if all are; Pulsar has those in base64 with a flag."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_is_text(key) is False for key in column.to_pylist()])
    return None


def _is_text(key: bytes | None) -> bool | None:
    if key is None:
        return None
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _as_text(column: pa.Array) -> pa.Array:
    flags = _binary_keys(column)
    if flags is None:
        return column
    pairs = zip(column.to_pylist(), flags.to_pylist(), strict=True)
    return pa.array([base64.b64encode(key) if flag else key for key, flag in pairs], pa.binary())


def _base64_flags(column: pa.Array) -> pa.Array | None:
    flags = _binary_keys(column)
    return None if flags is None else _where(flags, _BASE64)


def _event_times(column: pa.Array) -> pa.Array:
    times = pc.fill_null(checked_event_times(column), 0)  # 0 is Pulsar's own "no event time"
    encoded = _tagged(_EVENT_TIME, times.to_numpy(zero_copy_only=False).astype(np.int64))
    return pc.if_else(pc.greater(times, 0), encoded, pa.scalar(b"", pa.binary()))


def _properties(column: pa.Array) -> pa.Array:
    encoded: list[bytes] = []
    for pairs in checked_properties(column).to_pylist():
        row = SingleMessageMetadata()
        for name, text in pairs or ():
            row.properties.add(key=name, value=text)
        # payload_size is written by itself.
        encoded.append(row.SerializePartialToString())
    return pa.array(encoded, pa.binary())


# --- reading --------------------------------------------------------------------------------------


def decode(payload: bytes, messages: int) -> pa.RecordBatch:
    """Return a batch's messages as rows with the columns of ``ROW_SCHEMA`` that hold something.

    Raises
    ------
    FrameError
        If the payload is not exactly that many messages.
    """
    if messages < 0 or messages * 6 > len(payload):  # 4 + a metadata of at least 2 bytes
        raise FrameError(
            f"expected a batch of {messages} messages, found {len(payload)} bytes: too few for it"
        )
    try:
        if messages > FEW_TO_DECODE:
            # It takes metadata to be short, and goes astray where it is not.
            with contextlib.suppress(IndexError):
                rows = _decode_plain(payload, messages)
                if rows is not None:
                    return rows
        return _decode_any(payload, messages)
    except (IndexError, DecodeError, UnicodeDecodeError, binascii.Error):
        raise FrameError(
            f"expected a batch of {messages} messages in {len(payload)} bytes, found bytes that "
            "are none: the entry is damaged"
        ) from None


def _decode_plain(payload: bytes, messages: int) -> pa.RecordBatch | None:
    """Decode messages with a value and perhaps a short key, and nothing else; None for others.

    Only where each message begins is found one by one, without a check. Whether all of them are of
    that kind is then checked at once.
    """
    begins: list[int] = []
    note = begins.append
    at = 0
    keyed = messages > 0 and payload[4] == _KEY_TAG
    for _ in range(messages):
        note(at)
        sized = at + 7 + payload[at + 5] if keyed else at + 5
        size = payload[sized]
        if size >= _ONE_BYTE:
            size += (payload[sized + 1] << 7) - _ONE_BYTE
            if size >= _TWO_BYTES:
                size += (payload[sized + 2] << 14) - _TWO_BYTES
        at += 4 + payload[at + 3] + size
    if at != len(payload):
        return None
    return _cut(payload, np.array(begins, np.int64), keyed=keyed)


def _cut(payload: bytes, begins: Sizes, *, keyed: bool) -> pa.RecordBatch | None:
    """Cut keys and values out; None where a message's metadata holds more than that."""
    raw = np.frombuffer(payload, np.uint8)
    tags = begins + 4
    values = tags + raw[begins + 3]
    if (raw[begins] | raw[begins + 1] | raw[begins + 2]).any():
        return None
    if keyed:
        if (raw[tags] != _KEY_TAG).any() or (raw[tags + 1] >= _ONE_BYTE).any():
            return None
        tags = tags + 2 + raw[begins + 5]
    if (raw[tags] != _PAYLOAD_TAG).any():
        return None
    # Of the size's bytes, the last one is the first without a continuation bit.
    sized = tags + 2
    more = raw[tags + 1] >= _ONE_BYTE
    for _ in range(2):
        sized = sized + more
        more = more & (raw[sized - 1] >= _ONE_BYTE)
    if more.any() or not _only_sequence_ids(raw, sized, values):
        return None
    # Four pieces for each message: its key, what is behind it, its value, what is before the next.
    offsets = np.empty(4 * len(begins) + 1, np.int32)
    offsets[0:-1:4] = begins + (6 if keyed else 4)
    offsets[1::4] = offsets[0:-1:4] + (raw[begins + 5] if keyed else 0)
    offsets[2::4] = values
    offsets[3::4] = np.append(begins[1:], len(payload))
    offsets[-1] = len(payload)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
    pieces = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    keys = np.arange(0, len(offsets) - 1, 4, dtype=np.int32)
    arrays = {"value": pieces.take(_indexes(keys + 2))}
    if keyed:
        arrays["key"] = pieces.take(_indexes(keys))
    return pa.RecordBatch.from_pydict(arrays)


def _indexes(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> pa.Array:
    # Not pa.array: its first call in a process imports pandas.
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def _only_sequence_ids(raw: Any, starts: Sizes, ends: Sizes) -> bool:
    """Say whether nothing is in each ``[start, end)`` but the sequence id of other clients."""
    lengths = ends - starts
    if not lengths.any():
        return True
    if lengths.min() < 2 or lengths.max() > 1 + _VARINT_BYTES:  # noqa: PLR2004 - tag and varint
        return False
    if (raw[starts] != _SEQUENCE_TAG).any() or (raw[ends - 1] >= _ONE_BYTE).any():
        return False
    for place in range(1, int(lengths.max()) - 1):
        inside = starts[place < lengths - 1] + place
        if (raw[inside] < _ONE_BYTE).any():
            return False
    return True


def sequence_ids(payload: bytes, messages: int) -> list[int | None]:
    """Return each message's own sequence id; None where only the entry has one.

    Parameters
    ----------
    payload : bytes
        A batch that :func:`decode` accepts.
    messages : int
    """
    rows = (row for row, _ in _each(payload, messages))
    return [signed(row.sequence_id) if row.HasField("sequence_id") else None for row in rows]


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as Java's clients show it, and as Arrow takes it."""
    return (number + _HALF) % (2 * _HALF) - _HALF


def text_of(field: str | bytes) -> str:
    """Return a string of protobuf's, which is bytes if another client wrote no UTF-8 there."""
    return field if isinstance(field, str) else field.decode(errors="replace")


def _key_of(field: str | bytes, *, encoded: bool) -> bytes:
    if isinstance(field, bytes):
        return field
    return base64.b64decode(field, validate=True) if encoded else field.encode()


def _each(payload: bytes, messages: int) -> Iterator[tuple[SingleMessageMetadata, bytes]]:
    """Yield each message's metadata and content.

    Raises
    ------
    IndexError
        If the payload is not exactly that many messages.
    """
    at = 0
    for _ in range(messages):
        size = int.from_bytes(payload[at : at + 4], "big")
        row = SingleMessageMetadata()
        row.ParseFromString(payload[at + 4 : at + 4 + size])
        start = at + 4 + size
        at = start + row.payload_size
        if row.payload_size < 0 or at > len(payload):
            raise IndexError
        yield row, payload[start:at]
    if at != len(payload):
        raise IndexError


def _decode_any(payload: bytes, messages: int) -> pa.RecordBatch:
    rows = []
    for row, content in _each(payload, messages):
        value = None if row.null_value else content
        key: bytes | None = None
        if row.HasField("partition_key") and not row.null_partition_key:
            key = _key_of(row.partition_key, encoded=row.partition_key_b64_encoded)
        # A name may be there twice: the last one counts, as for Pulsar's Java client.
        properties = {text_of(pair.key): text_of(pair.value) for pair in row.properties}
        event_time = signed(row.event_time) or None
        rows.append((value, key, event_time, list(properties.items()) or None))
    columns = list(zip(*rows, strict=True)) or [()] * len(ROW_SCHEMA)
    arrays = {
        field.name: _column(column, field.type)
        for column, field in zip(columns, ROW_SCHEMA, strict=True)
        if field.name == "value" or any(item is not None for item in column)
    }
    return pa.RecordBatch.from_pydict(arrays)


def _column(items: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if not pa.types.is_binary(type_) or None in items:
        return pa.array(items, type_)
    # Not pa.array: its first call in a process imports pandas.
    ends = np.cumsum([0, *map(len, items)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(items))]
    return pa.Array.from_buffers(type_, len(items), buffers)
