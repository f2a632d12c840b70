"""A table of Spark's catalog keeps its options in its columns, and nothing else takes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import StringType, StructField, StructType

from pulsar_txn_spark.errors import OptionError, SchemaError, TopicNotFoundError
from pulsar_txn_spark.options import from_comment
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource
from pulsar_txn_spark.spark.rows import KEY, MESSAGE_ID, READ_SCHEMA, VALUE
from pulsar_txn_spark.spark.sink.writers import PulsarTxnWriter
from pulsar_txn_spark.spark.source.batch import PulsarTxnReader
from pulsar_txn_spark.spark.versions import arrow_schema
from tests.support.sink_calls import SCHEMA, Spark


@pytest.fixture
def spark(redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Spark:
    return Spark(redis_path, monkeypatch)


def created(options: dict[str, str]) -> StructType:
    """Return what the data source answers to CREATE TABLE with these options."""
    doubles = {f"option.{key}": text for key, text in options.items()}
    properties = {"provider": "pulsar_txn", "owner": "me", "path": "file:/warehouse/t"}
    return PulsarTxnDataSource({**properties, **options, **doubles}).schema()


def writer(options: dict[str, str], schema: StructType) -> PulsarTxnWriter:
    made = PulsarTxnDataSource(options).writer(schema, overwrite=False)
    assert isinstance(made, PulsarTxnWriter)
    return made


def rows(schema: StructType, *values: str, **columns: Any) -> pa.RecordBatch:
    """Return rows as Spark writes them, with null in the columns that are not named."""
    arrow = arrow_schema(schema)
    columns = {VALUE: [value.encode() for value in values], **columns}
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(f.name, [None] * len(values)), f.type) for f in arrow], schema=arrow
    )


# -- CREATE TABLE ----------------------------------------------------------------------------------


def test_a_table_has_the_columns_of_the_source_and_keeps_its_options(spark: Spark) -> None:
    schema = created({**spark.options, "sinkid": "w"})
    assert [(f.name, f.dataType) for f in schema] == [(f.name, f.dataType) for f in READ_SCHEMA]
    [carrier] = [field for field in schema if field.metadata]
    assert carrier.name == MESSAGE_ID
    comment = carrier.metadata["comment"]
    assert from_comment(comment) == {**spark.options, "sinkid": "w"}
    assert PulsarTxnDataSource(spark.options).schema() == READ_SCHEMA, "no table, no options"


def test_a_table_keeps_the_folder_that_its_options_meant_where_it_was_made(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(spark.options["store.path"])
    monkeypatch.chdir(folder.parent)
    table = created({**spark.options, "store.path": folder.name})
    monkeypatch.chdir("/")
    reader: Any = PulsarTxnDataSource({}).reader(table)
    assert reader._options.store.path == str(folder)


@pytest.mark.parametrize(
    "options,error,words",
    [
        ({"topik": "out"}, OptionError, "did you mean 'topic'"),
        ({"topic": "never-created"}, TopicNotFoundError, "never-created"),
        ({"topic": "out", "sinkid": "a|b"}, OptionError, "'sinkId'"),
        ({"topic": "out", "store.password": "hunter2"}, OptionError, "'options.file'"),
        ({}, OptionError, "no topic to read"),
    ],
)
def test_a_table_is_refused_before_it_is_made(
    spark: Spark, options: dict[str, str], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        created({"store.path": spark.options["store.path"], **options})
    assert "hunter2" not in str(caught.value)


# -- reading ---------------------------------------------------------------------------------------


def test_a_table_is_read_with_its_options_unless_the_query_names_others(spark: Spark) -> None:
    table = created({**spark.options, "failondataloss": "false", "sinkid": "w"})
    for given, expected in (({}, False), ({"failOnDataLoss": "true"}, True)):
        reader = PulsarTxnDataSource(given).reader(table)
        assert isinstance(reader, PulsarTxnReader)
        assert reader._options.get("failOnDataLoss") is expected
        assert reader._options.raw["topic"] == spark.options["topic"]
    stream: Any = PulsarTxnDataSource({}).streamReader(table)
    assert stream._options.raw["topic"] == spark.options["topic"]


def test_a_table_with_a_list_of_columns_has_no_options_and_says_what_to_do(spark: Spark) -> None:
    with pytest.raises(OptionError, match=r"SELECT \* FROM t WITH \(topic"):
        PulsarTxnDataSource({}).reader(SCHEMA)
    with pytest.raises(SchemaError, match=r"INSERT INTO t WITH"):
        writer({}, SCHEMA)
    with pytest.raises(SchemaError, match=r"no topic to write to") as caught:
        writer({"store.path": spark.options["store.path"]}, SCHEMA)
    assert "INSERT" not in str(caught.value)


# -- INSERT ----------------------------------------------------------------------------------------


def test_insert_writes_in_one_transaction_to_the_table_that_it_names(spark: Spark) -> None:
    table = created(spark.options)
    made = writer({}, table)
    results = []
    for spark.partition, values in enumerate((("a", "b"), ("c",))):
        results.append(made.write(iter([rows(table, *values, **{KEY: [b"k"] * len(values)})])))
    assert spark.visible() == Counter()
    made.commit(results)
    assert spark.visible() == Counter("abc")


@pytest.mark.parametrize("name", [MESSAGE_ID, "__publishTime"])
def test_what_only_a_log_gives_is_not_written(spark: Spark, name: str) -> None:
    # A DataFrame that was read from a table names its topic: it must not be written back to it.
    table = created(spark.options)
    made = writer({}, table)
    with pytest.raises(SchemaError, match=f"'{name}', which a message gets only when"):
        made.write(iter([rows(table, "a", "b", **{name: [None, 1 if name[2] == "p" else b"x"]})]))
    made.abort([])
    assert spark.visible() == Counter()


def test_a_dataframe_with_some_columns_of_a_table_is_refused_before_its_first_row(
    spark: Spark,
) -> None:
    table = created(spark.options)
    some = StructType([table[VALUE], table[MESSAGE_ID]])
    with pytest.raises(SchemaError, match="column '__messageId' that has no place"):
        writer(spark.options, some)
    with pytest.raises(SchemaError, match="column '__messageId' that has no place"):
        PulsarTxnDataSource(spark.options).streamWriter(table, overwrite=False)
    without = StructType([table[VALUE]])
    with pytest.raises(SchemaError, match="no topic to write to"):
        writer({}, without)


# -- a schema that the user gives ------------------------------------------------------------------


def test_a_schema_selects_columns_and_reads_value_and_key_as_text(spark: Spark) -> None:
    spark.micro_batch("a", "b")
    schema = StructType([StructField(KEY, StringType()), StructField(VALUE, StringType())])
    reader = PulsarTxnDataSource(spark.options).reader(schema)
    batches: list[Any] = [b for part in reader.partitions() for b in reader.read(part)]
    found = sorted((row[KEY], row[VALUE]) for batch in batches for row in batch.to_pylist())
    assert found == [("key-a", "a"), ("key-b", "b")]


def test_a_value_that_is_no_text_is_an_error_that_names_the_remedy(spark: Spark) -> None:
    binary = READ_SCHEMA[VALUE]
    made = writer(spark.options, StructType([binary]))
    made.commit([made.write(iter([pa.record_batch([pa.array([b"\xff"])], ["value"])]))])
    reader = PulsarTxnDataSource(spark.options).reader(StructType([SCHEMA[VALUE]]))
    [part] = [part for part in reader.partitions() if getattr(part, "ranges", None)]
    with pytest.raises(SchemaError, match="'value' that is no text in UTF-8"):
        list(reader.read(part))


@pytest.mark.parametrize(
    "name,kind", [("colour", "string"), ("__topic", "integer"), (VALUE, "integer")]
)
def test_a_schema_with_other_columns_is_refused(name: str, kind: str) -> None:
    with pytest.raises(SchemaError, match=f"no column '{name}' of type {kind[:3]}"):
        PulsarTxnDataSource({"topic": "t"}).reader(StructType().add(name, kind))
