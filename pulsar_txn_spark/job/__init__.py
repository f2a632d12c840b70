"""A job from one file: sources, SQL statements and sinks, without a program around them.

``load`` reads and checks a file, ``run_job`` runs it. The command ``pulsar-txn job`` does both.
"""

from pulsar_txn_spark.job.definition import Job
from pulsar_txn_spark.job.execution import run_job
from pulsar_txn_spark.job.file import load

__all__ = ["Job", "load", "run_job"]
