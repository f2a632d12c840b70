"""The data source ``pulsar_txn``. Spark finds it by the top-level module ``pyspark_pulsar_txn``."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pulsar_txn_spark.environment import FORMAT, require_python_and_pyspark
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.spark.error_boundary import RefusedStreamReader, plain_errors


@plain_errors
class PulsarTxnDataSource(DataSource):
    """``format("pulsar_txn")``: exactly-once on segmented topics."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        require_python_and_pyspark()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the source, after its options were checked."""
        from pulsar_txn_spark.options import created_options
        from pulsar_txn_spark.spark.catalog_table import columns_of_new_table
        from pulsar_txn_spark.spark.rows import schema_of
        from pulsar_txn_spark.spark.source.topics import check_source

        created = created_options({key.lower(): text for key, text in self.options.items()})
        if created is not None:
            return columns_of_new_table(created)
        options = check_source(self.options)
        return schema_of(options.get("metadata.columns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        from pulsar_txn_spark.options import Use
        from pulsar_txn_spark.spark.catalog_table import with_table_options
        from pulsar_txn_spark.spark.rows import check_readable
        from pulsar_txn_spark.spark.source.batch import PulsarTxnReader

        check_readable(schema)
        options = with_table_options(self.options, schema, Use.READ | Use.BATCH)
        return PulsarTxnReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader."""
        from pulsar_txn_spark.options import Use
        from pulsar_txn_spark.spark.catalog_table import with_table_options
        from pulsar_txn_spark.spark.rows import check_readable
        from pulsar_txn_spark.spark.source.tracking import stream_reader

        try:
            check_readable(schema)
            options = with_table_options(self.options, schema, Use.READ | Use.STREAM)
            return stream_reader(options, schema)
        except PulsarTxnError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        from pulsar_txn_spark.options import Use
        from pulsar_txn_spark.spark.catalog_table import with_table_options
        from pulsar_txn_spark.spark.sink.writers import PulsarTxnWriter

        options = with_table_options(self.options, schema, Use.WRITE | Use.BATCH)
        return PulsarTxnWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a stream writer."""
        from pulsar_txn_spark.options import NATIVE

        if str(self.options.get("transactions")).strip().lower() == NATIVE:
            from pulsar_txn_spark.spark.sink.native import NativeStreamWriter

            return NativeStreamWriter(self.options, schema, overwrite=overwrite)
        from pulsar_txn_spark.spark.sink.writers import PulsarTxnStreamWriter

        return PulsarTxnStreamWriter(self.options, schema, overwrite=overwrite)
