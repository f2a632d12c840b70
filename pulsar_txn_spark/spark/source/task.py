"""What a task of a source does: check, claim, register, read."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.types import StructType

from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.log import LogRange, SegmentLog, SegmentRef, SegmentSnapshot
from pulsar_txn_spark.spark.context import (
    TaskFacts,
    flush_counters_if_overdue,
    freeze_loaded_modules,
    unique_execution_id,
)
from pulsar_txn_spark.spark.rows import RowOrigin, to_spark_batches
from pulsar_txn_spark.spark.source.data_loss import (
    SKIPPED,
    data_loss_error,
    lost_tail,
    trimmed_range,
)
from pulsar_txn_spark.spark.source.partition import (
    SegmentRange,
    SourcePartition,
    partition_index,
)
from pulsar_txn_spark.spark.versions import arrow_schema
from pulsar_txn_spark.store.records import Code, CursorAnswer
from pulsar_txn_spark.txn.committed import batch_is_committed
from pulsar_txn_spark.txn.pending_ack import ReadPlan, require_claimed
from pulsar_txn_spark.txn.read_progress import ReadProgress

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 30.0  # a broker that takes a topic over knows its end by then
_RECHECK_S = 1.0
_MOST_SOURCES = 64  # that a worker knows the claims of
_SMALL_ROWS, _SMALL_BYTES = 1_024, 1 << 20  # of batches that are joined
_MAX_ROWS = 16_384  # rows of an Arrow batch: Spark's own default is 10 000


Source = tuple[str, str, str, int]
"""Metadata store, subscription, query, source epoch: no other source has all of these."""


class _Claimed:
    """The segments in which this process knows that a source has claimed its subscription."""

    def __init__(self) -> None:
        self._segments: dict[Source, set[str]] = {}

    def has(self, source: Source, segments: Collection[str]) -> bool:
        """Return whether a source is known to have claimed all of these segments."""
        return self._segments.get(source, set()).issuperset(segments)

    def note(self, source: Source, segments: Collection[str]) -> None:
        """Note what a source has claimed; the least recently noted one may be forgotten."""
        known = self._segments.pop(source, set())
        self._segments[source] = known.union(segments)
        if len(self._segments) > _MOST_SOURCES:
            del self._segments[next(iter(self._segments))]


_CLAIMED = _Claimed()


def read_partition(
    options: Options, partition: SourcePartition, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Read one partition in a task, after registering it for the sink to acknowledge.

    Raises
    ------
    StoreRolledBackError
        If the executor reaches another metadata store than the driver.
    DataLossError, AcknowledgementConflictError, StoreUnavailableError, SegmentLogUnavailableError
    """
    freeze_loaded_modules("read")
    components = open_components(options)
    components.require_store(partition.store_uuid)
    if partition.plan is not None:
        facts = TaskFacts.of_task()
        _require_not_lost(components, partition, facts)
        _register(components, options, partition, facts)
    return joined_small(_read(components, options, partition, schema))


def joined_small(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join batches of few rows: Spark takes as long for one of them as for one of many rows.

    The order of the rows stays. So do errors: a task that fails hands over less before it does.
    """
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_small = batch.num_rows < _SMALL_ROWS
        if is_small:
            small.append(batch)
            rows, size = rows + batch.num_rows, size + batch.get_total_buffer_size()
        if small and (not is_small or rows >= _SMALL_ROWS or size >= _SMALL_BYTES):
            yield pa.concat_batches(small)
            small, rows, size = [], 0, 0
        if not is_small:
            yield batch
    if small:
        yield pa.concat_batches(small)


def _read(
    components: Components, options: Options, partition: SourcePartition, schema: StructType
) -> Iterator[pa.RecordBatch]:
    target = arrow_schema(schema)
    there = [range_ for range_ in partition.ranges if not range_.deleted]
    for log, group in itertools.groupby(there, lambda r: components.topics.log_of(r.segment)):
        ranges = list(group)
        snapshots = {} if partition.fail_on_data_loss else _snapshots_of_ends(log, ranges)
        ranges = [_ending_in_log(range_, snapshots) for range_ in ranges]
        may_skip = [r.segment for r in ranges if not partition.fail_on_data_loss or r.lost]
        trims = _trimmed_to(log, may_skip, snapshots)
        wanted = []
        for range_ in ranges:
            start = max(range_.start, min(trims.get(range_.segment, EARLIEST), range_.end))
            wanted.append(LogRange(range_.segment, start, range_.end, range_.visibility))
        read = log.read_each(wanted, columns=partition.columns, max_rows=_MAX_ROWS)
        for of_log, batches in zip(wanted, read, strict=True):
            segment = of_log.segment
            origin = RowOrigin(
                segment.topic,
                partition_index(segment),
                segment.id.rpartition("/")[2],
                segment.log_name if options.pulsar else segment.id,
            )
            try:
                yield from to_spark_batches(batches, schema, target, origin)
            except DataLossError as error:
                trimmed = log.trimmed_to(segment)
                if trimmed <= of_log.start:
                    raise
                loss = trimmed_range(segment, of_log.start, of_log.end, trimmed)
                raise data_loss_error(loss) from error


def _snapshots_of_ends(
    log: SegmentLog, ranges: Sequence[SegmentRange]
) -> dict[SegmentRef, SegmentSnapshot]:
    """Return snapshots of the segments of ours, in which each range ends, if its log has that end.

    A broker that has just given a topic away may answer with an earlier end. So they are taken
    again for some time before anything is skipped.
    """
    behind = [range_ for range_ in ranges if not range_.segment.in_pulsar_domain]
    best: dict[SegmentRef, SegmentSnapshot] = {}
    deadline = time.monotonic() + _PATIENCE_S
    while behind:
        segments = [range_.segment for range_ in behind]
        for segment, taken in zip(segments, log.snapshot_each(segments), strict=True):
            # What has been seen there is there, whatever another broker answers later.
            if segment not in best or best[segment].last_confirmed < taken.last_confirmed:
                best[segment] = taken
        behind = [r for r in behind if best[r.segment].last_confirmed < r.end]
        if not behind or time.monotonic() >= deadline:
            break
        time.sleep(_RECHECK_S)
    return best


def _ending_in_log(
    range_: SegmentRange, snapshots: Mapping[SegmentRef, SegmentSnapshot]
) -> SegmentRange:
    """Shorten a range that ends behind its log, which has lost what was acknowledged there."""
    snapshot = snapshots.get(range_.segment)
    last = range_.end if snapshot is None else snapshot.last_up_to(range_.end)
    if last == range_.end:
        return range_
    _LOG.warning(SKIPPED, lost_tail(range_.segment, range_.end, last))
    return replace(range_, end=max(range_.start, last))


def _trimmed_to(
    log: SegmentLog,
    segments: Sequence[SegmentRef],
    snapshots: Mapping[SegmentRef, SegmentSnapshot],
) -> dict[SegmentRef, Position]:
    """Return up to where data of each segment is gone; only what no snapshot tells is asked for."""
    trims = {s: snapshots[s].trimmed_to() if s in snapshots else None for s in segments}
    missing = [segment for segment, trimmed in trims.items() if trimmed is None]
    if missing:
        trims.update(zip(missing, log.trimmed_to_of_each(missing), strict=True))
    return {segment: trimmed for segment, trimmed in trims.items() if trimmed is not None}


def _require_not_lost(components: Components, partition: SourcePartition, facts: TaskFacts) -> None:
    """Raise for data that is gone, unless its batch is committed, so that nothing was lost.

    Spark repeats a batch that is not in its commit log. A committed one is read once more as far as
    it still exists, and the sink writes nothing. A sink that has not begun the batch, because it
    writes some batches only, meets a mark when it commits.

    Raises
    ------
    DataLossError
    """
    losses = [range_.lost for range_ in partition.ranges if range_.lost]
    if not losses or not partition.fail_on_data_loss:
        return
    if not facts.query or not batch_is_committed(components.store, facts.query, facts.batch):
        raise data_loss_error(losses[0])
    plan = partition.plan
    assert plan is not None
    mark = _of_attempt(plan, facts).as_incomplete()
    queries, batch = components.store.queries, str(facts.batch)
    queries.register_plan(facts.query, batch, mark.source, mark.serialize())
    for lost in losses:
        _LOG.warning(
            "%s; but batch %d is committed, and its sinks write nothing now. If the query keeps "
            "state (aggregation, deduplication), the state may lack these rows",
            lost,
            facts.batch,
        )


def _register(
    components: Components, options: Options, partition: SourcePartition, facts: TaskFacts
) -> None:
    """Register what the micro-batch reads, so that the sink's transaction acknowledges it."""
    plan = partition.plan
    assert plan is not None
    if not facts.query or facts.batch < 0:
        return  # a thread of the user's: nobody claims for it, and the source's commit(end) warns
    batch, record = str(facts.batch), _of_attempt(plan, facts).serialize()
    if plan.subscription:
        _claim(components, options, partition, plan, facts.query, batch, record)
    else:
        components.store.queries.register_plan(facts.query, batch, plan.source, record)
    flush_counters_if_overdue(components)


def _of_attempt(plan: ReadPlan, facts: TaskFacts) -> ReadPlan:
    """Return a source's plan as that of the attempt that the task belongs to."""
    return replace(plan, execution_id=unique_execution_id(facts.execution_id, plan.execution_id))


def _claim(
    components: Components,
    options: Options,
    partition: SourcePartition,
    plan: ReadPlan,
    query: str,
    batch: str,
    record: bytes,
) -> None:
    """Claim the subscription for the query where the task reads (INV-13), and register the plan.

    The first task claims it everywhere, also if nothing is left for it to read. After that no other
    query can take it over in a segment that this one has not read yet. It also makes the cursors of
    a query of an earlier release, and of one whose subscription was deleted.

    A plan stays when its task dies, and the batch's next attempts may have to acknowledge it. So
    it is registered behind the claim, or where this process knows that the source has claimed.

    A start that died, or failed, may have left cursors before where the batch begins. A task that
    finds them moves them in all segments, as the batch acknowledges also what no task reads.

    Raises
    ------
    AcknowledgementConflictError
        If another query owns the subscription.
    BatchNotRecordedError
        If cursors before the batch miss one of a sink of ours.
    """
    starts = {planned.segment: planned.start for planned in plan.ranges}
    there = [range_.segment.id for range_ in partition.ranges if not range_.deleted]
    own = {segment: starts[segment] for segment in there} or dict(partition.starts)

    def require(starts: Collection[str], answers: Sequence[CursorAnswer]) -> None:
        for segment, answer in zip(starts, answers, strict=True):
            # Of another segment that was deleted nothing is left to be read.
            if answer.code is not Code.DELETED or segment in there:
                require_claimed(plan.subscription, query, answer)

    store = components.store
    source = store.identity.uuid, plan.subscription, query, plan.source_epoch
    caller = source[1:]
    is_known = _CLAIMED.has(source, own)
    if is_known:
        answers = store.subscriptions.ask_and_register(
            *caller, own, batch=batch, source=plan.source, plan=record
        )
    else:
        answers = store.subscriptions.claim_cursors(*caller, own, asks_only=True)
    require(own, answers)
    everywhere = {**dict(partition.starts), **own}
    answered = own
    if any(answer.claims for answer in answers):  # not claimed yet
        answered = everywhere
        # Who is refused anywhere claims nothing anywhere: else its successor would be refused.
        for asks_only in (True, False):
            answers = store.subscriptions.claim_cursors(*caller, answered, asks_only=asks_only)
            require(answered, answers)
    if _is_any_behind(answered, answers):
        timeout_ms: int = options.get("txn.timeoutMs")
        progress = ReadProgress(components.coordinator, timeout_ms)
        progress.catch_up_with_plan(plan, query, int(batch), everywhere)
    if not is_known:
        store.queries.register_plan(query, batch, plan.source, record)
        _CLAIMED.note(source, own)


def _is_any_behind(starts: Mapping[str, Position], answers: Sequence[CursorAnswer]) -> bool:
    """Tell whether a cursor stands before where the micro-batch begins in its segment."""
    return any(
        answer.position is not None and answer.position < MessagePosition.whole(start)
        for start, answer in zip(starts.values(), answers, strict=True)
    )
