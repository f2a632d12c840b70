"""Rows between Spark's columns and a segment log's, in Arrow, without a Python object per row.

Column names follow the pulsar-spark connector, so that moving over is a change of the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_txn_spark.errors import SchemaError
from pulsar_txn_spark.options import METADATA_COLUMNS
from pulsar_txn_spark.segments.log import checked_event_times, checked_properties

VALUE = "value"
KEY = "__key"
TOPIC = "__topic"
MESSAGE_ID = "__messageId"
PUBLISH_TIME = "__publishTime"
EVENT_TIME = "__eventTime"
PROPERTIES = "__messageProperties"
SEGMENT, POSITION, SEQUENCE_ID, PRODUCER_NAME, TOPIC_PARTITION = METADATA_COLUMNS

READ_SCHEMA = StructType(
    [
        StructField(VALUE, BinaryType()),
        StructField(KEY, BinaryType()),
        StructField(TOPIC, StringType()),
        StructField(MESSAGE_ID, BinaryType()),
        StructField(PUBLISH_TIME, TimestampType()),
        StructField(EVENT_TIME, TimestampType()),
        StructField(PROPERTIES, MapType(StringType(), StringType())),
    ]
)
"""What a source yields: value and metadata, as the columns of the pulsar-spark connector."""

POSITION_TYPE = StructType(
    [
        StructField("ledger", LongType()),
        StructField("entry", LongType()),
        StructField("batchIndex", IntegerType()),
    ]
)
"""A message's position: it orders as the messages of a segment do."""

_ON_REQUEST: dict[str, DataType] = {
    SEGMENT: StringType(),
    POSITION: POSITION_TYPE,
    SEQUENCE_ID: LongType(),
    PRODUCER_NAME: StringType(),
    TOPIC_PARTITION: StringType(),
}
"""Columns that a source yields where the option `metadata.columns` asks for them."""

_WRITABLE: dict[str, tuple[type[DataType], ...]] = {
    VALUE: (StringType, BinaryType),
    KEY: (StringType, BinaryType),
    TOPIC: (StringType,),
    EVENT_TIME: (TimestampType, TimestampNTZType, LongType),
    PROPERTIES: (MapType,),
}

_GIVEN_BY_THE_LOG = (MESSAGE_ID, PUBLISH_TIME, *_ON_REQUEST)
"""What a message gets when it is written: nobody can say it before."""

_TEXT = (VALUE, KEY)
"""What can be read as a string, besides as binary."""

_NEEDED = {
    VALUE: frozenset({"value"}),
    KEY: frozenset({"key"}),
    TOPIC: frozenset[str](),
    MESSAGE_ID: frozenset(
        {"ledger", "entry", "batch_index", "batch_size", "first_ledger", "first_entry"}
    ),
    PUBLISH_TIME: frozenset({"publish_time_ms"}),
    EVENT_TIME: frozenset({"event_time_ms"}),
    PROPERTIES: frozenset({"properties"}),
    SEGMENT: frozenset[str](),
    POSITION: frozenset({"ledger", "entry", "batch_index"}),
    SEQUENCE_ID: frozenset({"sequence_id"}),
    PRODUCER_NAME: frozenset({"producer_name"}),
    TOPIC_PARTITION: frozenset[str](),
}


# -- writing -----------------------------------------------------------------------------------


def check_writable(
    schema: StructType, *, default_topic: bool, may_be_insert: bool = False, hint: str = ""
) -> None:
    """Refuse a DataFrame that cannot be written, before the first row.

    INSERT writes every column of its table, with null in those that it does not name. So it may
    have all columns of the source; :func:`to_row_batch` refuses what only a log can give.

    Parameters
    ----------
    schema : StructType
    default_topic : bool
        Whether there is a topic for rows that name none.
    may_be_insert : bool
        Whether the write may be an INSERT of SQL.
    hint : str
        What may help if there is no topic.

    Raises
    ------
    SchemaError
        Naming the column, its type and what was expected.
    """
    names = [field.name for field in schema.fields]
    if VALUE not in names:
        raise SchemaError(
            f"the DataFrame has no column 'value' (found: {', '.join(names) or 'none'}): expected "
            "the message in 'value' as string or binary, for example with "
            "selectExpr('to_json(struct(*)) AS value')"
        )
    _refuse_repeated(names)
    of_table = may_be_insert and set(names) >= set(READ_SCHEMA.names)
    for field in schema.fields:
        expected = _WRITABLE.get(field.name)
        if expected is None and of_table and field.name in _GIVEN_BY_THE_LOG:
            continue
        if expected is None:
            raise SchemaError(
                f"the DataFrame has a column {field.name!r} that has no place in a message: "
                f"expected some of {', '.join(_WRITABLE)}. Drop it or put it into 'value'"
            )
        fits = isinstance(field.dataType, expected)
        if isinstance(field.dataType, MapType):
            fits = isinstance(field.dataType.keyType, StringType) and isinstance(
                field.dataType.valueType, StringType
            )
        if not fits:
            wanted = " or ".join(kind.typeName() for kind in expected)
            if field.name == PROPERTIES:
                wanted = "map<string,string>"
            raise SchemaError(
                f"column {field.name!r} is of type {field.dataType.simpleString()}, expected "
                f"{wanted}"
            )
    if not default_topic and TOPIC not in names:
        raise SchemaError(
            "no topic to write to: give the option 'topic', or a column '__topic' that names each "
            f"row's{hint}"
        )


def _refuse_repeated(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(
                f"the DataFrame has {names.count(name)} columns {name!r}: which of them goes into "
                "the message cannot be told. Drop or rename all but one"
            )


def to_row_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Turn a batch of a checked DataFrame into a row batch of the segment log.

    Raises
    ------
    SchemaError
        If a row has what only a log can give.
    """
    names = batch.schema.names
    for name in _GIVEN_BY_THE_LOG:
        if name in names and batch.column(names.index(name)).null_count < batch.num_rows:
            raise SchemaError(
                f"a row has a {name!r}, which a message gets only when it is written: name the "
                f"columns to write, some of {', '.join(_WRITABLE)}. Nothing of this write becomes "
                "visible"
            )
    arrays = [_binary(batch.column(names.index(VALUE)))]
    fields = ["value"]
    if KEY in names:
        arrays.append(_binary(batch.column(names.index(KEY))))
        fields.append("key")
    if EVENT_TIME in names:
        arrays.append(checked_event_times(_milliseconds(batch.column(names.index(EVENT_TIME)))))
        fields.append("event_time_ms")
    if PROPERTIES in names:
        properties = batch.column(names.index(PROPERTIES))
        arrays.append(checked_properties(properties.cast(pa.map_(pa.string(), pa.string()))))
        fields.append("properties")
    return pa.RecordBatch.from_arrays(arrays, names=fields)


def topics_of(batch: pa.RecordBatch) -> pa.Array | None:
    """Return the batch's column of topics, if it has one."""
    names = batch.schema.names
    if TOPIC not in names:
        return None
    return batch.column(names.index(TOPIC)).cast(pa.string())


def _binary(array: pa.Array) -> pa.Array:
    return array if array.type == pa.binary() else array.cast(pa.binary())


def _milliseconds(array: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(array.type):
        # Times before the millisecond are cut off: a message's event time has no more.
        return array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False).cast(pa.int64())
    return array.cast(pa.int64())


# -- reading -----------------------------------------------------------------------------------


def schema_of(metadata_columns: Sequence[str]) -> StructType:
    """Return the source's columns, with those of the option `metadata.columns` at the end."""
    more = [StructField(name, _ON_REQUEST[name]) for name in metadata_columns]
    return StructType([*READ_SCHEMA.fields, *more])


def check_readable(schema: StructType) -> None:
    """Refuse a schema that is no selection of the source's own columns.

    Value and key may be strings: a value that is no UTF-8 fails the read.

    Raises
    ------
    SchemaError
    """
    own = {field.name: field.dataType for field in READ_SCHEMA.fields} | _ON_REQUEST
    for field in schema.fields:
        is_text = field.name in _TEXT and field.dataType == StringType()
        if own.get(field.name) != field.dataType and not is_text:
            wanted = ", ".join(
                f"{name} {kind.simpleString()}{' or string' if name in _TEXT else ''}"
                for name, kind in own.items()
            )
            raise SchemaError(
                f"the source has no column {field.name!r} of type {field.dataType.simpleString()}: "
                f"a schema given to it may only select among {wanted}. Parse 'value' with "
                "from_json or from_avro after reading"
            )


def needed_columns(schema: StructType) -> frozenset[str]:
    """Return the segment log's columns that a schema needs."""
    needed = frozenset[str]().union(*(_NEEDED[field.name] for field in schema.fields))
    # A count alone needs no column, but a batch needs one to have rows.
    return needed or frozenset({"batch_index"})


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Where rows come from, which no row says itself.

    Parameters
    ----------
    topic : str
        Full name.
    partition : int
        That of a partitioned native topic, -1 elsewhere.
    segment : str
        The segment's descriptor, as it stands in offsets.
    log : str
        Name of the log: a topic of Pulsar's, or the id of an embedded segment.
    """

    topic: str
    partition: int = -1
    segment: str = ""
    log: str = ""


def to_spark_batches(
    batches: Iterator[pa.RecordBatch],
    schema: StructType,
    arrow_schema: pa.Schema,
    origin: RowOrigin,
) -> Iterator[pa.RecordBatch]:
    """Turn row batches of the segment log into batches of the source's schema.

    Raises
    ------
    SchemaError
        If a value or key is to be a string and is no text.
    """
    for batch in batches:
        arrays = [
            _cast(field.name, _column(field.name, batch, origin), origin.topic, arrow_schema)
            for field in schema.fields
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema)


_LAST_MS = (2**63 - 1) // 1000  # the last millisecond that a timestamp of Spark can be


def _cast(name: str, array: pa.Array, topic: str, arrow_schema: pa.Schema) -> pa.Array:
    wanted = arrow_schema.field(name).type
    if array.type == wanted:  # a cast that changes nothing takes as long as one of many rows
        return array
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        if pa.types.is_timestamp(wanted):
            at = pc.min_element_wise(array.cast(pa.int64()), _LAST_MS, skip_nulls=False)
            at = pc.max_element_wise(at, -_LAST_MS, skip_nulls=False)
            return at.cast(array.type).cast(wanted)
        if name not in _TEXT:
            raise
        raise SchemaError(
            f"a row of {topic} has a {name!r} that is no text in UTF-8: read the column as BINARY"
        ) from None


def _column(name: str, batch: pa.RecordBatch, origin: RowOrigin) -> pa.Array:
    constant = {TOPIC: origin.topic, SEGMENT: origin.segment, TOPIC_PARTITION: origin.log}.get(name)
    if constant is not None:
        return pa.repeat(pa.scalar(constant, pa.string()), batch.num_rows)
    if name == MESSAGE_ID:
        return message_ids(
            *(
                batch.column(column).to_numpy(zero_copy_only=False)
                for column in ("ledger", "entry", "batch_index", "batch_size")
            ),
            partition=origin.partition,
            firsts=_first_chunks(batch),
        )
    if name == POSITION:
        parts = [batch.column(part) for part in ("ledger", "entry", "batch_index")]
        return pa.StructArray.from_arrays(parts, POSITION_TYPE.fieldNames())
    if name == PUBLISH_TIME:
        return _timestamps(batch.column("publish_time_ms"))
    if name == EVENT_TIME:
        return _timestamps(batch.column("event_time_ms"))
    return batch.column(_AS_IT_IS[name])


_AS_IT_IS = {
    VALUE: "value",
    KEY: "key",
    PROPERTIES: "properties",
    SEQUENCE_ID: "sequence_id",
    PRODUCER_NAME: "producer_name",
}


def _timestamps(milliseconds: pa.Array) -> pa.Array:
    return milliseconds.cast(pa.timestamp("ms", tz="UTC"))


def message_ids(
    ledgers: np.ndarray,
    entries: np.ndarray,
    indices: np.ndarray,
    sizes: np.ndarray,
    *,
    partition: int = -1,
    firsts: Mapping[int, tuple[int, int]] | None = None,
) -> pa.Array:
    """Return serialized message ids, as Pulsar's clients read them.

    The form is Pulsar's ``MessageIdData`` (PulsarApi.proto): ledgerId = 1, entryId = 2,
    partition = 3, batch_index = 4, batch_size = 6, first_chunk_message_id = 7. `firsts` gives, by
    row, ledger and entry of the first chunk of a message in several. Without it, a reader that
    seeks to the message would start within it, and skip it.
    """
    rows = len(ledgers)
    if rows == 0:
        return pa.array([], pa.binary())
    new = np.flatnonzero((np.diff(ledgers) != 0) | (np.diff(entries) != 0)) + 1
    starts = [0, *new.tolist()]
    ends = [*new.tolist(), rows]
    ids: list[bytes] = []
    for start, end in zip(starts, ends, strict=True):
        head = _entry_id(int(ledgers[start]), int(entries[start]), partition)
        if firsts and start in firsts:
            first = _entry_id(*firsts[start], partition)
            head += b"\x3a" + _varint(len(first)) + first
        size = int(sizes[start])
        if size <= 0:
            ids += [head] * (end - start)
            continue
        tail = b"\x30" + _varint(size)
        ids += [head + _batch_index(index) + tail for index in indices[start:end].tolist()]
    return pa.array(ids, pa.binary())


def _entry_id(ledger: int, entry: int, partition: int) -> bytes:
    message_id = b"\x08" + _varint(ledger) + b"\x10" + _varint(entry)
    return message_id + b"\x18" + _varint(partition) if partition >= 0 else message_id


def _first_chunks(batch: pa.RecordBatch) -> dict[int, tuple[int, int]]:
    """Return, by row, where a message begins that lies in several entries."""
    ledgers, entries = batch.column("first_ledger"), batch.column("first_entry")
    if ledgers.null_count == batch.num_rows:
        return {}
    rows = pc.indices_nonzero(ledgers.is_valid()).to_pylist()
    return {row: (ledgers[row].as_py(), entries[row].as_py()) for row in rows}


@cache
def _batch_index(index: int) -> bytes:
    return b"\x20" + _varint(index)


_SEVEN_BITS = 0x7F


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > _SEVEN_BITS:
        out.append(number & _SEVEN_BITS | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
