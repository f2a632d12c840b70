"""The data source ``pulsar_txn``. Spark finds it by the top-level module ``pyspark_pulsar_txn``."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pulsar_txn_spark.errors import EnvironmentTooOldError

FORMAT = "pulsar_txn"
_LEAST_SPARK = (4, 2)  # latestOffset(start, limit), admission control and AvailableNow came with it
_LEAST_PYTHON = (3, 11)


def require_environment() -> None:
    """Refuse a PySpark or Python that is too old.

    Raises
    ------
    EnvironmentTooOldError
    """
    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < _LEAST_SPARK:
        raise EnvironmentTooOldError(
            f"PySpark {pyspark.__version__} is too old: pulsar_txn needs 4.2 or newer (the source's admission "
            "control came with it). Run: pip install 'pyspark>=4.2'"
        )
    if sys.version_info[:2] < _LEAST_PYTHON:
        raise EnvironmentTooOldError(
            f"Python {sys.version.split()[0]} is too old: pulsar_txn needs 3.11 or newer"
        )


class PulsarTxnDataSource(DataSource):
    """``format("pulsar_txn")``: exactly-once on segmented topics."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        require_environment()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the source, after its options were checked."""
        from pulsar_txn_spark.spark.rows import READ_SCHEMA
        from pulsar_txn_spark.spark.source import check_source

        check_source(self.options)
        return READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        from pulsar_txn_spark.spark.rows import check_readable
        from pulsar_txn_spark.spark.source import PulsarTxnReader

        check_readable(schema)
        return PulsarTxnReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader."""
        from pulsar_txn_spark.spark.rows import check_readable
        from pulsar_txn_spark.spark.source import PulsarTxnStreamReader

        check_readable(schema)
        return PulsarTxnStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        from pulsar_txn_spark.spark.sink import PulsarTxnWriter

        return PulsarTxnWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a stream writer."""
        from pulsar_txn_spark.spark.sink import PulsarTxnStreamWriter

        return PulsarTxnStreamWriter(self.options, schema, overwrite=overwrite)
