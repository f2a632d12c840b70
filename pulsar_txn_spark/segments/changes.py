"""Splitting, merging and sealing segments while transactions are open.

A change replaces adjacent active segments by children over the same hashes. It takes these steps
of the protocol:

11. *plan-children*: the topology names the children, as planned. From here on whoever comes by can
    finish;
12. *seal-log*: the children's logs are created, then the parents' logs are sealed. Writers learn it
    from the log itself: what was acknowledged lies before the seal, everything else goes to the
    children;
13. *activate-children*: the topology says that the parents are sealed, and where they end, and that
    the children are active.

Each step may be repeated, by several at once. The topology never says "sealed" of a log that can
still grow. A reader would leave the parent with rows to come, and read the children too early.

A change belongs to one life of its topic (INV-12). Whoever is slow finds out that the topic was
deleted meanwhile, also if another one has its name. It removes the logs that it has made.

An adoption is the change that a topic begins with. Its parents are logs that are there already, and
become segments in step 12, seal-log, before they are sealed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from pulsar_txn_spark import steps
from pulsar_txn_spark.errors import OptionError, SegmentLogError, TopologyConflictError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.key_load import cut_by_load
from pulsar_txn_spark.segments.log import SegmentLog
from pulsar_txn_spark.segments.topic_lifecycle import TopicLifecycle
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Change, GatedBy, Segment, SegmentState, Topology
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.protocol import MetadataStore

_PATIENCE_S = 0.3
"""So long a writer that meets a seal waits for whoever sealed to get on. On Pulsar several requests
lie between seal and activation; to repeat them in each task would help nobody."""
_ADOPTION_PATIENCE_S = 10.0
"""So long a reader waits for whoever adopts a topic: it need not have the rights to do so itself.
On Pulsar an adoption takes seconds."""
_TRIES = 64  # each lost race means that another change of the same topic got on


class TopologyChanges:
    """Changes the segments of topics.

    Parameters
    ----------
    store : MetadataStore
    log : SegmentLog
    lifecycle : TopicLifecycle
    require : callable
        Reads a topic's topology; raises TopicNotFoundError.
    """

    def __init__(
        self,
        store: MetadataStore,
        log: SegmentLog,
        lifecycle: TopicLifecycle,
        require: Callable[[TopicName], Topology],
    ) -> None:
        self._store = store
        self._log = log
        self._lifecycle = lifecycle
        self._require = require
        self.patience_s = _PATIENCE_S
        self.adoption_patience_s = _ADOPTION_PATIENCE_S

    def split(
        self, topic: TopicName, segment: str, *, at: int | None = None, by_load: bool = False
    ) -> Topology:
        """Replace a segment by two.

        Parameters
        ----------
        topic : TopicName
        segment : str
            Number, descriptor or id.
        at : int, optional
            First hash of the second child; the middle by default.
        by_load : bool
            Cut where half of the rows that were written last lies on either side.

        Returns
        -------
        Topology
            With both children active.

        Raises
        ------
        TopologyConflictError
            If somebody else changes the segment, or has changed it.
        OptionError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
        """
        if at is not None and by_load:
            raise OptionError("a segment is cut at a hash or by its load: choose one of them")

        def planned(topology: Topology, change: str) -> Topology:
            parent = topology.segment(segment)
            cut = at
            if by_load:
                cut = cut_by_load(self._log, parent)
            if cut is None:
                cut = (parent.hash_start + parent.hash_end + 1) // 2
            return topology.with_planned([parent], [cut], change)

        return self._change(topic, planned)

    def merge(self, topic: TopicName, segments: Sequence[str]) -> Topology:
        """Replace adjacent segments by one; same results and errors as :meth:`split`."""
        if len(set(segments)) < 2:  # noqa: PLR2004
            raise OptionError(f"a merge takes at least two segments, found {list(segments)}")
        return self._change(
            topic, lambda t, change: t.with_planned([t.segment(n) for n in segments], [], change)
        )

    def seal(self, topic: TopicName, segment: str) -> Topology:
        """Seal a segment and go on in another one over the same hashes; otherwise as a split."""
        return self._change(
            topic, lambda t, change: t.with_planned([t.segment(segment)], [], change)
        )

    def gate(self, topic: TopicName, gate_store: str) -> Topology:
        """Let the brokers gate a topic: seal all of its segments and go on in gated ones.

        One step of the store plans all of it. So no segment that is active afterwards was created
        without the gate. What was sealed stays as it is.

        Parameters
        ----------
        topic : TopicName
        gate_store : str
            Uuid of the metadata store.

        Returns
        -------
        Topology
            With gated segments only; if the brokers gate it already, as it is.

        Raises
        ------
        TopologyConflictError
            If somebody else changes a segment.
        TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
        """
        topology = self.finish(self._require(topic))
        if topology.gate is GatedBy.BROKER:
            return topology
        return self._change(topic, lambda t, change: t.with_gate(gate_store, change))

    def _change(self, topic: TopicName, planned: Callable[[Topology, str], Topology]) -> Topology:
        change = secrets.token_hex(8)
        topology = self._require(topic)
        for _ in range(_TRIES):
            if any(segment.change == change for segment in topology.segments):
                return self.finish(topology)  # the reply was lost, but the plan is there
            try:
                after = planned(topology, change)
            except TopologyConflictError:
                # Whoever was first may have died half way: nothing stays half done.
                self.finish(topology)
                raise
            # Step 11, plan-children: durable before any log is touched.
            with steps.at(Step.PLAN_CHILDREN):
                self._swap(topology, after, Step.PLAN_CHILDREN)
            topology = self._lifecycle.reread(topology, "a change of its segments was planned")
            # Only the record says who was first: two plans can differ in the change's id alone.
        raise TopologyConflictError(
            f"topic {topic} was changed by others {_TRIES} times while this change was planned: "
            "nothing was done, try again"
        )

    def finish(self, topology: Topology) -> Topology:
        """Finish what was planned, whoever has planned it; does nothing if nothing is planned.

        Returns
        -------
        Topology
            As it is afterwards.

        Raises
        ------
        TopicNotFoundError
            If the topic was deleted since `topology` was read, also if it was created again.
        """
        for change in topology.unfinished:
            try:
                ends = self._seal_parents(topology, change)
            except SegmentLogError:
                # The logs of a topic, or of a segment, that was deleted meanwhile are gone.
                now = self._still_there(topology, change)
                if not _is_done(now, change):
                    raise
                ends = None
            if ends is None:
                topology = self._lifecycle.reread(topology, "a change of its segments was finished")
                continue
            # Step 13, activate-children.
            with steps.at(Step.ACTIVATE_CHILDREN):
                topology = self._activate(topology, change, ends)
        return topology

    def _seal_parents(self, topology: Topology, change: Change) -> dict[str, Position] | None:
        """Create the children's logs and seal the parents'; None if others have done all of it."""
        self._store.segments.prepare([child.ref.id for child in change.children])
        for child in change.children:
            self._log.create(child.ref, topology.gate_store)
        # Before what cannot be taken back: a partition that is adopted may be somebody's again.
        if _is_done(self._still_there(topology, change), change):
            return None
        adopted = [parent for parent in change.parents if parent.adopted]
        for parent in adopted:
            self._log.adopt(parent.ref)
        # Whoever has deleted the topic since gave back what was adopted by then, and no more.
        if adopted and _is_done(self._still_there(topology, change), change):
            return None
        # Step 12, seal-log: only then the topology says so.
        return {parent.ref.id: self._seal(parent) for parent in change.parents}

    def _still_there(self, topology: Topology, change: Change) -> Topology:
        """Read a topic again in the middle of a change; remove what was made too late.

        Raises
        ------
        TopicNotFoundError
            If the topic was deleted: the children's logs, and the adopted ones, belong to nobody.
        """
        if not self._lifecycle.alive(topology):
            adopted = [parent for parent in change.parents if parent.adopted]
            self._lifecycle.give_up([*change.children, *adopted])
        now = self._lifecycle.reread(topology, "a change of its segments was finished")
        by_id = now.by_id
        gone = [by_id[child.ref.id] for child in change.children]
        self._lifecycle.give_up([child for child in gone if child.state is SegmentState.DELETED])
        return now

    def await_or_finish(self, topology: Topology) -> Topology:
        """Let whoever is at a change get on with it, but not for long; then finish it.

        An adoption is waited for longer: until it is done, nothing can be read or written.

        Returns
        -------
        Topology
            As it is afterwards.
        """
        if not topology.unfinished:
            return topology
        patience_s = self.patience_s if topology.active else self.adoption_patience_s
        deadline = time.monotonic() + patience_s
        with closing(self._store.event_feed()) as feed:
            # First the place in the stream, then the topology: nothing is lost between.
            feed.follow([f"topic:{topology.topic}"])
            what = "somebody changed its segments"
            topology = self._lifecycle.reread(topology, what)
            while topology.unfinished and (left_s := deadline - time.monotonic()) > 0:
                feed.wait(left_s)
                topology = self._lifecycle.reread(topology, what)
        return self.finish(topology)

    def _seal(self, parent: Segment) -> Position:
        with steps.at(Step.SEAL_LOG):
            end = self._log.seal(parent.ref)
            if steps.reply_is_lost(Step.SEAL_LOG):
                end = self._log.seal(parent.ref)
            return end

    def _activate(self, topology: Topology, change: Change, ends: dict[str, Position]) -> Topology:
        for _ in range(_TRIES):
            if _is_done(topology, change):
                return topology  # somebody else was faster, or it was our own
            done = topology.with_done(change, ends)
            self._swap(topology, done, Step.ACTIVATE_CHILDREN)
            topology = self._still_there(topology, change)
        raise TopologyConflictError(
            f"topic {topology.topic} was changed by others {_TRIES} times while a change was "
            "finished: whoever meets it next goes on"
        )

    def _swap(self, before: Topology, after: Topology, step: Step) -> None:
        topic = str(before.topic)
        self._store.topics.swap(topic, before.version, after.serialize(), step)


def _is_done(topology: Topology, change: Change) -> bool:
    return all(change.id != other.id for other in topology.unfinished)
