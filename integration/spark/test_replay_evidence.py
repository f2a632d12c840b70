"""A source of another kind before our sink: restored and copied checkpoints (INV-15)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from integration.support.spark import (
    NO_PANDAS_3,
    Lab,
    copied,
    failure,
    forget_last_commit,
    restored,
)
from pulsar_txn_spark import TransactionalSink
from pulsar_txn_spark.store.metadata_pb2 import Pointer
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.txn.pending_ack import ReadPlan

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)


class FileQuery:
    """A query that reads files and writes to a topic, by the format or by `foreachBatch`."""

    def __init__(self, lab: Lab, way: str) -> None:
        self._lab, self._way = lab, way
        self.out = lab.topic()
        (lab.folder / "in").mkdir()

    def add(self, value: str) -> None:
        (self._lab.folder / "in" / value).write_text(f"{value}\n")

    def rows(self) -> DataFrame:
        return self._lab.spark.readStream.format("text").load(str(self._lab.folder / "in"))

    def run(self, checkpoint: str = "checkpoint", df: DataFrame | None = None) -> None:
        df = self.rows() if df is None else df
        path = self._lab.checkpoint(checkpoint)
        if self._way == "format":
            writer: Any = self._lab.sink(df, self.out, path)
        else:
            sink = TransactionalSink({**self._lab.options, "topic": self.out})
            writer = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(path))
        self._lab.drain(writer)

    def refused(self, checkpoint: str = "checkpoint") -> str:
        return failure(lambda: self.run(checkpoint))


@pytest.mark.parametrize("way", ["format", "foreachBatch"])
def test_a_batch_of_files_that_was_planned_anew_does_not_pass_for_a_replay(
    lab: Lab, way: str
) -> None:
    query = FileQuery(lab, way)
    query.add("a")
    query.run()
    copied(lab.checkpoint(), lab.checkpoint("old"))
    query.add("b")
    query.run()
    copied(lab.checkpoint(), lab.checkpoint("new"))
    query.add("c")
    # Restored one batch older: Spark plans batch 1 anew, of b and c.
    restored(lab.checkpoint(), lab.checkpoint("old"))
    error = query.refused()
    assert "TransactionConflictError" in error
    assert "Spark planned it anew" in error
    assert lab.visible(query.out) == ["a", "b"]
    # The checkpoint of the committed batch goes on, and of two drivers on copies of it one does.
    restored(lab.checkpoint(), lab.checkpoint("new"))
    copied(lab.checkpoint(), lab.checkpoint("copy"))
    query.run()
    query.add("d")
    assert "TransactionConflictError" in query.refused("copy")
    query.run()
    assert lab.visible(query.out) == ["a", "b", "c", "d"]


@pytest.fixture
def elsewhere(lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """Give topics on a metadata store of their own."""
    os.environ[server.OWNER_VARIABLE] = str(os.getpid())
    path = str(tmp_path / "store")
    server.ensure_server(path)
    yield Lab(lab.spark, {"store.path": path}, tmp_path / "elsewhere")
    connection.close_all()
    server.stop_server(path)


@pytest.mark.long
@pytest.mark.parametrize("way", ["format", "foreachBatch"])
def test_a_batch_that_reads_on_another_store_and_was_planned_anew_does_not_pass_for_a_replay(
    lab: Lab, elsewhere: Lab, way: str
) -> None:
    query = FileQuery(lab, way)
    here, there = lab.topic(), elsewhere.topic()

    def rows() -> DataFrame:
        read = {"subscription": "s", "startingOffsets": "earliest"}
        return lab.source(here, **read).union(elsewhere.source(there, **read))

    lab.produce(here, "a")
    elsewhere.produce(there, "b")
    query.run(df=rows())
    copied(lab.checkpoint(), lab.checkpoint("old"))
    lab.produce(here, "c")
    elsewhere.produce(there, "d")
    query.run(df=rows())
    copied(lab.checkpoint(), lab.checkpoint("new"))
    elsewhere.produce(there, "e")
    # Restored one batch older: Spark plans batch 1 anew, alike here and further there.
    restored(lab.checkpoint(), lab.checkpoint("old"))
    error = failure(lambda: query.run(df=rows()))
    assert "TransactionConflictError" in error
    assert "with a source of another kind or on another store" in error
    assert lab.visible(query.out) == ["a", "b", "c", "d"]
    restored(lab.checkpoint(), lab.checkpoint("new"))
    forget_last_commit(lab.checkpoint())
    query.run(df=rows())
    assert lab.visible(query.out) == ["a", "b", "c", "d", "e"]
    # Only what lies here is acknowledged in the transaction of the batch.
    assert lab.cursor(here, "s") == lab.end(here)
    acknowledged = elsewhere.cursor(there, "s")
    assert acknowledged is not None
    assert acknowledged < elsewhere.end(there)


@pytest.mark.parametrize("way", ["format", "foreachBatch"])
def test_a_replay_of_a_query_that_is_not_deterministic_needs_no_answer(lab: Lab, way: str) -> None:
    query = FileQuery(lab, way)
    query.add("a")
    query.run(df=query.rows().selectExpr("uuid() AS value"))
    [value] = lab.visible(query.out)
    forget_last_commit(lab.checkpoint())
    query.add("b")
    query.run(df=query.rows().selectExpr("uuid() AS value"))
    assert value in lab.visible(query.out)
    assert len(lab.visible(query.out)) == 2


@pytest.mark.parametrize("way", ["format", "foreachBatch"])
def test_reads_and_writes_of_an_attempt_have_one_name_that_no_other_driver_has(
    lab: Lab, way: str
) -> None:
    query = FileQuery(lab, way)
    source = lab.topic()
    lab.produce(source, "a")
    query.run(df=lab.source(source, subscription="s", startingOffsets="subscription"))
    metadata = json.loads((lab.checkpoint() / "metadata").read_text())
    found = lab.run.store.queries.read_plans(metadata["id"], "0")
    [plan] = [ReadPlan.parse(record) for record in found.values()]
    [sink] = lab.run.store.queries.read_sinks(metadata["id"])
    pointer = Pointer.FromString(lab.run.store.sinks.read_pointer(sink, metadata["id"]).own)
    driver, _, attempt = pointer.owner.partition("|")
    assert attempt == plan.execution_id
    # On Linux, where processes can be named.
    assert driver
    assert attempt.endswith(f"@{driver}")
