r"""Copy one topic to another, exactly once: the smallest complete job.

python examples/quickstart.py
python examples/quickstart.py --store quickstart-data    # keeps the data; a second run adds to it
python examples/quickstart.py store.url=redis://localhost:6379 \
    service.url=pulsar://localhost:6650 admin.url=http://localhost:8080
"""

from __future__ import annotations

from common import Place, local_spark, place_of
from pyspark.sql import SparkSession

from pulsar_txn_spark import Admin


def main(spark: SparkSession, place: Place) -> None:
    """Write 1,000 rows, run a stream over them, and show its output."""
    options = place.options

    # 1. Topics are created explicitly, never by writing to them.
    admin = Admin(options)
    for topic in ("events", "shouted"):
        admin.create_topic(topic, segments=2, exist_ok=True)

    # 2. A batch write is one transaction.
    events = spark.range(1000).selectExpr(
        "concat('event ', id) AS value", "CAST(id % 10 AS STRING) AS __key"
    )
    events.write.format("pulsar_txn").options(**options, topic="events").mode("append").save()

    # 3. Each micro-batch is one transaction: its output, and the acknowledgement of its input.
    source = (
        spark.readStream.format("pulsar_txn")
        .options(**options, topic="events", subscription="quickstart")
        .option("startingOffsets", "subscription")
        .option("maxMessagesPerTrigger", 300)
        .load()
    )
    query = (
        source.selectExpr("upper(CAST(value AS STRING)) AS value", "__key")
        .writeStream.format("pulsar_txn")
        .options(**options, topic="shouted")
        .option("checkpointLocation", str(place.folder / "quickstart-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    # 4. A reader sees committed rows only.
    shouted = spark.read.format("pulsar_txn").options(**options, topic="shouted").load()
    shouted.selectExpr("CAST(value AS STRING)", "CAST(__key AS STRING)", "__topic").show(3, False)
    print(shouted.count(), "rows")


if __name__ == "__main__":
    with place_of(__doc__) as place, local_spark() as spark:
        main(spark, place)
