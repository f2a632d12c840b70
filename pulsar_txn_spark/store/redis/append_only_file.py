"""The two forms of the append-only file in the folder of an embedded server.

Redis 6.2 appends to one file. Redis 7 and newer and Valkey keep parts in a folder, with a manifest
that names them (``aof.c`` of Redis). They take over a single file when they find one, and
there is no way back. A server looks for its own form only, and starts empty without it.
"""

from __future__ import annotations

import re
from pathlib import Path

from pulsar_txn_spark.errors import StoreUnavailableError

PARTS_FOLDER = "appendonlydir"
_SINGLE = "appendonly.aof"
_MANIFEST = f"{_SINGLE}.manifest"
_FIRST_BASE, _FIRST_TAIL = f"{_SINGLE}.1.base.rdb", f"{_SINGLE}.1.incr.aof"
# The first of the fields with which a snapshot begins (``rdb.c``): name, length, value.
_WRITER = re.compile(rb"\xfa.(redis|valkey)-ver.([0-9.]+)", re.DOTALL)
_WRITER_WITHIN_BYTES = 64


def is_in_parts(folder: Path) -> bool:
    """Tell whether a folder, which no server uses now, has its data in parts.

    Raises
    ------
    StoreUnavailableError
        If every server would ignore some of the data.
    """
    parts_folder = folder / PARTS_FOLDER
    names = {path.name for path in parts_folder.glob(f"{_SINGLE}*")}
    parts = names - {_MANIFEST}
    if _MANIFEST not in names:
        if not parts or _is_of_a_first_start(parts_folder, parts):
            return False
        raise StoreUnavailableError(
            f"The folder {parts_folder} of the embedded store has parts of an append-only file "
            f"({', '.join(sorted(parts))}), but no {_MANIFEST}. A server would start empty. "
            "Restore the whole folder from a copy."
        )
    single = folder / _SINGLE
    # A server that dies while it takes over a single file leaves a manifest, and no part yet.
    if parts and single.exists() and single.stat().st_size > 0:
        raise StoreUnavailableError(
            f"The folder {folder} of the embedded store holds two sets of data: {single.name}, "
            f"which Redis 6.2 wrote, and {PARTS_FOLDER}, which a newer server wrote. A server "
            "would read one and ignore the other. Find out which one your queries wrote to last, "
            "and move the other one out of the folder."
        )
    return True


def writer_of(folder: Path) -> str | None:
    """Return what wrote the base of the parts, such as ``valkey 9.1.2``; None = it is not said."""
    bases = (folder / PARTS_FOLDER).glob(f"{_SINGLE}.*.base.rdb")
    # A rewrite numbers them upwards, and deletes the one before.
    for base in sorted(bases, key=lambda path: int(path.name.split(".")[2]), reverse=True):
        with base.open("rb") as snapshot:
            said = _WRITER.search(snapshot.read(_WRITER_WITHIN_BYTES))
        return b" ".join(said.groups()).decode() if said else None
    return None


def _is_of_a_first_start(parts_folder: Path, parts: set[str]) -> bool:
    """Tell whether these are what a server leaves that dies before its first manifest."""
    if not parts <= {_FIRST_BASE, _FIRST_TAIL}:
        return False
    tail = parts_folder / _FIRST_TAIL
    return not tail.exists() or tail.stat().st_size == 0
