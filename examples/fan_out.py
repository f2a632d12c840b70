"""Fan out: one stream to three topics, in one transaction for each micro-batch.

python examples/fan_out.py
"""

from __future__ import annotations

from common import Place, local_spark, place_of
from pyspark.sql import DataFrame, SparkSession

from pulsar_txn_spark import Admin, BatchTransaction, transactional


def main(spark: SparkSession, place: Place) -> None:
    """Write flights, split them by their delay, and count the rows of each topic."""
    options = place.options
    admin = Admin(options)
    for topic in ("flights", "late", "on-time", "daily"):
        admin.create_topic(topic, segments=2, exist_ok=True)

    flights = spark.range(300).selectExpr(
        "to_json(named_struct('flight', id, 'delay', id % 30)) AS value",
        "CAST(id % 7 AS STRING) AS __key",
    )
    flights.write.format("pulsar_txn").options(**options, topic="flights").mode("append").save()

    @transactional(options)
    def split(df: DataFrame, batch_id: int, txn: BatchTransaction) -> None:
        # Readers see all rows of a micro-batch, in all three topics, or none of them.
        df = df.persist()
        txn.write(df.where("flight.delay > 15").select("value", "__key"), topic="late")
        txn.write(df.where("flight.delay <= 15").select("value", "__key"), topic="on-time")
        summary = f"concat('batch {batch_id}: ', count(*), ' flights') AS value"
        txn.write(df.selectExpr(summary), topic="daily")
        df.unpersist()

    query = (
        spark.readStream.format("pulsar_txn")
        .options(**options, topic="flights", subscription="fan-out")
        .option("startingOffsets", "subscription")
        .option("maxMessagesPerTrigger", 150)
        .load()
        .selectExpr(
            "value",
            "__key",
            "from_json(CAST(value AS STRING), 'flight BIGINT, delay BIGINT') AS flight",
        )
        .writeStream.foreachBatch(split)
        .option("checkpointLocation", str(place.folder / "fan-out-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    written = spark.read.format("pulsar_txn").options(**options, topics="late,on-time,daily").load()
    counted = written.groupBy("__topic").count().orderBy("__topic")
    for topic, count in counted.collect():
        print(count, "rows in", topic)


if __name__ == "__main__":
    with place_of(__doc__) as place, local_spark() as spark:
        main(spark, place)
