"""An entry's payload: rows as one Arrow IPC message.

Format, version 1:

- byte 0: the version;
- byte 1: a bit for each column of ``ROW_SCHEMA`` that is present;
- six zero bytes, so that the rest is aligned for reading in place;
- an encapsulated Arrow IPC record batch message of these columns.

The schema is not stored: the bits imply it, which saves some 400 bytes an entry. A column that is
null in every row is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark.errors import MessageTooLargeError, SchemaError, SegmentLogError
from pulsar_txn_spark.segments.log import READ_SCHEMA, ROW_SCHEMA

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""Largest message, value, key and properties together: Pulsar's default ``maxMessageSize``."""

ENTRY_BYTES = 1024 * 1024
"""An entry is filled up to this; only a single message may be larger."""

_ROW_BYTES = 8  # what a row takes beside its bytes: where each column of it ends

Sizes = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
"""Bytes of each row."""

_VERSION = 1
_HEADER_BYTES = 8
_INDEX_ROWS = 16_384


def _count_up(count: int) -> pa.Array:
    # Not pa.array: its first call in a process imports pandas, 0.2 s that a batch would wait for.
    numbers = pa.py_buffer(np.arange(count, dtype=np.int32))
    return pa.Array.from_buffers(pa.int32(), count, [None, numbers])


_INDEXES = _count_up(_INDEX_ROWS)  # sliced for batch_index instead of made anew


def encode(rows: pa.RecordBatch) -> bytes:
    """Return the payload of one entry."""
    columns = 0
    for name in rows.schema.names:
        columns |= 1 << ROW_SCHEMA.get_field_index(name)
    header = bytes((_VERSION, columns)).ljust(_HEADER_BYTES, b"\0")
    return b"".join((header, rows.serialize()))


def decode(payload: bytes, messages: int) -> pa.RecordBatch:
    """Return the rows of an entry without copying them.

    Raises
    ------
    SegmentLogError
        If the payload is of another format version, or does not hold as many rows as it should.
    """
    if payload[0] != _VERSION:
        raise SegmentLogError(
            f"Expected an entry of format version {_VERSION}, found version {payload[0]}: it was "
            "written by another release of pulsar-txn-spark. Upgrade this side."
        )
    fields = [field for i, field in enumerate(ROW_SCHEMA) if payload[1] >> i & 1]
    if not fields:
        empty = pa.nulls(messages, ROW_SCHEMA.field("value").type)
        return pa.record_batch([empty], names=["value"])
    message = pa.py_buffer(payload).slice(_HEADER_BYTES)
    rows = pa.ipc.read_record_batch(message, pa.schema(fields))
    if rows.num_rows != messages:
        raise SegmentLogError(
            f"Expected an entry of {messages} messages, found {rows.num_rows}: the payload does "
            "not belong to its index record. The log is damaged."
        )
    return rows


def present(
    rows: pa.RecordBatch,
    columns: frozenset[str],
    *,
    ledger: int,
    entry: int,
    publish_time_ms: int,
    producer_name: str,
    sequence_id: int | None = None,
) -> pa.RecordBatch:
    """Return an entry's rows with the asked-for columns, in ``READ_SCHEMA``'s order."""
    count = rows.num_rows
    constants: dict[str, int | str | None] = {
        "publish_time_ms": publish_time_ms,
        "producer_name": producer_name,
        "sequence_id": sequence_id,
        "ledger": ledger,
        "entry": entry,
        "batch_size": count,
    }
    arrays: list[pa.Array] = []
    fields = [field for field in READ_SCHEMA if field.name in columns]
    for field in fields:
        if field.name == "batch_index":
            arrays.append(_indexes(count))
        elif field.name in constants:
            arrays.append(pa.repeat(pa.scalar(constants[field.name], field.type), count))
        elif field.name in rows.schema.names:
            arrays.append(rows.column(field.name))
        else:
            arrays.append(pa.nulls(count, field.type))
    if not fields:  # a batch without columns has to be made in this way to know its length
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _indexes(count: int) -> pa.Array:
    if count <= len(_INDEXES):
        return _INDEXES.slice(0, count)
    return _count_up(count)


def normalize(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the columns that are null in every row, after checking names and types.

    Raises
    ------
    SchemaError
        If a column is not one of ``ROW_SCHEMA``.
    """
    kept = []
    for field in rows.schema:
        index = ROW_SCHEMA.get_field_index(field.name)
        if index < 0 or ROW_SCHEMA.field(index).type != field.type:
            raise SchemaError(
                f"Expected columns out of {ROW_SCHEMA.names} with the types of ROW_SCHEMA, found "
                f"{field.name!r} of type {field.type}."
            )
        if rows.column(field.name).null_count < rows.num_rows:
            kept.append((index, field.name))
    names = [name for _, name in sorted(kept)]
    if names:
        return rows.select(names)
    return rows.select(["value"]) if "value" in rows.schema.names else _all_null(rows.num_rows)


def _all_null(count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(count, pa.binary())], names=["value"])


def combine(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of normalized batches as one; missing columns become null."""
    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    joined = pa.concat_tables(tables, promote_options="default")
    names = [name for name in ROW_SCHEMA.names if name in joined.schema.names]
    (batch,) = joined.select(names).combine_chunks().to_batches()
    return batch


def split(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a normalized batch into slices of equal size, each of :data:`ENTRY_BYTES` at most.

    Raises
    ------
    MessageTooLargeError
        If one message is larger than :data:`MAX_MESSAGE_BYTES`; before the first slice.
    """
    if rows.nbytes <= ENTRY_BYTES:
        yield rows
        return
    sizes = payload_sizes(rows)
    if "properties" in rows.schema.names:
        sizes = sizes + _property_sizes(rows.column("properties"))
    _check_largest(int(sizes.max()))
    # Rows without a byte of their own count too: else many of them would be cut into no slice.
    ends = np.cumsum(sizes + _ROW_BYTES)
    total = int(ends[-1])
    parts = -(-total // ENTRY_BYTES)
    start = 0
    for part in range(1, parts + 1):
        stop = rows.num_rows
        if part < parts:
            stop = int(np.searchsorted(ends, total * part // parts, side="right"))
        if stop > start:
            yield rows.slice(start, stop - start)
            start = stop


def payload_sizes(rows: pa.RecordBatch) -> Sizes:
    """Return the bytes of each row's value and key."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("value", "key"):
        if name in rows.schema.names:
            sizes += lengths(rows.column(name))
    return sizes


def lengths(column: pa.Array) -> Sizes:
    """Return the bytes of each value of a binary column, 0 for null."""
    byte_lengths = pc.binary_length(column)
    if byte_lengths.null_count:
        byte_lengths = pc.fill_null(byte_lengths, 0)
    sizes: Sizes = byte_lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes


def _property_sizes(properties: pa.MapArray) -> Sizes:
    # keys and items are those of the whole array, also where this is a slice of it: offsets fit.
    ends = np.cumsum(lengths(properties.keys) + lengths(properties.items))
    sizes: Sizes = np.diff(np.append(0, ends)[properties.offsets.to_numpy()])
    return sizes


def _check_largest(largest: int) -> None:
    if largest > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"A message of {largest} bytes (value, key and properties) was to be written; the "
            f"limit is {MAX_MESSAGE_BYTES} bytes, Pulsar's default. Store large values elsewhere "
            "and write a reference to them, or split them."
        )
