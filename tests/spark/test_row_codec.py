"""Rows that a worker hands over one by one are the same messages as Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_txn_spark.backports import UTC
from pulsar_txn_spark.spark import row_codec
from pulsar_txn_spark.spark.row_codec import record_batches
from pulsar_txn_spark.spark.rows import to_row_batch
from pulsar_txn_spark.spark.versions import arrow_schema

SCHEMA = (
    StructType()
    .add("value", BinaryType())
    .add("__key", StringType())
    .add("__topic", StringType())
    .add("__eventTime", TimestampType())
    .add("__messageProperties", MapType(StringType(), StringType()))
)
AT = datetime(2026, 7, 1, 12, 30, 45, 123_456, UTC)
NOON = datetime(2026, 7, 1, 12)  # noqa: DTZ001 - without a zone on purpose


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kolkata"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def local(at: datetime) -> datetime:
    """Return a time as Spark's rows have it: in the worker's zone, without saying so."""
    return at.astimezone().replace(tzinfo=None)


def batch_of(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = [list(column) for column in zip(*rows, strict=True)]
    target = arrow_schema(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, target, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def test_rows_become_the_batch_that_an_arrow_writer_gets(zone: str) -> None:
    as_rows = [
        (bytearray(b"a"), "k", "out", local(AT), {"x": "1", "y": "2"}),
        (b"", None, None, None, None),
    ]
    expected = batch_of(
        (b"a", "k", "out", AT, [("x", "1"), ("y", "2")]), (b"", None, None, None, None)
    )
    [found] = record_batches(iter(as_rows), SCHEMA)
    assert found.equals(expected, check_metadata=True)
    assert to_row_batch(found).equals(to_row_batch(expected))


def test_batches_are_handed_on_untouched() -> None:
    first, second = (batch_of((value, "k", "out", AT, [])) for value in (b"a", b"b"))
    found = list(record_batches(iter([first, second]), SCHEMA))
    assert found[0] is first
    assert found[1] is second


def test_no_rows_are_no_batches() -> None:
    assert list(record_batches(iter([]), SCHEMA)) == []


def test_many_rows_become_batches_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_codec, "_MAX_ROWS", 3)
    schema = StructType().add("value", StringType())
    taken = 0

    def rows() -> Iterator[tuple[str]]:
        nonlocal taken
        for number in range(7):
            taken += 1
            yield (str(number),)

    batches = record_batches(rows(), schema)
    assert next(batches).num_rows == 3
    assert taken == 3, "rows are taken as they are written, not all at once"
    assert [batch.num_rows for batch in batches] == [3, 1]


@pytest.mark.parametrize(
    "kind, given, expected",
    [
        (LongType(), 1_700_000_000_123, 1_700_000_000_123),
        (TimestampNTZType(), NOON, NOON),
    ],
    ids=["long", "timestamp_ntz"],
)
def test_an_event_time_of_another_type_is_taken_as_it_is(
    kind: LongType | TimestampNTZType, given: object, expected: object
) -> None:
    [found] = record_batches([(given,)], StructType().add("__eventTime", kind))
    assert found.column(0).to_pylist() == [expected]
