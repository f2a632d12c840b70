"""How a job ends, with a query that does what the test says."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException

from pulsar_txn_spark.errors import SparkDriverEndedError
from pulsar_txn_spark.job import Job, execution
from pulsar_txn_spark.job.execution import MicroBatch, Stop

Loader = Callable[..., Job]


class Query:
    """A query that is active for some polls, and then idle or at its end."""

    def __init__(self, *active: bool, ends: bool = False, error: str = "") -> None:
        self._active = list(active)
        self._ends, self._error = ends, error
        self.stopped = 0
        self.signalled_at = 0
        self.waited = 0
        self.recentProgress: list[dict[str, Any]] = []

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": any(self._active[:1])}

    def exception(self) -> StreamingQueryException | None:
        return StreamingQueryException(self._error) if self._error else None

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - as Spark's
        self.waited += 1
        if self.waited == self.signalled_at:
            try:
                signal.raise_signal(signal.SIGTERM)
            except Exception as error:  # as py4j does with whatever interrupts its call
                raise Py4JError("An error occurred while calling o1") from error
        if self._active:
            self._active.pop(0)
            return False
        if self._error:
            raise StreamingQueryException(self._error)
        return self._ends

    def stop(self) -> None:
        self.stopped += 1


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job have a session and a view that are none of Spark's."""
    views: Any = SimpleNamespace(frames={"rows": "frame"})
    monkeypatch.setattr(execution, "require_ready", lambda _: None)
    monkeypatch.setattr(execution, "open_session", lambda _: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(execution, "build", lambda *_: views)
    monkeypatch.setattr(execution, "_checked", lambda *_: "rows")
    monkeypatch.setattr(execution, "_application", lambda _: "app")


def jvm_that(error: Exception | None) -> Any:
    """Return a JVM that answers, or whose calls fail with an error."""
    return SimpleNamespace(System=SimpleNamespace(nanoTime=Mock(return_value=1, side_effect=error)))


def follow(query: Query, job: Job, stop: Stop) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    execution._follow(query, job, stop, lambda event: events.append(dict(event)))  # type: ignore[arg-type]
    return events


def test_no_micro_batch_begins_once_the_job_is_to_stop(loader: Loader) -> None:
    stop = Stop()
    batch = MicroBatch(loader(), "late", stop)
    written: list[int] = []
    batch.write = lambda _, batch_id: written.append(batch_id)  # type: ignore[method-assign,assignment]
    batch(None, 4)  # type: ignore[arg-type]
    stop.requested.set()
    with pytest.raises(execution._StoppedError):
        batch(None, 5)  # type: ignore[arg-type]
    assert written == [4]


def test_a_running_micro_batch_ends_before_the_query_is_stopped(loader: Loader) -> None:
    stop, query = Stop(), Query(True, True, True)
    stop.requested.set()
    assert [event["event"] for event in follow(query, loader(), stop)] == ["stopping"]
    assert query.waited == 3
    assert query.stopped == 1


def test_a_micro_batch_that_takes_too_long_is_interrupted(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    stop, query = Stop(), Query(*[True] * 100)
    stop.requested.set()
    job = loader(("[job]", '[job]\nstopTimeout = "10 seconds"'))
    [event] = follow(query, job, stop)
    assert event["timeout_s"] == 10
    assert query.stopped == 1
    assert query.waited < 20


def test_the_refusal_of_a_further_batch_is_no_failure_of_the_job(loader: Loader) -> None:
    stop = Stop()
    refusal = "job.execution._StoppedError"
    with pytest.raises(StreamingQueryException):
        follow(Query(error=refusal), loader(), stop)
    stop.requested.set()
    follow(Query(True, error=refusal), loader(), stop)
    with pytest.raises(StreamingQueryException):
        follow(Query(True, True, error="something else"), loader(), stop)


def test_each_micro_batch_with_rows_is_reported_once(loader: Loader) -> None:
    query = Query(False, False, ends=True)
    query.recentProgress = [
        {"batchId": number, "numInputRows": rows, "durationMs": {"triggerExecution": 1500}}
        for number, rows in ((0, 3), (1, 0), (2, 4))
    ]
    assert follow(query, loader(), Stop()) == [
        {"event": "batch", "batch": 0, "rows": 3, "seconds": 1.5},
        {"event": "batch", "batch": 2, "rows": 4, "seconds": 1.5},
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_requests_the_end_and_a_second_one_insists(number: signal.Signals) -> None:
    stop = Stop()
    before = signal.getsignal(number)
    with execution._signals(stop):
        signal.raise_signal(number)
        assert stop.requested.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)  # nobody would notice it otherwise
    assert signal.getsignal(number) == before


def test_a_second_signal_ends_the_wait_for_a_micro_batch(loader: Loader) -> None:
    stop, query = Stop(), Query(*[True] * 100)
    query.signalled_at = 3
    with execution._signals(stop):
        signal.raise_signal(signal.SIGTERM)
        follow(query, loader(), stop)
    assert (query.stopped, query.waited) == (1, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_counts_although_spark_has_a_handler_of_its_own(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    seen: list[bool] = []

    def open_session(_: Job) -> Any:
        signal.signal(number, signal.default_int_handler)
        return SimpleNamespace(stop=lambda: None)

    def run_in(_spark: object, _job: Job, _report: object, stop: Stop) -> None:
        signal.raise_signal(number)
        seen.append(stop.requested.is_set())

    monkeypatch.setattr(execution, "require_ready", lambda _: None)
    monkeypatch.setattr(execution, "open_session", open_session)
    monkeypatch.setattr(execution, "run_in", run_in)
    before = signal.getsignal(number)
    execution.run_job(loader())
    assert seen == [True]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("signalled", [False, True])
def test_a_jvm_that_ends_by_itself_is_a_failure(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, *, signalled: bool
) -> None:
    def query(
        _spark: object, _job: Job, _frame: object, _batch: object, stop: Stop, _: Any
    ) -> None:
        if signalled:  # a service manager sends it to all processes of a job
            signal.raise_signal(signal.SIGTERM)
        stop.over.set()
        execution._Hook(stop, 60).run()

    events = list[str]()
    without_spark(monkeypatch)
    monkeypatch.setattr(execution, "_run_query", query)
    expected: Any = (
        nullcontext()
        if signalled
        else pytest.raises(SparkDriverEndedError, match=r"JVM .* has ended")
    )
    with expected:
        execution.run_job(loader(), lambda event: events.append(event["event"]))
    assert events == ["started", *(["ended"] if signalled else [])]


@pytest.mark.parametrize("fails", ["open_session", "_run_query"])
@pytest.mark.parametrize("error", [ConnectionRefusedError(), Py4JError("no answer")])
def test_what_fails_because_the_jvm_is_gone_says_so(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, error: Exception, fails: str
) -> None:
    without_spark(monkeypatch)
    monkeypatch.setattr(execution, fails, Mock(side_effect=error))
    monkeypatch.setattr(SparkContext, "_jvm", jvm_that(error))
    with pytest.raises(SparkDriverEndedError, match=r"JVM .* has ended") as caught:
        execution.run_job(loader())
    assert caught.value.__cause__ is error


def test_a_jvm_that_a_signal_to_the_whole_job_has_ended_is_named_so(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_in(*_: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise Py4JError("no answer")

    without_spark(monkeypatch)
    monkeypatch.setattr(execution, "run_in", run_in)
    monkeypatch.setattr(SparkContext, "_jvm", jvm_that(ConnectionRefusedError()))
    with pytest.raises(SparkDriverEndedError, match="got the signal"):
        execution.run_job(loader())


@pytest.mark.parametrize("jvm", ["lives", "has not started"])
def test_an_error_of_the_jobs_own_files_is_not_taken_for_the_end_of_the_jvm(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, jvm: str
) -> None:
    without_spark(monkeypatch)
    error = FileNotFoundError("countries.csv")
    monkeypatch.setattr(execution, "_run_query", Mock(side_effect=error))
    monkeypatch.setattr(SparkContext, "_jvm", jvm_that(None) if jvm == "lives" else None)
    with pytest.raises(FileNotFoundError) as caught:
        execution.run_job(loader())
    assert caught.value is error


def test_a_micro_batch_that_fails_while_the_job_ends_is_a_failure(loader: Loader) -> None:
    stop, query = Stop(), Query(False, error="the last micro-batch was fenced")
    stop.requested.set()
    with pytest.raises(StreamingQueryException, match="was fenced"):
        follow(query, loader(), stop)


@pytest.mark.parametrize("before", [False, True])
def test_a_batch_that_was_written_is_not_called_stopped(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    stop, written, events = Stop(), list[str](), list[dict[str, Any]]()

    def write_once(_batch: MicroBatch, frame: str) -> None:
        stop.requested.set()  # amid the write
        written.append(frame)

    without_spark(monkeypatch)
    monkeypatch.setattr(MicroBatch, "write_once", write_once)
    job = loader()
    monkeypatch.setattr(type(job), "is_batch", property(lambda _: True))
    if before:
        stop.requested.set()
    execution.run_in(None, job, lambda event: events.append(dict(event)), stop)  # type: ignore[arg-type]
    assert written == ([] if before else ["frame"])
    assert (events[-1]["event"], events[-1]["stopped"]) == ("ended", before)


def test_in_another_thread_no_signal_is_taken() -> None:
    before = signal.getsignal(signal.SIGTERM)
    during = []

    def work() -> None:
        with execution._signals(Stop()):
            during.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert during == [before]


def test_the_jvm_waits_for_the_end_of_the_query() -> None:
    stop = Stop()
    hook = threading.Thread(target=execution._Hook(stop, 60).run)
    hook.start()
    assert stop.requested.wait(10)
    assert hook.is_alive()
    stop.over.set()
    hook.join(10)
    assert not hook.is_alive()
