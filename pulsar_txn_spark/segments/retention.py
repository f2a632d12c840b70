"""Retention: what nobody needs any more, and the user does not want to keep, goes.

Two things have to come together. A row is *needed* while a subscription may ask for it. As Spark
replays its last batch, it may ask once more. A row is also needed while an open transaction blocks
readers in front of it. And it is *kept* for as long as the topic's retention says. By default that
is for ever.

A segment that takes rows is trimmed from its beginning. One that was sealed, that every
subscription has read to its end, and whose retention is over, is deleted:

1. *hand over*: each of its subscriptions gets a cursor before the first row of each child. Else
   nobody would know any more that a subscription that has not begun with the child still needs it.
   A query whose start has died before a child begins there elsewhere: the segment stays until then;
2. *drained*: the topology says that everybody has read it;
3. *retire*, in one step of the segment's metadata, which refuses while a pin, a pending
   acknowledgement or a subscription needs the segment. From here on every request to register
   anything there is refused, however late it comes (INV-5, INV-6). There is no way back;
4. *deleted*: the topology says so, and readers that had not read it are told of their loss;
5. the log goes;
6. *purge*: its metadata goes, but for the mark of retention step 3. Not before the log: what is
   left of a log is read by its dropped writers (INV-5);
7. the topology says that nothing is left to do.

Each step may be repeated, by several at once; whoever sweeps next goes on where another one died.
Segments go from the roots of the topology on, so that no reader finds a hole in the middle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogUnreachableError,
    StoreUnavailableError,
    TopologyConflictError,
)
from pulsar_txn_spark.json_record import of_tree
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.initial_cursor import InitialCursor, number_of
from pulsar_txn_spark.segments.log import SegmentLog, SegmentRef
from pulsar_txn_spark.segments.topic_lifecycle import remove_logs
from pulsar_txn_spark.segments.topology import Segment, SegmentState, TopicState, Topology
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import Code, RetainedPositions
from pulsar_txn_spark.unavailable_logs import UnavailableLogs

RETENTION_PROPERTY = "__retention"
"""System property of a topic with its retention."""

LEASE_MS = 60_000
"""How long a process that dies while it maintains a topic keeps others off."""

_TRIES = 64  # each lost race means that another change of the same topic got on
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
FOREVER = "forever"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a topic keeps what no subscription needs any more.

    With neither, everything stays. With both, a row goes as soon as it is beyond one of them.
    Subscriptions that need more than that get it.

    Parameters
    ----------
    time_ms : int or None
        Rows that were published longer ago go; None = no limit.
    size_bytes : int or None
        So many bytes of the topic stay, the youngest ones; None = no limit.

    Raises
    ------
    OptionError
        If a limit is negative.
    """

    time_ms: int | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        for what, value in (("time", self.time_ms), ("size", self.size_bytes)):
            if value is not None and value < 0:
                raise OptionError(f"the {what} of a retention: expected at least 0, found {value}")

    @property
    def forever(self) -> bool:
        """Whether everything stays."""
        return self.time_ms is None and self.size_bytes is None

    def __str__(self) -> str:
        if self.forever:
            return "everything is kept"
        limits = []
        if self.time_ms is not None:
            limits.append(f"for {_readable(self.time_ms, _UNITS_MS)}")
        if self.size_bytes is not None:
            limits.append(f"up to {_readable(self.size_bytes, _UNITS_BYTES)}")
        return f"what was read is kept {' and '.join(limits)}"

    def serialize(self) -> str:
        """Return the value of the topic's property."""
        return json.dumps({"time_ms": self.time_ms, "size_bytes": self.size_bytes})

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Retention:
        """Read it from a topic's properties."""
        text = properties.get(RETENTION_PROPERTY)
        return of_tree(cls, json.loads(text)) if text else cls()

    @classmethod
    def parse(cls, time: str | None, size: str | None) -> Retention:
        """Read limits such as ``7d`` and ``10GiB``; ``forever`` or None = no limit.

        Raises
        ------
        OptionError
        """
        return cls(
            _amount(time, _UNITS_MS, "time", "'30m', '12h', '7d'"),
            _amount(size, _UNITS_BYTES, "size", "'500MiB', '10GiB'"),
        )


def _readable(amount: int, units: Mapping[str, int]) -> str:
    fitting = [unit for unit, size in units.items() if amount % size == 0 and amount >= size]
    unit = fitting[-1] if fitting else next(iter(units))
    return f"{amount // units[unit]}{unit}"


def _amount(text: str | None, units: Mapping[str, int], what: str, examples: str) -> int | None:
    if text is None or text == FOREVER:
        return None
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2] not in units:
        raise OptionError(
            f"the {what} of a retention: expected a number with one of the units "
            f"{', '.join(filter(None, units))} ({examples}), or {FOREVER!r}, found {text!r}"
        )
    return int(match[1]) * units[match[2]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What retention says of one segment.

    Parameters
    ----------
    segment : Segment
    gone : Position
        Up to where data is gone already.
    expired : Position
        Up to where the user does not want to keep it.
    needed : Position
        From where on somebody needs it.
    retained_by : tuple of str
        Who that is, where it is that which keeps data beyond its retention.
    delete : bool
        Whether the whole segment may go.
    """

    segment: Segment
    gone: Position
    expired: Position
    needed: Position
    retained_by: tuple[str, ...] = ()
    delete: bool = False

    @property
    def trim_to(self) -> Position:
        """Up to where data may go now."""
        return min(self.expired, self.needed)

    @property
    def does_anything(self) -> bool:
        """Whether there is anything to do."""
        return self.delete or self.trim_to > self.gone


@dataclass(slots=True)
class RetentionReport:
    """What was trimmed and deleted: ids of segments; and what could not be, and why."""

    trimmed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def needs(
    topology: Topology, retained: Mapping[str, RetainedPositions]
) -> dict[str, dict[str, Position | None]]:
    """Tell from where on each subscription needs each segment.

    Parameters
    ----------
    topology : Topology
    retained : mapping of str to RetainedPositions
        By segment id.

    Returns
    -------
    dict
        Segment id → subscription → up to where it needs nothing; None = nothing at all. A
        subscription that stands in a child is through with the parents (INV-10). One that is known
        somewhere in the topic, but neither here nor in a child, may still come: it needs all.
    """
    names = {name for cursor_holds in retained.values() for name in cursor_holds.released}
    stands: dict[str, set[str]] = {}  # here, or in what came of it
    needed: dict[str, dict[str, Position | None]] = {}
    for segment in reversed(topology.segments):
        id_ = segment.ref.id
        here = retained[id_].released if id_ in retained else {}
        further: set[str] = set().union(*(stands[child] for child in segment.children))
        stands[id_] = further | set(here)
        needed[id_] = {
            name: here.get(name, None if name in further else EARLIEST) for name in names
        }
    return needed


def drained(segment: Segment, needed: Mapping[str, Position | None]) -> bool:
    """Tell whether every subscription is through with a segment."""
    return segment.sealed and all(
        position is None or segment.drained_at(position) for position in needed.values()
    )


def _starting(
    topology: Topology, segment: Segment, retained: Mapping[str, RetainedPositions]
) -> list[str]:
    """Return the subscriptions whose query's start has come to a segment, but not to its children.

    The start goes on, or its next attempt does, and begins in the children where it is to. A cursor
    before their first row would pass for its own. Children that came after the start get one.
    """
    here = retained[segment.ref.id]
    by_id = topology.by_id
    children = [by_id[child] for child in segment.children if child in retained]
    return [
        name
        for name, mark in here.query_start.items()
        if mark and not here.queries[name]
        if any(
            number_of(child) < InitialCursor.parse(mark).next_segment
            and name not in retained[child.ref.id].released
            for child in children
        )
    ]


class _Inherited(NamedTuple):
    """A cursor that a hand-over has made in a child."""

    segment: str
    subscription: str
    query: str
    source_epoch: int


class RetentionSweep:
    """Applies the retention of all topics.

    Parameters
    ----------
    store : MetadataStore
    log : SegmentLog
    readable_to : callable
        Tells for segments how far they may be read: no open transaction lies before that.
    owner : str
        Names this process.
    """

    def __init__(
        self,
        store: MetadataStore,
        log: SegmentLog,
        readable_to: Callable[[Sequence[SegmentRef]], Sequence[Position]],
        owner: str,
    ) -> None:
        self._store = store
        self._log = log
        self._readable_to = readable_to
        self._owner = owner
        self._unavailable = UnavailableLogs()

    def sweep(self, settle: Callable[[str], None]) -> RetentionReport:
        """Maintain all topics; one that fails keeps no other from it.

        Parameters
        ----------
        settle : callable
            Called with the id of each segment that was trimmed: lets dropped writers go whose
            entries went.

        Raises
        ------
        StoreUnavailableError, SegmentLogUnreachableError
        """
        report = RetentionReport()
        self._unavailable.begin()
        for name in self._unavailable.in_order(self._store.meta.list_topics()):
            try:
                self._look_after(name, settle, report)
            except (StoreUnavailableError, SegmentLogUnreachableError):
                raise
            except PulsarTxnError as error:
                report.failed[name] = str(error)
        return report

    def _look_after(
        self, name: str, settle: Callable[[str], None], report: RetentionReport
    ) -> None:
        topology = self._read(name)
        if topology is None:
            return
        retention = Retention.of(self._store.topics.read_properties(name))
        begun = [s for s in topology.segments if _deletion_begun(s)]
        if retention.forever and not begun:
            return
        with self._unavailable.attempt(name):
            self._maintain(topology, retention, begun, settle, report)

    def _maintain(
        self,
        topology: Topology,
        retention: Retention,
        begun: Sequence[Segment],
        settle: Callable[[str], None],
        report: RetentionReport,
    ) -> None:
        if not self._lease(topology):
            return
        try:
            self._finish(topology, begun, report)
            now = None if retention.forever else self._read(str(topology.topic))
            # What one topic does not keep is no reason to trim another one of its name (INV-12).
            if now is not None and now.instance_id == topology.instance_id:
                self._apply(now, retention, settle, report)
        finally:
            self._lease(topology, 0)

    def _lease(self, topology: Topology, lease_ms: int = LEASE_MS) -> bool:
        """Be the only one who maintains a topic, or go on to be; tell whether this is."""
        name, life = str(topology.topic), topology.instance_id
        leased = self._store.topics.lease(name, self._owner, lease_ms, instance_id=life)
        return leased.code is Code.OK

    def _finish(
        self, topology: Topology, begun: Sequence[Segment], report: RetentionReport
    ) -> None:
        """Finish what somebody has begun, whatever the retention says now."""
        for segment, retained in zip(begun, self._retained(begun), strict=True):
            if segment.state is SegmentState.DELETED or retained.retired:
                self._erase(topology, segment)
                report.deleted.append(segment.ref.id)

    def _apply(
        self,
        topology: Topology,
        retention: Retention,
        settle: Callable[[str], None],
        report: RetentionReport,
    ) -> None:
        # Also what nobody may delete yet: a log may have lost what kept it.
        self._log.protect_each([segment.ref for segment in topology.readable])
        for verdict in self.judge(topology, retention):
            ref = verdict.segment.ref
            if not verdict.delete and verdict.trim_to <= verdict.gone:
                continue
            # What came before may have taken as long as the lease.
            if not self._lease(topology):
                return
            if verdict.delete:
                # If somebody needs it after all, nothing of the verdict holds: the next one will.
                if self._delete(topology, verdict.segment):
                    report.deleted.append(ref.id)
            else:
                # A subscription may have come since it was judged: it is seen here, and one that
                # comes later begins behind the mark (INV-13).
                marked = self._store.segments.mark_trimmed(ref.id, verdict.trim_to)
                if marked.code not in (Code.OK, Code.ALREADY):
                    continue
                if self._log.trim(ref, verdict.trim_to) > verdict.gone:
                    report.trimmed.append(ref.id)
                settle(ref.id)

    def judge(self, topology: Topology, retention: Retention) -> list[Verdict]:
        """Tell what may go of each segment, in the topology's order; changes nothing.

        (But a transaction that blocks readers and is over is completed, as by any reader.)
        """
        segments = topology.readable
        refs = [segment.ref for segment in segments]
        gone = {ref.id: self._log.trimmed_to(ref) for ref in refs}
        expired = self._expired(segments, gone, retention)
        # How far it may be read, first: a subscription that comes later begins at what is left.
        readable = dict(zip([r.id for r in refs], self._readable_to(refs), strict=True))
        retained = dict(zip([r.id for r in refs], self._retained(segments), strict=True))
        needed = needs(topology, retained)
        by_id = topology.by_id
        materialized: dict[str, bool] = {}
        for segment in topology.segments:  # parents stand before their children
            id_ = segment.ref.id
            # To stand at the beginning of one that was sealed empty says nothing of its parents.
            materialized[id_] = segment.state is SegmentState.DELETED or (
                drained(segment, needed[id_]) and all(materialized[p] for p in segment.parents)
            )
        verdicts = []
        for segment in segments:
            id_ = segment.ref.id
            bounds = {f"subscription {n}": p for n, p in needed[id_].items() if p is not None}
            bounds["an open transaction, or the end of the log"] = readable[id_]
            lowest = min(bounds.values())
            siblings = {p for child in segment.children for p in by_id[child].parents}
            delete = (
                materialized[id_]
                and segment.drained_at(expired[id_])
                and segment.drained_at(readable[id_])
                # No hole in the middle, and no child that a subscription is handed over to while it
                # has not read all of the child's parents.
                and all(by_id[p].state is SegmentState.DELETED for p in segment.parents)
                and all(materialized[p] for p in siblings)
            )
            retained_by = sorted(who for who, at in bounds.items() if at == lowest < expired[id_])
            if delete and (starting := _starting(topology, segment, retained)):
                retained_by += [f"subscription {name}" for name in starting]
                delete = False
            if delete and not segment.adopted:  # what was adopted keeps its data
                others = self._log.backlogs_of_others(segment.ref)
                retained_by += [f"Pulsar subscription {name}" for name in others]
                delete = not others
            verdicts.append(
                Verdict(segment, gone[id_], expired[id_], lowest, tuple(retained_by), delete)
            )
        return verdicts

    # -- what may go ---------------------------------------------------------------------------

    def _retained(self, segments: Iterable[Segment]) -> list[RetainedPositions]:
        return self._store.segments.retained([segment.ref.id for segment in segments])

    def _expired(
        self, segments: Sequence[Segment], gone: Mapping[str, Position], retention: Retention
    ) -> dict[str, Position]:
        expired = dict(gone)
        if retention.time_ms is not None:
            _, now_ms = self._store.transactions.lowest_open(0)
            for segment in segments:
                at = self._log.published_before(segment.ref, now_ms - retention.time_ms)
                expired[segment.ref.id] = max(expired[segment.ref.id], at)
        if retention.size_bytes is not None:
            for id_, at in self._oversized(segments, gone, retention.size_bytes).items():
                expired[id_] = max(expired[id_], at)
        return expired

    def _oversized(
        self, segments: Sequence[Segment], gone: Mapping[str, Position], size_bytes: int
    ) -> dict[str, Position]:
        """Tell what has to go so that the topic is of that size: the oldest segments first.

        Those that take rows are of one age, and share what is too much.
        """
        ends = {s.ref.id: self._log.last_confirmed(s.ref) for s in segments}
        sizes = {
            s.ref.id: self._log.measure(s.ref, gone[s.ref.id], ends[s.ref.id]).bytes
            for s in segments
        }
        excess = sum(sizes.values()) - size_bytes
        bounds: dict[str, Position] = {}
        for segment in (s for s in segments if s.sealed):
            id_ = segment.ref.id
            bounds[id_] = self._cut(segment.ref, gone[id_], ends[id_], sizes[id_], excess)
            excess -= sizes[id_]
        active = [s for s in segments if not s.sealed]
        total = sum(sizes[s.ref.id] for s in active)
        for segment in active:
            id_ = segment.ref.id
            share = excess * sizes[id_] // total if total else 0
            bounds[id_] = self._cut(segment.ref, gone[id_], ends[id_], sizes[id_], share)
        return bounds

    def _cut(
        self, ref: SegmentRef, start: Position, end: Position, size: int, excess: int
    ) -> Position:
        """Return up to where no more than `excess` bytes go."""
        if excess <= 0:
            return start
        if excess >= size:
            return end
        at = self._log.limit(ref, start, end, None, excess)
        # It always takes one entry, so that readers get on.
        return at if self._log.measure(ref, start, at).bytes <= excess else start

    # -- deleting a segment --------------------------------------------------------------------

    def _delete(self, topology: Topology, segment: Segment) -> bool:
        """Delete a segment; False if somebody needs it after all."""
        id_ = segment.ref.id
        assert segment.sealed_at is not None
        # Retention step 1: the children know every subscription before the parent forgets it.
        handed_over = self._hand_over(topology, segment)
        if handed_over is None:
            return False
        names, made = handed_over
        # Retention step 2.
        self._move(topology, segment, lambda s: replace(s, state=SegmentState.DRAINED))
        # Retention step 3: whoever came in between is seen here, in the step that shuts the door.
        answer = self._store.segments.retire(id_, segment.sealed_at, names)
        if answer.code is Code.ABSENT:
            # Deleted meanwhile: in the children it came back, and would retain them for ever.
            for cursor in made:
                if cursor.subscription in answer.absent:
                    self._store.subscriptions.delete_cursor(
                        cursor.segment, cursor.subscription, (cursor.query, cursor.source_epoch)
                    )
        if answer.code not in (Code.OK, Code.ALREADY):
            return False
        self._erase(topology, segment)
        return True

    def _hand_over(
        self, topology: Topology, segment: Segment
    ) -> tuple[list[str], list[_Inherited]] | None:
        """Let the subscriptions of a segment stand in its children.

        Returns their names, and the cursors that this has made. None if another sweep, which took
        this one for dead, has deleted the segment. Also if a query's start has come to the segment,
        but not to its children.
        """
        topology = self._read(str(topology.topic)) or topology
        segments = topology.readable
        retained = dict(zip([s.ref.id for s in segments], self._retained(segments), strict=True))
        if segment.ref.id not in retained or _starting(topology, segment, retained):
            return None
        needed = needs(topology, retained)
        here = retained[segment.ref.id]
        made: list[_Inherited] = []
        for name, query in here.queries.items():
            for child in segment.children:
                # One that is further already must not come back to rows that it was not to read.
                known = child not in retained or name in retained[child].released
                if not known and needed[child][name] is not None:
                    source = 0 if query else here.sources.get(name, 0)
                    answer = self._store.subscriptions.inherit_cursor(
                        child, name, query, here.query_start.get(name, ""), source
                    )
                    if answer.code is Code.OK:
                        made.append(_Inherited(child, name, query, source))
        return list(here.queries), made

    def _erase(self, topology: Topology, segment: Segment) -> None:
        # Retention step 4: from here on no reader looks for the log.
        self._move(topology, segment, lambda s: replace(s, state=SegmentState.DELETED))
        # Retention step 5.
        remove_logs(self._log, [segment], self._others(topology, segment))
        # Retention step 6.
        self._store.segments.purge(segment.ref.id)
        # Retention step 7.
        self._move(topology, segment, lambda s: replace(s, erased=True))

    def _others(self, topology: Topology, segment: Segment) -> list[Segment]:
        """Return the segments of a topic, beside one, whose logs are there."""
        topology = self._read(str(topology.topic)) or topology
        return [s for s in topology.segments if not s.erased and s.ref.id != segment.ref.id]

    def _move(
        self, topology: Topology, segment: Segment, change: Callable[[Segment], Segment]
    ) -> None:
        """Change one segment in the topology, unless it is as it should be, or further."""
        name = str(topology.topic)
        for _ in range(_TRIES):
            current = self._read(name)
            if current is None or current.instance_id != topology.instance_id:
                return  # the topic was deleted with all of its segments
            now = current.by_id[segment.ref.id]
            wanted = change(now)
            if now.erased or _ORDER[now.state] > _ORDER[wanted.state] or now == wanted:
                return
            segments = tuple(wanted if s.ref.id == now.ref.id else s for s in current.segments)
            record = replace(current, segments=segments).serialize()
            self._store.topics.swap(name, current.version, record, frees=True)
        raise TopologyConflictError(
            f"topic {topology.topic} was changed by others {_TRIES} times while segment "
            f"{segment.descriptor} was being deleted: the next sweep goes on"
        )

    def _read(self, name: str) -> Topology | None:
        read = self._store.topics.read(name)
        topology = Topology.parse(*read) if read is not None else None
        if topology is None or topology.state is not TopicState.LIVE:
            return None
        if topology.backend != self._log.backend:
            return None  # the other backend's logs cannot be reached with these options
        # While a topic is being adopted, no segment is active, and the logs are not ours yet.
        return topology if topology.active else None


_ORDER = {state: number for number, state in enumerate(SegmentState)}


def _deletion_begun(segment: Segment) -> bool:
    if segment.state is SegmentState.DELETED:
        return not segment.erased
    return segment.state is SegmentState.DRAINED
