"""What the installed PySpark offers a data source in Python, and what stands in for the rest.

A feature is told by the name that PySpark has for it, not by PySpark's version: vendors add
features to older versions. docs/compatibility.md has the table by version.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Feature:
    """What PySpark offers a data source from some version on.

    Parameters
    ----------
    name : str
    since : str
        The first version of Apache Spark that has it.
    module, attribute : str
        The name in PySpark that tells whether it is there.
    instead : str
        What happens without it.
    """

    name: str
    since: str
    module: str
    attribute: str
    instead: str

    def is_available(self) -> bool:
        """Tell whether the installed PySpark has it."""
        try:
            return hasattr(importlib.import_module(self.module), self.attribute)
        except ImportError:
            return False


ADMISSION_CONTROL = Feature(
    "admission control",
    since="4.2",
    module="pyspark.sql.streaming.datasource",
    attribute="SupportsTriggerAvailableNow",
    instead="the source keeps its limits itself; `availableNow` runs one micro-batch",
)

STREAM_ARROW_WRITER = Feature(
    "Arrow batches for the writer of a stream",
    since="4.1",
    module="pyspark.sql.datasource",
    attribute="DataSourceStreamArrowWriter",
    instead="the writer takes Arrow batches as a batch writer does, or rows",
)

FEATURES = (ADMISSION_CONTROL, STREAM_ARROW_WRITER)
"""What the package uses, and not every supported version of PySpark has."""


def installed_pyspark() -> str:
    """Return the version of the installed PySpark, as messages show it."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return str(getattr(pyspark, "__version__", "of an unknown version"))


if TYPE_CHECKING:
    import pyarrow as pa

if TYPE_CHECKING or ADMISSION_CONTROL.is_available():
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class SupportsTriggerAvailableNow:
        """Stands in for a base class that Spark does not ask for."""

    class ReadLimit:
        """How much a micro-batch may read."""

    class ReadAllAvailable(ReadLimit):
        """Everything that is there."""

    @dataclass(frozen=True)
    class ReadMaxRows(ReadLimit):
        """So many rows, approximately."""

        max_rows: int

    @dataclass(frozen=True)
    class ReadMinRows(ReadLimit):
        """At least so many rows."""

        min_rows: int

    @dataclass(frozen=True)
    class ReadMaxBytes(ReadLimit):
        """So many bytes, approximately."""

        max_bytes: int


if TYPE_CHECKING or STREAM_ARROW_WRITER.is_available():
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A writer of a stream that the workers of Spark 4.0 hand Arrow batches to.

        They ask whether a writer is a ``DataSourceArrowWriter``, also where it belongs to a stream.
        A worker that does not ask hands over rows, which ``row_codec`` turns into Arrow batches.
        """


_ZONE: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema, with times in UTC."""
    return to_arrow_schema(schema, **_ZONE)


__all__ = [
    "ADMISSION_CONTROL",
    "FEATURES",
    "STREAM_ARROW_WRITER",
    "DataSourceStreamArrowWriter",
    "Feature",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "installed_pyspark",
]
