"""Scalable topics of Pulsar 5 (PIP-460), ``scalable://``: read, and written by a native sink only.

Pulsar calls such a topic ``topic://``, which is the name of this package's segmented topics here.
Its transactions are Pulsar's own (PIP-473). So what the broker delivers, and no gate of the
metadata store, says how far a segment may be read.

The admin API knows nothing of a segment's log. So everything is asked for over the wire
(:mod:`~pulsar_txn_spark.backends.pulsar.wire.scalable`), and sizes are estimated. Nothing here
retains the data: a broker deletes what neither a subscription of its own nor a retention policy
retains.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NoReturn, TypeVar

import pyarrow as pa

from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.errors import require_whole
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import ScalableTopicDAG
from pulsar_txn_spark.backends.pulsar.transport import choose_and_say
from pulsar_txn_spark.backends.pulsar.wire import client as wire_client
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.reader import (
    EntryRows,
    WireEntry,
    WireEntryFeed,
    WireReaderSettings,
)
from pulsar_txn_spark.backends.pulsar.wire.scalable import SegmentProbe, look_up, shows_nothing
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    OptionError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.log import (
    Appended,
    EndSnapshot,
    LogRange,
    RangeSize,
    SegmentRef,
    SegmentWriter,
    Visible,
)
from pulsar_txn_spark.segments.topic_name import SCALABLE_DOMAIN, TopicName, local_name
from pulsar_txn_spark.segments.topology import (
    Segment,
    SegmentState,
    Topology,
    scalable_segment,
)

_Result = TypeVar("_Result")

_TOPOLOGY_SECONDS = 1.0
_PATIENCE_SECONDS = 0.25  # an entry that can be read comes in milliseconds
_LATE_SECONDS = 30.0  # a broker that restarts, or takes a topic over, shows its entries by then
_POLL_SECONDS = 0.5
_SEALED = 1  # SegmentState of PulsarApi.proto


def segments_of(topic: TopicName, dag: ScalableTopicDAG) -> tuple[Segment, ...]:
    """Return a scalable topic's segments, parents before their children.

    A segment's descriptor ends with the time of its creation, as a topic that was deleted and
    created again has segments of the same names. What is sealed has no end yet: see
    :meth:`ScalableTopicLog.topology`.

    Raises
    ------
    TransactionDomainError
        If it is not a scalable topic, but one that Pulsar shows as such (PIP-475).
    """
    legacy = [segment.legacy_topic_name for segment in dag.segments if segment.legacy_topic_name]
    if legacy:
        raise TransactionDomainError(
            f"topic {topic} is an ordinary topic of Pulsar's ({legacy[0]}), expected a scalable "
            f"one: name it persistent://{topic.path}, or migrate it with pulsar-admin"
        )
    names = {}
    for segment in dag.segments:
        hashes = f"{segment.hash_start:04x}-{segment.hash_end:04x}"
        descriptor = f"{hashes}-{segment.segment_id}@{segment.created_at_ms}"
        names[segment.segment_id] = scalable_segment(topic, descriptor)
    return tuple(
        Segment(
            names[segment.segment_id],
            segment.hash_start,
            segment.hash_end,
            SegmentState.SEALED if segment.state == _SEALED else SegmentState.ACTIVE,
            tuple(names[parent].id for parent in segment.parent_ids if parent in names),
            tuple(names[child].id for child in segment.child_ids if child in names),
        )
        # A child always has a higher number than its parents.
        for segment in sorted(dag.segments, key=lambda segment: segment.segment_id)
    )


class ScalableTopicLog(Closing):
    """Reads scalable topics; see :class:`~pulsar_txn_spark.segments.log.SegmentLog`.

    Parameters
    ----------
    config : PulsarConfig
        URLs and pass-through options.
    patience_s : float
        See :class:`~pulsar_txn_spark.backends.pulsar.wire.scalable.SegmentProbe`.
    topology_s : float
        How long a topic's segments may serve before they are asked for again.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed, or needs the transport ``client``.
    """

    backend = "pulsar"
    at_once = 8

    def __init__(
        self,
        config: PulsarConfig,
        patience_s: float = _PATIENCE_SECONDS,
        topology_s: float = _TOPOLOGY_SECONDS,
    ) -> None:
        transport, why = choose_and_say(config)
        if transport != "wire":
            raise OptionError(
                "scalable topics need the transport 'wire': pulsar-client has none, and it was "
                f"chosen because {why}"
            )
        self._config = config
        self._admin = PulsarAdmin(config)
        self._client = wire_client.CLIENTS.acquire(config)
        self._settings = WireReaderSettings.of(config)
        self._patience_s, self._topology_s = patience_s, topology_s
        self._topologies: dict[TopicName, tuple[Topology, float]] = {}
        self._readable: dict[str, Position] = {}  # what was proven of each segment
        self._ends: dict[str, Position] = {}  # of sealed segments
        self._means: dict[str, tuple[float, float]] = {}  # messages and bytes of an entry
        self._pid = os.getpid()

    @property
    def admin(self) -> PulsarAdmin:
        """Return the admin API, for what goes beyond one segment's log."""
        return self._admin

    # --- which topics ---------------------------------------------------------------------------

    def topology(self, topic: TopicName) -> Topology:
        """Return a topic's segments.

        A sealed one has an end, and its children may be read, once the broker has shown that no
        transaction is open in it.

        Raises
        ------
        TopicNotFoundError
            If the brokers have no such topic.
        TransactionDomainError
            If it is not a scalable one.
        SegmentLogUnavailableError
        """
        topology, until = self._topologies.get(topic, (None, 0.0))
        if topology is not None and time.monotonic() < until:
            return topology
        topology = self.layout(topic)
        unsettled = [s.ref for s in topology.segments if s.sealed and s.ref.id not in self._ends]
        self._of_each(self._find_end, unsettled)
        segments = tuple(
            replace(segment, sealed_at=self._ends.get(segment.ref.id))
            if segment.sealed
            else segment
            for segment in topology.segments
        )
        topology = replace(topology, segments=segments)
        self._topologies[topic] = topology, time.monotonic() + self._topology_s
        return topology

    def layout(self, topic: TopicName) -> Topology:
        """Return a topic's segments as the broker knows them now, for those who write.

        Sealed ones have no end. Otherwise as :meth:`topology`.
        """
        segments = segments_of(topic, self._look_up(topic))
        return Topology(topic, "", segments, len(segments), self.backend)

    def _look_up(self, topic: TopicName) -> ScalableTopicDAG:
        try:
            return look_up(self._client, topic.pulsar_name)
        except RefusedError as refused:
            if refused.result == "TopicNotFound":
                raise TopicNotFoundError(
                    f"Pulsar has no scalable topic {topic.pulsar_name} on the broker at "
                    f"{redacted(self._config.service_url)}: check its name and service.url. A "
                    f"segmented topic of this package is named topic://{topic.path}, without "
                    "'scalable'"
                ) from None
            if refused.result in ("UnsupportedVersionError", "NotAllowedError"):
                raise OptionError(
                    f"topic {topic} cannot be reached: scalable topics need brokers of Pulsar 5 "
                    f"with scalableTopicsEnabled=true ({refused.detail}). A segmented topic of "
                    f"this package is named topic://{topic.path}"
                ) from None
            raise self._error(refused, "look up", _whole(topic)) from None

    def _find_end(self, segment: SegmentRef) -> None:
        """Note the end of a sealed segment, if no transaction is open there any more."""
        end, probe = self.last_confirmed(segment), self._probe(segment)
        # The log itself says so: what the metadata call sealed might still be appended to.
        if self._asked(segment, lambda: probe.ends_at(end)):
            # The log's own end is the same for all who ask, whatever was aborted or trimmed there.
            self._ends[segment.id] = max(end, self._asked(segment, probe.appended_to))

    def names(self, tenant: str, namespace: str, wanted: Callable[[str], bool]) -> list[TopicName]:
        """Return a namespace's scalable topics that are wanted; see the Protocol.

        Without those of this package's sinks.
        """
        listed = map(local_name, self._admin.scalable_topics(tenant, namespace))
        names = (name for name in listed if not name.startswith("__") and wanted(name))
        return sorted(TopicName(tenant, namespace, name, SCALABLE_DOMAIN) for name in names)

    def knows_transaction(self, most: int, least: int) -> bool:  # noqa: ARG002
        """Return False: its coordinators do not tell."""
        return False

    def refuse_scalable(self, topic: TopicName) -> None:
        """Do nothing: that is asked of native topics' log."""

    # --- how far --------------------------------------------------------------------------------

    def check_access(self, segment: SegmentRef) -> None:
        """Look the segment up and connect; see the Protocol."""
        self._asked(segment, lambda: self._client.check_access(segment.log_name))

    def last_confirmed(self, segment: SegmentRef) -> Position:
        """Return how far readers may read: the last position that is proven to be readable."""
        return self._last_confirmed(segment, patient=False)

    def deliverable_end(self, segment: SegmentRef) -> Position:
        """Return the same; see the Protocol."""
        return self.last_confirmed(segment)

    def _last_confirmed(self, segment: SegmentRef, *, patient: bool) -> Position:
        if segment.id in self._ends:
            return self._ends[segment.id]
        known = self._readable.get(segment.id, EARLIEST)
        probe = self._probe(segment)

        def ask() -> Position:
            appended = probe.appended_to()
            if patient:
                return probe.settled_to(known, appended, _LATE_SECONDS)
            return probe.readable_to(known, appended)

        readable = self._readable[segment.id] = self._asked(segment, ask)
        return readable

    def snapshot_each(
        self, segments: Sequence[SegmentRef], *, patient: bool = False
    ) -> list[EndSnapshot]:
        """Take a snapshot of each; see the Protocol."""
        ends = self._of_each(partial(self._last_confirmed, patient=patient), segments)
        return [EndSnapshot(self, *pair) for pair in zip(segments, ends, strict=True)]

    def trimmed_to(self, segment: SegmentRef) -> Position:
        """Return the end of what is gone for certain: what precedes the first ledger there is."""
        probe = self._probe(segment)
        # An empty ledger is replaced by another one whenever the segment is loaded.
        if self._asked(segment, probe.appended_to) == EARLIEST:
            return EARLIEST
        return self._asked(segment, probe.first_ledger)

    def trimmed_to_of_each(self, segments: Sequence[SegmentRef]) -> list[Position]:
        """Return it of each; see the Protocol."""
        return self._of_each(self.trimmed_to, segments)

    def published_before(self, segment: SegmentRef, time_ms: int) -> Position:
        """Refuse: retention is the brokers'."""
        del time_ms
        self._refuse(segment)

    def position_at(self, segment: SegmentRef, time_ms: int) -> Position | None:
        """Return the position before the first entry at or after a time; see the Protocol.

        Entries are looked at by bisection, first over ledgers. Times are those of the producers'
        clocks. What nobody gets to see yet counts as not there.
        """
        end = self.last_confirmed(segment)

        def reached(ledger: int, entry: int) -> bool:
            following = self._first_up_to(segment, Position(ledger, entry), end)
            return following is None or following.metadata.publish_time >= time_ms

        first = self._first_up_to(segment, EARLIEST, end)
        if first is None or first.metadata.publish_time >= time_ms:
            return None if first is None else EARLIEST
        # The last ledger that begins before the time, and then the last such entry in it.
        ledger = _last(first.position.ledger, end.ledger, lambda ledger: not reached(ledger, -1))
        reach = 1
        while not reached(ledger, reach - 1):
            reach *= 2
        entry = _last(-1, reach - 1, lambda entry: not reached(ledger, entry)) + 1
        following = self._first_up_to(segment, Position(ledger, entry), end)
        return None if following is None else Position(ledger, entry)

    def appended(self, segment: SegmentRef) -> Appended:
        """Refuse: the brokers split and merge these segments themselves."""
        self._refuse(segment)

    # --- how much -------------------------------------------------------------------------------

    def measure(self, segment: SegmentRef, start: Position, end: Position) -> RangeSize:
        """Estimate what a range holds; see the Protocol."""
        if start >= end:
            return RangeSize(0, 0, 0, exact=True)
        probe = self._probe(segment)
        end = min(end, self._asked(segment, probe.appended_to))
        if start >= end:
            return RangeSize(0, 0, 0, exact=False)
        first = self._first_after(segment, start)
        if first is None:
            # Nothing comes: what is there is aborted, or held back by an open transaction.
            hidden = self._asked(segment, lambda: probe.hidden_to(start))
            blocked = end.entry - (hidden.entry if hidden.ledger == end.ledger else -1)
            return RangeSize(blocked if hidden < end else 0, 0, 0, exact=False)
        entries = _at_least(first, end)
        messages, size = self._mean(segment, first)
        return RangeSize(entries, round(entries * messages), round(entries * size), exact=False)

    def limit(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        max_messages: int | None,
        max_bytes: int | None,
    ) -> Position:
        """Return how far one may read within the limits; see the Protocol.

        By the first entry's size, and within the ledger in which the range begins.
        """
        if max_messages is None and max_bytes is None:
            return end
        first = self._first_after(segment, start)
        if first is None or first.position > end:
            return end
        messages, size = self._mean(segment, first)
        fits = [max_messages / messages] if max_messages is not None else []
        fits += [max_bytes / size] if max_bytes is not None else []
        at = first.position
        # There need be no such entry: whatever comes next lies behind it then.
        return min(end, Position(at.ledger, at.entry + max(1, int(min(fits))) - 1))

    def split(
        self, segment: SegmentRef, start: Position, end: Position, parts: int
    ) -> list[Position]:
        """Cut a range into parts of about as many entries; see the Protocol."""
        if start >= end:
            return []
        first = self._first_after(segment, start)
        if first is None or first.position > end or first.position.ledger != end.ledger:
            return [end]
        entries = _at_least(first, end)
        parts = min(parts, entries)
        begin = first.position.entry - 1
        cuts = [begin + entries * number // parts for number in range(1, parts)]
        return [*(Position(end.ledger, cut) for cut in cuts), end]

    def _mean(self, segment: SegmentRef, entry: WireEntry) -> tuple[float, float]:
        return self._means.setdefault(
            segment.id, (max(1.0, entry.messages), max(1.0, len(entry.payload)))
        )

    # --- reading --------------------------------------------------------------------------------

    def read_each(
        self, ranges: Sequence[LogRange], *, columns: frozenset[str], max_rows: int
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Read ranges one after the other; see the Protocol."""
        for wanted in ranges:
            yield self.read(
                wanted.segment,
                wanted.start,
                wanted.end,
                visible=wanted.visible,
                columns=columns,
                max_rows=max_rows,
            )

    def read(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        *,
        visible: Visible,
        columns: frozenset[str],
        max_rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; see the Protocol."""
        if start >= end:
            return
        settings = replace(self._settings, poll_s=_POLL_SECONDS, asks_last=False)
        feed = WireEntryFeed(segment, start, self._client, settings)
        try:
            rows = EntryRows(columns, max_rows, segment, partial(self._entries, segment))
            previous, unsure = start, EARLIEST
            while previous < end:
                entry = self._next(segment, feed, previous, end)
                # Ledgers are deleted whole. From the very beginning means from whatever is there.
                if unsure == EARLIEST and (
                    entry is None or entry.position.ledger != previous.ledger
                ):
                    unsure = previous
                if entry is None or entry.position > end:
                    break
                previous = entry.position
                if visible(entry.producer_name, previous):
                    rows.add(entry)
                    yield from rows.batches(everything=False)
        finally:
            feed.close()
        if unsure != EARLIEST:
            gone = self._asked(segment, self._probe(segment).first_ledger)
            require_whole(segment, unsure, end, gone)
        yield from rows.batches(everything=True)

    def _next(
        self, segment: SegmentRef, feed: WireEntryFeed, previous: Position, end: Position
    ) -> WireEntry | None:
        """Return the next entry, None if nothing that readers get to see lies before `end`.

        Raises
        ------
        SegmentLogUnavailableError
            If an entry is due and does not come.
        """
        deadline = time.monotonic() + _LATE_SECONDS
        while True:
            entry = feed.next_entry(previous)
            if entry is not None or feed.ends_at(previous, self._patience_s):
                return entry
            if time.monotonic() > deadline:
                raise shows_nothing(segment, previous, end)

    def _entries(self, segment: SegmentRef, start: Position, end: Position) -> Iterator[WireEntry]:
        """Yield the entries between two positions, both excluded."""
        feed = WireEntryFeed(segment, start, self._client, self._settings)
        try:
            previous = start
            while (entry := feed.next_entry(previous)) is not None and entry.position < end:
                previous = entry.position
                yield entry
        finally:
            feed.close()

    # --- what is refused ------------------------------------------------------------------------

    def create(self, segment: SegmentRef, gate_store: str = "") -> None:
        """Refuse: such topics are Pulsar's."""
        del gate_store
        self._refuse(segment)

    def adopt(self, segment: SegmentRef) -> None:
        """Refuse: such topics are Pulsar's."""
        self._refuse(segment)

    def check_adoptable(self, segment: SegmentRef) -> None:
        """Refuse: such topics are Pulsar's."""
        self._refuse(segment)

    def delete(self, segment: SegmentRef) -> None:
        """Refuse: such topics are Pulsar's."""
        self._refuse(segment)

    def give_back(self, segment: SegmentRef, *, others: Sequence[SegmentRef] = ()) -> None:
        """Refuse: such topics are Pulsar's."""
        del others
        self._refuse(segment)

    def backlogs_of_others(self, segment: SegmentRef) -> list[str]:
        """Refuse: such topics are Pulsar's, and so is their retention."""
        self._refuse(segment)

    def seal(self, segment: SegmentRef) -> Position:
        """Refuse: such topics are Pulsar's."""
        self._refuse(segment)

    def protect_each(self, segments: Sequence[SegmentRef]) -> None:
        """Refuse: such topics are Pulsar's, and so is their retention."""
        self._refuse(segments[0])

    def trim(self, segment: SegmentRef, up_to: Position) -> Position:
        """Refuse: such topics are Pulsar's, and so is their retention."""
        del up_to
        self._refuse(segment)

    def writer(self, segment: SegmentRef, name: str) -> SegmentWriter:
        """Refuse: a sink writes them, with `transactions=native`."""
        del name
        self._refuse(segment)

    def _refuse(self, segment: SegmentRef) -> NoReturn:
        TopicName.of_any_domain(segment.topic).require_segmented()
        raise AssertionError(f"{segment} is no scalable topic")

    # --- connections ----------------------------------------------------------------------------

    def _close(self) -> None:
        if self._pid == os.getpid():
            wire_client.CLIENTS.release(self._config)
        self._admin.close()

    def _probe(self, segment: SegmentRef) -> SegmentProbe:
        return SegmentProbe(segment, self._client, self._settings, self._patience_s)

    def _first_after(self, segment: SegmentRef, start: Position) -> WireEntry | None:
        return self._asked(segment, lambda: self._probe(segment).first_after(start))

    def _first_up_to(self, segment: SegmentRef, start: Position, end: Position) -> WireEntry | None:
        """Return the first entry behind a position; None if none comes, and none is due.

        Parameters
        ----------
        segment : SegmentRef
        start : Position
        end : Position
            Proven to be readable.

        Raises
        ------
        SegmentLogUnavailableError
            If an entry up to `end` is due and does not come.
        """
        if start >= end:
            return self._first_after(segment, start)
        settings = replace(self._settings, poll_s=_POLL_SECONDS, asks_last=False)
        feed = WireEntryFeed(segment, start, self._client, settings)
        try:
            return self._next(segment, feed, start, end)
        finally:
            feed.close()

    def _asked(self, segment: SegmentRef, ask: Callable[[], _Result]) -> _Result:
        try:
            return ask()
        except RefusedError as refused:
            raise self._error(refused, "ask for", segment) from None

    @staticmethod
    def _error(refused: RefusedError, doing: str, segment: SegmentRef) -> Exception:
        return wire_client.explain(refused, doing, segment)

    def _of_each(
        self, ask: Callable[[SegmentRef], _Result], segments: Sequence[SegmentRef]
    ) -> list[_Result]:
        if len(segments) <= 1:
            return [ask(segment) for segment in segments]
        with ThreadPoolExecutor(self.at_once, "pulsar-txn-scalable") as pool:
            return list(pool.map(ask, segments))


def _at_least(first: WireEntry, end: Position) -> int:
    """Return how many entries there are at least from one on."""
    at = first.position
    if at > end:
        return 0
    return end.entry - at.entry + 1 if at.ledger == end.ledger else end.entry + 2


def _whole(topic: TopicName) -> SegmentRef:
    return SegmentRef(str(topic), str(topic), topic.pulsar_name)


def _last(low: int, high: int, is_before: Callable[[int], bool]) -> int:
    """Return the last number that is before something; `low` is."""
    while low < high:
        middle = (low + high + 1) // 2
        if is_before(middle):
            low = middle
        else:
            high = middle - 1
    return low
