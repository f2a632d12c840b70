"""The topology of a segmented topic: segments, their hash ranges, parents and children.

The hash space has 16 bit. A key belongs to the segment that owns its Murmur3 hash; rows without
a key go round. Hashing is Pulsar's own ``Murmur3_32Hash`` (seed 0, sign bit cleared) modulo the
size of the space, as its key-shared subscriptions do it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.store import metadata_pb2

HASH_SPACE = 1 << 16
MAX_SEGMENTS = 1024
"""More than this many segments at creation is a mistake: each is a topic and a log of its own."""


class SegmentState(StrEnum):
    """State of a segment in the DAG."""

    ACTIVE = "active"
    SEALED = "sealed"
    DRAINED = "drained"
    DELETED = "deleted"


_STATES = {
    SegmentState.ACTIVE: metadata_pb2.Segment.ACTIVE,
    SegmentState.SEALED: metadata_pb2.Segment.SEALED,
    SegmentState.DRAINED: metadata_pb2.Segment.DRAINED,
    SegmentState.DELETED: metadata_pb2.Segment.DELETED,
}
_STATES_BACK = {record: state for state, record in _STATES.items()}


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: it owns the hashes from ``hash_start`` to ``hash_end``, both included."""

    ref: SegmentRef
    hash_start: int
    hash_end: int
    state: SegmentState = SegmentState.ACTIVE
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    sealed_at: Position | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """A topic's segments at one version."""

    topic: TopicName
    incarnation: str
    segments: tuple[Segment, ...]
    next_segment: int
    backend: str
    version: int = 0

    @property
    def active(self) -> tuple[Segment, ...]:
        """The segments that take writes, in the order of their hash ranges."""
        live = [s for s in self.segments if s.state is SegmentState.ACTIVE]
        return tuple(sorted(live, key=lambda s: s.hash_start))

    def serialize(self) -> bytes:
        """Return the topology as a record."""
        record = metadata_pb2.Topology(
            topic=str(self.topic),
            incarnation=self.incarnation,
            next_segment=self.next_segment,
            backend=self.backend,
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
            )
            if segment.sealed_at is not None:
                item.sealed_at.ledger = segment.sealed_at.ledger
                item.sealed_at.entry = segment.sealed_at.entry
        return record.SerializeToString(deterministic=True)

    @classmethod
    def parse(cls, version: int, data: bytes) -> Topology:
        """Read a record."""
        record = metadata_pb2.Topology.FromString(data)
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
            )
            for item in record.segments
        )
        return cls(
            topic, record.incarnation, segments, record.next_segment, record.backend, version
        )

    @classmethod
    def plan(cls, topic: TopicName, segments: int, backend: str) -> Topology:
        """Lay a new topic out: `segments` equal hash ranges that tile the hash space.

        Raises
        ------
        OptionError
            If the number of segments is not between 1 and MAX_SEGMENTS.
        """
        if not 1 <= segments <= MAX_SEGMENTS:
            raise OptionError(f"expected 1 to {MAX_SEGMENTS} segments, found {segments}")
        incarnation = secrets.token_hex(4)
        bounds = [HASH_SPACE * i // segments for i in range(segments + 1)]
        laid = tuple(
            Segment(segment_ref(topic, incarnation, lo, hi - 1, number), lo, hi - 1)
            for number, (lo, hi) in enumerate(pairwise(bounds))
        )
        return cls(topic, incarnation, laid, segments, backend)


def segment_ref(
    topic: TopicName, incarnation: str, start: int, end: int, number: int
) -> SegmentRef:
    """Name a segment. Ids are never used twice, also when a topic is deleted and made again."""
    descriptor = f"{start:04x}-{end:04x}-{number}"
    return SegmentRef(
        id=f"{topic.path}/{incarnation}/{descriptor}",
        topic=str(topic),
        log_name=f"persistent://{topic.path}--{incarnation}--{descriptor}",
    )


def hash_of(key: bytes) -> int:
    """Return a key's place in the hash space."""
    return (mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF) % HASH_SPACE


class Router:
    """Sends rows to the active segments of one topology.

    Parameters
    ----------
    topology : Topology
    turn : int
        Where the round of rows without a key begins; tasks begin at different segments.
    """

    def __init__(self, topology: Topology, turn: int = 0) -> None:
        self.segments: Sequence[Segment] = topology.active
        if not self.segments:
            raise OptionError(f"topic {topology.topic} has no active segment")
        self._ends = np.array([s.hash_end for s in self.segments], dtype=np.int64)
        self._turn = turn

    def route(self, keys: pa.Array | None, rows: int) -> npt.NDArray[np.int64]:
        """Return the index of each row's segment.

        Parameters
        ----------
        keys : pa.Array of binary or string, or None
            None = no row has a key.
        rows : int

        Returns
        -------
        array of int64, shape (rows,)
        """
        if len(self.segments) == 1:
            return np.zeros(rows, dtype=np.int64)
        if keys is None or keys.null_count == rows:
            return self._round(rows)
        # Keys repeat: each distinct one is hashed once.
        encoded = pc.dictionary_encode(keys)
        hashes = np.fromiter(
            (
                hash_of(k if isinstance(k, bytes) else k.encode())
                for k in encoded.dictionary.to_pylist()
            ),
            dtype=np.int64,
            count=len(encoded.dictionary),
        )
        owners = np.searchsorted(self._ends, hashes)
        indices = encoded.indices
        if not indices.null_count:
            return np.asarray(owners[indices.to_numpy()], dtype=np.int64)
        missing = indices.is_null().to_numpy(zero_copy_only=False)
        routed = np.array(owners[indices.fill_null(0).to_numpy()], dtype=np.int64)
        routed[missing] = self._round(int(missing.sum()))
        return routed

    def _round(self, rows: int) -> npt.NDArray[np.int64]:
        count = len(self.segments)
        start = self._turn
        if rows < count:
            self._turn += rows
            return (start + np.arange(rows, dtype=np.int64)) % count
        # One run of rows for each segment rather than single ones: entries stay large.
        self._turn += 1
        return (start + np.arange(rows, dtype=np.int64) * count // rows) % count
