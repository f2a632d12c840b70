"""A daemon for Spark's Python workers that has this package imported: workers start with it.

Spark forks the workers of tasks from a daemon that imports nothing, and each worker imports for
itself. That is most of what the first micro-batch of a query, or of a restart, takes of a
processor. The setting ``spark.python.daemon.module=pulsar_txn_spark.spark.worker_daemon`` chooses
this daemon. Its Python must have the package installed: files of ``--py-files`` come too late.
"""

from __future__ import annotations

import gc
import os

import numpy as np
import pyarrow as pa
import pyspark.worker  # noqa: F401 - for the workers, as what follows
from pyspark import daemon

import pulsar_txn_spark.spark.datasource
import pulsar_txn_spark.spark.sink.task
import pulsar_txn_spark.spark.source.task  # noqa: F401

pa.array([0])  # pyarrow imports pandas for its first array, if it is there

# NumPy's seed is drawn at its import: without this all workers would draw the same numbers.
os.register_at_fork(after_in_child=np.random.seed)

if __name__ == "__main__":
    gc.freeze()  # a worker collects garbage after each task, 60 ms with all of this
    daemon.manager()
