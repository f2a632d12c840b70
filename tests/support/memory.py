"""Where the files of the tests may lie, so that no test waits for a disk."""

from __future__ import annotations

import os
from pathlib import Path


def in_memory(folder: Path, needed_bytes: int) -> bool:
    """Say whether a folder can take the files of the tests.

    It has the space, can be written, and programs run from there: wheels are installed, and the
    brokers unpack libraries.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return (
        not found.f_flag & os.ST_NOEXEC
        and found.f_bavail * found.f_frsize >= needed_bytes
        and os.access(folder, os.W_OK | os.X_OK)
    )
