"""What a sink knows, compared with Spark's own checkpoint (INV-11)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration.support.spark import NO_PANDAS_3, Lab, failure, forget_last_commit
from pulsar_txn_spark import BatchTransaction, transactional
from pulsar_txn_spark.engine import components as runtime_module
from pulsar_txn_spark.store.redis import connection, server
from tests.support.redis_servers import append_only_file

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)


class Query:
    """A query of our source and a decorated function, which knows its batches by heart."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.input, self.out = lab.topic(name="in"), lab.topic(name="out")
        self.silent: set[str] = set()  # values with which the function writes nothing
        self.options = dict(lab.options)

    def run(self, name: str = "function") -> None:
        def write(df: DataFrame, batch_id: int, txn: BatchTransaction) -> None:
            found = {row["value"] for row in df.collect()}
            if not found & self.silent:
                txn.write(df, topic=self.out)

        write.__qualname__ = name
        rows = self.lab.source(self.input, subscription="sub")
        writer: Any = rows.writeStream.foreachBatch(transactional(self.options)(write))
        self.lab.drain(writer.option("checkpointLocation", str(self.lab.checkpoint())))

    def batch(self, value: str) -> None:
        self.lab.produce(self.input, value)
        self.run()


def cut(folder: str, size: int) -> None:
    """Lose what lies behind a place of the server's file; nobody here remembers it."""
    connection.close_all()
    runtime_module._opened.clear()
    server.stop_server(folder)
    os.truncate(append_only_file(Path(folder)), size)


def test_a_function_that_writes_nothing_or_gets_another_name_neither_loses_nor_doubles_a_batch(
    lab: Lab,
) -> None:
    query = Query(lab)
    query.silent = {"b"}
    for value in "abc":
        query.batch(value)
    assert lab.visible(query.out) == ["a", "c"]
    assert lab.cursor(query.input, "sub") == lab.end(query.input)
    forget_last_commit(lab.checkpoint())
    error = failure(lambda: query.run("renamed"))
    assert "TransactionConflictError" in error
    assert "/function/function. If it is another sink" in error
    query.run()  # the replay writes nothing
    assert lab.visible(query.out) == ["a", "c"]
    query.options["sinkFirstBatch"] = "3"
    lab.produce(query.input, "d")
    query.run("new")
    assert lab.visible(query.out) == ["a", "c", "d"]


def test_a_batch_that_the_store_lost_is_not_passed_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = str(tmp_path / "store")
    server.ensure_server(folder)
    lab = Lab(spark, {"store.path": folder}, tmp_path)
    try:
        query = Query(lab)
        query.batch("a")
        lab.produce(query.input, "b")
        size = append_only_file(Path(folder)).stat().st_size
        query.run()
        assert lab.visible(query.out) == ["a", "b"]
        cut(folder, size)
        lab.produce(query.input, "c")
        error = failure(query.run)
        # A worker that Spark has kept remembers the store; a new one has Spark's word only.
        assert "BatchNotRecordedError" in error or "StoreRolledBackError" in error
        assert lab.visible(query.out) == ["a"]
    finally:
        connection.close_all()
        server.stop_server(folder)
