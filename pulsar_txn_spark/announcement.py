"""What a user has to hear whatever the level of the logs: once, on standard error.

PySpark shows no log below WARNING of its workers' Python, and what they print on standard error
arrives at the driver's.
"""

from __future__ import annotations

import contextlib
import sys

_announced: set[str] = set()


def announce(text: str) -> None:
    """Print a line on standard error, once in this process, if it can be written."""
    if sys.stderr is not None and text not in _announced:  # None, if it is closed
        _announced.add(text)
        with contextlib.suppress(OSError):  # the reader has gone, or a disk is full
            print(f"pulsar_txn: {text}", file=sys.stderr, flush=True)  # noqa: T201 — what it is for
