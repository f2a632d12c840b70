"""Spark for a job: the one that spark-submit has started, or one of this process."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from pulsar_txn_spark.announcement import announce
from pulsar_txn_spark.errors import JobNotReadyError
from pulsar_txn_spark.job.definition import Job
from pulsar_txn_spark.job.secrets import names_secret
from pulsar_txn_spark.spark.registration import register

_MASTER = "spark.master"
_NAME = "spark.app.name"
_API_MODE = "spark.api.mode"
_GATEWAY = "PYSPARK_GATEWAY_PORT"  # spark-submit has started the JVM, and this process
_CONNECT = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables by which PySpark is the client of a driver elsewhere."""
_STANDARD_ERROR = 2
_TOO_LATE = (
    "spark.archives",
    "spark.driver.cores",
    "spark.driver.defaultJavaOptions",
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.extraLibraryPath",
    "spark.driver.memory",
    "spark.driver.memoryOverhead",
    "spark.jars",
    "spark.jars.packages",
    "spark.submit.deployMode",
)
"""Settings that count before the driver's JVM starts."""

_OF_A_CLUSTER = (
    "spark.driver.bindAddress",
    "spark.driver.host",
    "spark.dynamicAllocation.",
    "spark.eventLog.",
    "spark.executor.",
    "spark.kubernetes.",
    "spark.plugins",
    "spark.submit.",
    "spark.ui.",
    "spark.yarn.",
)
"""Settings that a check, on this machine alone, leaves out."""


def is_submitted() -> bool:
    """Tell whether spark-submit has started this process."""
    return _GATEWAY in os.environ


def open_session(job: Job) -> SparkSession:
    """Start Spark for a job, or take what spark-submit has started."""
    settings = {_NAME: job.name, **job.spark}
    if is_submitted():
        settings.pop(_MASTER, None)
        _say_what_is_too_late(settings)
    session = _session(job, settings)
    if is_submitted():
        register(session)  # Spark does not look for formats in what has come with --py-files
    return session


def open_local_session(job: Job, folder: Path) -> SparkSession:
    """Start a Spark for a check: on this machine, quiet, without a cluster."""
    kept = {
        key: value
        for key, value in job.spark.items()
        if key != _MASTER and not key.startswith(_OF_A_CLUSTER)
    }
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **kept,
        _MASTER: "local[1]",
        _NAME: f"check of {job.name}",
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    # PySpark logs each error of the analyzer with its whole stack; the check words it itself.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with _standard_error_in(folder / "stderr"):
        return _session(job, settings)


@contextmanager
def _standard_error_in(file: Path) -> Iterator[None]:
    """Write standard error to a file, also that of a JVM that starts meanwhile, for good.

    If that fails, what was written is shown.
    """
    sys.stderr.flush()
    before = os.dup(_STANDARD_ERROR)
    try:
        with file.open("wb") as taken:
            os.dup2(taken.fileno(), _STANDARD_ERROR)
        yield
    except BaseException:
        os.write(before, file.read_bytes())
        raise
    finally:
        sys.stderr.flush()
        os.dup2(before, _STANDARD_ERROR)
        os.close(before)


def require_no_connect(environment: Mapping[str, str]) -> None:
    """Refuse an environment in which PySpark is a client of Spark Connect.

    Raises
    ------
    JobNotReadyError
    """
    for variable in _CONNECT:
        if variable in environment:
            raise JobNotReadyError(
                f"{variable} is set, so that PySpark would be a client of Spark Connect. A job is "
                "a driver itself: unset the variable, and name a master in [spark], or submit the "
                "job by spark-submit"
            )


def _session(job: Job, settings: Mapping[str, str]) -> SparkSession:
    require_no_connect(os.environ)
    # Spark looks for data sources with this program, else with the first python3 on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Functions of steps may stand beside the job file.
    if job.folder not in sys.path:
        sys.path.insert(0, job.folder)
    if not is_submitted():
        _start_jvm(job, settings)
    builder = SparkSession.builder.config(_API_MODE, "classic")  # whatever SPARK_API_MODE says
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    for file in job.py_files:
        session.sparkContext.addPyFile(file)
    return session


def _start_jvm(job: Job, settings: Mapping[str, str]) -> None:
    """Start the driver's JVM, if there is none yet, without secrets among its arguments.

    Every local user sees those in the list of processes. The session gets all settings later.
    """
    shown = SparkConf()
    for key, value in settings.items():
        is_secret = names_secret(key) or job.secrets.hidden(value) != value
        if not is_secret or key in _TOO_LATE:
            shown.set(key, value)
    SparkContext._ensure_initialized(conf=shown)  # noqa: SLF001 - PySpark has no public way


def _say_what_is_too_late(settings: Mapping[str, str]) -> None:
    SparkContext._ensure_initialized()  # noqa: SLF001 - without it SparkConf knows no settings
    submitted = SparkConf()
    for key in _TOO_LATE:
        if key in settings and submitted.get(key) != settings[key]:
            announce(
                f"{key} of the job file has no effect: the driver runs already. Give it to "
                f"spark-submit, as --conf {key}=…"
            )
