"""The JVM connector at the same cases, in a Spark of its own; see :mod:`benchmarks.peer`.

Runs in another virtual environment, so it imports nothing of this project. Reads commands from its
standard input, a JSON object a line, and answers each with one behind the mark ``answer ``.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryListener

_SCHEMA = "value BINARY, __key BINARY"
_INTERVAL = "400 milliseconds"
_PROGRESS_SECONDS = 120.0
_WARM_UP = 2


class _Progress(StreamingQueryListener):
    def __init__(self) -> None:
        self.found: queue.Queue[Any] = queue.Queue()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.found.put(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


class Job:
    """What the connector is asked to do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        builder = SparkSession.builder.appName("peer").master(f"local[{settings['cores']}]")
        for key, value in {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraClassPath": settings["jar"],
            "spark.jars": settings["jar"],
            "spark.local.dir": f"{settings['folder']}/spark",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": str(settings["cores"]),
            "spark.sql.warehouse.dir": f"{settings['folder']}/warehouse",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }.items():
            builder = builder.config(key, value)
        self._spark = builder.getOrCreate()
        self._settings = settings

    def _options(self, topic: str) -> dict[str, str]:
        return {
            "service.url": self._settings["service"],
            "admin.url": self._settings["admin"],
            "topic": topic,
        }

    def _checkpoint(self) -> str:
        return tempfile.mkdtemp(prefix="checkpoint-", dir=self._settings["folder"])

    def _write(self, df: DataFrame, topic: str) -> None:
        writer = df.write.format("pulsar").options(**self._options(topic))
        # Without it the connector dies of "client memory buffer is full".
        writer.option("pulsar.producer.blockIfQueueFull", "true").mode("append").save()

    def _stream(self, df: DataFrame, topic: str, trigger: dict[str, Any]) -> Any:
        return (
            df.writeStream.format("pulsar")
            .options(**self._options(topic))
            .option("pulsar.producer.blockIfQueueFull", "true")
            .option("checkpointLocation", self._checkpoint())
            .trigger(**trigger)
            .start()
        )

    def _read_stream(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format("pulsar").options(**self._options(topic))
        loaded: DataFrame = reader.option("startingOffsets", "earliest").load()
        return loaded.select("value", "__key")

    @staticmethod
    def _busy(query: Any) -> dict[str, float]:
        query.awaitTermination()
        found = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return {
            "seconds": sum(one["durationMs"]["triggerExecution"] for one in found) / 1000,
            "rows": sum(one["numInputRows"] for one in found),
        }

    def count(self, topic: str) -> dict[str, float]:
        """Count a topic's rows."""
        read = self._spark.read.format("pulsar").options(**self._options(topic)).load()
        return {"rows": read.count()}

    def sink_batch(self, topic: str) -> dict[str, float]:
        """Write the input as a batch."""
        began = time.perf_counter()
        self._write(self._spark.read.schema(_SCHEMA).parquet(self._settings["input"]), topic)
        return {"seconds": time.perf_counter() - began}

    def sink_stream(self, topic: str) -> dict[str, float]:
        """Write the input as a stream."""
        rows = self._spark.readStream.schema(_SCHEMA).parquet(self._settings["input"])
        return self._busy(self._stream(rows, topic, {"availableNow": True}))

    def source(self, topic: str) -> dict[str, float]:
        """Read a topic as a batch."""
        began = time.perf_counter()
        read = self._spark.read.format("pulsar").options(**self._options(topic)).load()
        read.select("value", "__key").write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - began}

    def pipeline(self, topic: str, output: str) -> dict[str, float]:
        """Read a topic as a stream, change each value, and write it."""
        value = f.col("value")
        turned = f.concat(f.substring(value, 2, 1 << 30), f.substring(value, 1, 1)).alias("value")
        rows = self._read_stream(topic).select(turned, "__key")
        return self._busy(self._stream(rows, output, {"availableNow": True}))

    def micro_batches(self, topic: str, output: str, count: int) -> dict[str, Any]:
        """Pass single rows on, a micro-batch each, and return the times of their triggers."""
        progress = _Progress()
        self._spark.streams.addListener(progress)
        query = self._stream(self._read_stream(topic), output, {"processingTime": _INTERVAL})
        row = self._spark.sql("SELECT binary(repeat('v', 100)) AS value, binary('key') AS __key")
        spent = []
        try:
            for _ in range(_WARM_UP + count):
                self._write(row, topic)
                while True:
                    found = progress.found.get(timeout=_PROGRESS_SECONDS)
                    if found.numInputRows:
                        spent.append(found.durationMs["triggerExecution"])
                        break
        finally:
            query.stop()
            self._spark.streams.removeListener(progress)
        return {"first": spent[0], "milliseconds": spent[_WARM_UP:]}


def main() -> None:
    """Answer commands until the input ends."""
    job = Job(json.loads(sys.argv[1]))
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(job, command.pop("do"))(**command)
        except Exception as failed:  # noqa: BLE001 - told to the parent, which raises
            answer = {"error": f"{type(failed).__name__}: {failed}"[:2000]}
        sys.stdout.write(f"answer {json.dumps(answer)}\n")
        sys.stdout.flush()
    os._exit(0)  # Spark's JVM ends with it; an orderly end only takes time


if __name__ == "__main__":
    main()
