"""A store that lost its last transaction, behind a checkpoint that has the batch.

The embedded server's own append-only file is cut where a disk or a lagging replica would cut it.
Source, sink and scope are the real ones, called as Spark calls them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType

import pulsar_txn_spark
from pulsar_txn_spark.engine import components as runtime_module
from pulsar_txn_spark.errors import BatchNotRecordedError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.context import TaskFacts
from pulsar_txn_spark.spark.sink.batch_transaction import BatchTransaction
from pulsar_txn_spark.spark.sink.writers import PulsarTxnStreamWriter, PulsarTxnWriter
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.store.redis.merged import RedisMergedSteps
from tests.support.frames import WritableFrame
from tests.support.redis_servers import append_only_file

IN, OUT, QUERY = TopicName.parse("in"), TopicName.parse("out"), "query"
SCHEMA = StructType([StructField("value", StringType())])


class Job:
    """A query over a folder's embedded server, and the checkpoint that Spark would keep."""

    def __init__(self, path: str, monkeypatch: pytest.MonkeyPatch, kind: str, more: Any) -> None:
        self.path, self.kind, self.more = path, kind, dict(more)
        self.offsets: list[dict[str, Any]] = []  # before the first batch, and after each
        self.commits = -1
        self.execution = 0
        self.batch = -1
        self.sink: dict[str, str] = {}
        self.attempts = iter(range(1, 1_000_000))
        monkeypatch.setattr(TaskFacts, "of_task", self.facts)

    def facts(self) -> TaskFacts:
        run = f"app/{self.execution}" if self.batch >= 0 else ""
        query = QUERY if self.batch >= 0 else ""
        return TaskFacts(query, self.batch, run, 0, next(self.attempts))

    @property
    def run(self) -> runtime_module.Components:
        return runtime_module.open_components(Options({"store.path": self.path}, Use.CONNECT))

    def feed(self, *values: str) -> None:
        """Write to the input, as a batch outside of any stream."""
        self.batch = -1
        writer = PulsarTxnWriter(self.options(IN), SCHEMA, overwrite=False)
        writer.commit([writer.write(iter([rows_of(values)]))])

    def options(self, topic: TopicName) -> dict[str, str]:
        return {"store.path": self.path, "topic": str(topic)}

    # -- a run of the query ----------------------------------------------------------------------

    def start(self) -> None:
        """Start the query on its checkpoint: a new process, which remembers nothing."""
        connection.close_all()
        runtime_module._opened.clear()
        options = {**self.options(IN), "startingOffsets": "earliest", **self.more}
        self.reader = PulsarTxnStreamReader(options, SCHEMA)
        if not self.offsets:
            self.offsets.append(self.reader.initialOffset())

    def trigger(self) -> None:
        """Run the next micro-batch in Spark's order."""
        batch = self.commits + 1
        if batch > 0:
            self.reader.commit(self.offsets[batch])
        if len(self.offsets) == batch + 1:
            self.offsets.append(self.reader.latestOffset(self.offsets[batch], ReadAllAvailable()))
        self.batch, self.execution = batch, self.execution + 1
        self.write(batch)
        self.commits = batch

    def read(self) -> Iterator[pa.RecordBatch]:
        """Do what the reading tasks do."""
        for part in self.reader.partitions(self.offsets[self.batch], self.offsets[self.batch + 1]):
            assert isinstance(part, SourcePartition)
            yield from self.reader.read(part)

    def write(self, batch: int) -> None:
        options = {**self.options(OUT), **self.sink}
        if self.kind == "format":
            writer = PulsarTxnStreamWriter(options, SCHEMA, overwrite=False)
            result = writer.write(self.read())
            PulsarTxnStreamWriter(options, SCHEMA, overwrite=False).commit([result], batch)
            return
        frame = cast("DataFrame", Frame(self))
        with BatchTransaction(options, batch, frame, "function/f") as txn:
            txn.write(frame)

    # -- what is there -----------------------------------------------------------------------

    def visible(self) -> Counter[str]:
        run, found = self.run, Counter[str]()
        [segment] = [s.ref for s in run.topics.require(OUT).segments]
        last = run.log.last_confirmed
        [gate] = run.buffer.readable([segment.id], lambda _: last(segment), [EARLIEST])
        for rows in run.log.read(
            segment,
            EARLIEST,
            gate.end,
            visible=gate.visibility,
            columns=frozenset({"value"}),
            max_rows=99,
        ):
            found.update(value.decode() for value in rows.column(0).to_pylist())
        return found

    # -- the server's disk -----------------------------------------------------------------------

    @property
    def file(self) -> Path:
        return append_only_file(Path(self.path))

    def cut(self, size: int) -> None:
        """Lose everything behind a place of the append-only file."""
        connection.close_all()
        server.stop_server(self.path)
        assert size < self.file.stat().st_size
        os.truncate(self.file, size)


class Frame(WritableFrame):
    """A DataFrame of the micro-batch: it reads the source, and writes in the calling thread."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    def save(self) -> None:
        writer = PulsarTxnWriter(self.given, SCHEMA, overwrite=False)
        writer.commit([writer.write(self._job.read())])


def rows_of(values: tuple[str, ...]) -> pa.RecordBatch:
    return pa.record_batch([list(values)], ["value"])


@pytest.fixture
def new_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Job]]:
    path = str(tmp_path / "store")

    def make(kind: str, **more: str) -> Job:
        job = Job(path, monkeypatch, kind, more)
        server.ensure_server(path)
        for topic in (IN, OUT):
            job.run.topics.create(topic, 1)
        return job

    yield make
    connection.close_all()
    runtime_module._opened.clear()
    server.stop_server(path)


def note_size(
    job: Job, monkeypatch: pytest.MonkeyPatch, step: tuple[type, str], sizes: list[int], batch: int
) -> None:
    """Note how long the file is before a step of a batch is asked for."""
    original = getattr(*step)

    def noted(store: object, *args: Any, **more: Any) -> Any:
        if job.batch == batch:
            sizes.append(job.file.stat().st_size)
        return original(store, *args, **more)

    monkeypatch.setattr(*step, noted)


STEPS: dict[str, tuple[type, str]] = {
    "begin": (RedisMergedSteps, "begin"),
    "acknowledgement": (RedisMergedSteps, "acknowledge"),
    "decision": (RedisMergedSteps, "commit"),
}
CASES = [
    (kind, subscription, lost)
    for kind in ("format", "transactional")
    for subscription in (False, True)
    for lost in STEPS
    if subscription or lost != "acknowledgement"
]


@pytest.mark.parametrize("kind,subscription,lost", CASES)
def test_a_batch_that_the_store_lost_is_found_out_and_can_be_run_again(
    new_job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    subscription: bool,
    lost: str,
) -> None:
    job = new_job(kind, **({"subscription": "sub"} if subscription else {}))
    job.feed("a")
    job.start()
    job.trigger()
    job.feed("b")
    job.feed("c")  # so that the source's topic is not what ends the file
    sizes: list[int] = []
    note_size(job, monkeypatch, STEPS[lost], sizes, 1)
    job.trigger()
    assert job.visible() == Counter("abc")
    job.cut(sizes[0])
    job.start()
    job.feed("d")
    with pytest.raises(BatchNotRecordedError):
        job.trigger()
    assert job.visible() == Counter("a"), "nothing of a later batch was written"
    # As the operator's page says: Spark forgets that batch 1 is done, and plans nothing behind it.
    job.commits = 0
    del job.offsets[3:]
    job.start()
    job.trigger()
    job.trigger()
    assert job.visible() == Counter("abcd")


@pytest.mark.parametrize("kind", ["format", "transactional"])
def test_a_user_who_knows_of_the_lost_batch_can_go_on_without_it(
    new_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    job = new_job(kind)
    job.feed("a")
    job.start()
    job.trigger()
    job.feed("b")
    sizes: list[int] = []
    note_size(job, monkeypatch, STEPS["begin"], sizes, 1)
    job.trigger()
    job.cut(sizes[0])
    job.start()
    job.feed("c")
    job.sink = {"sinkFirstBatch": "1"}
    with pytest.raises(BatchNotRecordedError):
        job.trigger()
    job.sink = {"sinkFirstBatch": "2"}
    job.trigger()
    assert job.visible() == Counter("ac")


def test_a_query_that_goes_over_to_a_foreign_sink_is_asked_to_free_its_subscription(
    new_job: Callable[..., Job],
) -> None:
    job = new_job("format", subscription="sub")
    job.feed("a")
    job.start()
    job.trigger()
    job.feed("b")
    job.offsets.append(job.reader.latestOffset(job.offsets[1], ReadAllAvailable()))
    job.commits = 1  # written by a sink that is not of this package
    with pytest.raises(BatchNotRecordedError, match="reset --to here"):
        job.reader.commit(job.offsets[2])
    [segment] = [s.ref.id for s in job.run.topics.require(IN).segments]
    [cursor] = job.run.store.subscriptions.read_cursors([segment], "sub")
    assert cursor is not None
    pulsar_txn_spark.Admin({"store.path": job.path}).reset_subscription(str(IN), "sub", to="here")
    job.run.store.subscriptions.claim_cursor(segment, "sub", QUERY, 99, cursor.position)
    job.reader._source_epoch = 99
    job.reader.commit(job.offsets[2])
    [moved] = job.run.store.subscriptions.read_cursors([segment], "sub")
    assert moved is not None
    assert moved.position > cursor.position
