"""``pulsar-txn sweep``: once or at intervals, with metrics, and what it prints."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import StoreFullError, StoreRolledBackError, StoreUnavailableError
from pulsar_txn_spark.store.records import EndedBy
from pulsar_txn_spark.txn.sweeper import Sweeper, SweepReport
from tests.support.command_line import call, open_txn, screen
from tests.support.pages import snippet


def test_a_sweep_collects_what_is_decided(option: str, run: Components) -> None:
    txn = open_txn(run)
    call("txn", "abort", str(txn), "-o", option)
    report = call("sweep", "--retention-ms", "0", "-o", option)
    assert report["headers_removed"] >= 1
    assert run.store.transactions.read(txn) is None


def test_sweeps_go_on_with_metrics_until_they_are_told_to_stop(
    option: str, run: Components
) -> None:
    txn = open_txn(run)
    run.coordinator.abort(txn, EndedBy.ADMIN, cause="a test")
    code = "from pulsar_txn_spark.cli.main import main; main()"
    program, *args = shlex.split(snippet("docs/deployment.md", "pulsar-txn sweep"))
    assert program == "pulsar-txn"
    ours = {"30": "0.1", "9464": "0", "store.url=redis://meta:6379": option}
    args = [ours.pop(arg, arg) for arg in args] + ["--retention-ms", "0", "--json"]
    assert ours == {}, "the page has another command"
    with subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stdout is not None
            announced = process.stderr.readline()
            assert announced.startswith("metrics at http://127.0.0.1:")
            first, second = (json.loads(process.stdout.readline()) for _ in range(2))
            assert (first["headers_removed"], second["headers_removed"]) == (1, 0)
            with urllib.request.urlopen(announced.split()[-1], timeout=10) as answer:
                assert b"pulsar_txn_store_up" in answer.read()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_sweep_that_cannot_reach_the_store_is_tried_again_and_a_wrong_store_ends_it(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[Exception | None] = [
        StoreUnavailableError("nobody there"),
        StoreFullError("no room"),
        None,
        StoreRolledBackError("another store"),
    ]

    def sweep(_: Sweeper) -> SweepReport:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return SweepReport()

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    result = CliRunner().invoke(main.app, ["sweep", "--every", "0.1", "--json", "-o", option])
    assert "nobody there; the next try is in 0.1 s" in result.stderr
    assert "no room; the next try is in 0.1 s" in result.stderr
    assert len(result.stdout.splitlines()) == 1
    assert isinstance(result.exception, StoreRolledBackError)
    assert outcomes == []


def test_a_sweep_shows_what_it_has_done_in_words(option: str, run: Components) -> None:
    assert screen("sweep", "-o", option) == ["swept: there was nothing to do"]
    txn = open_txn(run)
    run.coordinator.abort(txn, EndedBy.ADMIN, cause="a test")
    lines = screen("sweep", "--retention-ms", "0", "-o", option)
    assert any("headers removed │ 1" in line for line in lines)


def test_sweeps_in_a_row_print_only_what_they_have_done(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = [SweepReport(), SweepReport(aborted=1, stuck=("(0,1): away",)), SweepReport()]

    def sweep(_: Sweeper) -> SweepReport:
        if len(reports) == 1:
            signal.raise_signal(signal.SIGTERM)
        return reports.pop(0)

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    (line,) = screen("sweep", "--every", "0.1", "--scale", "-o", option)
    assert line.endswith(" swept: aborted 1; stuck: (0,1): away")
