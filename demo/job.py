"""The demo's Spark job: consume, transform, produce; one micro-batch is one transaction.

It knows nothing of the kills: what makes it exact is ``subscription`` on the source and
``format("pulsar_txn")`` on the sink.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from demo.child import (
    Settings,
    begin,
    emit,
    source_options,
    spark_session,
    wait_to_be_told,
)
from demo.data import airlines
from demo.topics import DELAYS, FLIGHTS, LATE_MINUTES, ON_TIME

_POLL_SECONDS = 0.1  # how fresh the progress display is; a batch takes a second

_FLIGHT = (
    "id LONG, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "dep_delay INT, distance INT, time_hour STRING"
)


def split_by_delay(messages: DataFrame, names: DataFrame) -> DataFrame:
    """Give each flight its airline's name, and the topic that it belongs to.

    Parameters
    ----------
    messages : DataFrame
        ``value`` (binary, a flight as JSON) and ``__key``.
    names : DataFrame
        ``carrier`` and ``name``.

    Returns
    -------
    DataFrame
        ``value`` (string, JSON), ``__key`` and ``__topic``.
    """
    flights = messages.select(
        "__key", f.from_json(f.col("value").cast("string"), _FLIGHT).alias("flight")
    ).select("__key", "flight.*")
    named = flights.join(f.broadcast(names), "carrier", "left")
    late = f.col("dep_delay").isNull() | (f.col("dep_delay") > LATE_MINUTES)
    return named.select(
        f.to_json(
            f.struct(
                *("id", "carrier", f.col("name").alias("airline"), "flight", "tailnum"),
                *("origin", "dest", "dep_delay", "distance", "time_hour"),
            )
        ).alias("value"),
        "__key",
        f.when(late, DELAYS).otherwise(ON_TIME).alias("__topic"),
    )


def start(spark: SparkSession, settings: Settings, names: DataFrame) -> StreamingQuery:
    """Start the job; it ends by itself when it has read all that is there."""
    messages = (
        spark.readStream.format("pulsar_txn")
        .options(**source_options(settings))
        .option("topic", FLIGHTS)
        .load()
    )
    return (
        split_by_delay(messages, names)
        .writeStream.format("pulsar_txn")
        .options(**settings.options)
        .option("checkpointLocation", f"{settings.folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )


def main() -> None:
    """Run as a process of its own."""
    settings = begin()
    spark = spark_session("flights", settings)
    names = spark.createDataFrame(airlines())
    emit("ready")
    # The demo starts each driver while the one before it still runs, as a standby would be. That
    # saves the time in which a JVM starts. Up to here it has seen neither store nor checkpoint.
    wait_to_be_told()
    query = start(spark, settings, names)
    reported = -1
    over = False
    while not over:
        over = query.awaitTermination(_POLL_SECONDS) is True  # type: ignore[arg-type] # takes fractions
        for progress in query.recentProgress:
            if progress["batchId"] > reported and progress["numInputRows"]:
                reported = progress["batchId"]
                emit("batch", batch=reported, rows=progress["numInputRows"])
    spark.stop()
    emit("done")


if __name__ == "__main__":
    main()
