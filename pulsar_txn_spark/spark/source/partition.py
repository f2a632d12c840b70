"""An input partition: ranges of segments, which the driver plans and one task reads."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.txn.pending_ack import ReadPlan
from pulsar_txn_spark.txn.transaction_buffer import Visibility


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The range ``(start, end]`` of one segment.

    Parameters
    ----------
    segment : SegmentRef
    start, end : Position
    visibility : Visibility
        Which rows of the range are committed.
    lost : str
        Says what of the range is gone; empty if nothing is.
    deleted : bool
        Whether the whole segment is gone.
    """

    segment: SegmentRef
    start: Position
    end: Position
    visibility: Visibility
    lost: str = ""
    deleted: bool = False

    def split_at(self, ends: Sequence[Position]) -> Iterator[SegmentRange]:
        """Cut the range into ranges that end at `ends`; the last of them is this range's end."""
        start = self.start
        for end in ends:
            yield replace(self, start=start, end=end)
            start = end

    @property
    def entries(self) -> int:
        """Say roughly how long it is, from the numbers of entries alone."""
        if self.start.ledger == self.end.ledger:
            return self.end.entry - self.start.entry
        return self.end.entry + 1  # what lies in earlier ledgers is not known


@dataclass(frozen=True)
class SourcePartition(InputPartition):
    """Ranges of segments, which the driver plans and one task reads, one after the other.

    Executors need the store only to register what they read, not to know what they may read.

    Parameters
    ----------
    ranges : tuple of SegmentRange
    columns : frozenset of str
        The segment log's columns that the schema needs.
    fail_on_data_loss : bool
    store_uuid : str
        The metadata store that the driver has used.
    plan : ReadPlan or None
        What the micro-batch reads; None in a batch query, which registers nothing.
    starts : tuple of (str, Position)
        Where the micro-batch begins in every segment, by id: there the subscription has a cursor.
    """

    ranges: tuple[SegmentRange, ...]
    columns: frozenset[str]
    fail_on_data_loss: bool
    store_uuid: str
    plan: ReadPlan | None
    starts: tuple[tuple[str, Position], ...] = ()


def shared_out(ranges: Sequence[SegmentRange], tasks: int) -> list[tuple[SegmentRange, ...]]:
    """Share ranges out to tasks, about as many entries to each.

    Parameters
    ----------
    ranges : sequence of SegmentRange
        Those of one segment follow each other.
    tasks : int
        At least 1. There are no more than ranges.

    Returns
    -------
    list of tuple of SegmentRange
        Of each task, in the order of `ranges`; no task is left without any.
    """
    shares: list[list[int]] = [[] for _ in range(min(tasks, len(ranges)))]
    entries = [(0, number) for number in range(len(shares))]
    # The longest first, each to whom has least: no share is then far above the others.
    for at in sorted(range(len(ranges)), key=lambda at: ranges[at].entries, reverse=True):
        sum_of_share, number = entries[0]
        heapq.heapreplace(entries, (sum_of_share + max(ranges[at].entries, 1), number))
        shares[number].append(at)
    return [tuple(ranges[at] for at in sorted(share)) for share in shares]


def partition_index(segment: SegmentRef) -> int:
    """Return the partition's number in a partitioned native topic, -1 where there is none."""
    suffix = segment.log_name.removeprefix(segment.topic)
    number = re.fullmatch(r"-partition-(\d+)", suffix) if segment.in_pulsar_domain else None
    return int(number[1]) if number else -1
