"""Creates the demo's topics and writes all flights in one transaction."""

from __future__ import annotations

from pathlib import Path

from pyarrow import parquet
from pyspark.sql import SparkSession

import pulsar_txn_spark
from pulsar_txn_spark.demo.child import Settings
from pulsar_txn_spark.demo.data import flights
from pulsar_txn_spark.demo.topics import FLIGHTS, SEGMENTS


def create_topics(settings: Settings) -> None:
    """Create the input and the outputs."""
    for topic, segments in SEGMENTS.items():
        pulsar_txn_spark.create_topic(settings.options, topic, segments=segments)


def load_flights(spark: SparkSession, settings: Settings) -> None:
    """Fill the input."""
    messages = flights()
    scratch = Path(settings.folder) / "flights.parquet"
    # Two row groups of one file: as many tasks as cores write them.
    parquet.write_table(messages, scratch, row_group_size=-(-messages.num_rows // 2))
    (
        spark.read.parquet(str(scratch))
        .withColumnRenamed("key", "__key")
        .write.format("pulsar_txn")
        .options(**settings.options)
        .option("topic", FLIGHTS)
        .mode("append")
        .save()
    )
    scratch.unlink()
