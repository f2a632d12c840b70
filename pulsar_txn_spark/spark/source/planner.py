"""Plans the reads of a source: how far each segment may be read, and in which partitions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.types import StructType

from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import DataLossError
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import RangeSize, SegmentLog, SegmentRef, SegmentSnapshot
from pulsar_txn_spark.segments.reading_order import ReadingOrder, leaves_offset
from pulsar_txn_spark.segments.topic_name import PULSAR_DOMAIN, TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology, segment_of_instance
from pulsar_txn_spark.spark.cores import tasks_at_once
from pulsar_txn_spark.spark.rows import needed_columns
from pulsar_txn_spark.spark.source.data_loss import (
    SKIPPED,
    another_topic,
    another_topic_error,
    data_loss_error,
    deleted_segment,
    pruned_segment,
    trimmed_range,
)
from pulsar_txn_spark.spark.source.offsets import (
    SegmentKey,
    SegmentOffset,
    SourceOffset,
    TopicOffset,
)
from pulsar_txn_spark.spark.source.partition import SegmentRange, SourcePartition, shared_out
from pulsar_txn_spark.spark.source.snapshot_schedule import SnapshotSchedule
from pulsar_txn_spark.spark.source.topics import SourceTopics, require_sequence_ids
from pulsar_txn_spark.store.records import Cursor, Seen
from pulsar_txn_spark.txn.pending_ack import PlannedRange, ReadPlan
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange, Visibility

_LOG = logging.getLogger(__name__)
_PATIENCE_S = 30.0  # a broker that takes a topic over knows its ledgers by then
_RECHECK_S = 1.0

Range = tuple[Position, Position]
"""Start, which is excluded, and end, which is included."""

Segments = Mapping[SegmentKey, SegmentRef]
Positions = Mapping[SegmentKey, Position]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The segments at one moment, for all that a micro-batch needs of it.

    Parameters
    ----------
    topologies : mapping of str to Topology
        As they were read before it.
    segments : mapping of SegmentKey to SegmentRef
        Those that it is about.
    readable : mapping of SegmentKey to ReadableRange
    of_log : dict of SegmentKey to SegmentSnapshot
        What the logs said that were asked. Others are asked when their sizes are wanted.
    names_writers : bool
        Whether the ranges name the dropped writers that a reader has to skip.
    """

    topologies: Mapping[str, Topology]
    segments: Segments
    readable: Mapping[SegmentKey, ReadableRange]
    of_log: dict[SegmentKey, SegmentSnapshot]
    names_writers: bool

    def skipped(self, key: SegmentKey, end: Position) -> Visibility | None:
        """Return what a reader skips up to `end`; None if it has to be asked."""
        range_ = self.readable.get(key)
        if not self.names_writers or range_ is None or range_.end != end:
            return None
        return range_.visibility


@dataclass(frozen=True, slots=True)
class DeletedRange:
    """What a micro-batch was to read of a segment that was deleted, and what is lost with it."""

    segment: SegmentRef
    range: Range
    loss: str


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is left to read of a released segment and of those that wait for it, by estimate."""

    messages: float
    bytes: float


NO_SNAPSHOT = Snapshot({}, {}, {}, {}, names_writers=False)


class SourcePlanner:
    """What the stream reader and the batch reader have in common.

    Parameters
    ----------
    options : Options
        Of the source, as :func:`~pulsar_txn_spark.spark.source.topics.source_options` checks them.
    schema : StructType
        The columns that are read.

    Raises
    ------
    OptionError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.subscription: str = options.get("subscription") or ""
        self.components: Components = open_components(options)
        self._columns = needed_columns(schema)
        require_sequence_ids(options, schema.names)
        self._fail_on_data_loss: bool = options.get("failOnDataLoss")
        self._skipped: set[str] = set()
        self._topics = SourceTopics(options, self.components)
        self.topologies()  # a topic that is not there is an error now, not in the first batch

    def topologies(self, *, waits: bool = False) -> dict[str, Topology]:
        """Return the topics as they are now, by full name.

        With `waits`, topics that match a pattern are waited for while they are being adopted.
        """
        return self._topics.topologies(waits=waits)

    def log_of(self, segment: SegmentRef) -> SegmentLog:
        """Return the log that a segment is in."""
        return self.components.topics.log_of(segment)

    # -- offsets -----------------------------------------------------------------------------

    def offset(
        self,
        topologies: Mapping[str, Topology],
        positions: Positions,
        *,
        keep_deleted: bool = False,
        drained: Collection[SegmentKey] = (),
    ) -> SourceOffset:
        """Make an offset.

        Parameters
        ----------
        topologies : mapping of str to Topology
        positions : mapping of SegmentKey to Position
        keep_deleted : bool
            Whether a deleted segment stays that its children replace.
        drained : collection of SegmentKey
            What an earlier offset has noted of scalable topics: it stays true.
        """
        store = self.components.store
        topics = {}
        by_topic: dict[str, dict[str, Position]] = {name: {} for name in topologies}
        for (topic, descriptor), at in positions.items():
            if topic in by_topic:
                by_topic[topic][descriptor] = at
        for name, topology in topologies.items():
            segments = {}
            own = by_topic[name]
            scalable = topology.topic.scalable
            for segment in topology.segments:
                position = own.get(segment.descriptor, EARLIEST if scalable else None)
                leaves = not keep_deleted and leaves_offset(segment, topology, own)
                if position is not None and not leaves:
                    gated = not segment.ref.in_pulsar_domain
                    seen = store.seen(f"seg:{segment.ref.id}") if gated else Seen(0)
                    ends = segment.drained_at(position) or (name, segment.descriptor) in drained
                    segments[segment.descriptor] = SegmentOffset(
                        position, *seen, drained=scalable and ends
                    )
            topics[name] = TopicOffset(topology.instance_id, segments)
        return SourceOffset(store.identity.uuid, store.identity.store_epoch, topics)

    def checked_offset(
        self, tree: Mapping[str, Any], topologies: Mapping[str, Topology]
    ) -> SourceOffset:
        """Read where to go on from, without the segments that brokers have deleted since.

        Raises
        ------
        StoreRolledBackError, DataLossError
            The latter also if one was not read to its end, unless `failOnDataLoss` is false.
        """
        offset = self.stored_offset(tree, topologies)
        topics = dict(offset.topics)
        for (name, segment), read_to in offset.pruned(topologies).items():
            self._skip(pruned_segment(name, segment, read_to), data_loss_error)
        for name, topic in offset.topics.items():
            if topologies[name].topic.scalable:
                known = topologies[name].by_descriptor
                there = {d: item for d, item in topic.segments.items() if d in known}
                topics[name] = replace(topic, segments=there)
        return replace(offset, topics=topics)

    def stored_offset(
        self, tree: Mapping[str, Any], topologies: Mapping[str, Topology]
    ) -> SourceOffset:
        """Read an offset of the checkpoint, and refuse one that belongs elsewhere.

        Topics that are gone are left out if `failOnDataLoss` is false. One that was created again
        is a new one, and read from its beginning. Segments stay that brokers have deleted.

        Raises
        ------
        StoreRolledBackError, DataLossError
        """
        offset = SourceOffset.from_json(tree)
        store = self.components.store
        offset.require_store(store.identity)
        deletions = offset.deletions(topologies)
        for name, deletion in deletions.items():
            if self._fail_on_data_loss and name not in topologies:
                self._require_gone(name, offset.topics[name].instance_id, topologies)
            self._skip(deletion, _deleted_topic_error)
        offset = offset.without(deletions)
        last_seen = {}
        for name, topic in offset.topics.items():
            ids = {segment.descriptor: segment.ref.id for segment in topologies[name].segments}
            for descriptor, item in topic.segments.items():
                if item.seq:
                    last_seen[f"seg:{ids[descriptor]}"] = Seen(item.seq, item.history)
        store.raise_last_seen(last_seen)
        return offset

    def _require_gone(
        self, name: str, instance_id: str, topologies: Mapping[str, Topology]
    ) -> None:
        """Raise for a topic that is there as it was, and that the options do not name any more.

        To go on without it would forget where the query stands there. If it was named again later,
        all of it would be read once more.

        Raises
        ------
        DataLossError
        """
        if self._is_there(name, instance_id):
            raise DataLossError(
                f"the checkpoint has read topic {name}, which these options do not read "
                f"({', '.join(topologies) or 'none'}). The topic is still there, and nothing of it "
                "is lost: name it again. If the checkpoint belongs to another query, start with "
                "that of this one, or with a new one"
            )

    def _is_there(self, name: str, instance_id: str) -> bool:
        """Tell whether a topic is there as it was, although the options do not name it."""
        topology = self._topics.find(name)
        return topology is not None and topology.instance_id == instance_id

    def ranges_of_deleted_topics(
        self,
        start: Mapping[str, Any],
        end: Mapping[str, Any],
        topologies: Mapping[str, Topology],
        begun: Positions | None,
    ) -> dict[SegmentKey, DeletedRange]:
        """Return what a planned micro-batch was to read of topics that were deleted since.

        Nothing of it can be read. But if the batch is committed, it was committed with these
        ranges. A topic that is only not named any more has none: its rows are there.

        Parameters
        ----------
        start, end : mapping of str to Any
            Offsets of the checkpoint.
        topologies : mapping of str to Topology
        begun : mapping of SegmentKey to Position, optional
            Where the batch begins, if it is the query's first.
        """
        before, after = SourceOffset.from_json(start), SourceOffset.from_json(end)
        ranges = {}
        for name, loss in after.deletions(topologies).items():
            topic, instance_id = TopicName.of_any_domain(name), after.topics[name].instance_id
            is_named = name in topologies
            if topic.segmented and not is_named and self._is_there(name, instance_id):
                continue
            starts = begun
            if starts is None:
                earlier = before.topics.get(name)
                is_same = earlier is not None and earlier.instance_id == instance_id
                starts = before.positions() if is_same else {}
            for descriptor, item in after.topics[name].segments.items():
                key = (name, descriptor)
                segment = segment_of_instance(topic, instance_id, descriptor)
                range_ = starts.get(key, EARLIEST), item.position
                ranges[key] = DeletedRange(segment, range_, loss)
        return ranges

    def _skip(self, loss: str, error_of: Callable[[str], DataLossError]) -> None:
        """Raise for what was deleted, or say once that it is skipped.

        Raises
        ------
        DataLossError
            Unless failOnDataLoss is false.
        """
        if self._fail_on_data_loss:
            raise error_of(loss)
        if loss not in self._skipped:
            self._skipped.add(loss)
            _LOG.warning(SKIPPED, loss)

    def cursors(self, segments: Segments) -> dict[SegmentKey, Cursor | None]:
        """Return the subscription's cursor in each segment; nothing without a subscription."""
        if not self.subscription:
            return {}
        ids = [segment.id for segment in segments.values()]
        cursors = self.components.store.subscriptions.read_cursors(ids, self.subscription)
        return dict(zip(segments, cursors, strict=True))

    # -- how far may be read -----------------------------------------------------------------

    def reading_orders(
        self, topologies: Mapping[str, Topology], start: SourceOffset
    ) -> dict[str, ReadingOrder]:
        """Tell which segments the next micro-batch may read (INV-10).

        Raises
        ------
        DataLossError
            If a segment was deleted before it was read to its end.
        """
        orders = _orders(topologies, start)
        positions = start.positions()
        for name, order in orders.items():
            for segment in order.lost:
                read_to = positions.get((name, segment.descriptor), EARLIEST)
                self.require_not_deleted(segment, read_to)
        return orders

    def within_reach(
        self, topologies: Mapping[str, Topology], end: SourceOffset
    ) -> set[SegmentKey]:
        """Tell which segments a reader has come to that has read up to `end`."""
        return {
            (name, descriptor)
            for name, order in _orders(topologies, end).items()
            for descriptor in order.passed | order.released
        }

    def require_not_deleted(self, segment: Segment, read_to: Position) -> None:
        """Raise for a segment that was deleted before it was read to its end.

        Raises
        ------
        DataLossError
            Unless failOnDataLoss is false.
        """
        loss = deleted_segment(segment, read_to)
        if self._fail_on_data_loss:
            raise data_loss_error(loss)
        _LOG.warning(SKIPPED, loss)

    def readable(self, segments: Segments) -> Mapping[SegmentKey, ReadableRange]:
        """Tell how far each segment may be read, for those who do not ask again."""
        return self.snapshot({}, segments, {}, patient=True).readable

    def snapshot(
        self,
        topologies: Mapping[str, Topology],
        segments: Segments,
        starts: Positions,
        *,
        names_writers: bool = False,
        schedule: SnapshotSchedule | None = None,
        patient: bool = False,
        at_once: bool = False,
    ) -> Snapshot:
        """Tell how far each segment may be read; no end lies before its start.

        Parameters
        ----------
        topologies : mapping of str to Topology
            Read before.
        segments : mapping of SegmentKey to SegmentRef
        starts : mapping of SegmentKey to Position
        names_writers : bool
            Whether all that is found is going to be read, so that the writers to skip are wanted.
        schedule : SnapshotSchedule, optional
            Which logs are asked; None = all of them.
        patient : bool
            Whether slow brokers of native topics are waited for.
        at_once : bool
            Whether segments are wanted as they are at one moment: of each transaction all rows, or
            none, but for those behind open transactions of others.
        """
        gated = {key: ref for key, ref in segments.items() if not ref.in_pulsar_domain}
        native = {key: ref for key, ref in segments.items() if ref.in_pulsar_domain}
        of_log: dict[SegmentKey, SegmentSnapshot] = {}
        sealed = _sealed_ends(topologies, gated)
        known = dict(sealed)
        due = dict(gated)
        if schedule is not None:
            wanted = schedule.due([ref.id for key, ref in gated.items() if key not in sealed])
            due = {key: ref for key, ref in gated.items() if ref.id in wanted}
            for key in gated.keys() - due.keys() - sealed.keys():
                known[key] = schedule.last_confirmed(gated[key].id)
        ranges = self._gated_ranges(
            gated,
            starts,
            of_log,
            known,
            due,
            names_writers=names_writers,
            by_reports=schedule is not None,
            at_once=at_once,
        )
        if at_once:  # some may end behind what their logs had when they were asked
            later = [key for key in of_log if of_log[key].last_confirmed < ranges[key].end]
            of_log.update(self._snapshots({key: gated[key] for key in later}))
        if schedule is not None:
            for key, ref in gated.items():
                if key not in sealed:
                    taken = of_log.get(key)
                    last = None if taken is None else taken.last_confirmed
                    schedule.note(ref.id, ranges[key], last)
        if (schedule is not None or at_once) and not self._fail_on_data_loss:
            self._clip(gated, ranges, starts, of_log)
        ranges |= self._native_ranges(native, starts, of_log, patient=patient)
        readable = {key: ranges[key] for key in segments}
        return Snapshot(topologies, segments, readable, of_log, names_writers)

    def _gated_ranges(
        self,
        segments: Segments,
        starts: Positions,
        of_log: dict[SegmentKey, SegmentSnapshot],
        known: Positions,
        due: Segments,
        *,
        names_writers: bool,
        by_reports: bool,
        at_once: bool,
    ) -> dict[SegmentKey, ReadableRange]:
        """Tell how far segments may be read, by snapshots of those that are due, and known LACs."""
        if not segments:
            return {}
        keys = {ref.id: key for key, ref in segments.items()}
        answered: set[SegmentKey] = set()

        def last_confirmed(segment_id: str) -> Position:
            # One request serves all segments, and each answer is used once: the next poll of a
            # segment sends a new request.
            key = keys[segment_id]
            if key not in due:
                return known[key]
            if key not in answered:
                of_log.update(self._snapshots(due))
                answered.update(due)
            answered.remove(key)
            return of_log[key].last_confirmed

        ranges = self.components.buffer.readable(
            [ref.id for ref in segments.values()],
            last_confirmed,
            [starts.get(key, EARLIEST) for key in segments],
            ends_only=not names_writers,
            by_reports=by_reports,
            at_once=at_once,
        )
        return dict(zip(segments, ranges, strict=True))

    def _clip(
        self,
        segments: Segments,
        ranges: dict[SegmentKey, ReadableRange],
        starts: Positions,
        of_log: dict[SegmentKey, SegmentSnapshot],
    ) -> None:
        """Let no range end behind what the log has: what was reported may have been lost there.

        With failOnDataLoss the task that reads the range finds that out, and fails.
        """
        read = {key: segments[key] for key in ranges if starts.get(key, EARLIEST) < ranges[key].end}
        of_log.update(self._snapshots({k: ref for k, ref in read.items() if k not in of_log}))
        for key in read:
            end = min(ranges[key].end, of_log[key].last_confirmed)
            ranges[key] = replace(ranges[key], end=max(starts.get(key, EARLIEST), end))

    def _snapshots(self, segments: Segments) -> dict[SegmentKey, SegmentSnapshot]:
        snapshots = self.components.log.snapshot_each(list(segments.values())) if segments else []
        return dict(zip(segments, snapshots, strict=True))

    def _native_ranges(
        self,
        segments: Segments,
        starts: Positions,
        of_log: dict[SegmentKey, SegmentSnapshot],
        *,
        patient: bool,
    ) -> dict[SegmentKey, ReadableRange]:
        if not segments:
            return {}
        # They have no gate of ours: before the log's end Pulsar has decided every transaction.
        ranges = {}
        for key, snapshot in self._native_snapshots(segments, starts, patient=patient).items():
            of_log[key] = snapshot
            start = starts.get(key, EARLIEST)
            if not snapshot.knows(start):
                self._skip(another_topic(segments[key], start), another_topic_error)
            ranges[key] = ReadableRange(max(start, snapshot.last_confirmed), Visibility())
        return ranges

    def _native_snapshots(
        self, segments: Segments, starts: Positions, *, patient: bool = False
    ) -> dict[SegmentKey, SegmentSnapshot]:
        """Take snapshots; for some time again of what does not know where a query stands.

        A broker that has just given a topic away does not know the topic's latest ledger. What was
        said to be another topic is not waited for again.
        """
        snapshots: dict[SegmentKey, SegmentSnapshot] = {}
        wanted = dict(segments)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for own in _by_domain(wanted):
                refs = list(own.values())
                taken = self.log_of(refs[0]).snapshot_each(refs, patient=patient)
                snapshots.update(zip(own, taken, strict=True))
            wanted = {
                key: ref
                for key, ref in wanted.items()
                if not snapshots[key].knows(start := starts.get(key, EARLIEST))
                and another_topic(ref, start) not in self._skipped
            }
            if not wanted or time.monotonic() >= deadline:
                return {key: snapshots[key] for key in segments}
            time.sleep(_RECHECK_S)

    def backlogs(
        self, snapshot: Snapshot, starts: Positions, ends: Positions
    ) -> dict[SegmentKey, RangeSize]:
        """Measure what lies between two positions of each segment, where anything does."""
        wanted = {
            key: end
            for key, end in ends.items()
            if key in snapshot.segments and starts.get(key, EARLIEST) < end
        }
        missing = {key: snapshot.segments[key] for key in wanted if key not in snapshot.of_log}
        snapshot.of_log.update(self._snapshots(missing))
        return {
            key: snapshot.of_log[key].measure(starts.get(key, EARLIEST), end)
            for key, end in wanted.items()
        }

    @staticmethod
    def ahead(
        topologies: Mapping[str, Topology],
        orders: Mapping[str, ReadingOrder],
        backlogs: Mapping[SegmentKey, RangeSize],
    ) -> dict[SegmentKey, Ahead]:
        """Tell for each released segment what is ahead of a reader in its range of keys.

        Parameters
        ----------
        topologies : mapping of str to Topology
        orders : mapping of str to ReadingOrder
            Of these topologies.
        backlogs : mapping of SegmentKey to RangeSize
            Of released segments and of those that wait for them.
        """
        messages: dict[str, dict[str, int]] = {name: {} for name in orders}
        sizes: dict[str, dict[str, int]] = {name: {} for name in orders}
        for (name, descriptor), backlog in backlogs.items():
            messages[name][descriptor], sizes[name][descriptor] = backlog.messages, backlog.bytes
        ahead = {}
        for name, order in orders.items():
            in_bytes = order.with_what_waits(topologies[name], sizes[name])
            in_messages = order.with_what_waits(topologies[name], messages[name])
            ahead.update({(name, at): Ahead(n, in_bytes[at]) for at, n in in_messages.items()})
        return ahead

    def limited(
        self,
        snapshot: Snapshot,
        starts: Positions,
        ends: Positions,
        ahead: Mapping[SegmentKey, Ahead],
        max_rows: int | None,
        max_bytes: int | None,
    ) -> dict[SegmentKey, Position]:
        """Share the limits of a micro-batch out in proportion to what is ahead in each segment.

        So keys whose segments were split or merged advance as fast as others do, and their rows do
        not come late to a watermark.
        """
        rows = sum(item.messages for item in ahead.values())
        size = sum(item.bytes for item in ahead.values())
        if (max_rows is None or rows <= max_rows) and (max_bytes is None or size <= max_bytes):
            return dict(ends)
        limited = dict(ends)
        for key, end in ends.items():
            if starts[key] >= end:
                continue
            item = ahead[key]
            limited[key] = snapshot.of_log[key].limit(
                starts[key],
                end,
                None if max_rows is None else max(1, int(max_rows * item.messages / max(rows, 1))),
                None if max_bytes is None else max(1, int(max_bytes * item.bytes / max(size, 1))),
            )
        return limited

    # -- partitions --------------------------------------------------------------------------

    def partitions(
        self,
        segments: Segments,
        ranges: Mapping[SegmentKey, Range],
        read_plan: Callable[[tuple[PlannedRange, ...]], ReadPlan | None],
        starts: Positions | None = None,
        deleted: Mapping[SegmentKey, str] | None = None,
        snapshot: Snapshot = NO_SNAPSHOT,
    ) -> list[SourcePartition]:
        """Plan partitions that read ``(start, end]`` of each segment.

        One task reads a whole range, unless `minPartitions` asks for more tasks than ranges.

        Parameters
        ----------
        segments : mapping of SegmentKey to SegmentRef
        ranges : mapping of SegmentKey to Range
            Those that are empty get no partition.
        read_plan : callable
            Returns what tasks register of the planned ranges; None if they register nothing.
        starts : mapping of SegmentKey to Position, optional
            Where the subscription gets its cursors.
        deleted : mapping of SegmentKey to str, optional
            Segments that are gone, and what is lost with them.
        snapshot : Snapshot
            In which the ends were found; what it says is not asked again.

        Raises
        ------
        DataLossError
        """
        ranges = {key: (start, end) for key, (start, end) in ranges.items() if start < end}
        if not ranges:
            return []
        deleted = deleted or {}
        losses = dict(deleted)
        there = {key: range_ for key, range_ in ranges.items() if key not in deleted}
        losses.update(self._trimmed(segments, there, snapshot))
        plan = read_plan(
            tuple(PlannedRange(segments[k].id, start, end) for k, (start, end) in ranges.items())
        )
        self._require_no_loss(losses, left_to_tasks=plan is not None)
        visibilities = self._visibilities(segments, there, snapshot)
        split_ends = self._split_ends(segments, there)
        cursors = tuple((segments[k].id, at) for k, at in (starts or {}).items() if k in segments)
        parts: list[SegmentRange] = []
        for key, (start, end) in ranges.items():
            visibility = visibilities.get(key, Visibility())
            lost, is_deleted = losses.get(key, ""), key in deleted
            whole = SegmentRange(segments[key], start, end, visibility, lost, is_deleted)
            parts += whole.split_at(split_ends.get(key, [end]))
        return [
            SourcePartition(
                ranges=own,
                columns=self._columns,
                fail_on_data_loss=self._fail_on_data_loss,
                store_uuid=self.components.store.identity.uuid,
                plan=plan,
                starts=cursors,
            )
            for own in shared_out(parts, self._tasks(len(ranges), len(parts)))
        ]

    def _tasks(self, ranges: int, parts: int) -> int:
        """Return how many tasks read so many ranges, or the parts that they are cut into."""
        least, most = self.options.get("minPartitions"), self.options.get("maxPartitions")
        if parts > ranges:  # cut to come to the least: each part has a task of its own
            return parts if most is None else min(parts, most)
        tasks = max(min(ranges, tasks_at_once() or ranges), min(least or 1, ranges))
        return tasks if most is None else min(tasks, most)

    def _require_no_loss(self, losses: Mapping[SegmentKey, str], *, left_to_tasks: bool) -> None:
        """Raise for what is lost, unless the tasks find out whether it is needed.

        Raises
        ------
        DataLossError
        """
        if self._fail_on_data_loss and left_to_tasks and not self.subscription:
            return
        for loss in losses.values():
            self._skip(loss, data_loss_error)

    def _trimmed(
        self, segments: Segments, ranges: Mapping[SegmentKey, Range], snapshot: Snapshot
    ) -> dict[SegmentKey, str]:
        """Say what is gone of the ranges of which not all is there."""
        losses = {}
        wanted = {}
        for key, (start, _) in ranges.items():
            # A native one is read from whatever is there.
            if segments[key].in_pulsar_domain and start == EARLIEST:
                continue
            # Nor is a log asked that the poll did not ask: the task finds out.
            spared = key in snapshot.readable and key not in snapshot.of_log
            if not (spared and self._fail_on_data_loss):
                wanted[key] = segments[key]
        starts = {key: ranges[key][0] for key in wanted}
        # What an earlier start has planned may have been in another topic.
        planned = {
            key: ref
            for key, ref in wanted.items()
            if ref.domain == PULSAR_DOMAIN and starts[key].entry >= 0 and key not in snapshot.of_log
        }
        of_log = {**snapshot.of_log, **self._native_snapshots(planned, starts)}
        trims = self._trims(wanted, of_log)
        for key, start in starts.items():
            if start < trims[key]:
                losses[key] = trimmed_range(segments[key], start, ranges[key][1], trims[key])
            elif key in of_log and not of_log[key].knows(start):
                losses[key] = another_topic(segments[key], start)
        return losses

    def _trims(
        self, segments: Segments, of_log: Mapping[SegmentKey, SegmentSnapshot]
    ) -> dict[SegmentKey, Position]:
        """Return up to where data is gone; only what no snapshot tells is asked for."""
        trims: dict[SegmentKey, Position] = {}
        for key in segments.keys() & of_log.keys():
            trimmed = of_log[key].trimmed_to()
            if trimmed is not None:
                trims[key] = trimmed
        for own in _by_domain({key: ref for key, ref in segments.items() if key not in trims}):
            refs = list(own.values())
            trims.update(zip(own, self.log_of(refs[0]).trimmed_to_of_each(refs), strict=True))
        return trims

    def _visibilities(
        self,
        segments: Segments,
        ranges: Mapping[SegmentKey, Range],
        snapshot: Snapshot,
    ) -> dict[SegmentKey, Visibility]:
        visibilities = dict.fromkeys(ranges, Visibility())  # where there is no gate, all is visible
        gated = []
        # Every transaction up to these ends is decided: a writer that was dropped stays dropped.
        for key, (_, end) in ranges.items():
            skipped = snapshot.skipped(key, end)
            if skipped is not None:
                visibilities[key] = skipped
            elif not segments[key].in_pulsar_domain:
                gated.append(key)
        if not gated:
            return visibilities
        ids = [segments[key].id for key in gated]
        gates = self.components.store.segments.gates(ids, [ranges[key] for key in gated])
        for key, gate in zip(gated, gates, strict=True):
            visibilities[key] = Visibility(gate.dropped, gate.floor)
        return visibilities

    def _split_ends(
        self,
        segments: Segments,
        ranges: Mapping[SegmentKey, Range],
    ) -> dict[SegmentKey, list[Position]]:
        """Return where each range is cut to come to the option `minPartitions`."""
        wanted = self.options.get("minPartitions")
        if wanted is None or wanted <= len(ranges):
            return {key: [end] for key, (_, end) in ranges.items()}
        logs = {key: self.log_of(segments[key]) for key in ranges}
        sizes = {k: logs[k].measure(segments[k], s, e).bytes for k, (s, e) in ranges.items()}
        total = sum(sizes.values()) or 1
        return {
            key: logs[key].split(
                segments[key], start, end, max(1, round(wanted * sizes[key] / total))
            )
            for key, (start, end) in ranges.items()
        }


def _orders(topologies: Mapping[str, Topology], read: SourceOffset) -> dict[str, ReadingOrder]:
    orders = {}
    for name, topology in topologies.items():
        topic = read.topics.get(name)
        # A topic that is not in the offset came later: it is read from its first message.
        at = {d: item.position for d, item in topic.segments.items()} if topic else {}
        orders[name] = ReadingOrder.of(topology, at)
    return orders


def _sealed_ends(
    topologies: Mapping[str, Topology], segments: Segments
) -> dict[SegmentKey, Position]:
    """Return the last entries of sealed segments: as LACs, they need no request."""
    ends = {}
    for key in segments:
        topology = topologies.get(key[0])
        segment = topology.by_descriptor.get(key[1]) if topology is not None else None
        if segment is not None and segment.sealed and segment.sealed_at is not None:
            ends[key] = segment.sealed_at
    return ends


def _deleted_topic_error(loss: str) -> DataLossError:
    return DataLossError(
        f"{loss}. Nothing was skipped: use the checkpoint's own options, set "
        "failOnDataLoss=false to go on with the topics that are there, or start with a "
        "new checkpoint"
    )


def _by_domain(segments: Segments) -> list[dict[SegmentKey, SegmentRef]]:
    """Return segments grouped by the log that they are in."""
    groups: dict[str, dict[SegmentKey, SegmentRef]] = {}
    for key, ref in segments.items():
        groups.setdefault(ref.domain, {})[key] = ref
    return list(groups.values())
