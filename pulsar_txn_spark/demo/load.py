"""Creates the demo's topics and writes all flights in one transaction."""

from __future__ import annotations

from pathlib import Path

from pyarrow import parquet

import pulsar_txn_spark
from pulsar_txn_spark.demo.child import begin, emit, spark_session
from pulsar_txn_spark.demo.data import flights
from pulsar_txn_spark.demo.topics import FLIGHTS, SEGMENTS


def main() -> None:
    """Run as a process of its own."""
    settings = begin()
    for topic, segments in SEGMENTS.items():
        pulsar_txn_spark.create_topic(settings.options, topic, segments=segments)
    messages = flights()
    scratch = Path(settings.folder) / "flights.parquet"
    # Two row groups of one file: as many tasks as cores write them.
    parquet.write_table(messages, scratch, row_group_size=-(-messages.num_rows // 2))
    emit("prepared", rows=messages.num_rows)

    spark = spark_session("load the flights", settings)
    (
        spark.read.parquet(str(scratch))
        .withColumnRenamed("key", "__key")
        .write.format("pulsar_txn")
        .options(**settings.options)
        .option("topic", FLIGHTS)
        .mode("append")
        .save()
    )
    emit("loaded", rows=messages.num_rows)
    spark.stop()


if __name__ == "__main__":
    main()
