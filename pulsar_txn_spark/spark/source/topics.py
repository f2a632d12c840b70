"""Which topics and segments a source reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogError,
    SegmentNotFoundError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.options import NO_OPTIONS, Options, Use
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import PULSAR_DOMAINS, TopicName
from pulsar_txn_spark.segments.topology import Topology
from pulsar_txn_spark.spark.rows import SEQUENCE_ID
from pulsar_txn_spark.spark.source.offset_options import starting_offsets
from pulsar_txn_spark.spark.source.offsets import SegmentKey

_LOG = logging.getLogger(__name__)
CHANGE_GRACE_PERIOD_S = 10.0
"""How long a source leaves an unfinished split or merge to the process that began it."""


def source_options(raw: Mapping[str, str], use: Use) -> Options:
    """Parse the options of a source, and check them against each other.

    Raises
    ------
    OptionError, TransactionDomainError
    """
    options = Options(raw, use)
    topics = options.get("topics") or [options.get("topic")]
    pattern = options.get("topicsPattern")
    if not any((*topics, pattern)):
        raise OptionError(
            "no topic to read: give the option 'topic', 'topics' or 'topicsPattern', for example "
            "topic://public/default/flights" + ("" if options.raw else NO_OPTIONS)
        )
    subscription = options.get("subscription")
    starting = starting_offsets(options)
    strategy = "startingOffsetsByTimestampStrategy"
    if options.explicit(strategy) is not None and not starting.times:
        raise OptionError(
            f"option {strategy!r} means nothing here: it is for 'startingTimestamp' and "
            "'startingOffsetsByTimestamp'"
        )
    if starting.word == "subscription" and not subscription:
        raise OptionError(
            "startingOffsets='subscription' needs the option 'subscription', which is for streams: "
            "a batch read acknowledges nothing. Name the subscription, or use 'earliest' or JSON"
        )
    if options.explicit("maxTriggerDelay") is not None and not options.get("minMessagesPerTrigger"):
        raise OptionError(
            "option 'maxTriggerDelay' means nothing here: it bounds how long a micro-batch waits "
            "for 'minMessagesPerTrigger', which is not given"
        )
    least, most = options.get("minPartitions"), options.get("maxPartitions")
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"option 'minPartitions' is {least} and 'maxPartitions' {most}: at least so many tasks "
            "cannot be more than at most so many"
        )
    if subscription:
        for topic in filter(None, (*topics, pattern)):
            _require_acknowledgeable(subscription, str(topic))
    return options


def _require_acknowledgeable(subscription: str, topic: str) -> None:
    """Refuse a subscription on a native topic: no transaction spans Pulsar's coordinators and ours.

    Raises
    ------
    TransactionDomainError
    """
    domain = topic.partition("://")[0]
    if domain in PULSAR_DOMAINS:
        raise TransactionDomainError(
            f"topic {topic} is of the domain {domain}://: subscription {subscription!r} "
            "would acknowledge in this package's transaction what is under Pulsar's own, and none "
            "spans both. Leave the option 'subscription' out: the checkpoint keeps what was "
            "read, exactly once, and a replay reads the same"
        )


def require_sequence_ids(options: Options, columns: Collection[str]) -> None:
    """Refuse a column of sequence ids where the transport would only show nulls.

    Raises
    ------
    OptionError
    """
    if SEQUENCE_ID not in columns or options.pulsar is None:
        return
    from pulsar_txn_spark.backends.pulsar.transport import choose_and_say

    chosen, why = choose_and_say(options.pulsar)
    if chosen == "client":
        raise OptionError(
            f"the column {SEQUENCE_ID} needs the transport 'wire', as pulsar-client does not show "
            f"sequence ids; here the transport is 'client': {why}. Leave the column out, or set "
            "transport=wire"
        )


def check_source(raw: Mapping[str, str]) -> Options:
    """Check a source when it is loaded: its options, the connections, the topics.

    Raises
    ------
    OptionError, TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
    """
    options = source_options(raw, Use.READ)
    require_sequence_ids(options, options.get("metadata.columns"))
    components = open_components(options)
    for topology in SourceTopics(options, components).topologies().values():
        components.topics.check_access(topology)
    return options


class SourceTopics:
    """The topics that the options of a source name.

    Parameters
    ----------
    options : Options
    components : Components
    """

    def __init__(self, options: Options, components: Components) -> None:
        self._options = options
        self._topics = components.topics
        self._has_warned = False
        self._left_out: set[TopicName] = set()
        self._unfinished: dict[str, dict[str, float]] = {}  # topic -> change -> first seen

    def topologies(self, *, waits: bool = False) -> dict[str, Topology]:
        """Return the topics as they are now, by full name.

        Without `waits`, a stream leaves a topic that matches a pattern out while it is being
        adopted. It is read from its first message later. Topics that are named are waited for.

        Raises
        ------
        OptionError
            If two topics have a log in common.
        TopicNotFoundError, StoreUnavailableError, SegmentLogUnavailableError
        """
        pattern = self._options.get("topicsPattern")
        if pattern is None:
            names: list[TopicName] = self._options.get("topics") or [self._options.get("topic")]
            topologies = [self._topics.readable(name) for name in names]
        else:
            # A topic that is being created or deleted matches no pattern.
            waits = waits or bool(self._options.use & Use.BATCH)
            listed = self._topics.matching(pattern)
            matching = [self._matching(name, waits=waits) for name in listed]
            topologies = [topology for topology in matching if topology is not None]
            if not topologies:
                self._say_that_none_matches(pattern)
        finished = [self._finished(topology) for topology in topologies]
        _require_disjoint(finished)
        return {str(topology.topic): topology for topology in finished}

    def find(self, name: str) -> Topology | None:
        """Return a topic, whether the options name it or not; None if there is none here.

        Raises
        ------
        TransactionDomainError
            If it was adopted: the error names the topic that has its rows now.
        OptionError
            If it is on the other backend, which these options do not choose.
        StoreUnavailableError, SegmentLogUnavailableError
        """
        try:
            return self._topics.readable_if_there(TopicName.of_any_domain(name))
        except TransactionDomainError:
            raise
        except (TopicNotFoundError, SegmentNotFoundError):
            return None

    def _matching(self, name: TopicName, *, waits: bool) -> Topology | None:
        """Return a topic that a pattern matches, None if there is nothing of it to read."""
        try:
            topology = self._topics.readable_if_there(name)
        except TransactionDomainError:
            raise
        except OptionError as error:
            self._say_left_out(name, error)  # of the other backend, on the same store
            return None
        if topology is None or topology.active:
            return topology
        try:
            return self._finished(topology) if waits else self._adopted(topology)
        except TopicNotFoundError:
            return None  # its adoption was taken back

    def _adopted(self, topology: Topology) -> Topology | None:
        """Finish an adoption whose process has not done so in time; None while it is not done.

        One that is refused, for example as producers have come back, ends no query.
        """
        if not self._is_overdue(topology):
            return None
        try:
            return self._topics.changes.finish(topology)
        except SegmentLogError as error:
            self._say_left_out(topology.topic, error)
            return None

    def _say_left_out(self, name: TopicName, why: PulsarTxnError) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            _LOG.warning("%s matches topicsPattern, and is not read yet: %s", name, why)

    def _say_that_none_matches(self, pattern: str) -> None:
        is_batch = bool(self._options.use & Use.BATCH)
        if self._has_warned and not is_batch:
            return
        self._has_warned = True
        message = f"topicsPattern {pattern!r} matches no topic ({self._topics.listing()})"
        advice = (
            "It has to match the whole name, such as topic://public/default/flights-.*, or what "
            "follows topic://"
        )
        if is_batch:
            raise TopicNotFoundError(f"{message}, so a batch read has nothing to read. {advice}")
        _LOG.warning("%s: nothing is read until one comes. %s", message, advice)

    def _finished(self, topology: Topology) -> Topology:
        """Finish a split or merge whose process has not done so within the grace period.

        Nothing is lost meanwhile: parents stay readable. On Pulsar the steps take seconds, in which
        this query would wait. Of a topic that is being adopted nothing can be read yet. An empty
        batch would be wrong, and so would a start at ``latest`` that knows no segment. So here the
        query waits for it.
        """
        if not topology.active:
            return self._topics.changes.await_or_finish(topology)
        if not self._is_overdue(topology):
            return topology
        try:
            return self._topics.changes.finish(topology)
        except PulsarTxnError as error:
            # A reader need not have the rights for it. A writer will finish the change.
            _LOG.warning("a change of %s is not finished yet: %s", topology.topic, error)
            return topology

    def _is_overdue(self, topology: Topology) -> bool:
        """Tell whether a change was seen unfinished for longer than the grace period."""
        now = time.monotonic()
        name = str(topology.topic)
        before = self._unfinished.get(name, {})
        first_seen = {change.id: before.get(change.id, now) for change in topology.unfinished}
        self._unfinished[name] = first_seen
        return any(now - since >= CHANGE_GRACE_PERIOD_S for since in first_seen.values())


def _require_disjoint(topologies: Collection[Topology]) -> None:
    """Refuse topics of which one is a partition of another one: its rows would be read twice.

    Raises
    ------
    OptionError
    """
    topics: dict[str, TopicName] = {}
    for topology in topologies:
        for segment in topology.readable:
            log = segment.ref.log_name
            other = topics.setdefault(log, topology.topic)
            if other != topology.topic:
                raise OptionError(
                    f"topics {other} and {topology.topic} both have {log}, whose rows would be "
                    "read twice. Name one of them"
                )


def readable_segments(topologies: Mapping[str, Topology]) -> dict[SegmentKey, SegmentRef]:
    """Return the segments of topics that can be read."""
    return {
        (name, segment.descriptor): segment.ref
        for name, topology in topologies.items()
        for segment in topology.readable
    }
