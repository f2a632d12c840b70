"""What the transaction layer asks of a metadata store.

Every method is one atomic step on one tag (``{tc<N>}``, ``{seg:<id>}``, ``{topic:<name>}``,
``{sink:<id>}``, ``{query:<id>}``, ``{meta}``); nothing is atomic across tags. Every method may be
repeated: a lost reply is answered by asking again. Every method raises

- :class:`~pulsar_txn_spark.errors.StoreUnavailableError` if no reply came (for :meth:`end_txn` the
  state is then unknown),
- :class:`~pulsar_txn_spark.errors.StoreRolledBackError` if the tag is lost, foreign or too old.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.metrics import Tally
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.ack_ranges import AckInterval, SubscriptionState

_TC_BITS = 16  # of a TxnId's 128 (PIP-31)


class TxnState(StrEnum):
    """State of a header. OPEN is left once, to one of the two others (INV-1)."""

    OPEN = "OPEN"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


TRANSITIONS: Mapping[TxnState, frozenset[TxnState]] = {
    TxnState.OPEN: frozenset({TxnState.COMMITTED, TxnState.ABORTED}),
    TxnState.COMMITTED: frozenset(),
    TxnState.ABORTED: frozenset(),
}
"""The state machine of a header: the only legal moves. ``txn_end.lua`` is tested against it."""


class EndedBy(StrEnum):
    """On what ground a transaction is ended."""

    OWNER = "nonce"
    FENCE = "fence"
    ADMIN = "admin"
    EXPIRED = "expired"


MAY_DECIDE: Mapping[EndedBy, frozenset[TxnState]] = {
    EndedBy.OWNER: frozenset({TxnState.COMMITTED, TxnState.ABORTED}),
    EndedBy.FENCE: frozenset({TxnState.ABORTED}),
    EndedBy.ADMIN: frozenset({TxnState.ABORTED}),
    EndedBy.EXPIRED: frozenset({TxnState.ABORTED}),
}
"""What each ground is good for: nobody but the owner knows which writers count, so nobody else
may commit. ``txn_end.lua`` is tested against it."""


class Code(StrEnum):
    """What a step answered; each script's header comment says which can come."""

    OK = "OK"
    ABSENT = "ABSENT"
    ALIVE = "ALIVE"
    ALREADY = "ALREADY"
    CHANGED = "CHANGED"
    CLOSED = "CLOSED"
    CONFLICT = "CONFLICT"
    CURSOR = "CURSOR"
    DECIDED = "DECIDED"
    DELETED = "DELETED"
    DROPPED = "DROPPED"
    EXISTS = "EXISTS"
    FENCED = "FENCED"
    FULL = "FULL"
    ILLEGAL = "ILLEGAL"
    MISFIT = "MISFIT"
    MORE = "MORE"
    OPEN = "OPEN"
    OWNED = "OWNED"
    PENDING = "PENDING"
    PINNED = "PINNED"
    PLAIN = "PLAIN"
    RESOLVED = "RESOLVED"
    SINGLE = "SINGLE"
    STALE = "STALE"
    UNCLAIMED = "UNCLAIMED"


class TxnId(NamedTuple):
    """128-bit transaction id: 16 bit of TC id and a counter that is never reused (PIP-31)."""

    tc: int
    counter: int

    def __str__(self) -> str:
        return f"({self.tc},{self.counter})"

    @property
    def key(self) -> str:
        """The form in which it stands in the store."""
        return f"{self.tc}:{self.counter}"

    @classmethod
    def parse(cls, key: str) -> TxnId:
        """Read the form of :attr:`key`.

        Raises
        ------
        ValueError
            If the text is not of that form.
        """
        tc, _, counter = key.partition(":")
        found = cls(int(tc), int(counter))
        if not 0 <= found.tc < 1 << _TC_BITS:
            raise ValueError(f"expected a TC id of {_TC_BITS} bits, found {found.tc}")
        return found


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store this is: uuid, epoch (raised by whoever restores it), number of TC shards."""

    uuid: str
    epoch: str
    coordinators: int


class Seen(NamedTuple):
    """A state of a tag that somebody has seen.

    Parameters
    ----------
    seq : int
        The tag's sequence number then; 0 = nothing was seen.
    history : str, optional
        The history that it belongs to; empty = not known, as in records of earlier versions.
        Changes of one history were made one upon the other. A server that may have lost some of
        them begins another with its next change.
    """

    seq: int
    history: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a step: a code, and text values as the script's header comment lists them."""

    code: Code
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TxnHeader:
    """A header as it was read together with its intents.

    ``outcome`` is the serialized ``Outcome`` of a decided transaction. The times are the store's,
    in milliseconds since the epoch; ``now_ms`` is the store's clock at the reading.
    """

    txn: TxnId
    state: TxnState
    nonce: str
    owner: str
    sink: str
    query: str
    batch: str
    deadline_ms: int
    created_ms: int
    finalized_ms: int | None
    outcome: bytes
    materialized: bool
    now_ms: int
    intents: frozenset[str]

    @property
    def expired(self) -> bool:
        """Whether the lease was over when the header was read."""
        return self.deadline_ms <= self.now_ms


@dataclass(frozen=True, slots=True)
class DueTxns:
    """One page of the decided transactions that are past the retention.

    Parameters
    ----------
    txns : tuple of TxnId
        Those whose headers may go, as far as their TC is concerned.
    seen : int
        How many of the index were looked at.
    more : bool
        Whether the index goes on behind them.
    waiting : int
        How many of them an older open transaction of the TC holds up.
    """

    txns: tuple[TxnId, ...]
    seen: int
    more: bool
    waiting: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A writer's registered lower bound in a segment."""

    bound: Position
    writer: str
    txn: TxnId


@dataclass(frozen=True, slots=True)
class Gate:
    """What decides which entries of a segment may be read, read in one step (INV-4).

    Parameters
    ----------
    pins : tuple of Pin
        The lowest pins, ascending.
    dropped : mapping of str to Position
        Writer → the last position up to which its entries count (EARLIEST = none). Of a look at a
        range, at least those that can have entries in it.
    floor : mapping of int to int
        TC → transactions with a lower counter are not read in the range.
    contains_txn : bool
        Whether a transaction has ever written here (PIP-373).
    all_dropped : int
        How many dropped writers there are, whatever the range.
    """

    pins: tuple[Pin, ...] = ()
    dropped: Mapping[str, Position] = field(default_factory=dict)
    floor: Mapping[int, int] = field(default_factory=dict)
    contains_txn: bool = False
    all_dropped: int = 0


NOWHERE = (EARLIEST, EARLIEST)
"""The empty range, for :meth:`MetadataStore.gates`: no names but those of a few."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A subscription's position in a segment, and who moved it there.

    ``taken`` counts the messages of the next entry that are acknowledged as well (0 unless single
    messages of batches are acknowledged). ``incarnation`` is that of the source or consumer that
    claimed it last. ``released`` is up to where nobody will ask again: a replay by Spark may read
    what lies between it and ``position`` once more. ``planted`` is where the query that made it
    started (``<start>|<next segment>``), empty if none is known or the cursor was reset since.
    """

    position: Position
    query: str
    generation: int
    txn: str
    sink: str
    batch: str
    taken: int = 0
    incarnation: int = field(default=0, compare=False)
    released: Position = EARLIEST
    planted: str = field(default="", compare=False)

    @property
    def acknowledged(self) -> MessagePosition:
        """Up to which message everything is acknowledged."""
        if self.taken:
            return MessagePosition(self.position.ledger, self.position.entry + 1, self.taken - 1)
        return MessagePosition.whole(self.position)


@dataclass(frozen=True, slots=True)
class CursorStart:
    """Where a cursor is to stand.

    Parameters
    ----------
    position : Position
    may_skip : bool
        Whether it may begin behind what retention has let go meanwhile. A position that somebody
        has named may not: what is lost before it is an error.
    """

    position: Position
    may_skip: bool = False


@dataclass(frozen=True, slots=True)
class SegmentHolds:
    """Who still needs what of a segment, read in one step.

    Parameters
    ----------
    retired : bool
        Whether the segment was deleted: nothing is registered there any more.
    released : mapping of str to Position
        Subscription → up to where nobody will ask for it again.
    queries : mapping of str to str
        Subscription → the query that it belongs to, empty if none.
    planted : mapping of str to str
        Subscription → where its query started, as in :class:`Cursor`.
    sources : mapping of str to int
        Subscription → incarnation of the source that has claimed it, or number of its reset.
    """

    retired: bool
    released: Mapping[str, Position]
    queries: Mapping[str, str]
    planted: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriterFate:
    """What becomes of a writer at the materialization.

    ``kept_to`` is None if all its entries count, else the last position up to which they do.
    """

    writer: str
    kept_to: Position | None


@dataclass(frozen=True, slots=True)
class SegmentDecision:
    """What a decision means for one segment.

    ``high`` is the highest position that a winner has a receipt for.
    """

    segment: str
    fates: tuple[WriterFate, ...] = ()
    subscriptions: tuple[str, ...] = ()
    high: Position | None = None


@dataclass(frozen=True, slots=True)
class TcState:
    """How a TC is doing, read in one step.

    Parameters
    ----------
    now_ms : int
        The store's clock.
    open : int
        How many transactions are OPEN.
    oldest_open : (TxnId, int) or None
        The oldest of them, and when it was created, in milliseconds since the epoch.
    decided : int
        How many decided headers are not collected yet.
    undone : tuple of (TxnId, int)
        Those of the oldest decided ones that are not carried out everywhere, and when they were
        decided.
    counts : mapping of str to int
        What was counted here (see :mod:`pulsar_txn_spark.metrics`).
    """

    now_ms: int
    open: int
    oldest_open: tuple[TxnId, int] | None
    decided: int
    undone: tuple[tuple[TxnId, int], ...]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PointerRead:
    """A sink's pointers as read: the raw values are what a compare-and-set compares."""

    current_query: str
    own: bytes
    current: bytes


@dataclass(frozen=True, slots=True)
class SinkEntry:
    """The last batch that a sink has begun for a query, and the attempt that did so."""

    batch: int
    attempt: str


@dataclass(frozen=True, slots=True)
class AckRequest:
    """An acknowledgement of ``(start, end]`` of a segment for a subscription."""

    segment: str
    subscription: str
    query: str
    source_incarnation: int
    start: Position
    end: Position
    sink: str
    batch: str


@dataclass(frozen=True, slots=True)
class SubscriptionRef:
    """A subscription in a segment, and who claims it.

    Parameters
    ----------
    segment, subscription : str
    owner : str
        A query's id, or the constant of clients.
    incarnation : int
        Rises with every consumer; of several with one owner the highest is alive.
    """

    segment: str
    subscription: str
    owner: str
    incarnation: int = 0

    def __str__(self) -> str:
        return f"subscription {self.subscription!r} of segment {self.segment}"


@dataclass(frozen=True, slots=True)
class OpLogSettings:
    """How the operation records of a TC are gathered into entries (PIP-160).

    Parameters
    ----------
    enabled : bool
        Off = each request is written by itself, at once.
    max_records : int
        An entry is written when it has so many records,
    max_bytes : int
        or so many bytes of records,
    max_delay_ms : int
        or when its oldest record has waited so long.

    Raises
    ------
    OptionError
        If a limit is out of bounds.
    """

    enabled: bool = False
    max_records: int = 512
    max_bytes: int = 4 * 1024 * 1024
    max_delay_ms: int = 1

    def __post_init__(self) -> None:
        for name, low, high in (
            ("max_records", 1, 4_096),  # of as many transactions in one script
            ("max_bytes", 1, 64 * 1024 * 1024),
            ("max_delay_ms", 0, 10_000),
        ):
            if not low <= getattr(self, name) <= high:
                raise OptionError(
                    f"{name} of the operation log: expected {low} to {high}, found "
                    f"{getattr(self, name)}"
                )


@dataclass(frozen=True, slots=True)
class OpGroup:
    """The records of one owner in an entry; `reference` says which of the items they are."""

    txn: TxnId
    nonce: str
    reference: bytes
    records: int


@dataclass(frozen=True, slots=True)
class OpsAnswer:
    """Answers to operation records, one for each owner, and the TC's settings (None = unset)."""

    answers: tuple[Answer, ...]
    settings: OpLogSettings | None


@dataclass(frozen=True, slots=True)
class RawOps:
    """Operation records of a transaction as they are stored.

    Parameters
    ----------
    records : mapping of str to bytes
        Name → record, or ``batch:<entry>`` → reference.
    batches : mapping of str to bytes
        Entry → batch, of all that are referred to; empty bytes = it is missing.
    """

    records: Mapping[str, bytes]
    batches: Mapping[str, bytes]


class EventFeed(Protocol):
    """Follows the `events` streams of tags. One thread waits; any thread may wake it.

    An event says "look again", and no more: streams are bounded, so that whoever is slow misses
    some. The newest one is never trimmed, so nobody misses that there was one.
    """

    def follow(self, tags: Collection[str]) -> None:
        """Follow these tags and no others, new ones from now on: read their state afterwards."""
        ...

    def wait(self, timeout_s: float) -> set[str]:
        """Wait for events and return the tags that have some; empty = time is over, or woken."""
        ...

    def wake(self) -> None:
        """Let the thread that waits, or the next one, return."""
        ...

    def close(self) -> None:
        """Let go of the connections."""
        ...


class MetadataStore(Protocol):
    """The metadata store. Safe to use from several threads, not across a fork."""

    @property
    def identity(self) -> StoreIdentity:
        """The store's identity, read when it was opened."""
        ...

    @property
    def round_trips(self) -> int:
        """How many round trips this process has made so far."""
        ...

    @property
    def tally(self) -> Tally:
        """What this process has counted and not delivered to the store yet."""
        ...

    def seen(self, tag: str) -> Seen:
        """Return the newest state of a tag that this process has seen."""
        ...

    def bear_witness(self, states: Mapping[str, Seen]) -> None:
        """Refuse from now on any tag whose past lacks a state that others have seen of it."""
        ...

    def event_feed(self) -> EventFeed:
        """Return a feed that follows nothing yet; close it."""
        ...

    # topics

    def read_topology(self, topic: str) -> tuple[int, bytes] | None:
        """Return version and record of a topology, None if there is none."""
        ...

    def topology_version(self, topic: str) -> int:
        """Return the version of a topology, or that of its absence: 0 if it never was there."""
        ...

    def swap_topology(
        self,
        topic: str,
        expected: int,
        record: bytes,
        step: Step | None = None,
        *,
        incarnation: str = "",
        deleting: bool = False,
    ) -> int | None:
        """Replace version `expected`; return the new version, None on a conflict.

        No version comes twice, also when the topic is deleted and created again. `incarnation` is
        noted beside the record ('' = as it is). From a record that is `deleting` on, the topic has
        no properties any more.
        """
        ...

    def delete_topology(self, topic: str, expected: int) -> bool:
        """Delete version `expected`, and the topic's properties; False on a conflict."""
        ...

    def read_properties(self, topic: str) -> dict[str, str]:
        """Return the properties that users have given a topic."""
        ...

    def change_property(
        self, topic: str, name: str, value: str | None, *, incarnation: str = ""
    ) -> Answer:
        """Set a property of a topic, or remove it.

        ABSENT without such a topic or property, CONFLICT if the topic is another incarnation.
        """
        ...

    def lease_topic(self, topic: str, owner: str, for_ms: int, *, incarnation: str = "") -> Answer:
        """Keep others from looking after a topic for a while (``topic_lease.lua``)."""
        ...

    def list_topics(self) -> list[str]:
        """Return the full names of all segmented topics, sorted."""
        ...

    def prepare_segments(self, segments: Sequence[str]) -> None:
        """Make the first records of segments, so that their first transaction need not.

        Nothing else depends on it: what was not prepared is when it is first used.
        """
        ...

    def catalogue(self, topic: str) -> None:
        """Put a topic into the catalogue, with a new stamp."""
        ...

    def catalogued(self, topic: str) -> str | None:
        """Return the stamp of a topic in the catalogue, None if it is not there."""
        ...

    def uncatalogue(self, topic: str, stamp: str) -> Answer:
        """Take a topic out of the catalogue, unless it was added again since it had that stamp."""
        ...

    # transactions

    def create_txn(
        self,
        *,
        tc: int,
        nonce: str,
        owner: str,
        sink: str,
        query: str,
        batch: str,
        timeout_ms: int,
        intents: Sequence[str],
    ) -> tuple[TxnId, TxnState]:
        """Create the header of a nonce's transaction, OPEN; again = the same one, as it is now.

        Intents that it lacks are added while it is OPEN.
        """
        ...

    def txn_of_nonce(self, tc: int, nonce: str) -> TxnId | None:
        """Find the transaction of an attempt nonce."""
        ...

    def intend(self, txn: TxnId, nonce: str, timeout_ms: int, intents: Sequence[str]) -> Answer:
        """Record participants (none = a heartbeat) and extend the lease (``txn_intend.lua``)."""
        ...

    def append_ops(self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]) -> OpsAnswer:
        """Append named operation records, each by itself (``txn_op.lua``)."""
        ...

    def append_op_batch(
        self, tc: int, entry: str, batch: bytes, groups: Sequence[OpGroup]
    ) -> OpsAnswer:
        """Append operation records of one TC as one entry (``txn_op_batch.lua``)."""
        ...

    def read_ops(self, txn: TxnId) -> RawOps:
        """Read the operation records of a transaction, and the batches that they are in."""
        ...

    def read_op_log(self, tc: int) -> OpLogSettings | None:
        """Return how a TC's operation records are gathered; None = nobody has set it."""
        ...

    def set_op_log(self, tc: int, settings: OpLogSettings) -> None:
        """Change how a TC's operation records are gathered, for every writer and while it runs."""
        ...

    def declare_run(self, tc: int, nonce: str, slot: str, run: int) -> Answer:
        """Make `run` the current run of a slot (``txn_stage.lua``)."""
        ...

    def stage(self, tc: int, nonce: str, slot: str, run: int, write: bytes) -> Answer:
        """Stage the result of a slot's current run (``txn_stage.lua``)."""
        ...

    def staged(self, tc: int, nonce: str) -> dict[str, bytes]:
        """Read everything staged under a nonce."""
        ...

    def touch_stage(self, tc: int, nonce: str, *, ended: bool = False) -> Answer:
        """Say that a scope is in use, or has ended: then what it has staged goes."""
        ...

    def sweep_stages(self, tc: int, *, unused_ms: int, limit: int) -> tuple[int, int]:
        """Delete what dead scopes have staged; return how many were looked at, and deleted."""
        ...

    def end_txn(
        self,
        txn: TxnId,
        state: TxnState,
        outcome: bytes,
        by: EndedBy,
        nonce: str = "",
        counts: Mapping[str, int] | None = None,
    ) -> Answer:
        """Decide a transaction by one compare-and-set (``txn_end.lua``).

        Not repeated by itself: no reply is
        :class:`~pulsar_txn_spark.errors.CommitStateUnknownError`. `counts` are added to the metrics
        if it is decided now; the tally goes along in any case.
        """
        ...

    def read_txn(self, txn: TxnId) -> TxnHeader | None:
        """Read a header and its intents in one step."""
        ...

    def read_txns(self, txns: Sequence[TxnId]) -> list[TxnHeader | None]:
        """Read headers, each with its intents in one step."""
        ...

    def forget_ops(self, txn: TxnId, nonce: str) -> Answer:
        """Delete the operation records of a transaction that every participant has materialized."""
        ...

    def list_open(self, tc: int, *, deadline_ms: int | None, limit: int) -> list[tuple[TxnId, int]]:
        """List OPEN transactions with their deadlines, earliest first, due by `deadline_ms`."""
        ...

    def list_final(self, tc: int, *, limit: int) -> list[tuple[TxnId, int]]:
        """List decided transactions that still have a header, with finalized_ms, oldest first."""
        ...

    def list_unmaterialized(self, tc: int, *, limit: int) -> list[TxnId]:
        """List decided transactions that are not carried out everywhere, oldest decision first."""
        ...

    def list_due(
        self, tc: int, *, finalized_ms: int, below: int, offset: int, page: int, limit: int
    ) -> DueTxns:
        """List decided transactions whose headers may go (``txn_due.lua``).

        Only those decided by `finalized_ms` and with a counter `below` the lowest open one.
        """
        ...

    def lowest_open(self, tc: int) -> tuple[int, int]:
        """Return the lowest counter that may still be open in a TC, and the store's clock in ms."""
        ...

    def tc_state(self, tc: int, *, limit: int) -> TcState:
        """Tell how a TC is doing, with the `limit` oldest decisions that are not carried out."""
        ...

    def deliver_tally(self) -> None:
        """Add the tally to the counts in the store; without a reply what is in it is dropped."""
        ...

    def remove_txn(self, txn: TxnId) -> Answer:
        """Remove the header of a transaction that every participant is through with."""
        ...

    def remove_txns(self, txns: Sequence[TxnId]) -> list[Answer]:
        """Remove headers, each in a step of its own."""
        ...

    # segments

    def close_segment(self, segment: str, tc: int, below: int) -> Answer:
        """Close a segment for transactions of a TC below a counter (``seg_close.lua``).

        MORE says that it is closed, and asks for the same again, to remove what is left of them.
        """
        ...

    def raise_floor(
        self, segment: str, tc: int, below: int, confirmed: Position, deleted: Position
    ) -> Answer:
        """Let dropped writers go that nothing can be left of (``seg_floor.lua``)."""
        ...

    def pin(self, txn: TxnId, writer: str, segments: Sequence[str]) -> list[Answer]:
        """Pin a writer in each segment (``seg_pin.lua``)."""
        ...

    def gates(
        self, segments: Sequence[str], ranges: Sequence[tuple[Position, Position]] | None = None
    ) -> list[Gate]:
        """Read the gate of each segment. Read the LAC before.

        With `ranges` ``(start, end]``, one for each segment, the dropped writers and the floor are
        those that a reader of the range needs; without it, all that there are.
        """
        ...

    def materialize(
        self, txn: TxnId, state: TxnState, decisions: Sequence[SegmentDecision]
    ) -> list[Answer]:
        """Carry a decision out, in one step for each segment (``seg_materialize.lua``).

        MORE asks for the same again: a transaction that acknowledged very many single messages.
        """
        ...

    def through(self, txn: TxnId, segments: Sequence[str]) -> list[bool]:
        """Tell for each segment whether it has carried a transaction's decision out."""
        ...

    def raise_high(self, segment: str, position: Position) -> None:
        """Note an acknowledged position of a write outside of transactions."""
        ...

    def holds(self, segments: Sequence[str]) -> list[SegmentHolds]:
        """Read of each segment who still needs what of it."""
        ...

    def mark_trimmed(self, segment: str, position: Position) -> Answer:
        """Note that the log may let go what lies up to a position (``seg_trim.lua``)."""
        ...

    def retire_segment(self, segment: str, end: Position, handed_over: Sequence[str]) -> Answer:
        """Let nothing be registered in a segment any more (``seg_retire.lua``)."""
        ...

    def shut_segments(self, segments: Sequence[str]) -> set[TxnId]:
        """Let nothing be registered any more in segments whose topic is being deleted.

        Returns the transactions that have a pin there.
        """
        ...

    def purge_segment(self, segment: str) -> Answer:
        """Remove what is left of a retired segment whose log is gone (``seg_purge.lua``)."""
        ...

    # subscriptions

    def inherit_cursor(
        self,
        segment: str,
        subscription: str,
        query: str,
        planted: str = "",
        source_incarnation: int = 0,
    ) -> Answer:
        """Let a subscription stand before a segment's first entry (``cursor_inherit.lua``)."""
        ...

    def release_cursors(
        self, subscription: str, query: str, positions: Mapping[str, Position]
    ) -> list[Answer]:
        """Note for each segment up to where nobody asks again (``cursor_release.lua``)."""
        ...

    def delete_cursor(self, segment: str, subscription: str) -> Answer:
        """Delete a subscription in a segment (``cursor_delete.lua``)."""
        ...

    def list_subscriptions(self, segment: str) -> list[str]:
        """Return the names of a segment's subscriptions, sorted."""
        ...

    def read_cursors(self, segments: Sequence[str], subscription: str) -> list[Cursor | None]:
        """Read a subscription's cursor in each segment."""
        ...

    def claim_cursor(
        self,
        segment: str,
        subscription: str,
        query: str,
        source_incarnation: int,
        start: Position,
    ) -> Answer:
        """Claim a subscription for a query (``cursor_claim.lua``)."""
        ...

    def claim_cursors(
        self,
        subscription: str,
        query: str,
        source_incarnation: int,
        starts: Mapping[str, Position],
        *,
        asks_only: bool = False,
    ) -> list[Answer]:
        """Claim a subscription in several segments, only there (``cursor_claim.lua``).

        With `asks_only`, tell what the answers would be, and change nothing.
        """
        ...

    def plant_cursors(
        self, subscription: str, starts: Mapping[str, CursorStart], planted: str = ""
    ) -> list[Answer]:
        """Let a subscription exist where it has no cursor, in this order (``cursor_plant.lua``)."""
        ...

    def reset_cursor(
        self,
        segment: str,
        subscription: str,
        to: CursorStart | None,
        seen: Cursor | None,
        source_incarnation: int = 0,
    ) -> Answer:
        """Put a cursor elsewhere, owned by nobody, unless it has changed (``cursor_reset.lua``)."""
        ...

    def place_acks(self, txn: TxnId, acks: Sequence[AckRequest]) -> list[Answer]:
        """Place pending acknowledgements (``ack_place.lua``)."""
        ...

    def ack_individual(
        self,
        txn: TxnId,
        where: SubscriptionRef,
        intervals: Sequence[AckInterval],
        *,
        normal: bool = False,
    ) -> Answer:
        """Hold single messages for a transaction (``ack_individual.lua``).

        The intervals are ascending, do not overlap, and are at most 512.
        """
        ...

    def ack_cumulative(self, txn: TxnId, where: SubscriptionRef, interval: AckInterval) -> Answer:
        """Hold everything up to a message for a transaction (``ack_cumulative.lua``)."""
        ...

    def read_acks(self, segment: str, subscription: str) -> SubscriptionState | None:
        """Read what a subscription has acknowledged; None if nobody has claimed it."""
        ...

    # sinks and sources

    def read_pointer(self, sink: str, query: str) -> PointerRead:
        """Read a sink's pointers."""
        ...

    def swap_pointer(
        self, sink: str, query: str, expected: PointerRead, pointer: bytes, *, current: str
    ) -> bool:
        """Write a query's pointer, and which query is alive, if both still are what was read.

        Returns False on a conflict.
        """
        ...

    def register_sink(
        self, query: str, sink: str, batch: int, attempt: str
    ) -> dict[str, SinkEntry]:
        """Register that a sink of a query begins a batch in an attempt.

        Returns the others that have begun that batch in another attempt.
        """
        ...

    def read_sinks(self, query: str) -> dict[str, SinkEntry]:
        """Read which batch each sink of a query has begun last, and in which attempt."""
        ...

    def next_source_incarnation(self) -> int:
        """Count one start of a source."""
        ...

    def register_plan(self, query: str, batch: str, source: str, plan: bytes) -> None:
        """Register what a source reads in a micro-batch."""
        ...

    def read_plans(self, query: str, batch: str) -> dict[str, bytes]:
        """Read what was registered for a micro-batch."""
        ...
