"""A job as users submit it: copies a topic in upper case, and says where its package came from.

``spark-submit submit_job.py SETTINGS`` with the settings as JSON: ``options``, ``source``, ``out``,
``checkpoint``, ``per_trigger``, and whether to ``register`` the format.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

TASKS = 2


def place(_: object) -> tuple[str, str]:
    """Return interpreter and package of the process that runs this."""
    import os.path  # noqa: PLC0415 - in the task
    import sys  # noqa: PLC0415

    import pulsar_txn_spark  # noqa: PLC0415

    return sys.executable, os.path.abspath(str(pulsar_txn_spark.__file__))  # noqa: PTH100


def report(**facts: object) -> None:
    """Tell whoever reads the output of the driver."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(settings: dict[str, Any]) -> None:
    """Read what is there, in batches of a size, and end."""
    spark = SparkSession.builder.getOrCreate()
    if settings["register"]:
        import pulsar_txn_spark  # noqa: PLC0415

        pulsar_txn_spark.register(spark)
    report(jvm=os.getppid())
    rows = (
        spark.readStream.format("pulsar_txn")
        .options(**settings["options"])
        .options(topic=settings["source"], subscription="job", startingOffsets="earliest")
        .option("maxMessagesPerTrigger", settings["per_trigger"])
        .load()
        .selectExpr("upper(CAST(value AS STRING)) AS value")
    )
    query = (
        rows.writeStream.format("pulsar_txn")
        .options(**settings["options"], topic=settings["out"])
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    tasks = spark.sparkContext.parallelize(range(TASKS), TASKS).map(place).distinct().collect()
    report(driver=place(None), tasks=tasks)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
