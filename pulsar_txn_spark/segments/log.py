"""The segment log: what a backend has to offer. It speaks in entries and Arrow batches.

A *row batch* is a :class:`pyarrow.RecordBatch` with columns out of :data:`ROW_SCHEMA`; ``value``
is always there, an absent column means "null in every row". A backend turns row batches into
entries (many messages each) and back; nobody above it handles single rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark.errors import SchemaError
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.topic_name import PULSAR_DOMAINS

ROW_SCHEMA = pa.schema(
    [
        pa.field("value", pa.binary()),
        pa.field("key", pa.binary()),
        pa.field("event_time_ms", pa.int64()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""Columns of a row batch on its way in. All are nullable."""

READ_SCHEMA = pa.schema(
    [
        *ROW_SCHEMA,
        pa.field("publish_time_ms", pa.int64(), nullable=False),
        pa.field("ledger", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("batch_index", pa.int32(), nullable=False),
        pa.field("batch_size", pa.int32(), nullable=False),
        pa.field("first_ledger", pa.int64()),
        pa.field("first_entry", pa.int64()),
        pa.field("producer_name", pa.string(), nullable=False),
        pa.field("sequence_id", pa.int64()),
    ]
)
"""Columns of a row batch on its way out; a reader gives those asked for, in this order.

``batch_index`` is -1 and ``batch_size`` 0 for a message that is not part of a batch entry. A
message in several chunks stands where its last chunk does. ``first_ledger`` and ``first_entry`` say
where its first one is. They are null for all others. ``sequence_id`` is the number that the
producer gave the message. It is null in the embedded log, and through ``pulsar-client``, which
hides it.
"""

Visible = Callable[[str, Position], bool]
"""``visible(writer, position)``: whether the entry that `writer` put at `position` may be read.

`writer` is the entry's producer name. A backend asks once per entry, not once per row.
"""


def checked_event_times(column: pa.Array) -> pa.Array:
    """Refuse event times that Pulsar has no number for, whatever the backend.

    Raises
    ------
    SchemaError
    """
    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        raise SchemaError(
            "an event time is a number of milliseconds since 1970 that is not negative (Pulsar "
            f"has no other), found {lowest}. Map earlier ones to null, or put them into 'value'"
        )
    return column


def checked_properties(column: pa.Array) -> pa.Array:
    """Refuse properties without a value, which Pulsar does not have, whatever the backend.

    Raises
    ------
    SchemaError
    """
    first, last = column.offsets[0].as_py() or 0, column.offsets[-1].as_py() or 0
    values = column.items.slice(first, last - first)
    if values.null_count:
        name = column.keys.slice(first, last - first).filter(values.is_null())[0].as_py()
        raise SchemaError(
            f"the property {name!r} of a row has the value null, which a message cannot hold: "
            "leave it out (map_filter), or give it a text (coalesce)"
        )
    return column


TRANSACTIONAL_WRITER = "ptxn-"
"""So the name of a writer begins that writes in a transaction, and no other's."""

CONTAINS_TXN = "__contains_txn_messages"
"""PIP-373's property, ``true`` before the first transactional entry. A backend whose topics have
properties of their own sets it there as well, for others to see; ours go by the metadata store."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A segment, as a log needs to know it.

    Parameters
    ----------
    id : str
        Unique for ever in one metadata store; the name of its ``{seg:<id>}`` tag.
    topic : str
        Full name of the segmented topic, ``topic://tenant/namespace/name``; of a native topic
        ``persistent://tenant/namespace/name``, or ``scalable://tenant/namespace/name``.
    log_name : str
        What the backend calls it (for Pulsar ``persistent://tenant/namespace/...``).
    """

    id: str
    topic: str
    log_name: str

    @property
    def in_pulsar_domain(self) -> bool:
        """Whether it is a topic whose transactions are Pulsar's own: no gate, and only read."""
        return self.domain in PULSAR_DOMAINS

    @property
    def domain(self) -> str:
        """The domain of the topic's name."""
        return self.topic.partition("://")[0]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the log has acknowledged of one writer since its previous flush.

    ``first`` and ``last`` are the positions of the lowest and highest acknowledged entry (both
    included), None where nothing was written.
    """

    first: Position | None
    last: Position | None
    entries: int
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Appended:
    """What was appended to a segment, whatever became of it."""

    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RangeSize:
    """How much a range holds: counts are upper bounds where entries of others are in between.

    ``exact`` says whether messages and bytes were counted or estimated from averages.
    """

    entries: int
    messages: int
    bytes: int
    exact: bool


@dataclass(frozen=True, slots=True)
class LogRange:
    """What a reader wants of one segment.

    Parameters
    ----------
    segment : SegmentRef
    start, end : Position
        It is ``(start, end]``.
    visible : Visible
    """

    segment: SegmentRef
    start: Position
    end: Position
    visible: Visible


class SegmentWriter(Protocol):
    """Appends row batches of one writer to one segment, in order."""

    def append(self, rows: pa.RecordBatch) -> None:
        """Queue rows; may block while too much is in flight.

        Raises
        ------
        SegmentSealedError, MessageTooLargeError, SegmentLogUnavailableError, UnverifiedReceiptError
            Of these rows or of earlier ones. The writer is of no use afterwards.
        """
        ...

    def send(self) -> None:
        """Send what is queued, and do not wait for its receipts.

        Raises the same errors as :meth:`append`.
        """
        ...

    def flush(self) -> Receipt:
        """Wait until every queued row is acknowledged, check every receipt, and sum them up.

        Raises the same errors as :meth:`append`.
        """
        ...

    def acknowledged(self) -> Receipt:
        """Return what was acknowledged since the writer was opened, also after an error.

        The rows that it counts are a prefix of those that were appended. All the others have to
        go out again, under a new name. Only entries up to ``last`` may count of this one.
        """
        ...

    def close(self) -> None:
        """Let go of the connection; rows that were not flushed may or may not be in the log."""
        ...


class SegmentSnapshot(Protocol):
    """What a log said of a segment at one moment; the answers that follow from it ask no more.

    What came later is not in it. What was trimmed since, a read finds out.
    """

    @property
    def last_confirmed(self) -> Position:
        """As :meth:`SegmentLog.last_confirmed`."""
        ...

    def last_up_to(self, position: Position) -> Position:
        """Return `position`, or where the log ends before it.

        What was acknowledged and lies in between is lost, or its broker does not know it yet.
        """
        ...

    def trimmed_to(self) -> Position | None:
        """As :meth:`SegmentLog.trimmed_to`; None if the log has to be asked."""
        ...

    def knows(self, position: Position) -> bool:
        """Tell whether a reader of this log can stand there; False if it has read another one.

        A broker that has just given a topic away may not know its latest ledger.
        """
        ...

    def measure(self, start: Position, end: Position) -> RangeSize:
        """As :meth:`SegmentLog.measure`."""
        ...

    def limit(
        self, start: Position, end: Position, max_messages: int | None, max_bytes: int | None
    ) -> Position:
        """As :meth:`SegmentLog.limit`."""
        ...


class SegmentLog(Protocol):
    """One backend of the segment log. Safe to use from several threads, not across a fork."""

    backend: str
    at_once: int
    """So many calls for different segments are better made at once: each waits for a server."""

    def create(self, segment: SegmentRef, gate_store: str = "") -> None:
        """Create the segment's log, ready for transactional writes; idempotent.

        Where the brokers are to gate it, `gate_store` is the uuid of the metadata store.
        """
        ...

    def adopt(self, segment: SegmentRef) -> None:
        """Make a log that is there already the segment's, with all that is in it, to be sealed.

        Idempotent, also after the seal.

        Raises
        ------
        SegmentNotFoundError
            If it is not there.
        SegmentLogError
            If it is another segment's, or somebody still writes to it.
        """
        ...

    def check_adoptable(self, segment: SegmentRef) -> None:
        """Refuse what :meth:`adopt` would refuse now, with its errors, and change nothing."""
        ...

    def delete(self, segment: SegmentRef) -> None:
        """Remove the segment's log and all that is in it; idempotent.

        A log that was adopted stays, whatever became of its adoption.
        """
        ...

    def give_back(self, segment: SegmentRef, *, others: Sequence[SegmentRef] = ()) -> None:
        """End an adoption, however far it got; idempotent. The log stays as it is, with its data.

        The `others` are partitions of the same topic that may be segments still. While one of them
        is, also another topic's, what the partitions have in common stays.
        """
        ...

    def backlogs_of_others(self, segment: SegmentRef) -> list[str]:
        """Return which durable subscriptions of the log's own have not read it to its end.

        Nothing in the metadata store tells of them: clients that know no segments have made them.
        """
        ...

    def check_access(self, segment: SegmentRef) -> None:
        """Find out, before the first row, whether the segment can be read and written at all.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        ...

    def writer(self, segment: SegmentRef, name: str) -> SegmentWriter:
        """Open a writer; every entry carries `name` as its producer name.

        Raises
        ------
        SegmentNotFoundError, SegmentSealedError, SegmentLogUnavailableError
        """
        ...

    def seal(self, segment: SegmentRef) -> Position:
        """Let nothing be appended from now on, and return the last position; idempotent.

        Writers that are open learn it by a SegmentSealedError. Readers are not touched.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        ...

    def last_confirmed(self, segment: SegmentRef) -> Position:
        """Return the position of the last acknowledged entry (LAC), EARLIEST if there is none."""
        ...

    def deliverable_end(self, segment: SegmentRef) -> Position:
        """Return up to where :meth:`read` gets what there is, whatever is committed; at most LAC.

        It lies before the LAC where brokers that gate the segment hold back what is undecided.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        ...

    def snapshot_each(
        self, segments: Sequence[SegmentRef], *, patient: bool = False
    ) -> Sequence[SegmentSnapshot]:
        """Take a snapshot of each segment: many take little longer than one.

        A log whose server may be slow to say how far one can read leaves what comes late to the
        next snapshot. With `patient` it waits: who asks only once must not miss it.
        """
        ...

    def trimmed_to(self, segment: SegmentRef) -> Position:
        """Return the highest position that is certainly gone (trimmed), EARLIEST if none is.

        A range ``(start, end]`` is whole if ``start >= trimmed_to``.
        """
        ...

    def trimmed_to_of_each(self, segments: Sequence[SegmentRef]) -> list[Position]:
        """Return it of each segment: many take hardly longer than one."""
        ...

    def protect_each(self, segments: Sequence[SegmentRef]) -> None:
        """Raise if a log might drop what was not trimmed; it keeps everything from now on.

        Raises
        ------
        SegmentLogError
            It says what to do. Until that is done, nothing of these segments may be trimmed.
        """
        ...

    def trim(self, segment: SegmentRef, up_to: Position) -> Position:
        """Give up everything up to `up_to`, and return up to where data is gone now.

        A log deletes in pieces of its own, and maybe later: what is returned may lie before
        `up_to`. Asking again goes on where that is so. Never more goes than `up_to`.

        Raises
        ------
        SegmentNotFoundError, SegmentLogUnavailableError
        """
        ...

    def published_before(self, segment: SegmentRef, time_ms: int) -> Position:
        """Return a position up to which every entry was published before `time_ms`.

        The furthest one, to the granularity in which the log deletes; EARLIEST if there is none.
        """
        ...

    def position_at(self, segment: SegmentRef, time_ms: int) -> Position | None:
        """Return the position before the first entry that was published at or after `time_ms`.

        None if there is no such entry. It is found in the log alone, whatever is committed. The
        entry is certainly the first one where publish times are out of order by no more than
        :data:`~pulsar_txn_spark.segments.publish_times.CLOCK_SKEW_MS`.
        """
        ...

    def appended(self, segment: SegmentRef) -> Appended:
        """Count what was ever appended, or since the log was loaded: the count may begin anew."""
        ...

    def measure(self, segment: SegmentRef, start: Position, end: Position) -> RangeSize:
        """Count what is in ``(start, end]``."""
        ...

    def limit(
        self,
        segment: SegmentRef,
        start: Position,
        end: Position,
        max_messages: int | None,
        max_bytes: int | None,
    ) -> Position:
        """Return the furthest position in ``(start, end]`` that keeps within both limits.

        Limits hold to the granularity of an entry; at least one entry is always taken, so that a
        reader gets on. Returns `end` itself if all of it fits.
        """
        ...

    def split(
        self, segment: SegmentRef, start: Position, end: Position, parts: int
    ) -> list[Position]:
        """Return the ascending ends of up to `parts` sub-ranges that tile ``(start, end]``.

        The last one is `end`; none is empty.
        """
        ...

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
        """Yield the visible rows of ``(start, end]`` in log order, at most `max_rows` a batch.

        Returns when the entry at `end` was passed; it must not block on entries that are not
        there (everything up to `end` is acknowledged). Columns come in READ_SCHEMA's order.

        Raises
        ------
        DataLossError
            If ``start`` lies below what is still there.
        SegmentLogUnavailableError
            If the log did not answer in time.
        """
        ...

    def read_each(
        self, ranges: Sequence[LogRange], *, columns: frozenset[str], max_rows: int
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield for each range what :meth:`read` yields of it: many short ones take little longer.

        The batches of a range are to be taken before the next one is asked for.
        """
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


@dataclass(frozen=True, slots=True)
class EndSnapshot:
    """A snapshot of a segment's end; how much is in the segment the log is asked for.

    Parameters
    ----------
    log : SegmentLog
    segment : SegmentRef
    last_confirmed : Position
    trimmed : Position or None
        None if it was not looked for.
    """

    log: SegmentLog
    segment: SegmentRef
    last_confirmed: Position
    trimmed: Position | None = None

    def last_up_to(self, position: Position) -> Position:
        """Return `position`, or the end of the log if that comes before it."""
        return min(position, self.last_confirmed)

    def trimmed_to(self) -> Position | None:
        """Return the highest position that is certainly gone; None if it was not looked for."""
        return self.trimmed

    def knows(self, position: Position) -> bool:
        """Return True: ends do not tell."""
        del position
        return True

    def measure(self, start: Position, end: Position) -> RangeSize:
        """Count what is in ``(start, end]``."""
        return self.log.measure(self.segment, start, end)

    def limit(
        self, start: Position, end: Position, max_messages: int | None, max_bytes: int | None
    ) -> Position:
        """Return the furthest position in ``(start, end]`` that keeps within both limits."""
        return self.log.limit(self.segment, start, end, max_messages, max_bytes)
