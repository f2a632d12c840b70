"""Whatever happens to the demo, nothing that it started is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from demo import __main__ as demo
from demo import processes
from demo.child import Settings
from demo.processes import Child, DemoProcessError
from pulsar_txn_spark.steps import FAULT, FAULT_FILE

# As Spark's worker daemon does: the same session, another process group. Both hold the FIFO open.
_FAMILY = """
import os, sys, time
from demo.child import begin, emit
settings = begin()
fifo = os.open(f"{settings.folder}/alive", os.O_WRONLY)
if os.fork() == 0:
    os.setpgid(0, 0)
    emit("started")
    time.sleep(600)
time.sleep(600)
"""

Start = Callable[..., Child]


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return Settings(str(tmp_path), {"store.path": "s"}, 7).write()


@pytest.fixture
def start(tmp_path: Path, settings: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start(code: str, **fault: object) -> Child:
        (tmp_path / "toy.py").write_text(code, encoding="utf-8")
        return Child("toy", settings, tmp_path / "log", **fault)  # type: ignore[arg-type]

    return start


def test_settings_arrive_as_they_were_sent(tmp_path: Path, settings: Path) -> None:
    assert Settings.read(str(settings)) == Settings(str(tmp_path), {"store.path": "s"}, 7)


def test_reports_come_through_and_other_output_is_passed_over(start: Start) -> None:
    code = """
from demo.child import begin, emit
emit("first", settings=begin().rows_per_batch)
print("Spark says something", 17, [1], sep="\\n")
emit("second")
"""
    with start(code) as child:
        events = list(child.events())
        child.expect_success()
    assert events == [{"event": "first", "settings": 7}, {"event": "second"}]


def test_a_process_goes_on_when_it_is_told(start: Start) -> None:
    code = """
from demo.child import begin, emit, wait_to_be_told
begin()
emit("waiting")
wait_to_be_told()
emit("went on")
"""
    with start(code) as child:
        assert list(child.events(until="waiting")) == [{"event": "waiting"}]
        child.tell()
        assert list(child.events()) == [{"event": "went on"}]
        child.expect_success()


def test_a_process_that_falls_silent_is_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_SILENCE_SECONDS", 2.0)
    with (
        start("import time; time.sleep(600)") as child,
        pytest.raises(DemoProcessError, match="reported nothing for 2 s"),
    ):
        list(child.events())


def test_a_failure_shows_our_own_error_even_if_pages_follow_it(start: Start) -> None:
    code = """
import sys
print("pulsar_txn_spark.errors.FencedError: a newer attempt", file=sys.stderr)
raise SystemExit("\\n".join(map(str, range(999))))
"""
    with (
        start(code) as child,
        pytest.raises(DemoProcessError, match="FencedError: a newer attempt"),
    ):
        child.expect_success()


def test_a_failure_shows_the_end_of_the_log(start: Start) -> None:
    with start("raise SystemExit('the disk is full')") as child:
        assert list(child.events()) == []
        with pytest.raises(DemoProcessError, match=r"exit code 1(.|\n)*the disk is full"):
            child.expect_success()


def test_a_fault_is_passed_on_and_none_is_inherited(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAULT, "begin:before:1")
    monkeypatch.setenv(FAULT_FILE, "elsewhere")
    code = f"""
import os
from demo.child import emit
emit("seen", fault=[os.environ.get("{FAULT}"), os.environ.get("{FAULT_FILE}")])
"""
    with start(code) as child:
        assert next(child.events())["fault"] == [None, None]
    with start(code, fault="append:after:3", fault_file=tmp_path / "x") as child:
        assert next(child.events())["fault"] == ["append:after:3", str(tmp_path / "x")]


def test_a_fault_in_a_worker_takes_the_driver_along(start: Start, tmp_path: Path) -> None:
    code = """
import os, time
from demo.child import begin
begin()
if os.fork() == 0:
    os.setpgid(0, 0)
    from pulsar_txn_spark import steps
    steps.reach(steps.Step.APPEND, steps.Phase.AFTER)
time.sleep(600)
"""
    with start(code, fault="append:after:1", fault_file=tmp_path / "x") as child:
        assert child.wait() == -signal.SIGKILL
    assert (tmp_path / "x.append-after.fired").exists()


def test_killing_a_process_takes_all_that_it_started(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    with start(_FAMILY) as child, (tmp_path / "alive").open("rb") as alive:
        assert next(child.events())["event"] == "started"
        child.kill()
        assert alive.read() == b""  # the end of the pipe: nobody holds it any more


def test_the_leader_dies_with_the_demo_even_if_that_is_killed(
    tmp_path: Path, settings: Path
) -> None:
    os.mkfifo(tmp_path / "alive")
    # Without the worker in its own group: of that one, Spark itself takes care when the JVM dies.
    (tmp_path / "toy.py").write_text(_FAMILY.replace("os.setpgid(0, 0)", "pass"), encoding="utf-8")
    demo = f"""
from pathlib import Path
from demo.processes import Child
child = Child("toy", Path({str(settings)!r}), Path({str(tmp_path / "log")!r}))
print(next(child.events()), flush=True)
child.wait()
"""
    with (
        subprocess.Popen(
            [sys.executable, "-c", demo],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        ) as supervisor,
        (tmp_path / "alive").open("rb") as alive,
    ):
        assert supervisor.stdout is not None
        assert b"started" in supervisor.stdout.readline()
        supervisor.kill()
        assert alive.read() == b""


def test_an_interruption_counts_as_one_whatever_it_makes_fail_on_its_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Run:
        def __init__(self, *_: object) -> None: ...

        def carry_out(self) -> bool:
            try:
                signal.raise_signal(signal.SIGHUP)
            finally:
                # What threading.Condition says if it is left between two of its own lines.
                threading.Lock().release()
            return True

    monkeypatch.setattr(demo, "Run", Run)
    monkeypatch.setattr(demo, "_backend", lambda *_: nullcontext({}))
    assert demo.main([]) == 128 + signal.SIGHUP
    assert "interrupted" in capsys.readouterr().err
