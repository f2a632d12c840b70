"""Spark's local properties of the thread that calls a ``foreachBatch`` function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from pulsar_txn_spark.spark.context import (
    BATCH_ID,
    QUERY_ID,
    ROOT_EXECUTION,
    driver_name_of,
    unique_execution_id,
)


class LocalProperties:
    """What Spark Classic keeps with a thread, and a user's other threads lack.

    Spark Connect has no such threads, and so no properties.

    Parameters
    ----------
    df : DataFrame
        The micro-batch, in the thread in which Spark calls the function.
    """

    def __init__(self, df: DataFrame) -> None:
        context: Any = getattr(df.sparkSession, "_sc", None)
        self._properties = {} if context is None else _of_this_thread(context)
        self.driver = driver_name_of(df.sparkSession)
        self._application = context.applicationId if context is not None else ""

    @property
    def execution_id(self) -> str:
        """The SQL execution of the micro-batch, as the tasks name it; empty if unknown."""
        root = self._properties.get(ROOT_EXECUTION)
        execution = f"{self._application}/{root}" if self._application and root else ""
        return unique_execution_id(execution, self.driver)

    @property
    def query_id(self) -> str | None:
        """The query's id; None if unknown."""
        return self._properties.get(QUERY_ID)

    @contextmanager
    def in_this_thread(self, df: DataFrame) -> Iterator[None]:
        """Set them in the current thread, which may belong to a user's pool.

        Such a thread may also have those of an earlier batch, or of another query.
        """
        session: Any = df.sparkSession
        context = getattr(session, "_sc", None)
        before = {} if context is None else _of_this_thread(context)
        if context is None or not any(self._properties.values()) or before == self._properties:
            yield
            return
        # Without it Spark does not find a format that is written in Python.
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001 — PySpark has no public way
        try:
            _set_in_this_thread(context, self._properties)
            yield
        finally:
            _set_in_this_thread(context, before)


def _of_this_thread(context: Any) -> dict[str, str | None]:
    return {key: context.getLocalProperty(key) for key in (QUERY_ID, BATCH_ID, ROOT_EXECUTION)}


def _set_in_this_thread(context: Any, properties: Mapping[str, str | None]) -> None:
    for key, value in properties.items():
        context.setLocalProperty(key, value)
