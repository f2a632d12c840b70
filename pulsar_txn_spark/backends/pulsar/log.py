"""The segment log on Apache Pulsar: each segment is a non-partitioned topic.

See :mod:`~pulsar_txn_spark.backends.pulsar.library.writer` and
:mod:`~pulsar_txn_spark.backends.pulsar.library.reader` for how rows get in and out.

**What is gone.** A topic property says up to where data was given up on purpose and which ledger
comes next. :data:`ORIGIN_PROPERTY` does so for its beginning, and one property for each trim. If
the first ledger is another one, a trim is under way, or somebody else has removed data.

**Trimming** goes by whole ledgers, and the broker does it when it likes:

1. A property of its own says up to where data is to go, and which ledger comes next. The data
   counts as gone only when the broker has removed the ledgers. Readers skip dropped writers that
   the metadata store knows, so they must never see an entry that it has forgotten (INV-5);
2. the subscription's mark-delete position moves. Where there is no subscription, the trim ends;
3. the broker's own retention is switched off, unless subscriptions expire: only the subscription
   retains data then, and the broker removes ledgers;
4. properties whose ledger lies before the first one mean nothing. The next trim removes them.

The longest trim that is noted and not done is under way. At whatever step it died, whoever comes
next does trim steps 2 and 3 once more, and begins no other one before that.

A lease keeps sweeps apart, unless one is paused for longer. It may wake at any step, behind others.
So no step takes back what a later trim says. Closed ledgers never change, so a property, which has
its ledger in its name, has one value for ever. A late one is part of the longest trim, or outdated.
The segment's id in its name keeps it from the topic's next segment. A subscription that a late
trim step 2 sends back only retains more, until the next trim.

**A subscription that is gone** (deleted, or expired) retains nothing, and after trim step 3 nothing
else does. So each sweep looks for it before it trims. Where it is gone, or is going to expire, the
broker's retention is switched on again. The next trim that gets through switches it off. If the
topic is given back meanwhile, the sweep takes back what it did. Behind trim step 3 it does so for
who has adopted the topic anew as well.

The last ledger with data stays. The broker may replace an empty one at any time, which would look
like data that somebody else has removed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from pulsar_txn_spark.backends.pulsar import ledgers
from pulsar_txn_spark.backends.pulsar.admin_api import CALLS_AT_A_TIME, EntryHeader, PulsarAdmin
from pulsar_txn_spark.backends.pulsar.entry_headers import EntryHeaders, look_again
from pulsar_txn_spark.backends.pulsar.feeds_ahead import FeedsAhead, short_entries
from pulsar_txn_spark.backends.pulsar.known_topics import KnownTopic, Origin, Trim
from pulsar_txn_spark.backends.pulsar.ledgers import ManagedLedger, Piece
from pulsar_txn_spark.backends.pulsar.passthrough import validate_passthrough
from pulsar_txn_spark.backends.pulsar.transport import Entry, Feed, Transport, open_transport
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    DataLossError,
    SegmentLogError,
    SegmentLogUnavailableError,
    SegmentNotFoundError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import (
    CONTAINS_TXN,
    TRANSACTIONAL_WRITER,
    Appended,
    LogRange,
    RangeSize,
    SegmentRef,
    SegmentWriter,
    Visible,
)
from pulsar_txn_spark.segments.publish_times import first_published_at
from pulsar_txn_spark.segments.topic_name import native_topic

__all__ = ["PulsarSegmentLog", "validate_passthrough"]

_logger = logging.getLogger(__name__)

INTERNAL_SUBSCRIPTION = "__pulsar_txn_spark"
"""Durable subscription of every segment that keeps what was not read."""

SEGMENT_PROPERTY = "pulsar_txn_spark.segment"
"""Topic property with the segment's id: a topic without it is not a segment of ours."""

ORIGIN_PROPERTY = "pulsar_txn_spark.origin"
"""Topic property ``<position>,<ledger>``: everything up to the position was given up on purpose.
The ledger is the first one after it with data."""

TRIM_PROPERTY = "pulsar_txn_spark.trim"
"""Topic properties of that form, one of each trim: ``pulsar_txn_spark.trim.<segment>.<ledger>``.

Earlier versions had one only, of this name alone, for the trim that was begun last.
"""

CREATED_PROPERTY = "pulsar_txn_spark.created"
"""Topic property with the id of the segment that a topic was created for, from its creation on.

A topic that has it, and not yet :data:`SEGMENT_PROPERTY`, is neither a segment nor a native topic.
"""

GATE_PROPERTY = "pulsar_txn_spark.gate"
"""Topic property with the value ``broker`` where the brokers gate the segment, for every client."""

STORE_PROPERTY = "pulsar_txn_spark.store"
"""Topic property of a gated segment: uuid of the metadata store with its transactions."""

GATED_BY_BROKER = "broker"
GATING_BUFFER = "pulsar_txn_spark"
"""What a broker with the plug-in says of the transaction buffer of a gated segment."""

ADOPTED_PROPERTY = "pulsar_txn_spark.adopted"
"""Topic property of a topic that was there before: id of the segment that it becomes.

It is set first and removed last: a topic that has it is given back, never deleted.
"""

_RECEIVER_BYTES = 32 * 1024 * 1024  # bound on what a reader prefetches
_RECEIVER_ROWS = 20_000
_LATE_SECONDS = 30.0  # a broker that restarts, or takes a topic over, shows its entries by then
_LOOK_UP_SECONDS = 5.0  # then another broker may have the topic than the one that is asked
_LOOK_SECONDS = 5.0  # at entries that may be hidden, before the broker is asked for one again
_LOOKED_AT_ALWAYS = 100  # entries that did not come, 2 ms each
_LOOKED_AT_SECONDS = 10.0  # of what is missing in front of rows, so many are looked at in this time
_COUNTED_ENTRIES = 4  # a range this small is counted entry by entry (2 ms each)
_COUNTED_SEGMENTS = 8  # but not in a snapshot of more segments: each entry is a request
_GATE_POLL_SECONDS = 0.01  # a broker learns of a decision within some milliseconds
_MEAN_SECONDS = 60.0  # how long a mean size may serve before it is asked for again


def _trims_of(segment: SegmentRef) -> str:
    """Return how the names of properties begin that trims of a segment make."""
    return f"{TRIM_PROPERTY}.{segment.id}."


class _Holes:
    """Checks entries that ``pulsar-client`` did not show.

    A message may lie in several entries (chunks). Only producers of others make such messages. The
    client shows one where its last chunk stands. It drops one whose first chunk lies before the
    range, or is gone. It drops one of too many that interleave, one of which a chunk came again,
    and one that is not whole after a minute. It tells nobody.
    """

    def __init__(self, headers: EntryHeaders, segment: SegmentRef) -> None:
        self._headers = headers
        self._segment = segment
        self._begun: dict[str, Position] = {}  # the latest first chunk of each message
        self._shown: set[Position] = set()  # first chunks of the messages that came

    def show(self, first: Position | None) -> None:
        """Note that a message came which begins at `first`; None = one that is no chunked one."""
        if first is not None:
            self._shown.add(first)

    def check(self, previous: Position, position: Position) -> None:
        """Check the entries between two that were shown.

        Raises
        ------
        DataLossError
            If one is a message that readers get to see.
        SegmentLogError
            If one is a later chunk of a message that begins before the range, or the last chunk of
            one that did not come.
        """
        if position.ledger == previous.ledger and position.entry == previous.entry + 1:
            return
        for at, header in self._headers.between(self._segment.log_name, previous, position):
            self._check_shown(at, header)
            self.note(at, header)

    def note(self, at: Position, header: EntryHeader) -> None:
        """Take in what an entry is that was not shown; entries come in order.

        Raises
        ------
        SegmentLogError
            If it is a later chunk of a message that begins before the range, or the last chunk of
            one that did not come.
        """
        if header.chunk == 0:
            self._begun[header.message] = at
        elif header.message not in self._begun:
            raise SegmentLogError(
                f"{self._segment.log_name}: expected a message's first chunk, found chunk "
                f"{header.chunk} of {header.chunks} at {at}. The message begins before the range "
                "that is read, and pulsar-client would drop it. Nothing was skipped; read with the "
                "transport 'wire', which goes back for its beginning, or let producers write "
                "without chunks"
            )
        elif self.awaits(header):
            raise SegmentLogError(
                f"{self._segment.log_name}: expected the message in {header.chunks} chunks that "
                f"begins at {self._begun[header.message]} and ends at {at}, found that "
                "pulsar-client has dropped it. It does so where many such messages interleave, "
                "where a chunk was sent again, and where a reader pauses. Nothing was skipped; "
                "read with the transport 'wire', or let producers write without chunks"
            )

    def awaits(self, header: EntryHeader) -> bool:
        """Tell whether a message of the range ends there that did not come."""
        begun = self._begun.get(header.message)
        is_last = 0 < header.chunk == header.chunks - 1
        return is_last and begun is not None and begun not in self._shown

    def _check_shown(self, at: Position, header: EntryHeader) -> None:
        """Raise for a message that should have come; ledgers may have gone since."""
        if header.hidden or not header.there or header.chunks > 1 or header.empty:
            return
        raise DataLossError(
            f"{self._segment.log_name}: entry {at} is there, and pulsar-client did not show it. It "
            "drops what it cannot decrypt or unpack. Nothing was skipped; if the message is "
            "encrypted, set pulsar.reader.cryptoPrivateKeyPath to its key, else read with the "
            "transport 'wire'"
        )


class _HeaderBudget:
    """Bounds how many entries that did not come are looked at: of each segment so many in a time.

    A client reads a range for each thousand messages, so a bound for each range would be none.
    Threads that read one segment at a time may look at a few more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken: dict[SegmentRef, tuple[float, int]] = {}  # since when, how many

    def left(self, segment: SegmentRef) -> int:
        """Return how many entries may be looked at now."""
        return _LOOKED_AT_ALWAYS - self._current(segment)[1]

    def take(self, segment: SegmentRef) -> bool:
        """Tell whether one more entry may be looked at, and count it."""
        since, taken = self._current(segment)
        if taken >= _LOOKED_AT_ALWAYS:
            return False
        self._taken[segment] = (since, taken + 1)
        return True

    def forget(self, segment: SegmentRef) -> None:
        """Keep nothing of a segment that is gone."""
        self._taken.pop(segment, None)

    def _current(self, segment: SegmentRef) -> tuple[float, int]:
        now = self._clock()
        since, taken = self._taken.get(segment, (now, 0))
        return (since, taken) if now < since + _LOOKED_AT_SECONDS else (now, 0)


@dataclass(slots=True)
class _Seen:
    """What is known of a range while it is read.

    Parameters
    ----------
    holes : _Holes, optional
        Checks what ``pulsar-client`` does not show.
    managed_ledger : ManagedLedger, optional
        The ledgers, as they were when nothing was gone.
    unproven : bool
        Whether ledgers may have gone since then, in front of what came.
    """

    holes: _Holes | None
    managed_ledger: ManagedLedger | None = None
    unproven: bool = False

    def note(self, entry: Entry) -> None:
        """Note that an entry came."""
        if self.holes is not None:
            self.holes.show(entry.first)


def _missing(
    managed_ledger: ManagedLedger, previous: Position, position: Position, until: Position
) -> Iterator[Position]:
    """Yield the entries up to `until` that lie between two which came."""
    pieces = managed_ledger.pieces(previous, until)
    return (at for at in ledgers.positions(pieces) if at != position)


@dataclass(frozen=True, slots=True)
class PulsarSnapshot:
    """What the broker said of a topic's ledgers at one moment; see the Protocol."""

    log: PulsarSegmentLog
    segment: SegmentRef
    managed_ledger: ManagedLedger
    last_confirmed: Position
    estimates: bool

    def last_up_to(self, position: Position) -> Position:
        """Return `position`, or where the log ends before it; see the Protocol."""
        return self.managed_ledger.last_up_to(min(position, self.last_confirmed))

    def trimmed_to(self) -> Position:
        """Return up to where data is gone; see the Protocol."""
        return self.log.trimmed_by(self.segment, self.managed_ledger)

    def knows(self, position: Position) -> bool:
        """Tell whether a reader of this topic can stand there; see the Protocol."""
        # A segment of ours has an id, which its topic names.
        return not self.segment.in_pulsar_domain or self.managed_ledger.knows(position)

    def measure(self, start: Position, end: Position) -> RangeSize:
        """Count entries, and estimate or count the rest; see the Protocol."""
        return self.log.measure_by(
            self.segment, self.managed_ledger, start, end, estimates=self.estimates
        )

    def limit(
        self, start: Position, end: Position, max_messages: int | None, max_bytes: int | None
    ) -> Position:
        """Return how far one may read within the limits; see the Protocol."""
        return self.log.limit_by(
            self.segment,
            self.managed_ledger,
            start,
            end,
            max_messages,
            max_bytes,
            estimates=self.estimates,
        )


class PulsarSegmentLog(Closing):
    """Segments as Pulsar topics; see :class:`~pulsar_txn_spark.segments.log.SegmentLog`.

    Parameters
    ----------
    config : PulsarConfig
        URLs and pass-through options.

    Raises
    ------
    OptionError
        If an option is unknown, refused or malformed.
    """

    backend = "pulsar"
    at_once = CALLS_AT_A_TIME

    def __init__(self, config: PulsarConfig) -> None:
        self._config = config
        self._admin = PulsarAdmin(config)
        self._headers = EntryHeaders(config, self._admin)
        self._transport: Transport = open_transport(
            config, self._receiver_queue, self._headers.max_message_bytes
        )
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known: dict[SegmentRef, KnownTopic] = {}
        self._means: dict[str, tuple[float, float]] = {}
        self._per_entry: dict[str, tuple[float, float]] = {}  # messages, until when
        self._header_budget = _HeaderBudget()
        self._writers: weakref.WeakSet[SegmentWriter] = weakref.WeakSet()

    @property
    def admin(self) -> PulsarAdmin:
        """Return the admin API, for what goes beyond one segment's log."""
        return self._admin

    def create(self, segment: SegmentRef, gate_store: str = "") -> None:
        """Create the topic with all that keeps its data; see the Protocol."""
        topic = segment.log_name
        # Creation step 1: the topic, which nobody ever takes for a native one, and at once the
        # subscription that holds its data. A broker looks for the gate when it loads the topic,
        # and never again.
        marks = {CREATED_PROPERTY: segment.id}
        if gate_store:
            marks = {
                SEGMENT_PROPERTY: segment.id,
                GATE_PROPERTY: GATED_BY_BROKER,
                STORE_PROPERTY: gate_store,
            }
        if self._admin.properties(topic) is None:
            self._admin.create_topic(topic, marks)
        self._admin.create_subscription(topic, INTERNAL_SUBSCRIPTION)
        # Creation step 2: nothing else may drop data, and resends after a reconnect are recognized.
        self._admin.keep_all_data(topic)
        self._admin.deduplicate(topic)
        # Creation step 3: only now it counts as a segment; an adopted topic may hold data already.
        self._mark(segment, self._properties(topic))

    def adopt(self, segment: SegmentRef) -> None:
        """Make a topic that is there a segment, with all that keeps its data; see the Protocol."""
        topic = segment.log_name
        properties = self._require_adoptable(segment)
        status = self._admin.deduplication_status(topic)
        if status != "Enabled":
            _logger.warning(
                "the topic %s, which is adopted, was written without deduplication (it is %s): "
                "what a client has sent twice stays in it twice",
                topic,
                status,
            )
        # Adoption step 1: from here on nobody takes the topic for one that was created here.
        self._admin.set_properties(topic, {ADOPTED_PROPERTY: segment.id})
        self._require_no_other(segment, self._properties(topic))
        # Adoption step 2: nothing drops data any more. What is going to be sealed needs no
        # deduplication: nobody writes to it as a segment.
        self._admin.create_subscription(topic, INTERNAL_SUBSCRIPTION)
        self._admin.keep_all_data(topic)
        # Adoption step 3: the topic is the segment, unless somebody else takes it at this moment.
        self._mark(segment, properties)
        self._require_no_other(segment, self._properties(topic))

    def check_adoptable(self, segment: SegmentRef) -> None:
        """Refuse what :meth:`adopt` would refuse now, and change nothing; see the Protocol."""
        self._require_adoptable(segment)

    def _require_adoptable(self, segment: SegmentRef) -> Mapping[str, str]:
        properties = self._admin.properties(segment.log_name)
        if properties is None:
            raise SegmentNotFoundError(
                f"the topic {segment.log_name} is to become segment {segment.id}, but it is not "
                "there: it was deleted meanwhile. If its data may go, create an empty one and "
                "adopt again"
            )
        self._require_no_other(segment, properties)
        self._require_quiet(segment)
        return properties

    def _require_quiet(self, segment: SegmentRef) -> None:
        """Refuse a topic that somebody writes to: a seal would be the end of what is open there.

        A transaction of Pulsar's own ends with a marker in the topic. A sealed one takes none, so
        that the transaction, and all that follows it, could never be read.
        """
        topic = segment.log_name
        producers = self._admin.producers(topic)
        if producers:
            raise SegmentLogError(
                f"cannot adopt {topic}: {len(producers)} producers are connected "
                f"({', '.join(producers[:5])}), and it is about to be sealed. Nothing was sealed; "
                "stop them and adopt again"
            )
        own = self._admin.settled_transactions_of(topic)
        last = self._admin.managed_ledger(topic).last
        if own is not None and (own.ongoing or own.max_read_position < last):
            raise SegmentLogError(
                f"cannot adopt {topic}: {own.ongoing} transactions of Pulsar's own are open in it "
                f"(readers stop at {own.max_read_position}, the last entry is {last}). Sealed "
                "now, they could never end. Nothing was sealed; end them and adopt again"
            )

    def _others_in(self, segment: SegmentRef, properties: Mapping[str, str]) -> set[str]:
        """Return which other segments a topic is, or is going to be."""
        owners = {properties.get(SEGMENT_PROPERTY), properties.get(ADOPTED_PROPERTY)}
        return {owner for owner in owners if owner is not None and owner != segment.id}

    def _require_no_other(self, segment: SegmentRef, properties: Mapping[str, str]) -> None:
        for owner in self._others_in(segment, properties):
            raise SegmentLogError(
                f"the topic {segment.log_name} belongs to segment {owner}, expected {segment.id}: "
                "two segments in one topic would read each other's rows; use another name"
            )

    def _mark(self, segment: SegmentRef, properties: Mapping[str, str]) -> None:
        """Say in the topic's properties which segment it is."""
        self._require_no_other(segment, properties)
        marks = {SEGMENT_PROPERTY: segment.id}
        managed_ledger = self._admin.managed_ledger(segment.log_name)
        if managed_ledger.ledgers and ORIGIN_PROPERTY not in properties:
            marks[ORIGIN_PROPERTY] = f"{EARLIEST},{managed_ledger.first_ledger}"
        self._admin.set_properties(segment.log_name, marks)

    def delete(self, segment: SegmentRef) -> None:
        """Delete the topic, if it was created for the segment; see the Protocol."""
        topic = segment.log_name
        properties = self._admin.properties(topic)
        if properties is not None and self._created_here(segment, properties):
            self._admin.delete_topic(topic)
        self._forget_sizes(segment)

    def _created_here(self, segment: SegmentRef, properties: Mapping[str, str]) -> bool:
        """Tell whether a topic was made for a segment: what others have made is never deleted."""
        if ADOPTED_PROPERTY in properties:
            return False
        owner = properties.get(SEGMENT_PROPERTY)
        if owner is None:  # its creation was not finished, unless it is somebody else's
            if CREATED_PROPERTY in properties:
                return properties[CREATED_PROPERTY] == segment.id
            return INTERNAL_SUBSCRIPTION in self._admin.subscriptions(segment.log_name)
        return owner == segment.id

    def give_back(self, segment: SegmentRef, *, others: Sequence[SegmentRef] = ()) -> None:
        """Take from a topic what adoption has added; see the Protocol."""
        topic = segment.log_name
        properties = self._properties(topic)
        if properties.get(ADOPTED_PROPERTY) == segment.id:
            # It ceases to be a segment before it loses what keeps its data. A sweep that sets that
            # anew meanwhile looks again, and takes it back.
            self._admin.remove_property(topic, SEGMENT_PROPERTY)
            self._let_go(topic, [other.log_name for other in others])
            # The claim goes last: until then it can be done again, and nobody else takes the topic.
            trims = [name for name in properties if name.startswith(TRIM_PROPERTY)]
            for name in (*trims, ORIGIN_PROPERTY, ADOPTED_PROPERTY):
                self._admin.remove_property(topic, name)
        self._forget_sizes(segment)

    def _let_go(self, topic: str, others: Sequence[str]) -> None:
        """Take back what keeps a topic's data; policies stay while another partition is adopted."""
        self._admin.delete_subscription(topic, INTERNAL_SUBSCRIPTION)
        # One that was never claimed forgets nothing later: it is no reason to keep them.
        if not any(ADOPTED_PROPERTY in self._properties(other) for other in others):
            self._admin.forget_policies(topic)

    def _properties(self, topic: str) -> Mapping[str, str]:
        """Return a topic's properties, none if there is no topic."""
        return self._admin.properties(topic) or {}

    def _forget_sizes(self, segment: SegmentRef) -> None:
        with self._lock:
            self._forget(segment)
            self._means.pop(segment.log_name, None)
            self._per_entry.pop(segment.log_name, None)
            self._header_budget.forget(segment)

    def backlogs_of_others(self, segment: SegmentRef) -> list[str]:
        """Return who else has not read the topic to its end; see the Protocol. One admin call."""
        behind = self._admin.backlogs(segment.log_name)
        return sorted(name for name in behind if name != INTERNAL_SUBSCRIPTION)

    def check_access(self, segment: SegmentRef) -> None:
        """Ask both of Pulsar's sides for the topic; see the Protocol."""
        self._check_process()
        self._check_exists(segment)
        self._transport.check_access(segment, self._config.service_url)

    def writer(self, segment: SegmentRef, name: str) -> SegmentWriter:
        """Open a producer of that name; see the Protocol."""
        self._check_process()
        known = self._known_on_connection(segment) or self._check_exists(segment)
        bits, gated = None, known.gated
        if name.startswith(TRANSACTIONAL_WRITER):
            self._mark_contains_txn(segment, known)
            if gated:
                self._require_gate(segment)
                bits = TxnBits.of_writer(name)
        writer = self._transport.writer(
            segment, name, partial(self._before_report, segment), bits, gated=gated
        )
        self._writers.add(writer)
        topics = self._transport.known_topics(segment)
        if topics is not None:
            topics.learn(segment, known)
        return writer

    def seal(self, segment: SegmentRef) -> Position:
        """Seal the segment and return its last position; idempotent.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        # Nothing from before serves: a topic that was given back meanwhile is not ours to seal.
        self._read_properties(segment)
        return self._admin.terminate(segment.log_name)

    def last_confirmed(self, segment: SegmentRef) -> Position:
        """Return the LAC; see the Protocol. One admin call of about 2 ms."""
        return self._admin.managed_ledger(segment.log_name).last

    def deliverable_end(self, segment: SegmentRef) -> Position:
        """Return the LAC, or the broker's maxReadPosition where it gates; see the Protocol."""
        end = self.last_confirmed(segment)
        if not self._check_exists(segment).gated:
            return end
        serving = self._admin.settled_transactions_of(segment.log_name, required=False)
        return end if serving is None else min(end, serving.max_read_position)

    def snapshot_each(
        self,
        segments: Sequence[SegmentRef],
        *,
        patient: bool = False,  # noqa: ARG002 - what the admin API says is what there is
    ) -> list[PulsarSnapshot]:
        """Take a snapshot of each; see the Protocol. An admin call each, a few at a time."""
        if len(segments) == 1:
            return [self._snapshot(segments[0])]
        take = partial(self._snapshot, estimates=len(segments) > _COUNTED_SEGMENTS)
        with ThreadPoolExecutor(CALLS_AT_A_TIME, "pulsar-txn-snapshot") as pool:
            return list(pool.map(take, segments))

    def _snapshot(self, segment: SegmentRef, *, estimates: bool = False) -> PulsarSnapshot:
        managed_ledger = self._admin.managed_ledger(segment.log_name)
        return PulsarSnapshot(self, segment, managed_ledger, managed_ledger.last, estimates)

    def trimmed_to(self, segment: SegmentRef) -> Position:
        """Return up to where data is gone; see the Protocol."""
        return self.trimmed_by(segment, self._admin.managed_ledger(segment.log_name))

    def trimmed_by(self, segment: SegmentRef, managed_ledger: ManagedLedger) -> Position:
        """Return up to where data is gone by what the broker said of the ledgers."""
        return self._gone(segment, managed_ledger.first_ledger)

    def trimmed_to_of_each(self, segments: Sequence[SegmentRef]) -> list[Position]:
        """Return it of each; see the Protocol. A few admin calls are under way at a time."""
        if len(segments) == 1:
            return [self.trimmed_to(segments[0])]
        with ThreadPoolExecutor(CALLS_AT_A_TIME, "pulsar-txn-trimmed") as pool:
            return list(pool.map(self.trimmed_to, segments))

    def protect_each(self, segments: Sequence[SegmentRef]) -> None:
        """Keep what only a subscription keeps that is gone, or will go; see the Protocol."""
        with ThreadPoolExecutor(CALLS_AT_A_TIME, "pulsar-txn-protect") as pool:
            faults = [fault for fault in pool.map(self._protect, segments) if fault is not None]
        if faults:
            more = f" ({len(faults) - 1} more segments are affected)" if faults[1:] else ""
            raise SegmentLogError(f"{faults[0]}{more}")

    def _protect(self, segment: SegmentRef) -> str | None:
        """Let the broker keep a segment whose subscription does not, and return what is wrong."""
        topic = segment.log_name
        subscribed = INTERNAL_SUBSCRIPTION in self._admin.subscriptions(topic)
        expiry = self._admin.subscription_expiry(topic)
        if subscribed and not expiry.minutes:
            return None
        self._read_properties(segment)  # one that was given back is not ours
        self._admin.retain_all(topic)
        created = not subscribed and expiry.minutes == 0
        if created:
            self._admin.create_subscription(topic, INTERNAL_SUBSCRIPTION)
        self._require_not_given_back(segment)
        what = f"segment {segment.id} ({topic}) is not trimmed, and the broker keeps what it has"
        if subscribed:
            return f"{what}: {expiry}. Run '{expiry.remedy}'; the next sweep then trims"
        gone = (
            f"{what}: its subscription {INTERNAL_SUBSCRIPTION} was deleted, or has expired. What "
            "was not read may be lost, which readers report"
        )
        if created:
            return f"{gone}. It was created again, and the next sweep trims"
        by_hand = f"pulsar-admin topics create-subscription -m earliest -s {INTERNAL_SUBSCRIPTION}"
        return (
            f"{gone}. It is not created again: {expiry}. Run '{expiry.remedy}'. The next sweep "
            f"then creates it, where it can read that setting; else run '{by_hand} {topic}'"
        )

    def _require_not_given_back(self, segment: SegmentRef, *, trimmed: bool = False) -> None:
        """Look again behind what a sweep did to a topic, and take it back if it is not ours now."""
        try:
            self._read_properties(segment)
        except SegmentNotFoundError:
            self._take_back(segment, trimmed=trimmed)
            raise

    def _take_back(self, segment: SegmentRef, *, trimmed: bool) -> None:
        topic = segment.log_name
        properties = self._admin.properties(topic)
        if properties is None:
            return
        if self._others_in(segment, properties):
            if trimmed:  # what it moved is the subscription of who has adopted the topic anew
                self._admin.keep_all_data(topic)
                self._admin.delete_subscription(topic, INTERNAL_SUBSCRIPTION)
                self._admin.create_subscription(topic, INTERNAL_SUBSCRIPTION)
            return
        native = native_topic(topic)
        count = self._admin.partitions(native) or 0
        partitions = [f"{native}-partition-{number}" for number in range(count)]
        self._let_go(topic, [name for name in partitions if name != topic])
        # Who adopts the topic claims it first, and may have set just now what was taken back.
        if self._others_in(segment, self._properties(topic)):
            self._admin.create_subscription(topic, INTERNAL_SUBSCRIPTION)
            self._admin.keep_all_data(topic)

    def trim(self, segment: SegmentRef, up_to: Position) -> Position:
        """Let whole ledgers go; see the Protocol and the head of this module."""
        topic = segment.log_name
        origin = self._read_properties(segment).origin
        managed_ledger = self._admin.managed_ledger(topic)
        if origin is None:
            return EARLIEST
        begun = origin.unfinished(managed_ledger.first_ledger)
        if begun is None:
            begun = self._begin_trim(segment, origin, managed_ledger, up_to)
        if begun is None:
            return self._gone(segment, managed_ledger.first_ledger)
        # Trim step 2; a trim that somebody has begun is finished as it was begun.
        try:
            self._admin.move_subscription(topic, INTERNAL_SUBSCRIPTION, Position(begun.ledger, 0))
        except SegmentNotFoundError as missing:
            raise SegmentLogError(
                f"cannot trim segment {segment.id} ({topic}): its subscription "
                f"{INTERNAL_SUBSCRIPTION} was deleted, or has expired. The broker's retention was "
                f"left as it is, and the next sweep sees to what is left ({missing})"
            ) from None
        # Trim step 3: without the subscription, the broker would remove all closed ledgers.
        try:
            self._admin.retain_nothing(topic)
        finally:
            self._require_not_given_back(segment, trimmed=True)
        self._admin.trim_ledgers(topic)
        return self._gone(segment, self._admin.managed_ledger(topic).first_ledger)

    def _begin_trim(
        self, segment: SegmentRef, origin: Origin, managed_ledger: ManagedLedger, up_to: Position
    ) -> Trim | None:
        """Note a trim; return the longest one that is under way, None if nothing is to go."""
        topic = segment.log_name
        whole = [ledger for ledger in managed_ledger.ledgers[:-1] if ledger.last <= up_to]
        if not whole:
            return None
        # Trim step 4 of the trims before.
        for name in origin.outdated(managed_ledger.first_ledger):
            self._admin.remove_property(topic, name)
        next_ledger = managed_ledger.ledgers[len(whole)].id
        mark = {f"{_trims_of(segment)}{next_ledger}": f"{whole[-1].last},{next_ledger}"}
        # Trim step 1: what is to go is known before any of it goes.
        self._admin.set_properties(topic, mark)
        noted = self._read_properties(segment).origin
        return None if noted is None else noted.unfinished(managed_ledger.first_ledger)

    def published_before(self, segment: SegmentRef, time_ms: int) -> Position:
        """Return the end of the last ledger all of which was published before; see the Protocol.

        A ledger's last entry stands for it. Times are those of the producers' clocks.
        """
        ledgers = self._admin.managed_ledger(segment.log_name).ledgers
        low, high = 0, len(ledgers)  # so many from the beginning were, so many may have been
        while low < high:
            middle = (low + high) // 2
            header = self._headers.entry_header(segment.log_name, ledgers[middle].last)
            published = header.published_ms
            if published is not None and published < time_ms:
                low = middle + 1
            else:
                high = middle
        return ledgers[low - 1].last if low else EARLIEST

    def position_at(self, segment: SegmentRef, time_ms: int) -> Position | None:
        """Return the position before the first entry at or after a time; see the Protocol.

        Times are those of the producers' clocks. Each entry that is looked at costs about 2 ms.
        """
        managed_ledger = self._admin.managed_ledger(segment.log_name)
        pieces = managed_ledger.pieces(EARLIEST, managed_ledger.last)

        def published_ms(number: int) -> int | None:
            at = ledgers.nth(pieces, number + 1)
            header = look_again(self._headers, segment.log_name, at)
            if not header.there:
                self._require_trimmed(segment, at)
            return header.published_ms

        number = first_published_at(managed_ledger.entries, published_ms, time_ms)
        if number == managed_ledger.entries:
            return None
        return ledgers.nth(pieces, number) if number else EARLIEST

    def _require_trimmed(self, segment: SegmentRef, at: Position) -> None:
        """Raise for an entry that cannot be read, unless its ledger has been deleted meanwhile.

        A search that took it for an old one would pass over all that lies before it.
        """
        # Ledgers go whole and from the beginning.
        if self._admin.managed_ledger(segment.log_name).first_ledger <= at.ledger:
            raise SegmentLogUnavailableError(
                f"the broker cannot read entry {at} of segment {segment.id} "
                f"({segment.log_name}), so that nobody can tell when it was published. Nothing was "
                "skipped. Look into the broker's log: its bookies may be down, or have lost the "
                "entry. Start again, or start at a position instead of a time"
            )

    def appended(self, segment: SegmentRef) -> Appended:
        """Return what came in since the broker loaded the topic."""
        return Appended(*self._admin.messages_since_load(segment.log_name))

    def measure(self, segment: SegmentRef, start: Position, end: Position) -> RangeSize:
        """Count entries, and estimate or count the rest; see the Protocol."""
        return self.measure_by(segment, self._admin.managed_ledger(segment.log_name), start, end)

    def measure_by(
        self,
        segment: SegmentRef,
        managed_ledger: ManagedLedger,
        start: Position,
        end: Position,
        *,
        estimates: bool = False,
    ) -> RangeSize:
        """Measure a range by what the broker said of the ledgers.

        With `estimates` nothing is counted, and a mean of a minute ago will do.
        """
        pieces = managed_ledger.pieces(start, end)
        entries = sum(piece.entries for piece in pieces)
        if entries <= _COUNTED_ENTRIES and not estimates:
            counted = self._count(segment, pieces)
            if counted is not None:
                return RangeSize(
                    entries,
                    sum(messages for messages, _ in counted),
                    sum(size for _, size in counted),
                    True,
                )
        mean = self._messages_per_entry(segment, managed_ledger, pieces, kept=estimates)
        messages = round(entries * mean)
        return RangeSize(entries, messages, round(sum(piece.bytes for piece in pieces)), False)

    def limit(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        max_messages: int | None,
        max_bytes: int | None,
    ) -> Position:
        """Return how far one may read within the limits; see the Protocol."""
        managed_ledger = self._admin.managed_ledger(segment.log_name)
        return self.limit_by(segment, managed_ledger, start, end, max_messages, max_bytes)

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
        pieces = managed_ledger.pieces(start, end)
        entries = sum(piece.entries for piece in pieces)
        if entries <= 1 or (max_messages is None and max_bytes is None):
            return end
        few = entries <= _COUNTED_ENTRIES and not estimates
        counted = self._count(segment, pieces) if few else None
        if counted is not None:
            taken, messages, size = 0, 0, 0
            for entry_messages, entry_bytes in counted:
                messages, size = messages + entry_messages, size + entry_bytes
                too_many = max_messages is not None and messages > max_messages
                if too_many or (max_bytes is not None and size > max_bytes):
                    break
                taken += 1
            taken = max(taken, 1)
        else:
            mean = 0.0
            if max_messages is not None:
                mean = self._messages_per_entry(segment, managed_ledger, pieces, kept=estimates)
            taken = ledgers.entries_within(pieces, mean, max_messages, max_bytes)
        return end if taken >= entries else ledgers.nth(pieces, taken)

    def split(
        self, segment: SegmentRef, start: Position, end: Position, parts: int
    ) -> list[Position]:
        """Cut a range into parts of about equal bytes; see the Protocol."""
        if start >= end:
            return []
        pieces = self._admin.managed_ledger(segment.log_name).pieces(start, end)
        if not pieces:
            return [end]
        cuts = ledgers.cut(pieces, parts)
        return [*(ledgers.nth(pieces, number) for number in cuts[:-1]), end]

    def read_each(
        self, ranges: Sequence[LogRange], *, columns: frozenset[str], max_rows: int
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Read ranges one after the other, their readers opened ahead; see the Protocol."""
        if not self._transport.opens_ahead or len(ranges) == 1:
            for wanted in ranges:
                yield self._read(wanted, columns, max_rows, partial(self._feed, wanted))
            return
        with FeedsAhead(ranges, self._feed, self.at_once) as feeds:
            for number, wanted in enumerate(ranges):
                yield self._read(wanted, columns, max_rows, partial(feeds.open, number))

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
        """Yield the visible rows of a range; see the Protocol."""
        wanted = LogRange(segment, start, end, visible)
        return self._read(wanted, columns, max_rows, partial(self._feed, wanted))

    def _feed(self, wanted: LogRange) -> Feed:
        self._check_process()
        if self._transport.creates_missing:
            self._check_exists(wanted.segment)
        return self._transport.feed(wanted.segment, wanted.start, entries=short_entries(wanted))

    def _read(
        self,
        wanted: LogRange,
        columns: frozenset[str],
        max_rows: int,
        open_feed: Callable[[], Feed],
    ) -> Iterator[pa.RecordBatch]:
        segment, start, end = wanted.segment, wanted.start, wanted.end
        if start >= end:
            return
        feed = open_feed()
        try:
            rows = self._transport.rows(segment, columns, max_rows)
            previous = start
            holes = _Holes(self._headers, segment) if self._transport.drops_chunks else None
            seen = _Seen(holes)
            while previous < end:
                entry = feed.next_entry(previous)
                if entry is None:  # perhaps nothing that a reader gets to see lies before `end`
                    entry = self._late_entry(segment, feed, previous, end, holes)
                if entry is None:
                    break
                position = entry.position
                # Who reads may stop after any batch: no row goes out before what lies before it.
                if position != (previous.ledger, previous.entry + 1):
                    self._check_gap(wanted, previous, position, seen)
                if position > end:
                    break
                previous = position
                seen.note(entry)
                if wanted.visible(entry.producer_name, position):
                    rows.add(entry)
                    for batch in rows.batches(everything=False):
                        self._prove(wanted, seen)
                        yield batch
        finally:
            feed.close()
        # Positions without a hole prove that nothing is missing; else the broker has to say so.
        if previous != end:
            self._check_end(wanted)
        else:
            self._prove(wanted, seen)
        yield from rows.batches(everything=True)

    def _close(self) -> None:
        if self._pid == os.getpid():
            for writer in list(self._writers):
                writer.close()
            self._transport.release()
        self._admin.close()

    def _late_entry(
        self,
        segment: SegmentRef,
        feed: Feed,
        previous: Position,
        end: Position,
        holes: _Holes | None,
    ) -> Entry | None:
        """Return the next entry of a range of which the broker says that it has nothing more.

        A broker says so too while it loads a topic, recovers its transactions, or has lost it to
        another one. So each entry that is left has to prove that readers do not get to see it.

        There may be any number of those. Each look goes on where the last one ended. Time runs from
        when one has stopped at an entry that is due: none that was not looked at is.

        Returns
        -------
        Entry or None
            None if everything up to `end` is proven to be hidden, or gone.

        Raises
        ------
        SegmentLogUnavailableError
            If an entry is due and does not come.
        """
        looked_up_at = time.monotonic()
        deadline = looked_up_at + _LATE_SECONDS
        hidden_to = previous
        while True:
            self._check_not_stalled(segment, end, deadline)
            before = hidden_to
            hidden_to, due = self._due(segment, before, end, holes)
            if due is None:
                return None
            entry = feed.next_entry(previous)  # what blocked it may have ended just now
            if entry is not None:
                return entry
            now = time.monotonic()
            if hidden_to > before:
                looked_up_at, deadline = now, now + _LATE_SECONDS
            if now > deadline:
                other = "" if holes is None else ", or read with the transport 'wire'"
                raise SegmentLogUnavailableError(
                    f"rows up to {end} of segment {segment.id} ({segment.log_name}) are to be "
                    f"read. The broker shows nothing after {previous}, although {due} is there or "
                    "was acknowledged. Nothing was skipped: look into the broker's log, and "
                    f"start again{other}"
                )
            if now > looked_up_at + _LOOK_UP_SECONDS:
                feed.look_up_again(previous)
                looked_up_at = now

    def _due(
        self,
        segment: SegmentRef,
        hidden_to: Position,
        end: Position,
        holes: _Holes | None,
    ) -> tuple[Position, Position | None]:
        """Look for an entry that has to come, for some seconds at most.

        Returns
        -------
        Position
            Up to which everything is proven to be hidden now; `hidden_to` was before.
        Position or None
            Where the look has stopped, None if there certainly is no entry that has to come.
        """
        managed_ledger = self._admin.managed_ledger(segment.log_name)
        if managed_ledger.last < end:
            self._check_whole(segment, hidden_to, end)
            return hidden_to, None if self._may_be_gone(managed_ledger, end) else end
        until = time.monotonic() + _LOOK_SECONDS
        for at in ledgers.positions(managed_ledger.pieces(hidden_to, end)):
            if time.monotonic() > until:
                return hidden_to, at
            header = self._headers.entry_header(segment.log_name, at)
            if not header.hidden:
                if holes is None or header.chunks == 1 or holes.awaits(header):
                    return hidden_to, at
                # pulsar-client shows a message where its last chunk stands, behind this range.
                holes.note(at, header)
            hidden_to = at
        return hidden_to, None

    def _may_be_gone(self, managed_ledger: ManagedLedger, end: Position) -> bool:
        """Tell whether a log that ends before `end` is no reason to wait."""
        del managed_ledger, end
        return False

    # --- what is there ------------------------------------------------------------------------

    def _check_process(self) -> None:
        if self._closed:
            raise SegmentLogError("this log is closed: open another one")
        if self._pid != os.getpid():
            raise SegmentLogError(
                "this log was opened in the parent of this process: its connections do not "
                "survive a fork; open another one here"
            )

    def _check_exists(self, segment: SegmentRef) -> KnownTopic:
        """Raise unless the topic is that segment: a client would conjure up a missing one."""
        known = self._known.get(segment)
        return self._read_properties(segment) if known is None else known

    def _known_on_connection(self, segment: SegmentRef) -> KnownTopic | None:
        """Return what this process has learned of the topic since it connected to its broker."""
        topics = self._transport.known_topics(segment)
        known = None if topics is None else topics.get(segment)
        if known is not None:
            self._known[segment] = known
        return known

    def _read_properties(self, segment: SegmentRef) -> KnownTopic:
        """Return what the topic says of itself.

        Raises
        ------
        SegmentNotFoundError
            If it is not that segment's.
        """
        read_at = time.monotonic()
        properties = self._admin.properties(segment.log_name)
        if properties is None or properties.get(SEGMENT_PROPERTY) != segment.id:
            self._forget(segment)
            what = "there is none" if properties is None else "the one there is not it"
            raise SegmentNotFoundError(
                f"expected segment {segment.id} in the topic {segment.log_name}, but {what}; it "
                "was deleted on the broker, or never created there: check service.url and "
                "admin.url"
            )
        text, prefix = properties.get(ORIGIN_PROPERTY), _trims_of(segment)
        trims = {
            name: trim
            for name, trim in properties.items()
            if name == TRIM_PROPERTY or name.startswith(prefix)
        }
        known = KnownTopic(
            read_at=read_at,
            origin=None if text is None else Origin.parse(text, trims),
            gated=properties.get(GATE_PROPERTY) == GATED_BY_BROKER,
            contains_txn=properties.get(CONTAINS_TXN, ""),
        )
        with self._lock:
            before = self._known.get(segment)
            if before is not None:
                known.ledgers.update(before.ledgers)
            self._known[segment] = known
        return known

    def _forget(self, segment: SegmentRef) -> None:
        """Let the topic be asked again, also by others in this process."""
        self._known.pop(segment, None)
        topics = self._transport.known_topics(segment)
        if topics is not None:
            topics.forget(segment)

    def _require_gate(self, segment: SegmentRef) -> None:
        """Raise unless the broker gates the segment: bits would block any other buffer for ever."""
        serving = self._admin.settled_transactions_of(segment.log_name)
        if serving is None or serving.buffer != GATING_BUFFER:
            actual = "none" if serving is None else repr(serving.buffer)
            raise SegmentLogUnavailableError(
                f"segment {segment.id} ({segment.log_name}) is gated by the brokers, but the one "
                f"that serves it has not loaded the plug-in. Expected the transaction buffer "
                f"{GATING_BUFFER!r}, found {actual}. Nothing was written; put the jar into lib/ "
                "and the settings into broker.conf (docs/broker.md)"
            )

    def _before_report(self, segment: SegmentRef, last: Position) -> None:
        """Prove that rows up to `last` are in the segment's topic, and mark its origin.

        A topic may be deleted at any time, and the broker creates another one for a producer. So
        properties that were read before the append prove nothing. A ledger belongs to one topic.
        """
        for seen in (self._known_on_connection(segment), self._known.get(segment)):
            if seen is not None and last.ledger in seen.ledgers:
                return
        known = self._read_properties(segment)
        if known.origin is None:
            known = self._mark_origin(segment)
        known.ledgers.add(last.ledger)
        topics = self._transport.known_topics(segment)
        if topics is not None:
            topics.learn(segment, known)

    def _mark_origin(self, segment: SegmentRef) -> KnownTopic:
        """Note the first ledger with data, before the first write is reported as done.

        The broker may replace an empty ledger at any time, so the topic's creation is too early.
        From the first write on, the internal subscription retains the ledger.
        """
        known = self._read_properties(segment)
        if known.origin is None:
            first = self._admin.managed_ledger(segment.log_name).first_ledger
            self._admin.set_properties(segment.log_name, {ORIGIN_PROPERTY: f"{EARLIEST},{first}"})
            known = self._read_properties(segment)
        return known

    def _mark_contains_txn(self, segment: SegmentRef, known: KnownTopic) -> None:
        """Note for others, before the first transactional row, that there may be some (PIP-373)."""
        value = known.contains_txn
        if value.lower() == "true":
            return
        if value.lower() not in ("", "false"):
            # A user's, from before: PIP-373 leaves it alone. No reader of ours goes by it.
            _logger.warning(
                "the topic %s has a property %s=%r of a user's, which is left as it is. Other "
                "tools cannot tell from it that there are transactions",
                segment.log_name,
                CONTAINS_TXN,
                value,
            )
        else:
            try:
                self._admin.set_properties(segment.log_name, {CONTAINS_TXN: "true"})
            except SegmentLogError as error:
                # A broker with PIP-373 keeps this property to itself. The store's mark is there
                # already, and no reader of ours looks at anything else.
                _logger.warning("the property %s is left to the broker: %s", CONTAINS_TXN, error)
        known.contains_txn = "true"

    def _gone(self, segment: SegmentRef, first_ledger: int) -> Position:
        known = self._known.get(segment)
        origin = None if known is None else known.origin
        if origin is None or not origin.tells_of(first_ledger):
            # A trim may have been begun since, by anybody.
            origin = self._read_properties(segment).origin
        return EARLIEST if origin is None else origin.gone(first_ledger)

    def _check_not_stalled(self, segment: SegmentRef, end: Position, deadline: float) -> None:
        """Raise if the broker blocks readers: rows behind that point would be skipped.

        A broker that gates the segment learns of decisions a little later than the store has them.
        """
        while True:
            # Nobody but us should write there: where we may not ask, there is no reason to fear it.
            own = self._admin.settled_transactions_of(segment.log_name, required=False)
            stalled_at = None if own is None else own.max_read_position
            if stalled_at is None or stalled_at >= end:
                return
            if self._check_exists(segment).gated and time.monotonic() < deadline:
                time.sleep(_GATE_POLL_SECONDS)
                continue
            raise SegmentLogUnavailableError(
                f"rows up to {end} of segment {segment.id} ({segment.log_name}) are to be read, "
                f"but the broker lets nobody read beyond {stalled_at}: {self._why_stalled(segment)}"
            )

    def _why_stalled(self, segment: SegmentRef) -> str:
        if self._check_exists(segment).gated:
            return (
                "the broker, which gates the segment, does not learn of the transactions that are "
                "decided in the metadata store. Nothing was skipped: look into the broker's log, "
                "let it reach the store (pulsarTxnSparkStoreUrl), and start again"
            )
        return (
            "a transaction of Pulsar's own is open in the segment's topic, or the topic is being "
            "recovered. Nothing was skipped: end that transaction, let no other client write to "
            "the topic, and start again"
        )

    def _check_whole(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        managed_ledger: ManagedLedger | None = None,
    ) -> None:
        """Raise if rows of a range are gone, by what the broker says, or said, of the ledgers."""
        if managed_ledger is None:
            managed_ledger = self._admin.managed_ledger(segment.log_name)
        gone = self.trimmed_by(segment, managed_ledger)
        if start < gone:
            raise DataLossError(
                f"rows of ({start}, {end}] of segment {segment.id} ({segment.log_name}) are gone: "
                f"everything up to {gone} was deleted before it was read. Start from the "
                "earliest position in a new checkpoint if that is acceptable, and find out what "
                f"deleted it (subscription {INTERNAL_SUBSCRIPTION} skipped or removed?)"
            )

    def _check_end(self, wanted: LogRange) -> None:
        """Raise if the end did not come, was acknowledged once, and can never come any more."""
        segment, end = wanted.segment, wanted.end
        if segment.in_pulsar_domain:
            self._check_whole(segment, wanted.start, end)
            return
        managed_ledger = self._admin.managed_ledger(segment.log_name)
        self._check_whole(segment, wanted.start, end, managed_ledger)
        last = managed_ledger.last_up_to(end)
        if last < end:
            raise DataLossError(
                f"rows up to {end} of segment {segment.id} ({segment.log_name}) were acknowledged, "
                f"but ledger {end.ledger} was closed at {last}, and others follow it. Nothing was "
                "skipped. The bookies have lost what lay behind: restore them and start again, or "
                "set failOnDataLoss=false to go on with what is left"
            )

    def _check_gap(
        self, wanted: LogRange, previous: Position, position: Position, seen: _Seen
    ) -> None:
        """Raise if anything should have come between two entries that came.

        Ledgers go whole and from the beginning, so only between two ledgers may some have gone.
        The broker is asked for them once, as long as its answer tells of what came. Entries that
        are missing between two ledgers may have gone since then. Each is looked at, which proves
        that its ledger is there. Once the budget is used up, the broker is asked again before the
        next batch goes out. So no row ever goes out behind a ledger that is gone.

        With ``autoSkipNonRecoverableData`` a broker passes over what its bookies have lost. Each
        entry costs a request. So of a segment a bounded number is looked at in some seconds. None
        is in a topic of Pulsar's own transactions, each of which leaves a marker.
        """
        segment, crosses = wanted.segment, position.ledger != previous.ledger
        if seen.holes is not None:
            seen.holes.check(previous, position)
        if segment.in_pulsar_domain:
            seen.unproven |= crosses
            return
        if not crosses and not self._header_budget.left(segment):
            return
        until = min(position, wanted.end)
        known = seen.managed_ledger
        fresh = known is None or known.last < until
        if known is None or fresh:
            known = seen.managed_ledger = self._admin.managed_ledger(segment.log_name)
            self._check_whole(segment, wanted.start, wanted.end, known)
            seen.unproven = False
        for at in _missing(known, previous, position, until):
            if not self._header_budget.take(segment):
                seen.unproven |= crosses and not fresh
                return
            self._check_hidden(wanted, at)

    def _prove(self, wanted: LogRange, seen: _Seen) -> None:
        """Let the broker prove that no ledger has gone in front of what came, where it has to."""
        if seen.unproven:
            self._check_whole(wanted.segment, wanted.start, wanted.end)
            seen.unproven = False

    def _check_hidden(self, wanted: LogRange, at: Position) -> None:
        """Raise for an entry that did not come, unless it is hidden from readers."""
        segment = wanted.segment
        # Only `pulsar-client` keeps chunks back, of which the admin API may tell nothing.
        source = self._headers if self._transport.drops_chunks else self._admin
        header = look_again(source, segment.log_name, at)
        if not header.hidden and header.chunks == 1:
            # Perhaps its ledger has gone since: then that is what there is to say.
            self._check_whole(segment, wanted.start, wanted.end)
            raise DataLossError(
                f"entry {at} of segment {segment.id} ({segment.log_name}) is in its ledger, "
                "but did not come. Nothing was skipped. If the broker passed it over "
                "(autoSkipNonRecoverableData), its bookies have lost it: restore them, and "
                "start again. If pulsar-client dropped it, because it cannot unpack an empty "
                "message with ZLIB: the transport 'wire' reads it"
            )

    # --- sizes --------------------------------------------------------------------------------

    def _count(self, segment: SegmentRef, pieces: list[Piece]) -> list[tuple[int, int]] | None:
        counts = []
        for position in ledgers.positions(pieces):
            header = self._headers.entry_header(segment.log_name, position)
            if not header.there:
                return None
            counts.append((header.messages, header.bytes))
        return counts

    def _messages_per_entry(
        self,
        segment: SegmentRef,
        managed_ledger: ManagedLedger,
        pieces: list[Piece],
        *,
        kept: bool,
    ) -> float:
        """Return the mean; with `kept`, the one that was found within the last minute."""
        if not pieces:
            return 0.0
        mean, until = self._per_entry.get(segment.log_name, (0.0, 0.0))
        if not kept or time.monotonic() > until:
            mean = self._ask_messages_per_entry(segment, managed_ledger, pieces)
            self._per_entry[segment.log_name] = (mean, time.monotonic() + _MEAN_SECONDS)
        return mean

    def _ask_messages_per_entry(
        self, segment: SegmentRef, managed_ledger: ManagedLedger, pieces: list[Piece]
    ) -> float:
        if managed_ledger.added_since_load > 0:
            messages, _ = self._admin.messages_since_load(segment.log_name)
            if messages > 0:
                return messages / managed_ledger.added_since_load
        # Nothing was written since the topic was loaded: a sample has to do.
        first, last = ledgers.nth(pieces, 1), Position(pieces[-1].ledger, pieces[-1].last)
        headers = [
            self._headers.entry_header(segment.log_name, position) for position in {first, last}
        ]
        known = [header.messages for header in headers if header.there]
        return sum(known) / len(known) if known else 1.0

    def _receiver_queue(self, segment: SegmentRef, start: Position) -> int:
        """Return how many messages a reader may prefetch, by their mean size."""
        now = time.monotonic()
        mean, until = self._means.get(segment.log_name, (0.0, 0.0))
        if now > until:
            messages, size = self._admin.messages_since_load(segment.log_name)
            if not messages:
                managed_ledger = self._admin.managed_ledger(segment.log_name)
                pieces = managed_ledger.pieces(start, managed_ledger.last)
                messages, size = 1, 0
                if pieces:
                    header = self._headers.entry_header(segment.log_name, ledgers.nth(pieces, 1))
                    messages, size = header.messages, header.bytes
            mean = max(1.0, size / max(1, messages))
            with self._lock:
                self._means[segment.log_name] = (mean, now + _MEAN_SECONDS)
        return max(1, min(_RECEIVER_ROWS, int(_RECEIVER_BYTES / mean)))
