"""A process of a side's own, which is asked in lines of JSON and answers so."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import SideError

_ANSWER = "answer "
_ANSWER_SECONDS = 600.0  # what takes longer hangs
_END_SECONDS = 20.0


class OwnProcess:
    """Starts when it is first asked for something, and anew after it died; a context manager.

    Parameters
    ----------
    command : sequence of str
        Reads a line of JSON for each question, and writes one that begins with ``answer``.
    environment : mapping of str to str, optional
        By default that of this process.
    error : type of SideError
        Raised where the process fails or dies.
    folder : Path, optional
        Where it runs; by default where this process does.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        error: type[SideError] = SideError,
        folder: Path | None = None,
    ) -> None:
        self._command = list(command)
        self._environment = None if environment is None else dict(environment)
        self._error = error
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, do: str, **parameters: object) -> dict[str, Any]:
        """Let it do something and return its answer.

        Raises
        ------
        SideError
            If it fails.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=self._environment,
                cwd=self._folder,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(_ANSWER_SECONDS, process.kill)
        limit.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps({"do": do, **parameters}) + "\n")
                process.stdin.flush()
            for line in process.stdout:
                if line.startswith(_ANSWER):
                    answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
                    if "error" in answer:
                        raise self._error(f"{do} failed: {answer['error']}")
                    return answer
        finally:
            limit.cancel()
        self.close()
        raise self._error(f"{do} failed: its process has ended, or gave no answer for too long")

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # the end of its input is its end
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
