"""The rows that every benchmark moves: keyed messages of 100 bytes, the same in every run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

PROCESSES = 2
"""Spark runs on so many cores, and everything that it is compared with in so many processes."""
SEGMENTS = 4
"""Segments of every topic."""
VALUE_BYTES = 100
DISTINCT_KEYS = 10_000
BATCH_ROWS = 10_000  # as in Spark's own Arrow batches
_KEY = b"key-%08d"
_SEED = 20_260_101


def write_input(folder: Path, rows: int) -> list[Path]:
    """Write the input as one Parquet file for each process and return their paths.

    Parameters
    ----------
    folder : Path
        Created if it is not there; holds nothing else, so that Spark can read it as a stream.
    rows : int
        How many in all the files together.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(_SEED)
    names = pa.array([_KEY % number for number in range(DISTINCT_KEYS)], pa.binary())
    paths = []
    for part in range(PROCESSES):
        count = rows * (part + 1) // PROCESSES - rows * part // PROCESSES
        letters = random.integers(ord("a"), ord("z") + 1, count * VALUE_BYTES, dtype=np.uint8)
        offsets = np.arange(count + 1, dtype=np.int32) * VALUE_BYTES
        values = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
        )
        keys = names.take(pa.array(random.integers(0, DISTINCT_KEYS, count)))
        paths.append(folder / f"part-{part}.parquet")
        table = pa.table({"value": values, "__key": keys})
        # Decoding random letters from a dictionary would only cost time.
        parquet.write_table(table, paths[-1], compression="NONE", use_dictionary=["__key"])
    return paths


@cache
def load(path: str) -> pa.Table:
    """Read one process's part into memory; idempotent."""
    return parquet.read_table(path).rename_columns(["value", "key"]).combine_chunks()
