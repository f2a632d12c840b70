from __future__ import annotations

from pathlib import Path

from pyarrow import parquet
from pyspark.sql import SparkSession

from demo import data
from demo.child import Settings, spark_session
from demo.job import split_by_delay
from demo.proof import compare, expectation
from demo.topics import DELAYS, ON_TIME


def test_the_demos_transformation_gives_what_its_proof_expects(tmp_path: Path) -> None:
    parquet.write_table(data.flights(), tmp_path / "flights.parquet")
    parquet.write_table(data.airlines(), tmp_path / "airlines.parquet")
    active = SparkSession.getActiveSession()
    spark = active or spark_session("transformation", Settings(str(tmp_path), {}, 1))
    try:
        messages = spark.read.parquet(str(tmp_path / "flights.parquet"))
        names = spark.read.parquet(str(tmp_path / "airlines.parquet"))
        rows = split_by_delay(messages.withColumnRenamed("key", "__key"), names).toArrow()
    finally:
        if active is None:  # another test's session is not ours to stop
            spark.stop()
    outputs = {
        topic: [
            (row["__key"], row["value"].encode())
            for row in rows.to_pylist()
            if row["__topic"] == topic
        ]
        for topic in (DELAYS, ON_TIME)
    }
    verdict = compare(expectation(), outputs)
    assert verdict.exact, verdict
