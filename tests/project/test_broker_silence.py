"""A broker that answers nobody any more ends, and the test run says what it was doing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from integration.support.broker_silence import LONGEST_S, Silence, found_silent, keep_threads

STARTED, END_S = b"ready\n", 30.0
BROKER = f"""#!{sys.executable} -IS
import os, signal
def dump(*_):
    # Not print: the signal may come before the print below has returned.
    os.write(1, b"Full thread dump\\nBLOCKED here\\nJNI global refs: 1\\n")
signal.signal(signal.SIGQUIT, dump)
print("ready", flush=True)
while True:
    signal.pause()
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[psutil.Process]:
    """Give a process that has started one that prints its threads as a JVM does."""
    program, log = tmp_path / "java", tmp_path / "broker.log"
    program.write_text(BROKER)
    program.chmod(0o755)
    command = ["sh", "-c", f"{program} & read line; kill $!"]
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=output) as process,
    ):
        deadline = time.monotonic() + END_S
        while log.read_bytes() != STARTED:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield psutil.Process(process.pid)
        process.communicate(b"\n")


def test_a_broker_is_silent_once_the_last_answer_is_too_long_ago() -> None:
    clock, answering = Clock(), [True, False, False, True, False, False]
    silence = Silence(lambda: answering.pop(0), clock)
    found = []
    for now in (50, 100, 150, 190, 250, 191 + LONGEST_S):
        clock.now = now
        found.append(silence.is_too_long())
    assert found == [False, False, False, False, False, True]


def test_its_threads_are_kept_and_told_once(tmp_path: Path, starter: psutil.Process) -> None:
    kept = tmp_path / "kept.log"
    assert found_silent(kept) is None
    keep_threads(kept, starter)
    told = found_silent(kept)
    assert told is not None
    assert "Full thread dump\nBLOCKED here" in told
    assert "ready" not in told
    assert found_silent(kept) is None
