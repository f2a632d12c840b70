"""Native topics, ``persistent://``, partitioned or not: read, and never written.

Their transactions are Pulsar's own. So Pulsar's maxReadPosition (PIP-31), and no gate of the
metadata store, says how far they may be read. The broker filters markers and aborted entries out.

Nothing here retains the data: a broker deletes what neither a subscription of its own nor a
retention policy retains. Which entries are gone follows from the ledgers that are left; see
:meth:`~pulsar_txn_spark.backends.pulsar.ledgers.ManagedLedger.settled`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import pyarrow as pa

from pulsar_txn_spark.backends.pulsar.entry_headers import look_again
from pulsar_txn_spark.backends.pulsar.errors import require_whole
from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopic
from pulsar_txn_spark.backends.pulsar.ledgers import ManagedLedger
from pulsar_txn_spark.backends.pulsar.log import (
    CREATED_PROPERTY,
    SEGMENT_PROPERTY,
    PulsarSegmentLog,
    PulsarSnapshot,
)
from pulsar_txn_spark.backends.pulsar.transport import Feed
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionDomainError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.redaction import redacted
from pulsar_txn_spark.segments.log import LogRange, SegmentRef, SegmentWriter
from pulsar_txn_spark.segments.topic_name import (
    PULSAR_DOMAIN,
    TopicName,
    local_name,
    native_topic,
)
from pulsar_txn_spark.segments.topology import HASH_SPACE, Segment, Topology

_PARTITIONS_SECONDS = (
    2.0  # how long topics and their partitions may serve before they are asked for
)
_OFF_SECONDS = 60.0  # how long "no transactions" may serve: of a topic, or a broker for all
_STALE_SECONDS = 30.0  # a broker that has lost a topic to another one knows that by then
_STALE_POLL_SECONDS = 0.1  # no event tells that another broker has the topic
_UNKNOWN_SECONDS = 10.0  # how long an entry that cannot be read is not asked for again
_HIDDEN_TAIL = 8  # markers and aborted entries at a range's end that are recognized one by one


class PulsarTopicLog(PulsarSegmentLog):
    """Reads native topics; see :class:`~pulsar_txn_spark.segments.log.SegmentLog`.

    Parameters
    ----------
    config : PulsarConfig
        URLs and pass-through options.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed.
    """

    def __init__(self, config: PulsarConfig) -> None:
        super().__init__(config)
        self._topologies: dict[TopicName, tuple[Topology, float]] = {}
        self._lists: dict[tuple[str, str], tuple[list[str], float]] = {}
        # An end, that of whole messages, and until when this holds.
        self._ends: dict[str, tuple[Position, Position, float]] = {}
        self._owned: dict[str, bool] = {}  # whether a topic is a segment
        self._off_until: dict[str, float] = {}

    # --- which topics ---------------------------------------------------------------------------

    def topology(self, topic: TopicName) -> Topology:
        """Return a topic's partitions, or the topic itself as the only one.

        Each is named as Pulsar does, so that offsets are the same in both worlds.

        Raises
        ------
        TopicNotFoundError
            If the broker has no such topic.
        TransactionDomainError
            If it is a segment of this package's.
        """
        topology, until = self._topologies.get(topic, (None, 0.0))
        if topology is not None and time.monotonic() < until:
            return topology
        partitions = self._transport.partitions(str(topic), self._admin.partitions)
        if partitions is None:
            raise TopicNotFoundError(
                f"topic {topic} does not exist on the broker at "
                f"{redacted(self._config.admin_url)}: check "
                "its name and admin.url. A segmented topic is named topic://tenant/namespace/name"
            )
        names = [f"{topic}-partition-{n}" for n in range(partitions)] or [str(topic)]
        segments = tuple(
            Segment(SegmentRef(name, str(topic), name), 0, HASH_SPACE - 1) for name in names
        )
        topology = Topology(topic, "", segments, len(segments), self.backend)
        for segment in segments:
            self._check_exists(segment.ref)
        self._topologies[topic] = (topology, time.monotonic() + _PARTITIONS_SECONDS)
        return topology

    def layout(self, topic: TopicName) -> Topology:
        """Return a topic's partitions, for those who write; as :meth:`topology`."""
        return self.topology(topic)

    def names(self, tenant: str, namespace: str, wanted: Callable[[str], bool]) -> list[TopicName]:
        """Return a namespace's topics that are wanted; see the Protocol.

        Without partitions, system topics and segments.
        """
        native_topics = set()
        for full in self._listed(tenant, namespace):
            name = local_name(native_topic(full))
            if name.startswith("__") or not wanted(name):
                continue
            if full not in self._owned:
                self._owned[full] = _owner_of(self._admin.properties(full) or {}) is not None
            if not self._owned[full]:
                native_topics.add(TopicName(tenant, namespace, name, PULSAR_DOMAIN))
        return sorted(native_topics)

    def _listed(self, tenant: str, namespace: str) -> list[str]:
        listed, until = self._lists.get((tenant, namespace), ([], 0.0))
        if time.monotonic() >= until:
            listed = self._admin.topics(tenant, namespace)
            self._lists[tenant, namespace] = (listed, time.monotonic() + _PARTITIONS_SECONDS)
        return listed

    def knows_transaction(self, most: int, least: int) -> bool:
        """Tell whether Pulsar's own coordinators know a transaction of these numbers."""
        return self._admin.knows_transaction(most, least)

    def refuse_scalable(self, topic: TopicName) -> None:
        """Refuse the name of a scalable topic that Pulsar itself has (PIP-460, Pulsar 5).

        Raises
        ------
        TopicExistsError
        """
        if self._admin.has_scalable(topic.tenant, topic.namespace, topic.name):
            raise TopicExistsError(
                f"Pulsar has a scalable topic {topic} of its own (PIP-460). Its segments and "
                "transactions are the brokers'. Clients of Pulsar 5 that use the name would "
                "reach it, not the one that was to be created. Two topics of one name, each with "
                "half of the rows. Nothing was created: choose another name, or delete that topic "
                "with pulsar-admin"
            )

    def _read_properties(self, segment: SegmentRef) -> KnownTopic:
        """Raise unless it is a native topic."""
        read_at = time.monotonic()
        properties = self._admin.properties(segment.log_name)
        if properties is None:
            raise SegmentNotFoundError(
                f"the topic {segment.log_name} is not there: it was deleted, by somebody or by the "
                "broker because it was idle and had no subscription. Check admin.url, and give the "
                "topic a retention or a subscription"
            )
        owner = _owner_of(properties)
        if owner is not None:
            topic = TopicName.parse(owner.rsplit("/", 2)[0])
            raise TransactionDomainError(
                f"the topic {segment.log_name} is a segment of {topic}: its transactions are those "
                "of this package. Read past them it would show what was never committed. "
                f"Read {topic}"
            )
        known = KnownTopic(read_at, origin=None, gated=False, contains_txn="")
        with self._lock:
            self._known[segment] = known
        return known

    # --- how far --------------------------------------------------------------------------------

    def last_confirmed(self, segment: SegmentRef) -> Position:
        """Return how far readers may read: Pulsar's maxReadPosition, the LAC without transactions.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        return self._snapshot(segment).last_confirmed

    def _snapshot(self, segment: SegmentRef, *, estimates: bool = False) -> PulsarSnapshot:
        # What may be read first, then where that is: what comes in between is left for later.
        horizon = self._horizon(segment)
        managed_ledger = self._admin.managed_ledger(segment.log_name)
        end = managed_ledger.last if horizon is None else min(managed_ledger.last, horizon)
        end = managed_ledger.settled(self._before_begun_message(segment, managed_ledger, end))
        return PulsarSnapshot(self, segment, managed_ledger, end, estimates)

    def _before_begun_message(
        self, segment: SegmentRef, managed_ledger: ManagedLedger, end: Position
    ) -> Position:
        """Step back from within a message of several chunks: a reader has to get it whole."""
        # Of a ledger that was deleted nothing can be asked, and nothing is left to be read.
        if end.entry < 0 or not managed_ledger.contains(end):
            return end
        kept, whole, until = self._ends.get(segment.log_name, (EARLIEST, EARLIEST, 0.0))
        if kept == end and time.monotonic() < until:
            return whole
        header = look_again(self._headers, segment.log_name, end)
        begun = header.chunks > 1 and header.chunk < header.chunks - 1
        # Chunks of others may lie between them; then the next range is refused (see _Holes).
        whole = Position(end.ledger, max(-1, end.entry - header.chunk - 1)) if begun else end
        # An entry that bookies have lost is not asked for at each poll.
        until = math.inf if header.there else time.monotonic() + _UNKNOWN_SECONDS
        self._ends[segment.log_name] = (end, whole, until)
        return whole

    def limit_by(
        self,
        segment: SegmentRef,
        managed_ledger: ManagedLedger,
        start: Position,
        end: Position,
        max_messages: int | None,
        max_bytes: int | None,
        *,
        estimates: bool = False,
    ) -> Position:
        """Return how far one may read by what the broker said of the ledgers."""
        limited = super().limit_by(
            segment, managed_ledger, start, end, max_messages, max_bytes, estimates=estimates
        )
        if limited == end:
            return end
        whole = self._before_begun_message(segment, managed_ledger, limited)
        if whole > start:
            return whole
        # A message alone exceeds the limits: it is taken, or the reader would never get on.
        header = look_again(self._headers, segment.log_name, limited)
        last = Position(limited.ledger, limited.entry + header.chunks - 1 - header.chunk)
        return min(last, end)

    def _horizon(self, segment: SegmentRef) -> Position | None:
        off_until = self._off_until.get(segment.log_name, 0.0)
        if time.monotonic() < max(off_until, self._admin.transactions_off_at + _OFF_SECONDS):
            return None
        state = self._admin.settled_transactions_of(segment.log_name)
        if state is None:
            self._off_until[segment.log_name] = time.monotonic() + _OFF_SECONDS
            return None
        return state.max_read_position

    def trimmed_by(self, segment: SegmentRef, managed_ledger: ManagedLedger) -> Position:  # noqa: ARG002
        """Return the end of what is gone for certain: what precedes the first ledger."""
        # An empty ledger is replaced by another one whenever the topic is loaded.
        return Position(managed_ledger.first_ledger, -1) if managed_ledger.ledgers else EARLIEST

    def _read(
        self,
        wanted: LogRange,
        columns: frozenset[str],
        max_rows: int,
        open_feed: Callable[[], Feed],
    ) -> Iterator[pa.RecordBatch]:
        segment, start, end = wanted.segment, wanted.start, wanted.end
        self._check_exists(segment)
        last = self._last_delivered(segment, start, end)
        if last <= start:
            # Nothing but markers and aborted entries, or what there was is gone.
            self._check_whole(segment, start, end)
            return
        yield from super()._read(replace(wanted, end=last), columns, max_rows, open_feed)

    def _last_delivered(self, segment: SegmentRef, start: Position, end: Position) -> Position:
        """Return an earlier end of a range, if nothing that readers get to see lies behind it.

        A transaction ends with a marker, for which a reader would wait until it asks the broker.
        """
        pieces = self._ledgers_up_to(segment, end).pieces(start, end)
        checked = 0
        for piece in reversed(pieces):
            for entry in range(piece.last, piece.first - 1, -1):
                at = Position(piece.ledger, entry)
                if checked == _HIDDEN_TAIL:
                    return at
                if not self._headers.entry_header(segment.log_name, at).hidden:
                    return at
                checked += 1
        return start

    def _ledgers_up_to(self, segment: SegmentRef, end: Position) -> ManagedLedger:
        """Return the topic's ledgers, by a broker that knows them up to `end`.

        Raises
        ------
        SegmentLogUnavailableError
            If no broker does for some time.
        """
        deadline = time.monotonic() + _STALE_SECONDS
        while True:
            managed_ledger = self._admin.managed_ledger(segment.log_name)
            if managed_ledger.reaches(end):
                return managed_ledger
            if time.monotonic() > deadline:
                raise SegmentLogUnavailableError(
                    f"rows up to {end} of {segment.log_name} are to be read, but the broker knows "
                    f"the topic up to {managed_ledger.last} only. Nothing was skipped: it may have "
                    "lost the topic to another broker, or its bookies have lost what lay behind. "
                    "Look into the broker's log, and start again"
                )
            time.sleep(_STALE_POLL_SECONDS)

    def _check_whole(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        managed_ledger: ManagedLedger | None = None,
    ) -> None:
        # From the very beginning means from whatever is there.
        if start != EARLIEST:
            known = managed_ledger or self._admin.managed_ledger(segment.log_name)
            require_whole(segment, start, end, self.trimmed_by(segment, known))

    def _may_be_gone(self, managed_ledger: ManagedLedger, end: Position) -> bool:
        # Pulsar's own retention may take a whole topic while somebody reads it from the beginning.
        return managed_ledger.first_ledger > end.ledger

    # --- what is refused ------------------------------------------------------------------------

    def create(self, segment: SegmentRef, gate_store: str = "") -> None:
        """Refuse: such topics are Pulsar's."""
        del gate_store
        self._refuse(segment)

    def adopt(self, segment: SegmentRef) -> None:
        """Refuse: an adopted topic is a segment of another name."""
        self._refuse(segment)

    def check_adoptable(self, segment: SegmentRef) -> None:
        """Refuse: an adopted topic is a segment of another name."""
        self._refuse(segment)

    def delete(self, segment: SegmentRef) -> None:
        """Refuse: such topics are Pulsar's."""
        self._refuse(segment)

    def give_back(self, segment: SegmentRef, *, others: Sequence[SegmentRef] = ()) -> None:
        """Refuse: an adopted topic is a segment of another name."""
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

    def trim(self, segment: SegmentRef, up_to: Position) -> Position:  # noqa: ARG002
        """Refuse: such topics are Pulsar's, and so is their retention."""
        self._refuse(segment)

    def writer(self, segment: SegmentRef, name: str) -> SegmentWriter:  # noqa: ARG002
        """Refuse: such topics are Pulsar's."""
        self._refuse(segment)

    def _refuse(self, segment: SegmentRef) -> NoReturn:
        TopicName.of_any_domain(segment.topic).require_segmented()
        raise AssertionError(f"{segment} is no native topic")


def _owner_of(properties: Mapping[str, str]) -> str | None:
    """Return the id of the segment that a topic is, or was created for; None if it is native."""
    return properties.get(SEGMENT_PROPERTY) or properties.get(CREATED_PROPERTY)
