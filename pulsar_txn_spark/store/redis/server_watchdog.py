"""Stop an embedded server when the process that owns it ends (a test run, a short-lived tool).

Run as a script, with the standard library only: ``watch.py <owner pid> <pid file of the server>``.
It lives in a session of its own, so that it also survives what kills its owner's whole group.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

PID_FILE_TIMEOUT_S = 10.0  # the server writes it some milliseconds after it was launched
STOP_TIMEOUT_MS = 10_000  # redis-server ends on SIGTERM once it has flushed its append-only file
POLL_S = 0.5  # only where the system has no pidfd (anything but Linux)


def read_pid(pid_file: Path) -> int | None:
    """Wait for the server's pid file and return the pid, None if it never shows up."""
    deadline = time.monotonic() + PID_FILE_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            return int(pid_file.read_text())
        except (OSError, ValueError):
            time.sleep(0.01)
    return None


def watch(owner: int, server: int) -> None:
    """Wait until one of the two ends; stop the server if it was the owner."""
    try:
        server_fd = os.pidfd_open(server)
    except ProcessLookupError:
        return
    try:
        owner_fd = os.pidfd_open(owner)
    except ProcessLookupError:
        owner_fd = None
    if owner_fd is not None:
        poll = select.poll()
        poll.register(owner_fd, select.POLLIN)
        poll.register(server_fd, select.POLLIN)
        if any(fd == server_fd for fd, _ in poll.poll()):
            return
    # Signals go by pidfd: a recycled pid can never be hit.
    signal.pidfd_send_signal(server_fd, signal.SIGTERM)
    stopped = select.poll()
    stopped.register(server_fd, select.POLLIN)
    if not stopped.poll(STOP_TIMEOUT_MS):
        signal.pidfd_send_signal(server_fd, signal.SIGKILL)


def watch_by_polling(owner: int, server: int) -> None:
    """Do the same where there is no pidfd."""
    while _alive(owner):
        if not _alive(server):
            return
        time.sleep(POLL_S)
    os.kill(server, signal.SIGTERM)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main() -> None:
    """Read the arguments and watch."""
    owner, pid_file = int(sys.argv[1]), Path(sys.argv[2])
    server = read_pid(pid_file)
    if server is None:
        return
    if hasattr(os, "pidfd_open"):
        watch(owner, server)
    else:
        watch_by_polling(owner, server)


if __name__ == "__main__":
    main()
