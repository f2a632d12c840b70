"""Runs one server process that must not outlive the process that asked for it.

Run as a file (``python -I supervisor.py <folder> <command> ...``) with only the standard library,
so that it starts in milliseconds. Its standard input is a pipe whose other end only the asking
process has open. When that process ends, by whatever means, the pipe closes, the server is killed
and its folder is removed. A line on the pipe asks for one of :data:`REQUESTS` instead.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys

REQUESTS = {
    "stop": (signal.SIGTERM, False),  # orderly shutdown, then remove the folder
    "pause": (signal.SIGTERM, True),  # orderly shutdown, keep the folder for a restart
    "crash": (signal.SIGKILL, True),  # no shutdown at all, keep the folder for a restart
    "discard": (signal.SIGKILL, False),  # no shutdown at all, remove the folder
}
"""Request -> (signal to the server, whether the folder is kept)."""

_POLL_SECONDS = 0.25  # bound on how late an exit of the server or of the parent is noticed
_TERM_SECONDS = 30.0  # an orderly shutdown that takes longer than this is hung
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends; elsewhere the pipe has to do."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - not needed on other platforms

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _await_request(server: subprocess.Popen[bytes], parent: int) -> str | None:
    """Return the request that came, or None when the server ended by itself."""
    line = b""
    while server.poll() is None:
        # A forked child of the parent may still hold the pipe open: then getppid tells.
        if os.getppid() != parent:
            return "discard"
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if not readable:
            continue
        chunk = os.read(0, 64)
        if not chunk:
            return "discard"
        line += chunk
        if line.endswith(b"\n"):
            return line.decode().strip()
    return None


def main(folder: str, command: list[str]) -> int:
    """Run `command` until it ends, a request comes, or the parent is gone."""
    parent = os.getppid()
    server = subprocess.Popen(  # noqa: S603 - the command comes from this package
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - there are no threads here
    )
    request = _await_request(server, parent)
    if request is None:
        return server.returncode
    how, keep = REQUESTS[request]
    server.send_signal(how)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(_TERM_SECONDS)
    server.kill()
    server.wait()
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
