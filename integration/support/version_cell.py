"""One cell of the table of versions: what works on the Python and the PySpark that run this.

``python version_cell.py FOLDER [PART…]`` runs parts on an embedded store in the folder, and prints
a line of JSON for each. `tools.versions` makes the environments. This file runs on Python 3.10.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pulsar_txn_spark
from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Router
from pulsar_txn_spark.spark.versions import ADMISSION_CONTROL
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.redis import server

FORMAT = "pulsar_txn"
QUERY_SECONDS = 120  # a query here takes three
SERVER_SECONDS = 90  # Spark Connect's server starts in ten
LIMIT = 10
KILLS = ((Step.APPEND, Phase.AFTER), (Step.DECIDE, Phase.AFTER))
"""Where the driver is killed: with invisible rows, and with a decision that Spark does not know."""


class Place:
    """A store in a folder, with topics and queries on it."""

    def __init__(self, folder: Path, spark: SparkSession | None = None) -> None:
        self.folder, self._session = folder, spark
        self.options = {"store.path": str(folder / "store")}
        self.admin = pulsar_txn_spark.Admin(self.options)

    @property
    def spark(self) -> SparkSession:
        assert self._session is not None
        return self._session

    def topic(self, name: str, *values: str) -> str:
        """Create a topic, and put each value into an entry of its own."""
        self.admin.create_topic(name, segments=2)
        self.produce(name, *values)
        return name

    def produce(self, name: str, *values: str) -> None:
        """Append committed entries as a producer without Spark does."""
        components = open_components(Options(self.options, Use.CONNECT))
        router = Router(components.topics.require(TopicName.parse(name)))
        for at, value in enumerate(values):
            ref = router.segments[at % len(router.segments)].ref
            writer = components.log.writer(ref, f"plain {value}")
            writer.append(pa.record_batch([pa.array([value.encode()])], names=["value"]))
            last = writer.flush().last
            writer.close()
            assert last is not None
            components.store.segments.raise_high(ref.id, last)

    def read(self, topic: str) -> Counter[str]:
        """Read what is committed, in a batch."""
        rows = self.spark.read.format(FORMAT).options(**self.options).option("topic", topic).load()
        return Counter(row[0] for row in rows.selectExpr("string(value)").collect())

    def stream(self, topic: str, **options: str) -> DataFrame:
        """Return a stream from the beginning, as upper case."""
        source = self.spark.readStream.format(FORMAT).options(**self.options).options(**options)
        source = source.option("topic", topic).option("startingOffsets", "earliest")
        return source.load().selectExpr("upper(string(value)) AS value", "__key")

    def write(self, rows: DataFrame, topic: str, **trigger: Any) -> list[int]:
        """Run a query into a topic to its end; return the rows of its micro-batches."""
        checkpoint = str(self.folder / f"checkpoint-{topic}")
        writer = rows.writeStream.format(FORMAT).options(**self.options).option("topic", topic)
        query = writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()
        if "availableNow" in trigger:
            assert query.awaitTermination(QUERY_SECONDS), "the query does not end"
        else:
            query.processAllAvailable()
            query.stop()
        sizes = [progress["numInputRows"] for progress in query.recentProgress]
        return [size for size in sizes if size]


def values(prefix: str, count: int) -> list[str]:
    """Return distinct values."""
    return [f"{prefix}-{at:03d}" for at in range(count)]


def upper(*texts: str) -> Counter[str]:
    """Return what a job makes of values."""
    return Counter(value.upper() for value in texts)


def require(actual: object, expected: object) -> None:
    """Raise if a result is not the expected one."""
    if actual != expected:
        raise AssertionError(f"expected {expected}, found {actual}")


# -- parts ---------------------------------------------------------------------------------------


def batch(place: Place) -> str:
    """Write every column in a batch, and read it back."""
    topic = place.topic("batch")
    rows = place.spark.sql(
        "SELECT string(id) AS value, concat('k', id % 7) AS __key, "
        "timestamp_millis(1700000000123 + id) AS __eventTime, "
        "map('n', string(id)) AS __messageProperties FROM range(50)"
    )
    rows.write.format(FORMAT).mode("append").options(**place.options).option("topic", topic).save()
    read = place.spark.read.format(FORMAT).options(**place.options).option("topic", topic).load()
    columns = [
        "string(value) AS value",
        "string(__key) AS __key",
        "__eventTime",
        "__messageProperties.n AS n",
    ]
    read_back = {tuple(row) for row in read.selectExpr(*columns).collect()}
    wanted = {tuple(row) for row in rows.selectExpr(*columns[:2], *columns[2:]).collect()}
    require(read_back, wanted)
    return ""


def stream(place: Place) -> str:
    """Run from topic to topic, and continue after a restart."""
    source, target = place.topic("stream-in", *values("a", 20)), place.topic("stream-out")
    place.write(place.stream(source, subscription="stream"), target, availableNow=True)
    place.produce(source, *values("b", 20))
    place.write(place.stream(source, subscription="stream"), target, availableNow=True)
    require(place.read(target), upper(*values("a", 20), *values("b", 20)))
    return ""


def columns(place: Place) -> str:
    """Write every column in a stream."""
    source, target = place.topic("columns-in", *values("a", 5)), place.topic("columns-out")
    rows = place.stream(source).selectExpr(
        "value",
        "string(null) AS __key",
        "timestamp_millis(1700000000123) AS __eventTime",
        "map('of', value) AS __messageProperties",
    )
    place.write(rows, target, availableNow=True)
    read = place.spark.read.format(FORMAT).options(**place.options).option("topic", target).load()
    read_back = read.selectExpr(
        "string(value)", "unix_millis(__eventTime)", "__messageProperties.of"
    )
    wanted = {(value.upper(), 1700000000123, value.upper()) for value in values("a", 5)}
    require({tuple(row) for row in read_back.collect()}, wanted)
    return ""


def limits(place: Place) -> str:
    """Keep the limit of each micro-batch, also after a restart."""
    source, target = place.topic("limits-in", *values("a", 25)), place.topic("limits-out")
    limited = {"maxMessagesPerTrigger": str(LIMIT), "subscription": "limits"}
    sizes = place.write(place.stream(source, **limited), target, processingTime="0 seconds")
    place.produce(source, *values("b", 15))
    sizes += place.write(place.stream(source, **limited), target, processingTime="0 seconds")
    require(place.read(target), upper(*values("a", 25), *values("b", 15)))
    require([size for size in sizes if size > LIMIT], [])
    return ""


def available_now(place: Place) -> str:
    """Read all that is there within the limits: in as many micro-batches as that takes."""
    source, target = place.topic("now-in", *values("a", 15)), place.topic("now-out")
    limited = {"maxMessagesPerTrigger": str(LIMIT), "subscription": "now"}
    runs = 0
    while sum(place.read(target).values()) < 15:
        sizes = place.write(place.stream(source, **limited), target, availableNow=True)
        require([size for size in sizes if size > LIMIT], [])
        runs += 1
        if runs > 15:
            raise AssertionError("the query makes no progress")
    require(place.read(target), upper(*values("a", 15)))
    if ADMISSION_CONTROL.is_available():
        require(runs, 1)
        return ""
    require(runs, 2)
    return "one micro-batch a run"


def segments(place: Place) -> str:
    """Follow a split: parents before children, nothing twice."""
    source, target = place.topic("split-in", *values("a", 20)), place.topic("split-out")
    trigger = {"processingTime": "0 seconds"}
    place.write(place.stream(source, subscription="split"), target, **trigger)
    place.produce(source, *values("b", 20))
    topology = place.admin.find_topic(source)
    place.admin.split_segment(source, topology.active[0].descriptor)
    place.produce(source, *values("c", 20))
    place.write(place.stream(source, subscription="split"), target, **trigger)
    place.produce(source, *values("d", 20))
    place.write(place.stream(source, subscription="split"), target, **trigger)
    wanted = [value for prefix in "abcd" for value in values(prefix, 20)]
    require(place.read(target), upper(*wanted))
    return ""


def foreach_batch(place: Place, **options: str) -> str:
    """Write to two topics in one transaction, from a function."""
    source = place.topic("each-in", *values("a", 20))
    targets = place.topic("each-out"), place.topic("each-copy")

    @pulsar_txn_spark.transactional({**place.options, **options})
    def both(df: DataFrame, batch_id: int, txn: pulsar_txn_spark.BatchTransaction) -> None:
        for target in targets:
            txn.write(df, topic=target)

    _each_batch(place, "each", place.stream(source, subscription="each"), both)
    for target in targets:
        require(place.read(target), upper(*values("a", 20)))
    return ""


def threads(place: Place) -> str:
    """Write to two topics in one transaction, from threads of the function's own."""
    source = place.topic("pool-in", *values("a", 20))
    targets = place.topic("pool-out"), place.topic("pool-copy")

    @pulsar_txn_spark.transactional(place.options)
    def both(df: DataFrame, batch_id: int, txn: pulsar_txn_spark.BatchTransaction) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda target: txn.write(df, topic=target), targets))

    _each_batch(place, "pool", place.stream(source, subscription="pool"), both)
    for target in targets:
        require(place.read(target), upper(*values("a", 20)))
    return ""


def _each_batch(
    place: Place, name: str, rows: DataFrame, function: Callable[[DataFrame, int], None]
) -> None:
    checkpoint = str(place.folder / f"checkpoint-{name}")
    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    query = writer.foreachBatch(function).trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_SECONDS), "the query does not end"


def messages(place: Place) -> str:
    """Say what is wrong with an option, without PySpark's frames in front."""
    read = place.spark.readStream.format(FORMAT).options(**place.options)
    try:
        read.option("topic", "x").option("maxMessagesPerTriger", "1").load()
    except PySparkException as error:
        if "maxMessagesPerTrigger" not in str(error):
            raise
    else:
        raise AssertionError("an option that does not exist was taken")
    return ""


def kills(place: Place) -> str:
    """Kill the driver in the middle of micro-batches; every row is there once all the same."""
    source, target = place.topic("kill-in", *values("a", 40)), place.topic("kill-out")
    for step, phase in KILLS:
        code, said = _job(place, source, target, f"{step}:{phase}:2")
        if code != -signal.SIGKILL:
            raise AssertionError(f"at {step} {phase} the job ended with {code}: {said}")
        require([value for value, n in place.read(target).items() if n > 1], [])
    for _ in range(12):
        code, said = _job(place, source, target, "")
        require((code, said if code else ""), (0, ""))
        if sum(place.read(target).values()) >= 40:
            break
    require(place.read(target), upper(*values("a", 40)))
    return ""


def _job(place: Place, source: str, target: str, faults: str) -> tuple[int, str]:
    """Run the job in a process group of its own, to its end or its death."""
    log = place.folder / "job.log"
    (place.folder / "faults").mkdir(exist_ok=True)
    for old in (place.folder / "faults").iterdir():
        old.unlink()
    environment = {
        **os.environ,
        steps.FAULT: faults,
        steps.FAULT_FILE: str(place.folder / "faults" / "f"),
    }
    shell = f'{steps.FAULT_PGID}=$$ exec "$0" "$@"'
    job = [sys.executable, __file__, str(place.folder), "--job", source, target]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", shell, *job],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
        try:
            code = process.wait(QUERY_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return code, log.read_text(errors="replace")[-2000:]


def run_job(place: Place, source: str, target: str) -> None:
    """Consume, transform, produce: what ``kills`` runs and kills."""
    rows = place.stream(source, subscription="kill", maxMessagesPerTrigger=str(LIMIT))
    place.write(rows, target, processingTime="0 seconds")


# -- Spark Connect -------------------------------------------------------------------------------


def connect_batch(place: Place) -> str:
    """Write and read a batch from a client."""
    return batch(place)


def connect_stream(place: Place) -> str:
    """Run from topic to topic, started by a client."""
    return stream(place)


def connect_foreach_batch(place: Place) -> str:
    """Run functions on the server's side, which have to be told their queries."""
    foreach_batch(place, checkpointLocation=str(place.folder / "checkpoint-each"))
    _siblings(place)
    _second_scope(place)
    return ""


def _siblings(place: Place) -> None:
    """Write to two sinks in one micro-batch, the first of the query."""
    source = place.topic("pair-in", *values("a", 20))
    targets = place.topic("pair-out"), place.topic("pair-copy")
    sinks = [_sink(place, "pair", target) for target in targets]

    def both(df: DataFrame, batch_id: int) -> None:
        for sink in sinks:
            sink(df, batch_id)

    _each_batch(place, "pair", place.stream(source), both)
    for target in targets:
        require(place.read(target), upper(*values("a", 20)))


def _second_scope(place: Place) -> None:
    """Write to one sink twice in one micro-batch, which is refused."""
    source, target = place.topic("twice-in", *values("a", 20)), place.topic("twice-out")
    sink = _sink(place, "twice", target)

    def twice(df: DataFrame, batch_id: int) -> None:
        sink(df.where("value < 'A-005'"), batch_id)
        sink(df.where("value >= 'A-005'"), batch_id)

    try:
        _each_batch(place, "twice", place.stream(source), twice)
    except PySparkException as error:
        if "was written already in batch 0" not in str(error):
            raise
    else:
        raise AssertionError("the second write was taken for a replay, and its rows are lost")
    require(place.read(target), upper(*values("a", 5)))


def _sink(place: Place, name: str, topic: str) -> pulsar_txn_spark.TransactionalSink:
    checkpoint = str(place.folder / f"checkpoint-{name}")
    options = {**place.options, "topic": topic, "checkpointLocation": checkpoint}
    return pulsar_txn_spark.TransactionalSink(options)


def connect_kill(place: Place) -> str:
    """Kill the server between a commit and Spark's own; another recognizes the replay."""
    source, target = place.topic("lost-in", *values("a", 20)), place.topic("lost-out")
    with connect_server(place.folder) as (url, process):
        job = [sys.executable, __file__, str(place.folder), "--client", url, source, target]
        with (place.folder / "client.log").open("wb") as log:
            client = subprocess.Popen([*job, str(process.pid)], stdout=log, stderr=log)
        try:
            require(process.wait(QUERY_SECONDS), -signal.SIGKILL)
        finally:
            client.kill()  # it tries for minutes to reach the server again
            client.wait()
    place.produce(source, *values("b", 20))
    with connect_server(place.folder) as (url, _):
        here = Place(place.folder, SparkSession.builder.remote(url).getOrCreate())
        require(here.read(target), upper(*values("a", 20)))
        # Spark may end an availableNow query after the batch that it runs again.
        for _ in range(2):
            run_client(here, source, target)
        require(here.read(target), upper(*values("a", 20), *values("b", 20)))
        here.spark.stop()
    return ""


def run_client(place: Place, source: str, target: str, server_pid: int = 0) -> None:
    """Run a query with a function, which kills the server once it has committed if it is told."""
    sink = _sink(place, "lost", target)

    def commit(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        if server_pid:
            os.kill(server_pid, signal.SIGKILL)

    _each_batch(place, "lost", place.stream(source, subscription="lost"), commit)


@contextmanager
def connect_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start Spark Connect's server in a process of its own."""
    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        **session_settings(folder),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    jars = sorted((home / "jars").glob("spark-connect_*.jar"))
    with (folder / "connect.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, str(jars[0])],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "SPARK_HOME": str(home)},
        )
    try:
        deadline = time.monotonic() + SERVER_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                said = (folder / "connect.log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"Spark Connect does not start: {said}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}", process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


# -- running -------------------------------------------------------------------------------------

CLASSIC: dict[str, Callable[[Place], str]] = {
    "batch": batch,
    "stream": stream,
    "columns": columns,
    "limits": limits,
    "availableNow": available_now,
    "segments": segments,
    "foreachBatch": foreach_batch,
    "threads": threads,
    "messages": messages,
    "kills": kills,
}
CONNECT: dict[str, Callable[[Place], str]] = {
    "connect batch": connect_batch,
    "connect stream": connect_stream,
    "connect foreachBatch": connect_foreach_batch,
}
CONNECT_KILL = "connect kill"
PARTS = (*CLASSIC, *CONNECT, CONNECT_KILL)


def session_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a session that keeps to itself."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.local.dir": str(folder / "scratch"),
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "pulsar_txn_spark.spark.worker_daemon",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def open_session(folder: Path) -> SparkSession:
    """Start Spark in this process."""
    builder = SparkSession.builder.master("local[2]")
    for key, value in session_settings(folder).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run(part: str, action: Callable[[Place], str], place: Place) -> None:
    """Run a part, and print what came of it."""
    begun = time.monotonic()
    result = {"part": part, "ok": True, "note": ""}
    try:
        result["note"] = action(place)
    except Exception as error:  # noqa: BLE001 - whatever it is belongs into the table
        lines = [line for line in str(error).splitlines() if line.strip()]
        result |= {"ok": False, "note": f"{type(error).__name__}: {' '.join(lines)[:1500]}"}
    result["seconds"] = round(time.monotonic() - begun, 1)
    print(json.dumps(result), flush=True)  # noqa: T201 - for tools.versions


def main(folder: Path, *wanted: str) -> None:
    """Run the parts that are wanted, all of them by default."""
    # Whoever stops a cell stops its servers: they are in sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ[server.OWNER_VARIABLE] = str(os.getpid())
    chosen = wanted or PARTS
    classic = {part: CLASSIC[part] for part in chosen if part in CLASSIC}
    if classic:
        here = folder / "classic"
        here.mkdir(parents=True)
        session = open_session(here)
        place = Place(here, session)
        for part, action in classic.items():
            run(part, action, place)
        session.stop()
        server.stop_server(place.options["store.path"])
    connect = {part: CONNECT[part] for part in chosen if part in CONNECT}
    if connect or CONNECT_KILL in chosen:
        here = folder / "connect"
        here.mkdir(parents=True)
        server.ensure_server(str(here / "store"))
    if connect:
        with connect_server(here) as (url, _):
            place = Place(here, SparkSession.builder.remote(url).getOrCreate())
            for part, action in connect.items():
                run(part, action, place)
            place.spark.stop()
    if CONNECT_KILL in chosen:
        run(CONNECT_KILL, connect_kill, Place(here))
    if connect or CONNECT_KILL in chosen:
        server.stop_server(str(here / "store"))


if __name__ == "__main__":
    if "--job" in sys.argv:
        at = Path(sys.argv[1])
        run_job(Place(at, open_session(at)), *sys.argv[3:])
    elif "--client" in sys.argv:
        remote, wanted_source, wanted_target, pid = sys.argv[3:]
        client = Place(Path(sys.argv[1]), SparkSession.builder.remote(remote).getOrCreate())
        run_client(client, wanted_source, wanted_target, int(pid))
    else:
        main(Path(sys.argv[1]), *sys.argv[2:])
