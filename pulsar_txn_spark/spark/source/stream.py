"""The stream reader: ``readStream.format("pulsar_txn")``."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pulsar_txn_spark import steps
from pulsar_txn_spark.announcement import announce
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import DataLossError, OptionError, PulsarTxnError
from pulsar_txn_spark.options import Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import RangeSize
from pulsar_txn_spark.segments.topology import Topology, scalable_segment
from pulsar_txn_spark.spark.context import driver_name
from pulsar_txn_spark.spark.error_boundary import plain_errors
from pulsar_txn_spark.spark.source.data_loss import deleted_segment, pruned_segment
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.initial_offset import initial_offset
from pulsar_txn_spark.spark.source.lag import Lag
from pulsar_txn_spark.spark.source.offsets import SegmentKey, SourceOffset
from pulsar_txn_spark.spark.source.partition import SourcePartition
from pulsar_txn_spark.spark.source.planner import NO_SNAPSHOT, Range, SourcePlanner
from pulsar_txn_spark.spark.source.snapshot_schedule import SnapshotSchedule
from pulsar_txn_spark.spark.source.task import read_partition
from pulsar_txn_spark.spark.source.topics import readable_segments, source_options
from pulsar_txn_spark.spark.source.trigger_delay import TriggerDelay
from pulsar_txn_spark.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.records import Cursor, TxnId
from pulsar_txn_spark.txn.pending_ack import PlannedRange, ReadPlan
from pulsar_txn_spark.txn.read_progress import ReadProgress, claimed_by, last_moved

_LOG = logging.getLogger(__name__)
_USE = Use.READ | Use.STREAM
_LIMITS = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger")


@plain_errors
class PulsarTxnStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches, and acknowledges what no transaction of ours did.

    Its driver side is one long-lived process for each query; ``read`` runs in tasks.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._schema = schema
        # Checked when the query is planned, connected when it runs: planning makes one as well.
        self._options = source_options(options, _USE)
        self._connected: SourcePlanner | None = None
        self._source = secrets.token_hex(8)
        self._source_epoch = 0
        self._available: dict[SegmentKey, Position] | None = None
        self._latest: SourceOffset | None = None
        self._initial: dict[str, Any] | None = None
        self._blocked_by: dict[str, tuple[TxnId, ...]] = {}  # segment id -> open transactions
        self._idle: IdleWatch
        self._schedule = SnapshotSchedule()
        self._delay = TriggerDelay(
            self._options.get("minMessagesPerTrigger"), self._options.get("maxTriggerDelay")
        )
        # Of the latest poll, for the lag: what is read, how far, and what was said of it.
        self._snapshot = NO_SNAPSHOT
        self._planned: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None  # by that snapshot
        self._read_to: Mapping[SegmentKey, Position] = {}
        self._reported: dict[str, Any] | None = None
        self._measured: dict[tuple[SegmentKey, Position, Position], RangeSize] = {}
        self._is_serving = self._options.get("metrics.port") is None
        self._has_planned = self._has_warned = False

    @property
    def _limits(self) -> list[str]:
        """The options by which a micro-batch may read less than there is."""
        return [name for name in _LIMITS if self._options.get(name) is not None]

    @property
    def _planner(self) -> SourcePlanner:
        if self._connected is None:
            planner = SourcePlanner(self._options, self._schema)
            components = planner.components
            self._source_epoch = components.store.meta.next_source_epoch()
            self._idle = IdleWatch(components)
            self._serve_metrics(components)
            self._announce_transport()
            # Last: what has failed half-way is made anew, and nothing of it is used.
            self._connected = planner
        return self._connected

    def _announce_transport(self) -> None:
        """Tell, in the process beside the driver, how this query speaks with Pulsar."""
        config = self._options.pulsar
        if config is not None:
            from pulsar_txn_spark.backends.pulsar.transport import choose_and_say

            chosen, why = choose_and_say(config)
            announce(f"transport {chosen}: {why}")

    def _serve_metrics(self, components: Components) -> None:
        """Open the metrics endpoint in this process, which lives as long as the query.

        A port that is in use does not fail the query: after a restart the process of the previous
        start may still have it. Each micro-batch retries.
        """
        if self._is_serving:
            return
        from pulsar_txn_spark.prometheus import serve_if_asked

        try:
            serve_if_asked(self._options, components)
        except OptionError as error:
            _LOG.warning("%s. It is tried again after the next micro-batch", error)
            return
        self._is_serving = True

    def stop(self) -> None:
        """Close the connection that waits for events: the query has ended."""
        if self._connected is not None:
            self._idle.close()

    # -- offsets -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts, which then does not change any more.

        Spark asks for it twice in a query's first batch, and again where it repeats that batch
        after a restart.
        """
        if self._initial is None:
            self._initial = initial_offset(self._planner).to_json()
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch reads: committed data, within the limits."""
        planner = self._planner
        if self._idle.unchanged_since(start):
            return start
        end = self._poll(planner, start, limit)
        self._idle.after_poll(start, self._blocked_by, is_empty=end == start)
        if start == self._initial:
            end = SourceOffset.with_beginning(end, start)
        self._planned = (start, end)
        return end

    def _poll(
        self, planner: SourcePlanner, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        self._idle.before_poll()
        # The order matters (INV-4): what is sealed, then the last confirmed entry, then the gate.
        # The high-position comes with the gate: it was confirmed earlier.
        topologies = planner.topologies()
        read = planner.checked_offset(start, topologies)
        positions, drained = read.positions(), read.drained()
        orders = planner.reading_orders(topologies, read)
        segments = {
            key: ref
            for key, ref in readable_segments(topologies).items()
            if key[1] not in orders[key[0]].passed
        }
        self._idle.watch(segments.values(), topologies)
        snapshot = planner.snapshot(
            topologies,
            segments,
            positions,
            names_writers=not self._limits,  # with a limit most of it is left for later
            schedule=self._schedule,
        )
        self._blocked_by = {
            segments[key].id: item.blocked_by for key, item in snapshot.readable.items()
        }
        latest = {key: item.end for key, item in snapshot.readable.items()}
        self._latest = planner.offset(topologies, {**positions, **latest}, drained=drained)
        self._snapshot, self._read_to, self._reported = snapshot, positions, None
        self._measured = {}
        # A segment that the checkpoint does not know is new: it starts at its beginning (INV-10).
        starts = {key: positions.get(key, EARLIEST) for key in latest}
        if self._available is not None:
            latest = {
                key: max(starts[key], min(end, self._available.get(key, starts[key])))
                for key, end in latest.items()
            }
        # A child waits until its parents have been read in an earlier micro-batch (INV-10).
        ends = {key: end for key, end in latest.items() if key[1] in orders[key[0]].released}
        # Equal positions must give the equal offset, or Spark would run empty batches for ever.
        if all(positions.get(key) == end or end == EARLIEST for key, end in ends.items()):
            return self._unmoved(start, read, topologies)
        # Spark takes one limit only, so it asks with that one or with none: all options hold then.
        if not isinstance(limit, ReadAllAvailable):
            if self._available is None and self._delay.waits(
                lambda: self._messages_ahead(topologies, positions)
            ):
                return self._unmoved(start, read, topologies)
            max_rows = self._options.get("maxMessagesPerTrigger")
            max_bytes = self._options.get("maxBytesPerTrigger")
            if max_rows is not None or max_bytes is not None:
                # What waits for a segment that cannot be read to its end now takes no share.
                reached = planner.offset(topologies, {**positions, **latest}, drained=drained)
                within_reach = planner.within_reach(topologies, reached)
                to_read = {key: end for key, end in latest.items() if key in within_reach}
                ahead = planner.ahead(topologies, orders, self._backlogs(starts, to_read))
                ends = planner.limited(snapshot, starts, ends, ahead, max_rows, max_bytes)
        self._read_to = {**positions, **ends}
        return planner.offset(topologies, self._read_to, drained=drained).to_json()

    def _unmoved(
        self, start: dict[str, Any], read: SourceOffset, topologies: Mapping[str, Topology]
    ) -> dict[str, Any]:
        """Return the end of a poll that reads nothing: `start`, or what is new of the segments.

        Brokers delete sealed segments of scalable topics. Whether one was read to its end is noted
        by an empty micro-batch, as it cannot be found out afterwards. So is that one was skipped:
        then it may not be found missing again.
        """
        now = self._planner.offset(topologies, read.positions(), drained=read.drained())
        skipped = SourceOffset.from_json(start).pruned(topologies)
        return now.to_json() if skipped or read.lacks(now) else start

    def _messages_ahead(
        self, topologies: Mapping[str, Topology], positions: Mapping[SegmentKey, Position]
    ) -> int:
        """Count the messages that can be read, be it in this micro-batch or in those after it.

        A sealed segment gets no more messages. So what is left in one does not wait for them:
        those in its children count as well. They do not count behind messages that a transaction
        holds back: what can be read of the parents would begin one small batch after another.
        """
        assert self._latest is not None
        reach = self._planner.within_reach(topologies, self._latest)
        ends = {key: item.end for key, item in self._snapshot.readable.items() if key in reach}
        return sum(backlog.messages for backlog in self._backlogs(positions, ends).values())

    def _backlogs(
        self, starts: Mapping[SegmentKey, Position], ends: Mapping[SegmentKey, Position]
    ) -> dict[SegmentKey, RangeSize]:
        """Measure what the latest poll has found; no range of it is measured twice."""
        wanted = {
            key: (key, starts.get(key, EARLIEST), end)
            for key, end in ends.items()
            if key in self._snapshot.readable and starts.get(key, EARLIEST) < end
        }
        new = {key: ends[key] for key, range_ in wanted.items() if range_ not in self._measured}
        for key, size in self._planner.backlogs(self._snapshot, starts, new).items():
            self._measured[wanted[key]] = size
        return {key: self._measured[range_] for key, range_ in wanted.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limits that the options ask for."""
        if self._options.get("maxMessagesPerTrigger"):
            return ReadMaxRows(self._options.get("maxMessagesPerTrigger"))
        if self._options.get("maxBytesPerTrigger"):
            return ReadMaxBytes(self._options.get("maxBytesPerTrigger"))
        if self._options.get("minMessagesPerTrigger"):
            return ReadMinRows(self._options.get("minMessagesPerTrigger"))
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is there now: the query ends when that is read."""
        planner = self._planner
        readable = planner.readable(readable_segments(planner.topologies()))
        self._available = {key: item.end for key, item in readable.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest readable offset without limits, and how many messages away it is."""
        if self._latest is None:
            return None
        if self._reported is None:
            self._reported = self._latest.to_json()
            try:
                backlogs = self._backlogs(self._read_to, self._latest.positions())
            except PulsarTxnError as error:
                _LOG.warning("the lag of this micro-batch is not known: %s", error)
            else:
                lag = Lag.of(backlogs.values(), len(self._snapshot.readable))
                self._reported["lag"] = lag.to_json()
        return self._reported

    # -- reading -----------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a micro-batch."""
        planner = self._planner
        self._has_planned = True
        # What was found when this end was, a moment ago; a query that starts again asks anew.
        snapshot = self._snapshot if self._planned == (start, end) else NO_SNAPSHOT
        topologies = snapshot.topologies or planner.topologies()
        segments = readable_segments(topologies)
        starts = planner.stored_offset(start, topologies).positions()
        ending = planner.stored_offset(end, topologies)
        begun = ending.begun if start == self._initial else None
        if begun is not None:
            starts = dict(begun)  # the first batch, which may be repeated
        ranges = _ranges(starts, ending.positions())
        deleted: dict[SegmentKey, str] = {}
        for key in [key for key in ranges if key not in segments]:
            read_to, _ = ranges[key]
            topology = topologies[key[0]]
            segment = topology.by_descriptor.get(key[1])
            if segment is None:  # of a scalable topic, and its brokers have deleted it
                deleted[key] = pruned_segment(*key, read_to)
                segments[key] = scalable_segment(topology.topic, key[1])
            elif planner.subscription:
                planner.require_not_deleted(segment, read_to)
                del ranges[key]
            else:
                # A task knows which batch it is, and whether that is committed already.
                deleted[key] = deleted_segment(segment, read_to)
                segments[key] = segment.ref
        if len(ending.topics) < len(end["topics"]):
            gone = planner.ranges_of_deleted_topics(start, end, topologies, begun)
            for key, item in gone.items():
                segments[key], ranges[key], deleted[key] = item.segment, item.range, item.loss
        cursors = starts if planner.subscription else {}
        return list(
            planner.partitions(segments, ranges, self._read_plan, cursors, deleted, snapshot)
        )

    def _read_plan(self, ranges: tuple[PlannedRange, ...]) -> ReadPlan:
        subscription = self._options.get("subscription") or ""
        # The tasks complete the attempt's name.
        return ReadPlan(self._source, self._source_epoch, subscription, driver_name(), ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task."""
        assert isinstance(partition, SourcePartition)
        return read_partition(self._options, partition, self._schema)

    # -- acknowledging what no transaction of ours did -----------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Move the subscription's cursor to `end`, where the sink's transaction has not.

        Spark has written its commit log: it will not ask for anything up to `end` again. Only
        cursors are moved that a task of this start has claimed. All others may be another query's;
        if they are this one's, the next task that claims them moves them.
        """
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.AFTER)
        planner = self._planner
        components, subscription = planner.components, planner.subscription
        components.sweeps.trigger()
        self._serve_metrics(components)
        if not subscription:
            return
        # By those of the latest poll: a segment that was sealed since is released the next time.
        topologies = self._snapshot.topologies or planner.topologies()
        segments = readable_segments(topologies)
        ends = planner.checked_offset(end, topologies).positions()
        everywhere = planner.cursors(segments)
        cursors = {
            key: cursor
            for key, cursor in everywhere.items()
            if cursor is not None and claimed_by(cursor, self._source_epoch)
        }
        if not cursors and self._has_planned:
            self._warn_unclaimed(subscription, everywhere, ends)
        behind: dict[str, tuple[Cursor, Position]] = {}
        for key, cursor in cursors.items():
            target = ends.get(key)
            if target is not None and cursor.position < target:
                behind[segments[key].id] = last_moved(cursor, cursors.values()), target
        if behind:
            timeout_ms: int = self._options.get("txn.timeoutMs")
            progress = ReadProgress(components.coordinator, timeout_ms)
            progress.catch_up(subscription, self._source_epoch, behind)
        for query, positions in _released(topologies, ends, cursors).items():
            components.store.subscriptions.release_cursors(subscription, query, positions)

    def _warn_unclaimed(
        self,
        subscription: str,
        cursors: Mapping[SegmentKey, Cursor | None],
        ends: Mapping[SegmentKey, Position],
    ) -> None:
        """Warn once that a micro-batch has ended and its subscription stays where it is."""
        behind = [
            key
            for key, cursor in cursors.items()
            if key in ends and ends[key] > (EARLIEST if cursor is None else cursor.position)
        ]
        if not behind or self._has_warned:
            return
        self._has_warned = True
        _LOG.warning(
            "no task of this query has claimed subscription %s since it started, so it stays where "
            "it is, and retains data. Either no task has read yet, or all reads are in threads of "
            "your foreachBatch function. Those lack Spark's ids of the query: let one action of "
            "the function's own thread read the rows",
            subscription,
        )


def _ranges(
    starts: Mapping[SegmentKey, Position], ends: Mapping[SegmentKey, Position]
) -> dict[SegmentKey, Range]:
    """Return what a micro-batch reads of each segment.

    Raises
    ------
    DataLossError
        If the checkpoint has an end before a start.
    """
    ranges = {
        key: (starts.get(key, EARLIEST), end)
        for key, end in ends.items()
        if starts.get(key, EARLIEST) != end
    }
    backwards = [f"{key[1]} of {key[0]}" for key, (start, end) in ranges.items() if start > end]
    if backwards:
        raise DataLossError(
            f"the checkpoint's offsets run backwards in segment {backwards[0]}: restore the "
            "checkpoint"
        )
    return ranges


def _released(
    topologies: Mapping[str, Topology],
    ends: Mapping[SegmentKey, Position],
    cursors: Mapping[SegmentKey, Cursor],
) -> dict[str, dict[str, Position]]:
    """Return the ends of sealed segments that no replay will read again, by query and segment id.

    Retention may then delete them. For a segment that still takes rows the next acknowledgement
    says as much, so that a release would only cost a request in each micro-batch.
    """
    by_query: dict[str, dict[str, Position]] = {}
    by_descriptor = {name: topology.by_descriptor for name, topology in topologies.items()}
    for key, cursor in cursors.items():
        segment = by_descriptor[key[0]][key[1]]
        end = ends.get(key)
        if end is not None and segment.drained_at(end) and cursor.released < end:
            by_query.setdefault(cursor.query, {})[segment.ref.id] = end
    return by_query
