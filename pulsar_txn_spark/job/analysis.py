"""Checks a job without running it: Spark's analyzer on empty streams, and what is reachable."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import OptionError, PulsarTxnError
from pulsar_txn_spark.job.definition import Job, Source
from pulsar_txn_spark.job.problems import Place, Problem
from pulsar_txn_spark.job.session import open_local_session
from pulsar_txn_spark.job.views import (
    Views,
    build,
    check_sinks,
    columns_of,
    problem_of,
    without_rows,
)
from pulsar_txn_spark.spark.rows import schema_of
from pulsar_txn_spark.spark.source.topics import check_source


@contextmanager
def analyzed(job: Job) -> Iterator[tuple[Views, dict[str, DataFrame]]]:
    """Give the views of a job and the rows of its sinks, made by Spark from empty sources.

    No source is read and no server is asked. A Spark of this process lives that long.

    Parameters
    ----------
    job : Job
    """
    with tempfile.TemporaryDirectory(prefix="pulsar-txn-job-") as folder:
        spark = open_local_session(job, Path(folder))
        try:
            yield analyze(spark, job, Path(folder))
        finally:
            spark.stop()


def analyze(spark: SparkSession, job: Job, folder: Path) -> tuple[Views, dict[str, DataFrame]]:
    """Return the views of a job, and the rows of its sinks, on empty sources.

    Parameters
    ----------
    spark : SparkSession
    job : Job
    folder : Path
        An empty folder is made in it.
    """
    views = build(spark, job, _empty(folder / "empty"))
    views.problems += stream_problems(spark, views)
    return views, check_sinks(spark, views)


def _empty(folder: Path) -> Callable[[SparkSession, Source], DataFrame | None]:
    folder.mkdir(exist_ok=True)

    def read(spark: SparkSession, source: Source) -> DataFrame | None:
        if source.is_own:
            schema: StructType = schema_of(source.parsed().get("metadata.columns"))
        elif not source.stream and "path" in source.options:
            return _files(spark, source)
        elif source.schema is not None:
            schema = columns_of(source.schema)
        else:
            return None
        if source.stream:
            return spark.readStream.schema(schema).parquet(folder.absolute().as_uri())
        return without_rows(spark, schema)

    return read


def _files(spark: SparkSession, source: Source) -> DataFrame:
    """Return the files of a source: their size decides whether a join shuffles."""
    reader = spark.read.format(source.format).options(**source.options)
    if source.schema is None:
        return reader.load()
    schema = columns_of(source.schema)
    try:
        return reader.schema(schema).load()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return without_rows(spark, schema)


def stream_problems(spark: SparkSession, views: Views) -> list[Problem]:
    """Return what Spark refuses in the micro-batch's view because it streams."""
    name = views.micro_batch
    if name is None or views.job.is_batch:
        return []
    jvm: Any = spark._jvm  # noqa: SLF001 - Spark asks this only when a query starts
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = getattr(modes, views.job.output_mode.capitalize())()
    frame: Any = views.frames[name]
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    places = {source.name: source.place for source in views.job.sources}
    places |= {step.name: step.place for step in views.job.steps}
    try:
        checker.checkForStreaming(plan, mode)
    except PySparkException as error:
        problem = problem_of(error, places[name], f"view {name!r}", views.job.views)
        hint = ""
        if "watermark" in problem.text:
            hint = ": give a source 'watermark', or set outputMode of [job]"
        return [Problem(problem.place, problem.subject, problem.text.rstrip(".") + hint)]
    return []


def unreachable(job: Job) -> list[Problem]:
    """Return what the store or Pulsar refuses: they are not there, or a topic is not.

    Parameters
    ----------
    job : Job
    """
    problems = []

    def attempt(place: Place, subject: str, check: Callable[[], object]) -> None:
        try:
            check()
        except PulsarTxnError as error:
            is_wrong = isinstance(error, OptionError)
            problems.append(Problem(place, subject, str(error), missing=not is_wrong))

    for source in job.sources:
        if source.is_own:
            attempt(
                source.place,
                f"[[source]] {source.name!r}",
                partial(check_source, source.options),
            )
    for sink in job.sinks:
        if sink.is_own:
            attempt(
                sink.place,
                f"[[sink]] {sink.name!r}",
                partial(_check_sink, job, sink.topic),
            )
    return problems


def _check_sink(job: Job, topic: str | None) -> None:
    options = job.parsed_transaction()
    components = open_components(options)
    if topic is not None:
        name = options.domains.segmented(topic)
        components.topics.check_access(components.topics.require(name))
