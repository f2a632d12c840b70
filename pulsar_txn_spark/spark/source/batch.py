"""The batch reader: ``read.format("pulsar_txn")``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_txn_spark.errors import SegmentNotFoundError, TopologyConflictError
from pulsar_txn_spark.options import Use, refuse_endpoint
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.spark.error_boundary import plain_errors
from pulsar_txn_spark.spark.source.offset_options import (
    ending_offsets,
    is_named,
    require_readable,
    resolve_positions,
    starting_offsets,
)
from pulsar_txn_spark.spark.source.offsets import SegmentKey
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.planner import SourcePlanner
from pulsar_txn_spark.spark.source.task import read_partition
from pulsar_txn_spark.spark.source.time_offsets import ending_positions, starting_positions
from pulsar_txn_spark.spark.source.topics import readable_segments, source_options
from pulsar_txn_spark.store.records import TxnId

_LOG = logging.getLogger(__name__)
_MAX_ATTEMPTS = 16  # each of them means that somebody changed a topic
_NAMED = 8  # transactions in a warning


@plain_errors
class PulsarTxnReader(DataSourceReader):
    """Reads once what is committed now."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = source_options(options, Use.READ | Use.BATCH)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read of everything between the starting and the ending offsets."""
        planner = SourcePlanner(self._options, self._schema)
        refuse_endpoint(self._options, "a batch read ends too soon to be scraped")
        topologies = planner.topologies(waits=True)
        for _ in range(_MAX_ATTEMPTS):
            try:
                (planned, blocked), error = self._planned(planner, topologies), None
            except SegmentNotFoundError as not_found:  # perhaps retention has just deleted it
                planned, blocked, error = [], {}, not_found
            before, topologies = topologies, planner.topologies(waits=True)
            if topologies == before:
                if error is not None:
                    raise error
                if blocked:
                    _warn(blocked, len(readable_segments(topologies)))
                # Spark replaces an empty list by a partition of its own: read() returns nothing.
                return planned
            # A transaction that wrote to a parent may have written to its children as well.
        raise TopologyConflictError(
            f"the segments of {', '.join(topologies)} changed {_MAX_ATTEMPTS} times while the read "
            "was planned. Nothing was read: repeat it when splits and merges have ended"
        )

    def _planned(
        self, planner: SourcePlanner, topologies: Mapping[str, Topology]
    ) -> tuple[list[SourcePartition], dict[SegmentKey, tuple[TxnId, ...]]]:
        """Return the partitions, and who is in front of committed rows that are not in them."""
        options = self._options
        segments = readable_segments(topologies)
        starting, ending = starting_offsets(options), ending_offsets(options)
        snapshot = planner.snapshot({}, segments, {}, patient=True, at_once=True)
        readable = snapshot.readable
        latest = {key: item.end for key, item in readable.items()}
        from_start = starting.word == "earliest" or bool(starting.positions)
        starts = resolve_positions(
            starting, segments, lambda key: EARLIEST if from_start else latest[key]
        )
        ends = resolve_positions(ending, segments, lambda key: latest[key])
        require_readable("startingOffsets", starting, starts, latest)
        require_readable("endingOffsets", ending, ends, latest)
        starts |= starting_positions(planner, starting.times, topologies, latest)
        if ending.times:
            ends |= ending_positions(planner, ending.times, topologies, readable, segments)
        # With nothing reported behind a pin, nothing was committed there. A broker reports what its
        # clients have sent in open transactions, too.
        blocked = {
            key: item.blocked_by
            for key, item in readable.items()
            if item.blocked_by and item.end < item.high and item.end <= ends[key]
        }
        for key, segment in segments.items():
            if is_named(ending, key) and key in snapshot.of_log:
                ends[key] = snapshot.of_log[key].last_up_to(ends[key])  # it may name no entry
            if not is_named(starting, key):
                starts[key] = max(starts[key], planner.log_of(segment).trimmed_to(segment))
        ranges = {key: (start, ends[key]) for key, start in starts.items()}
        return planner.partitions(segments, ranges, lambda _: None), blocked

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task."""
        if not isinstance(partition, SourcePartition):
            return iter(())
        return read_partition(self._options, partition, self._schema)


def _warn(blocked: Mapping[SegmentKey, tuple[TxnId, ...]], of: int) -> None:
    """Say that a read may leave committed rows out: those behind transactions that are open."""
    blocking = sorted({txn for txns in blocked.values() for txn in txns})
    named = ", ".join(map(str, blocking[:_NAMED]))
    more = len(blocking) - _NAMED
    _LOG.warning(
        "this batch read ends at open transactions in %d of %d segments: %s%s. Rows may be left "
        "out that were committed behind them, also where others of the same transaction are read. "
        "Read again once they have ended",
        len(blocked),
        of,
        named,
        f" and {more} more" if more > 0 else "",
    )
