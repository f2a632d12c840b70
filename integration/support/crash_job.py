"""The job that the crash suite kills: consume, transform, produce, in one transaction a batch.

Run as ``python crash_job.py <format|native|foreachBatch> <max messages or 0> <JSON>``; the JSON
holds the folder of its checkpoints, the names of its topics, how to reach them, and settings
of Spark if there are any.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

import pulsar_txn_spark


def main(sink: str, limit: str, place: str) -> None:
    found = json.loads(place)
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "768m")
        .config("spark.python.daemon.module", "pulsar_txn_spark.spark.worker_daemon")
    )
    for setting, value in found.get("settings", {}).items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    connection = {**found["options"], "txn.timeoutMs": "20000"}
    reader = (
        spark.readStream.format("pulsar_txn")
        .options(**connection)
        .option("topic", found["input"])
        .option("subscription", f"crash-{sink}")
        .option("startingOffsets", "earliest")
    )
    if limit != "0":
        reader = reader.option("maxMessagesPerTrigger", limit)
    rows = reader.load().selectExpr("upper(cast(value as string)) as value", "__key")

    @pulsar_txn_spark.transactional(connection)
    def even_and_odd(df: DataFrame, batch_id: int, txn: pulsar_txn_spark.BatchTransaction) -> None:
        txn.write(df.where("crc32(value) % 2 = 0"), topic=found["output"])
        txn.write(df.where("crc32(value) % 2 = 1"), topic=found["output"])

    writer = rows.writeStream.option("checkpointLocation", f"{found['folder']}/checkpoint-{sink}")
    if sink == "native":
        connection["transactions"] = "native"
        connection["txn.timeoutMs"] = "120000"  # Pulsar extends no transaction of its own
    if sink in ("format", "native"):
        writer = writer.format("pulsar_txn").options(**connection).option("topic", found["output"])
    else:
        writer = writer.foreachBatch(even_and_odd)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
