"""The views of a job as DataFrames, from its sources to what each sink writes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pulsar_txn_spark.errors import PulsarTxnError, SchemaError
from pulsar_txn_spark.job.avro import from_avro
from pulsar_txn_spark.job.definition import Job, Sink, Source, Step, Watermark
from pulsar_txn_spark.job.problems import Place, Problem
from pulsar_txn_spark.options import METADATA_COLUMNS
from pulsar_txn_spark.spark.rows import (
    EVENT_TIME,
    KEY,
    MESSAGE_ID,
    PROPERTIES,
    PUBLISH_TIME,
    TOPIC,
    VALUE,
    check_writable,
)

MALFORMED = "__malformed"
"""The column that `malformed = "keep"` adds."""

_TEXT = "__text"
_SPACE = " \t\r\n"
_NOT_SINGLE = (
    "malformed: a message has to be one JSON document, not empty and with nothing behind it. "
    'malformed = "keep" keeps such messages apart. It begins with: '
)

_UNWRITABLE = (MESSAGE_ID, PUBLISH_TIME, *METADATA_COLUMNS)
"""The log gives them anew: a sink leaves them out."""

_POSITION = re.compile(r"[;(] ?line (\d+),? pos (\d+)")
_PLAN = re.compile(r";\n'?[A-Z].*", re.DOTALL)  # the unresolved plan behind a message
_SOURCE_OF_ERROR = re.compile(r"\n+== SQL.*", re.DOTALL)
_STATE = re.compile(r" ?SQLSTATE: \w+")
_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"

Reader = Callable[[SparkSession, Source], DataFrame | None]


@dataclass(slots=True)
class Views:
    """The views that a job has, as far as they can be made.

    Parameters
    ----------
    job : Job
    frames : dict of str to DataFrame
        By name, in the order of the file.
    problems : list of Problem
    unknown : set of str
        Views that cannot be made: their own problem is listed, or their schema is not known.
    """

    job: Job
    frames: dict[str, DataFrame] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)

    @property
    def micro_batch(self) -> str | None:
        """The view that the sinks write: the last that streams; of a batch, the last."""
        names = self.job.views
        for name in reversed(names):
            if name in self.unknown:
                return None
            if self.job.is_batch or self.frames[name].isStreaming:
                return name
        return None


def build(spark: SparkSession, job: Job, read: Reader) -> Views:
    """Make the views of a job, and register them.

    Parameters
    ----------
    spark : SparkSession
    job : Job
    read : callable
        Returns the undecoded rows of a source; None where their columns are not known.
    """
    views = Views(job)
    for source in job.sources:
        _add(
            views,
            source.name,
            source.place,
            f"[[source]] {source.name!r}",
            _of(spark, source, read),
        )
    for step in job.steps:
        if _uses(step, views.unknown):
            views.unknown.add(step.name)
            continue
        _add(views, step.name, step.place, f"[[step]] {step.name!r}", _made(spark, step, views))
    if job.sources and not views.unknown and views.micro_batch is None:
        place = Place(job.file)
        text = (
            "no view streams: a [[source]] of another format is static unless it has "
            'stream = true. For a job without a stream, set trigger = "batch"'
        )
        views.problems.append(Problem(place, "", text))
    return views


def _of(spark: SparkSession, source: Source, read: Reader) -> Callable[[], DataFrame | None]:
    def make() -> DataFrame | None:
        frame = read(spark, source)
        if frame is None:
            return None
        return with_watermark(decoded(frame, source), source.watermark)

    return make


def _made(spark: SparkSession, step: Step, views: Views) -> Callable[[], DataFrame]:
    def make() -> DataFrame:
        if step.sql is not None:
            frame = spark.sql(step.sql)
        else:
            inputs = [views.frames[name] for name in step.inputs]
            frame = function_of(step.python or "")(spark, *inputs)
            if not isinstance(frame, DataFrame):
                raise SchemaError(
                    f"{step.python} returned {type(frame).__name__}, expected a DataFrame"
                )
        return with_watermark(frame, step.watermark)

    return make


def _uses(step: Step, unknown: set[str]) -> bool:
    """Tell whether a step may depend on a view that could not be made."""
    if step.sql is None:
        return not unknown.isdisjoint(step.inputs)
    words = {word.lower() for word in re.findall(r"\w+", step.sql)}
    return any(name.lower() in words for name in unknown)


def _add(
    views: Views, name: str, place: Place, subject: str, make: Callable[[], DataFrame | None]
) -> None:
    try:
        frame = make()
    except (PySparkException, PulsarTxnError) as error:
        views.problems.append(problem_of(error, place, subject, views.job.views))
        views.unknown.add(name)
        return
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        text = f"its function raised {type(error).__name__}: {error}"
        views.problems.append(Problem(place, subject, text))
        views.unknown.add(name)
        return
    if frame is None:
        views.unknown.add(name)
        return
    frame.createOrReplaceTempView(name)
    views.frames[name] = frame


def function_of(name: str) -> Callable[..., Any]:
    """Return the function of ``module:function``.

    Raises
    ------
    SchemaError
        If there is none.
    """
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise SchemaError(
            f"{name}: {error}. Put it beside the job file, or name its file in 'pyFiles' of [job]"
        ) from None
    except AttributeError:
        raise SchemaError(f"{name}: the module {module} has no {attribute!r}") from None
    if not callable(function):
        raise SchemaError(f"{name} is {type(function).__name__}, expected a function")
    return function  # type: ignore[no-any-return]


def problem_of(error: Exception, place: Place, subject: str, views: tuple[str, ...]) -> Problem:
    """Return what Spark's analyzer, or this package, says about a statement, in one line."""
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    text = text or str(error)
    at = _POSITION.search(str(error))
    if at is not None and place.line is not None:
        place = Place(place.origin, place.line + int(at[1]) - 1)
    for pattern in (_SOURCE_OF_ERROR, _PLAN, _STATE):
        text = pattern.sub("", text)
    text = _POSITION.sub(lambda match: f" (line {match[1]}, position {match[2]}", text)
    text = " ".join(text.split()).rstrip(";")
    if " (line " in text and not text.endswith(")"):
        text += ")"
    if _NOT_FOUND in text:
        text += f" The job has the views {', '.join(views)}; another table is a [[source]]"
    return Problem(place, subject, text)


# -- from a message to columns ---------------------------------------------------------------------


def decoded(frame: DataFrame, source: Source) -> DataFrame:
    """Return the rows of a source with `value` decoded as the source says."""
    if not source.is_own or source.decode == "bytes":
        return frame
    if source.decode == "avro":
        malformed = MALFORMED if source.keep_malformed else None
        return from_avro(frame, VALUE, source.schema or "", malformed)
    text = f.col(VALUE).cast("string")
    if source.decode == "string":
        return frame.withColumn(VALUE, text)
    schema = columns_of(source.schema or "")
    rest = [name for name in frame.columns if name != VALUE]
    single = _is_single_json(text)
    if not source.keep_malformed:
        error = f.raise_error(f.concat(f.lit(_NOT_SINGLE), f.left(text, f.lit(200))))
        checked = f.when(text.isNull() | single, text).otherwise(error.cast("string"))
        parsed = frame.withColumn(VALUE, f.from_json(checked, schema, {"mode": "FAILFAST"}))
        return parsed.select(f"{VALUE}.*", *rest)
    schema = StructType([*schema.fields, StructField(MALFORMED, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    json = f.when(single, f.from_json(text, schema, options))
    parsed = frame.withColumns({_TEXT: text, VALUE: json})
    # Of what is not parsed at all, the text is kept; a message without a value has none.
    refused = f.when(f.col(VALUE).isNull(), f.col(_TEXT)).otherwise(f.col(f"{VALUE}.{MALFORMED}"))
    names = [f"{VALUE}.`{name}`" for name in schema.names[:-1]]
    return parsed.select(*names, refused.alias(MALFORMED), *rest)


def _is_single_json(text: Column) -> Column:
    """Tell whether a text is one JSON document: `from_json` passes over what follows the first.

    An empty text is none; `from_json` would return no error for it, and no columns.
    """
    # The first closing brace is the end of the text: nothing can follow. The rest costs as much as
    # from_json itself.
    to_brace = f.octet_length(f.substring_index(text, "}", 1))
    is_flat = to_brace + f.lit(1) == f.octet_length(text)
    wrapped = f.concat(f.lit("["), text, f.lit("]"))
    # The first counts quickly, and knows no NaN; the second knows all that from_json takes.
    counted = f.json_array_length(wrapped)
    parsed = f.size(f.from_json(wrapped, ArrayType(StringType())))
    # What closes the bracket by itself ends with one.
    return is_flat | (
        f.coalesce(counted, parsed).eqNullSafe(1) & ~f.rtrim(text, f.lit(_SPACE)).endswith("]")
    )


def columns_of(ddl: str) -> StructType:
    """Return the columns of a schema that is written as in ``CREATE TABLE``.

    Raises
    ------
    ParseException
        If it is none. A Spark has to run.
    """
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def with_watermark(frame: DataFrame, watermark: Watermark | None) -> DataFrame:
    """Return the rows with a watermark, if there is one. A static view has no use for it."""
    if watermark is None or not frame.isStreaming:
        return frame
    if watermark.column not in frame.columns:
        raise SchemaError(
            f"watermark.column: there is no column {watermark.column!r} (found: "
            f"{', '.join(frame.columns)})"
        )
    return frame.withWatermark(watermark.column, watermark.delay)


# -- from columns to a message ---------------------------------------------------------------------


def rows_of(spark: SparkSession, sink: Sink, micro_batch: str) -> DataFrame:
    """Return what a sink writes of the micro-batch, which is registered under its name.

    Raises
    ------
    SchemaError
        If its columns are no message.
    """
    frame = spark.sql(sink.sql) if sink.sql is not None else spark.table(sink.view or micro_batch)
    if not sink.is_own:
        return frame
    frame = frame.drop(*_UNWRITABLE)
    if sink.topic is not None and TOPIC in frame.columns:
        raise SchemaError(
            f"its rows have a column {TOPIC}, and 'topic' is given: drop one, for example by "
            f"SELECT * EXCEPT ({TOPIC})"
        )
    if sink.key is not None:
        frame = frame.withColumn(KEY, f.expr(sink.key))
        if not isinstance(frame.schema[KEY].dataType, StringType | BinaryType):
            frame = frame.withColumn(KEY, f.col(KEY).cast("string"))
    if sink.json:
        columns = [name for name in frame.columns if not name.startswith("__")]
        if not columns:
            raise SchemaError("encode = \"json\" has no column to put into 'value'")
        value = f.to_json(f.struct(*(f.col(f"`{name}`") for name in columns)))
        own = [name for name in frame.columns if name.startswith("__")]
        frame = frame.select(value.alias(VALUE), *own)
    try:
        check_writable(frame.schema, default_topic=sink.topic is not None)
    except SchemaError as error:
        hint = '. Or let encode = "json" put all columns into it' if not sink.json else ""
        raise SchemaError(f"{error}{hint}" if VALUE not in frame.columns else str(error)) from None
    return frame


def as_message(frame: DataFrame, topic: str | None) -> DataFrame:
    """Return the rows of a sink with the columns that all sinks have, in the same types.

    Parameters
    ----------
    frame : DataFrame
        As :func:`rows_of` returns it.
    topic : str or None
        Full name of the topic; None if the rows name theirs.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}

    def column(name: str, kind: str) -> Column:
        return (f.col(name) if name in types else f.lit(None)).cast(kind).alias(name)

    time = f.col(EVENT_TIME) if EVENT_TIME in types else f.lit(None)
    if isinstance(types.get(EVENT_TIME), TimestampNTZType):
        # Its fields count as those of UTC, whatever the session's time zone is.
        time = f.expr(f"timestampdiff(MILLISECOND, TIMESTAMP_NTZ '1970-01-01', {EVENT_TIME})")
    elif isinstance(types.get(EVENT_TIME), TimestampType):
        time = f.unix_millis(EVENT_TIME)
    return frame.select(
        column(VALUE, "binary"),
        column(KEY, "binary"),
        (f.col(TOPIC) if topic is None else f.lit(topic)).alias(TOPIC),
        time.cast("bigint").alias(EVENT_TIME),
        column(PROPERTIES, "map<string,string>"),
    )


def without_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Return no rows. Spark's optimizer does not know that, and plans as for some."""
    return spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)


def check_sinks(spark: SparkSession, views: Views) -> dict[str, DataFrame]:
    """Check what the sinks write, on a micro-batch without rows; return it by sink.

    The view of the micro-batch is replaced by one that does not stream.
    """
    job, name = views.job, views.micro_batch
    if name is None:
        return {}
    without_rows(spark, views.frames[name].schema).createOrReplaceTempView(name)
    rows: dict[str, DataFrame] = {}
    for number, sink in enumerate(job.sinks):
        subject = f"[[sink]] {sink.name!r}"
        try:
            frame = rows_of(spark, sink, name)
        except (AnalysisException, PySparkException, PulsarTxnError) as error:
            views.problems.append(problem_of(error, sink.place, subject, job.views))
            continue
        if frame.isStreaming:
            text = (
                f"it reads a stream other than {name!r}, the last streaming view, which is the "
                "micro-batch: join them in a [[step]]"
            )
            views.problems.append(Problem(sink.place, subject, text))
            continue
        rows[f"{number}:{sink.name}"] = frame
    return rows
