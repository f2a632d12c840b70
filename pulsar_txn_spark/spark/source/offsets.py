"""Offsets of the source: for each topic and segment the last position that was read.

An offset is JSON in Spark's checkpoint::

    {"v": 1, "store": {"uuid": ..., "epoch": ...},
     "topics": {"topic://public/default/t": {"inc": "3f2a...", "segments": {
         "0000-7fff-0": {"p": "12:345", "seq": 17, "h": "91d8c4f0a2b7e635"}}}}}

``p`` is left-open: the next micro-batch starts behind it. ``seq`` is the sequence number of the
segment's tag in the store that was seen with it, and ``h`` the history that it belongs to, so that
a store that lost acknowledged writes is found out (INV-11, INV-14); earlier versions wrote no
``h``. ``inc`` is the topic's incarnation. A segment is named by its descriptor (hash range and
number); one that is not there has not been read yet.

The end of a query's first batch says under ``from`` where that batch begins,
``{topic: {segment: "ledger:entry"}}``: Spark keeps ends only, and asks anew for the beginning when
it repeats the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_txn_spark.errors import DataLossError, StoreRolledBackError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.store.records import StoreIdentity

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SegmentOffset:
    """Last position read in a segment, and the state of its tag that was seen then."""

    position: Position
    seq: int
    history: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what stands in the checkpoint."""
        history = {"h": self.history} if self.history else {}
        return {"p": str(self.position), "seq": self.seq, **history}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> SegmentOffset:
        """Read what :meth:`to_json` returned."""
        return cls(Position.parse(item["p"]), int(item["seq"]), str(item.get("h", "")))


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Offsets of one topic's segments, by descriptor."""

    incarnation: str
    segments: Mapping[str, SegmentOffset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Offset of a source, over all its topics."""

    uuid: str
    epoch: str
    topics: Mapping[str, TopicOffset] = field(default_factory=dict)
    begun: Mapping[tuple[str, str], Position] | None = None
    """Where the query's first batch begins, if this is the end of it."""

    def to_json(self) -> dict[str, Any]:
        """Return what Spark puts into the checkpoint."""
        return {
            "v": FORMAT,
            "store": {"uuid": self.uuid, "epoch": self.epoch},
            "topics": {
                name: {
                    "inc": topic.incarnation,
                    "segments": {
                        descriptor: segment.to_json()
                        for descriptor, segment in sorted(topic.segments.items())
                    },
                }
                for name, topic in sorted(self.topics.items())
            },
        }

    @staticmethod
    def with_beginning(end: dict[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
        """Return the end of a query's first batch so that it says where the batch begins."""
        begun = {
            name: {descriptor: item["p"] for descriptor, item in topic["segments"].items()}
            for name, topic in start["topics"].items()
        }
        return {**end, "from": begun}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> SourceOffset:
        """Read what Spark had in the checkpoint.

        Raises
        ------
        DataLossError
            If it is no offset of this source, or of a newer version of it.
        """
        if tree.get("v") != FORMAT:
            raise DataLossError(
                f"the checkpoint's offset has format {tree.get('v')!r}, expected {FORMAT}: it was "
                "written by another source or a newer version of pulsar_txn_spark. Use that "
                "version, or a new checkpoint"
            )
        try:
            topics = {
                name: TopicOffset(
                    topic["inc"],
                    {
                        descriptor: SegmentOffset.from_json(item)
                        for descriptor, item in topic["segments"].items()
                    },
                )
                for name, topic in tree["topics"].items()
            }
            begun = {
                (name, descriptor): Position.parse(position)
                for name, own in tree.get("from", {}).items()
                for descriptor, position in own.items()
            }
            uuid, epoch = tree["store"]["uuid"], tree["store"]["epoch"]
            return cls(uuid, epoch, topics, begun if "from" in tree else None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLossError(
                f"the checkpoint's offset is malformed ({type(error).__name__}: {error}): restore "
                "the checkpoint"
            ) from error

    def positions(self) -> dict[tuple[str, str], Position]:
        """Return every position by (topic, descriptor)."""
        return {
            (name, descriptor): segment.position
            for name, topic in self.topics.items()
            for descriptor, segment in topic.segments.items()
        }

    def require_store(self, identity: StoreIdentity) -> None:
        """Fail closed if the offset was made with another store.

        Raises
        ------
        StoreRolledBackError
        """
        if (self.uuid, self.epoch) != (identity.uuid, identity.epoch):
            raise StoreRolledBackError(
                f"the checkpoint belongs to metadata store {self.uuid} epoch {self.epoch}, but the "
                f"options lead to store {identity.uuid} epoch {identity.epoch}. Nothing was read: "
                "point the query to the store that it was started with, or start with a new "
                "checkpoint"
            )
