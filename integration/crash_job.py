"""The job that the crash suite kills: consume, transform, produce, in one transaction a batch.

Run as ``python crash_job.py <folder> <format|foreachBatch> <max messages or 0>``.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

import pulsar_txn_spark


def main(folder: str, sink: str, limit: str) -> None:
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "768m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    connection = {"store.path": f"{folder}/store", "txn.timeoutMs": "20000"}
    reader = (
        spark.readStream.format("pulsar_txn")
        .options(**connection)
        .option("topic", "crash-in")
        .option("subscription", f"crash-{sink}")
        .option("startingOffsets", "earliest")
    )
    if limit != "0":
        reader = reader.option("maxMessagesPerTrigger", limit)
    rows = reader.load().selectExpr("upper(cast(value as string)) as value", "__key")

    @pulsar_txn_spark.transactional(connection)
    def even_and_odd(df: DataFrame, batch_id: int, txn: pulsar_txn_spark.BatchTransaction) -> None:
        txn.write(df.where("crc32(value) % 2 = 0"), topic=f"crash-out-{sink}")
        txn.write(df.where("crc32(value) % 2 = 1"), topic=f"crash-out-{sink}")

    writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint-{sink}")
    if sink == "format":
        writer = (
            writer.format("pulsar_txn").options(**connection).option("topic", f"crash-out-{sink}")
        )
    else:
        writer = writer.foreachBatch(even_and_odd)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
