"""A server ends with the process that owns it, however that process ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pulsar_txn_spark import watchdog
from pulsar_txn_spark.watchdog import Ending, OwnedServer

ROOT = Path(__file__).parents[1]
WITHIN_S = 20.0

SERVER = """\
import os, pathlib, signal, subprocess, sys
folder = pathlib.Path(sys.argv[1])
for mode in sys.argv[2:]:
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif mode == "orderly":
        def shut_down(*_):
            folder.with_name("shut-down").touch()
            sys.exit(3)
        signal.signal(signal.SIGTERM, shut_down)
    elif mode == "parent":
        started = subprocess.Popen(["sleep", "300"])
        (folder / "started.pid").write_text(str(started.pid))
    elif mode == "failing":
        print("no such thing")
        sys.exit(7)
(folder / "new.pid").write_text(str(os.getpid()))
(folder / "new.pid").rename(folder / "server.pid")
while True:
    signal.pause()
"""
"""A server that writes its pid once it is up."""

OWNER = """\
import os, pathlib, sys, time
from pulsar_txn_spark.watchdog import OwnedServer
folder = pathlib.Path(sys.argv[1])
server = OwnedServer(sys.argv[2:], folder, folder.with_name("log"))
if os.fork() == 0:  # keeps the pipe to the watchdog open
    os.setsid()
    print(os.getpid(), flush=True)
time.sleep(300)
"""

WITHOUT_PIDFDS = """\
import os, runpy, sys
def pidfd_open(pid):
    raise OSError(38, "no such system call")
os.pidfd_open = pidfd_open
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def command(folder: Path) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", SERVER, str(folder)]


@pytest.fixture(params=["pidfds", "polling"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Run watchdogs with pidfds, and as on a Linux that has none."""
    if request.param == "polling":
        script = tmp_path / "without_pidfds.py"
        script.write_text(WITHOUT_PIDFDS)
        original = watchdog._script

        def on_an_older_kernel(*arguments: object) -> list[str]:
            program, *flags, path = original()
            return [program, *flags, str(script), path, *map(str, arguments)]

        monkeypatch.setattr(watchdog, "_script", on_an_older_kernel)
    return str(request.param)


def start(folder: Path, command: list[str]) -> OwnedServer:
    return OwnedServer(command, folder, folder.with_name("log"))


def pidfd_of(pid: int) -> int:
    return os.pidfd_open(pid)


def await_end(pidfd: int) -> None:
    try:
        assert select.select([pidfd], [], [], WITHIN_S)[0], "the process still runs"
    finally:
        os.close(pidfd)


def await_removal(folder: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while folder.exists():
        assert time.monotonic() < deadline, "the folder is still there"
        time.sleep(0.01)


def pid_in(file: Path) -> int:
    pid = watchdog.read_pid(file)
    assert pid is not None
    return pid


# --- a server in the foreground -------------------------------------------------------------------


@pytest.mark.parametrize(
    "ending,shut_down,kept",
    [
        (Ending.STOP, True, False),
        (Ending.PAUSE, True, True),
        (Ending.CRASH, False, True),
        (Ending.DISCARD, False, False),
    ],
)
def test_a_server_ends_as_its_owner_asks(
    folder: Path, command: list[str], kernel: str, ending: Ending, *, shut_down: bool, kept: bool
) -> None:
    server = start(folder, [*command, "orderly"])
    pidfd = pidfd_of(pid_in(folder / "server.pid"))
    assert server.exit_code() is None
    server.end(ending)
    await_end(pidfd)
    assert (folder.with_name("shut-down").exists(), folder.exists()) == (shut_down, kept), kernel


def test_a_server_without_an_orderly_shutdown_is_killed(
    folder: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "TERM_TIMEOUT_S", 0.1)
    with subprocess.Popen([*command, "stubborn"]) as server:
        process = watchdog._Process(pid_in(folder / "server.pid"))
        watchdog._end(process, Ending.PAUSE)
        process.close()
    assert server.returncode == -signal.SIGKILL


def test_a_server_ends_with_its_owner_whose_group_was_killed_although_a_fork_keeps_the_pipe(
    folder: Path, command: list[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        fork = int(owner.stdout.readline())
        try:
            pidfd = pidfd_of(pid_in(folder / "server.pid"))
            os.killpg(owner.pid, signal.SIGKILL)
            await_end(pidfd)
            await_removal(folder)
        finally:
            owner.kill()
            os.kill(fork, signal.SIGKILL)


def test_a_server_whose_owner_closes_the_pipe_is_discarded(
    folder: Path, command: list[str], kernel: str
) -> None:
    server = start(folder, command)
    pidfd = pidfd_of(pid_in(folder / "server.pid"))
    assert server._watchdog.stdin is not None
    server._watchdog.stdin.close()
    await_end(pidfd)
    await_removal(folder)
    assert server._watchdog.wait(WITHIN_S) == 0, kernel


@pytest.mark.parametrize("recycled", [False, True])
def test_a_watchdog_that_starts_after_its_owner_has_ended_ends_the_server(
    folder: Path, command: list[str], *, recycled: bool
) -> None:
    reading, writing = os.pipe()  # stays open: another process holds it
    with subprocess.Popen(["sleep", "300"]) as other:
        try:
            pid = other.pid  # alive, but no parent of the watchdog: the owner's pid was recycled
            if not recycled:
                with subprocess.Popen(["true"]) as owner:
                    pid = owner.pid
            script = watchdog._script(pid, "run", str(folder), *command)
            done = subprocess.run(script, stdin=reading, timeout=WITHIN_S, check=False)
        finally:
            other.kill()
            os.close(reading)
            os.close(writing)
    assert done.returncode == 0
    assert not folder.exists()


def test_a_server_dies_with_its_watchdog(folder: Path, command: list[str]) -> None:
    server = start(folder, command)
    pidfd = pidfd_of(pid_in(folder / "server.pid"))
    server._watchdog.kill()
    await_end(pidfd)
    assert folder.exists()
    server.end(Ending.DISCARD)
    assert not folder.exists()


def test_what_a_server_has_started_ends_with_it(folder: Path, command: list[str]) -> None:
    server = start(folder, [*command, "parent"])
    pid_in(folder / "server.pid")
    pidfd = pidfd_of(pid_in(folder / "started.pid"))
    server.end(Ending.DISCARD)
    await_end(pidfd)


def test_a_server_that_ends_by_itself_leaves_its_exit_code_and_its_log(
    folder: Path, command: list[str], kernel: str
) -> None:
    server = start(folder, [*command, "failing"])
    assert server._watchdog.wait(WITHIN_S) == 7, kernel
    assert server.exit_code() == 7
    assert folder.with_name("log").read_text() == "no such thing\n"
    assert folder.exists()
    server.end(Ending.DISCARD)
    assert not folder.exists()


def test_a_process_that_is_not_there_has_ended_even_if_its_pid_is_taken_again() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert watchdog._Process(process.pid, exists=lambda: True).has_ended()


# --- a daemon -------------------------------------------------------------------------------------


def test_a_daemon_ends_in_an_orderly_way_with_its_owner(
    folder: Path, command: list[str], kernel: str
) -> None:
    with subprocess.Popen(["sleep", "300"]) as owner:
        try:
            watchdog.attach(owner.pid, folder / "server.pid")  # before there is a pid file
            daemon = subprocess.Popen([*command, "orderly"], start_new_session=True)
        finally:
            owner.kill()
    assert daemon.wait(WITHIN_S) == 3, kernel
    assert folder.exists()


def test_a_daemon_whose_owner_has_ended_before_ends(folder: Path, command: list[str]) -> None:
    with subprocess.Popen(["true"]) as owner:
        pass
    daemon = subprocess.Popen([*command, "orderly"], start_new_session=True)
    pid_in(folder / "server.pid")
    watchdog.attach(owner.pid, folder / "server.pid")
    assert daemon.wait(WITHIN_S) == 3


def test_a_watchdog_ends_with_its_daemon(folder: Path, command: list[str]) -> None:
    with subprocess.Popen(command) as daemon:
        pid_file = folder / "server.pid"
        pid_in(pid_file)
        watching = threading.Thread(target=watchdog.watch_daemon, args=(os.getpid(), pid_file))
        watching.start()
        daemon.kill()
    watching.join(WITHIN_S)
    assert not watching.is_alive()


def test_a_watchdog_gives_a_daemon_up_that_never_writes_its_pid(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "PID_FILE_TIMEOUT_S", 0.05)
    assert watchdog.watch_daemon(os.getpid(), folder / "server.pid") == 1
