"""What the tests at the level of Spark share: one session, backends, and a `Lab` to work in."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pulsar_txn_spark
from demo.audit import Audit, audit
from integration.support.fork_server import python_for_spark
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import TopicNotFoundError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import EndedBy, TxnId
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.testing.pulsar_server import Broker
from pulsar_txn_spark.txn.batch import new_nonce
from pulsar_txn_spark.txn.coordinator import as_record
from pulsar_txn_spark.txn.sweeper import Sweeper
from pulsar_txn_spark.txn.transaction_buffer import writer_name

FORMAT = "pulsar_txn"
MASTER = "local[2,2]"  # two cores; a task that failed once is tried again
QUERY_SECONDS = 120  # far above what any query here takes, below the time limit of a test

# PySpark 4.3 says of pandas 3 that some features may not work; none that these tests use.
NO_PANDAS_3 = "ignore:PySpark does not yet fully support pandas:FutureWarning"

# Workers of tasks start with their modules imported. In a copy, Spark finds it by the path.
PRELOADED_WORKERS = {
    "spark.python.daemon.module": "pulsar_txn_spark.spark.worker_daemon",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
}

_EVERY_COLUMN = frozenset({"value", "key", "event_time_ms", "properties"})
_numbers = itertools.count()


def local_checkpoints() -> dict[str, str]:
    """Return the settings for checkpoints on a local disk, as conf/spark-defaults.conf has them."""
    lines = (Path(__file__).parents[2] / "conf" / "spark-defaults.conf").read_text().splitlines()
    proposed = (line.removeprefix("# ").split() for line in lines if line.startswith("# spark."))
    return {
        setting: value
        for setting, value in proposed
        if setting
        in {"spark.sql.streaming.checkpointFileManagerClass", "spark.hadoop.fs.file.impl"}
    }


def spark_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a session that keeps to itself."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "scratch"),
        "spark.log.level": "OFF",  # many tests make queries fail on purpose
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stopActiveRunOnRestart": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def open_session(folder: Path, master: str = MASTER, **settings: str) -> SparkSession:
    """Start Spark."""
    builder = SparkSession.builder.appName("pulsar_txn_spark tests").master(master)
    for key, value in {**spark_settings(folder), **settings}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    assert isinstance(session, SparkSession)
    return session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one session of this process."""
    # Every worker inherits it: whoever starts the embedded server, it ends with this process.
    os.environ[server.OWNER_VARIABLE] = str(os.getpid())
    folder = tmp_path_factory.mktemp("spark")
    with python_for_spark(folder) as python, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", python)
        patch.setenv("PYSPARK_DRIVER_PYTHON", python)  # whose data sources the JVM looks for
        session = open_session(folder, **PRELOADED_WORKERS, **local_checkpoints())
        patch.undo()  # the session has it; processes of tests are started as ever
        yield session
        session.stop()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the options of an embedded server, which keeps data and metadata."""
    os.environ[server.OWNER_VARIABLE] = str(os.getpid())
    path = str(tmp_path_factory.mktemp("store"))
    server.ensure_server(path)
    yield {"store.path": path}
    connection.close_all()
    server.stop_server(path)


@pytest.fixture
def lab(spark: SparkSession, embedded: dict[str, str], tmp_path: Path) -> Lab:
    """Give topics and queries on the embedded backend."""
    return Lab(spark, embedded, tmp_path)


PLACES = ["embedded", "wire", pytest.param("client", marks=pytest.mark.long)]
"""The embedded log, and Pulsar by each of its transports."""


def options_of(place: str, broker: Broker) -> dict[str, str]:
    """Return the options that lead to a broker by one of its transports."""
    return {"service.url": broker.service_url, "admin.url": broker.admin_url, "transport": place}


@pytest.fixture(params=PLACES)
def any_lab(
    request: pytest.FixtureRequest, spark: SparkSession, embedded: dict[str, str], tmp_path: Path
) -> Lab:
    """Give topics and queries on each backend in turn."""
    options = dict(embedded)
    if request.param != "embedded":
        options |= options_of(request.param, request.getfixturevalue("pulsar"))
    return Lab(spark, options, tmp_path)


def recreate_topics(options: Mapping[str, str], *names: str) -> None:
    """Create topics of the names that a page of the documentation uses, without any rows."""
    admin = pulsar_txn_spark.Admin(options)
    for name in names:
        with suppress(TopicNotFoundError):
            admin.delete_topic(name)
        admin.create_topic(name, segments=1)


def failure(action: Callable[[], object]) -> str:
    """Return the message of the error that Spark raises for an action, on one line."""
    with pytest.raises(PySparkException) as caught:
        action()
    return " ".join(str(caught.value).split())


@dataclass(frozen=True)
class OpenTxn:
    """A transaction of the test's own."""

    run: Components
    txn: TxnId
    nonce: str
    winner: Winner

    def commit(self) -> None:
        """Decide for COMMITTED."""
        self.run.coordinator.commit(self.txn, self.nonce, Outcome(winners=[self.winner]))

    def abort(self) -> None:
        """Decide for ABORTED."""
        self.run.coordinator.abort(self.txn, EndedBy.OWNER, nonce=self.nonce, cause="a test")


@dataclass
class Lab:
    """Topics, rows and queries on one backend.

    Parameters
    ----------
    spark : SparkSession
    options : dict of str to str
        How to reach the backend.
    folder : Path
        For checkpoints and marks.
    """

    spark: SparkSession
    options: dict[str, str]
    folder: Path

    # -- topics and what lies in them ----------------------------------------------------------

    @property
    def run(self) -> Components:
        """The library's own components in this process."""
        return open_components(Options(self.options, Use.CONNECT))

    def topic(self, segments: int = 1, *, name: str = "t") -> str:
        """Create a topic that no other test has."""
        topic = f"topic://public/default/{name}-{os.getpid()}-{next(_numbers)}"
        pulsar_txn_spark.Admin(self.options).create_topic(topic, segments=segments)
        return topic

    @staticmethod
    def name(topic: str) -> TopicName:
        """Return a topic's parsed name."""
        return TopicName.parse(topic)

    def segments(self, topic: str) -> list[SegmentRef]:
        """Return the topic's segments in the order of their hash ranges."""
        return [s.ref for s in self.run.topics.require(TopicName.parse(topic)).active]

    def produce(self, topic: str, *values: str, segment: int = 0) -> None:
        """Write one entry without Spark; visible at once."""
        ref = self.segments(topic)[segment]
        writer = self.run.log.writer(ref, f"produce-{next(_numbers)}")
        writer.append(pa.record_batch([pa.array([v.encode() for v in values])], names=["value"]))
        last = writer.flush().last
        writer.close()
        assert last is not None
        self.run.store.segments.raise_high(ref.id, last)

    def produce_each(self, topic: str, *values: str, segment: int = 0) -> None:
        """Write each value as an entry of its own: admission control counts in entries."""
        for value in values:
            self.produce(topic, value, segment=segment)

    def open_txn(self, topic: str, *values: str, timeout_ms: int = 60_000) -> OpenTxn:
        """Write one entry in a transaction that nobody decides unless the test does."""
        segment = self.segments(topic)[0]
        nonce = new_nonce()
        txn = self.run.coordinator.new_txn(nonce, timeout_ms=timeout_ms)
        name = writer_name(txn, 0, nonce)
        self.run.buffer.admit(txn, nonce, timeout_ms, name, [segment.id])
        writer = self.run.log.writer(segment, name)
        writer.append(pa.record_batch([pa.array([v.encode() for v in values])], names=["value"]))
        last = writer.flush().last
        writer.close()
        assert last is not None
        winner = Winner(segment=segment.id, writer=name, last=as_record(last))
        return OpenTxn(self.run, txn, nonce, winner)

    def trim(self, topic: str, up_to: Position) -> None:
        """Delete the beginning of the topic's first segment, as retention would."""
        assert isinstance(self.run.log, EmbeddedSegmentLog)
        self.run.log.trim(self.segments(topic)[0], up_to)

    def rows(self, topic: str) -> list[dict[str, Any]]:
        """Return what a reader sees now, with metadata, segment by segment in log order."""
        return [row for ref in self.segments(topic) for row in self.rows_of(ref)]

    def rows_of(self, segment: SegmentRef) -> list[dict[str, Any]]:
        """Return what a reader of one segment sees now."""
        log = self.run.log
        found = self.run.buffer.readable(
            [segment.id], lambda _: log.last_confirmed(segment), [EARLIEST]
        )
        batches = log.read(
            segment,
            log.trimmed_to(segment),
            found[0].end,
            visible=found[0].visibility,
            columns=_EVERY_COLUMN,
            max_rows=10_000,
        )
        return [row for batch in batches for row in batch.to_pylist()]

    def visible(self, topic: str) -> list[str]:
        """Return the values that a reader sees now, sorted."""
        return sorted(row["value"].decode() for row in self.rows(topic))

    def wait_for(self, topic: str, values: list[str]) -> None:
        """Wait until a reader sees these values and no others."""
        until(lambda: self.visible(topic) == values)

    def wait_for_lease(self, query: str, beats: int) -> None:
        """Wait until the lease of a query's open transaction was extended some times."""
        deadlines: set[int] = set()

        def extended() -> bool:
            for txn, deadline_ms in self.open_txns():
                header = self.run.store.transactions.read(txn)
                if header is not None and header.query == query:
                    deadlines.add(deadline_ms)
            return len(deadlines) > beats

        until(extended)

    def open_txns(self) -> list[tuple[TxnId, int]]:
        """Return the transactions that are open, with the ends of their leases in ms."""
        store = self.run.store
        shards = range(store.identity.coordinators)
        return [
            found
            for tc in shards
            for found in store.transactions.list_open(tc, deadline_ms=None, limit=100)
        ]

    def physical(self, topic: str) -> Audit:
        """Count what lies in the topic's log, the invisible too."""
        refs = self.segments(topic)
        gates = self.run.buffer.readable(
            [r.id for r in refs], lambda _: EARLIEST, [EARLIEST] * len(refs)
        )
        return sum(
            (audit(self.run.log, ref, g.visibility) for ref, g in zip(refs, gates, strict=True)),
            Audit(),
        )

    def cursor(self, topic: str, subscription: str) -> Position | None:
        """Return where a subscription stands in the topic's first segment."""
        found = self.run.store.subscriptions.read_cursors(
            [self.segments(topic)[0].id], subscription
        )[0]
        return found.position if found else None

    def end(self, topic: str) -> Position:
        """Return the last position of the topic's first segment."""
        return self.end_of(self.segments(topic)[0])

    def end_of(self, segment: SegmentRef) -> Position:
        """Return the last position of a segment."""
        return self.run.log.last_confirmed(segment)

    def collect(self) -> None:
        """Let the store forget every header that nobody needs, as it does after a while."""
        Sweeper(self.run.coordinator, lambda _: None, retention_ms=0).sweep()

    # -- Spark ---------------------------------------------------------------------------------

    def frame(self, *values: str, partitions: int = 1) -> DataFrame:
        """Return a DataFrame of values."""
        rows = [(value,) for value in values]
        return self.spark.createDataFrame(rows, "value string").coalesce(partitions)

    def write(self, df: DataFrame, topic: str | None = None, **options: object) -> None:
        """Write a batch."""
        self._with(df.write.format(FORMAT).mode("append"), topic, options).save()

    def read(self, topic: str | None = None, **options: object) -> DataFrame:
        """Read a batch."""
        loaded: DataFrame = self._with(self.spark.read.format(FORMAT), topic, options).load()
        return loaded

    def read_text(self, topic: str, **options: object) -> DataFrame:
        """Read a batch of values as text."""
        return self.read(topic, **options).selectExpr("string(value) AS value")

    def values(self, topic: str | None = None, **options: object) -> list[str]:
        """Read a batch and return its values, sorted."""
        loaded = self.read(topic, **options).selectExpr("string(value) AS value")
        return sorted(row["value"] for row in loaded.collect())

    def stream(self, topic: str | None = None, **options: object) -> DataFrame:
        """Return a stream with all columns; from the earliest on unless told otherwise."""
        is_told = any(name.startswith("starting") for name in options)
        settings = options if is_told else {"startingOffsets": "earliest", **options}
        loaded: DataFrame = self._with(self.spark.readStream.format(FORMAT), topic, settings).load()
        return loaded

    def source(self, topic: str | None = None, **options: object) -> DataFrame:
        """Return a stream of values as text; from the earliest on unless told otherwise."""
        return self.stream(topic, **options).selectExpr("string(value) AS value")

    def _with(self, builder: Any, topic: str | None, options: Mapping[str, object]) -> Any:
        builder = builder.options(**self.options)
        if topic is not None:
            builder = builder.option("topic", topic)
        # Python knows no keyword with a dot in it: txn__timeoutMs stands for txn.timeoutMs.
        return builder.options(**{key.replace("__", "."): str(v) for key, v in options.items()})

    def sink(self, df: DataFrame, topic: str | None, checkpoint: Path, **options: object) -> Any:
        """Return a writer of the sink's format, for `drain` or `start`."""
        return self._with(
            df.writeStream.format(FORMAT).option("checkpointLocation", str(checkpoint)),
            topic,
            options,
        )

    @contextmanager
    def setting(self, key: str, value: object) -> Iterator[None]:
        """Change a setting of the session for a while."""
        before = self.spark.conf.get(key)
        self.spark.conf.set(key, str(value))
        try:
            yield
        finally:
            self.spark.conf.set(key, str(before))

    def checkpoint(self, name: str = "checkpoint") -> Path:
        """Return a checkpoint's path."""
        return self.folder / name

    def drain(self, writer: Any) -> StreamingQuery:
        """Run a query until it has read what is there now; raises what made it fail."""
        query: StreamingQuery = writer.trigger(availableNow=True).start()
        return ended(query)


def ended(query: StreamingQuery) -> StreamingQuery:
    """Wait for a query's end; raises what made it fail."""
    try:
        assert query.awaitTermination(QUERY_SECONDS), "the query did not end"
    finally:
        query.stop()
    return query


def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds that nobody announces."""
    deadline = time.monotonic() + QUERY_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def until_the_clock_moves() -> None:
    """Wait for the next millisecond, so that publish times differ."""
    begun = time.time_ns() // 1_000_000
    until(lambda: time.time_ns() // 1_000_000 > begun)


def forget_last_commit(checkpoint: Path) -> int:
    """Delete the last entry of Spark's commit log, as if the driver had died before writing it."""
    commits = checkpoint / "commits"
    last = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


def copied(checkpoint: Path, to: Path) -> Path:
    """Copy a checkpoint."""
    shutil.copytree(checkpoint, to)
    return to


def restored(checkpoint: Path, copy: Path) -> None:
    """Put an older copy in a checkpoint's place."""
    shutil.rmtree(checkpoint)
    shutil.copytree(copy, checkpoint)


def fails_once(mark: Path) -> Callable[[], None]:
    """Return a function, also for tasks, that raises when it is called for the first time."""

    def fail() -> None:
        try:
            mark.mkdir()
        except FileExistsError:
            return
        raise RuntimeError("failed once, on purpose")

    return fail


class Meeting:
    """A task waits here until the test lets it go. Later tasks pass."""

    def __init__(self) -> None:
        self._door = socket.create_server(("127.0.0.1", 0))
        self._door.settimeout(QUERY_SECONDS)
        self._guest: socket.socket | None = None

    @property
    def port(self) -> int:
        """Where to knock, on the loopback interface."""
        port: int = self._door.getsockname()[1]
        return port

    def point(self) -> Callable[[], None]:
        """Return the function that a task calls."""
        address = self._door.getsockname()

        # Nested, so that it is pickled by value: a worker need not find this module.
        def meet() -> None:
            import socket  # noqa: PLC0415

            try:
                guest = socket.create_connection(address)
            except ConnectionRefusedError:
                return
            with guest:
                guest.recv(1)  # ends when the test closes its side, or dies

        return meet

    def fileno(self) -> int:
        """Return what becomes readable when a task has come."""
        return self._door.fileno()

    def wait(self) -> None:
        """Wait until a task has come."""
        self._guest, _ = self._door.accept()
        self._door.close()

    def release(self) -> None:
        """Let the task go on."""
        assert self._guest is not None
        self._guest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._door.close()
        if self._guest is not None:
            self._guest.close()


def on_value(df: DataFrame, trigger: str, action: Callable[[], None]) -> DataFrame:
    """Run an action in the task that meets a value, after all rows before it were passed on."""

    def watch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column("value").to_pylist()
            if trigger not in values:
                yield batch
                continue
            at = values.index(trigger)
            if at:
                yield batch.slice(0, at)
            action()
            yield batch.slice(at)

    return df.mapInArrow(watch, df.schema)
