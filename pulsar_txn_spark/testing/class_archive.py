"""Archives of the classes that short-lived JVMs load (JEP 350, "dynamic class-data sharing").

Half of what a JVM that lives for seconds takes of a processor goes into loading and verifying
classes. So one JVM writes those that it has loaded into a file, from which the others take them. A
JVM takes nothing from a file that does not fit its version or its class path.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pulsar_txn_spark.errors import PulsarTxnError

_RETRY_SECONDS = 24 * 3600.0  # a machine that was too busy is not so for ever
_QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")  # a file that does not fit is no error


def shared_classes(
    folder: Path, name: str, made_of: Sequence[str], load: Callable[[Sequence[str]], None]
) -> tuple[str, ...]:
    """Return the JVM options by which classes come from an archive, which is made once.

    Parameters
    ----------
    folder : Path
        Where archives are kept. Processes that ask for the same one wait for each other.
    name : str
        Of the archive; it replaces those of the same name that are made of something else.
    made_of : Sequence of str
        What an archive depends on, such as the version of Java and the class path.
    load : Callable
        Runs a JVM with the options that it is given. The JVM has to end by itself, and a failure
        raises :class:`OSError`, :class:`subprocess.SubprocessError` or :class:`PulsarTxnError`.

    Returns
    -------
    tuple of str
        Empty where no archive can be made. The reason is shown and kept, and for a day it is not
        tried again.
    """
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    archive, failure = folder / f"{name}-{key}.jsa", folder / f"{name}-{key}.failure"
    try:
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not archive.exists() and not _is_recent(failure):
                for old in folder.glob(f"{name}-*"):
                    old.unlink()
                _make(archive, failure, load)
    except (OSError, subprocess.SubprocessError, PulsarTxnError) as error:
        text = f"No archive of classes for {name}, so that JVMs start slower: {error}"
        print(text, file=sys.stderr)  # noqa: T201 - no test fails for it
    return (*_QUIET, f"-XX:SharedArchiveFile={archive}") if archive.exists() else ()


def _is_recent(failure: Path) -> bool:
    return failure.exists() and time.time() - failure.stat().st_mtime < _RETRY_SECONDS


def _make(archive: Path, failure: Path, load: Callable[[Sequence[str]], None]) -> None:
    part = archive.with_suffix(".part")
    try:
        load((*_QUIET, f"-XX:ArchiveClassesAtExit={part}"))
        part.rename(archive)  # all of it at once
    except Exception as error:
        failure.write_text(str(error))
        raise
