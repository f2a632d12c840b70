"""Rows as Spark's row-wise writers get them, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, MapType, StructType, TimestampType

from pulsar_txn_spark.backports import UTC
from pulsar_txn_spark.spark.versions import arrow_schema

_MAX_ROWS = 10_000  # of an Arrow batch: Spark's own default


def record_batches(items: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Return what a worker hands over as Arrow batches, whether it is those or rows.

    Parameters
    ----------
    items : iterable of RecordBatch, or of Row
    schema : StructType
        Of the rows. Its types are those that ``rows.check_writable`` allows.
    """
    iterator = iter(items)
    for first in iterator:
        rest = chain([first], iterator)
        if isinstance(first, pa.RecordBatch):
            yield from rest
            return
        yield from _batches_of_rows(rest, schema)


def _batches_of_rows(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    target = arrow_schema(schema)
    converters = [_converter(field.dataType) for field in schema.fields]
    while part := list(islice(rows, _MAX_ROWS)):
        columns = (
            pa.array([convert(row[at]) for row in part], target.field(at).type)
            for at, convert in enumerate(converters)
        )
        yield pa.RecordBatch.from_arrays(list(columns), schema=target)


def _converter(kind: DataType) -> Callable[[Any], Any]:
    if isinstance(kind, TimestampType):
        return _utc
    if isinstance(kind, MapType):
        return _pairs
    return _as_it_is


def _utc(time: datetime | None) -> datetime | None:
    # Spark's rows have times without a zone, which mean the worker's.
    return None if time is None else time.astimezone(UTC)


def _pairs(entries: dict[str, str] | None) -> list[tuple[str, str]] | None:
    return None if entries is None else list(entries.items())


def _as_it_is(value: Any) -> Any:
    return value
