"""``decode = "avro"``: what a schema has to be, and what Spark needs to read such messages."""

from __future__ import annotations

import json
import re
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import __version__ as pyspark_version
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from pulsar_txn_spark.errors import SchemaError

PACKAGE = f"org.apache.spark:spark-avro_2.13:{pyspark_version}"
"""What has ``from_avro``: PySpark comes without it."""

_NOT_LOADED = "AVRO_NOT_LOADED"
_SAID_BY_AVRO = re.compile(r"^(?:Caused by)?: org\.apache\.avro\.\w+: (.*)", re.MULTILINE)
_RECORD = "record"
_PARSED = "__parsed"
_MARKER = "__is_parsed"  # a field with a default: null in those rows alone that are malformed


def schema_problem(text: str) -> str:
    """Return what is wrong with the schema of a source, empty if it is the JSON of a record."""
    example = 'such as schema = "${file:flights.avsc}"'
    expected = f'decode = "avro" takes the Avro schema of a record, as JSON, {example}'
    try:
        schema = json.loads(text)
    except ValueError as error:
        return f"'schema' is no JSON ({error}): {expected}"
    if not isinstance(schema, dict) or schema.get("type") != _RECORD:
        return f"'schema' is no record, which has columns: {expected}"
    if not isinstance(schema.get("fields"), list) or not schema["fields"]:
        return f"'schema' has no 'fields': {expected}"
    return ""


def from_avro(frame: DataFrame, value: str, schema: str, malformed: str | None) -> DataFrame:
    """Return rows with the fields of a record in place of the message that has it.

    Parameters
    ----------
    frame : DataFrame
    value : str
        The column of the messages.
    schema : str
        Of the messages, as JSON.
    malformed : str or None
        Name of a column that gets the messages which the schema does not fit. It is null in the
        other rows. None to fail at one.

    Raises
    ------
    SchemaError
        If this Spark cannot read Avro, or Avro does not take the schema.
    """
    options = {"mode": "FAILFAST"}
    if malformed is not None:
        options = {"mode": "PERMISSIVE", "avroSchema": _marked(json.loads(schema))}
    rest = [name for name in frame.columns if name != value]
    texts = [f.lit(text) for pair in options.items() for text in pair]
    call = f.call_function("from_avro", f.col(value), f.lit(schema), f.create_map(*texts))
    kept: Column | None = None
    if malformed is not None:
        is_malformed = f.col(f"{_PARSED}.{_MARKER}").isNull()
        kept = f.when(is_malformed, f.col(value)).alias(malformed)
    try:
        parsed = frame.select(call.alias(_PARSED), value, *rest)
        if kept is None:
            return parsed.select(f"{_PARSED}.*", *rest)
        return parsed.select(f"{_PARSED}.*", kept, *rest).drop(_MARKER)
    except AnalysisException as error:
        if _NOT_LOADED not in str(error):
            raise
        raise SchemaError(
            f'decode = "avro" needs Spark\'s package spark-avro, which PySpark comes without: set '
            f'jars.packages = "{PACKAGE}" in [spark], or jars = "/path/of/its.jar"; '
            f"spark-submit takes --packages {PACKAGE}, or --jars"
        ) from None
    except Py4JJavaError as error:  # Spark lets what Avro says pass as a bug of its own
        said = _SAID_BY_AVRO.findall(str(error))
        if not said:
            raise
        raise SchemaError(f"Avro does not take the schema: {said[-1]}") from None


def _marked(schema: dict[str, Any]) -> str:
    """Return the schema with a field that each record has, and no message."""
    marker = {"name": _MARKER, "type": "boolean", "default": True}
    return json.dumps({**schema, "fields": [*schema["fields"], marker]})
