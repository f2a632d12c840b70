"""A job that splits and merges its own output while it writes; the crash test kills it there.

Run as ``python segments_job.py <folder> <store path> <source> <out>``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def main(folder: str, store: str, source: str, out: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", f"{folder}/scratch")
        .config("spark.driver.memory", "768m")
        .config("spark.python.daemon.module", "pulsar_txn_spark.spark.worker_daemon")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    connection = {"store.path": store}
    options = {**connection, "txn.timeoutMs": "20000"}

    # Nested, so that it is pickled by value: a worker need not find this module.
    def change(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pulsar_txn_spark import Admin  # noqa: PLC0415
        from pulsar_txn_spark.errors import TopologyConflictError  # noqa: PLC0415

        pieces = (
            batch.slice(start, 100) for batch in batches for start in range(0, batch.num_rows, 100)
        )
        for number, piece in enumerate(pieces):
            yield piece
            if number % 4 != 3:
                continue
            active = Admin(connection).find_topic(out).active
            try:
                if len(active) < 3:
                    Admin(connection).split_segment(out, active[-1].descriptor)
                else:
                    names = [segment.descriptor for segment in active]
                    Admin(connection).merge_segments(out, names)
            except TopologyConflictError:
                pass  # the writer of this task was faster with an unfinished change

    rows = (
        spark.readStream.format("pulsar_txn")
        .options(**options)
        .option("topic", source)
        .option("startingOffsets", "earliest")
        .load()
        .select("value", "__key")
    )
    (
        rows.mapInArrow(change, rows.schema)
        .writeStream.format("pulsar_txn")
        .options(**options)
        .option("topic", out)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
