"""``pulsar-txn job``: exit codes and screens, as far as no Spark is needed."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from typer.testing import CliRunner, Result

import pulsar_txn_spark
from pulsar_txn_spark.backports import add_note
from pulsar_txn_spark.cli import job, main
from pulsar_txn_spark.errors import (
    EnvironmentTooOldError,
    JobFileError,
    JobNotReadyError,
    SparkDriverEndedError,
)
from pulsar_txn_spark.job.execution import Report

GOOD = """
[job]
name = "copy"
checkpoint = "{folder}/checkpoint"
trigger = "availableNow"

[[source]]
name = "events"
topic = "events"

[[sink]]
topic = "out"
sql = "SELECT value, __key FROM events"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job, "require_java", no_java)
    path = tmp_path / "job.toml"
    path.write_text(GOOD.replace("{folder}", str(tmp_path)))
    return path


def no_java() -> None:
    raise EnvironmentTooOldError("no Java found")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main.app, ["job", *map(str, arguments)])


@pytest.mark.parametrize("verb", ["run", "check", "explain"])
def test_a_wrong_file_ends_each_command_with_its_own_exit_code(verb: str, file: Path) -> None:
    file.write_text(file.read_text().replace("trigger", "triger"))
    result = call(verb, file)
    assert result.exit_code == job.BAD_FILE_EXIT_CODE == 2
    first, last = result.stderr.splitlines()
    assert first == f"{file}:5: [job] 'copy': unknown key 'triger': did you mean 'trigger'?"
    assert last == "1 problem; nothing was started"
    assert result.stdout == ""


def test_a_check_shows_problems_as_json(file: Path) -> None:
    file.write_text(file.read_text().replace("trigger", "triger"))
    result = call("check", file, "--json")
    assert result.exit_code == 2
    first, last = json.loads(result.stdout)["problems"]
    assert first.startswith(f"{file}:5: [job] 'copy': unknown key 'triger'")
    assert last == "1 problem; nothing was started"


def test_without_java_all_but_the_sql_is_checked(file: Path) -> None:
    result = call("check", file)
    assert result.exit_code == 0
    note, last = result.stdout.splitlines()
    assert note == "the SQL was not checked: no Java found"
    assert last == f"{file}: job 'copy' is in order"
    as_json = json.loads(call("check", file, "--json").stdout)
    assert as_json == {"job": "copy", "problems": [], "notes": [note]}


def test_a_topic_that_is_not_there_is_no_mistake_of_the_file(file: Path, option: str) -> None:
    result = call("check", file, "--connect", "-o", option)
    assert result.exit_code == 1
    assert (
        "[[source]] 'events': topic topic://public/default/events does not exist" in result.stderr
    )
    assert "2 problems; nothing was started" in result.stderr
    assert "'pulsar-txn topic create'" in result.stderr
    as_json = call("check", file, "--connect", "--json", "-o", option)
    for shown in (result.stderr, as_json.stdout):
        assert "pulsar_txn_spark." not in shown


def test_topics_that_are_there_are_in_order(file: Path, option: str) -> None:
    admin = pulsar_txn_spark.Admin({"store.path": option.partition("=")[2]})
    for topic in ("events", "out"):
        admin.create_topic(topic, exist_ok=True)
    assert call("check", file, "--connect", "-o", option).exit_code == 0


def test_a_job_whose_topics_are_not_there_starts_no_spark(
    file: Path, redis_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "require_java", lambda: None)
    monkeypatch.setenv("PULSAR_TXN_STORE_PATH", redis_path)
    result = call("run", file, "--set", "source.events.topic=none", "--set", "job.name=other")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "topic://public/default/none" in result.stderr


def fail(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let each job begin, and fail with an error."""

    def run_job(_: object, report: Report) -> None:
        report({"event": "started", "job": "copy", "application": "app-1"})
        raise error

    monkeypatch.setattr(job, "require_java", lambda: None)
    monkeypatch.setattr("pulsar_txn_spark.job.run_job", run_job)


def with_note(error: Exception, note: str) -> Exception:
    add_note(error, note)
    return error


CALL = "TopicNotFoundError: call pulsar_txn_spark.Admin(options).create_topic(topic)"
COMMAND = "TopicNotFoundError: call 'pulsar-txn topic create'"


@pytest.mark.parametrize(
    "error, why",
    [
        (Py4JError(f"frames\npulsar_txn_spark.errors.{CALL}\nframes"), COMMAND),
        (Py4JError(": java.io.IOException: away\n\tat x"), "java.io.IOException: away"),
        (JobNotReadyError(CALL), COMMAND),
        (SparkDriverEndedError("the JVM has ended"), "the JVM has ended"),
    ],
)
def test_a_job_that_fails_says_why_also_as_its_last_event(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    fail(monkeypatch, error)
    result = call("run", file)
    assert (result.exit_code, result.stdout) == (1, "")
    begin = "error: the job failed: " if isinstance(error, Py4JError) else "error: "
    assert result.stderr.endswith(begin + why + "\n")
    as_json = call("run", file, "--json")
    assert as_json.exit_code == 1
    started, failed = map(json.loads, as_json.stdout.splitlines())
    assert started["event"] == "started"
    assert failed == {"event": "failed", "job": "copy", "error": why}


RUN_WITHOUT_SPARK = """
import os, sys
from pulsar_txn_spark import job
from pulsar_txn_spark.cli import job as commands, main
from pulsar_txn_spark.errors import JobNotReadyError

def run_job(_, report):
    report({"event": "started", "job": "copy", "application": "app-1"})
    report({"event": "stopping", "job": "copy", "timeout_s": 60})
    if "FAIL" in os.environ:
        raise JobNotReadyError("it is not there")
    report({"event": "ended", "job": "copy", "stopped": True})

commands.require_java = lambda: None
job.run_job = run_job
main.main(["job", "run"])
"""


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
@pytest.mark.parametrize("is_full", [False, True], ids=["reader-gone", "disk-full"])
@pytest.mark.parametrize("as_json", [False, True], ids=["lines", "json"])
def test_a_status_line_that_cannot_be_written_does_not_decide_what_becomes_of_a_job(
    file: Path, *, as_json: bool, is_full: bool, fails: bool
) -> None:
    reader, lost = os.pipe()
    if is_full:
        os.close(lost)
        lost = os.open("/dev/full", os.O_WRONLY)
    os.close(reader)
    process = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT_SPARK, file, *(["--json"] if as_json else [])],
        stdout=lost if as_json else subprocess.PIPE,
        stderr=subprocess.PIPE if as_json else lost,
        env={**os.environ, "PYTHONUNBUFFERED": "", **({"FAIL": ""} if fails else {})},
        check=False,
        text=True,
    )
    os.close(lost)
    assert process.returncode == int(fails)
    warning, *rest = (process.stderr if as_json else process.stdout).splitlines()
    assert warning.startswith("warning: a status line is lost: ")
    assert rest == (["error: it is not there"] if fails and as_json else [])


def test_an_error_that_nobody_expects_is_an_event_too(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = FileNotFoundError(2, "No such file", "countries.csv")
    fail(monkeypatch, error)
    result = call("run", file, "--json")
    assert result.exception is error
    *_, failed = map(json.loads, result.stdout.splitlines())
    why = "FileNotFoundError: [Errno 2] No such file: 'countries.csv'"
    assert failed == {"event": "failed", "job": "copy", "error": why}


@pytest.mark.parametrize(
    "error",
    [
        Py4JError(": java.io.IOException: hunter2 is wrong"),
        JobNotReadyError("hunter2 is wrong"),
        with_note(JobNotReadyError("it is not there"), "hunter2 is wrong"),
    ],
)
def test_a_failure_shows_no_secret(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail(monkeypatch, error)
    option = ("-o", "store.url=redis://h:1", "-o", "store.password=hunter2")
    result = call("run", file, "--json", *option)
    assert "*** is wrong" in result.stderr
    assert "*** is wrong" in result.stdout
    assert "hunter2" not in result.output


def test_what_spark_refuses_of_a_file_is_no_failed_job(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, JobFileError("wrong"))
    result = call("run", file, "--json")
    assert (result.exit_code, len(result.stdout.splitlines())) == (job.BAD_FILE_EXIT_CODE, 1)
    assert result.stderr == "wrong\n"


def test_options_come_from_a_file_too(file: Path, tmp_path: Path) -> None:
    secret = tmp_path / "options"
    secret.write_text("store.url=redis://:hunter2@127.0.0.1:1\nstore.timeoutMs=50\n")
    secret.chmod(0o600)
    result = call("check", file, "--connect", "--options", secret)
    assert result.exit_code == 1
    assert "127.0.0.1:1" in result.stderr
    assert "hunter2" not in result.stderr


def test_the_script_runs_a_job(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = call("script")
    assert result.exit_code == 0
    script = tmp_path / "job.py"
    script.write_text(result.stdout)
    monkeypatch.setattr("sys.argv", [str(script), str(file), "--set", "job.trigger=never"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == job.BAD_FILE_EXIT_CODE
    assert capsys.readouterr().err.startswith(
        "--set job.trigger: [job] 'copy': 'trigger' cannot be"
    )
