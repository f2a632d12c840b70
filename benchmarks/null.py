"""A source and a sink that do nothing, in the shape of ours: what Spark itself costs.

The source takes the options `rows`, `size` (bytes of a value), `path` and `spare`.
"""

# ruff: noqa: ARG002 - Spark calls with all parameters
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from benchmarks.data import BATCH_ROWS, SEGMENTS, VALUE_BYTES
from pulsar_txn_spark.spark.context import freeze_loaded_modules

FORMAT = "null_of_benchmarks"
SCHEMA = "value BINARY, __key BINARY"
_BATCH_BYTES = 1 << 20  # of values, as an entry of ours has at most
_ARROW = pa.schema([("value", pa.binary()), ("__key", pa.binary())])


@dataclass(frozen=True)
class Rows(InputPartition):
    """So many constant rows."""

    rows: int


class _Done(WriterCommitMessage):
    pass


class NullDataSource(DataSource):
    """``format("null_of_benchmarks")``; its stream advances when :func:`push` says so."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns that a user of ours would read."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of `rows` constant rows."""
        return _Reader(int(self.options["rows"]), int(self.options.get("size", VALUE_BYTES)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream of what was pushed to the file `path`, each row `rows` times."""
        times = int(self.options.get("rows", 1))
        return _StreamReader(self.options["path"], times, spare=self._spare)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return a writer that drops everything."""
        return _Writer()

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """Return a writer that drops everything."""
        return _StreamWriter(spare=self._spare)

    @property
    def _spare(self) -> bool:
        return self.options.get("spare", "false").lower() == "true"


def push(path: Path, partitions: int, rows: int) -> None:
    """Let the stream advance by a micro-batch of `partitions` tasks, with `rows` rows each."""
    with path.open("ab", buffering=0) as file:
        file.write(bytes((partitions, rows)))


def _constant(rows: int, size: int = VALUE_BYTES) -> Iterator[pa.RecordBatch]:
    at_once = min(BATCH_ROWS, max(1, _BATCH_BYTES // size))
    full = pa.record_batch(
        [pa.array([b"v" * size] * at_once), pa.array([b"key-00000000"] * at_once)],
        schema=_ARROW,
    )
    for start in range(0, rows, at_once):
        yield full.slice(0, min(at_once, rows - start))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size

    def partitions(self) -> Sequence[InputPartition]:
        return [Rows(self._rows // SEGMENTS) for _ in range(SEGMENTS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        return _constant(partition.rows, self._size)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, path: str, times: int, *, spare: bool) -> None:
        self._path, self._times, self._spare = path, times, spare

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return {"at": os.stat(self._path).st_size}  # noqa: PTH116 - the cheapest there is

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pushed = Path(self._path).read_bytes()[start["at"] : end["at"]]
        steps = zip(pushed[::2], pushed[1::2], strict=True)
        return [Rows(rows * self._times) for tasks, rows in steps for _ in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        if self._spare:
            freeze_loaded_modules("null read")
        return _constant(partition.rows)


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return _Done()


class _StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, *, spare: bool) -> None:
        self._spare = spare
        if spare:
            freeze_loaded_modules("null plan or commit")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._spare:
            freeze_loaded_modules("null write")
        for _ in iterator:
            pass
        return _Done()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass
