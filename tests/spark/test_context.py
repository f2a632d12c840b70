"""The driver's process has the same name in every process of its application, on each system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.spark import context


@pytest.fixture(params=["linux", "darwin"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Let a process believe that it is on a system; macOS has no ``/proc``."""
    monkeypatch.setattr(sys, "platform", request.param)
    context._driver_above.cache_clear()
    if request.param == "darwin":
        read_text = Path.read_text

        def without_proc(path: Path, *args: Any, **named: Any) -> str:
            if path.parts[1:2] == ("proc",):
                raise FileNotFoundError(path)
            return read_text(path, *args, **named)

        monkeypatch.setattr(Path, "read_text", without_proc)
    yield request.param
    context._driver_above.cache_clear()


def test_a_process_is_named_by_its_id_and_its_start(system: str) -> None:
    own = context._process(os.getpid())
    assert own is not None
    assert own.parent == os.getppid()
    name = context._process_name(os.getpid())
    assert name.split("/")[1] == str(os.getpid())
    assert name.endswith(own.started)
    assert own.started


def test_the_name_does_not_depend_on_language_and_zone(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = context._process_name(os.getpid())
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert context._process_name(os.getpid()) == name


def test_a_process_that_is_gone_has_no_name(system: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert context._process_name(process.pid) == ""


def test_the_driver_is_the_next_java_above(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = {
        30: context._Process("python3.11", 20, "c"),
        20: context._Process("java", 10, "b"),
        10: context._Process("java", 1, "a"),
    }
    monkeypatch.setattr(context, "_process", processes.get)
    assert context._driver_above(30).endswith("/20/b")
    # The JVM may be the first process, of a container.
    processes |= {20: context._Process("bash", 1, "b"), 1: context._Process("java", 0, "c")}
    context._driver_above.cache_clear()
    assert context._driver_above(30).endswith("/1/c")
    processes[1] = context._Process("tini", 0, "c")
    context._driver_above.cache_clear()
    assert context._driver_above(30) == ""


@pytest.mark.parametrize("answer", ["", "17 Sun Nov 22", "x Sun Nov 22 13:54:42 2026 /bin/java"])
def test_an_answer_of_ps_that_is_not_understood_is_no_process(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    done = subprocess.CompletedProcess([], 0, stdout=answer, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert context._process_of_ps(17) is None


def test_a_path_with_blanks_is_read_from_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "  501 Sun Nov  2 03:04:05 2026     /Library/Java VMs/bin/java\n"
    done = subprocess.CompletedProcess([], 0, stdout=line, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    expected = context._Process("java", 501, "Sun-Nov-2-03:04:05-2026")
    assert context._process_of_ps(17) == expected
