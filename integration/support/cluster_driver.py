"""Another Spark driver, with executors of its own: runs what the tests ask for, line by line.

Reads one JSON object a line from its standard input and answers with one; ends when that input
does, so it never outlives the test process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from integration.support.spark import Lab, open_session

_HOSTS = ("127.0.0.1", "127.0.0.2")  # Spark runs no second attempt on a host that has the first
_EXECUTOR_MB = 1024
_SPECULATE_AT_ONCE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


def take_over(lab: Lab, source: str, out: str, checkpoint: str) -> dict[str, Any]:
    """Run a query on a checkpoint that another driver uses as well."""
    df = lab.source(source, subscription="s", startingOffsets="subscription")
    lab.drain(lab.sink(df, out, Path(checkpoint)))
    return {}


def speculate(lab: Lab, out: str, rows: int, marks: str, port: int) -> dict[str, Any]:
    """Write; one attempt at a task publishes and then waits, so that another one wins."""
    mark = Path(marks) / "waiting"

    def linger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for batch in batches:
            numbers = batch.column("id").to_pylist()
            values = [f"{attempt}-{number}-{'x' * 10_000}" for number in numbers]
            yield pa.record_batch([pa.array(values)], names=["value"])
        if context.partitionId() == 0:
            import socket  # noqa: PLC0415

            try:
                mark.mkdir()
            except FileExistsError:
                return
            with socket.create_connection(("127.0.0.1", port)) as guest:
                guest.recv(1)

    lab.write(lab.spark.range(0, rows, 1, 2).mapInArrow(linger, "value string"), out)
    return {}


def lose_an_executor(lab: Lab, out: str, rows: int, marks: str, port: int) -> dict[str, Any]:
    """Write behind a shuffle; the map output dies with its executors, and differs the next time."""
    folder = Path(marks)

    def executor() -> int:
        # Its JVM is the parent of the daemon, which is the parent of each Python worker.
        stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
        return int(stat.rpartition(")")[2].split()[1])

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import secrets  # noqa: PLC0415

        drawn = secrets.token_hex(4)
        (folder / f"map-{drawn}").write_text(str(executor()))
        for batch in batches:
            numbers = batch.column("id").to_pylist()
            values = pa.array([f"{drawn}-{number}-{'x' * 10_000}" for number in numbers])
            yield pa.record_batch([batch.column("id"), values], names=["id", "value"])

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415
        import socket  # noqa: PLC0415

        yield from (batch.select(["value"]) for batch in batches)
        try:
            (folder / "killed").mkdir()
        except FileExistsError:
            return
        with socket.create_connection(("127.0.0.1", port)) as guest:
            guest.recv(1)
        holders = {int(mark.read_text()) for mark in folder.glob("map-*")}
        for pid in [*(holders - {executor()}), executor()]:
            os.kill(pid, signal.SIGKILL)

    drawn = lab.spark.range(0, rows, 1, 2).mapInArrow(draw, "id long, value string")
    # One reducer: of several, Spark could not take back those that were through already.
    lab.write(drawn.repartition(1, "id").mapInArrow(kill, "value string"), out)
    return {}


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    job.__name__: job for job in (take_over, speculate, lose_an_executor)
}


def answer(lab: Lab, request: dict[str, Any]) -> dict[str, Any]:
    """Run one job."""
    try:
        return JOBS[request.pop("job")](lab, **request)
    except Exception as error:  # noqa: BLE001 — whatever it is, the test wants to see it
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())}


def start_cluster(folder: Path) -> str:
    """Start a standalone cluster of two workers in this driver's JVM, and return its URL.

    It is what ``local-cluster[2,1,1024]`` does, but each worker has a host of its own.
    """
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)
    jvm: Any = gateway.jvm
    conf = jvm.org.apache.spark.SparkConf()
    deploy = jvm.org.apache.spark.deploy
    started = deploy.master.Master.startRpcEnvAndEndpoint(_HOSTS[0], 0, 0, conf)
    url = f"spark://{_HOSTS[0]}:{started._1().address().port()}"
    none = jvm.scala.Option.empty()
    for number, host in enumerate(_HOSTS):
        work = str(folder / f"work-{number}")
        masters = gateway.new_array(jvm.java.lang.String, 1)
        masters[0] = url
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, _EXECUTOR_MB, masters, work, jvm.scala.Some(number), conf, none
        )
    return url


def main() -> None:
    """Serve until the input ends."""
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    spark = open_session(
        folder,
        start_cluster(folder),
        **_SPECULATE_AT_ONCE,
        **{
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            "spark.sql.adaptive.enabled": "false",  # four reducers stay four
            "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        },
    )
    lab = Lab(spark, options, folder)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(lab, json.loads(line))) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
