"""Creating, finding and deleting segmented topics."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from pulsar_txn_spark.backports import add_note
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogError,
    SegmentLogUnreachableError,
    SegmentNotFoundError,
    StoreUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
)
from pulsar_txn_spark.segments.changes import TopologyChanges
from pulsar_txn_spark.segments.log import SegmentLog, SegmentRef
from pulsar_txn_spark.segments.topic_lifecycle import EndTransaction, TopicLifecycle
from pulsar_txn_spark.segments.topic_name import (
    PULSAR_DOMAINS,
    SCALABLE_DOMAIN,
    TopicName,
    is_readable,
    native_topic,
)
from pulsar_txn_spark.segments.topology import GatedBy, TopicState, Topology
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.unavailable_logs import UnavailableLogs

_LOG = logging.getLogger(__name__)


class PulsarTopics(SegmentLog, Protocol):
    """The log of native topics, and which there are."""

    def topology(self, topic: TopicName) -> Topology:
        """Return a topic's partitions; raises TopicNotFoundError, TransactionDomainError."""
        ...

    def names(self, tenant: str, namespace: str, wanted: Callable[[str], bool]) -> list[TopicName]:
        """Return a namespace's topics whose names in it are wanted, sorted.

        Of others nothing is asked: they may be what our role may not read.
        """
        ...

    def knows_transaction(self, most: int, least: int) -> bool:
        """Tell whether Pulsar's own coordinators know a transaction of these numbers."""
        ...

    def refuse_scalable(self, topic: TopicName) -> None:
        """Raise TopicExistsError if Pulsar has a scalable topic of its own of that name."""
        ...


class Topics:
    """The catalogue of segmented topics, and the way to those of native topics.

    Parameters
    ----------
    store : MetadataStore
    log : SegmentLog
    pulsar_topics : PulsarTopics or None
        None = there is no Pulsar.
    scalable_topics : callable or None
        Opens the log of scalable topics, which brokers before Pulsar 5 do not have.
    end : callable or None
        Aborts a transaction that has written to a topic which is being deleted.
    """

    def __init__(
        self,
        store: MetadataStore,
        log: SegmentLog,
        pulsar_topics: PulsarTopics | None = None,
        end: EndTransaction | None = None,
        scalable_topics: Callable[[], PulsarTopics] | None = None,
    ) -> None:
        self._store = store
        self._log = log
        self._pulsar_topics = pulsar_topics
        self._open_scalable = scalable_topics
        self._scalable_topics: PulsarTopics | None = None
        self._lock = threading.Lock()
        self._reached: set[str] = set()
        self._left_out: set[str] = set()
        self._last_read: dict[TopicName, Topology] = {}
        self._unavailable = UnavailableLogs()
        self.lifecycle = TopicLifecycle(store, log, end)
        self.changes = TopologyChanges(store, log, self.lifecycle, self.require)

    def create(
        self,
        topic: TopicName,
        segments: int,
        *,
        exist_ok: bool = False,
        gate: GatedBy = GatedBy.READER,
    ) -> Topology:
        """Create a topic of `segments` segments over the whole hash space.

        With `exist_ok`, a topic of as many first segments is taken as it is. What somebody has
        left half created, or half deleted, is finished first
        (:mod:`~pulsar_txn_spark.segments.topic_lifecycle`).

        Raises
        ------
        OptionError
            If the brokers are to gate a topic that lies on no broker.
        TopicExistsError
            If the topic exists, or Pulsar has a scalable topic of its own of that name. With
            `exist_ok`, if it was created with another number of segments, or with another gate.
            Splits and merges since then do not matter.
        TopologyConflictError
            If somebody else has deleted it meanwhile.
        StoreUnavailableError, SegmentLogUnavailableError
        """
        self._refuse_scalable(topic)
        gate_store = self._gate_store(topic) if gate is GatedBy.BROKER else ""
        topology, created = self.lifecycle.begin(
            lambda: Topology.plan(topic, segments, self._log.backend, gate_store)
        )
        if created:
            return topology
        if not exist_ok:
            raise TopicExistsError(f"topic {topic} exists, with {len(topology.active)} segments")
        first = sum(not segment.parents for segment in topology.segments)
        if first != segments:
            raise TopicExistsError(
                f"topic {topic} exists and was created with {first} segments, expected {segments}"
            )
        if topology.gate is not gate:
            raise TopicExistsError(
                f"topic {topic} exists and is gated by the {topology.gate}, expected the {gate}"
            )
        self._list(topology)
        return topology

    def _gate_store(self, topic: TopicName) -> str:
        """Return what names this store to brokers that are to gate a topic."""
        if self._log.backend != "pulsar":
            raise OptionError(
                f"topic {topic} would lie on the backend {self._log.backend!r}, and only "
                "brokers of Pulsar can gate one. Give service.url and admin.url, or leave the "
                "gate to the readers"
            )
        return self._store.identity.uuid

    def gate(self, topic: TopicName) -> Topology:
        """Let the brokers gate a topic from now on (:meth:`.TopologyChanges.gate`).

        Raises
        ------
        OptionError
            If it lies on no broker.
        TopicNotFoundError, TopologyConflictError, StoreUnavailableError,
        SegmentLogUnavailableError
        """
        return self.changes.gate(topic, self._gate_store(topic))

    def _list(self, topology: Topology) -> None:
        """Add a topic to the catalogue that an older version has left out of it."""
        if self._store.meta.topic_stamp(str(topology.topic)) is None:
            self._store.meta.add_topic(str(topology.topic))

    def adopt(self, source: TopicName, topic: TopicName, segments: int | None = None) -> Topology:
        """Make a native topic, with its data, the beginning of a segmented one.

        1. Every partition is looked at. If one cannot be adopted now, nothing is begun: from the
           next step on, whoever comes by would go on with what was refused.
        2. The topology is written: the partitions are to be the parents of `segments` children.
        3. The topic is listed, and exists.
        4. Whoever reads that finishes it, as any other change: the partitions become segments,
           are sealed, and the children take over (:mod:`~pulsar_txn_spark.segments.changes`).

        An interrupted adoption is continued.

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
        topology = self.find(topic) or self._begin_adoption(source, topic, segments)
        adopted = {segment.ref.log_name for segment in topology.segments if segment.adopted}
        origins = {native_topic(log) for log in adopted}
        if str(source) not in adopted | origins:
            raise TopicExistsError(
                f"topic {topic} exists, and has not adopted {source}"
                + (f" but {', '.join(sorted(origins))}" if origins else "")
                + ": choose another name, or write the data over"
            )
        self._list(topology)
        # Step 12, seal-log, and step 13, activate-children.
        try:
            return self.changes.finish(topology)
        except SegmentLogError as error:
            add_note(
                error,
                f"The adoption of {source} as {topic} was begun: jobs and sweeps go on with it as "
                f"soon as they can. 'pulsar-txn topic delete {topic}' takes it back before that",
            )
            raise

    def _begin_adoption(
        self, source: TopicName, topic: TopicName, segments: int | None
    ) -> Topology:
        """Plan an adoption that can go on now, in place of one whose deletion is not over."""
        self._refuse_scalable(topic)
        logs = [s.ref.log_name for s in self._require_pulsar(str(source)).topology(source).active]

        def plan() -> Topology:
            return Topology.plan_adoption(topic, logs, segments or len(logs), self._log.backend)

        existing = self.lifecycle.read(topic)
        if existing is not None and existing.state is TopicState.DELETING:
            self.lifecycle.finish_deletion(existing)  # else its claims would seem another topic's
        for segment in plan().segments:
            if segment.adopted:
                self._log.check_adoptable(segment.ref)
        # Step 11, plan-children: durable before any topic is touched.
        topology, _ = self.lifecycle.begin(plan, Step.PLAN_CHILDREN)
        return topology

    def _refuse_scalable(self, topic: TopicName) -> None:
        """Refuse the name of a topic that Pulsar itself keeps under it (5.0 and newer)."""
        if self._pulsar_topics is not None:
            self._pulsar_topics.refuse_scalable(topic)

    def find(self, topic: TopicName) -> Topology | None:
        """Return a topic's topology, None if there is no such topic that can be used."""
        topology = self.lifecycle.read(topic)
        return topology if topology is not None and topology.state is TopicState.LIVE else None

    def readable(self, topic: TopicName) -> Topology:
        """Return a topic of either domain, for reading; otherwise as :meth:`require`."""
        if topic.segmented:
            return self.require(topic)
        return self._require_pulsar(str(topic)).topology(topic)

    def readable_if_there(self, topic: TopicName) -> Topology | None:
        """Like :meth:`readable`, but None where a name was listed and there is no such topic."""
        if not topic.segmented:
            try:
                return self.readable(topic)
            except (TopicNotFoundError, SegmentNotFoundError):
                return None  # deleted since it was listed
        topology = self.lifecycle.read(topic)
        if topology is None:
            self.lifecycle.unlist(str(topic))
        return topology if topology is not None and topology.state is TopicState.LIVE else None

    def log_of(self, segment: SegmentRef) -> SegmentLog:
        """Return the log that a segment is in: native topics have another one."""
        if not segment.in_pulsar_domain:
            return self._log
        return self._require_pulsar(segment.topic)

    def pulsar_knows(self, most: int, least: int) -> bool:
        """Tell whether Pulsar's own coordinators know a transaction; False without Pulsar."""
        return self._pulsar_topics is not None and self._pulsar_topics.knows_transaction(
            most, least
        )

    def _require_pulsar(self, topic: str) -> PulsarTopics:
        if topic.startswith(f"{SCALABLE_DOMAIN}://") and self._open_scalable is not None:
            with self._lock:
                if self._scalable_topics is None:
                    self._scalable_topics = self._open_scalable()
            return self._scalable_topics
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
            If it is not; the message says what there is, and in which store.
        """
        topology = self.lifecycle.read(topic)
        if topology is not None and topology.state is TopicState.LIVE:
            self._last_read[topic] = topology
            return topology
        self._last_read.pop(topic, None)
        if topology is not None:
            raise TopicNotFoundError(_NOT_IN_USE[topology.state].format(topic=topic))
        raise TopicNotFoundError(
            f"topic {topic} does not exist ({self.listing()}). Segmented topics are "
            "created on purpose: pulsar_txn_spark.Admin(options).create_topic(topic, segments=4)"
        )

    def listing(self) -> str:
        """Say in which store what topics are, for errors: another store may have been meant."""
        known = self.names()
        listed = f"there are {len(known)}: {', '.join(known[:8])}" if known else "there is none yet"
        return f"in the metadata store {self._store.place} {listed}"

    def last_read(self, topic: TopicName) -> Topology | None:
        """Return what :meth:`require` has returned last in this process; it may be out of date."""
        return self._last_read.get(topic)

    def check_access(self, topology: Topology) -> None:
        """Find out whether the log can be read and written, once in each process.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        if not topology.active:
            return  # it is being adopted
        segment = topology.active[0].ref
        if segment.domain not in self._reached:
            self.log_of(segment).check_access(segment)
            self._reached.add(segment.domain)

    def matching(self, pattern: str) -> list[TopicName]:
        """Return the topics whose full name or path matches a regular expression, sorted.

        One that is listed may be gone, or be on its way: :meth:`readable_if_there` tells. A pattern
        ``persistent://tenant/namespace/<regular expression>`` is one of native topics, in one
        namespace; so is one that begins with ``scalable://``.

        Raises
        ------
        OptionError
            If the pattern is no regular expression.
        """
        for domain in PULSAR_DOMAINS:
            if pattern.startswith(f"{domain}://"):
                return self._matching_in_pulsar(pattern, domain)
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"topicsPattern {pattern!r} is no regular expression: {error}"
            ) from error
        names = [TopicName.parse(name) for name in self._store.meta.list_topics()]
        return [n for n in names if compiled.fullmatch(str(n)) or compiled.fullmatch(n.path)]

    def _matching_in_pulsar(self, pattern: str, domain: str) -> list[TopicName]:
        match = re.fullmatch(rf"{domain}://([-=:.\w]+)/([-=:.\w]+)/(.+)", pattern)
        try:
            compiled = re.compile(match[3]) if match else None
        except re.error as error:
            raise OptionError(
                f"topicsPattern {pattern!r}: no regular expression behind the namespace: {error}"
            ) from error
        if match is None or compiled is None:
            raise OptionError(
                f"topicsPattern {pattern!r}: expected {domain}://tenant/namespace/<regular "
                "expression>: native topics are looked for in one namespace"
            )

        def wanted(name: str) -> bool:
            if compiled.fullmatch(name) is None:
                return False
            if not is_readable(name):
                self._say_left_out(f"{domain}://{match[1]}/{match[2]}/{name}")
            return is_readable(name)

        return self._require_pulsar(pattern).names(match[1], match[2], wanted)

    def _say_left_out(self, topic: str) -> None:
        if topic not in self._left_out:
            self._left_out.add(topic)
            _LOG.warning(
                "%r matches topicsPattern, and is not read: names of topics have to be of letters, "
                "digits and any of -=:._",
                topic,
            )

    def names(self) -> list[str]:
        """Return the full names of the topics that can be used, sorted.

        Names in the catalogue without a topic are removed from it.
        """
        return [
            str(topology.topic)
            for topology in self._topologies(self._store.meta.list_topics())
            if topology.state is TopicState.LIVE
        ]

    def _topologies(self, listed: Iterable[str]) -> Iterator[Topology]:
        """Yield every listed topic that is there, whatever its state and backend."""
        for name in listed:
            read = self._store.topics.read(name)
            if read is None:
                self.lifecycle.unlist(name)
            else:
                yield Topology.parse(*read)

    def finish_deletions(self) -> tuple[int, dict[str, PulsarTxnError]]:
        """Finish every deletion of a topic that somebody has left half done.

        Returns
        -------
        tuple of int and dict of str to PulsarTxnError
            How many there were, and what kept topics from being deleted.

        Raises
        ------
        StoreUnavailableError, SegmentLogUnreachableError
        """

        def finish(topology: Topology) -> int:
            self.lifecycle.finish_deletion(topology)
            return 1

        return self._finish(TopicState.DELETING, finish)

    def finish_changes(self) -> tuple[int, dict[str, PulsarTxnError]]:
        """Finish every split, merge and seal that somebody has left half done.

        Returns
        -------
        tuple of int and dict of str to PulsarTxnError
            How many there were, and what kept topics from being finished.

        Raises
        ------
        StoreUnavailableError, SegmentLogUnreachableError
        """

        def finish(topology: Topology) -> int:
            try:
                self.changes.finish(topology)
            except TopicNotFoundError:
                return 0  # deleted meanwhile, and its change with it
            return len(topology.unfinished)

        return self._finish(TopicState.LIVE, finish)

    def _finish(
        self, state: TopicState, finish: Callable[[Topology], int]
    ) -> tuple[int, dict[str, PulsarTxnError]]:
        """Finish something of each topic in a state; one that fails keeps no other from it."""
        finished = 0
        failed: dict[str, PulsarTxnError] = {}
        self._unavailable.begin()
        listed = self._unavailable.in_order(self._store.meta.list_topics())
        for topology in self._topologies(listed):
            # The other backend's logs cannot be reached with these options.
            if topology.state is not state or topology.backend != self._log.backend:
                continue
            if state is TopicState.LIVE and not topology.unfinished:
                continue
            try:
                with self._unavailable.attempt(str(topology.topic)):
                    finished += finish(topology)
            except (StoreUnavailableError, SegmentLogUnreachableError):
                raise
            except PulsarTxnError as error:
                failed[str(topology.topic)] = error
        return finished, failed

    def delete(self, topic: TopicName) -> None:
        """Delete a topic with all its data; open transactions that write to it are aborted.

        First it is taken out of use. If the rest fails, the next call, a sweep, or whoever creates
        the topic again goes on with it (:mod:`~pulsar_txn_spark.segments.topic_lifecycle`).

        Raises
        ------
        TopicNotFoundError
            If there is none.
        StoreUnavailableError, SegmentLogUnavailableError
        """
        topology = self.lifecycle.read(topic)
        if topology is not None:
            self.lifecycle.end(topology)
        elif not self.lifecycle.unlist(str(topic)):
            self.require(topic)


_NOT_IN_USE = {
    TopicState.CREATING: (
        "topic {topic} does not exist yet: it is being created, or whoever began it has failed. "
        "Create it again, with as many segments: that goes on with it"
    ),
    TopicState.DELETING: (
        "topic {topic} does not exist any more: it is being deleted, and nothing reads or writes "
        "it. To finish the deletion, delete it again or run 'pulsar-txn sweep'; to have an empty "
        "topic of this name, create it"
    ),
}
