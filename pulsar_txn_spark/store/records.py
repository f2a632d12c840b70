"""The values that a metadata store takes and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position

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
    TRIMMED = "TRIMMED"
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
        txn = cls(int(tc), int(counter))
        if not 0 <= txn.tc < 1 << _TC_BITS:
            raise ValueError(f"expected a TC id of {_TC_BITS} bits, found {txn.tc}")
        return txn


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store this is: uuid, epoch (always 1 so far), number of TC shards."""

    uuid: str
    store_epoch: str
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
    """Answer of a step. What a step tells beside the code is in a record derived from this one.

    A field that a code has no value for is None, or empty; the script's header comment says which
    code brings what.
    """

    code: Code


@dataclass(frozen=True, slots=True)
class TxnAnswer(Answer):
    """Answer of a step on a header.

    Parameters
    ----------
    state : TxnState or None
        The header's state: of DECIDED.
    deadline_ms : int or None
        When the lease ends, in milliseconds since the epoch: of ALIVE.
    """

    state: TxnState | None = None
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StageAnswer(Answer):
    """Answer of a step on a slot, with the current attempt if the answer is STALE."""

    attempt_number: int | None = None


@dataclass(frozen=True, slots=True)
class PinAnswer(Answer):
    """Answer of a request for a pin.

    Parameters
    ----------
    bound : Position or None
        What the writer's entries lie behind: of OK and PINNED.
    decision : TxnState or None
        How the transaction was decided: of RESOLVED.
    """

    bound: Position | None = None
    decision: TxnState | None = None


@dataclass(frozen=True, slots=True)
class SegmentAnswer(Answer):
    """Answer of a step on a segment.

    Parameters
    ----------
    holder : TxnId or None
        The transaction in the way: of PENDING.
    absent : tuple of str
        Subscriptions that are not there any more: of ABSENT.
    """

    holder: TxnId | None = None
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FloorAnswer(Answer):
    """Answer of raising a floor.

    Parameters
    ----------
    floor : int or None
        Transactions with a lower counter are not read any more; None if it is as before.
    removed : int
        How many dropped writers went.
    """

    floor: int | None = None
    removed: int = 0


@dataclass(frozen=True, slots=True)
class CursorAnswer(Answer):
    """Answer of a step on a cursor.

    Parameters
    ----------
    position : MessagePosition or None
        Where the cursor stands.
    claims : bool
        Whether a claim changed anything, or would.
    owner : str
        Whose the subscription is: of OWNED.
    source_epoch : int
        The newest source or consumer: of FENCED.
    holder : TxnId or None
        The transaction in the way: of PENDING.
    """

    position: MessagePosition | None = None
    claims: bool = False
    owner: str = ""
    source_epoch: int = 0
    holder: TxnId | None = None


@dataclass(frozen=True, slots=True)
class AckAnswer(CursorAnswer):
    """Answer of an acknowledgement.

    Parameters
    ----------
    end : MessagePosition or None
        Of which message a conflict is: of PENDING, DELETED and MISFIT of messages.
    gap : MessagePosition or None
        Behind what nobody has acknowledged: of CURSOR of messages.
    sink, batch, txn : str
        What has moved the cursor: of CURSOR of a range.
    decision : TxnState or None
        How the transaction was decided: of RESOLVED.
    ranges : int
        How many ranges the subscription has: of FULL.
    locked : tuple of (TxnId, MessagePosition)
        Transactions in the way of a normal acknowledgement, and the ends of what was left out: OK.
    """

    end: MessagePosition | None = None
    gap: MessagePosition | None = None
    sink: str = ""
    batch: str = ""
    txn: str = ""
    decision: TxnState | None = None
    ranges: int = 0
    locked: tuple[tuple[TxnId, MessagePosition], ...] = ()


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
        How many of the index were read.
    more : bool
        Whether the index goes on behind them.
    waiting : int
        How many of them an older open transaction of the TC retains.
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
        Writer → the last position up to which its entries count (EARLIEST = none). Of a read of a
        range, at least those that can have entries in it.
    floor : mapping of int to int
        TC → transactions with a lower counter are not read in the range.
    contains_txn : bool
        Whether a transaction has ever written here (PIP-373).
    all_dropped : int
        How many dropped writers there are, whatever the range.
    high : Position
        High-position: the highest one that a report of acknowledged rows has named. It is a LAC
        from before this was read.
    """

    pins: tuple[Pin, ...] = ()
    dropped: Mapping[str, Position] = field(default_factory=dict)
    floor: Mapping[int, int] = field(default_factory=dict)
    contains_txn: bool = False
    all_dropped: int = 0
    high: Position = EARLIEST


NOWHERE = (EARLIEST, EARLIEST)
"""The empty range, for `SegmentStore.gates`: no names but those of a few."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A subscription's position in a segment, and who moved it there.

    ``taken`` counts the messages of the next entry that are acknowledged as well (0 unless single
    messages of batches are acknowledged). ``source_epoch`` is that of the source or consumer that
    claimed it last. ``released`` is up to where nobody will ask again: a replay by Spark may read
    what lies between it and ``position`` once more. ``query_start`` is where the query that made it
    started (``<start>|<stamp>|<next segment>``), empty if none is known or the cursor was reset
    since. ``begun`` is where the query went on that took the cursor over from nobody. That may be
    elsewhere. It is None if the cursor was made for the query.
    """

    position: Position
    query: str
    cursor_version: int
    txn: str
    sink: str
    batch: str
    taken: int = 0
    source_epoch: int = field(default=0, compare=False)
    released: Position = EARLIEST
    query_start: str = field(default="", compare=False)
    begun: Position | None = field(default=None, compare=False)

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
class RetainedPositions:
    """Who still needs what of a segment, read in one step.

    Parameters
    ----------
    retired : bool
        Whether the segment was deleted: nothing is registered there any more.
    released : mapping of str to Position
        Subscription → up to where nobody will ask for it again.
    queries : mapping of str to str
        Subscription → the query that it belongs to, empty if none.
    query_start : mapping of str to str
        Subscription → where its query started, as in :class:`Cursor`.
    sources : mapping of str to int
        Subscription → epoch of the source that has claimed it, or number of its reset.
    """

    retired: bool
    released: Mapping[str, Position]
    queries: Mapping[str, str]
    query_start: Mapping[str, str] = field(default_factory=dict)
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
    unmaterialized : tuple of (TxnId, int)
        Those of the oldest decided ones that are pending at a participant, and when they were
        decided.
    counts : mapping of str to int
        What was counted here (see :mod:`pulsar_txn_spark.metrics`).
    """

    now_ms: int
    open: int
    oldest_open: tuple[TxnId, int] | None
    decided: int
    unmaterialized: tuple[tuple[TxnId, int], ...]
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
    source_epoch: int
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
    source_epoch : int
        Rises with every consumer; of several with one owner the highest is alive.
    """

    segment: str
    subscription: str
    owner: str
    source_epoch: int = 0

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

    answers: tuple[TxnAnswer, ...]
    settings: OpLogSettings | None

    @property
    def stored(self) -> bool:
        """Whether all of them were stored."""
        return all(answer.code is Code.OK for answer in self.answers)


@dataclass(frozen=True, slots=True)
class BeginAnswer:
    """Answer to a micro-batch that begins in one step.

    Parameters
    ----------
    others : dict of str to SinkEntry
        Sinks that have begun the batch in another attempt. With any, nothing was opened.
    txn : TxnId or None
        None if nothing was opened.
    state : TxnState
        OPEN, unless the nonce's transaction was there already.
    swapped : bool
        Whether the sink's pointer names the transaction now.
    """

    others: dict[str, SinkEntry]
    txn: TxnId | None = None
    state: TxnState = TxnState.OPEN
    swapped: bool = False


class TopologyVersion(NamedTuple):
    """A topic's topology as it was read."""

    topic: str
    version: int


@dataclass(frozen=True, slots=True)
class OpenAnswer:
    """Answer to a transaction that is opened together with its first writer.

    Parameters
    ----------
    txn : TxnId
    state : TxnState
        OPEN, unless the nonce's transaction was there already.
    pins : list of PinAnswer
        One for each segment; none unless it is OPEN.
    """

    txn: TxnId
    state: TxnState
    pins: list[PinAnswer]


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """Answer to a commit in one step.

    Parameters
    ----------
    answer : TxnAnswer
        To the decision; or to the operation records, if they were refused before it.
    ops : OpsAnswer or None
        To the operation records, if there were any.
    header : TxnHeader or None
        Of a transaction that was decided now, with all of its intents; None if it is materialized.
    materialized : bool
        Whether the decision was also materialized everywhere, and nothing is left to do.
    """

    answer: TxnAnswer
    ops: OpsAnswer | None
    header: TxnHeader | None = None
    materialized: bool = False


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
