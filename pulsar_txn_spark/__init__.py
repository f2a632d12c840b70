"""Exactly-once Spark Structured Streaming on segmented topics of Apache Pulsar.

``readStream.format("pulsar_txn")`` and ``writeStream.format("pulsar_txn")`` need no import where
the package is installed. This module has the names that a job needs besides.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from pulsar_txn_spark import errors
from pulsar_txn_spark.environment import require_python_and_pyspark
from pulsar_txn_spark.errors import PulsarTxnError

if TYPE_CHECKING:
    __version__: str
    from pulsar_txn_spark.admin import Admin, Retention, ScalingPolicy
    from pulsar_txn_spark.prometheus import serve_metrics
    from pulsar_txn_spark.spark.registration import register
    from pulsar_txn_spark.spark.sink.batch_transaction import BatchTransaction
    from pulsar_txn_spark.spark.sink.foreach_batch import TransactionalSink, transactional

_SPARK = "spark"
_SINK = f"{_SPARK}.sink"

__all__ = [
    "Admin",
    "BatchTransaction",
    "PulsarTxnError",
    "Retention",
    "ScalingPolicy",
    "TransactionalSink",
    "__version__",
    "errors",
    "register",
    "serve_metrics",
    "transactional",
]

_MODULES = {
    "Admin": "admin",
    "Retention": "admin",
    "ScalingPolicy": "admin",
    "serve_metrics": "prometheus",
    "BatchTransaction": f"{_SINK}.batch_transaction",
    "TransactionalSink": f"{_SINK}.foreach_batch",
    "transactional": f"{_SINK}.foreach_batch",
    "register": f"{_SPARK}.registration",
}
"""Name -> the module that it comes from, which is imported at its first use."""


def __getattr__(name: str) -> Any:
    # Everything is loaded at its first use: a topic can be created without PySpark. The process in
    # which Spark looks for data sources, in each session, needs no store and no Arrow.
    if name == "__version__":
        return _own_version()
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if module.startswith(f"{_SPARK}."):
        # An older PySpark has not even the names that the module imports.
        require_python_and_pyspark()
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def _own_version() -> str:
    try:
        return _version("pulsar-txn-spark")
    except PackageNotFoundError:
        return "0+unknown"  # a copy of the folder, without what pip or `make dist` adds


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
