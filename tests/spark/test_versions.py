"""What stands in for the names that an older PySpark lacks."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import datasource
from pyspark.sql.pandas import types as pandas_types
from pyspark.sql.types import LongType, StructType, TimestampType

from pulsar_txn_spark.spark import versions
from pulsar_txn_spark.spark.versions import FEATURES, Feature


def on_older_pyspark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the module as PySpark 4.0 would."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delattr(datasource, "DataSourceStreamArrowWriter")
    original = pandas_types.to_arrow_schema

    def to_arrow_schema(
        schema: StructType,
        error_on_duplicated_field_names_in_struct: bool = False,
        timestamp_utc: bool = True,
        prefers_large_types: bool = False,
    ) -> Any:
        return original(schema, timezone="UTC" if timestamp_utc else None)

    monkeypatch.setattr(pandas_types, "to_arrow_schema", to_arrow_schema)
    assert versions.__file__
    spec = importlib.util.spec_from_file_location("older_versions", versions.__file__)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "older_versions", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.attribute)
def test_this_pyspark_has_each_feature(feature: Feature) -> None:
    assert feature.is_available()


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.attribute)
def test_a_feature_is_told_by_its_name_in_pyspark(
    monkeypatch: pytest.MonkeyPatch, feature: Feature
) -> None:
    monkeypatch.delattr(f"{feature.module}.{feature.attribute}")
    assert not feature.is_available()
    monkeypatch.setitem(sys.modules, feature.module, None)
    assert not feature.is_available()


def test_an_older_pyspark_has_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    older = on_older_pyspark(monkeypatch)
    assert [feature.is_available() for feature in older.FEATURES] == [False] * len(FEATURES)
    # The workers of Spark 4.0 ask for this class, and hand over Arrow batches.
    assert issubclass(older.DataSourceStreamArrowWriter, datasource.DataSourceArrowWriter)
    assert issubclass(older.DataSourceStreamArrowWriter, datasource.DataSourceStreamWriter)
    assert not isinstance(older.ReadMaxRows(7), older.ReadAllAvailable)
    assert older.ReadMaxRows(7).max_rows == older.ReadMaxBytes(7).max_bytes == 7


@pytest.mark.parametrize("is_older", [False, True])
def test_times_are_in_utc_on_each_pyspark(monkeypatch: pytest.MonkeyPatch, is_older: bool) -> None:
    module = on_older_pyspark(monkeypatch) if is_older else versions
    schema = StructType().add("at", TimestampType()).add("n", LongType())
    assert module.arrow_schema(schema).types == [pa.timestamp("us", tz="UTC"), pa.int64()]
