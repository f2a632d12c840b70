"""Join two streams: orders with their payments, each pair written once.

python examples/join.py
"""

from __future__ import annotations

from common import Place, local_spark, place_of
from pyspark.sql import DataFrame, SparkSession

from pulsar_txn_spark import Admin


def main(spark: SparkSession, place: Place) -> None:
    """Write orders and payments, join them, and show the invoices."""
    options = place.options
    admin = Admin(options)
    for topic in ("orders", "receipts", "invoices"):
        admin.create_topic(topic, segments=2, exist_ok=True)

    # Of 100 orders every second one is paid, a minute later.
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS __key", "1700000000 + id AS t", "id")
    orders = rows.selectExpr(
        "concat(id, ' apples') AS value", "__key", "timestamp_seconds(t) AS __eventTime"
    )
    receipts = rows.where("id % 2 = 0").selectExpr(
        "concat(id, ' EUR') AS value", "__key", "timestamp_seconds(t + 60) AS __eventTime"
    )
    for topic, table in (("orders", orders), ("receipts", receipts)):
        table.write.format("pulsar_txn").options(**options, topic=topic).mode("append").save()

    def stream(topic: str) -> DataFrame:
        # One subscription per source. All of them are acknowledged in the sink's transaction.
        loaded = (
            spark.readStream.format("pulsar_txn")
            .options(**options, topic=topic, subscription="join")
            .option("startingOffsets", "subscription")
            .load()
        )
        columns = f"CAST(value AS STRING) AS {topic}", "__key AS id", f"__eventTime AS {topic}_time"
        return loaded.selectExpr(*columns).withWatermark(f"{topic}_time", "10 minutes")

    joined = stream("orders").join(stream("receipts"), "id")
    query = (
        joined.where("receipts_time BETWEEN orders_time AND orders_time + INTERVAL 1 HOUR")
        .selectExpr("concat(orders, ' for ', receipts) AS value", "id AS __key")
        .writeStream.format("pulsar_txn")
        .options(**options, topic="invoices")
        .option("checkpointLocation", str(place.folder / "join-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    invoices = spark.read.format("pulsar_txn").options(**options, topic="invoices").load()
    shown = invoices.selectExpr("string(value) AS invoice", "int(string(__key)) AS id")
    shown.orderBy("id").show(3, False)
    print(invoices.count(), "invoices")


if __name__ == "__main__":
    with place_of(__doc__) as place, local_spark() as spark:
        main(spark, place)
