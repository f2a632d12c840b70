"""A fingerprint of the rows that a task consumes: equal for equal rows, in whatever order.

Each row is hashed to 64 bits, and the hashes are added up modulo 2**64. So neither the order of
the rows nor their distribution over tasks matters, and a row that occurs twice counts twice. The
hash separates rows that differ by chance; it is not collision-resistant.
"""

from __future__ import annotations

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_txn_spark.spark.rows import to_row_batch, topics_of

_Hashes = npt.NDArray[np.uint64]

MODULUS = 1 << 64
_WORD = 8
_LONG_ROW = 256  # from here on, one call for each row costs less than a pass for each word
_PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_SALTS = {
    name: np.uint64(0x9E3779B97F4A7C15 * number % MODULUS)
    for number, name in enumerate(("value", "key", "event_time_ms", "properties", "topic"), 1)
}
_ABSENT = np.uint64(0x5851F42D4C957F2D)
# The last word of a row is cut to the bytes that are the row's.
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(_WORD + 1)], dtype=np.uint64)


class InputRows:
    """Counts the rows that a task consumes.

    Parameters
    ----------
    fingerprint : bool
        Whether to make a fingerprint of them as well.
    """

    def __init__(self, *, fingerprint: bool) -> None:
        self.count = 0
        self.fingerprint: int | None = 0 if fingerprint else None

    def add(self, rows: pa.RecordBatch, topics: pa.Array | None) -> None:
        """Count a row batch that is written; `topics` are those that the rows name."""
        self.count += rows.num_rows
        if self.fingerprint is not None:
            self.fingerprint = (self.fingerprint + fingerprint_of(rows, topics)) % MODULUS

    def skip(self, batch: pa.RecordBatch) -> None:
        """Count a batch of Spark's that is not written."""
        if self.fingerprint is None or not batch.num_rows:
            self.count += batch.num_rows
        else:
            self.add(to_row_batch(batch), topics_of(batch))


def fingerprint_of(rows: pa.RecordBatch, topics: pa.Array | None = None) -> int:
    """Return the sum of the hashes of all rows.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
        A row batch of the segment log.
    topics : pyarrow.Array of string, optional
        The topic of each row, if the rows name theirs.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    if topics is not None:
        columns["topic"] = topics.cast(pa.binary())
    total = np.zeros(rows.num_rows, dtype=np.uint64)
    for name, column in columns.items():
        hashes = _final(_hashes(column) + _SALTS[name])
        if column.null_count:
            # A value that is not there leaves the row's hash as if there were no such column.
            hashes[column.is_null().to_numpy(zero_copy_only=False)] = 0
        total += hashes
    return int(_final(total).sum(dtype=np.uint64))


def _hashes(column: pa.Array) -> _Hashes:
    if pa.types.is_map(column.type):
        return _of_maps(column)
    if pa.types.is_integer(column.type):
        numbers: npt.NDArray[np.int64] = column.fill_null(0).to_numpy(zero_copy_only=False)
        return _final(numbers.astype(np.int64).view(np.uint64) + _PRIME)
    return _of_bytes(column.cast(pa.binary()))


def _of_maps(column: pa.Array) -> _Hashes:
    """Add up the hashes of a map's pairs: their order has no meaning."""
    bounds = column.offsets.to_numpy()
    first, last = int(bounds[0]), int(bounds[-1])
    values = column.items.slice(first, last - first)
    hashes = _hashes(values)
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = _ABSENT
    pairs = _final(_hashes(column.keys.slice(first, last - first)) * _MIX_2 + hashes)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(pairs, dtype=np.uint64)])
    row_sums: _Hashes = sums[bounds[1:] - first] - sums[bounds[:-1] - first]
    return row_sums


def _of_bytes(column: pa.Array) -> _Hashes:
    """Hash each value, eight bytes of all values at a time."""
    _, offsets, content = column.buffers()
    count = len(column)
    if count == 0:
        return np.zeros(0, dtype=np.uint64)
    bounds = np.frombuffer(offsets, np.int32, count + 1, column.offset * 4).astype(np.int64)
    first, last = int(bounds[0]), int(bounds[-1])
    padded = np.zeros(last - first + _WORD, dtype=np.uint8)
    if last > first:
        padded[: last - first] = np.frombuffer(content, np.uint8, last - first, first)
    # The word that begins at each byte.
    words: npt.NDArray[np.uint64] = np.ndarray(
        (last - first + 1,), dtype="<u8", buffer=padded, strides=(1,)
    )
    starts, lengths = bounds[:-1] - first, np.diff(bounds)
    hashes = _final(lengths.astype(np.uint64) * _PRIME)
    long = np.flatnonzero(lengths > _LONG_ROW)
    for row in long.tolist():
        bytes_of_row = padded[starts[row] : starts[row] + lengths[row]].tobytes()
        hashes[row] ^= np.uint64(mmh3.hash64(bytes_of_row, signed=False)[0])
    rest = lengths.copy()
    rest[long] = 0
    # The longest first: what still has a word left is then always a slice from the beginning.
    order = np.argsort((_LONG_ROW - rest).astype(np.uint16), kind="stable")
    starts, rest, mixed = starts[order], rest[order], hashes[order]
    for done in range(0, int(rest[0]), _WORD):
        left = int(np.searchsorted(-rest, -done, side="left"))
        whole = int(np.searchsorted(-rest, -(done + _WORD), side="right"))
        block = words[starts[:left] + done]
        block[whole:] &= _MASKS[rest[whole:left] - done]
        part = mixed[:left]
        part ^= block
        part *= _MIX_1
        part ^= part >> _HALF
    hashes[order] = mixed
    return hashes


def _final(hashes: _Hashes) -> _Hashes:
    mixed = (hashes ^ (hashes >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))
