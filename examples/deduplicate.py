"""Drop duplicates: a producer sends some payments twice, and each is passed on once.

python examples/deduplicate.py
"""

from __future__ import annotations

from common import Place, local_spark, place_of
from pyspark.sql import SparkSession

from pulsar_txn_spark import Admin


def main(spark: SparkSession, place: Place) -> None:
    """Send 100 payments, 50 of them twice, and count what comes out."""
    options = place.options
    admin = Admin(options)
    for topic in ("payments", "unique-payments"):
        admin.create_topic(topic, segments=2, exist_ok=True)

    # The payment's id is the key. Half of the payments are retries of the producer.
    payments = spark.range(150).selectExpr(
        "concat('payment ', id % 100) AS value",
        "CAST(id % 100 AS STRING) AS __key",
        "timestamp_seconds(1700000000 + id % 100) AS __eventTime",
    )
    payments.write.format("pulsar_txn").options(**options, topic="payments").mode("append").save()

    query = (
        spark.readStream.format("pulsar_txn")
        .options(**options, topic="payments", subscription="deduplicate")
        .option("startingOffsets", "subscription")
        .option("maxMessagesPerTrigger", 80)
        .load()
        # Spark keeps the keys of ten minutes in its state, which its checkpoint holds.
        .withWatermark("__eventTime", "10 minutes")
        .dropDuplicatesWithinWatermark(["__key"])
        .select("value", "__key", "__eventTime")
        .writeStream.format("pulsar_txn")
        .options(**options, topic="unique-payments")
        .option("checkpointLocation", str(place.folder / "deduplicate-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    sent = spark.read.format("pulsar_txn").options(**options, topic="payments").load()
    unique = spark.read.format("pulsar_txn").options(**options, topic="unique-payments").load()
    print(sent.count(), "payments received,", unique.count(), "passed on")


if __name__ == "__main__":
    with place_of(__doc__) as place, local_spark() as spark:
        main(spark, place)
