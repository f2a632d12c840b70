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


from integration.spark_support import Lab, open_session

EXECUTORS = "local-cluster[2,1,1024]"
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


def speculate(lab: Lab, out: str, rows: int, port: int) -> dict[str, Any]:
    """Write; the first attempt of one task publishes and then waits, so that a second one starts."""

    def linger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for batch in batches:
            numbers = batch.column("id").to_pylist()
            values = [f"{attempt}-{number}-{'x' * 10_000}" for number in numbers]
            yield pa.record_batch([pa.array(values)], names=["value"])
        if context.partitionId() == 0 and attempt == 0:
            import socket  # noqa: PLC0415

            with socket.create_connection(("127.0.0.1", port)) as guest:
                guest.recv(1)

    lab.write(lab.spark.range(0, rows, 1, 2).mapInArrow(linger, "value string"), out)
    return {}


def lose_an_executor(lab: Lab, out: str, rows: int, marks: str) -> dict[str, Any]:
    """Write behind a shuffle; an executor dies with its map output, which differs the next time."""

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import secrets  # noqa: PLC0415

        drawn = secrets.token_hex(4)
        with open(f"{marks}/map-{drawn}", "w"):  # noqa: PTH123
            pass
        for batch in batches:
            numbers = batch.column("id").to_pylist()
            values = pa.array([f"{number}-{drawn}" for number in numbers])
            yield pa.record_batch([batch.column("id"), values], names=["id", "value"])

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os  # noqa: PLC0415
        import signal  # noqa: PLC0415

        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        assert context is not None
        yield from (batch.select(["value"]) for batch in batches)
        if context.partitionId() == 3:
            try:
                os.mkdir(f"{marks}/killed")  # noqa: PTH102
            except FileExistsError:
                return
            daemon = os.getppid()
            with open(f"/proc/{daemon}/stat") as stat:  # noqa: PTH123
                executor = int(stat.read().rpartition(")")[2].split()[1])
            os.kill(executor, signal.SIGKILL)

    drawn = lab.spark.range(0, rows, 1, 2).mapInArrow(draw, "id long, value string")
    lab.write(drawn.repartition(4, "id").mapInArrow(kill, "value string"), out)
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


def main() -> None:
    """Serve until the input ends."""
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    spark = open_session(
        folder,
        EXECUTORS,
        **_SPECULATE_AT_ONCE,
        **{
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
            "spark.sql.adaptive.enabled": "false",  # four reducers stay four
            "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        },
    )
    lab = Lab(spark, options, folder)
    for line in sys.stdin:
        print(json.dumps(answer(lab, json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
