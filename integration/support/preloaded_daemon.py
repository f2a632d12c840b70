"""PySpark's daemon for the tests: its workers find the modules that they need already imported.

PySpark's own daemon imports nothing before it forks a worker, and each worker imports for itself:
most of what a worker of a test takes of a processor.
"""

from __future__ import annotations

import gc

# pyarrow imports pandas for its first array.
import pandas as pd  # noqa: F401 - for the workers, as what follows
import pyspark.worker  # noqa: F401
from pyspark import daemon

import pulsar_txn_spark.spark.datasource
import pulsar_txn_spark.spark.sink.task
import pulsar_txn_spark.spark.source.task  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # a worker collects garbage after each task, 60 ms with all of this
    daemon.manager()
