from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from demo import data
from demo.child import Settings, spark_session
from demo.job import split_by_delay
from demo.proof import compare, expectation
from demo.submit import JOB_FILE, environment
from demo.topics import DELAYS, ON_TIME
from pulsar_txn_spark.job import load
from pulsar_txn_spark.job.definition import Source
from pulsar_txn_spark.job.views import build, rows_of


@pytest.mark.long  # the demo itself, of which `make test` sees a run, proves as much
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
    outputs: dict[str, list[tuple[str | None, bytes | None]]] = {DELAYS: [], ON_TIME: []}
    columns = (rows[name].to_pylist() for name in ("__topic", "__key", "value"))
    for topic, key, value in zip(*columns, strict=True):
        outputs[topic].append((key, value.encode()))
    verdict = compare(expectation(), outputs)
    assert verdict.exact, verdict


@pytest.mark.long
def test_the_demos_job_file_gives_what_its_proof_expects(tmp_path: Path) -> None:
    parquet.write_table(data.flights(), tmp_path / "flights.parquet")
    job = load(JOB_FILE, environment=environment(Settings(str(tmp_path), {}, 1, master="local")))
    active = SparkSession.getActiveSession()
    spark = active or spark_session("transformation", Settings(str(tmp_path), {}, 1))

    def read(spark: SparkSession, source: Source) -> DataFrame:
        if source.is_own:
            messages = spark.read.parquet(str(tmp_path / "flights.parquet"))
            return messages.withColumnRenamed("key", "__key")
        reader = spark.read.format(source.format).options(**source.options)
        return reader.schema(source.schema or "").load()

    try:
        views = build(spark, replace(job, trigger="batch"), read)
        assert views.problems == []
        assert views.micro_batch == "named"
        outputs = {
            sink.topic or "": [
                (row["__key"], row["value"].encode())
                for row in rows_of(spark, sink, "named").toArrow().to_pylist()
            ]
            for sink in job.sinks
        }
    finally:
        if active is None:
            spark.stop()
    verdict = compare(expectation(), outputs)
    assert verdict.exact, verdict
