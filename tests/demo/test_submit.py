"""The demo's job as a file says what the demo's program says."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo import __main__ as demo
from demo.child import Settings, source_options
from demo.plan import JOB_KILLS, KILLS
from demo.submit import JOB_FILE, command, environment
from demo.topics import DELAYS, FLIGHTS, LATE_MINUTES, ON_TIME
from pulsar_txn_spark.cli.option_sources import gather
from pulsar_txn_spark.job import load
from pulsar_txn_spark.steps import Step


def test_the_file_reads_and_writes_what_the_program_does(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path), {"store.path": "s"}, 7, master="spark://h:1")
    variables = environment(settings)
    job = load(JOB_FILE, environment=variables, defaults=gather([], None, variables))
    flights, airlines = job.sources
    assert flights.options == {**source_options(settings), "topic": FLIGHTS}
    assert Path(airlines.options["path"]).name == "airlines.csv"
    assert [sink.topic for sink in job.sinks] == [DELAYS, ON_TIME]
    assert all(f"{LATE_MINUTES}" in (sink.sql or "") for sink in job.sinks)
    assert job.checkpoint == f"{tmp_path}/checkpoint"
    assert job.is_available_now


def test_it_is_submitted_to_the_cluster(tmp_path: Path) -> None:
    _, *arguments = command(Settings(str(tmp_path), {}, 7, master="spark://h:1"))
    assert arguments[:2] == ["--master", "spark://h:1"]
    assert arguments[-2:] == [str(JOB_FILE), "--json"]


def test_the_driver_is_killed_at_steps_that_it_takes_itself() -> None:
    assert {kill.step for kill in JOB_KILLS} == {
        Step.PENDING_ACK,
        Step.DECIDE,
        Step.SPARK_COMMIT_LOG,
    }
    assert set(JOB_KILLS) <= set(KILLS)


def test_a_job_as_a_file_excludes_segments_that_change(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--job", "--split"])
    assert "--job and --split exclude each other" in capsys.readouterr().err
