"""Backfill: read the history of a topic as a batch, correct it, and write it to a new topic.

python examples/backfill.py
"""

from __future__ import annotations

from common import Place, local_spark, place_of
from pyspark.sql import SparkSession

from pulsar_txn_spark import Admin


def main(spark: SparkSession, place: Place) -> None:
    """Write temperatures in Fahrenheit, and backfill a topic with them in Celsius."""
    options = place.options
    admin = Admin(options)
    for topic in ("fahrenheit", "celsius"):
        admin.create_topic(topic, segments=2, exist_ok=True)

    measured = spark.range(500).selectExpr(
        "CAST(32 + id AS STRING) AS value", "concat('sensor ', id % 5) AS __key"
    )
    measured.write.format("pulsar_txn").options(**options, topic="fahrenheit").mode("append").save()

    # What is committed now, from the beginning. The rows are written in one transaction: readers of
    # the new topic see all of the history or nothing. A batch write has no identity: run it once.
    history = (
        spark.read.format("pulsar_txn")
        .options(**options, topic="fahrenheit")
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .load()
    )
    corrected = history.selectExpr(
        "format_number((CAST(CAST(value AS STRING) AS DOUBLE) - 32) / 1.8, 1) AS value",
        "__key",
        "__publishTime AS __eventTime",  # when it was measured, as far as anybody knows
    )
    corrected.write.format("pulsar_txn").options(**options, topic="celsius").mode("append").save()

    celsius = spark.read.format("pulsar_txn").options(**options, topic="celsius").load()
    celsius.selectExpr("CAST(value AS STRING)", "CAST(__key AS STRING)").show(3, False)
    print(celsius.count(), "rows backfilled")


if __name__ == "__main__":
    with place_of(__doc__) as place, local_spark() as spark:
        main(spark, place)
