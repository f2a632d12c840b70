"""Where a topic's life begins and ends, so that nothing of one life reaches into the next (INV-12).

A life is named by its *instance id*, which is drawn when the topic is created. All of its segments'
ids contain it, so no id is ever used again. Creating a topic takes these steps:

1. *creating*: the topology is written, under a name that nobody can use yet;
2. *listed*: the topic is added to the catalogue;
3. the segments' metadata and logs are made;
4. *live*: the topology says so. From here on the topic is used, and never made again.

Deleting it takes these:

1. *deleting*: the topology says so. From here on no reader, writer or change of segments finds the
   topic, and it has no properties any more. Who has found it before fails at the steps below;
2. *shut*, in one step for each segment: nothing is registered there any more, however late;
3. transactions that have a pin there, and are open, are aborted: none of them commits rows that go
   with the topic. Those that were committed before lose them as all others do;
4. the logs go;
5. the segments' metadata goes, but for the mark of deletion step 2;
6. the topology goes;
7. the name leaves the catalogue.

Each step may be repeated, by several at once. A creation is continued by whoever creates the topic
next (another layout: deleted and begun anew). A deletion by whoever creates or deletes it next, and
by sweeps. The catalogue and the topology are two tags, and nothing is atomic across them. So a
topic is listed between its steps *creating* and *live*. A name is removed only under the stamp
that it had *before* its topology was found to be away: what is live is always listed. A name
without a topology, left by a death before deletion step 7 or by a late request, is removed by
whoever lists.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from pulsar_txn_spark import steps
from pulsar_txn_spark.errors import (
    OptionError,
    SegmentLogError,
    SegmentNotFoundError,
    StoreCorruptError,
    TopicNotFoundError,
    TopologyConflictError,
)
from pulsar_txn_spark.segments.log import SegmentLog
from pulsar_txn_spark.segments.topic_name import TopicName, native_topic
from pulsar_txn_spark.segments.topology import Segment, TopicState, Topology
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import Code, TxnId

_TRIES = 64  # each lost race means that somebody else has created or deleted the topic

EndTransaction = Callable[[TxnId, str], None]
"""``end(txn, cause)``: aborts a transaction unless it is decided; gone = nothing to do."""


def remove_logs(log: SegmentLog, segments: Sequence[Segment], left: Sequence[Segment] = ()) -> None:
    """Delete the logs of segments, and give back those that were adopted; idempotent.

    The partitions of a native topic have their policies in common. So these stay while one of the
    partitions is a segment, also one of those that are `left`. An adoption that was left half done
    has not come to all of them: the log tells.
    """
    for number, segment in enumerate(segments, 1):
        if not segment.adopted:
            log.delete(segment.ref)
            continue
        adopted = [other.ref for other in (*segments[number:], *left) if other.adopted]
        topic = native_topic(segment.ref.log_name)
        others = [ref for ref in adopted if native_topic(ref.log_name) == topic]
        log.give_back(segment.ref, others=others)


class TopicLifecycle:
    """Creates and deletes topics.

    Parameters
    ----------
    store : MetadataStore
    log : SegmentLog
    end : callable or None
        Aborts a transaction that writes to a topic which is being deleted; None = none may.
    """

    def __init__(
        self, store: MetadataStore, log: SegmentLog, end: EndTransaction | None = None
    ) -> None:
        self._store = store
        self._log = log
        self._end_transaction = end

    def read(self, topic: TopicName) -> Topology | None:
        """Return a topic's topology whatever its state, None if there is none.

        Raises
        ------
        OptionError
            If the topic lives on the other backend.
        """
        read = self._store.topics.read(str(topic))
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

    # -- the beginning -------------------------------------------------------------------------

    def begin(
        self, plan: Callable[[], Topology], step: Step | None = None
    ) -> tuple[Topology, bool]:
        """Let a topic live, as planned; return it, and whether this call has created it.

        Parameters
        ----------
        plan : callable
            Lays the topic out, each time with another instance id: one that was written may be over
            before anybody has seen it.
        step : Step, optional
            By which name tests know the step *creating*.

        Raises
        ------
        TopologyConflictError
            If somebody else has deleted it meanwhile.
        SegmentLogUnavailableError
            If the log is away; nothing was begun, or it is continued the next time.
        """
        created_by, planned, begun = secrets.token_hex(8), plan(), False
        topic = planned.topic
        for _ in range(_TRIES):
            # Before the read: a topic that was there since, and is gone, has changed it.
            version = self._store.topics.version(str(topic))
            existing = self.read(topic)
            ours = existing is not None and existing.instance_id == planned.instance_id
            if begun and (existing is None or not ours or existing.state is TopicState.DELETING):
                raise TopologyConflictError(
                    f"topic {topic} was deleted by somebody else while it was being created: "
                    "nothing is left of it. Create it again"
                )
            begun = begun or ours
            if existing is None:
                # Nothing is begun that could not be finished.
                self._require_log(planned)
                planned = plan()
                self._create_record(planned, version, step)
            elif existing.state is TopicState.LIVE:
                return existing, existing.created_by == created_by
            elif existing.state is TopicState.DELETING:
                self.finish_deletion(existing)
            elif existing.same_plan(planned):
                self._finish_creation(existing, created_by)
            else:
                self._take_out_of_use(existing)  # left by somebody who wanted another topic
        raise TopologyConflictError(
            f"topic {topic} was created and deleted by others {_TRIES} times meanwhile: try again"
        )

    def _require_log(self, planned: Topology) -> None:
        """Raise unless the log's server answers."""
        with suppress(SegmentNotFoundError):
            self._log.check_access(planned.segments[-1].ref)

    def _create_record(self, planned: Topology, version: int, step: Step | None) -> None:
        planned = replace(planned, state=TopicState.CREATING)

        def write() -> None:
            self._store.topics.swap(
                str(planned.topic),
                version,
                planned.serialize(),
                step,
                instance_id=planned.instance_id,
            )

        if step is None:
            write()
            return
        with steps.at(step):
            write()

    def _finish_creation(self, topology: Topology, created_by: str) -> None:
        # Creation step 2: listed before it is live.
        self._store.meta.add_topic(str(topology.topic))
        # Creation step 3.
        try:
            self._store.segments.prepare([segment.ref.id for segment in topology.active])
            for segment in topology.active:
                self._log.create(segment.ref, topology.gate_store)
        except SegmentLogError:
            if self.alive(topology):
                raise
            self.give_up(topology.active)
            return
        # Creation step 4.
        live = replace(topology, state=TopicState.LIVE, created_by=created_by)
        self._store.topics.swap(str(topology.topic), topology.version, live.serialize())
        if not self.alive(topology):
            # Deleted meanwhile: what was made after the deletion has passed belongs to nobody.
            self.give_up(topology.active)

    # -- in between ----------------------------------------------------------------------------

    def alive(self, topology: Topology) -> bool:
        """Tell whether the life that a topology was read in goes on."""
        current = self.read(topology.topic)
        return (
            current is not None
            and current.instance_id == topology.instance_id
            and current.state is not TopicState.DELETING
        )

    def reread(self, topology: Topology, what: str) -> Topology:
        """Read a topic again.

        Raises
        ------
        TopicNotFoundError
            If it is not the same life any more; `what` says what was going on.
        """
        current = self.read(topology.topic)
        if (
            current is not None
            and current.instance_id == topology.instance_id
            and current.state is TopicState.LIVE
        ):
            return current
        now = (
            "it is gone"
            if current is None
            else "it is being deleted"
            if current.instance_id == topology.instance_id
            else f"another one of this name is there, instance {current.instance_id}"
        )
        raise TopicNotFoundError(
            f"topic {topology.topic} (instance {topology.instance_id}) was deleted while {what}"
            ": "
            f"{now}. What was written to it is gone with it, and nothing was done to another topic "
            "of this name. Start again, if that one is meant"
        )

    def give_up(self, segments: Sequence[Segment]) -> None:
        """Remove logs that were made, or adopted, for a life that is over."""
        remove_logs(self._log, segments)

    # -- the end -------------------------------------------------------------------------------

    def end(self, topology: Topology) -> None:
        """Delete a topic; the life that was found, and no other."""
        for _ in range(_TRIES):
            now = self.read(topology.topic)
            if now is None or now.instance_id != topology.instance_id:
                return  # somebody else has deleted it
            if now.state is TopicState.DELETING:
                self.finish_deletion(now)
                return
            self._take_out_of_use(now)
        raise TopologyConflictError(
            f"topic {topology.topic} was changed by others {_TRIES} times while it was to be taken "
            "out of use: nothing was deleted, try again"
        )

    def _take_out_of_use(self, topology: Topology) -> None:
        if topology.state is TopicState.CREATING:
            # It may not have been listed yet, and sweeps look at what is.
            self._store.meta.add_topic(str(topology.topic))
        # Deletion step 1: durable before anything of the topic goes.
        out = replace(topology, state=TopicState.DELETING)
        self._store.topics.swap(
            str(topology.topic), topology.version, out.serialize(), deleting=True
        )

    def finish_deletion(self, topology: Topology) -> None:
        """Finish what :meth:`end` has begun, whoever that was.

        Raises
        ------
        SegmentLogUnavailableError
            If the log is away: the topic is out of use, and the next call or sweep goes on.
        """
        if topology.state is not TopicState.DELETING:
            raise StoreCorruptError(
                f"topic {topology.topic} is {topology.state}: it is not deleted"
            )
        name = str(topology.topic)
        left = [segment for segment in topology.segments if not segment.erased]
        ids = [segment.ref.id for segment in left]
        # Deletion step 2: from here on nobody gets a pin, so that deletion step 3 ends all.
        writing = self._store.segments.fence(ids)
        # Deletion step 3: a commit that was decided before comes before the deletion, none after.
        for txn in sorted(writing):
            self._end(txn, f"topic {name}, which it has written to, was deleted")
        # Deletion step 4.
        remove_logs(self._log, left)
        # Deletion step 5: not before the log: its dropped writers read what is left of it (INV-5).
        for id_ in ids:
            self._store.segments.purge(id_)
        # Deletion step 6: the version is of this life and no other.
        self._store.topics.delete(name, topology.version)
        # Deletion step 7: last, so that until then whoever lists finds what is left to do.
        self.unlist(name)

    def _end(self, txn: TxnId, cause: str) -> None:
        if self._end_transaction is None:
            raise StoreCorruptError(
                f"{cause}, but transaction {txn} cannot be ended by whoever deletes here"
            )
        self._end_transaction(txn, cause)

    def unlist(self, name: str) -> bool:
        """Take a name out of the catalogue whose topic is not there; tell whether it was listed.

        The stamp is read first: who creates the topic after its topology was read gives the
        name another one.
        """
        stamp = self._store.meta.topic_stamp(name)
        if stamp is None:
            return False
        if self._store.topics.read(name) is not None:
            return False
        return self._store.meta.remove_topic(name, stamp).code is not Code.CONFLICT
