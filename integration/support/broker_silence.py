"""What a broker that answers nobody any more was doing: the stacks of its JVM's threads.

A test that waits for such a broker fails by its time limit, and says nothing about the reason.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import urllib3

LONGEST_S = 120.0  # a busy machine takes no longer for an answer
_REQUEST_S = 30.0
_DUMP_S = 20.0
_POLL_S = 0.1
DUMP_BEGINS, _DUMP_ENDS = "Full thread dump", "JNI global ref"


class Silence:
    """How long a broker has not answered.

    Parameters
    ----------
    answers : callable
        Asks it once.
    clock : callable
        Returns a time in seconds that never goes back.
    """

    def __init__(
        self, answers: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._answers = answers
        self._clock = clock
        self._answered = clock()

    def is_too_long(self) -> bool:
        """Ask once more, and tell whether the last answer is too long ago."""
        if self._answers():
            self._answered = self._clock()
        return self._clock() - self._answered > LONGEST_S


def answers(admin_url: str) -> bool:
    """Tell whether the admin API of a broker answers, whatever it says."""
    with urllib3.PoolManager(retries=False, timeout=_REQUEST_S) as pool:
        try:
            pool.request("GET", f"{admin_url}/admin/v2/clusters")
        except urllib3.exceptions.HTTPError:
            return False
        return True


def keep_threads(target: Path, starter: psutil.Process) -> None:
    """Let the broker that a process has started print its threads, and keep the log.

    Parameters
    ----------
    target : Path
        Gets the whole log, at the end of which the threads are.
    starter : psutil.Process
        Has started no other broker.
    """
    for process in starter.children(recursive=True):
        log = Path(process.cwd()) / "broker.log"
        if process.name() != "java" or not log.exists():
            continue
        begins = log.stat().st_size
        process.send_signal(signal.SIGQUIT)
        deadline = time.monotonic() + _DUMP_S
        while _DUMP_ENDS not in _text(log)[begins:] and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        part = target.with_suffix(".part")
        shutil.copy(log, part)
        part.rename(target)  # all of it at once


def found_silent(kept: Path) -> str | None:
    """Return what was kept of a broker's threads, to one who asks; None if nothing was."""
    try:
        mine = kept.rename(kept.with_suffix(".told"))
    except FileNotFoundError:
        return None
    log = _text(mine)
    return (
        f"the broker answered nobody for {LONGEST_S:.0f} s; its log is {mine}\n"
        + log[max(log.rfind(DUMP_BEGINS), 0) :]
    )


def _text(log: Path) -> str:
    return log.read_text(encoding="latin-1")  # as many characters as bytes
