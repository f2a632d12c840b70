"""A Spark of its own: the JVM connector's cases, another revision's, peak memory, and Kafka's jobs.

See :mod:`benchmarks.own_spark`. With the connector it runs in another virtual environment, and with
another revision it imports that one. So it imports nothing of this project by itself. Reads
commands from its standard input, a JSON object a line, and answers each with one behind the mark
``answer ``.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import StreamingQueryListener

_CONNECTOR = "pulsar"
_BLOCK = {"pulsar.producer.blockIfQueueFull": "true"}
"""Without it the connector dies of "client memory buffer is full"."""
_SCHEMA = "value BINARY, __key BINARY"
_INTERVAL = "400 milliseconds"
_PROGRESS_SECONDS = 120.0
_WARM_UP = 5  # single rows before the first one that counts: its JVM is cold
_LONGEST_ERROR = 2000
_PEAK, _RESET = "VmHWM:", "5"  # of /proc/<pid>/status and /proc/<pid>/clear_refs


class _Progress(StreamingQueryListener):
    def __init__(self) -> None:
        self.progresses: queue.Queue[Any] = queue.Queue()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.progresses.put(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


class _Stepped:
    """A stream of the connector's that passes single rows on."""

    def __init__(self, query: Any, progress: _Progress, topic: str) -> None:
        self.query, self.progress, self.topic = query, progress, topic


class Job:
    """What it can be asked to do.

    Parameters
    ----------
    settings : dict
        ``cores``, ``folder``; with the connector ``jar``, ``service``, ``admin`` and ``input`` too.
        With another format than the connector's ``format``, ``options``, ``schema`` and ``input``.
        ``memory``: of its JVM, as Spark writes it; by default Spark's own. ``sources``: module and
        name of Python data sources to register.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        jar = {
            "spark.driver.extraClassPath": settings.get("jar"),
            "spark.jars": settings.get("jar"),
        }
        builder = SparkSession.builder.appName("peer").master(f"local[{settings['cores']}]")
        for key, value in {
            **(jar if "jar" in settings else {}),
            **({"spark.driver.memory": settings["memory"]} if "memory" in settings else {}),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
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
        self._format = settings.get("format", _CONNECTOR)
        self._stepped: _Stepped | None = None
        for module, name in settings.get("sources", ()):
            self._spark.dataSource.register(getattr(importlib.import_module(module), name))

    def _options(self, topic: str) -> dict[str, str]:
        if self._format != _CONNECTOR:
            return {**self._settings["options"], "topic": topic}
        return {
            "service.url": self._settings["service"],
            "admin.url": self._settings["admin"],
            "topic": topic,
        }

    def _write_options(self, topic: str) -> dict[str, str]:
        return {**self._options(topic), **(_BLOCK if self._format == _CONNECTOR else {})}

    def _reading(self, reader: Any, topic: str, **options: str) -> DataFrame:
        reader = reader.format(self._format).options(**self._options(topic), **options)
        if "schema" in self._settings:
            reader = reader.schema(self._settings["schema"])
        loaded: DataFrame = reader.load()
        return loaded.select("value", "__key")

    def _checkpoint(self) -> str:
        return tempfile.mkdtemp(prefix="checkpoint-", dir=self._settings["folder"])

    def _write(self, df: DataFrame, topic: str) -> None:
        writer = df.write.format(self._format).options(**self._write_options(topic))
        writer.mode("append").save()

    def _stream(self, df: DataFrame, topic: str, trigger: dict[str, Any]) -> Any:
        return (
            df.writeStream.format(self._format)
            .options(**self._write_options(topic))
            .option("checkpointLocation", self._checkpoint())
            .trigger(**trigger)
            .start()
        )

    def _read_stream(self, topic: str, **options: str) -> DataFrame:
        return self._reading(self._spark.readStream, topic, startingOffsets="earliest", **options)

    @staticmethod
    def _busy(query: Any) -> dict[str, float]:
        query.awaitTermination()
        progresses = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return {
            "seconds": sum(progress["durationMs"]["triggerExecution"] for progress in progresses)
            / 1000,
            "rows": sum(progress["numInputRows"] for progress in progresses),
        }

    def count(self, topic: str) -> dict[str, float]:
        """Count a topic's rows."""
        return {"rows": self._reading(self._spark.read, topic).count()}

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
        self._reading(self._spark.read, topic).write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - began}

    def pipeline(self, topic: str, output: str, **options: str) -> dict[str, float]:
        """Read a topic as a stream, change each value, and write it."""
        value = f.col("value")
        turned = f.concat(f.substring(value, 2, 1 << 30), f.substring(value, 1, 1)).alias("value")
        rows = self._read_stream(topic, **options).select(turned, "__key")
        return self._busy(self._stream(rows, output, {"availableNow": True}))

    def code(self) -> dict[str, str]:
        """Return where the project's code is that driver and workers import."""
        rows = self._spark.sparkContext.parallelize([0], 1)
        [worker] = rows.map(lambda _: _project()).collect()
        return {"driver": _project(), "worker": worker}

    def make_topic(self, topic: str, segments: int) -> dict[str, float]:
        """Make a segmented topic by the revision of this project that is imported here."""
        package = importlib.import_module("pulsar_txn_spark")
        options = self._settings["options"]
        if hasattr(package, "Admin"):
            package.Admin(options).create_topic(topic, segments=segments)
        else:  # the first revisions have functions in its place
            package.create_topic(options, topic, segments=segments)
        return {}

    def delete_topic(self, topic: str) -> dict[str, float]:
        """Delete such a topic."""
        package = importlib.import_module("pulsar_txn_spark")
        options = self._settings["options"]
        if hasattr(package, "Admin"):
            package.Admin(options).delete_topic(topic)
        else:
            package.delete_topic(options, topic)
        return {}

    def filled(self, name: str, path: str, options: dict[str, str]) -> dict[str, float]:
        """Write rows of Parquet files as a batch, by a data source of that name."""
        rows = self._spark.read.schema(_SCHEMA).parquet(path)
        rows.write.format(name).options(**options).mode("append").save()
        return {}

    def counted(self, name: str, options: dict[str, str]) -> dict[str, float]:
        """Count what a data source of that name reads."""
        return {"rows": self._spark.read.format(name).options(**options).load().count()}

    def passed(self, name: str, read: dict[str, str], written: dict[str, str]) -> dict[str, float]:
        """Read a stream to its end, change each value, and write it; from the start to the end."""
        value = f.col("value")
        turned = f.concat(f.substring(value, 2, 1 << 30), f.substring(value, 1, 1)).alias("value")
        began = time.perf_counter()
        query = (
            self._spark.readStream.format(name)
            .options(**read)
            .load()
            .select(turned, "__key")
            .writeStream.format(name)
            .options(**written)
            .option("checkpointLocation", self._checkpoint())
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return {"seconds": time.perf_counter() - began}

    def begin_micro_batches(self, topic: str, output: str) -> dict[str, float]:
        """Start a stream from topic to topic, and warm it up where the JVM is new."""
        progress = _Progress()
        self._spark.streams.addListener(progress)
        query = self._stream(self._read_stream(topic), output, {"processingTime": _INTERVAL})
        cold, self._stepped = self._stepped is None, _Stepped(query, progress, topic)
        for _ in range(_WARM_UP if cold else 0):
            self.micro_batch()
        return {}

    def micro_batch(self) -> dict[str, float]:
        """Pass a row on, and return the time of its trigger."""
        stepped = self._stepped
        assert stepped is not None
        row = self._spark.sql("SELECT binary(repeat('v', 100)) AS value, binary('key') AS __key")
        self._write(row, stepped.topic)
        while True:
            progress = stepped.progress.progresses.get(timeout=_PROGRESS_SECONDS)
            if progress.numInputRows:
                return {"milliseconds": progress.durationMs["triggerExecution"]}

    def end_micro_batches(self) -> dict[str, float]:
        """Stop the stream; does nothing without one."""
        if self._stepped is not None:
            self._stepped.query.stop()
            self._spark.streams.removeListener(self._stepped.progress)
        return {}

    def written(
        self, source: str, options: dict[str, str], rows: int, size: int
    ) -> dict[str, float]:
        """Write rows with values of so many bytes, and return the peaks of memory."""
        value = f.expr(f"binary(repeat(chr(33 + id % 90), {size}))").alias("value")
        made = self._spark.range(0, rows, 1, self._settings["cores"])
        keyed = made.select(value, f.expr("binary(string(id))").alias("__key"))
        writer = keyed.write.format(source).options(**options).mode("append")
        if source == _CONNECTOR:
            writer.options(**_BLOCK)
        return self._peaks(writer.save)

    def read(self, source: str, options: dict[str, str]) -> dict[str, float]:
        """Read everything, and return the peaks of memory."""
        rows = self._spark.read.format(source).options(**options).load().select("value", "__key")
        return self._peaks(rows.write.format("noop").mode("overwrite").save)

    def _peaks(self, action: Any) -> dict[str, float]:
        jvm: Any = self._spark._jvm  # noqa: SLF001 - PySpark has no public way
        jvm.System.gc()  # what the run before left does not count
        for process in _processes():
            (process / "clear_refs").write_text(_RESET)
        action()
        processes = _processes()
        peaks = {process: _peak_mebibytes(process) for process in processes}
        workers = [peaks[process] for process, jvm in processes.items() if not jvm]
        return {"worker": max(workers, default=0.0), "all": sum(peaks.values())}


def _project() -> str:
    path = importlib.import_module("pulsar_txn_spark").__file__
    assert path is not None
    return path


def _processes() -> dict[Path, bool]:
    """Return the folders in /proc of Spark's processes: the JVM, True, and its Python workers."""
    processes = {}
    for pid in _descendants():
        folder = Path("/proc") / str(pid)
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if command[0].endswith(b"java"):
            processes[folder] = True
        elif b"pyspark.daemon" in command:
            processes[folder] = False
    return processes


def _descendants() -> list[int]:
    """Return the ids of the processes below this one."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])

    def is_ours(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == os.getpid():
                return True
        return False

    return [pid for pid in parents if is_ours(pid)]


def _peak_mebibytes(process: Path) -> float:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(_PEAK)), 0.0)


def main() -> None:
    """Answer commands until the input ends."""
    job = Job(json.loads(sys.argv[1]))
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(job, command.pop("do"))(**command)
        except Exception as failed:  # noqa: BLE001 - told to the parent, which raises
            text = f"{type(failed).__name__}: {failed}"
            causes = [line for line in text.splitlines() if line.startswith("Caused by")]
            answer = {"error": "\n".join([text[:_LONGEST_ERROR], *causes])}
        sys.stdout.write(f"answer {json.dumps(answer)}\n")
        sys.stdout.flush()
    os._exit(0)  # Spark's JVM ends with it; an orderly end only takes time


if __name__ == "__main__":
    main()
