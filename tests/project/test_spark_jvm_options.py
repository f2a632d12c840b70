"""The options for Sparks that live for seconds name an archive that is there."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import spark_jvm_options

SHARED, DUMPED = "-XX:SharedArchiveFile=", "-XX:ArchiveClassesAtExit="


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stand for the job that loads the classes; it ends with each of these codes in turn."""
    codes: list[int] = []
    run = subprocess.run

    def job(command: list[str], **settings: Any) -> subprocess.CompletedProcess[str]:
        if "--job" not in command:
            return run(command, **settings)
        code = codes.pop(0)
        if code == 0:
            Path(_path_in(settings["env"]["SPARK_SUBMIT_OPTS"], DUMPED)).write_bytes(b"classes")
        return subprocess.CompletedProcess(command, code, "", "")

    monkeypatch.setattr(subprocess, "run", job)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    return codes


def _path_in(options: str, name: str) -> str:
    (path,) = [o.removeprefix(name) for o in shlex.split(options) if o.startswith(name)]
    return path


def _options(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    spark_jvm_options.main(folder)
    return capsys.readouterr().out


def test_the_options_name_the_archive_of_the_job(
    tmp_path: Path, jobs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.append(0)
    archive = Path(_path_in(_options(tmp_path, capsys), SHARED))
    assert archive.read_bytes() == b"classes"
    assert archive.parent == tmp_path


def test_an_archive_is_made_once_and_again_when_it_was_deleted(
    tmp_path: Path, jobs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs += [0, 0]
    options = _options(tmp_path, capsys)
    assert _options(tmp_path, capsys) == options
    assert len(jobs) == 1
    archive = Path(_path_in(options, SHARED))
    archive.unlink()
    assert _options(tmp_path, capsys) == options
    assert archive.exists()


def test_without_an_archive_the_options_name_none(
    tmp_path: Path, jobs: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.append(1)
    options = _options(tmp_path, capsys)
    assert spark_jvm_options.SHORT_LIVED in options
    assert SHARED not in options
    assert _options(tmp_path, capsys) == options  # it is not tried again and again
