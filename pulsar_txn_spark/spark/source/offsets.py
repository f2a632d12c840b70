"""Offsets of the source: for each topic and segment the last position that was read.

An offset is JSON in Spark's checkpoint::

    {"v": 1, "store": {"uuid": ..., "epoch": ...},
     "topics": {"topic://public/default/t": {"inc": "3f2a...", "segments": {
         "0000-7fff-0": {"p": "12:345", "seq": 17, "h": "91d8c4f0a2b7e635"}}}}}

``p`` is left-open: the next micro-batch starts behind it. ``seq`` is the last seen sequence number
of the segment's tag, and ``h`` the history that it belongs to; earlier versions wrote no ``h``.
They show a store that lost acknowledged writes (INV-11, INV-14). ``inc`` is the topic instance id.
A segment is named by its descriptor (hash range and number). One that is missing has not been read.

Brokers delete sealed segments of scalable topics from the topology, in any order. So an offset
names every segment that such a topic had, also those that were not read yet. ``drained`` is true of
a segment that was read to its end: that one, and no other, may be gone later.

The end of a query's first batch says under ``from`` where that batch starts,
``{topic: {segment: "ledger:entry"}}``. Spark stores ends only, and requests the start once more
when it repeats the first batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pulsar_txn_spark.errors import DataLossError, StoreRolledBackError
from pulsar_txn_spark.json_record import has_version
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import SCALABLE_DOMAIN
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.store.records import StoreIdentity

FORMAT = 1

SegmentKey = tuple[str, str]
"""A topic's full name, and the descriptor of one of its segments."""


@dataclass(frozen=True, slots=True)
class SegmentOffset:
    """Last position read in a segment, and the state of its tag that was seen then.

    ``drained`` says of a scalable topic's segment that nothing will ever lie behind the position.
    """

    position: Position
    seq: int
    history: str = ""
    drained: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what stands in the checkpoint."""
        history = {"h": self.history} if self.history else {}
        drained = {"drained": True} if self.drained else {}
        return {"p": str(self.position), "seq": self.seq, **history, **drained}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> SegmentOffset:
        """Read what :meth:`to_json` returned."""
        return cls(
            Position.parse(item["p"]),
            int(item["seq"]),
            str(item.get("h", "")),
            item.get("drained") is True,
        )


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """Offsets of one topic's segments, by descriptor."""

    instance_id: str
    segments: Mapping[str, SegmentOffset] = field(default_factory=dict)

    def deletion(self, name: str, topology: Topology) -> str | None:
        """Say that the topic was deleted and created again since, None if it was not.

        Raises
        ------
        DataLossError
            If the topology lacks a segment that was read.
        """
        if topology.instance_id != self.instance_id:
            return (
                f"topic {name} was deleted and created again since the checkpoint was written "
                f"(instance {self.instance_id}, now {topology.instance_id}): what was not "
                "read then is gone"
            )
        known = dict.fromkeys(segment.descriptor for segment in topology.segments)
        missing = [descriptor for descriptor in self.segments if descriptor not in known]
        if not missing:
            return None
        if topology.topic.scalable:
            # A segment's descriptor has the time of its creation: one that is still there says
            # that the topic is the same. What has become of the others, :meth:`pruned` says.
            if len(missing) < len(self.segments):
                return None
        elif topology.topic.segmented:
            raise DataLossError(
                f"the checkpoint has read segment {missing[0]} of {name}, which is not in "
                "its topology: the metadata store is older than the checkpoint. Restore "
                "the store"
            )
        why = "it was deleted and created again,"
        if topology.topic.scalable:
            why += " or its brokers have split and deleted all of that,"
        return (
            f"the checkpoint has read {missing[0]} of {name}, which has "
            f"{', '.join(known)} now: {why} and what was not read then is gone"
        )

    def pruned(self, topology: Topology) -> dict[str, Position]:
        """Return what brokers have deleted before it was read to its end, by name.

        Parameters
        ----------
        topology : Topology
            Of the same instance, of a scalable topic; of others the answer is empty.

        Returns
        -------
        dict of str to Position
            How far each segment was read. One that came and went unseen has a number instead of
            a descriptor. Numbers of segments have no gap, and a topic always has the highest.
        """
        if not topology.topic.scalable or not self.segments:
            return {}
        known = topology.by_descriptor
        gone = {
            descriptor: item.position
            for descriptor, item in self.segments.items()
            if descriptor not in known and not item.drained
        }
        numbers = set(map(_number, known))
        later = range(max(map(_number, self.segments)) + 1, max(numbers, default=0))
        return gone | {str(n): EARLIEST for n in later if n not in numbers}


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Offset of a source, over all its topics."""

    uuid: str
    store_epoch: str
    topics: Mapping[str, TopicOffset] = field(default_factory=dict)
    begun: Mapping[SegmentKey, Position] | None = None
    """Where the query's first batch begins, if this is the end of it."""

    def to_json(self) -> dict[str, Any]:
        """Return what Spark puts into the checkpoint."""
        return {
            "v": FORMAT,
            "store": {"uuid": self.uuid, "epoch": self.store_epoch},
            "topics": {
                name: {
                    "inc": topic.instance_id,
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
        """Return the end of a query's first batch so that it says where the batch begins.

        A topic that was created again since `start` was noted begins at its first message.
        """
        begun = {
            name: {descriptor: item["p"] for descriptor, item in topic["segments"].items()}
            for name, topic in start["topics"].items()
            if name in end["topics"] and end["topics"][name]["inc"] == topic["inc"]
        }
        return {**end, "from": begun}

    @classmethod
    def from_json(cls, tree: object) -> SourceOffset:
        """Read what Spark had in the checkpoint.

        Raises
        ------
        DataLossError
            If it is no offset of this source, or of a newer version of it.
        """
        if not has_version(tree, FORMAT):
            version = tree.get("v") if isinstance(tree, Mapping) else tree
            raise DataLossError(
                f"the checkpoint's offset has format {version!r}, expected {FORMAT}: it was "
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
            uuid, store_epoch = tree["store"]["uuid"], tree["store"]["epoch"]
            return cls(uuid, store_epoch, topics, begun if "from" in tree else None)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DataLossError(
                f"the checkpoint's offset is malformed ({type(error).__name__}: {error}): restore "
                "the checkpoint"
            ) from error

    def positions(self) -> dict[SegmentKey, Position]:
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
        if (self.uuid, self.store_epoch) != (identity.uuid, identity.store_epoch):
            raise StoreRolledBackError(
                f"the checkpoint belongs to metadata store {self.uuid} epoch "
                f"{self.store_epoch}, but the options lead to store {identity.uuid} epoch "
                f"{identity.store_epoch}. Nothing was read: point the query to the store that it "
                "was started with, or start with a new checkpoint"
            )

    def deletions(self, topologies: Mapping[str, Topology]) -> dict[str, str]:
        """Say which topics of the offset are gone, or were created again since, by name.

        Raises
        ------
        DataLossError
            If a topology lacks a segment that was read.
        """
        gone: dict[str, str] = {}
        for name, topic in self.topics.items():
            topology = topologies.get(name)
            if topology is None:
                gone[name] = (
                    f"the checkpoint has read topic {name}, which these options do not read "
                    f"({', '.join(topologies) or 'none'}): the topic was deleted, or the "
                    "checkpoint belongs to another query"
                )
            elif (deletion := topic.deletion(name, topology)) is not None:
                gone[name] = deletion
        return gone

    def without(self, names: Collection[str]) -> SourceOffset:
        """Return the offset without some topics."""
        topics = {name: topic for name, topic in self.topics.items() if name not in names}
        return replace(self, topics=topics)

    def drained(self) -> frozenset[SegmentKey]:
        """Return the segments of scalable topics that were read to their ends."""
        return frozenset(
            (name, descriptor)
            for name, topic in self.topics.items()
            for descriptor, item in topic.segments.items()
            if item.drained
        )

    def pruned(self, topologies: Mapping[str, Topology]) -> dict[SegmentKey, Position]:
        """Return what brokers have deleted of topics before it was read to its end."""
        return {
            (name, segment): read_to
            for name, topic in self.topics.items()
            if name in topologies
            for segment, read_to in topic.pruned(topologies[name]).items()
        }

    def lacks(self, other: SourceOffset) -> bool:
        """Tell whether a scalable topic's segment in another offset says more than here."""
        return any(
            self.topics[name].segments.get(descriptor) != item
            for name, topic in other.topics.items()
            if name in self.topics and name.startswith(f"{SCALABLE_DOMAIN}://")
            for descriptor, item in topic.segments.items()
        )


def _number(descriptor: str) -> int:
    """Read ``<first hash>-<last hash>-<number>@<time>``, as scalable topics have it."""
    return int(descriptor.partition("@")[0].rpartition("-")[2])
