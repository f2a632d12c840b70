"""Creates the demo's topics and writes all flights in one transaction."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

import pulsar_txn_spark
from demo.child import Settings
from demo.data import flights
from demo.topics import FLIGHTS, OUTPUTS, SEGMENTS


def create_topics(settings: Settings) -> None:
    """Create the input and the outputs."""
    for topic, segments in SEGMENTS.items():
        gate = settings.gate if topic in OUTPUTS else "reader"
        admin = pulsar_txn_spark.Admin(settings.options)
        admin.create_topic(topic, segments=segments, gate=gate)


_PARTS = 4
"""Transactions of the input where segments change: some rows lie in parents, some in children."""


def load_flights(spark: SparkSession, settings: Settings) -> None:
    """Fill the input, in one transaction; in several, where segments change meanwhile."""
    messages = flights()
    parts = _PARTS if settings.reshape_every_s else 1
    rows = -(-messages.num_rows // parts)
    for start in range(0, messages.num_rows, rows):
        _load(spark, settings, messages.slice(start, rows))


def _load(spark: SparkSession, settings: Settings, messages: pa.Table) -> None:
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
