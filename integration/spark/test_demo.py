"""The whole demo as its user runs it; and that its exit code tells when something is not exact."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from demo import __main__ as demo
from demo.check import find
from demo.child import Settings
from demo.plan import JOB_KILLS, KILLS, USUAL_KILLS
from demo.proof import Expected, expectation
from demo.run import Run
from demo.topics import DELAYS, ON_TIME
from integration.support.spark import NO_PANDAS_3
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.testing.pulsar_server import PulsarServerError, resolve_classpath

pytestmark = [pytest.mark.crash, pytest.mark.filterwarnings(NO_PANDAS_3)]

_DEMO_SECONDS = 900  # a minute and a half on two idle cores
_END_SECONDS = 60  # processes are killed, and the embedded Redis is shut down in order
_Expectation = dict[int, Expected]


@dataclass(frozen=True)
class Done:
    """A demo that has ended.

    Parameters
    ----------
    code : int
        Its exit code.
    screen : str
        What its user saw.
    folder : Path
        Where its folder was made.
    """

    code: int
    screen: str
    folder: Path

    def figures(self, name: str) -> list[int]:
        """Return the figures of a line of the summary."""
        return figures(self.screen, name)

    @property
    def settings(self) -> Settings:
        (kept,) = self.folder.iterdir()  # nothing else is left there
        return Settings.read(str(kept / "settings.json"))


def figures(screen: str, name: str) -> list[int]:
    (line,) = [line for line in screen.splitlines() if name in line and line[0] in "│|"]
    return [int(figure.replace(",", "")) for figure in re.findall(r"(?<= )[\d,]+(?= )", line)]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "120"},
    )


def living(folder: Path) -> list[str]:
    """Return the command lines of processes that work in a folder."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "args="], capture_output=True, text=True, check=True
    )
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


def await_end_of_all(folder: Path) -> None:
    """Wait until no process has to do with a folder: a watchdog ends a little after its server."""
    until = time.monotonic() + _END_SECONDS
    while left := living(folder):
        assert time.monotonic() < until, left
        time.sleep(0.1)  # these are nobody's children: their end is no event for us


@pytest.fixture(scope="module")
def embedded_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    """Give the demo on the embedded backend, all its data kept."""
    folder = tmp_path_factory.mktemp("demo")
    with start(folder, "--keep") as process:
        screen, _ = process.communicate(timeout=_DEMO_SECONDS)
    done = Done(process.returncode, screen, folder)
    yield done
    connection.close_all()
    server.stop_server(done.settings.options["store.path"])


@pytest.fixture(scope="module")
def proof() -> _Expectation:
    """Give what the outputs must hold. A test changes a copy only."""
    return expectation()


@pytest.mark.timeout(_DEMO_SECONDS)
def test_every_flight_comes_out_exactly_once_although_the_driver_is_killed_again_and_again(
    embedded_demo: Done,
) -> None:
    assert embedded_demo.code == 0, embedded_demo.screen
    assert embedded_demo.screen.count("kill -9 of the driver in batch") == USUAL_KILLS
    assert len({kill.place for kill in KILLS[:USUAL_KILLS]}) == USUAL_KILLS
    for kill in KILLS[:USUAL_KILLS]:
        assert kill.place in embedded_demo.screen
    delays, on_time = (embedded_demo.figures(name) for name in ("delays", "on_time"))
    assert delays[0] == delays[1]
    assert on_time[0] == on_time[1]
    assert delays[0] + on_time[0] == 336_776
    for name in ("missing", "doubled", "wrong value"):
        assert embedded_demo.figures(name) == [0, 0]


@pytest.mark.timeout(_DEMO_SECONDS)
def test_aborted_rows_lie_in_the_logs_and_are_never_read(embedded_demo: Done) -> None:
    (aborted,) = embedded_demo.figures("aborted ones among them")
    assert aborted > 0
    assert embedded_demo.figures("rows that lie in the output logs") == [336_776 + aborted]
    killed_undecided = sum(kill.leaves_aborted for kill in KILLS[:USUAL_KILLS])
    assert embedded_demo.figures("transactions that left these") == [killed_undecided] * 2
    (batches,) = embedded_demo.figures("micro-batches")
    assert 10 <= batches <= 20


@pytest.mark.timeout(_DEMO_SECONDS)
def test_nothing_that_the_demo_started_is_left_running(embedded_demo: Done) -> None:
    await_end_of_all(embedded_demo.folder)


@pytest.mark.timeout(_DEMO_SECONDS)
@pytest.mark.parametrize(
    "ending, line",
    [
        (signal.SIGTERM, "creating the topics"),
        pytest.param(signal.SIGHUP, "writing the flights", marks=pytest.mark.long),
        (signal.SIGINT, "the job starts its query"),  # store, two JVMs and their workers
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, ending: signal.Signals, line: str
) -> None:
    with start(tmp_path) as process:
        assert process.stdout is not None
        assert any(line in shown for shown in process.stdout)
        process.send_signal(ending)
        screen, _ = process.communicate(timeout=_END_SECONDS)
    assert process.returncode == 128 + ending, screen
    await_end_of_all(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(_DEMO_SECONDS)
def test_a_killed_demo_leaves_nothing_running(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        assert process.stdout is not None
        assert any("the job starts its query" in shown for shown in process.stdout)
        process.kill()
    await_end_of_all(tmp_path)


def _expect_one_more(expected: _Expectation) -> None:
    expected[len(expected)] = expected[0]


def _expect_one_less(expected: _Expectation) -> None:
    del expected[17]


def _expect_another_airline(expected: _Expectation) -> None:
    expected[17] = replace(expected[17], value={**expected[17].value, "airline": "Icarus"})


def _judge(
    done: Done,
    spark: SparkSession,
    expected: _Expectation,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> int:
    """Run the demo's main program on what another run has left behind."""
    settings = done.settings
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    nobody = SimpleNamespace(tell=lambda: None)
    monkeypatch.setattr(Run, "_child", lambda *_: contextlib.nullcontext(nobody))
    monkeypatch.setattr(Run, "load", lambda *_: None)
    monkeypatch.setattr(Run, "run_job", lambda *_: None)
    monkeypatch.setattr(Run, "look", lambda *_: find(spark, settings, expected))
    return demo.main(["--kills", "0"])


@pytest.mark.long
@pytest.mark.timeout(_DEMO_SECONDS)
@pytest.mark.parametrize(
    "tamper, missing, doubled, wrong",
    [
        (_expect_one_more, 1, 0, 0),
        (_expect_one_less, 0, 0, 1),
        (_expect_another_airline, 0, 0, 1),
    ],
)
def test_the_exit_code_tells_that_the_outputs_are_not_what_was_expected(
    embedded_demo: Done,
    proof: _Expectation,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tamper: Callable[[_Expectation], None],
    missing: int,
    doubled: int,
    wrong: int,
) -> None:
    expected = dict(proof)
    tamper(expected)
    assert embedded_demo.code == 0  # without that
    assert _judge(embedded_demo, spark, expected, monkeypatch, tmp_path) == 1
    screen = capsys.readouterr().out
    assert figures(screen, "missing") == [0, missing]
    assert figures(screen, "doubled") == [0, doubled]
    assert figures(screen, "wrong value") == [0, wrong]
    assert "NOT exact" in screen


# The last one on this store: it puts a second copy of a flight into an output. `make test` has its
# parts: a whole demo, and tests/demo/ for what a verdict and the exit code say.
@pytest.mark.long
@pytest.mark.timeout(_DEMO_SECONDS)
def test_the_exit_code_tells_of_a_doubled_row_and_a_missing_one(
    embedded_demo: Done,
    proof: _Expectation,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = embedded_demo.settings.options
    rows = spark.read.format("pulsar_txn").options(**options).option("topic", DELAYS).load()
    copy = rows.select("value", "__key").limit(1)
    copy.write.format("pulsar_txn").options(**options).option("topic", DELAYS).mode("append").save()
    expected = dict(proof)
    _expect_one_more(expected)
    assert _judge(embedded_demo, spark, expected, monkeypatch, tmp_path) == 1
    screen = capsys.readouterr().out
    assert figures(screen, "doubled") == [0, 1]
    assert figures(screen, "missing") == [0, 1]
    assert "came out 2 times" in screen


@pytest.mark.timeout(_DEMO_SECONDS)
@pytest.mark.parametrize(
    "arguments",
    [
        # Segments are split and merged every second, and the driver is killed at random.
        pytest.param(
            ["--split", "--every", "1", "--seed", "7"],
            id="segments-change",
            marks=pytest.mark.long,
        ),
        pytest.param([], id="segments-stay", marks=pytest.mark.long),
        # The broker gates the outputs, and plain consumers look on all the time.
        pytest.param(["--shim"], id="broker-gates", marks=pytest.mark.long),
    ],
)
def test_on_a_real_broker_every_flight_comes_out_exactly_once(
    tmp_path: Path, arguments: list[str]
) -> None:
    try:
        resolve_classpath()
    except PulsarServerError as error:
        pytest.skip(str(error))
    with start(tmp_path, "--backend", "pulsar", "--kills", "3", *arguments) as process:
        screen, _ = process.communicate(timeout=_DEMO_SECONDS)
    assert process.returncode == 0, screen
    assert screen.count("kill -9 of the driver in batch") == 3
    assert "Exactly once" in screen
    assert figures(screen, "out of order") == [0, 0]
    if "--shim" in arguments:
        for topic in (DELAYS, ON_TIME):
            expected, received = figures(screen, f"received of {topic}")
            assert expected == received > 0
        for name in ("not received", "received twice", "not as they should", "planes whose"):
            assert figures(screen, name) == [0, 0]
    if "--split" in arguments:
        (changes,) = figures(screen, "splits, merges and seals")
        assert changes >= 10
    await_end_of_all(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(_DEMO_SECONDS)
@pytest.mark.long
def test_a_job_from_a_file_on_a_cluster_is_exact_although_drivers_and_a_worker_are_killed(
    tmp_path: Path,
) -> None:
    with start(tmp_path, "--job") as process:
        screen, _ = process.communicate(timeout=_DEMO_SECONDS)
    assert process.returncode == 0, screen
    assert screen.count("kill -9 of the driver in batch") == len(JOB_KILLS)
    assert screen.count("kill -9 of a worker in batch") == 1
    assert "Exactly once" in screen
    for name in ("missing", "doubled", "wrong value", "out of order"):
        assert figures(screen, name) == [0, 0]
    assert figures(screen, "workers of the cluster") == [1, 1]
    await_end_of_all(tmp_path)
    assert list(tmp_path.iterdir()) == []
