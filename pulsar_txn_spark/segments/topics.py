"""Creating, finding and deleting segmented topics."""

from __future__ import annotations

import re

from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogUnavailableError,
    StoreUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_txn_spark.segments.changes import TopologyChanges
from pulsar_txn_spark.segments.log import SegmentLog
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.store.protocol import MetadataStore


class Topics:
    """The catalogue of segmented topics.

    Parameters
    ----------
    store : MetadataStore
    log : SegmentLog
    """

    def __init__(self, store: MetadataStore, log: SegmentLog) -> None:
        self._store = store
        self._log = log
        self._reached = False
        self.changes = TopologyChanges(store, log, self.find, self.require)

    def create(self, topic: TopicName, segments: int, *, exist_ok: bool = False) -> Topology:
        """Create a topic of `segments` segments over the whole hash space.

        The topology is written first, so that whoever finds it can finish the logs; a topic is
        listed last. With `exist_ok`, a topic of as many active segments is taken as it is.

        Raises
        ------
        TopicExistsError
            If the topic exists (with `exist_ok`: if it was created with another number of
            segments; splits and merges since then do not matter).
        """
        planned = Topology.plan(topic, segments, self._log.backend)
        version = self._store.swap_topology(str(topic), 0, planned.serialize())
        found = self.find(topic)
        assert found is not None
        ours = found.incarnation == planned.incarnation
        if (version is None or not ours) and not exist_ok:
            raise TopicExistsError(f"topic {topic} exists, with {len(found.active)} segments")
        first = sum(not segment.parents for segment in found.segments)
        if first != segments:
            raise TopicExistsError(
                f"topic {topic} exists and was created with {first} segments, expected {segments}"
            )
        for segment in found.active:
            self._log.create(segment.ref)
        self._store.catalogue(str(topic), listed=True)
        return found

    def find(self, topic: TopicName) -> Topology | None:
        """Return a topic's topology, None if there is no such topic."""
        read = self._store.read_topology(str(topic))
        if read is None:
            return None
        topology = Topology.parse(*read)
        if topology.backend != self._log.backend:
            raise OptionError(
                f"topic {topic} lives on the backend {topology.backend!r}, but the options choose "
                f"{self._log.backend!r}: "
                + (
                    "give service.url and admin.url"
                    if topology.backend == "pulsar"
                    else "leave service.url and admin.url out"
                )
            )
        return topology

    def require(self, topic: TopicName) -> Topology:
        """Like :meth:`find`, but the topic must be there.

        Raises
        ------
        TopicNotFoundError
            If it is not; the message names similar ones.
        """
        topology = self.find(topic)
        if topology is not None:
            return topology
        known = self._store.list_topics()
        listed = f"there are {len(known)}: {', '.join(known[:8])}" if known else "there is none yet"
        raise TopicNotFoundError(
            f"topic {topic} does not exist in this metadata store ({listed}). Segmented topics are "
            "created on purpose: pulsar_txn_spark.create_topic(options, topic, segments=4)"
        )

    def reach(self, topology: Topology) -> None:
        """Find out whether the log can be read and written, once in each process.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        if not self._reached:
            self._log.reach(topology.active[0].ref)
            self._reached = True

    def matching(self, pattern: str) -> list[TopicName]:
        """Return the topics whose full name or path matches a regular expression, sorted.

        Raises
        ------
        OptionError
            If the pattern is no regular expression.
        """
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"topicsPattern {pattern!r} is no regular expression: {error}"
            ) from error
        names = [TopicName.parse(name) for name in self._store.list_topics()]
        return [n for n in names if compiled.fullmatch(str(n)) or compiled.fullmatch(n.path)]

    def finish_changes(self) -> tuple[int, dict[str, PulsarTxnError]]:
        """Finish every split, merge and seal that somebody has left half done.

        Returns
        -------
        tuple of int and dict of str to PulsarTxnError
            How many there were, and what kept topics from being finished.

        Raises
        ------
        StoreUnavailableError, SegmentLogUnavailableError
        """
        finished = 0
        failed: dict[str, PulsarTxnError] = {}
        for name in self._store.list_topics():
            read = self._store.read_topology(name)
            if read is None:
                continue
            topology = Topology.parse(*read)
            # The other backend's logs cannot be reached with these options.
            if not topology.unfinished or topology.backend != self._log.backend:
                continue
            try:
                self.changes.finish(topology)
            except (StoreUnavailableError, SegmentLogUnavailableError):
                raise
            except PulsarTxnError as error:
                failed[name] = error
            else:
                finished += len(topology.unfinished)
        return finished, failed

    def delete(self, topic: TopicName) -> None:
        """Delete a topic with all its data.

        Raises
        ------
        TopicNotFoundError
            If there is none.
        """
        topology: Topology | None = self.require(topic)
        self._store.catalogue(str(topic), listed=False)
        # Read again until nobody has added segments to it in between.
        while topology is not None:
            for segment in topology.segments:
                self._log.delete(segment.ref)
            if self._store.delete_topology(str(topic), topology.version):
                return
            topology = self.find(topic)
