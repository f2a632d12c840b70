"""Where a segment has to be cut so that both halves get as many rows."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from pulsar_txn_spark.segments.log import SegmentLog
from pulsar_txn_spark.segments.topology import Segment, hash_of

_SAMPLE_BYTES = 4 * 1024 * 1024
"""What is looked at: the last rows, as the load of long ago says little about the one to come."""


def recent_hashes(log: SegmentLog, segment: Segment) -> dict[int, int]:
    """Count the hashes of the keys that were written last; rows without a key do not count.

    Nor do rows with a key of another segment, which clients that know no segments have written: no
    cut moves them. Rows of transactions that aborted or are open count where the log shows them:
    they are load all the same.
    """
    start, end = log.trimmed_to(segment.ref), log.deliverable_end(segment.ref)
    if start >= end:
        return {}
    parts = max(1, log.measure(segment.ref, start, end).bytes // _SAMPLE_BYTES)
    ends = log.split(segment.ref, start, end, parts)
    first = ends[-2] if len(ends) > 1 else start
    weights: dict[int, int] = {}
    batches = log.read(
        segment.ref,
        first,
        end,
        visible=lambda _writer, _position: True,
        columns=frozenset({"key"}),
        max_rows=16_384,
    )
    for batch in batches:
        for item in pc.value_counts(batch.column("key").drop_null()).to_pylist():
            at = hash_of(item["values"])
            if segment.hash_start <= at <= segment.hash_end:
                weights[at] = weights.get(at, 0) + item["counts"]
    return weights


def cut_by_load(log: SegmentLog, segment: Segment) -> int | None:
    """Return the first hash of the second half, by the keys that were written last.

    None if no row has a key, or all of them have the same hash, so that no cut can share them out.
    """
    weights = recent_hashes(log, segment)
    if len(weights) < 2:  # noqa: PLR2004
        return None
    hashes = np.array(sorted(weights), dtype=np.int64)
    below = np.cumsum([weights[h] for h in hashes.tolist()])
    # Rows below each possible cut, which is the hash of any but the first key.
    best = int(np.argmin(np.abs(2 * below[:-1] - below[-1])))
    return int(hashes[best + 1])
