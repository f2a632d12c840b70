"""What each process that the demo starts has in common: its settings, its reports, its leash."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pyspark.sql import SparkSession

from demo.topics import SUBSCRIPTION
from pulsar_txn_spark.steps import FAULT_PGID


@dataclass(frozen=True, slots=True)
class Settings:
    """What the demo tells its processes, through a file.

    Parameters
    ----------
    folder : str
        The run's own folder: checkpoint, scratch files, logs.
    options : dict of str to str
        Where store and log are, as options of ``format("pulsar_txn")``.
    rows_per_batch : int
        ``maxMessagesPerTrigger`` of the job.
    reshape_every_s : float
        So often a segment of some topic is split, merged or sealed; 0 = never.
    seed : int
        What is drawn at random hangs on it.
    master : str
        Of the Spark cluster that runs the job as a file; empty = the job has a local Spark.
    gate : str
        Who hides open and aborted rows of the outputs: ``reader`` or ``broker``.
    """

    folder: str
    options: dict[str, str]
    rows_per_batch: int
    reshape_every_s: float = 0.0
    seed: int = 0
    master: str = ""
    gate: str = "reader"

    def write(self) -> Path:
        """Write the file and return its path."""
        path = Path(self.folder) / "settings.json"
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: str) -> Self:
        """Invert :meth:`write`."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))


_requests: queue.SimpleQueue[None] = queue.SimpleQueue()


def begin() -> Settings:
    """Set up this process as a child of the demo; the first thing that each of them does."""
    # Spark's Python workers inherit it, so that a fault in one of them takes the driver along.
    os.environ[FAULT_PGID] = str(os.getpgrp())
    threading.Thread(target=_hold_leash, name="leash", daemon=True).start()
    return Settings.read(sys.argv[1])


def _hold_leash() -> None:
    """Pass on what the demo tells us, and kill the whole group when its end of the pipe closes.

    However the demo ends, also by SIGKILL, the kernel closes that pipe; so nothing is left over.
    """
    while os.read(0, 1):
        _requests.put(None)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def wait_to_be_told() -> None:
    """Wait until the demo says that it is time for the next thing."""
    _requests.get()


def told_within(seconds: float) -> bool:
    """Wait so long at most; tell whether the demo said that it is time."""
    try:
        _requests.get(timeout=seconds)
    except queue.Empty:
        return False
    return True


def emit(event: str, **facts: object) -> None:
    """Report to the demo: one JSON object on a line of its own."""
    print(json.dumps({"event": event, **facts}), flush=True)


def spark_session(name: str, settings: Settings) -> SparkSession:
    """Start Spark as two cores like it, talking to nobody but itself."""
    scratch = Path(settings.folder) / "scratch"
    scratch.mkdir(exist_ok=True)  # here, as a JVM that is killed leaves its files behind
    # These JVMs live for seconds: to optimize their code would cost as much as to run it.
    java_options = f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "-Djava.io.tmpdir={scratch}"'
    session = (
        SparkSession.builder.appName(name)
        .master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(scratch))
        .config("spark.log.level", "WARN")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", f"{settings.folder}/warehouse")
        .config("spark.python.daemon.module", "pulsar_txn_spark.spark.worker_daemon")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", java_options)
        .getOrCreate()
    )
    assert isinstance(session, SparkSession)
    return session


def source_options(settings: Settings) -> dict[str, str]:
    """Return the options by which the job reads its input."""
    return {
        **settings.options,
        "subscription": SUBSCRIPTION,
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": str(settings.rows_per_batch),
    }
