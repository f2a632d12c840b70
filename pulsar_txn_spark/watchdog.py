"""Ends a server when the process that owns it ends, by whatever means.

The watchdog is a process of its own, for one server. It runs this file with the standard library
only, so that it starts in milliseconds::

    python -I -S watchdog.py <owner pid> attach <pid file>
    python -I -S watchdog.py <owner pid> run <folder> <command> ...

``attach`` (:func:`attach`) is for a server that runs as a daemon and writes a pid file. Any process
can be the owner. When it ends, the server gets SIGTERM, later SIGKILL; its data stays.

``run`` (:class:`OwnedServer`) is for a server in the foreground, whose owner is the process that
starts it. When the owner ends, the server gets SIGKILL, and its folder is removed. The watchdog's
standard input is a pipe from the owner; a line on it asks for one of :class:`Ending`.

What happens when a process dies:

======================================  ============================================================
Who dies                                What follows
======================================  ============================================================
the owner, by any signal                the server ends. The kernel tells the watchdog by a pidfd,
                                        also if a forked child of the owner keeps the pipe open
the owner, before the watchdog looks    the same: its pid is gone, or is not the parent's any more
the owner's whole process group         the same: watchdog and server have sessions of their own
the starter of a daemon, before or      the watchdog is started first. It waits for the pid file,
after it has started the daemon         and ends if none appears
the server                              the watchdog ends too: ``run`` with the server's exit code,
                                        and with the folder kept for who wants to read the log
the watchdog of ``run``                 Linux kills the server, not what the server has started.
                                        The folder stays
the watchdog of ``attach``              the server runs on, until somebody stops it
the watchdog, after the server ended    ``run``: the folder stays
and before the folder is removed
======================================  ============================================================

A signal goes to a pidfd, so it cannot hit another process that got the same pid. Without pidfds
(Linux before 5.3, other systems) the watchdog polls, and signals go to pids.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

PID_FILE_TIMEOUT_S = 40.0  # above the 30 s that a daemon may take to start
TERM_TIMEOUT_S = 30.0  # an orderly shutdown that takes longer than this hangs
_REQUEST_TIMEOUT_S = TERM_TIMEOUT_S + 15.0
_POLL_S = 0.25  # only without pidfds
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Ending(enum.Enum):
    """How a server ends, and what becomes of its folder."""

    STOP = "stop"  # orderly shutdown, the folder is removed
    PAUSE = "pause"  # orderly shutdown, the folder stays for a restart
    CRASH = "crash"  # no shutdown at all, the folder stays for a restart
    DISCARD = "discard"  # no shutdown at all, the folder is removed

    @property
    def is_orderly(self) -> bool:
        """Whether the server gets SIGTERM first."""
        return self in {Ending.STOP, Ending.PAUSE}

    @property
    def keeps_folder(self) -> bool:
        """Whether the server's folder stays."""
        return self in {Ending.PAUSE, Ending.CRASH}


# --- for owners ---------------------------------------------------------------------------------


def attach(owner: int, pid_file: Path) -> None:
    """Start a watchdog for a daemon that is about to start, or has just started.

    Parameters
    ----------
    owner : int
        Pid of the process whose end ends the daemon.
    pid_file : Path
        File that the daemon will write its pid to. What an earlier daemon wrote must be gone.
    """
    # A shell in between, so that the watchdog is no child of this process: nobody would reap it.
    subprocess.run(  # noqa: S603 - our own file
        [
            *("sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh"),
            *_script(owner, "attach", str(pid_file)),
        ],
        start_new_session=True,
        check=True,
    )


class OwnedServer:
    """A server in the foreground, with all that it starts; it ends with this process.

    Parameters
    ----------
    command : Iterable of str
        The server's program and its arguments.
    folder : Path
        The server's working directory and data. It is removed with the server.
    log : Path
        Where the output of the server goes, appended.
    environment : Mapping[str, str], optional
        Its environment; by default that of this process.
    """

    def __init__(
        self,
        command: Iterable[str],
        folder: Path,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        with log.open("ab") as output:
            self._watchdog = subprocess.Popen(  # noqa: S603 - our own file and the caller's server
                _script(os.getpid(), "run", str(folder), *command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                # Ctrl-C in a terminal is for the owner: it stops the server.
                start_new_session=True,
            )

    def exit_code(self) -> int | None:
        """Return the exit code of a server that has ended by itself, None while it runs."""
        return self._watchdog.poll()

    def end(self, ending: Ending) -> None:
        """End the server, wait until it is gone, and remove its folder if `ending` says so."""
        assert self._watchdog.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            self._watchdog.stdin.write(f"{ending.value}\n".encode())
            self._watchdog.stdin.close()
        try:
            self._watchdog.wait(_REQUEST_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()  # the server dies with it
            self._watchdog.wait()
        if not ending.keeps_folder:
            shutil.rmtree(self._folder, ignore_errors=True)


def _script(*arguments: object) -> list[str]:
    return [sys.executable, "-I", "-S", __file__, *map(str, arguments)]


def read_pid(pid_file: Path) -> int | None:
    """Wait for a daemon's pid file and return the pid, None if it does not appear."""
    deadline = time.monotonic() + PID_FILE_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            return int(pid_file.read_text())
        except (OSError, ValueError):
            time.sleep(0.01)
    return None


# --- in the watchdog's process ------------------------------------------------------------------


class _Process:
    """A process by its pidfd; without pidfds, by its pid."""

    def __init__(self, pid: int, exists: Callable[[], bool] | None = None) -> None:
        self._pid = pid
        self._exists = exists or self._takes_signals
        self.pidfd: int | None = None
        self._gone = False
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone = True
        except (AttributeError, OSError):  # no Linux, or one before 5.3
            pass

    def has_ended(self) -> bool:
        """Whether it has ended, also if nobody has reaped it yet."""
        if self.pidfd is not None and select.select([self.pidfd], [], [], 0)[0]:
            self._gone = True
        # Both: the pid may already have been another process's when the pidfd was opened.
        return self._gone or not self._exists()

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.pidfd is None:
                os.kill(self._pid, number)
            else:
                signal.pidfd_send_signal(self.pidfd, number)

    def await_end(self, timeout_s: float | None) -> None:
        """Wait until it has ended or the time is over; None = without a bound."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.has_ended():
            remaining_s = None if deadline is None else deadline - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                return
            _await_event([self], [], remaining_s)

    def close(self) -> None:
        """Close the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)

    def _takes_signals(self) -> bool:
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def _await_event(
    processes: Iterable[_Process], pipes: Iterable[int], timeout_s: float | None
) -> list[int]:
    """Wait for the end of a process or for input; return the pipes that can be read."""
    pipes, pidfds = list(pipes), [process.pidfd for process in processes]
    known = [pidfd for pidfd in pidfds if pidfd is not None]
    if len(known) < len(pidfds):
        timeout_s = _POLL_S if timeout_s is None else min(timeout_s, _POLL_S)
    readable, _, _ = select.select([*known, *pipes], [], [], timeout_s)
    return [pipe for pipe in pipes if pipe in readable]


def _await_ending(
    owner: _Process, server: _Process, without_owner: Ending, pipe: int | None
) -> Ending | None:
    """Return how the server is to end, None if it has ended by itself.

    Parameters
    ----------
    owner, server : _Process
        The two processes to watch.
    without_owner : Ending
        What is to happen when the owner ends.
    pipe : int, optional
        File descriptor on which the owner asks for an ending.
    """
    line = b""
    while not server.has_ended():
        if owner.has_ended():
            return without_owner
        for readable in _await_event([owner, server], [] if pipe is None else [pipe], None):
            part = os.read(readable, 64)
            if not part:
                return without_owner
            line += part
            if line.endswith(b"\n"):
                return Ending(line.decode().strip())
    return None


def _end(server: _Process, ending: Ending) -> None:
    if ending.is_orderly:
        server.send(signal.SIGTERM)
        server.await_end(TERM_TIMEOUT_S)
    server.send(signal.SIGKILL)
    server.await_end(None)


def watch_daemon(owner_pid: int, pid_file: Path) -> int:
    """Watch a daemon until it or its owner ends."""
    server_pid = read_pid(pid_file)
    if server_pid is None:
        return 1
    owner, server = _Process(owner_pid), _Process(server_pid)
    with contextlib.closing(owner), contextlib.closing(server):
        ending = _await_ending(owner, server, Ending.PAUSE, None)
        if ending is not None:
            _end(server, ending)
    return 0


def run_server(owner_pid: int, folder: str, command: list[str]) -> int:
    """Run a server until it or its owner ends, or until the owner asks for it."""
    owner = _Process(owner_pid, lambda: os.getppid() == owner_pid)
    watchdog_pid = os.getpid()
    child = subprocess.Popen(  # noqa: S603 - the owner's own command
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: _die_with(watchdog_pid),  # noqa: PLW1509 - there are no threads here
    )
    # WNOWAIT: the pid stays the child's, and that of its process group, until it is reaped below.
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    server = _Process(child.pid, lambda: os.waitid(os.P_PID, child.pid, flags) is None)
    with contextlib.closing(owner), contextlib.closing(server):
        ending = _await_ending(owner, server, Ending.DISCARD, sys.stdin.fileno())
        if ending is not None:
            _end(server, ending)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what the server has started and left behind
    exit_code = child.wait()
    if ending is None:
        return exit_code
    if not ending.keeps_folder:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends; elsewhere the pipe has to do."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - not needed on other platforms

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was asked
            os._exit(1)


def main(arguments: list[str]) -> int:
    """Watch one server, as the arguments say."""
    owner, mode, place, *command = arguments
    if mode == "attach":
        return watch_daemon(int(owner), Path(place))
    return run_server(int(owner), place, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
