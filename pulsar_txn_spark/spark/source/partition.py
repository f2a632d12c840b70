"""An input partition: a range of one segment, which the driver plans and one task reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.txn.pending_ack import ReadPlan
from pulsar_txn_spark.txn.transaction_buffer import Visibility


@dataclass(frozen=True)
class SegmentPartition(InputPartition):
    """The range ``(start, end]`` of one segment, with all that a task needs to read it.

    Executors need the store only to register what they read, not to know what they may read.

    Parameters
    ----------
    segment : SegmentRef
    start, end : Position
    visibility : Visibility
        Which rows of the range are committed.
    columns : frozenset of str
        The segment log's columns that the schema needs.
    fail_on_data_loss : bool
    store_uuid : str
        The metadata store that the driver has used.
    plan : ReadPlan or None
        What the micro-batch reads; None in a batch query, which registers nothing.
    starts : tuple of (str, Position)
        Where the micro-batch begins in every segment, by id: there the subscription has a cursor.
    lost : str
        Says what of the segment's range is gone; empty if nothing is.
    deleted : bool
        Whether the whole segment is gone.
    """

    segment: SegmentRef
    start: Position
    end: Position
    visibility: Visibility
    columns: frozenset[str]
    fail_on_data_loss: bool
    store_uuid: str
    plan: ReadPlan | None
    starts: tuple[tuple[str, Position], ...] = ()
    lost: str = ""
    deleted: bool = False

    def split_at(self, ends: Sequence[Position]) -> Iterator[SegmentPartition]:
        """Cut the range into ranges that end at `ends`; the last of them is this range's end."""
        start = self.start
        for end in ends:
            yield replace(self, start=start, end=end)
            start = end


def partition_index(segment: SegmentRef) -> int:
    """Return the partition's number in a partitioned native topic, -1 where there is none."""
    suffix = segment.log_name.removeprefix(segment.topic)
    number = re.fullmatch(r"-partition-(\d+)", suffix) if segment.in_pulsar_domain else None
    return int(number[1]) if number else -1
