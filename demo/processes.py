"""Starts the demo's processes, follows their reports, and leaves none of them behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.steps import FAULT, FAULT_FILE

_LOG_TAIL_LINES = 30
_SILENCE_SECONDS = 240.0  # the longest way to a report is Spark's start; 10 s on an idle machine
_REAP_SECONDS = 10.0  # a killed process is gone in milliseconds; a JVM with 1 GiB in a second
_OWN_ERROR = re.compile(r"\s*pulsar_txn_spark\.errors\.\w+: ")


class DemoProcessError(PulsarTxnError):
    """A process of the demo ended otherwise than it should have."""


class Child:
    """One process of the demo, in a session of its own, with all that it starts.

    Parameters
    ----------
    module : str
        Full name of the module to run.
    settings : Path
        The file of settings.
    log : Path
        Where its standard error goes, and that of its JVM and its Python workers.
    fault : str, optional
        Where it is to be killed, as :data:`~pulsar_txn_spark.steps.FAULT` has it.
    fault_file : Path, optional
        Prefix of the fault's marker.
    """

    def __init__(
        self,
        module: str,
        settings: Path,
        log: Path,
        *,
        fault: str | None = None,
        fault_file: Path | None = None,
    ) -> None:
        self._module = module
        self._log = log
        self._silent = False
        self._gone = False
        with log.open("ab") as errors:
            errors.write(f"--- {module} {fault or ''}\n".encode())
            errors.flush()
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(settings)],
                stdin=subprocess.PIPE,  # the leash, see child.py
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(settings.parent, fault, fault_file),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def events(self, until: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield its reports until it ends, or up to the one that `until` names.

        Raises
        ------
        DemoProcessError
            If it reports nothing for so long that it must be stuck.
        """
        while True:
            line = self._next_line()
            if not line:
                return
            # Anything else is Spark's own talk.
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    yield event
                    if event["event"] == until:
                        return

    def _next_line(self) -> bytes:
        assert self._process.stdout is not None
        watchdog = threading.Timer(_SILENCE_SECONDS, self._give_up)
        watchdog.daemon = True
        try:
            watchdog.start()
            line: bytes = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if self._silent:
            raise DemoProcessError(
                self.failure(f"reported nothing for {_SILENCE_SECONDS:.0f} s and was given up")
            )
        return line

    def _give_up(self) -> None:
        self._silent = True
        self.kill()

    def tell(self) -> None:
        """Let it go on, where it waits to be told."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone: its exit code says so
            self._process.stdin.write(b".")
            self._process.stdin.flush()

    def wait(self) -> int:
        """Return the exit code; negative is a signal."""
        return self._process.wait()

    def expect_success(self) -> None:
        """Wait for the end.

        Raises
        ------
        DemoProcessError
            If it did not end well; with the end of its log.
        """
        code = self.wait()
        if code:
            raise DemoProcessError(self.failure(f"ended with {_describe(code)}, expected success"))

    def failure(self, what: str) -> str:
        """Word a failure, with this package's own errors and the end of the log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        # Spark puts pages of query plans after what went wrong.
        errors = dict.fromkeys(line.strip() for line in lines if _OWN_ERROR.match(line))
        tail = [*errors, *lines[-_LOG_TAIL_LINES:]]
        shown = "\n".join(f"    {line}" for line in tail)
        return f"the process '{self._module}' {what}. From {self._log}:\n{shown}"

    def kill(self) -> None:
        """Kill what is left of its session (JVM, Python workers) and wait until it is gone."""
        if self._gone:
            return  # its number may be another session's by now
        session = self._process.pid
        # Spark's Python workers have process groups of their own; the session they share.
        deadline = time.monotonic() + _REAP_SECONDS
        while left := _members(session):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise DemoProcessError(f"processes {left} are still there after a SIGKILL")
            time.sleep(0.02)  # there is no event for the end of somebody else's child
        self._gone = True
        self._process.wait()


def _environment(folder: Path, fault: str | None, fault_file: Path | None) -> Mapping[str, str]:
    environment = {
        **os.environ,
        "TMPDIR": str(folder),  # what is killed leaves its temporary files behind
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for name in (FAULT, FAULT_FILE):
        environment.pop(name, None)
    if fault is not None:
        environment[FAULT] = fault
        environment[FAULT_FILE] = str(fault_file)
    return environment


def _members(session: int) -> list[int]:
    """Return the living processes of a session (zombies hold nothing and do not count)."""
    members = []
    for pid, state in _processes():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not state.startswith("Z") and os.getsid(pid) == session:
                members.append(pid)
    return members


def _processes() -> Iterator[tuple[int, str]]:
    """Yield pid and state of every process."""
    if not Path("/proc/self/stat").exists():  # no Linux
        listed = subprocess.run(
            ["/bin/ps", "-A", "-o", "pid=,stat="], capture_output=True, check=True
        )
        for line in listed.stdout.decode().splitlines():
            pid, state = line.split(maxsplit=1)
            yield int(pid), state
        return
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                # "pid (name) state ...": a name may itself hold a parenthesis.
                yield int(folder.name), (folder / "stat").read_text().rpartition(")")[2].lstrip()


def _describe(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
