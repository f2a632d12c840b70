"""The topology of a segmented topic: segments, their hash ranges, parents and children.

It is a value, and a change to it is a function from one value to the next. Who makes changes,
and in which order, is in :mod:`pulsar_txn_spark.segments.changes`.

The hash space has 16 bit. A key belongs to the segment that owns its Murmur3 hash; rows without
a key go round. Hashing is Pulsar's own ``Murmur3_32Hash`` (seed 0, sign bit cleared) modulo the
size of the space, as its key-shared subscriptions do it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.errors import OptionError, StoreCorruptError, TopologyConflictError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store import metadata_pb2
from pulsar_txn_spark.store.decoding import decoded, unreadable

HASH_SPACE = 1 << 16
MAX_SEGMENTS = 1024
"""More than this many segments at creation is a mistake: each is a topic and a log of its own."""


def scalable_segment(topic: TopicName, descriptor: str) -> SegmentRef:
    """Return the segment of a scalable topic by its descriptor, whether or not it is there.

    The descriptor ends with the time of its creation, ``<first hash>-<last hash>-<number>@<time>``.
    """
    folder = f"segment://{topic.path}"
    log_name = f"{folder}/{descriptor.partition('@')[0]}"
    return SegmentRef(f"{folder}/{descriptor}", str(topic), log_name)


class SegmentState(StrEnum):
    """State of a segment in the DAG.

    PLANNED segments are children whose parents are not all sealed yet: they take no rows. SEALED
    ones take no more of them. When every subscription has read one to its end it is DRAINED, and
    DELETED when its data has gone as well. A deleted one stays in the DAG, so that an old
    checkpoint can be told what has become of it.
    """

    PLANNED = "planned"
    ACTIVE = "active"
    SEALED = "sealed"
    DRAINED = "drained"
    DELETED = "deleted"


_STATES = {
    SegmentState.PLANNED: metadata_pb2.Segment.PLANNED,
    SegmentState.ACTIVE: metadata_pb2.Segment.ACTIVE,
    SegmentState.SEALED: metadata_pb2.Segment.SEALED,
    SegmentState.DRAINED: metadata_pb2.Segment.DRAINED,
    SegmentState.DELETED: metadata_pb2.Segment.DELETED,
}
_STATES_BACK = {record: state for state, record in _STATES.items()}


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: it owns the hashes from ``hash_start`` to ``hash_end``, both included.

    ``sealed_at`` is the last position of a sealed segment's log, which can never grow again.
    ``change`` names the split, merge or seal that the segment came by, empty for a first one.
    ``erased`` says of a deleted one that nothing of it is left, neither data nor metadata.

    An ``adopted`` one was a partition of a native topic. Keys were spread over
    those in another way. So each is taken to own every hash, and takes no rows. All of them are
    the parents of each of the first segments.
    """

    ref: SegmentRef
    hash_start: int
    hash_end: int
    state: SegmentState = SegmentState.ACTIVE
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    sealed_at: Position | None = None
    change: str = ""
    adopted: bool = False
    erased: bool = False

    @property
    def descriptor(self) -> str:
        """What names the segment within its topic: hash range and number."""
        return self.ref.id.rpartition("/")[2]

    @property
    def sealed(self) -> bool:
        """Whether the log can never grow again."""
        return self.state in _SEALED

    def drained_at(self, position: Position) -> bool:
        """Tell whether who has read up to `position` has read all that will ever be in it.

        The end is the one that the log itself named when it was sealed. So no state of an
        earlier moment can be mistaken for it (INV-10).
        """
        return self.sealed and self.sealed_at is not None and position >= self.sealed_at

    def __str__(self) -> str:
        return f"{self.descriptor} ({self.state})"


_SEALED = frozenset({SegmentState.SEALED, SegmentState.DRAINED, SegmentState.DELETED})


class GatedBy(StrEnum):
    """Who keeps uncommitted and aborted rows of a topic from being seen."""

    READER = "reader"
    """This package's readers, each for itself; other clients see everything."""

    BROKER = "broker"
    """The brokers, for every client: they need the plug-in (docs/broker.md)."""


class TopicState(StrEnum):
    """Whether a topic can be used. One that is not LIVE is there for create and delete alone."""

    LIVE = "live"
    CREATING = "creating"
    DELETING = "deleting"


_TOPIC_STATES = {
    TopicState.LIVE: metadata_pb2.Topology.LIVE,
    TopicState.CREATING: metadata_pb2.Topology.CREATING,
    TopicState.DELETING: metadata_pb2.Topology.DELETING,
}
_TOPIC_STATES_BACK = {record: state for state, record in _TOPIC_STATES.items()}


_GATED = "-gated"
"""Behind the backend's name in the record. Versions that cannot write transaction bits take it for
another backend, and neither read nor write the topic."""

_PARSED = 64  # records of topologies: a service reads that of its topic for each transaction


@dataclass(frozen=True, slots=True)
class Change:
    """A split, merge or seal that was begun and is not done: its children are planned."""

    id: str
    parents: tuple[Segment, ...]
    children: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """A topic's segments at one version.

    ``instance_id`` names one instance of the topic, from its creation to its deletion (INV-12).
    ``created_by`` names the request that finished the creation. ``gate_store`` is the uuid of the
    metadata store by which the brokers gate the segments, '' where readers do it themselves.
    """

    topic: TopicName
    instance_id: str
    segments: tuple[Segment, ...]
    next_segment: int
    backend: str
    version: int = 0
    state: TopicState = TopicState.LIVE
    created_by: str = ""
    gate_store: str = ""

    @property
    def gate(self) -> GatedBy:
        """Who keeps what does not count from being seen."""
        return GatedBy.BROKER if self.gate_store else GatedBy.READER

    @property
    def active(self) -> tuple[Segment, ...]:
        """The segments that take writes, in the order of their hash ranges."""
        live = [s for s in self.segments if s.state is SegmentState.ACTIVE and not s.adopted]
        return tuple(sorted(live, key=lambda s: s.hash_start))

    @property
    def readable(self) -> tuple[Segment, ...]:
        """The segments that have a log with rows, or may come to have one.

        An adopted one becomes a segment only when it is sealed. Until then what is open there
        under Pulsar's own transactions could be taken for committed.
        """
        unreadable = (SegmentState.PLANNED, SegmentState.DELETED)
        return tuple(
            s for s in self.segments if s.state not in unreadable and (s.sealed or not s.adopted)
        )

    @property
    def by_id(self) -> dict[str, Segment]:
        """The segments by their ids."""
        return {segment.ref.id: segment for segment in self.segments}

    @property
    def by_descriptor(self) -> dict[str, Segment]:
        """The segments by their descriptors."""
        return {segment.descriptor: segment for segment in self.segments}

    def segment(self, name: str) -> Segment:
        """Find a segment by its number, descriptor or id.

        Raises
        ------
        OptionError
            If there is none of that name.
        """
        for segment in self.segments:
            number = segment.descriptor.rpartition("-")[2]
            if name in (segment.ref.id, segment.descriptor, number):
                return segment
        known = ", ".join(map(str, self.segments))
        raise OptionError(f"topic {self.topic} has no segment {name!r}; there are: {known}")

    def same_plan(self, other: Topology) -> bool:
        """Tell whether two topics begin with the same segments, names apart."""

        def laid(topology: Topology) -> list[tuple[int, int, str]]:
            return [
                (s.hash_start, s.hash_end, s.ref.log_name if s.adopted else "")
                for s in topology.segments
            ]

        return laid(self) == laid(other) and self.gate_store == other.gate_store

    # -- changes -----------------------------------------------------------------------------

    @property
    def unfinished(self) -> tuple[Change, ...]:
        """The changes that were begun and are not done."""
        planned: dict[str, list[Segment]] = {}
        for segment in self.segments:
            if segment.state is SegmentState.PLANNED:
                planned.setdefault(segment.change, []).append(segment)
        by_id = self.by_id
        return tuple(
            Change(change, tuple(by_id[p] for p in children[0].parents), tuple(children))
            for change, children in planned.items()
        )

    def with_planned(
        self, parents: Sequence[Segment], cuts: Sequence[int], change: str
    ) -> Topology:
        """Plan children over the range of adjacent active parents.

        Parameters
        ----------
        parents : sequence of Segment
            Of this topology.
        cuts : sequence of int
            Ascending; each is the first hash of a further child. None = one child.
        change : str
            Names the change. It has to be random: of two operators that plan the very same
            children only one may take the plan for its own.

        Raises
        ------
        TopologyConflictError
            If a parent takes no rows any more, or another change of it is under way.
        OptionError
            If the parents are not neighbours, or a cut lies outside of their range.
        """
        parents = sorted(parents, key=lambda s: s.hash_start)
        for parent in parents:
            _refuse_changing(self, parent)
        for lower, upper in pairwise(parents):
            if upper.hash_start != lower.hash_end + 1:
                raise OptionError(
                    f"segments {lower.descriptor} and {upper.descriptor} of {self.topic} are not "
                    "neighbours in the hash space: only adjacent ranges can be merged"
                )
        start, end = parents[0].hash_start, parents[-1].hash_end
        bounds = [start, *cuts, end + 1]
        if any(lower >= upper for lower, upper in pairwise(bounds)):
            raise OptionError(
                f"cannot cut the hashes {start:04x}-{end:04x} at "
                f"{', '.join(f'{cut:04x}' for cut in cuts)}: each part needs at least one hash, so "
                f"a cut lies between {start + 1:04x} and {end:04x}"
            )
        if len(self.active) + len(cuts) > MAX_SEGMENTS:
            raise OptionError(
                f"topic {self.topic} would have more than {MAX_SEGMENTS} active segments"
            )
        ids = tuple(parent.ref.id for parent in parents)
        children = tuple(
            Segment(
                segment_ref(self.topic, self.instance_id, low, high - 1, self.next_segment + n),
                low,
                high - 1,
                SegmentState.PLANNED,
                parents=ids,
                change=change,
            )
            for n, (low, high) in enumerate(pairwise(bounds))
        )
        child_ids = tuple(child.ref.id for child in children)
        kept = (replace(s, children=child_ids) if s.ref.id in ids else s for s in self.segments)
        return replace(
            self,
            segments=(*kept, *children),
            next_segment=self.next_segment + len(children),
        )

    def with_gate(self, gate_store: str, change: str) -> Topology:
        """Plan gated children of all active segments, each over its parent's hashes.

        Parameters
        ----------
        gate_store : str
            Uuid of the metadata store by which the brokers are to gate them.
        change : str
            Names the first of the changes, and begins the names of the others; otherwise as for
            :meth:`with_planned`, and so are the errors.
        """
        if self.gate_store:
            raise TopologyConflictError(f"the brokers gate topic {self.topic} already")
        gated = replace(self, gate_store=gate_store)
        for number, segment in enumerate(self.active):
            gated = gated.with_planned([segment], [], f"{change}-{number}" if number else change)
        return gated

    def with_done(self, change: Change, ends: Mapping[str, Position]) -> Topology:
        """Let the children of a change take over; `ends` are the last positions of its parents.

        Raises
        ------
        StoreCorruptError
            If the active segments would not tile the hash space.
        """
        parents = {parent.ref.id for parent in change.parents}

        def done(segment: Segment) -> Segment:
            if segment.ref.id in parents:
                return replace(segment, state=SegmentState.SEALED, sealed_at=ends[segment.ref.id])
            if segment.change == change.id and segment.state is SegmentState.PLANNED:
                return replace(segment, state=SegmentState.ACTIVE)
            return segment

        after = replace(self, segments=tuple(map(done, self.segments)))
        after.require_tiling()
        return after

    def with_state(self, ids: Iterable[str], state: SegmentState) -> Topology:
        """Move segments on to DRAINED or DELETED."""
        chosen = set(ids)
        return replace(
            self,
            segments=tuple(
                replace(s, state=state) if s.ref.id in chosen else s for s in self.segments
            ),
        )

    def require_tiling(self) -> None:
        """Raise unless each hash belongs to exactly one active segment.

        Raises
        ------
        StoreCorruptError
        """
        expected = 0
        for segment in self.active:
            if segment.hash_start != expected:
                break
            expected = segment.hash_end + 1
        if expected != HASH_SPACE:
            raise StoreCorruptError(
                f"the active segments of {self.topic} do not tile the hash space: expected one "
                f"that begins at {expected:04x}, found "
                f"{', '.join(s.descriptor for s in self.active)}. Nothing was written; restore the "
                "metadata store"
            )

    # -- records -----------------------------------------------------------------------------

    def serialize(self) -> bytes:
        """Return the topology as a record."""
        record = metadata_pb2.Topology(
            topic=str(self.topic),
            instance_id=self.instance_id,
            next_segment=self.next_segment,
            backend=self.backend + (_GATED if self.gate_store else ""),
            gate_store=self.gate_store,
            state=_TOPIC_STATES[self.state],
            created_by=self.created_by,
        )
        for segment in self.segments:
            item = record.segments.add(
                id=segment.ref.id,
                log_name=segment.ref.log_name,
                hash_start=segment.hash_start,
                hash_end=segment.hash_end,
                parents=segment.parents,
                children=segment.children,
                state=_STATES[segment.state],
                change=segment.change,
                adopted=segment.adopted,
                erased=segment.erased,
            )
            if segment.sealed_at is not None:
                item.sealed_at.ledger = segment.sealed_at.ledger
                item.sealed_at.entry = segment.sealed_at.entry
        return record.SerializeToString(deterministic=True)

    @classmethod
    @lru_cache(maxsize=_PARSED)
    def parse(cls, version: int, data: bytes) -> Topology:
        """Read a record; the same record is the same object, since nothing of it changes.

        Raises
        ------
        StoreCorruptError
            If it is none, or has a state that only a later version knows.
        """
        record = decoded(metadata_pb2.Topology, data, "a topology")
        try:
            return cls._of(version, record)
        except KeyError as error:
            raise unreadable(f"the topology of {record.topic}", f"state {error}") from error

    @classmethod
    def _of(cls, version: int, record: metadata_pb2.Topology) -> Topology:
        topic = TopicName.parse(record.topic)
        segments = tuple(
            Segment(
                ref=SegmentRef(item.id, record.topic, item.log_name),
                hash_start=item.hash_start,
                hash_end=item.hash_end,
                state=_STATES_BACK[item.state],
                parents=tuple(item.parents),
                children=tuple(item.children),
                sealed_at=(
                    Position(item.sealed_at.ledger, item.sealed_at.entry)
                    if item.HasField("sealed_at")
                    else None
                ),
                change=item.change,
                adopted=item.adopted,
                erased=item.erased,
            )
            for item in record.segments
        )
        return cls(
            topic,
            record.instance_id,
            segments,
            record.next_segment,
            record.backend.removesuffix(_GATED),
            version,
            _TOPIC_STATES_BACK[record.state],
            record.created_by,
            record.gate_store,
        )

    @classmethod
    def plan(cls, topic: TopicName, segments: int, backend: str, gate_store: str = "") -> Topology:
        """Lay a new topic out: `segments` equal hash ranges that tile the hash space.

        Raises
        ------
        OptionError
            If the number of segments is not between 1 and MAX_SEGMENTS.
        """
        if not 1 <= segments <= MAX_SEGMENTS:
            raise OptionError(f"expected 1 to {MAX_SEGMENTS} segments, found {segments}")
        instance_id = secrets.token_hex(4)
        bounds = [HASH_SPACE * i // segments for i in range(segments + 1)]
        laid = tuple(
            Segment(segment_ref(topic, instance_id, lo, hi - 1, number), lo, hi - 1)
            for number, (lo, hi) in enumerate(pairwise(bounds))
        )
        return cls(topic, instance_id, laid, segments, backend, gate_store=gate_store)

    @classmethod
    def plan_adoption(
        cls, topic: TopicName, logs: Sequence[str], segments: int, backend: str
    ) -> Topology:
        """Lay a topic out whose first parents are logs that are there: no segment is active yet.

        Raises
        ------
        OptionError
            If the number of segments is not between 1 and MAX_SEGMENTS.
        """
        laid = cls.plan(topic, segments, backend)
        parents = [
            replace(
                segment_ref(topic, laid.instance_id, 0, HASH_SPACE - 1, number), log_name=log_name
            )
            for number, log_name in enumerate(logs)
        ]
        parent_ids = tuple(parent.id for parent in parents)
        change = secrets.token_hex(8)
        children = [
            Segment(
                segment_ref(topic, laid.instance_id, s.hash_start, s.hash_end, len(logs) + number),
                s.hash_start,
                s.hash_end,
                SegmentState.PLANNED,
                parents=parent_ids,
                change=change,
            )
            for number, s in enumerate(laid.segments)
        ]
        child_ids = tuple(child.ref.id for child in children)
        adopted = [
            Segment(parent, 0, HASH_SPACE - 1, children=child_ids, adopted=True)
            for parent in parents
        ]
        return replace(
            laid, segments=(*adopted, *children), next_segment=len(adopted) + len(children)
        )


def _refuse_changing(topology: Topology, parent: Segment) -> None:
    """Raise unless a segment is active and nobody is changing it."""
    if parent.state is SegmentState.ACTIVE and not parent.children:
        return
    by_id = topology.by_id
    children = ", ".join(str(by_id[child]) for child in parent.children)
    doing = "is being" if parent.state is SegmentState.ACTIVE else "was"
    raise TopologyConflictError(
        f"segment {parent.descriptor} of {topology.topic} {doing} replaced by {children} already "
        f"(topology version {topology.version}): a segment is split, merged or sealed once. Look "
        "at the topic again (pulsar-txn topic describe) and choose among its active segments"
    )


def segment_ref(
    topic: TopicName, instance_id: str, start: int, end: int, number: int
) -> SegmentRef:
    """Name a segment. Ids are never used twice, also when a topic is deleted and made again."""
    return segment_of_instance(topic, instance_id, f"{start:04x}-{end:04x}-{number}")


def segment_of_instance(topic: TopicName, instance_id: str, descriptor: str) -> SegmentRef:
    """Return a segment by what an offset says of it, whether or not its topic is there."""
    if topic.scalable:
        return scalable_segment(topic, descriptor)
    if not topic.segmented:
        name = f"{topic.domain}://{topic.tenant}/{topic.namespace}/{descriptor}"
        return SegmentRef(name, str(topic), name)
    return SegmentRef(
        id=f"{topic.path}/{instance_id}/{descriptor}",
        topic=str(topic),
        log_name=f"persistent://{topic.path}--{instance_id}--{descriptor}",
    )


_MURMUR_FIRST, _MURMUR_SECOND = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_MURMUR_STEP = np.uint32(0xE6546B64)
_MURMUR_END = ((16, np.uint32(0x85EBCA6B)), (13, np.uint32(0xC2B2AE35)))
_TOGETHER = 100  # keys of one length, for each four bytes of it: fewer are hashed one by one


def hash_of(key: bytes) -> int:
    """Return a key's place in the hash space."""
    return (mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF) % HASH_SPACE


def hashes_of(keys: pa.Array) -> npt.NDArray[np.int64]:
    """Return :func:`hash_of` of each key; none of them is null.

    Keys of one length are hashed together, four bytes of all of them at a time. Where only a few
    have the same length, that would take longer than one by one.
    """
    plain = keys.cast(pa.binary()).cast(pa.large_binary())
    _, starts, data = plain.buffers()
    offsets = np.frombuffer(starts, np.int64, len(plain) + 1, plain.offset * 8)
    content = b"" if data is None else data.to_pybytes()
    raw = np.frombuffer(content, np.uint8)
    lengths = np.diff(offsets)
    hashes = np.empty(len(plain), np.int64)
    widths, group, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    many = counts >= _TOGETHER * (1 + widths // 4)
    for number in np.flatnonzero(many).tolist():
        rows = np.flatnonzero(group == number)
        hashes[rows] = _murmur3(raw[offsets[rows, None] + np.arange(widths[number])])
    rows = np.flatnonzero(~many[group])
    bounds = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
    hashes[rows] = [mmh3.hash(content[start:end], 0, signed=False) for start, end in bounds]
    return (hashes & 0x7FFFFFFF) % HASH_SPACE


KEY_GROUPS = 64
"""Into so many groups the keys of a gated segment are divided. More let more Key_Shared consumers
share a segment evenly; fewer let batches be larger."""


def key_groups_of(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the group of each row's key, -1 for a row without one.

    Rows of one key are of one group, whoever writes them.

    Parameters
    ----------
    rows : pa.RecordBatch
        With a column ``key``, or without any keys.

    Returns
    -------
    array of int64, shape (rows,)
    """
    groups = np.full(rows.num_rows, -1, np.int64)
    if "key" in rows.schema.names:
        keys = rows.column(rows.schema.names.index("key"))
        there = keys.is_valid().to_numpy(zero_copy_only=False)
        # The hashes of a segment lie in one range: their lowest bits divide it evenly.
        groups[there] = hashes_of(keys.drop_null() if keys.null_count else keys) % KEY_GROUPS
    return groups


def _murmur3(keys: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return Murmur3 (32 bit, seed 0) of each row of bytes."""
    count, width = keys.shape
    whole = width // 4
    hashes = np.zeros(count, np.uint32)
    blocks = np.ascontiguousarray(keys[:, : 4 * whole]).view("<u4")
    for block in range(whole):
        hashes = _turned(hashes ^ _mixed(blocks[:, block]), 13) * np.uint32(5) + _MURMUR_STEP
    if width % 4:
        tail = np.zeros((count, 4), np.uint8)
        tail[:, : width % 4] = keys[:, 4 * whole :]
        hashes ^= _mixed(tail.view("<u4")[:, 0])
    hashes ^= np.uint32(width)
    for shift, factor in _MURMUR_END:
        hashes = (hashes ^ (hashes >> np.uint32(shift))) * factor
    return hashes ^ (hashes >> np.uint32(16))


def _mixed(block: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    return _turned(block * _MURMUR_FIRST, 15) * _MURMUR_SECOND


def _turned(hashes: npt.NDArray[np.uint32], bits: int) -> npt.NDArray[np.uint32]:
    return (hashes << np.uint32(bits)) | (hashes >> np.uint32(32 - bits))


@lru_cache(maxsize=16)
def _owners(ends: tuple[int, ...]) -> npt.NDArray[np.uint16]:
    """Return the index of the segment that owns each place in the hash space, by their ends.

    To look a row's place up is faster than to search the ends; a process makes the table once.
    """
    return np.repeat(np.arange(len(ends), dtype=np.uint16), np.diff(ends, prepend=-1))


class Router:
    """Sends rows to the active segments of one topology.

    Parameters
    ----------
    topology : Topology
    round_start : int
        Where the round of rows without a key begins; tasks begin at different segments.
    """

    def __init__(self, topology: Topology, round_start: int = 0) -> None:
        self.segments: Sequence[Segment] = topology.active
        if not self.segments:
            raise OptionError(f"topic {topology.topic} has no active segment")
        self._owners = _owners(tuple(s.hash_end for s in self.segments))
        self._round_start = round_start

    def route(self, keys: pa.Array | None, rows: int) -> npt.NDArray[np.uint16]:
        """Return the index of each row's segment.

        Parameters
        ----------
        keys : pa.Array of binary or string, or None
            None = no row has a key.
        rows : int

        Returns
        -------
        array of uint16, shape (rows,)
            So NumPy sorts it by radix.
        """
        if len(self.segments) == 1:
            return np.zeros(rows, dtype=np.uint16)
        if keys is None or keys.null_count == rows:
            return self._round(rows)
        if not keys.null_count:
            return self._owners[hashes_of(keys)]
        missing = keys.is_null().to_numpy(zero_copy_only=False)
        routed = np.empty(rows, np.uint16)
        routed[~missing] = self._owners[hashes_of(keys.drop_null())]
        routed[missing] = self._round(int(missing.sum()))
        return routed

    def _round(self, rows: int) -> npt.NDArray[np.uint16]:
        count = len(self.segments)
        start = self._round_start
        if rows < count:
            self._round_start += rows
            return ((start + np.arange(rows)) % count).astype(np.uint16)
        # One run of rows for each segment rather than single ones: entries stay large.
        self._round_start += 1
        return ((start + np.arange(rows) * count // rows) % count).astype(np.uint16)
