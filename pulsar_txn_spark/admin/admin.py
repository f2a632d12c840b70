"""``Admin``: everything that an administrator does to topics and subscriptions, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_txn_spark.admin.properties import (
    change_property,
    read_properties,
    refuse_system_property,
)
from pulsar_txn_spark.admin.reset_target import ResetTarget, ResetTo
from pulsar_txn_spark.admin.subscriptions import CursorMove, delete, reset
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.retention import RETENTION_PROPERTY, Retention
from pulsar_txn_spark.segments.scaling import SCALING_PROPERTY, ScalingPolicy
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import GatedBy, Topology


class Admin:
    """Manages topics, segments, subscriptions, retention and scaling.

    Nothing is opened before the first method is called. The connections are shared by all that has
    the same options in this process, so an ``Admin`` costs nothing and needs no closing. Each
    method also raises StoreUnavailableError, StoreUnsafeError and SegmentLogUnavailableError.

    Parameters
    ----------
    options : mapping of str to str, optional
        How to reach the store and Pulsar, as for ``format("pulsar_txn")``; empty = all embedded.

    Raises
    ------
    OptionError
        If an option is wrong.

    Examples
    --------
    >>> admin = Admin({"store.path": "somewhere"})  # embedded; empty options: the default folder
    >>> admin.create_topic("topic://public/default/events", segments=4)
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self._options = Options(options or {}, Use.CONNECT)

    def __repr__(self) -> str:
        return f"Admin({self._options!r})"

    @property
    def _components(self) -> Components:
        return open_components(self._options)

    def _name(self, topic: str) -> TopicName:
        return self._options.domains.segmented(topic)

    # -- topics --------------------------------------------------------------------------------

    def create_topic(
        self,
        topic: str,
        *,
        segments: int = 4,
        exist_ok: bool = False,
        retention_time: str | None = None,
        retention_size: str | None = None,
        gate: str = GatedBy.READER,
    ) -> Topology:
        """Create a segmented topic.

        Parameters
        ----------
        topic : str
            ``topic://tenant/namespace/name``, or the name alone (in ``public/default``).
        segments : int
            How many; they tile the 16-bit hash space.
        exist_ok : bool
            Accept an existing topic, if it was created with as many segments and the same gate.
            Splits and merges since then do not matter.
        retention_time, retention_size : str, optional
            As for :meth:`set_retention`; by default everything is kept for ever.
        gate : str
            Who keeps uncommitted and aborted rows from being seen: ``reader`` = this package's
            readers do, other clients see everything; ``broker`` = the brokers, for every client.
            They need the plug-in (docs/broker.md). A topic keeps its gate.

        Raises
        ------
        TopicExistsError
            If it exists; with `exist_ok`, if it was created otherwise.
        OptionError
            If a limit, the number of segments or the gate is wrong.
        """
        if gate not in list(GatedBy):
            raise OptionError(f"gate: expected {' or '.join(GatedBy)}, found {gate!r}")
        retention = Retention.parse(retention_time, retention_size)
        components = self._components
        created = components.topics.create(
            self._name(topic), segments, exist_ok=exist_ok, gate=GatedBy(gate)
        )
        if not retention.forever:
            change_property(components, created, RETENTION_PROPERTY, retention.serialize())
        return created

    def adopt_topic(self, source: str, topic: str, *, segments: int | None = None) -> Topology:
        """Make a ``persistent://`` topic, partitioned or not, the beginning of a segmented one.

        Its partitions are sealed, for good, and become the first parents. Readers get their data in
        order, and after it whatever is written from now on. An interrupted adoption is continued.

        Parameters
        ----------
        source : str
            ``persistent://tenant/namespace/name``. Nobody may produce to it any more.
        topic : str
            Name of the segmented topic.
        segments : int, optional
            How many segments follow; as many as there were partitions by default.

        Returns
        -------
        Topology
            With those active.

        Raises
        ------
        SegmentLogError
            If producers are connected, or if Pulsar's own transactions are open in it.
        TopicExistsError
            If there is such a topic, and it is not the adopted one.
        TopicNotFoundError
            If there is nothing to adopt.
        TransactionDomainError
            If `source` is a segment already.
        OptionError
            If `source` is a segmented topic, or a scalable one of Pulsar 5.
        """
        # The name is explicit: an override may make the namespace's topics segmented.
        name = TopicName.of_any_domain(source)
        if name.segmented or name.scalable:
            raise OptionError(
                f"expected a native topic (persistent://tenant/namespace/name) to "
                f"adopt, found {source!r}"
                + (": its segments are the brokers' own. Copy its rows" if name.scalable else "")
            )
        return self._components.topics.adopt(name, self._name(topic), segments)

    def find_topic(self, topic: str) -> Topology:
        """Return a topic's segments: their hash ranges, states, parents and children.

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        """
        return self._components.topics.require(self._name(topic))

    def list_topics(self) -> list[str]:
        """Return the full names of all segmented topics, sorted."""
        return self._components.topics.names()

    def delete_topic(self, topic: str) -> None:
        """Delete a segmented topic with all its data. Adopted topics are given back, sealed.

        Raises
        ------
        TopicNotFoundError
            If there is none.
        """
        self._components.topics.delete(self._name(topic))

    # -- segments ------------------------------------------------------------------------------

    def split_segment(
        self, topic: str, segment: str, *, at: int | None = None, by_load: bool = False
    ) -> Topology:
        """Replace a segment by two, under running queries.

        Parameters
        ----------
        topic : str
        segment : str
            Number, descriptor (``8000-ffff-2``) or id of an active segment.
        at : int, optional
            First hash of the second child; the middle by default.
        by_load : bool
            Cut so that each half has as many of the rows that were written last.

        Returns
        -------
        Topology
            With both children active.

        Raises
        ------
        TopologyConflictError
            If somebody else changes the segment, or has changed it.
        TopicNotFoundError
            If there is no such topic.
        OptionError
            If there is no such segment, or if it cannot be cut there.
        """
        changes = self._components.topics.changes
        return changes.split(self._name(topic), segment, at=at, by_load=by_load)

    def merge_segments(self, topic: str, segments: Sequence[str]) -> Topology:
        """Replace adjacent segments by one, under running queries.

        Parameters, result and errors are those of :meth:`split_segment`. OptionError is also raised
        if the segments are not adjacent in the hash space.
        """
        return self._components.topics.changes.merge(self._name(topic), segments)

    def seal_segment(self, topic: str, segment: str) -> Topology:
        """Seal a segment and continue in a new one over the same hashes.

        Parameters, result and errors are those of :meth:`split_segment`. A segment whose log was
        terminated by another tool gets its successor in this way, too.
        """
        return self._components.topics.changes.seal(self._name(topic), segment)

    def gate_topic(self, topic: str) -> Topology:
        """Let the brokers hide uncommitted rows of a topic from every client, from now on.

        Each active segment is sealed and continued in a gated one, under running queries. Rows of
        the sealed segments stay as they are: only readers of this package know which of them count.
        It cannot be undone. Install the plug-in on every broker before (docs/broker.md): without
        it nobody can write. A topic that the brokers gate is left as it is.

        Parameters
        ----------
        topic : str

        Returns
        -------
        Topology
            With gated segments.

        Raises
        ------
        TopologyConflictError
            If somebody else changes its segments.
        TopicNotFoundError
            If there is no such topic.
        OptionError
            If the topic does not lie on Pulsar.
        """
        return self._components.topics.gate(self._name(topic))

    # -- subscriptions -------------------------------------------------------------------------

    def reset_subscription(
        self, topic: str, subscription: str, to: ResetTo, *, dry_run: bool = False
    ) -> list[CursorMove]:
        """Move a subscription's cursors and release it, so that another query can use it.

        A query or consumer that uses it meanwhile fails with a conflict and has to be started
        again. A query then needs a new checkpoint, unless the cursors stay where they are.

        Parameters
        ----------
        topic : str
        subscription : str
        to : str, int, datetime or mapping
            One of

            - ``earliest``, or ``latest``: the end of what is committed now;
            - ``here``: only release it;
            - a time: a datetime with its zone, ISO 8601 with a zone, or milliseconds since 1970 as
              a number. What was published before counts as acknowledged;
            - positions, as a mapping of segment to ``"ledger:entry"`` or JSON of that. The cursors
              of other segments stay where they are.
        dry_run : bool
            Change nothing, and only return what would move.

        Returns
        -------
        list of CursorMove
            One for each segment in which the subscription then has a cursor.

        Raises
        ------
        SubscriptionNotFoundError
            If there is no such subscription.
        AcknowledgementConflictError
            If an open transaction has an acknowledgement in it. Also if a cursor is to stay and
            single messages are acknowledged behind it, which would be forgotten.
        OptionError
            If `to` is none of these, or names a position that does not exist.
        TopicNotFoundError
            If there is no such topic.
        """
        target = ResetTarget.parse(to)
        return reset(self._components, self._name(topic), subscription, target, dry_run=dry_run)

    def delete_subscription(self, topic: str, subscription: str) -> None:
        """Delete a subscription, so that it retains no data any more.

        A query that still runs with it creates it again at its next micro-batch.

        Raises
        ------
        SubscriptionNotFoundError
            If there is no such subscription.
        AcknowledgementConflictError
            If an open transaction has an acknowledgement in it.
        TopicNotFoundError
            If there is no such topic.
        """
        delete(self._components, self._name(topic), subscription)

    # -- retention and scaling -----------------------------------------------------------------

    def set_retention(
        self, topic: str, *, time: str | None = None, size: str | None = None
    ) -> Retention:
        """Set how long a topic retains what every subscription has acknowledged.

        Sweeps delete a row that is beyond one of the limits and that no subscription needs. Queries
        without a ``subscription`` retain nothing. For them the limits have to be longer than the
        time that they may be stopped.

        Parameters
        ----------
        topic : str
        time : str, optional
            Such as ``'30m'``, ``'12h'``, ``'7d'``; None or ``'forever'`` = no limit.
        size : str, optional
            Of the whole topic, such as ``'10GiB'``; None or ``'forever'`` = no limit.

        Raises
        ------
        OptionError
            If a limit is malformed.
        TopicNotFoundError
            If there is no such topic.
        """
        retention = Retention.parse(time, size)
        value = None if retention.forever else retention.serialize()
        self._change_property(topic, RETENTION_PROPERTY, value)
        return retention

    def topic_retention(self, topic: str) -> Retention:
        """Return how long a topic retains what every subscription has acknowledged.

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        """
        return Retention.of(self._stored_properties(topic))

    def set_scaling(self, topic: str, policy: ScalingPolicy) -> None:
        """Set when ``pulsar-txn sweep --scale`` splits and merges a topic's segments.

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        """
        self._change_property(topic, SCALING_PROPERTY, policy.serialize())

    def topic_scaling(self, topic: str) -> ScalingPolicy:
        """Return when a topic's segments are split and merged; off unless it was set.

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        """
        return ScalingPolicy.of(self._stored_properties(topic))

    # -- properties ----------------------------------------------------------------------------

    def topic_properties(self, topic: str) -> dict[str, str]:
        """Return a topic's properties: the users', and the system's own.

        ``__contains_txn_messages`` (PIP-373) becomes ``true`` before the first transaction writes
        to one of the topic's segments.

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        """
        components = self._components
        return read_properties(components, components.topics.require(self._name(topic)))

    def set_topic_property(self, topic: str, name: str, value: str) -> None:
        """Set a property of a topic.

        Raises
        ------
        NotAllowedError
            If it is a system property.
        TopicNotFoundError
            If there is no such topic.
        """
        refuse_system_property(name, "set")
        self._change_property(topic, name, value)

    def remove_topic_property(self, topic: str, name: str) -> bool:
        """Remove a property of a topic; False if it has none of that name.

        Raises
        ------
        NotAllowedError
            If it is a system property.
        TopicNotFoundError
            If there is no such topic.
        """
        refuse_system_property(name, "removed")
        return self._change_property(topic, name, None)

    def _stored_properties(self, topic: str) -> dict[str, str]:
        components = self._components
        topology = components.topics.require(self._name(topic))
        return components.store.topics.read_properties(str(topology.topic))

    def _change_property(self, topic: str, name: str, value: str | None) -> bool:
        components = self._components
        topology = components.topics.require(self._name(topic))
        return change_property(components, topology, name, value)
