"""Which partition of an ordinary topic a row goes to: as Pulsar's clients for the JVM and Go do.

A key's hash is that of a string in Java: over its UTF-16 code units, ``h = 31 * h + unit``, in 32
bits. A key that is no text is hashed as its base64, which is how Pulsar sends it.
"""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_FACTOR = np.uint32(31)
_POSITIVE = np.uint32(0x7FFFFFFF)
_HIGH_BIT = 0x80

Partitions = npt.NDArray[np.int64]


def partitions_of(keys: pa.Array | None, count: int, partitions: int, keyless: int) -> Partitions:
    """Return each row's partition.

    Parameters
    ----------
    keys : pyarrow.Array of binary, optional
    count : int
        How many rows there are.
    partitions : int
        How many partitions the topic has, at least 1.
    keyless : int
        Partition of the rows without a key.
    """
    chosen = np.full(count, keyless % partitions, np.int64)
    if keys is None or partitions == 1:
        return chosen
    valid = keys.is_valid().to_numpy(zero_copy_only=False)
    hashes = java_hashes(keys.drop_null())
    chosen[valid] = (hashes & _POSITIVE).astype(np.int64) % partitions
    return chosen


def java_hashes(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the hash of each key, none of them null."""
    count = len(keys)
    hashes = np.zeros(count, np.uint32)
    if not count:
        return hashes
    keys = keys.cast(pa.large_binary())
    offsets = np.frombuffer(keys.buffers()[1], np.int64, count + 1, keys.offset * 8)
    content = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    if (content[offsets[0] : offsets[-1]] >= _HIGH_BIT).any():
        return np.array([_of_key(key) for key in keys.to_pylist()], np.uint32)
    lengths = np.diff(offsets)
    # The longest first: what still has a letter left is a slice from the beginning.
    order = np.argsort(-lengths, kind="stable")
    starts, sorted_lengths = offsets[:-1][order], lengths[order]
    mixed = np.zeros(count, np.uint32)
    for at in range(int(sorted_lengths[0])):
        left = int(np.searchsorted(-sorted_lengths, -at, side="left"))
        mixed[:left] = mixed[:left] * _FACTOR + content[starts[:left] + at]
    hashes[order] = mixed
    return hashes


def _of_key(key: bytes) -> int:
    try:
        units = key.decode().encode("utf-16-be")
    except UnicodeDecodeError:
        units = base64.b64encode(key).decode().encode("utf-16-be")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return code
