"""Runs a job: a query whose micro-batches are one transaction each, and its orderly end."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pulsar_txn_spark.environment import FORMAT
from pulsar_txn_spark.errors import JobNotReadyError, SparkDriverEndedError
from pulsar_txn_spark.job.analysis import stream_problems, unreachable
from pulsar_txn_spark.job.definition import Job, Sink, Source
from pulsar_txn_spark.job.problems import error_of
from pulsar_txn_spark.job.session import is_submitted, open_session
from pulsar_txn_spark.job.views import Views, as_message, build, check_sinks, rows_of
from pulsar_txn_spark.spark.sink.batch_transaction import BatchTransaction, transaction_options

Report = Callable[[Mapping[str, Any]], None]
"""Takes events: `started`, `batch`, `stopping`, `ended`."""

SINK_NAME = "job"
"""The transaction's default sink id ends in it: a job may get and lose sinks, and keeps it."""

_POLL_S = 0.2  # how late progress and a signal are noticed; Spark announces neither to Python
_HOOK_PRIORITY = 100  # above those of Spark, which stop its context
_SPARE_S = 10  # until the JVM gives a hook up that waits for longer than it may
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ENDED = "the JVM of Spark's driver has ended before the job did: "
_ENDED_BY_ITSELF = f"{_ENDED}something ended it, such as the kernel for want of memory"
_ENDED_BY_A_SIGNAL = (
    f"{_ENDED}it got the signal that asked the job to stop. Send that to the job's first process "
    "alone (systemd: KillMode=mixed)"
)


class _StoppedError(Exception):
    """The job was told to stop before this micro-batch began."""


@dataclass(slots=True)
class Stop:
    """The wish to end, which a signal or the JVM's own end brings.

    Parameters
    ----------
    requested : threading.Event
    over : threading.Event
        Set once the query has ended.
    signals : int
        How many have come. From the second one on, nothing is waited for.
    jvm_ends : bool
        Whether the JVM's own end has requested it.
    is_polled : bool
        Whether somebody polls all this. Else a second signal interrupts what is done.
    """

    requested: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    signals: int = 0
    jvm_ends: bool = False
    is_polled: bool = False


class MicroBatch:
    """The function of ``foreachBatch``: writes all sinks of a job in one transaction.

    Parameters
    ----------
    job : Job
    name : str
        The view that the micro-batch gets.
    stop : Stop
        Once it is requested, no further batch is begun.
    """

    def __init__(self, job: Job, name: str, stop: Stop) -> None:
        self._job = job
        self._name = name
        self._stop = stop
        self._options = transaction_options(job.transaction)

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write one micro-batch."""
        if self._stop.requested.is_set():
            raise _StoppedError
        self.write(df, batch_id)

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write the rows of a micro-batch: to other formats first, then in the transaction."""
        with (
            self._rows(df) as rows,
            BatchTransaction(self._options, batch_id, df, SINK_NAME) as txn,
        ):
            _write_external(rows)
            for sink, frame in rows:
                if sink.is_own:
                    txn.write(frame, topic=sink.topic)

    def write_once(self, df: DataFrame) -> None:
        """Write rows outside of a stream: to other formats first, then in one transaction.

        Nothing identifies it as a micro-batch, so that one write to all topics is the transaction.
        """
        with self._rows(df) as rows:
            _write_external(rows)
            domains = self._options.domains
            messages = [
                as_message(
                    frame, None if sink.topic is None else str(domains.segmented(sink.topic))
                )
                for sink, frame in rows
                if sink.is_own
            ]
            if messages:
                together = reduce(DataFrame.unionByName, messages)
                writer = together.write.format(FORMAT).mode("append")
                writer.options(**self._options.raw).save()

    @contextlib.contextmanager
    def _rows(self, df: DataFrame) -> Iterator[list[tuple[Sink, DataFrame]]]:
        """Give what each sink writes; keep the rows meanwhile, if the job says so."""
        if self._job.persist:
            df.persist()
        try:
            # The session of a query is a clone of the job's, whose view of this name is the stream.
            df.createOrReplaceTempView(self._name)
            spark = df.sparkSession
            yield [(sink, rows_of(spark, sink, self._name)) for sink in self._job.sinks]
        finally:
            if self._job.persist:
                df.unpersist()


def _write_external(rows: list[tuple[Sink, DataFrame]]) -> None:
    for sink, frame in rows:
        if not sink.is_own:
            writer = frame.write.format(sink.format).mode(sink.mode)
            writer.options(**sink.options).save()


def run_job(job: Job, report: Report = lambda _: None) -> None:
    """Run a job until it ends, fails, or gets a signal.

    SIGTERM and SIGINT end it after the running micro-batch, or after `stopTimeout`; a second one
    ends it at once. A batch runs to its end, unless a second signal interrupts it.

    Parameters
    ----------
    job : Job
    report : callable, optional
        Gets events as mappings, the key `event` names which.

    Raises
    ------
    JobFileError
        If Spark's analyzer refuses a statement.
    JobNotReadyError
        If a topic is not there, or a server cannot be reached.
    SparkDriverEndedError
        If the JVM of the driver ends before the job does.
    Exception
        What made the query fail.
    """
    stop = Stop()
    with _signals(stop):
        require_ready(job)
        with _driver(stop):
            spark = open_session(job)
            try:
                with _signals(stop):  # once more: SparkContext has put its own handler in place
                    run_in(spark, job, report, stop)
            finally:
                with contextlib.suppress(Py4JError, OSError):  # the JVM may be gone by itself
                    spark.stop()


@contextlib.contextmanager
def _driver(stop: Stop) -> Iterator[None]:
    """Name the end of the driver's JVM where calls fail by it, each in its own way."""
    try:
        yield
    except Exception as error:
        jvm: Any = SparkContext._jvm  # noqa: SLF001 - PySpark has no public way
        if jvm is None:  # it has not started
            raise
        try:
            jvm.System.nanoTime()
        except (Py4JError, OSError):
            text = _ENDED_BY_A_SIGNAL if stop.signals else _ENDED_BY_ITSELF
            raise SparkDriverEndedError(text) from error
        raise


def require_ready(job: Job) -> None:
    """Refuse a job whose topics, store or Pulsar are not there, before Spark starts.

    Raises
    ------
    JobFileError, JobNotReadyError
    """
    problems = unreachable(job)
    if problems:
        error = error_of(problems, job.secrets.hidden)
        raise JobNotReadyError(str(error)) if all(p.missing for p in problems) else error


def run_in(spark: SparkSession, job: Job, report: Report, stop: Stop) -> None:
    """Run a job in a session, until it ends or `stop` is requested; errors as :func:`run_job`."""
    views = build(spark, job, _read)
    name = _checked(spark, views)
    batch = MicroBatch(job, name, stop)
    report({"event": "started", "job": job.name, "application": _application(spark)})
    stopped = stop.requested.is_set()
    if not job.is_batch:
        _run_query(spark, job, views.frames[name], batch, stop, report)
        stopped = stop.requested.is_set()
    elif not stopped:
        batch.write_once(views.frames[name])
    if stop.jvm_ends and not (stop.signals or is_submitted()):
        raise SparkDriverEndedError(_ENDED_BY_ITSELF)
    report({"event": "ended", "job": job.name, "stopped": stopped})


def _read(spark: SparkSession, source: Source) -> DataFrame:
    reader: Any = spark.readStream if source.stream else spark.read
    reader = reader.format(source.format).options(**source.options)
    if not source.is_own and source.schema is not None:
        reader = reader.schema(source.schema)
    frame: DataFrame = reader.load()
    return frame


def _checked(spark: SparkSession, views: Views) -> str:
    """Return the name of the micro-batch's view, once all statements are known to be right."""
    views.problems += stream_problems(spark, views)
    check_sinks(spark, views)
    name = views.micro_batch
    if views.problems or name is None:
        raise error_of(views.problems, views.job.secrets.hidden)
    # The check has put an empty view in its place.
    views.frames[name].createOrReplaceTempView(name)
    return name


def _application(spark: SparkSession) -> str:
    return str(spark.sparkContext.applicationId)


def _run_query(
    spark: SparkSession,
    job: Job,
    frame: DataFrame,
    batch: MicroBatch,
    stop: Stop,
    report: Report,
) -> None:
    writer = frame.writeStream.queryName(job.name).outputMode(job.output_mode).foreachBatch(batch)
    writer = writer.option("checkpointLocation", job.checkpoint or "")
    if job.is_available_now:
        writer = writer.trigger(availableNow=True)
    elif job.trigger:
        writer = writer.trigger(processingTime=job.trigger)
    with _stopped_with_jvm(spark, job, stop):
        _follow(writer.start(), job, stop, report)


def _follow(query: StreamingQuery, job: Job, stop: Stop, report: Report) -> None:
    """Report the progress of a query until it ends, or is to end."""
    progress = _Progress(query, report)
    stop.is_polled = True
    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type] # takes fractions
            progress.show()
            if stop.requested.is_set():
                report({"event": "stopping", "job": job.name, "timeout_s": job.stop_timeout_s})
                _end(query, job.stop_timeout_s, stop)
                break
    except StreamingQueryException as error:
        if not stop.requested.is_set() or _StoppedError.__name__ not in str(error):
            raise
    finally:
        stop.is_polled = False
    progress.show()


def _end(query: StreamingQuery, timeout_s: float, stop: Stop) -> None:
    """Let the running micro-batch end, for a while, and stop the query.

    Raises
    ------
    StreamingQueryException
        What ended the query before it was stopped.
    """
    deadline = time.monotonic() + timeout_s
    while is_active := query.status["isTriggerActive"]:
        if stop.signals > 1 or time.monotonic() >= deadline:
            break
        if query.awaitTermination(_POLL_S):  # type: ignore[arg-type] # takes fractions
            return
    query.stop()
    # What is interrupted may fail by that. But a query that failed is not active either.
    error = None if is_active else query.exception()
    if error is not None:
        raise error


@dataclass(slots=True)
class _Progress:
    """Reports each micro-batch once."""

    query: StreamingQuery
    report: Report
    reported: int = -1

    def show(self) -> None:
        """Report what is new."""
        try:
            recent = self.query.recentProgress
        except (PySparkException, Py4JError):
            return  # the JVM ends
        for progress in recent:
            batch, rows = progress["batchId"], progress["numInputRows"]
            if batch > self.reported and rows:
                self.reported = batch
                seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
                self.report({"event": "batch", "batch": batch, "rows": rows, "seconds": seconds})


# -- signals ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """Let signals request the end while the job runs; outside of the main thread there are none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(_signal: int, _frame: FrameType | None) -> None:
        stop.signals += 1
        stop.requested.set()
        # Of an exception here, py4j makes a failure of the call that it interrupts.
        if stop.signals > 1 and not stop.is_polled:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, request) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Hook:
    """A Runnable of Java: lets the query end before the JVM does.

    spark-submit's process is the JVM, so that it is the JVM that gets a signal.
    """

    def __init__(self, stop: Stop, timeout_s: float) -> None:
        self._stop = stop
        self._timeout_s = timeout_s

    def run(self) -> None:
        """Request the end, and wait for it."""
        self._stop.jvm_ends = True
        self._stop.requested.set()
        self._stop.over.wait(self._timeout_s)

    class Java:
        """What py4j asks."""

        implements = ("java.lang.Runnable",)


@contextlib.contextmanager
def _stopped_with_jvm(spark: SparkSession, job: Job, stop: Stop) -> Iterator[None]:
    """Let the JVM wait for the query's orderly end when it is told to end itself."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - PySpark has no public way
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    # A task of Java's own can be cancelled, unlike the proxy of an object of Python.
    task = jvm.java.util.concurrent.FutureTask(_Hook(stop, job.stop_timeout_s), None)
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    hooks.addShutdownHook(task, _HOOK_PRIORITY, int(job.stop_timeout_s) + _SPARE_S, seconds)
    try:
        yield
    finally:
        stop.over.set()
        with contextlib.suppress(Py4JError, OSError):  # the JVM may be gone by itself
            task.cancel(False)
