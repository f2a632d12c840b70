"""Exactly-once Spark Structured Streaming on segmented topics of Apache Pulsar.

``readStream.format("pulsar_txn")`` and ``writeStream.format("pulsar_txn")`` need no import.
This module holds what else a job may want.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pulsar_txn_spark.environment import require_python_and_pyspark
from pulsar_txn_spark.errors import PulsarTxnError

if TYPE_CHECKING:
    from pulsar_txn_spark.admin.topics import (
        Retention,
        ScalingPolicy,
        adopt_topic,
        create_topic,
        delete_subscription,
        delete_topic,
        find_topic,
        list_topics,
        merge_segments,
        remove_topic_property,
        reset_subscription,
        seal_segment,
        set_retention,
        set_scaling,
        set_topic_property,
        split_segment,
        topic_properties,
        topic_retention,
        topic_scaling,
    )
    from pulsar_txn_spark.prometheus import serve_metrics
    from pulsar_txn_spark.spark.sink.foreach_batch import (
        BatchTransaction,
        TransactionalSink,
        transactional,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "BatchTransaction",
    "PulsarTxnError",
    "Retention",
    "ScalingPolicy",
    "TransactionalSink",
    "__version__",
    "adopt_topic",
    "create_topic",
    "delete_subscription",
    "delete_topic",
    "find_topic",
    "list_topics",
    "merge_segments",
    "remove_topic_property",
    "reset_subscription",
    "seal_segment",
    "serve_metrics",
    "set_retention",
    "set_scaling",
    "set_topic_property",
    "split_segment",
    "topic_properties",
    "topic_retention",
    "topic_scaling",
    "transactional",
]

_SPARK = frozenset({"BatchTransaction", "TransactionalSink", "transactional"})


def __getattr__(name: str) -> Any:
    # All is loaded when it is asked for: a topic can be created without PySpark, and the process
    # in which Spark looks for data sources, in each session, needs no store and no Arrow.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "admin.topics"
    if name in _SPARK:
        # An older PySpark has not even the names that the module imports.
        require_python_and_pyspark()
        module = "spark.sink.foreach_batch"
    elif name == "serve_metrics":
        module = "prometheus"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
