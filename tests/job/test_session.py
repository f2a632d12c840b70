"""A check is quiet, unless Spark does not start; and a setting that comes too late is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext, java_gateway

from pulsar_txn_spark.errors import JobNotReadyError
from pulsar_txn_spark.job import Job
from pulsar_txn_spark.job.session import _standard_error_in, open_local_session, open_session


def say(text: str) -> None:
    subprocess.run(
        [sys.executable, "-c", f"import sys; print({text!r}, file=sys.stderr)"], check=True
    )


def test_what_a_started_process_says_is_kept_from_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with _standard_error_in(tmp_path / "stderr"):
        say("noise")
    say("after")
    assert capfd.readouterr().err == "after\n"
    assert (tmp_path / "stderr").read_text() == "noise\n"


def test_it_is_shown_if_the_start_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def start() -> None:
        with _standard_error_in(tmp_path / "stderr"):
            say("reason")
            raise OSError("no start")

    with pytest.raises(OSError, match="no start"):
        start()
    assert capfd.readouterr().err == "reason\n"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with _standard_error_in(tmp_path / "stderr"):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"])
def test_a_client_of_spark_connect_is_refused_before_spark_starts(
    loader: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    job = loader()
    monkeypatch.setenv(variable, "sc://elsewhere:15002")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # a Spark that started all the same would fail
    expected = f"{variable} is set.*unset the variable"
    with pytest.raises(JobNotReadyError, match=expected):
        open_session(job)
    with pytest.raises(JobNotReadyError, match=expected):
        open_local_session(job, tmp_path)


def test_no_secret_is_among_the_arguments_of_the_jvm(
    loader: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class NoJvmError(Exception):
        pass

    def start(command: list[str], **_: object) -> None:
        started.append(command)
        raise NoJvmError

    monkeypatch.setattr(java_gateway, "Popen", start)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    settings = (
        "\n[spark]\n"
        'driver.memory = "700m"\n'
        'hadoop.fs.s3a.secret.key = "${env:S3_SECRET}"\n'
        'some.listener = "token=${env:TOKEN}"\n'
    )
    job = loader(
        ("[[source]]", f"{settings}\n[[source]]"),
        environment={"S3_SECRET": "hunter22", "TOKEN": "letmein99"},
    )
    with pytest.raises(NoJvmError):
        open_session(job)
    [command] = started
    text = " ".join(command)
    assert "spark.driver.memory=700m" in text
    assert "hunter22" not in text
    assert "secret.key" not in text
