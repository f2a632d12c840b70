"""The format for a session whose Spark does not find it by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from pulsar_txn_spark.process_lock import ProcessLock
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource

_PYTHONPATH = "PYTHONPATH"
_changing_environment = ProcessLock()  # all sessions of a process share one


def register(spark: SparkSession) -> None:
    """Make ``format("pulsar_txn")`` known to a session. Idempotent.

    Spark looks for formats among the modules that are installed for the Python program that its JVM
    starts. It does not look into what comes with ``--py-files``. A format that was registered runs
    with the session's own interpreter and finds the files of ``--py-files``, on the driver and in
    the tasks.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session; sessions that are made from it later know the format as well.
    """
    if is_remote():  # the server of Spark Connect imports what is installed there
        spark.dataSource.register(PulsarTxnDataSource)
        return
    # Spark gives the process on the driver that plans a stream the names of these files, but a
    # folder that does not hold them. What a function's environment says holds in every process.
    with _changing_environment:
        environment = spark.sparkContext.environment
        before = environment.get(_PYTHONPATH)
        environment[_PYTHONPATH] = os.pathsep.join(filter(None, [*_py_files(), before]))
        try:
            spark.dataSource.register(PulsarTxnDataSource)
        finally:
            if before is None:
                del environment[_PYTHONPATH]
            else:
                environment[_PYTHONPATH] = before


def _py_files() -> list[str]:
    """Return what ``--py-files`` and ``addPyFile`` have put on the driver's path."""
    from pyspark import SparkFiles  # pyspark-client, for Spark Connect alone, does not have it

    root = Path(SparkFiles.getRootDirectory())
    return [entry for entry in sys.path if Path(entry).is_relative_to(root)]
