"""Creating and looking after topics and subscriptions, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_txn_spark.admin.subscriptions import (
    CursorMove,
    delete_subscription,
    reset_subscription,
)
from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.errors import NotAllowedError, OptionError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.log import CONTAINS_TXN
from pulsar_txn_spark.segments.retention import RETENTION_PROPERTY, Retention
from pulsar_txn_spark.segments.scaling import SCALING_PROPERTY, ScalingPolicy
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.store.protocol import NOWHERE, Code

INTERNAL_PROPERTIES = frozenset({"__upkeep", "__load"})
"""Who looks after the topic at the moment, and what was seen of its load: nobody's settings."""

__all__ = [
    "CursorMove",
    "Retention",
    "ScalingPolicy",
    "create_topic",
    "delete_subscription",
    "delete_topic",
    "list_topics",
    "remove_topic_property",
    "reset_subscription",
    "set_retention",
    "set_scaling",
    "set_topic_property",
    "topic_properties",
    "topic_retention",
    "topic_scaling",
]

SYSTEM_PREFIX = "__"
"""So the names of the system's own properties begin."""


def _open(options: Mapping[str, str]) -> Runtime:
    return runtime(Options(options, Use.CONNECT))


def topic_name(options: Mapping[str, str], topic: str) -> TopicName:
    """Read the name of a segmented topic, by the domains that the options choose.

    Raises
    ------
    OptionError, TransactionDomainError
    """
    return Options(options, Use.CONNECT).domains.segmented(topic)


def create_topic(
    options: Mapping[str, str],
    topic: str,
    *,
    segments: int = 4,
    exist_ok: bool = False,
    retention_time: str | None = None,
    retention_size: str | None = None,
) -> Topology:
    """Create a segmented topic.

    Parameters
    ----------
    options : mapping of str to str
        How to reach the store and Pulsar, as for ``format("pulsar_txn")``; empty = all embedded.
    topic : str
        ``topic://tenant/namespace/name``, or the name alone (in ``public/default``).
    segments : int
        How many; they tile the 16-bit hash space.
    exist_ok : bool
        Take a topic that is there, if it has as many active segments.
    retention_time, retention_size : str, optional
        As for :func:`set_retention`; by default everything is kept for ever.

    Raises
    ------
    TopicExistsError
        If it is there.
    OptionError, StoreUnavailableError, SegmentLogUnavailableError
    """
    retention = Retention.parse(retention_time, retention_size)
    run = _open(options)
    created = run.topics.create(topic_name(options, topic), segments, exist_ok=exist_ok)
    if not retention.forever:
        _change_property_of(run, created, RETENTION_PROPERTY, retention.serialize())
    return created


def set_retention(
    options: Mapping[str, str], topic: str, *, time: str | None = None, size: str | None = None
) -> Retention:
    """Say how long a topic keeps what every subscription has read.

    A row goes when it is beyond one of the limits and no subscription needs it any more; the
    sweeps see to that. Queries without a ``subscription`` hold nothing: for them the limits have to
    be longer than they may be away.

    Parameters
    ----------
    options : mapping of str to str
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
    _set_retention(options, topic, retention)
    return retention


def _set_retention(options: Mapping[str, str], topic: str, retention: Retention) -> None:
    value = None if retention.forever else retention.serialize()
    _change_property(options, topic, RETENTION_PROPERTY, value)


def topic_retention(options: Mapping[str, str], topic: str) -> Retention:
    """Return how long a topic keeps what every subscription has read.

    Raises
    ------
    TopicNotFoundError
        If there is no such topic.
    """
    run = _open(options)
    topology = run.topics.require(topic_name(options, topic))
    return Retention.of(run.store.read_properties(str(topology.topic)))


def set_scaling(options: Mapping[str, str], topic: str, policy: ScalingPolicy) -> None:
    """Say when ``pulsar-txn sweep --scale`` splits and merges a topic's segments.

    Raises
    ------
    TopicNotFoundError
        If there is no such topic.
    """
    _change_property(options, topic, SCALING_PROPERTY, policy.serialize())


def topic_scaling(options: Mapping[str, str], topic: str) -> ScalingPolicy:
    """Return when a topic's segments are split and merged; off unless it was set.

    Raises
    ------
    TopicNotFoundError
        If there is no such topic.
    """
    run = _open(options)
    topology = run.topics.require(topic_name(options, topic))
    return ScalingPolicy.of(run.store.read_properties(str(topology.topic)))


def adopt_topic(
    options: Mapping[str, str], source: str, topic: str, *, segments: int | None = None
) -> Topology:
    """Make a topic of Pulsar's own domain, partitioned or not, the beginning of a segmented one.

    Its partitions are sealed, for good, and become the first parents: readers get their data in
    order, and what is written from now on after it. Asked again, it goes on where it was left.

    Parameters
    ----------
    options : mapping of str to str
    source : str
        ``persistent://tenant/namespace/name``. Nobody may produce to it any more.
    topic : str
        Name of the segmented topic.
    segments : int, optional
        How many take over; as many as there were partitions by default.

    Returns
    -------
    Topology
        With those active.

    Raises
    ------
    SegmentLogError
        If producers are connected, or transactions of Pulsar's own are open in it.
    TopicExistsError
        If there is such a topic, and it is not the adopted one.
    TopicNotFoundError
        If there is nothing to adopt.
    TransactionDomainError
        If it is a segment already.
    OptionError, StoreUnavailableError, SegmentLogUnavailableError
    """
    # Here the name says what is meant: the namespace's topics may be segmented by an override.
    name = TopicName.of_any_domain(source)
    if name.segmented:
        raise OptionError(
            f"expected a topic of Pulsar's own domain (persistent://tenant/namespace/name) to "
            f"adopt, found {source!r}"
        )
    return _open(options).topics.adopt(name, topic_name(options, topic), segments)


def find_topic(options: Mapping[str, str], topic: str) -> Topology:
    """Return a topic's segments as they are now: their hash ranges, states, parents and children.

    Raises
    ------
    TopicNotFoundError
        If there is no such topic.
    """
    return _open(options).topics.require(topic_name(options, topic))


def split_segment(
    options: Mapping[str, str],
    topic: str,
    segment: str,
    *,
    at: int | None = None,
    by_load: bool = False,
) -> Topology:
    """Replace a segment by two, under running queries.

    Parameters
    ----------
    options : mapping of str to str
    topic : str
    segment : str
        Number, descriptor (``8000-ffff-2``) or id of an active segment.
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
    TopicNotFoundError, OptionError, StoreUnavailableError, SegmentLogUnavailableError
    """
    changes = _open(options).topics.changes
    return changes.split(topic_name(options, topic), segment, at=at, by_load=by_load)


def merge_segments(options: Mapping[str, str], topic: str, segments: Sequence[str]) -> Topology:
    """Replace adjacent segments by one, under running queries.

    Parameters, result and errors are those of :func:`split_segment`; OptionError also if the
    segments are not neighbours in the hash space.
    """
    return _open(options).topics.changes.merge(topic_name(options, topic), segments)


def seal_segment(options: Mapping[str, str], topic: str, segment: str) -> Topology:
    """Seal a segment and go on in a new one over the same hashes.

    Parameters, result and errors are those of :func:`split_segment`. It also gives a segment a
    successor whose log somebody has terminated past this package.
    """
    return _open(options).topics.changes.seal(topic_name(options, topic), segment)


def delete_topic(options: Mapping[str, str], topic: str) -> None:
    """Delete a segmented topic with all its data; topics that it adopted are given back, sealed.

    Raises
    ------
    TopicNotFoundError
        If there is none.
    """
    _open(options).topics.delete(topic_name(options, topic))


def list_topics(options: Mapping[str, str]) -> list[str]:
    """Return the full names of all segmented topics, sorted."""
    return _open(options).topics.names()


def topic_properties(options: Mapping[str, str], topic: str) -> dict[str, str]:
    """Return a topic's properties: the users', and the system's own.

    ``__contains_txn_messages`` (PIP-373) is ``true`` from the moment on at which a transaction was
    first let write to one of the topic's segments.

    Raises
    ------
    TopicNotFoundError
        If there is no such topic.
    """
    run = _open(options)
    topology = run.topics.require(topic_name(options, topic))
    ids = [segment.ref.id for segment in topology.segments]
    gates = run.store.gates(ids, [NOWHERE] * len(ids))
    contains = any(gate.contains_txn for gate in gates)
    found = run.store.read_properties(str(topology.topic))
    return {name: value for name, value in found.items() if name not in INTERNAL_PROPERTIES} | {
        CONTAINS_TXN: str(contains).lower(),
    }


def set_topic_property(options: Mapping[str, str], topic: str, name: str, value: str) -> None:
    """Give a topic a property, or another value of it.

    Raises
    ------
    NotAllowedError
        If it is a system property.
    TopicNotFoundError
        If there is no such topic.
    """
    _refuse_system_property(name, "set")
    _change_property(options, topic, name, value)


def remove_topic_property(options: Mapping[str, str], topic: str, name: str) -> bool:
    """Take a property from a topic; False if it has none of that name.

    Raises
    ------
    NotAllowedError
        If it is a system property.
    TopicNotFoundError
        If there is no such topic.
    """
    _refuse_system_property(name, "removed")
    return _change_property(options, topic, name, None)


def _refuse_system_property(name: str, what: str) -> None:
    if name.startswith(SYSTEM_PREFIX):
        raise NotAllowedError(
            f"the property {name!r} cannot be {what}: properties that begin with "
            f"{SYSTEM_PREFIX!r} are the system's. They can be read; use another name"
        )


def _change_property(options: Mapping[str, str], topic: str, name: str, value: str | None) -> bool:
    run = _open(options)
    topology = run.topics.require(topic_name(options, topic))
    return _change_property_of(run, topology, name, value)


def _change_property_of(run: Runtime, topology: Topology, name: str, value: str | None) -> bool:
    """Change a property of the topic that was found, not of another one of its name (INV-12)."""
    topic = str(topology.topic)
    answer = run.store.change_property(topic, name, value, incarnation=topology.incarnation)
    if answer.code is not Code.OK:
        # Either there was no such property to remove, or the topic is not there any more.
        run.topics.lives.again(topology, f"its property {name!r} was to be changed")
    return answer.code is Code.OK
