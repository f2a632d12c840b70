"""The segment logs alone, without Spark and without transactions: what a backend can give."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.data import BATCH_ROWS, VALUE_BYTES, load
from benchmarks.place import Place
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Router, Topology
from pulsar_txn_spark.txn.transaction_buffer import Visibility

_MAX_ROWS = 16_384
_LONGEST = 1 << 30  # without an end, Arrow's slices fail on short values


@cache
def routed(path: str, segments: int) -> tuple[tuple[pa.RecordBatch, ...], ...]:
    """Return a process's rows, batch by batch as Spark gives them, cut up by segment."""
    table = load(path)
    router = Router(Topology.plan(TopicName.parse("any"), segments, "embedded"))
    batches = []
    for batch in table.to_batches(max_chunksize=BATCH_ROWS):
        owners = router.route(batch.column("key"), batch.num_rows)
        batches.append(
            tuple(batch.take(pa.array(np.flatnonzero(owners == s))) for s in range(segments))
        )
    return tuple(batches)


@dataclass(frozen=True, slots=True)
class Append:
    """Append one process's rows, which are routed beforehand."""

    place: Place
    segments: tuple[SegmentRef, ...]
    path: str

    def prepare(self) -> Callable[[], int]:
        """Load and route the rows, and connect."""
        log, batches = self.place.components.log, routed(self.path, len(self.segments))

        def measured() -> int:
            name = f"bench-{secrets.token_hex(6)}"
            writers = [log.writer(segment, name) for segment in self.segments]
            for batch in batches:
                for writer, rows in zip(writers, batch, strict=True):
                    writer.append(rows)
            messages = sum(writer.flush().messages for writer in writers)
            for writer in writers:
                writer.close()
            return messages

        return measured


@dataclass(frozen=True, slots=True)
class Read:
    """Read some segments from their beginning to their end."""

    place: Place
    segments: tuple[SegmentRef, ...]
    columns: frozenset[str]

    def prepare(self) -> Callable[[], int]:
        """Connect."""
        self.place.components.log  # noqa: B018 - opens it
        return lambda: sum(batch.num_rows for batch in self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read, one segment after the other."""
        log = self.place.components.log
        for segment in self.segments:
            yield from log.read(
                segment,
                EARLIEST,
                log.last_confirmed(segment),
                visible=Visibility(),
                columns=self.columns,
                max_rows=_MAX_ROWS,
            )


@dataclass(frozen=True, slots=True)
class Pass:
    """Read some segments, change each value, and append it elsewhere by its key."""

    place: Place
    inputs: tuple[SegmentRef, ...]
    outputs: tuple[SegmentRef, ...]

    def prepare(self) -> Callable[[], int]:
        """Connect."""
        log = self.place.components.log
        router = Router(Topology.plan(TopicName.parse("any"), len(self.outputs), "embedded"))
        read = Read(self.place, self.inputs, frozenset({"value", "key"}))

        def measured() -> int:
            name = f"bench-{secrets.token_hex(6)}"
            writers = [log.writer(segment, name) for segment in self.outputs]
            for batch in read.batches():
                keys = batch.column("key")
                owners = router.route(keys, batch.num_rows)
                changed = pa.record_batch([turned(batch.column("value")), keys], ["value", "key"])
                for owner, writer in enumerate(writers):
                    writer.append(changed.take(pa.array(np.flatnonzero(owners == owner))))
            messages = sum(writer.flush().messages for writer in writers)
            for writer in writers:
                writer.close()
            return messages

        return measured


def turned(values: pa.Array) -> pa.Array:
    """Change every value: its first byte goes to its end."""
    nothing = pa.scalar(b"", pa.binary())
    return pc.binary_join_element_wise(
        pc.binary_slice(values, 1, _LONGEST), pc.binary_slice(values, 0, 1), nothing
    )


def append_one(
    place: Place, segments: tuple[SegmentRef, ...], name: str
) -> dict[SegmentRef, Position]:
    """Append one row to each of some segments, as the writer `name`, and return where."""
    row = pa.record_batch(
        [pa.array([b"v" * VALUE_BYTES]), pa.array([b"key-00000000"])], names=["value", "key"]
    )
    replies = {}
    for segment in segments:
        writer = place.components.log.writer(segment, name)
        writer.append(row)
        last = writer.flush().last
        writer.close()
        assert last is not None
        replies[segment] = last
    return replies
