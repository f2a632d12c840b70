"""Applies the scaling policies of topics; :mod:`~pulsar_txn_spark.segments.scaling` decides."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_txn_spark import metrics
from pulsar_txn_spark.errors import (
    PulsarTxnError,
    SegmentLogUnavailableError,
    SegmentLogUnreachableError,
    StoreUnavailableError,
)
from pulsar_txn_spark.segments.catalog import Topics
from pulsar_txn_spark.segments.key_load import recent_hashes
from pulsar_txn_spark.segments.log import SegmentLog
from pulsar_txn_spark.segments.scaling import (
    LOAD_PROPERTY,
    ActiveSegment,
    Decision,
    ScalingPolicy,
    TopicLoad,
    decide,
    observe,
)
from pulsar_txn_spark.segments.topology import TopicState, Topology
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.unavailable_logs import UnavailableLogs


@dataclass(frozen=True, slots=True)
class Scaled:
    """What was decided for a topic, and what came of it: an error's text, or nothing."""

    topic: str
    decision: Decision
    failed: str = ""


class Scaler:
    """Looks at the load of topics, and splits and merges where their policies say so.

    Parameters
    ----------
    store : MetadataStore
    log : SegmentLog
    topics : Topics
    """

    def __init__(self, store: MetadataStore, log: SegmentLog, topics: Topics) -> None:
        self._store = store
        self._log = log
        self._topics = topics
        self._unavailable = UnavailableLogs()

    def sweep(self, *, dry_run: bool = False) -> list[Scaled]:
        """Look at all topics whose policy is on; change one thing of each at most.

        One that fails keeps no other from it. With `dry_run` nothing but what was seen is written.

        Raises
        ------
        StoreUnavailableError, SegmentLogUnreachableError
        """
        scaled_topics = []
        self._unavailable.begin()
        for name in self._unavailable.in_order(self._store.meta.list_topics()):
            try:
                scaled = self._look_after(name, dry_run=dry_run)
            except (StoreUnavailableError, SegmentLogUnreachableError):
                raise
            except PulsarTxnError as error:
                scaled = Scaled(name, Decision((), "it could not be looked at"), str(error))
            if scaled is not None:
                scaled_topics.append(scaled)
        self._store.flush_counters()
        return scaled_topics

    def _look_after(self, name: str, *, dry_run: bool) -> Scaled | None:
        if not ScalingPolicy.of(self._store.topics.read_properties(name)).enabled:
            return None
        read = self._store.topics.read(name)
        # Once more, behind the topology: another topic of that name may have come in between. What
        # is decided by its properties then fails on the segments of this one (INV-12).
        properties = self._store.topics.read_properties(name)
        policy = ScalingPolicy.of(properties)
        if read is None or not policy.enabled:
            return None
        topology = Topology.parse(*read)
        if topology.backend != self._log.backend or topology.state is not TopicState.LIVE:
            return None  # its logs cannot be reached with these options
        with self._unavailable.attempt(name):
            return self._scale(topology, policy, TopicLoad.of(properties), dry_run=dry_run)

    def _scale(
        self,
        topology: Topology,
        policy: ScalingPolicy,
        before: TopicLoad | None,
        *,
        dry_run: bool,
    ) -> Scaled:
        name = str(topology.topic)
        decision = self.judge(topology, policy, before)
        if dry_run or not decision.segments:
            return Scaled(name, decision)
        try:
            self._apply(topology, decision)
        except (StoreUnavailableError, SegmentLogUnavailableError):
            raise
        except PulsarTxnError as error:
            return Scaled(name, decision, str(error))
        self._store.counters.count(metrics.SEGMENTS_SCALED)
        return Scaled(name, decision)

    def judge(
        self, topology: Topology, policy: ScalingPolicy, before: TopicLoad | None
    ) -> Decision:
        """Look at a topic, note what was seen, and decide.

        A segment whose keys all have one hash is left as it is, and keeps no other from being
        split or merged.
        """
        if topology.unfinished:
            return Decision((), "a change of it is under way")
        counts = {s.descriptor: self._log.appended(s.ref) for s in topology.active}
        _, now_ms = self._store.transactions.lowest_open(0)
        seen = observe(before, counts, now_ms, policy)
        if seen is not before:
            self._store.topics.change_property(
                str(topology.topic),
                LOAD_PROPERTY,
                seen.serialize(),
                instance_id=topology.instance_id,
            )
        active = [ActiveSegment(s.descriptor, s.hash_start, s.hash_end) for s in topology.active]
        one_hash: set[str] = set()
        while True:
            decision = decide(active, seen, policy, one_hash)
            if decision.what != "split":
                return decision
            [name] = decision.segments
            if len(recent_hashes(self._log, topology.segment(name))) != 1:
                return decision
            one_hash.add(name)

    def _apply(self, topology: Topology, decision: Decision) -> None:
        changes = self._topics.changes
        # By their ids, which no other topic of this name has (INV-12).
        segments = [topology.segment(name).ref.id for name in decision.segments]
        if decision.what == "split":
            changes.split(topology.topic, segments[0], by_load=True)
        else:
            changes.merge(topology.topic, segments)
