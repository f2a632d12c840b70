"""A lock that no fork finds held."""

from __future__ import annotations

import os
import threading


class ProcessLock:
    """A lock of one process: in a fork it is free, whichever thread of the parent had it.

    That thread is not there, so that nobody would ever release it. Use it as a context manager.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
