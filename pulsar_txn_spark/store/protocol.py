"""What the transaction layer asks of a metadata store.

Every method is one atomic step on one tag (``{tc<N>}``, ``{seg:<id>}``, ``{topic:<name>}``,
``{sink:<id>}``, ``{query:<id>}``, ``{meta}``); nothing is atomic across tags. Every method may be
repeated: a lost reply is answered by asking again. Every method raises

- :class:`~pulsar_txn_spark.errors.StoreUnavailableError` if no reply came (for
  :meth:`TransactionStore.end` the state is then unknown),
- :class:`~pulsar_txn_spark.errors.StoreRolledBackError` if the tag is lost, foreign or too old.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from pulsar_txn_spark.metrics import Counters
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.ack_ranges import AckInterval, SubscriptionState
from pulsar_txn_spark.store.records import (
    AckAnswer,
    AckRequest,
    Answer,
    BeginAnswer,
    Code,
    CommitAnswer,
    Cursor,
    CursorAnswer,
    CursorStart,
    DueTxns,
    EndedBy,
    FloorAnswer,
    Gate,
    OpenAnswer,
    OpGroup,
    OpLogSettings,
    OpsAnswer,
    PinAnswer,
    PointerRead,
    RawOps,
    RetainedPositions,
    Seen,
    SegmentAnswer,
    SegmentDecision,
    SinkEntry,
    StageAnswer,
    StoreIdentity,
    SubscriptionRef,
    TcState,
    TopologyVersion,
    TxnAnswer,
    TxnHeader,
    TxnId,
    TxnState,
)


class EventFeed(Protocol):
    """Follows the `events` streams of tags. One thread waits; any thread may wake it.

    An event says "read the state", and no more: streams are bounded, so that whoever is slow misses
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


class TopicStore(Protocol):
    """Topologies and properties of topics: the tag ``{topic:<name>}``."""

    def read(self, topic: str) -> tuple[int, bytes] | None:
        """Return version and record of a topology, None if there is none."""
        ...

    def version(self, topic: str) -> int:
        """Return the version of a topology, or that of its absence: 0 if it never was there."""
        ...

    def swap(
        self,
        topic: str,
        expected: int,
        record: bytes,
        step: Step | None = None,
        *,
        instance_id: str = "",
        deleting: bool = False,
        frees: bool = False,
    ) -> int | None:
        """Replace version `expected`; return the new version, None on a conflict.

        No version comes twice, also when the topic is deleted and created again. `instance_id` is
        noted beside the record ('' = as it is). From a record that is `deleting` on, the topic has
        no properties any more. A full store takes that, and what `frees`: a step of deleting a
        segment.
        """
        ...

    def delete(self, topic: str, expected: int) -> bool:
        """Delete version `expected`, and the topic's properties; False on a conflict."""
        ...

    def read_properties(self, topic: str) -> dict[str, str]:
        """Return the properties that users have given a topic."""
        ...

    def change_property(
        self, topic: str, name: str, value: str | None, *, instance_id: str = ""
    ) -> Answer:
        """Set a property of a topic, or remove it.

        ABSENT without such a topic or property, CONFLICT if the topic is another instance.
        """
        ...

    def lease(self, topic: str, owner: str, for_ms: int, *, instance_id: str = "") -> Answer:
        """Keep others from looking after a topic for a while (``topic_lease.lua``)."""
        ...


class MetaStore(Protocol):
    """What the store knows of itself as a whole: the tag ``{meta}``."""

    def list_topics(self) -> list[str]:
        """Return the full names of all segmented topics, sorted."""
        ...

    def add_topic(self, topic: str) -> None:
        """Put a topic into the catalogue, with a new stamp."""
        ...

    def topic_stamp(self, topic: str) -> str | None:
        """Return the stamp of a topic in the catalogue, None if it is not there."""
        ...

    def remove_topic(self, topic: str, stamp: str) -> Answer:
        """Take a topic out of the catalogue, unless it was added again since it had that stamp."""
        ...

    def next_source_epoch(self) -> int:
        """Count one start of a source."""
        ...


class TransactionStore(Protocol):
    """Headers of transactions, their intents and indexes: the tag ``{tc<N>}``."""

    def create(
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
        """Create the header of a nonce's transaction, OPEN; idempotent: it returns it as it is now.

        Intents that it lacks are added while it is OPEN.
        """
        ...

    def of_nonce(self, tc: int, nonce: str) -> TxnId | None:
        """Find the transaction of an attempt nonce."""
        ...

    def intend(self, txn: TxnId, nonce: str, timeout_ms: int, intents: Sequence[str]) -> TxnAnswer:
        """Record participants (none = a heartbeat) and extend the lease (``txn_intend.lua``)."""
        ...

    def end(
        self,
        txn: TxnId,
        state: TxnState,
        outcome: bytes,
        by: EndedBy,
        nonce: str = "",
        counts: Mapping[str, int] | None = None,
    ) -> TxnAnswer:
        """Decide a transaction by one compare-and-set (``txn_end.lua``).

        Not repeated by itself: no reply is
        :class:`~pulsar_txn_spark.errors.CommitStateUnknownError`. `counts` are added to the metrics
        if it is decided now; the counters go along in any case.
        """
        ...

    def read(self, txn: TxnId) -> TxnHeader | None:
        """Read a header and its intents in one step."""
        ...

    def read_many(self, txns: Sequence[TxnId]) -> list[TxnHeader | None]:
        """Read headers, each with its intents in one step."""
        ...

    def list_open(self, tc: int, *, deadline_ms: int | None, limit: int) -> list[tuple[TxnId, int]]:
        """List OPEN transactions with their deadlines, earliest first, due by `deadline_ms`."""
        ...

    def list_final(self, tc: int, *, limit: int) -> list[tuple[TxnId, int]]:
        """List decided transactions that still have a header, with finalized_ms, oldest first."""
        ...

    def list_unmaterialized(self, tc: int, *, limit: int) -> list[TxnId]:
        """List decided transactions that are pending at a participant, oldest decision first."""
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
        """Tell how a TC is doing, with the `limit` oldest decisions that are pending."""
        ...

    def remove(self, txn: TxnId) -> Answer:
        """Remove the header of a transaction that every participant is through with."""
        ...

    def remove_many(self, txns: Sequence[TxnId]) -> list[Answer]:
        """Remove headers, each in a step of its own."""
        ...


class OpLogStore(Protocol):
    """Operation records of transactions: the tag ``{tc<N>}``."""

    def append(self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]) -> OpsAnswer:
        """Append named operation records, each by itself (``txn_op.lua``)."""
        ...

    def append_batch(
        self, tc: int, entry: str, batch: bytes, groups: Sequence[OpGroup]
    ) -> OpsAnswer:
        """Append operation records of one TC as one entry (``txn_op_batch.lua``)."""
        ...

    def read(self, txn: TxnId) -> RawOps:
        """Read the operation records of a transaction, and the batches that they are in."""
        ...

    def read_settings(self, tc: int) -> OpLogSettings | None:
        """Return how a TC's operation records are gathered; None = nobody has set it."""
        ...

    def change_settings(self, tc: int, settings: OpLogSettings) -> None:
        """Change how a TC's operation records are gathered, for every writer and while it runs."""
        ...

    def forget(self, txn: TxnId, nonce: str) -> Answer:
        """Delete the operation records of a transaction that every participant has materialized."""
        ...


class StageStore(Protocol):
    """Staged writes of scopes: the tag ``{tc<N>}``."""

    def declare_attempt(self, tc: int, nonce: str, slot: str, attempt_number: int) -> StageAnswer:
        """Make `attempt_number` the current attempt at a slot (``txn_stage.lua``)."""
        ...

    def stage(
        self, tc: int, nonce: str, slot: str, attempt_number: int, write: bytes
    ) -> StageAnswer:
        """Stage the result of the current attempt at a slot (``txn_stage.lua``)."""
        ...

    def read(self, tc: int, nonce: str) -> dict[str, bytes]:
        """Read everything staged under a nonce."""
        ...

    def touch(self, tc: int, nonce: str, *, ended: bool = False) -> Answer:
        """Say that a scope is in use, or has ended: then what it has staged goes."""
        ...

    def sweep(self, tc: int, *, unused_ms: int, limit: int) -> tuple[int, int]:
        """Delete what dead scopes have staged; return how many were read, and deleted."""
        ...


class SegmentStore(Protocol):
    """Pins, dropped writers and floors of segments: the tag ``{seg:<id>}``."""

    def prepare(self, segments: Sequence[str]) -> None:
        """Make the first records of segments, so that their first transaction need not.

        Nothing else depends on it: what was not prepared is when it is first used.
        """
        ...

    def close(self, segment: str, tc: int, below: int) -> SegmentAnswer:
        """Close a segment for transactions of a TC below a counter (``seg_close.lua``).

        MORE says that it is closed, and asks for the same again, to remove what is left of them.
        """
        ...

    def raise_floor(
        self, segment: str, tc: int, below: int, confirmed: Position, deleted: Position
    ) -> FloorAnswer:
        """Let dropped writers go that nothing can be left of (``seg_floor.lua``)."""
        ...

    def pin(self, txn: TxnId, writer: str, segments: Sequence[str]) -> list[PinAnswer]:
        """Pin a writer in each segment (``seg_pin.lua``)."""
        ...

    def gates(
        self,
        segments: Sequence[str],
        ranges: Sequence[tuple[Position, Position]] | None = None,
        *,
        to_lowest_pin: bool = False,
        to_high: bool = False,
        at_once: bool = False,
        passing: bool = False,
    ) -> list[Gate]:
        """Read the gate of each segment. Read the LAC before.

        With `ranges` ``(start, end]``, one for each segment, the dropped writers and the floor are
        those that a reader of the range needs. Without it, all that there are. `to_lowest_pin` says
        that a range is read up to the lowest pin at most. `to_high` says that it is read up to the
        high-position, should that lie behind its end. `at_once` wants all gates as they are at one
        moment. `passing` says that each range ends at a LAC. Where no pin is, the same step notes
        that readers may have passed it, so that later pins stand behind it.
        """
        ...

    def materialize(
        self, txn: TxnId, state: TxnState, decisions: Sequence[SegmentDecision]
    ) -> list[Answer]:
        """Materialize a decision, in one step for each segment (``seg_materialize.lua``).

        MORE asks for the same again: a transaction that acknowledged very many single messages.
        CONFLICT: the segment has materialized the other decision.
        """
        ...

    def is_materialized(self, txn: TxnId, segments: Sequence[str]) -> list[bool]:
        """Tell for each segment whether it has carried a transaction's decision out."""
        ...

    def marks(self, txn: TxnId, segments: Sequence[str]) -> list[TxnState | None]:
        """Return for each segment the decision of a transaction that its mark names.

        None: it has materialized none, or is closed for the transaction, and compares nothing.
        """
        ...

    def raise_high(self, segment: str, position: Position) -> None:
        """Note an acknowledged position of a write outside of transactions."""
        ...

    def retained(self, segments: Sequence[str]) -> list[RetainedPositions]:
        """Read of each segment who still needs what of it."""
        ...

    def mark_trimmed(self, segment: str, position: Position) -> Answer:
        """Note that the log may let go what lies up to a position (``seg_trim.lua``)."""
        ...

    def retire(self, segment: str, end: Position, handed_over: Sequence[str]) -> SegmentAnswer:
        """Let nothing be registered in a segment any more (``seg_retire.lua``)."""
        ...

    def fence(self, segments: Sequence[str]) -> set[TxnId]:
        """Let nothing be registered any more in segments whose topic is being deleted.

        Returns the transactions that have a pin there.
        """
        ...

    def purge(self, segment: str) -> Answer:
        """Remove what is left of a retired segment whose log is gone (``seg_purge.lua``)."""
        ...


class MergedSteps(Protocol):
    """Steps of several tags as one, where one server holds all tags (``_merged.lua``).

    None says that nothing was changed: the single steps have to be taken. So it is in a cluster,
    for very many segments, and where a tag is new or not the one that was known.
    """

    @property
    def possible(self) -> bool:
        """Whether one server holds all tags."""
        ...

    def begin(
        self,
        tc: int,
        nonce: str,
        owner: str,
        timeout_ms: int,
        *,
        sink: str,
        query: str,
        batch: int,
        attempt: str,
        intents: Sequence[str],
        expected: PointerRead,
        pointer: bytes,
    ) -> BeginAnswer | None:
        """Register a sink, create the header of its batch, and let the sink's pointer name it.

        `pointer` is a serialized ``Pointer`` without ``txn_id``, which is added: no number is known
        before. The pointer is written if it still is what was `expected`. No header is created
        where other sinks have begun the batch in another attempt. No pointer is written for a
        transaction that is not OPEN.
        """
        ...

    def open(
        self,
        tc: int,
        nonce: str,
        owner: str,
        timeout_ms: int,
        intents: Sequence[str],
        writer: str,
        segments: Sequence[str],
        expected: TopologyVersion | None = None,
    ) -> OpenAnswer | Literal[Code.CONFLICT] | None:
        """Create the header of a nonce's transaction with its intents, and pin its first writer.

        In intents and writer, ``ptxn-#-`` stands for ``ptxn-<tc>-<counter>-``: no number is known
        before. Of a transaction that was opened before, nothing is pinned unless it is OPEN. If a
        topology is `expected` and has changed, nothing is done: CONFLICT.
        """
        ...

    def admit(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        intents: Sequence[str],
        writer: str,
        segments: Sequence[str],
    ) -> tuple[TxnAnswer, list[PinAnswer]] | None:
        """Record intents, then pin a writer in each segment.

        Nothing is pinned, and there is no answer to a pin, where the intents were refused.
        """
        ...

    def acknowledge(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        intents: Sequence[str],
        acks: Sequence[AckRequest],
    ) -> tuple[TxnAnswer, list[AckAnswer]] | None:
        """Record intents, then place pending acknowledgements.

        Nothing is placed, and there is no answer to a placement, where the intents were refused.
        """
        ...

    def commit(
        self,
        txn: TxnId,
        nonce: str,
        outcome: bytes,
        counts: Mapping[str, int],
        intents: Collection[str],
        ops: Mapping[str, bytes],
        decisions: Sequence[SegmentDecision],
    ) -> CommitAnswer | None:
        """Store operation records, decide for COMMITTED, and materialize the decision.

        Not repeated by itself: no reply is
        :class:`~pulsar_txn_spark.errors.CommitStateUnknownError`. It is only materialized where
        `intents`, from which the caller has made `decisions`, are those of the header.
        """
        ...


class SubscriptionStore(Protocol):
    """Cursors and acknowledgements in segments: the tag ``{seg:<id>}``."""

    def inherit_cursor(
        self,
        segment: str,
        subscription: str,
        query: str,
        query_start: str = "",
        source_epoch: int = 0,
    ) -> Answer:
        """Let a subscription stand before a segment's first entry (``cursor_inherit.lua``)."""
        ...

    def release_cursors(
        self, subscription: str, query: str, positions: Mapping[str, Position]
    ) -> list[Answer]:
        """Note for each segment up to where nobody asks again (``cursor_release.lua``)."""
        ...

    def delete_cursor(
        self, segment: str, subscription: str, unused_since: tuple[str, int] | None = None
    ) -> Answer:
        """Delete a subscription in a segment (``cursor_delete.lua``).

        With `unused_since`, the query and source epoch that :meth:`inherit_cursor` got, only if
        nobody has used it since that made it. CHANGED says that somebody has.
        """
        ...

    def names(self, segment: str) -> list[str]:
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
        source_epoch: int,
        start: Position,
    ) -> CursorAnswer:
        """Claim a subscription for a query (``cursor_claim.lua``)."""
        ...

    def claim_cursors(
        self,
        subscription: str,
        query: str,
        source_epoch: int,
        starts: Mapping[str, Position],
        *,
        asks_only: bool = False,
    ) -> list[CursorAnswer]:
        """Claim a subscription in several segments, only there (``cursor_claim.lua``).

        With `asks_only`, tell what the answers would be, and change nothing.
        """
        ...

    def ask_and_register(
        self,
        subscription: str,
        query: str,
        source_epoch: int,
        starts: Mapping[str, Position],
        *,
        batch: str,
        source: str,
        plan: bytes,
    ) -> list[CursorAnswer]:
        """Tell what `claim_cursors` would answer, and register a plan, in one round trip.

        The plan is registered whatever the answers are: what is not claimed is not acknowledged.
        """
        ...

    def create_cursors(
        self, subscription: str, starts: Mapping[str, CursorStart], query_start: str = ""
    ) -> list[CursorAnswer]:
        """Create the cursors that are absent, in this order (``cursor_create.lua``)."""
        ...

    def reset_cursor(
        self,
        segment: str,
        subscription: str,
        to: CursorStart | None,
        seen: Cursor | None,
        source_epoch: int = 0,
    ) -> CursorAnswer:
        """Put a cursor elsewhere, owned by nobody, unless it has changed (``cursor_reset.lua``)."""
        ...

    def place_acks(self, txn: TxnId, acks: Sequence[AckRequest]) -> list[AckAnswer]:
        """Place pending acknowledgements (``ack_place.lua``)."""
        ...

    def ack_individual(
        self,
        txn: TxnId,
        where: SubscriptionRef,
        intervals: Sequence[AckInterval],
        *,
        normal: bool = False,
    ) -> AckAnswer:
        """Lock single messages for a transaction (``ack_individual.lua``).

        The intervals are ascending, do not overlap, and are at most 512.
        """
        ...

    def ack_cumulative(
        self, txn: TxnId, where: SubscriptionRef, interval: AckInterval
    ) -> AckAnswer:
        """Lock everything up to a message for a transaction (``ack_cumulative.lua``)."""
        ...

    def read_acks(self, segment: str, subscription: str) -> SubscriptionState | None:
        """Read what a subscription has acknowledged; None if nobody has claimed it."""
        ...


class SinkStore(Protocol):
    """Pointers of sinks: the tag ``{sink:<id>}``."""

    def read_pointer(self, sink: str, query: str) -> PointerRead:
        """Read a sink's pointers."""
        ...

    def read_pointer_and_header(
        self, sink: str, query: str, txn: TxnId
    ) -> tuple[PointerRead, TxnHeader | None]:
        """Read a sink's pointers, and any transaction's header, in one round trip."""
        ...

    def swap_pointer(
        self, sink: str, query: str, expected: PointerRead, pointer: bytes, *, current: str
    ) -> bool:
        """Write a query's pointer, and which query is alive, if both still are what was read.

        Returns False on a conflict.
        """
        ...


class QueryStore(Protocol):
    """What a query's sinks and sources have begun: the tag ``{query:<id>}``."""

    def register_sink(
        self, query: str, sink: str, batch: int, attempt: str
    ) -> dict[str, SinkEntry]:
        """Register that a sink of a query begins a batch in an attempt.

        Returns the others that have begun that batch in another attempt. From then on the sink's
        pointer is refused if its past lacks the state that was noted for the sink last.
        """
        ...

    def read_sinks(self, query: str) -> dict[str, SinkEntry]:
        """Read which batch each sink of a query has begun last, and in which attempt."""
        ...

    def register_plan(self, query: str, batch: str, source: str, plan: bytes) -> None:
        """Register what a source reads in a micro-batch."""
        ...

    def read_plans(self, query: str, batch: str) -> dict[str, bytes]:
        """Read what was registered for a micro-batch."""
        ...

    def read_plans_and_note(
        self, query: str, batch: str, sink: str, seen: Seen
    ) -> dict[str, bytes]:
        """Read the same, and note a state of the sink's tag: :meth:`register_sink` goes by it."""
        ...


class MetadataStore(Protocol):
    """The metadata store. Safe to use from several threads, not across a fork."""

    @property
    def place(self) -> str:
        """Where it is, as errors name it: without secrets."""
        ...

    @property
    def identity(self) -> StoreIdentity:
        """The store's identity, read when it was opened."""
        ...

    @property
    def round_trips(self) -> int:
        """How many round trips this process has made so far."""
        ...

    @property
    def counters(self) -> Counters:
        """What this process has counted and not flushed to the store yet."""
        ...

    def seen(self, tag: str) -> Seen:
        """Return the newest state of a tag that this process has seen."""
        ...

    def raise_last_seen(self, states: Mapping[str, Seen]) -> None:
        """Refuse from now on any tag whose past lacks a state that others have seen of it."""
        ...

    def event_feed(self) -> EventFeed:
        """Return a feed that follows nothing yet; close it."""
        ...

    @property
    def topics(self) -> TopicStore:
        """Topologies and properties of topics: the tag ``{topic:<name>}``."""
        ...

    @property
    def meta(self) -> MetaStore:
        """What the store knows of itself as a whole: the tag ``{meta}``."""
        ...

    @property
    def transactions(self) -> TransactionStore:
        """Headers of transactions, their intents and indexes: the tag ``{tc<N>}``."""
        ...

    @property
    def op_log(self) -> OpLogStore:
        """Operation records of transactions: the tag ``{tc<N>}``."""
        ...

    @property
    def stages(self) -> StageStore:
        """Staged writes of scopes: the tag ``{tc<N>}``."""
        ...

    @property
    def segments(self) -> SegmentStore:
        """Pins, dropped writers and floors of segments: the tag ``{seg:<id>}``."""
        ...

    @property
    def merged(self) -> MergedSteps:
        """Steps of several tags that one step can take, where one server holds all tags."""
        ...

    @property
    def subscriptions(self) -> SubscriptionStore:
        """Cursors and acknowledgements in segments: the tag ``{seg:<id>}``."""
        ...

    @property
    def sinks(self) -> SinkStore:
        """Pointers of sinks: the tag ``{sink:<id>}``."""
        ...

    @property
    def queries(self) -> QueryStore:
        """What a query's sinks and sources have begun: the tag ``{query:<id>}``."""
        ...

    def flush_counters(self) -> None:
        """Add the counters to the counts in the store; without a reply what is in it is dropped."""
        ...
