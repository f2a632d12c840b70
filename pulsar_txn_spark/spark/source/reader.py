"""The source: read-committed, from segmented topics, for streams and for batches."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pulsar_txn_spark import steps
from pulsar_txn_spark.announcement import announce
from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.errors import (
    DataLossError,
    OptionError,
    PulsarTxnError,
    TopologyConflictError,
    TransactionDomainError,
)
from pulsar_txn_spark.options import NO_OPTIONS, Offsets, Options, Use, refuse_endpoint
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentLog, SegmentRef
from pulsar_txn_spark.segments.reading_order import ReadingOrder, leaves_offset
from pulsar_txn_spark.segments.topic_name import PULSAR_DOMAIN, TopicName
from pulsar_txn_spark.segments.topology import Segment, SegmentState, Topology
from pulsar_txn_spark.spark.context import (
    TaskFacts,
    deliver_if_overdue,
    driver_name,
    name_of_attempt,
    spare_collections,
)
from pulsar_txn_spark.spark.error_boundary import plain_errors
from pulsar_txn_spark.spark.rows import needed_columns, to_spark_batches
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.offsets import SegmentOffset, SourceOffset, TopicOffset
from pulsar_txn_spark.spark.source.query_start import (
    Key as _Key,
)
from pulsar_txn_spark.spark.source.query_start import (
    Planted,
    SubscriptionStart,
    resolve_start,
    start_of,
)
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.records import Answer, Code, Cursor, CursorStart, Seen, TxnId
from pulsar_txn_spark.txn.committed import batch_is_committed
from pulsar_txn_spark.txn.coordinator import DEFAULT_TIMEOUT_MS
from pulsar_txn_spark.txn.pending_ack import PlannedRange, ReadPlan, require_claimed
from pulsar_txn_spark.txn.read_progress import ReadProgress, last_moved
from pulsar_txn_spark.txn.transaction_buffer import ReadableRange, Visibility

_LOG = logging.getLogger(__name__)
_MAX_ROWS = 16_384  # rows of an Arrow batch: Spark's own default is 10 000
LEFT_ALONE_S = 10.0
"""So long a source leaves a change of segments to whoever began it."""
_START_TRIES = 16  # each lost race means that somebody changed a topic or the subscription


def descriptor_of(segment: SegmentRef) -> str:
    """Return what names a segment within its topic."""
    return segment.id.rpartition("/")[2]


def partition_of(segment: SegmentRef) -> int:
    """Return the partition's number in a topic of Pulsar's own domain, -1 where there is none."""
    suffix = segment.log_name.removeprefix(segment.topic)
    found = re.fullmatch(r"-partition-(\d+)", suffix) if segment.in_pulsar_domain else None
    return int(found[1]) if found else -1


@dataclass(frozen=True)
class SegmentPartition(InputPartition):
    """A part of one segment's range, with all that a task needs to read it.

    Executors need the store only to say what they read, not to know what they may read.
    """

    given: tuple[tuple[str, str], ...] = field(repr=False)  # store.url, authParams
    use: int
    segment: SegmentRef
    start: Position
    end: Position
    visibility: Visibility
    columns: frozenset[str]
    fail_on_data_loss: bool
    store_uuid: str
    plan: ReadPlan | None
    starts: tuple[tuple[str, Position], ...] = ()
    """Where the micro-batch begins in every segment, by id: there the subscription has a cursor."""
    lost: str = ""
    """What of the segment's range is gone, in words."""
    deleted: bool = False
    """Whether the whole segment is gone."""


def require_options(given: Mapping[str, str], use: Use) -> Options:
    """Check the options of a source.

    Raises
    ------
    OptionError
    """
    options = Options(given, use)
    if not any(options.get(key) for key in ("topic", "topics", "topicsPattern")):
        raise OptionError(
            "no topic to read: give the option 'topic', 'topics' or 'topicsPattern', for example "
            "topic://public/default/flights" + ("" if options.given else NO_OPTIONS)
        )
    starting: Offsets | None = options.get("startingOffsets")
    if starting is not None and starting.word == "subscription" and not options.get("subscription"):
        raise OptionError(
            "startingOffsets='subscription' needs the option 'subscription', which is for streams: "
            "a batch read acknowledges nothing. Name the subscription, or use 'earliest' or JSON"
        )
    if options.get("subscription"):
        names = options.get("topics") or [options.get("topic")]
        for name in filter(None, names):
            _refuse_acknowledging(options.get("subscription"), str(name))
        _refuse_acknowledging(options.get("subscription"), options.get("topicsPattern") or "")
    return options


def _refuse_acknowledging(subscription: str, topic: str) -> None:
    """Refuse to acknowledge, in a transaction of ours, what a topic of Pulsar's own domain had.

    Raises
    ------
    TransactionDomainError
    """
    if topic.startswith(f"{PULSAR_DOMAIN}://"):
        raise TransactionDomainError(
            f"topic {topic} is of the domain {PULSAR_DOMAIN}://: subscription {subscription!r} "
            "would acknowledge in a transaction of this package what is under Pulsar's own, and "
            "none spans both. Leave the option 'subscription' out: the checkpoint keeps what was "
            "read, exactly once, and a replay reads the same"
        )


def check_source(given: Mapping[str, str]) -> None:
    """Check a source when it is loaded: options, connections, topics.

    Raises
    ------
    OptionError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
    """
    reader = _SegmentReader(given, StructType(), Use.READ)
    for topology in reader.topologies().values():
        reader.run.topics.reach(topology)


class _SegmentReader:
    """What the stream and the batch source have in common: topics, ends, ranges, partitions."""

    def __init__(self, given: Mapping[str, str], schema: StructType, use: Use) -> None:
        self.options = require_options(given, use)
        self.run: Runtime = runtime(self.options)
        self._use = use
        self._columns = needed_columns(schema)
        self._warned = False
        self._unfinished: dict[str, dict[str, float]] = {}  # topic -> change -> first seen
        self.topologies()  # a topic that is not there is an error now, not in the first batch

    # -- topics ------------------------------------------------------------------------------

    def topologies(self) -> dict[str, Topology]:
        """Return the topics as they are now."""
        pattern = self.options.get("topicsPattern")
        topics = self.run.topics
        if pattern is not None:
            # What is being created or deleted matches no pattern.
            matching = map(topics.readable_if_there, topics.matching(pattern))
            found = [topology for topology in matching if topology is not None]
            self._warn_of_nothing(pattern, found)
        else:
            names: list[TopicName] = self.options.get("topics") or [self.options.get("topic")]
            found = [topics.readable(name) for name in names]
        return {str(topology.topic): self._finished(topology) for topology in found}

    def _warn_of_nothing(self, pattern: str, found: Sequence[Topology]) -> None:
        if found or self._warned:
            return
        self._warned = True
        known = self.run.topics.names()
        listed = f"there are {len(known)}: {', '.join(known[:8])}" if known else "there is none"
        _LOG.warning(
            "topicsPattern %r matches no topic (%s): nothing is read until one comes. It has to "
            "match the whole name, such as topic://public/default/flights-.*, or what follows "
            "topic://",
            pattern,
            listed,
        )

    def _finished(self, topology: Topology) -> Topology:
        """Finish a split or merge that somebody has left half done.

        Not at once: nothing is lost meanwhile, as parents stay readable, and whoever began it is
        mostly alive. On Pulsar its steps take seconds, for which this query would stand.
        """
        now = time.monotonic()
        unfinished = {change.id for change in topology.unfinished}
        seen = self._unfinished.get(str(topology.topic), {})
        seen = {change: seen.get(change, now) for change in unfinished}
        self._unfinished[str(topology.topic)] = seen
        if not any(now - since >= LEFT_ALONE_S for since in seen.values()):
            return topology
        try:
            return self.run.topics.changes.finish(topology)
        except PulsarTxnError as error:
            if not topology.active:
                raise  # it is being adopted: there is no segment yet that could be read
            # A reader need not have the rights for it; whoever writes will come by.
            _LOG.warning("a change of %s is not finished yet: %s", topology.topic, error)
            return topology

    def segments(self, topologies: Mapping[str, Topology]) -> dict[_Key, SegmentRef]:
        """Return the segments of topics that can be read, by topic and descriptor."""
        return {
            (name, segment.descriptor): segment.ref
            for name, topology in topologies.items()
            for segment in topology.readable
        }

    def reading_orders(
        self, topologies: Mapping[str, Topology], start: SourceOffset
    ) -> dict[str, ReadingOrder]:
        """Tell which segments the next micro-batch may read (INV-10).

        Raises
        ------
        DataLossError
            If a segment was deleted before it was read to its end.
        """
        orders = {}
        for name, topology in topologies.items():
            topic = start.topics.get(name)
            at = {d: item.position for d, item in topic.segments.items()} if topic else {}
            order = orders[name] = ReadingOrder.of(topology, at, known=topic is not None)
            for segment in order.lost:
                self.refuse_deleted(segment, at.get(segment.descriptor, EARLIEST))
        return orders

    def refuse_deleted(self, segment: Segment, read_to: Position) -> None:
        """Raise for a segment that was deleted before it was read to its end.

        Raises
        ------
        DataLossError
            Unless failOnDataLoss is false.
        """
        message = self.told_of_deleted(segment, read_to)
        if self.options.get("failOnDataLoss", True):
            raise _lost(message)
        _LOG.warning("%s; skipped, as failOnDataLoss is false", message)

    @staticmethod
    def told_of_deleted(segment: Segment, read_to: Position) -> str:
        """Say what is lost with a segment that was deleted before it was read to its end."""
        return (
            f"segment {segment.descriptor} of {segment.ref.topic} was read up to {read_to}, and "
            f"then deleted by retention with all that it had up to {segment.sealed_at}. It is lost "
            "for this query"
        )

    # -- positions ---------------------------------------------------------------------------

    def readable(
        self, segments: Mapping[_Key, SegmentRef], starts: Mapping[_Key, Position]
    ) -> dict[_Key, ReadableRange]:
        """Tell how far each segment may be read."""
        gated = {key: ref for key, ref in segments.items() if not ref.in_pulsar_domain}
        by_id = {ref.id: ref for ref in gated.values()}
        asked: dict[str, Position] = {}

        def last_confirmed(segment_id: str) -> Position:
            # All are asked for at once, and each answer serves one look: the next one asks again.
            if segment_id not in asked:
                found = self.run.log.last_confirmed_of_each(list(by_id.values()))
                asked.update(zip(by_id, found, strict=True))
            return asked.pop(segment_id)

        found: dict[_Key, ReadableRange] = {}
        if gated:
            ranges = self.run.buffer.readable(
                [ref.id for ref in gated.values()],
                last_confirmed,
                [starts.get(key, EARLIEST) for key in gated],
                ends_only=True,  # the plan looks again, for its ranges
            )
            found.update(zip(gated, ranges, strict=True))
        others = [key for key in segments if key not in gated]
        if others:
            # There is no gate of ours: the log's end is up to where nothing is undecided.
            refs = [segments[key] for key in others]
            ends = self.log_of(refs[0]).last_confirmed_of_each(refs)
            for key, end in zip(others, ends, strict=True):
                found[key] = ReadableRange(max(starts.get(key, EARLIEST), end), Visibility())
        return {key: found[key] for key in segments}

    def log_of(self, segment: SegmentRef) -> SegmentLog:
        """Return the log that a segment is in."""
        return self.run.topics.log_of(segment)

    def resolve(
        self,
        offsets: Offsets,
        segments: Mapping[_Key, SegmentRef],
        unnamed: Callable[[_Key], Position],
    ) -> dict[_Key, Position]:
        """Turn an option's offsets into positions.

        Raises
        ------
        OptionError
            If it names a topic or segment that is not read.
        """
        positions: dict[_Key, Position] = {}
        for topic, by_segment in offsets.positions.items():
            for name, position in by_segment.items():
                key = (topic, name.rpartition("/")[2])
                if key not in segments:
                    known = ", ".join(sorted(d for t, d in segments if t == topic)) or "none"
                    raise OptionError(
                        f"the offsets name segment {name!r} of {topic}, which is not read here "
                        f"(its segments: {known})"
                    )
                positions[key] = position
        return {key: positions.get(key) or unnamed(key) for key in segments}

    # -- partitions --------------------------------------------------------------------------

    def plan_partitions(
        self,
        segments: Mapping[_Key, SegmentRef],
        ranges: Mapping[_Key, tuple[Position, Position]],
        plan: Callable[[tuple[PlannedRange, ...]], ReadPlan | None],
        starts: Mapping[_Key, Position] | None = None,
        deleted: Mapping[_Key, str] | None = None,
    ) -> list[SegmentPartition]:
        """Plan tasks that read ``(start, end]`` of each segment."""
        ranges = {key: (start, end) for key, (start, end) in ranges.items() if start < end}
        if not ranges:
            return []
        fail = self.options.get("failOnDataLoss", True)
        deleted = deleted or {}
        lost = dict(deleted)
        for key, (start, end) in ranges.items():
            if key not in deleted and (message := self._trimmed(segments[key], start, end)):
                lost[key] = message
        read_plan = plan(
            tuple(PlannedRange(segments[k].id, start, end) for k, (start, end) in ranges.items())
        )
        self._refuse_lost(lost, fail=fail, told_by_tasks=read_plan is not None)
        there = {key: range_ for key, range_ in ranges.items() if key not in deleted}
        visibilities = self._visibilities(segments, there)
        parts = self._parts(segments, there)
        begun = tuple((segments[k].id, at) for k, at in (starts or {}).items() if k in segments)
        partitions = []
        for key, (start, end) in ranges.items():
            visibility = visibilities.get(key, Visibility())
            low = start
            for high in parts.get(key, [end]):
                partitions.append(
                    SegmentPartition(
                        given=tuple(self.options.given.items()),
                        use=self._use.value,
                        segment=segments[key],
                        start=low,
                        end=high,
                        visibility=visibility,
                        columns=self._columns,
                        fail_on_data_loss=fail,
                        store_uuid=self.run.store.identity.uuid,
                        plan=read_plan,
                        starts=begun,
                        lost=lost.get(key, ""),
                        deleted=key in deleted,
                    )
                )
                low = high
        return partitions

    def _refuse_lost(self, lost: Mapping[_Key, str], *, fail: bool, told_by_tasks: bool) -> None:
        """Raise for what is lost, unless the tasks find out whether it is needed.

        Raises
        ------
        DataLossError
        """
        if fail and told_by_tasks and not self.options.get("subscription"):
            return
        for message in lost.values():
            if fail:
                raise _lost(message)
            _LOG.warning("%s; skipped, as failOnDataLoss is false", message)

    def _visibilities(
        self,
        segments: Mapping[_Key, SegmentRef],
        ranges: Mapping[_Key, tuple[Position, Position]],
    ) -> dict[_Key, Visibility]:
        found = dict.fromkeys(ranges, Visibility())  # where there is no gate, all is visible
        gated = [key for key in found if not segments[key].in_pulsar_domain]
        ids = [segments[key].id for key in gated]
        # Up to their ends all was decided when those were found: what was dropped then is dropped.
        gates = self.run.store.segments.gates(ids, [ranges[key] for key in gated]) if gated else []
        for key, gate in zip(gated, gates, strict=True):
            found[key] = Visibility(gate.dropped, gate.floor)
        return found

    def _parts(
        self,
        segments: Mapping[_Key, SegmentRef],
        ranges: Mapping[_Key, tuple[Position, Position]],
    ) -> dict[_Key, list[Position]]:
        wanted = self.options.get("minPartitions") or 0
        if wanted <= len(ranges):
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

    def _trimmed(self, segment: SegmentRef, start: Position, end: Position) -> str | None:
        """Say what of a range is gone; None if all of it is there."""
        if segment.in_pulsar_domain and start == EARLIEST:
            return None  # from whatever is there
        trimmed = self.log_of(segment).trimmed_to(segment)
        if start >= trimmed:
            return None
        return (
            f"segment {segment.id} of {segment.topic}: data from {start} on was to be read (to "
            f"{end}), but everything up to {trimmed} has been deleted. It is lost for this query"
        )


def _lost(message: str) -> DataLossError:
    return DataLossError(
        f"{message}. Nothing was skipped: set failOnDataLoss=false to go on with what is left, or "
        "start with a new checkpoint; then raise the topic's retention, or give the query a "
        "subscription, which holds the data until it was read"
    )


def read_partition(partition: SegmentPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read one partition in a task, after registering it for the sink to acknowledge."""
    spare_collections("read")
    options = Options(dict(partition.given), Use(partition.use))
    run = runtime(options)
    if run.store.identity.uuid != partition.store_uuid:
        raise DataLossError(
            f"this executor reaches metadata store {run.store.identity.uuid}, the driver "
            f"{partition.store_uuid}: give store.url a server that all of them reach"
        )
    if partition.plan is not None:
        facts = TaskFacts.of_task()
        _require_not_lost(run, partition, facts)
        _register(run, partition, facts)
    if partition.deleted:
        return iter(())
    start = partition.start
    log = run.topics.log_of(partition.segment)
    if not partition.fail_on_data_loss or partition.lost:
        start = max(start, min(log.trimmed_to(partition.segment), partition.end))
    batches = log.read(
        partition.segment,
        start,
        partition.end,
        visible=partition.visibility,
        columns=partition.columns,
        max_rows=_MAX_ROWS,
    )
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    segment = partition.segment
    index = partition_of(segment)
    return to_spark_batches(batches, schema, arrow_schema, segment.topic, index)


def _require_not_lost(run: Runtime, partition: SegmentPartition, facts: TaskFacts) -> None:
    """Raise for data that is gone, unless its batch is committed, so that nothing was lost.

    Spark repeats a batch that it has not noted as done. What is left of it is read once more, and
    the sink writes nothing.

    Raises
    ------
    DataLossError
    """
    if not partition.lost or not partition.fail_on_data_loss:
        return
    if not facts.query or not batch_is_committed(run.store, facts.query, facts.batch):
        raise _lost(partition.lost)
    _LOG.warning(
        "%s; but batch %d is committed, and its sinks write nothing now. If the query keeps state "
        "(aggregation, deduplication), the state may lack these rows",
        partition.lost,
        facts.batch,
    )


def _progress(run: Runtime, options: Options) -> ReadProgress:
    return ReadProgress(run.coordinator, options.get("txn.timeoutMs", DEFAULT_TIMEOUT_MS))


def _register(run: Runtime, partition: SegmentPartition, facts: TaskFacts) -> None:
    plan = partition.plan
    assert plan is not None
    if not facts.query or facts.batch < 0:
        return  # a thread of the user's: the source's commit(end) acknowledges what was read
    if plan.subscription:
        _claim(run, partition, plan, facts.query)
    registered = replace(plan, run_id=name_of_attempt(facts.run, plan.run_id))
    run.store.queries.register_plan(
        facts.query, str(facts.batch), plan.source, registered.serialize()
    )
    deliver_if_overdue(run)


def _refuse_beyond(
    option: str, given: Offsets, positions: Mapping[_Key, Position], ends: Mapping[_Key, Position]
) -> None:
    """Refuse offsets that a user has named beyond what can be read.

    Raises
    ------
    OptionError
    """
    for key, position in positions.items():
        if key[1] in _named(given, key[0]) and position > ends[key]:
            raise OptionError(
                f"{option} name {position} in segment {key[1]} of {key[0]}, but only up to "
                f"{ends[key]} anything is committed and readable now"
            )


def _named(offsets: Offsets, topic: str) -> set[str]:
    return {name.rpartition("/")[2] for name in offsets.positions.get(topic, {})}


def _claim(run: Runtime, partition: SegmentPartition, plan: ReadPlan, query: str) -> None:
    """Claim the subscription for the query where a task reads; at first, everywhere (INV-13).

    After that no other query can take it over in a segment that this one has not read yet. It also
    makes the cursors of a query of an earlier release, and of one whose subscription was deleted.
    """
    own = partition.segment.id
    start = next(r.start for r in plan.ranges if r.segment == own)

    def claim(starts: Mapping[str, Position], *, asks_only: bool = False) -> list[Answer]:
        answers = run.store.subscriptions.claim_cursors(
            plan.subscription, query, plan.incarnation, starts, asks_only=asks_only
        )
        for segment, answer in zip(starts, answers, strict=True):
            # Of another one that was deleted nothing is left to be read.
            if answer.code is not Code.DELETED or segment == own:
                require_claimed(plan.subscription, query, answer)
        return answers

    [answer] = claim({own: start}, asks_only=True)
    if answer.values[2]:  # not claimed yet
        everywhere = {**dict(partition.starts), own: start}
        # Who is refused anywhere claims nothing anywhere: else its successor would be refused.
        claim(everywhere, asks_only=True)
        claim(everywhere)
    if answer.values[0] < start.padded():
        # Spark has noted as done what lies in between.
        cursors = run.store.subscriptions.read_cursors(
            [own, *dict(partition.starts)], plan.subscription
        )
        behind = [last_moved(cursor, cursors) for cursor in cursors[:1] if cursor is not None]
        progress = _progress(run, Options(dict(partition.given), Use(partition.use)))
        progress.require_recorded(plan.subscription, behind)


@plain_errors
class PulsarTxnReader(DataSourceReader):
    """``read.format("pulsar_txn")``: what is committed now, once."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read of everything between the starting and the ending offsets."""
        reader = _SegmentReader(self._given, self._schema, Use.READ | Use.BATCH)
        options = reader.options
        refuse_endpoint(options, "a batch read ends too soon to be scraped")
        segments = reader.segments(reader.topologies())
        starting: Offsets = options.get("startingOffsets") or Offsets("earliest", {})
        ending: Offsets = options.get("endingOffsets") or Offsets("latest", {})
        readable = reader.readable(segments, {})
        latest = {key: found.end for key, found in readable.items()}
        from_start = starting.word == "earliest" or bool(starting.positions)
        starts = reader.resolve(
            starting, segments, lambda key: EARLIEST if from_start else latest[key]
        )
        ends = reader.resolve(ending, segments, lambda key: latest[key])
        _refuse_beyond("startingOffsets", starting, starts, latest)
        _refuse_beyond("endingOffsets", ending, ends, latest)
        ranges = {}
        for key, start in starts.items():
            named = key[1] in _named(starting, key[0])
            segment = segments[key]
            first = start if named else max(start, reader.log_of(segment).trimmed_to(segment))
            ranges[key] = (first, ends[key])
        # Spark refuses an empty list by a partition of its own, which read() answers with nothing.
        return list(reader.plan_partitions(segments, ranges, lambda _: None))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        if not isinstance(partition, SegmentPartition):
            return iter(())
        return read_partition(partition, self._schema)


@plain_errors
class PulsarTxnStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``readStream.format("pulsar_txn")``.

    Its driver side is one long-lived process for each query; ``read`` runs in tasks.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        # Checked when the query is planned, connected when it runs: planning makes one as well.
        self._options = require_options(given, Use.READ | Use.STREAM)
        self._reader: _SegmentReader | None = None
        self._source = secrets.token_hex(8)
        self._incarnation = 0
        self._available: dict[_Key, Position] | None = None
        self._latest: SourceOffset | None = None
        self._initial: dict[str, Any] | None = None
        self._held: dict[str, tuple[TxnId, ...]] = {}
        self._idle: IdleWatch
        self._serving = self._options.get("metrics.port") is None

    @property
    def _segments(self) -> _SegmentReader:
        if self._reader is None:
            self._reader = _SegmentReader(self._given, self._schema, Use.READ | Use.STREAM)
            self._incarnation = self._reader.run.store.meta.next_source_incarnation()
            self._idle = IdleWatch(self._reader.run)
            self._serve_metrics(self._reader.run)
            self._announce_transport()
        return self._reader

    def _announce_transport(self) -> None:
        """Tell, in the process beside the driver, how this query speaks with Pulsar."""
        config = self._options.pulsar_config()
        if config is not None:
            from pulsar_txn_spark.backends.pulsar.transport import choose_and_say

            chosen, why = choose_and_say(config)
            announce(f"transport {chosen}: {why}")

    def _serve_metrics(self, run: Runtime) -> None:
        """Open the endpoint in this process, which lives as long as the query.

        A port that cannot be had does not fail the query: after a restart the process of the run
        before may still have it. It is tried again after each micro-batch.
        """
        if self._serving:
            return
        from pulsar_txn_spark.prometheus import serve_if_asked

        try:
            serve_if_asked(self._options, run)
        except OptionError as error:
            _LOG.warning("%s. It is tried again after the next micro-batch", error)
            return
        self._serving = True

    def stop(self) -> None:
        """Let go of the connection that waits for events: the query has ended."""
        if self._reader is not None:
            self._idle.close()

    # -- offsets -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts, which then does not change any more.

        Spark asks for it twice in a query's first batch, and again where it repeats that batch
        after a restart.
        """
        if self._initial is None:
            self._initial = self._start().to_json()
        return self._initial

    def _start(self) -> SourceOffset:
        """Find out where the query starts, and hold it there (INV-13)."""
        reader = self._segments
        for _ in range(_START_TRIES):
            topologies = reader.topologies()
            segments = reader.segments(topologies)
            cursors = self._cursors(segments)
            subscription = self._options.get("subscription") or ""
            given: Offsets | None = self._options.get("startingOffsets")
            start = resolve_start(given, subscription, topologies, cursors)
            positions = self._starts(start, segments)
            if not subscription or not start.plants:
                return self._offset(topologies, positions, all_of_them=bool(start.known))
            named = {key: position for key, position in positions.items() if key in start.known}
            planted = self._plant(topologies, segments, start, positions)
            # A child that came meanwhile might have been trimmed before anybody knew that this
            # query needs it: the next round plants a cursor there, too.
            if planted is not None and set(segments) == set(reader.segments(reader.topologies())):
                deleted = self._deleted(topologies) if named else {}
                return self._offset(topologies, deleted | planted, all_of_them=bool(named))
        raise TopologyConflictError(
            f"the segments of {', '.join(topologies)}, or the cursors of subscription "
            f"{subscription!r}, changed {_START_TRIES} times while the query was starting. Nothing "
            "was read: start it again when splits, merges and resets have ended"
        )

    def _starts(
        self, start: SubscriptionStart, segments: Mapping[_Key, SegmentRef]
    ) -> dict[_Key, Position]:
        """Return where each segment is begun with."""
        reader = self._segments
        offsets = start.offsets
        latest: dict[_Key, Position] = {}
        if offsets.word == "latest" and any(key not in start.known for key in segments):
            readable = reader.readable(segments, {})
            latest = {key: found.end for key, found in readable.items()}

        def unnamed(key: _Key) -> Position:
            if key in latest:
                return latest[key]
            return reader.log_of(segments[key]).trimmed_to(segments[key])

        positions = reader.resolve(offsets, segments, unnamed)
        if offsets.positions:
            readable = reader.readable(segments, {})
            ends = {key: found.end for key, found in readable.items()}
            _refuse_beyond("startingOffsets", offsets, positions, ends)
        return positions | {key: at for key, at in start.known.items() if key in segments}

    def _plant(
        self,
        topologies: Mapping[str, Topology],
        segments: Mapping[_Key, SegmentRef],
        start: SubscriptionStart,
        positions: Mapping[_Key, Position],
    ) -> dict[_Key, Position] | None:
        """Plant the cursors that are missing; None if others have changed some meanwhile."""
        subscription = self._options.get("subscription")
        store = self._segments.run.store
        named = start.offsets.positions
        begun = dict(positions)
        for name, topology in topologies.items():
            # Parents come first: who stands in a child is through with its parents.
            wanted = {
                (name, s.descriptor): CursorStart(
                    positions[name, s.descriptor],
                    may_skip=s.descriptor not in named.get(name, {})
                    and s.ref.id not in named.get(name, {}),
                )
                for s in topology.readable
                if not s.ref.in_pulsar_domain
            }
            mark = str(Planted.at(start_of(start.offsets), topology))
            answers = store.subscriptions.plant_cursors(
                subscription, {segments[key].id: one for key, one in wanted.items()}, mark
            )
            for key, answer in zip(wanted, answers, strict=True):
                segment = topology.segment(key[1])
                if answer.code is Code.OK:
                    begun[key] = Position.from_padded(answer.values[0])
                elif answer.code is Code.ALREADY and key not in start.known:
                    return None
                elif answer.code is Code.DELETED and segment.sealed_at is not None:
                    # Retired by retention, with nothing left in it for anybody.
                    begun[key] = segment.sealed_at
        return begun

    @staticmethod
    def _deleted(topologies: Mapping[str, Topology]) -> dict[_Key, Position]:
        """Return the ends of deleted segments: the subscription was through with them."""
        return {
            (name, segment.descriptor): segment.sealed_at
            for name, topology in topologies.items()
            for segment in topology.segments
            if segment.state is SegmentState.DELETED and segment.sealed_at is not None
        }

    def _cursors(self, segments: Mapping[_Key, SegmentRef]) -> dict[_Key, Cursor | None]:
        subscription = self._options.get("subscription")
        if not subscription:
            return {}
        store = self._segments.run.store
        found = store.subscriptions.read_cursors(
            [ref.id for ref in segments.values()], subscription
        )
        return dict(zip(segments, found, strict=True))

    def _offset(
        self,
        topologies: Mapping[str, Topology],
        positions: Mapping[_Key, Position],
        *,
        all_of_them: bool = False,
    ) -> SourceOffset:
        """Make an offset; what a reader may forget stands in it only with `all_of_them`."""
        store = self._segments.run.store
        topics = {}
        for name, topology in topologies.items():
            segments = {}
            own = {d: position for (topic, d), position in positions.items() if topic == name}
            for segment in topology.segments:
                position = own.get(segment.descriptor)
                leaves = not all_of_them and leaves_offset(segment, topology, own)
                if position is not None and not leaves:
                    gated = not segment.ref.in_pulsar_domain
                    seen = store.seen(f"seg:{segment.ref.id}") if gated else Seen(0)
                    segments[segment.descriptor] = SegmentOffset(position, *seen)
            topics[name] = TopicOffset(topology.incarnation, segments)
        return SourceOffset(store.identity.uuid, store.identity.epoch, topics)

    def _understood(
        self, tree: Mapping[str, Any], topologies: Mapping[str, Topology]
    ) -> SourceOffset:
        """Read an offset, and refuse one that belongs elsewhere.

        Raises
        ------
        StoreRolledBackError, DataLossError
        """
        offset = SourceOffset.from_json(tree)
        store = self._segments.run.store
        offset.require_store(store.identity)
        for name, topic in offset.topics.items():
            topology = topologies.get(name)
            if topology is None:
                raise DataLossError(
                    f"the checkpoint has read topic {name}, which these options do not read "
                    f"({', '.join(topologies) or 'none'}): the checkpoint belongs to another "
                    "query, or the topic was deleted. Use the checkpoint's own options, or a new "
                    "checkpoint"
                )
            if topology.incarnation != topic.incarnation:
                raise DataLossError(
                    f"topic {name} was deleted and created again since the checkpoint was written "
                    f"(incarnation {topic.incarnation}, now {topology.incarnation}): what was not "
                    "read then is gone. Start with a new checkpoint"
                )
            known = {descriptor_of(segment.ref): segment.ref for segment in topology.segments}
            for descriptor in topic.segments:
                if descriptor not in known and not topology.topic.segmented:
                    raise DataLossError(
                        f"the checkpoint has read {descriptor} of {name}, which has "
                        f"{', '.join(known)} now: it was deleted and created again, and what was "
                        "not read then is gone. Start with a new checkpoint"
                    )
                if descriptor not in known:
                    raise DataLossError(
                        f"the checkpoint has read segment {descriptor} of {name}, which is not in "
                        "its topology: the metadata store is older than the checkpoint. Restore "
                        "the store"
                    )
            store.bear_witness(
                {
                    f"seg:{known[d].id}": Seen(item.seq, item.history)
                    for d, item in topic.segments.items()
                    if item.seq
                }
            )
        return offset

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch reads: committed data, within the limits."""
        reader = self._segments
        if self._idle.still(start):
            return start
        found = self._look(reader, start, limit)
        self._idle.after(start, self._held, nothing=found == start)
        return SourceOffset.with_beginning(found, start) if start == self._initial else found

    def _look(
        self, reader: _SegmentReader, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        self._idle.begin()
        # The order matters: what is sealed, then LAC, then the gate.
        topologies = reader.topologies()
        read = self._understood(start, topologies)
        starts = read.positions()
        orders = reader.reading_orders(topologies, read)
        segments = {
            key: ref
            for key, ref in reader.segments(topologies).items()
            if key[1] not in orders[key[0]].passed
        }
        self._idle.before(segments.values(), topologies)
        readable = reader.readable(segments, starts)
        self._held = {segments[key].id: found.blocked_by for key, found in readable.items()}
        latest = {key: found.end for key, found in readable.items()}
        self._latest = self._offset(topologies, {**starts, **latest})
        # A child waits until its parents have been read in an earlier micro-batch (INV-10).
        ends = {key: end for key, end in latest.items() if key[1] in orders[key[0]].released}
        # A segment that the checkpoint does not know is new: it starts at its beginning (INV-10).
        lows = {key: starts.get(key, EARLIEST) for key in ends}
        if self._available is not None:
            ends = {
                key: max(lows[key], min(end, self._available.get(key, lows[key])))
                for key, end in ends.items()
            }
        # Spark takes one limit only, so it asks with that one or with none: both options hold then.
        bounded = not isinstance(limit, ReadAllAvailable)
        max_rows = self._options.get("maxMessagesPerTrigger") if bounded else None
        max_bytes = self._options.get("maxBytesPerTrigger") if bounded else None
        if max_rows is not None or max_bytes is not None:
            ends = self._limited(segments, lows, ends, max_rows, max_bytes)
        # Equal positions must give the equal offset, or Spark would run empty batches for ever.
        if all(starts.get(key) == end or end == EARLIEST for key, end in ends.items()):
            return start
        return self._offset(topologies, {**starts, **ends}).to_json()

    def _limited(
        self,
        segments: Mapping[_Key, SegmentRef],
        lows: Mapping[_Key, Position],
        ends: Mapping[_Key, Position],
        max_rows: int | None,
        max_bytes: int | None,
    ) -> dict[_Key, Position]:
        """Share the limits out in proportion to what each segment has waiting."""
        logs = {key: self._segments.log_of(segments[key]) for key in ends}
        waiting = {
            key: logs[key].measure(segments[key], lows[key], end)
            for key, end in ends.items()
            if lows[key] < end
        }
        rows = sum(size.messages for size in waiting.values())
        size = sum(size.bytes for size in waiting.values())
        if (max_rows is None or rows <= max_rows) and (max_bytes is None or size <= max_bytes):
            return dict(ends)
        limited = dict(ends)
        for key, own in waiting.items():
            limited[key] = logs[key].limit(
                segments[key],
                lows[key],
                ends[key],
                None if max_rows is None else max(1, max_rows * own.messages // max(rows, 1)),
                None if max_bytes is None else max(1, max_bytes * own.bytes // max(size, 1)),
            )
        return limited

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limits that the options ask for."""
        if self._options.get("maxMessagesPerTrigger"):
            return ReadMaxRows(self._options.get("maxMessagesPerTrigger"))
        if self._options.get("maxBytesPerTrigger"):
            return ReadMaxBytes(self._options.get("maxBytesPerTrigger"))
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note what is there now: the query ends when that is read."""
        reader = self._segments
        segments = reader.segments(reader.topologies())
        readable = reader.readable(segments, {})
        self._available = {key: found.end for key, found in readable.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the latest readable offset without limits: progress minus this is the lag."""
        return self._latest.to_json() if self._latest else None

    # -- reading -----------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a micro-batch."""
        reader = self._segments
        topologies = reader.topologies()
        segments = reader.segments(topologies)
        lows = self._understood(start, topologies).positions()
        ending = self._understood(end, topologies)
        if ending.begun is not None and start == self._initial:
            lows = dict(ending.begun)  # the first batch, which may be repeated
        highs = ending.positions()
        ranges = {
            key: (lows.get(key, EARLIEST), high)
            for key, high in highs.items()
            if lows.get(key, EARLIEST) != high
        }
        backwards = [f"{k[1]} of {k[0]}" for k, (low, high) in ranges.items() if low > high]
        if backwards:
            raise DataLossError(
                f"the checkpoint's offsets run backwards in segment {backwards[0]}: restore the "
                "checkpoint"
            )
        subscribed = bool(self._options.get("subscription"))
        lost: dict[_Key, str] = {}
        for key, (low, _) in list(ranges.items()):
            if key in segments:
                continue
            segment = topologies[key[0]].segment(key[1])
            if subscribed:
                reader.refuse_deleted(segment, low)
                del ranges[key]
            else:
                # A task knows which batch it is, and whether that is committed already.
                lost[key] = reader.told_of_deleted(segment, low)
                segments[key] = segment.ref
        starts = lows if subscribed else {}
        return list(reader.plan_partitions(segments, ranges, self._plan, starts, lost))

    def _plan(self, ranges: tuple[PlannedRange, ...]) -> ReadPlan:
        subscription = self._options.get("subscription") or ""
        # The tasks complete the attempt's name.
        return ReadPlan(self._source, self._incarnation, subscription, driver_name(), ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, in a task."""
        assert isinstance(partition, SegmentPartition)
        return read_partition(partition, self._schema)

    # -- acknowledging what no transaction of ours did -----------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Move the subscription's cursor to `end`, where the sink's transaction has not.

        Spark has written its commit log: it will not ask for anything up to `end` again.
        """
        steps.reach(Step.SPARK_COMMIT_LOG, Phase.AFTER)
        subscription = self._options.get("subscription")
        reader = self._segments
        reader.run.sweeps.nudge()
        self._serve_metrics(reader.run)
        if not subscription:
            return
        topologies = reader.topologies()
        segments = reader.segments(topologies)
        ends = self._understood(end, topologies).positions()
        behind: dict[str, tuple[Cursor, Position]] = {}
        cursors = self._cursors(segments)
        for key, cursor in cursors.items():
            target = ends.get(key)
            if cursor is None or target is None or cursor.position >= target or not cursor.query:
                continue
            behind[segments[key].id] = last_moved(cursor, cursors.values()), target
        if behind:
            _progress(reader.run, self._options).catch_up(subscription, self._incarnation, behind)
        self._release(topologies, ends, cursors)

    def _release(
        self,
        topologies: Mapping[str, Topology],
        ends: Mapping[_Key, Position],
        cursors: Mapping[_Key, Cursor | None],
    ) -> None:
        """Let retention have the sealed segments that no replay will read again.

        Of a segment that still takes rows, the next acknowledgement says as much (and one more
        request in each micro-batch would buy nothing).
        """
        by_query: dict[str, dict[str, Position]] = {}
        for key, cursor in cursors.items():
            segment = topologies[key[0]].segment(key[1])
            end = ends.get(key)
            if cursor is None or end is None or not segment.drained_at(end):
                continue
            # Nobody's, after a reset: this query has begun where it stands, and claims only what
            # it reads.
            if cursor.released < end:
                by_query.setdefault(cursor.query, {})[segment.ref.id] = end
        subscription = self._options.get("subscription")
        for query, positions in by_query.items():
            self._segments.run.store.subscriptions.release_cursors(subscription, query, positions)
