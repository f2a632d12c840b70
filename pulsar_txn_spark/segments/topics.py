"""Creating, finding and deleting segmented topics."""

from __future__ import annotations

import re
from typing import Protocol

from pulsar_txn_spark import steps
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogUnavailableError,
    StoreUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_txn_spark.segments.changes import TopologyChanges
from pulsar_txn_spark.segments.log import SegmentLog, SegmentRef
from pulsar_txn_spark.segments.topic_name import PULSAR_DOMAIN, TopicName
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.protocol import MetadataStore

_PARTITION = re.compile(r"-partition-\d+$")


class PulsarTopics(SegmentLog, Protocol):
    """The log of topics of Pulsar's own domain, and which there are."""

    def topology(self, topic: TopicName) -> Topology:
        """Return a topic's partitions; raises TopicNotFoundError, TransactionDomainError."""
        ...

    def names(self, tenant: str, namespace: str) -> list[TopicName]:
        """Return a namespace's topics, sorted."""
        ...

    def knows_transaction(self, most: int, least: int) -> bool:
        """Tell whether Pulsar's own coordinators know a transaction of these numbers."""
        ...


class Topics:
    """The catalogue of segmented topics, and the way to those of Pulsar's own domain.

    Parameters
    ----------
    store : MetadataStore
    log : SegmentLog
    pulsar_topics : PulsarTopics or None
        None = there is no Pulsar.
    """

    def __init__(
        self, store: MetadataStore, log: SegmentLog, pulsar_topics: PulsarTopics | None = None
    ) -> None:
        self._store = store
        self._log = log
        self._pulsar_topics = pulsar_topics
        self._reached: set[bool] = set()
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
        self._store.prepare_segments([segment.ref.id for segment in found.active])
        for segment in found.active:
            self._log.create(segment.ref)
        self._store.catalogue(str(topic), listed=True)
        return found

    def adopt(self, source: TopicName, topic: TopicName, segments: int | None = None) -> Topology:
        """Make a topic of Pulsar's own domain, with its data, the beginning of a segmented one.

        1. The topology is written: the partitions are to be the parents of `segments` children.
        2. Whoever finds that carries it out, as any other change: the partitions become segments,
           are sealed, and the children take over (:mod:`~pulsar_txn_spark.segments.changes`).
        3. The topic is listed.

        Again = it goes on where it was left.

        Raises
        ------
        TopicExistsError
            If there is such a topic, and it is not the adopted one.
        TopicNotFoundError
            If there is nothing to adopt.
        TransactionDomainError
            If it is a segment already.
        SegmentLogError
            If somebody still writes to it.
        """
        found = self.find(topic)
        if found is None:
            logs = [
                s.ref.log_name for s in self._require_pulsar(str(source)).topology(source).active
            ]
            planned = Topology.plan_adoption(
                topic, logs, segments or len(logs), self._log.backend
            ).serialize()
            # Step 1: the plan is durable before any topic is touched.
            with steps.at(Step.PLAN_CHILDREN):
                self._store.swap_topology(str(topic), 0, planned, Step.PLAN_CHILDREN)
            found = self.require(topic)
        adopted = {segment.ref.log_name for segment in found.segments if segment.adopted}
        origins = {_PARTITION.sub("", log) for log in adopted}
        if str(source) not in adopted | origins:
            raise TopicExistsError(
                f"topic {topic} exists, and has not adopted {source}"
                + (f" but {', '.join(sorted(origins))}" if origins else "")
                + ": choose another name, or write the data over"
            )
        # Steps 2 and 3.
        done = self.changes.finish(found)
        self._store.catalogue(str(topic), listed=True)
        return done

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

    def readable(self, topic: TopicName) -> Topology:
        """Return a topic of either domain, for reading; otherwise as :meth:`require`."""
        if topic.segmented:
            return self.require(topic)
        return self._require_pulsar(str(topic)).topology(topic)

    def log_of(self, segment: SegmentRef) -> SegmentLog:
        """Return the log that a segment is in: topics of Pulsar's own domain have another one."""
        if not segment.in_pulsar_domain:
            return self._log
        return self._require_pulsar(segment.topic)

    def pulsar_knows(self, most: int, least: int) -> bool:
        """Tell whether Pulsar's own coordinators know a transaction; False without Pulsar."""
        return self._pulsar_topics is not None and self._pulsar_topics.knows_transaction(
            most, least
        )

    def _require_pulsar(self, topic: str) -> PulsarTopics:
        if self._pulsar_topics is None:
            raise OptionError(
                f"topic {topic} is one of Pulsar's own, but there is no Pulsar: give service.url "
                "and admin.url, or name a segmented topic (topic://tenant/namespace/name)"
            )
        return self._pulsar_topics

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
        if not topology.active:
            return  # it is being adopted
        segment = topology.active[0].ref
        if segment.in_pulsar_domain not in self._reached:
            self.log_of(segment).reach(segment)
            self._reached.add(segment.in_pulsar_domain)

    def matching(self, pattern: str) -> list[TopicName]:
        """Return the topics whose full name or path matches a regular expression, sorted.

        A pattern ``persistent://tenant/namespace/<regular expression>`` is one of topics of
        Pulsar's own domain, in one namespace.

        Raises
        ------
        OptionError
            If the pattern is no regular expression.
        """
        if pattern.startswith(f"{PULSAR_DOMAIN}://"):
            return self._matching_in_pulsar(pattern)
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"topicsPattern {pattern!r} is no regular expression: {error}"
            ) from error
        names = [TopicName.parse(name) for name in self._store.list_topics()]
        return [n for n in names if compiled.fullmatch(str(n)) or compiled.fullmatch(n.path)]

    def _matching_in_pulsar(self, pattern: str) -> list[TopicName]:
        found = re.fullmatch(rf"{PULSAR_DOMAIN}://([-=:.\w]+)/([-=:.\w]+)/(.+)", pattern)
        try:
            compiled = re.compile(found[3]) if found else None
        except re.error as error:
            raise OptionError(
                f"topicsPattern {pattern!r}: no regular expression behind the namespace: {error}"
            ) from error
        if found is None or compiled is None:
            raise OptionError(
                f"topicsPattern {pattern!r}: expected {PULSAR_DOMAIN}://tenant/namespace/<regular "
                "expression>: topics of Pulsar's own domain are looked for in one namespace"
            )
        names = self._require_pulsar(pattern).names(found[1], found[2])
        return [name for name in names if compiled.fullmatch(name.name)]

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
