"""What Spark tells a task, and the driver, of the micro-batch that they work on."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import TaskContext

from pulsar_txn_spark.engine.components import Components

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
_APPLICATION = "spark.app.id"
ROOT_EXECUTION = "spark.sql.execution.root.id"

_PS_TIMEOUT_S = 10  # it answers in 20 ms

_begun: Counter[str] = Counter()


def freeze_loaded_modules(kind: str) -> None:
    """Exclude what the first task of a kind has loaded from later garbage collections.

    After each task Spark's worker runs a full collection. With the modules of this package loaded,
    that takes 30 ms, for objects that live as long as the process. Frozen objects are not visited.
    Called when a task begins, in Spark's worker processes only.
    """
    _begun[kind] += 1
    if _begun[kind] == 2:  # noqa: PLR2004 - once the first one has imported all that it needs
        gc.freeze()


def flush_counters_if_overdue(components: Components) -> None:
    """Flush this worker's counters, if no commit has done so for a while."""
    if components.store.counters.overdue:
        components.store.flush_counters()


def unique_execution_id(execution_id: str, driver: str) -> str:
    """Return an execution id that no restart of the application repeats.

    Parameters
    ----------
    execution_id : str
        ``TaskFacts.execution_id``. Each start of an application counts its executions from 0.
    driver : str
        The driver's process. With a fixed ``spark.app.id`` the application's id does not change.
    """
    return f"{execution_id}@{driver}" if execution_id and driver else execution_id


def driver_name() -> str:
    """Name the JVM of Spark's driver, in a Python process that this JVM has started.

    Empty where the system does not tell of its processes, and outside of Spark.
    """
    return _driver_above(os.getppid())


def driver_name_of(session: Any) -> str:
    """Name the JVM of Spark's driver, in the process of a user's program or function."""
    context = getattr(session, "_sc", None)
    return driver_name() if context is None else _jvm_of(context)


@cache
def _jvm_of(context: Any) -> str:
    try:
        pid = int(context._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001 - PySpark has no public way
    except (Py4JError, AttributeError, TypeError, ValueError):
        return ""
    return _process_name(pid)


@cache
def _driver_above(pid: int) -> str:
    jvm = _jvm_above(pid)
    return "" if jvm is None else _process_name(jvm)


def _jvm_above(pid: int) -> int | None:
    # Workers may be children of PySpark's daemon, which may be started anew meanwhile.
    while pid > 0:  # in a container the JVM may be process 1, whose parent is 0
        process = _process(pid)
        if process is None:
            return None
        if process.command == "java":
            return pid
        pid = process.parent
    return None


def driver_command() -> tuple[str, ...]:
    """Return the command line of Spark's driver, in a Python process that its JVM has started.

    Empty where the system does not tell it, and outside of Spark.
    """
    jvm = _jvm_above(os.getppid())
    if jvm is None:
        return ()
    try:
        text = Path(f"/proc/{jvm}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return () if sys.platform == "linux" else _command_of_ps(jvm)
    return tuple(text.removesuffix("\0").split("\0"))


def _command_of_ps(pid: int) -> tuple[str, ...]:
    answer = _ps(pid, "args=", os.environ)
    return () if answer is None else tuple(answer.split())


def _process_name(pid: int) -> str:
    """Name a process by its id and its start time: no later process has the same name."""
    process = _process(pid)
    return "" if process is None else f"{platform.node()}/{pid}/{process.started}"


class _Process(NamedTuple):
    command: str
    parent: int
    started: str


def _process(pid: int) -> _Process | None:
    """Return what the system knows of a process: Linux in a file, others by the command ``ps``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None if sys.platform == "linux" else _process_of_ps(pid)
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    return _Process(head.partition("(")[2], int(fields[1]), fields[19])


def _process_of_ps(pid: int) -> _Process | None:
    # Every process must find the same name, whatever its language and its zone.
    answer = _ps(pid, "ppid=,lstart=,comm=", {**os.environ, "LC_ALL": "C", "TZ": "UTC0"})
    try:
        # The start is five words: Sun Nov 22 13:54:42 2026.
        parent, day, month, date, time, year, path = (answer or "").split(maxsplit=6)
        started = f"{day}-{month}-{date}-{time}-{year}"
        return _Process(Path(path.strip()).name, int(parent), started)
    except ValueError:
        return None


def _ps(pid: int, columns: str, environment: Mapping[str, str]) -> str | None:
    """Return what the command ``ps`` shows of a process, None if it shows nothing."""
    command = ["ps", "-ww", "-o", columns, "-p", str(pid)]
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command of the system
            command,
            capture_output=True,
            text=True,
            timeout=_PS_TIMEOUT_S,
            check=True,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Facts about the running task.

    Parameters
    ----------
    query : str
        Spark's query id; empty outside of a stream, and in threads that a user started.
    batch : int
        Spark's batch id, -1 where there is none.
    execution_id : str
        Of the attempt at the micro-batch, for every read and write in it: the application and the
        root SQL execution. The job group would not do: a user's ``setJobGroup`` replaces Spark's.
        Empty where Spark does not set it.
    partition : int
        Index of the task's partition.
    attempt : int
        Task attempt id, unique in one Spark application.
    """

    query: str
    batch: int
    execution_id: str
    partition: int
    attempt: int

    @classmethod
    def of_task(cls) -> TaskFacts:
        """Read the facts of the task that this code runs in.

        Raises
        ------
        RuntimeError
            If it runs in no Spark task.
        """
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("no Spark task runs in this process")
        batch = context.getLocalProperty(BATCH_ID)
        application = context.getLocalProperty(_APPLICATION)
        root = context.getLocalProperty(ROOT_EXECUTION)
        return cls(
            query=context.getLocalProperty(QUERY_ID) or "",
            batch=int(batch) if batch else -1,
            execution_id=f"{application}/{root}" if application and root else "",
            partition=context.partitionId(),
            attempt=context.taskAttemptId(),
        )
