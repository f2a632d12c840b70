"""Columns that a source has on request: where a row stands, and who wrote it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import LongType, StructType

from pulsar_txn_spark.client.message import moment
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import OptionError, SchemaError
from pulsar_txn_spark.options import METADATA_COLUMNS, Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.spark.rows import POSITION_TYPE, READ_SCHEMA, check_writable

TOPIC = TopicName.parse("in")
PULSAR = {"service.url": "pulsar://localhost:1", "admin.url": "http://localhost:1"}


def rows(given: dict[str, str], schema: StructType | None = None) -> list[dict[str, Any]]:
    """Read a topic as Spark does, without Spark."""
    source = PulsarTxnDataSource(dict(given))
    reader = source.reader(schema or source.schema())
    found: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            assert isinstance(batch, pa.RecordBatch)
            found += batch.to_pylist()
    return found


def test_columns_on_request_follow_the_others_and_say_where_a_row_stands(
    redis_path: str, redis_client: redis.Redis
) -> None:
    run = open_components(Options({"store.path": redis_path}, Use.CONNECT))
    [segment] = run.topics.create(TOPIC, 1).active
    for values in (["a"], ["b", "c"]):
        writer = run.log.writer(segment.ref, f"writer of {values[0]}")
        writer.append(pa.record_batch([pa.array(v.encode() for v in values)], names=["value"]))
        last = writer.flush().last
        writer.close()
        assert last is not None
        run.store.segments.raise_high(segment.ref.id, last)
    given = {"store.path": redis_path, "topic": "in"}
    assert list(rows(given)[0]) == READ_SCHEMA.names
    asked = given | {"metadata.columns": "__producername, " + ", ".join(METADATA_COLUMNS[:3])}
    found = rows(asked)
    assert list(found[0]) == [*READ_SCHEMA.names, "__producerName", *METADATA_COLUMNS[:3]]
    assert [row["__producerName"] for row in found] == ["writer of a", *["writer of b"] * 2]
    assert {row["__segment"] for row in found} == {"0000-ffff-0"}
    assert [tuple(row["__position"].values()) for row in found] == [(1, 0, 0), (1, 1, 0), (1, 1, 1)]
    assert {row["__sequenceId"] for row in found} == {None}
    # A schema that is given asks for them as well.
    chosen = StructType().add("__topicPartition", "string").add("__position", POSITION_TYPE)
    [first, *_] = rows(given, chosen)
    assert first["__topicPartition"] == segment.ref.id
    with pytest.raises(SchemaError, match="__position"):
        rows(given, StructType().add("__position", LongType()))


def test_a_column_that_pulsars_client_cannot_fill_is_refused() -> None:
    given = {**PULSAR, "topic": "in", "metadata.columns": "__sequenceId", "transport": "client"}
    with pytest.raises(OptionError, match=r"__sequenceId needs the transport 'wire'.*option"):
        PulsarTxnDataSource(dict(given)).schema()


def test_a_column_on_request_is_not_written() -> None:
    schema = StructType().add("value", "string").add("__producerName", "string")
    with pytest.raises(SchemaError, match=r"__producerName.*has no place in a message"):
        check_writable(schema, default_topic=True)


def test_of_an_event_time_that_is_no_timestamp_the_nearest_one_is_shown(
    redis_path: str, redis_client: redis.Redis
) -> None:
    """Some producers write nanoseconds; one such message must not stop a source for ever."""
    run = open_components(Options({"store.path": redis_path}, Use.CONNECT))
    [segment] = run.topics.create(TOPIC, 1).active
    at = [1_700_000_000_123, 1_700_000_000_123_000_000, None, -(2**63)]
    writer = run.log.writer(segment.ref, "w")
    columns = {"value": [b"v"] * len(at), "event_time_ms": at}
    writer.append(pa.record_batch(columns))
    last = writer.flush().last
    writer.close()
    assert last is not None
    run.store.segments.raise_high(segment.ref.id, last)
    given = {"store.path": redis_path, "topic": "in"}
    reader = PulsarTxnDataSource(dict(given)).reader(StructType().add("__eventTime", "timestamp"))
    [batch] = [b for p in reader.partitions() for b in reader.read(p)]
    assert isinstance(batch, pa.RecordBatch)
    shown = batch.column(0).cast(pa.int64()).to_pylist()
    last_ms = (2**63 - 1) // 1000
    assert shown == [1_700_000_000_123_000, last_ms * 1000, None, -last_ms * 1000]
    [message, beyond, *_] = [moment(ms) for ms in at if ms is not None]
    assert (message.year, beyond.year) == (2023, 9999)
