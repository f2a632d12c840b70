"""Pending acknowledgements: what a transaction consumed, and the plans that say so."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pulsar_txn_spark import steps
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    AcknowledgementsFullError,
    DataLossError,
    FencedError,
    PulsarTxnError,
    TransactionConflictError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.metrics import count_acknowledgements
from pulsar_txn_spark.position import MessagePosition, Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.ack_ranges import AckInterval, SubscriptionState, in_order
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Plan
from pulsar_txn_spark.store.records import (
    AckAnswer,
    AckRequest,
    Code,
    CursorAnswer,
    EndedBy,
    SubscriptionRef,
    TxnId,
)
from pulsar_txn_spark.txn.coordinator import (
    DEFAULT_TIMEOUT_MS,
    TransactionCoordinator,
    as_position,
    as_record,
    require_open,
)
from pulsar_txn_spark.txn.ids import require_own
from pulsar_txn_spark.txn.participants import ack_intent
from pulsar_txn_spark.txn.seen import note_segments

_COMPLETION_ROUNDS = 8
_INTERVALS_PER_STEP = 512  # a script blocks the store for a millisecond or two, not longer

CLIENT_OWNER = "clients"
"""Owner of the subscriptions of clients: all of them share one. No query's id (a UUID) is that."""


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """``(start, end]`` of one segment, as a source planned it for a micro-batch."""

    segment: str
    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What one source reads in one micro-batch.

    Parameters
    ----------
    source : str
        Unique to one start of the source.
    source_epoch : int
        Rises with every start of any source; of several on one subscription the highest is alive.
    subscription : str
        Empty if the source acknowledges nothing.
    execution_id : str
        Names the attempt at the micro-batch in which a task registered the plan; empty if unknown.
    ranges : tuple of PlannedRange
    incomplete : bool
        Whether this is only a mark, without ranges. Rows of the batch were gone when a task of the
        attempt read it, and other sinks had committed it. From that no sink may commit it newly.
    """

    source: str
    source_epoch: int
    subscription: str
    execution_id: str
    ranges: tuple[PlannedRange, ...]
    incomplete: bool = False

    def serialize(self) -> bytes:
        """Return the plan as a record."""
        plan = Plan(
            source=self.source,
            subscription=self.subscription,
            execution_id=self.execution_id,
            source_epoch=self.source_epoch,
            incomplete=self.incomplete,
        )
        for item in self.ranges:
            plan.ranges.add(
                segment=item.segment, start=as_record(item.start), end=as_record(item.end)
            )
        return plan.SerializeToString(deterministic=True)

    @classmethod
    def parse(cls, record: bytes) -> ReadPlan:
        """Read a record."""
        plan = Plan.FromString(record)
        ranges = tuple(
            PlannedRange(item.segment, as_position(item.start), as_position(item.end))
            for item in plan.ranges
        )
        return cls(
            plan.source,
            plan.source_epoch,
            plan.subscription,
            plan.execution_id,
            ranges,
            plan.incomplete,
        )

    def as_incomplete(self) -> ReadPlan:
        """Return the mark of an attempt that has read only what is left; see `incomplete`."""
        # Other tasks of the source register its plan: the mark has a name of its own beside it.
        source = f"{self.source}/incomplete"
        return replace(self, source=source, subscription="", ranges=(), incomplete=True)

    @property
    def content(self) -> str:
        """What is read and for whom, whoever reads it: equal in every replay of a batch."""
        ranges = sorted(f"{r.segment} {r.start} {r.end}" for r in self.ranges)
        return "\n".join([self.subscription, *ranges])


def plans_of_attempt(plans: Iterable[ReadPlan], execution_id: str) -> list[ReadPlan]:
    """Choose, of all plans that were registered for a batch, those that this attempt has read.

    Plans of other attempts (a driver that died, a second one on the same checkpoint) do not count
    where the attempt can be told. Where it cannot, all count: a replay reads the same ranges again,
    so that they do not differ.

    Raises
    ------
    FencedError
        If a segment was read by two sources, or over different ranges, for one subscription.
    """
    everything = list(plans)
    own = [plan for plan in everything if execution_id and plan.execution_id == execution_id]
    source_counts = bool(own)
    own = own or everything
    seen: dict[tuple[str, str], tuple[PlannedRange, str]] = {}
    for plan in own:
        source = plan.source if source_counts else ""
        for item in plan.ranges if plan.subscription else ():
            other = seen.setdefault((plan.subscription, item.segment), (item, source))
            if other != (item, source):
                raise FencedError(
                    f"subscription {plan.subscription!r} was read twice in one micro-batch. It is "
                    "used twice in one query (a self-join or a union: give each side its own "
                    "subscription), or two drivers run on one checkpoint. Nothing was committed"
                )
    return own


def acknowledgements(
    plans: Iterable[ReadPlan], *, query: str, sink: str, batch: str
) -> list[AckRequest]:
    """Return what plans acknowledge: each segment of a subscription once, by its newest source."""
    newest: dict[tuple[str, str], AckRequest] = {}
    for plan in sorted(plans, key=lambda p: p.source_epoch):
        for item in plan.ranges if plan.subscription else ():
            newest[plan.subscription, item.segment] = AckRequest(
                segment=item.segment,
                subscription=plan.subscription,
                query=query,
                source_epoch=plan.source_epoch,
                start=item.start,
                end=item.end,
                sink=sink,
                batch=batch,
            )
    return list(newest.values())


def digest_of(plans: Iterable[ReadPlan]) -> bytes:
    """Return a digest of what a batch reads; empty if no source of ours took part."""
    contents = sorted({plan.content for plan in plans})
    return hashlib.sha256("\n\n".join(contents).encode()).digest() if contents else b""


class MetadataPendingAckStore:
    """The pending-ack stores of all (segment, subscription), on the metadata store."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._left_open: dict[TxnId, str] = {}  # and their nonces

    def acknowledge(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        acks: Sequence[AckRequest],
        *,
        catches_up: bool = False,
    ) -> list[AckRequest]:
        """Place pending acknowledgements; the cursors move if and when `txn` commits (INV-9).

        Parameters
        ----------
        txn : TxnId
        nonce : str
            Of the transaction.
        timeout_ms : int
            Its lease.
        acks : sequence of AckRequest
        catches_up : bool
            Whether the ranges are known to be read and done with: then a cursor that has come to
            their end by other means will do. A decision that was not materialized does that.

        Returns
        -------
        list of AckRequest
            Those placed. Not among them is what another transaction of the same micro-batch (to
            another sink) has acknowledged already. Nor is what was in a segment that was deleted.

        Raises
        ------
        AcknowledgementConflictError
            If the range does not start at the cursor, or another transaction has locked the cursor.
        FencedError
            If a newer source has taken the subscription over.
        """
        if not acks:
            return []
        placed: list[AckRequest] = []
        answers = self._place(txn, nonce, timeout_ms, acks)
        for ack, answer in zip(acks, answers, strict=True):
            if self._settle(txn, ack, answer, catches_up=catches_up):
                placed.append(ack)
                self._count_one(ack.start.padded(), ack.end.padded())
        return placed

    def _place(
        self, txn: TxnId, nonce: str, timeout_ms: int, acks: Sequence[AckRequest]
    ) -> list[AckAnswer]:
        intents = [ack_intent(ack.segment, ack.subscription) for ack in acks]
        store = self._store
        if store.merged.possible:
            require_own(txn, store.identity.coordinators)
            # Step 2, intent, and step 7, pending-ack, as one: the script places after it recorded.
            with steps.at_once(Step.INTENT, Step.PENDING_ACK):
                merged = store.merged.acknowledge(txn, nonce, timeout_ms, intents, acks)
            if merged is not None:
                answer, placed = merged
                require_open(txn, answer)
                return placed
        # Step 2, intent: so that whoever decides or completes it finds the cursors again.
        with steps.at(Step.INTENT):
            self._coordinator.intend(txn, nonce, timeout_ms, intents)
        # Step 7, pending-ack.
        with steps.at(Step.PENDING_ACK):
            return store.subscriptions.place_acks(txn, acks)

    def _settle(self, txn: TxnId, ack: AckRequest, answer: AckAnswer, *, catches_up: bool) -> bool:
        """Make one acknowledgement stand, where it may; False if it stands already."""
        missing: set[TxnId] = set()
        for _ in range(_COMPLETION_ROUNDS):
            if answer.code is Code.OK:
                return True
            # The rows were read, and nobody can read them again. Whether this transaction is alive
            # still, its header says: the intent was recorded there, and the decision comes.
            if answer.code is Code.DELETED:
                return False
            if answer.code is Code.CURSOR and (
                (catches_up and _has_passed(ack, answer)) or _acknowledged_before(ack, answer)
            ):
                return False
            if answer.code is Code.UNCLAIMED:
                # The task that reads this segment never ran (Spark did not need its rows).
                claim = self._store.subscriptions.claim_cursor(
                    ack.segment, ack.subscription, ack.query, ack.source_epoch, ack.start
                )
                if claim.code is not Code.DELETED:  # else the next answer says so, too
                    require_claimed(ack.subscription, ack.query, claim)
            elif answer.code is Code.PENDING:
                holders = _holders(answer)
                completed = self._coordinator.complete_on_behalf(holders, missing)
                if not completed and not (catches_up and self._end_earlier(holders, ack.query)):
                    raise AcknowledgementConflictError(
                        f"subscription {ack.subscription!r} of segment {ack.segment}: transaction "
                        f"{answer.holder} is open and acknowledges there, so {txn} may not. Two "
                        "queries use one subscription, or an earlier run is still alive"
                    )
            else:
                raise _refused(txn, ack, answer)
            answer = self._store.subscriptions.place_acks(txn, [ack])[0]
        raise _refused(txn, ack, answer)

    def _end_earlier(self, holders: Iterable[TxnId], query: str) -> bool:
        """Abort what an earlier start of a query left open as it caught up; tell whether it did.

        Such a transaction moves cursors and writes nothing. So the one that has come now does the
        same, and need not wait for its lease. Those of sinks are ended by their next attempts.
        """
        ended = False
        for header in self._store.transactions.read_many(sorted(holders)):
            if header is not None and header.query == query and not header.sink:
                with suppress(TransactionNotFoundError):
                    self._coordinator.abort(
                        header.txn, EndedBy.FENCE, cause="a newer start of the query caught up"
                    )
                ended = True
        return ended

    # -- single messages, and everything up to a message ---------------------------------------

    def claim(self, where: SubscriptionRef, start: Position) -> bool:
        """Claim a subscription for a client, at `start` if it has no cursor yet.

        Returns
        -------
        bool
            False if retention has deleted the segment, which then had nothing left for it.

        Raises
        ------
        AcknowledgementConflictError
            If it belongs to somebody else.
        FencedError
            If a consumer with a higher source epoch has claimed it.
        """
        answer = self._store.subscriptions.claim_cursor(
            where.segment, where.subscription, where.owner, where.source_epoch, start
        )
        if answer.code is Code.DELETED:
            return False
        require_claimed(where.subscription, where.owner, answer)
        return True

    def take_over(self, where: SubscriptionRef) -> SubscriptionState:
        """End what earlier consumers left open in a claimed subscription; return its state.

        Whoever has locked messages for an earlier consumer is aborted at once, as a newer
        attempt does it with an older one (INV-8). It could not go on anyway, and else its lease
        would have to be waited for. If it commits first, its acknowledgements stand.
        """
        missing: set[TxnId] = set()
        for _ in range(_COMPLETION_ROUNDS):
            state = self._read(where.segment, where.subscription)
            if not state.pending:
                break
            for holder in map(TxnId.parse, state.pending):
                try:
                    self._coordinator.abort(
                        holder, EndedBy.FENCE, cause="a newer consumer took the subscription over"
                    )
                except TransactionNotFoundError:
                    self._coordinator.complete_on_behalf([holder], missing)
        return state

    def acknowledge_individual(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        where: SubscriptionRef,
        intervals: Iterable[AckInterval],
    ) -> None:
        """Acknowledge single messages in a transaction: they are PENDING_ACK until it ends.

        Parameters
        ----------
        intervals : iterable of AckInterval
            For each message ``(previous, message]``; see :mod:`pulsar_txn_spark.store.ack_ranges`.

        Raises
        ------
        AcknowledgementConflictError
            If a message is acknowledged already, or in another transaction that is open.
        AcknowledgementsFullError
            If too many messages are acknowledged one by one behind one that is not.
        TransactionAbortedError, TransactionConflictError, FencedError, TransactionNotFoundError
            If the transaction is not OPEN under this nonce.
        ValueError
            If the intervals overlap.
        """
        wanted = in_order(intervals)
        if not wanted:
            return
        self._intend(txn, nonce, timeout_ms, where)
        with steps.at(Step.PENDING_ACK):
            for chunk in _chunks(wanted):
                self._ask(
                    txn, where, partial(self._store.subscriptions.ack_individual, txn, where, chunk)
                )
                self._count(chunk)

    def acknowledge_cumulative(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        where: SubscriptionRef,
        interval: AckInterval,
        *,
        nothing_left: bool = False,
    ) -> None:
        """Acknowledge in a transaction everything that is left of ``(start, end]``.

        `start` is where the caller's reading began, or what it acknowledged cumulatively before.
        Nothing before it may be unacknowledged. After an abort the caller has to read from the
        cursor again, and cannot acknowledge over what was given back. With `nothing_left` it is no
        error if all of it is acknowledged for good.

        Raises
        ------
        AcknowledgementConflictError
            If something up to `end` is acknowledged in another open transaction, if all of it is
            acknowledged already, or if something before `start` is not.
        """
        in_order([interval])
        self._intend(txn, nonce, timeout_ms, where)
        with steps.at(Step.PENDING_ACK):
            passing = frozenset({Code.OK, Code.DELETED} if nothing_left else {Code.OK})
            self._ask(
                txn,
                where,
                lambda: self._store.subscriptions.ack_cumulative(txn, where, interval),
                passing,
            )
            self._count_one(interval.start.padded(), interval.end.padded())

    def acknowledge_now(
        self,
        where: SubscriptionRef,
        intervals: Iterable[AckInterval],
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> list[AckInterval]:
        """Acknowledge single messages outside of transactions: by one of their own (INV-9).

        Returns
        -------
        list of AckInterval
            What an open transaction has locked: the acknowledgement of it was dropped (PIP-31).
            What was acknowledged already is not among it.

        Raises
        ------
        CommitStateUnknownError
            If the store did not answer: the next call ends that transaction before anything else.
        AcknowledgementsFullError, FencedError, StoreError
        """
        wanted = in_order(intervals)
        if not wanted:
            return []
        # What an earlier call has locked would be dropped here, and come again after its lease.
        self._end_left_open()
        nonce = secrets.token_hex(8)
        intents = [ack_intent(where.segment, where.subscription)]
        txn = self._coordinator.new_txn(nonce, timeout_ms=timeout_ms, intents=intents)
        dropped: list[AckInterval] = []
        has_ended = False
        try:
            try:
                with steps.at(Step.PENDING_ACK):
                    for chunk in _chunks(wanted):
                        dropped += self._place_normal(txn, where, chunk)
                        self._count(chunk)
            except PulsarTxnError:
                self._end(txn, nonce, "an acknowledgement was refused")
                has_ended = True
                raise
            outcome = Outcome()
            note_segments(outcome, self._store.seen, [where.segment])
            self._coordinator.commit(txn, nonce, outcome)
            has_ended = True
        finally:
            if not has_ended:
                self._left_open[txn] = nonce
        return dropped

    @property
    def left_open(self) -> list[TxnId]:
        """Transactions of :meth:`acknowledge_now` whose end nobody has heard."""
        return list(self._left_open)

    def _end_left_open(self) -> None:
        for txn, nonce in list(self._left_open.items()):
            with suppress(TransactionNotFoundError):  # ended, and collected since
                self._end(txn, nonce, "nobody has heard how its acknowledgement ended")
            self._left_open.pop(txn, None)

    def _end(self, txn: TxnId, nonce: str, cause: str) -> None:
        self._coordinator.abort(txn, EndedBy.OWNER, nonce=nonce, cause=cause)

    def replay(self, segment: str, subscription: str) -> SubscriptionState:
        """Return the state of every message of a subscription, as it is recovered after a crash.

        Transactions that are decided or expired are completed first, so that what they gave back
        can be delivered.

        Raises
        ------
        AcknowledgementConflictError
            If nobody has claimed the subscription.
        """
        missing: set[TxnId] = set()
        state = self._read(segment, subscription)
        for _ in range(_COMPLETION_ROUNDS):
            holders = [TxnId.parse(key) for key in state.pending]
            if not self._coordinator.complete_on_behalf(holders, missing):
                break
            state = self._read(segment, subscription)
        return state

    def _read(self, segment: str, subscription: str) -> SubscriptionState:
        state = self._store.subscriptions.read_acks(segment, subscription)
        if state is None:
            raise AcknowledgementConflictError(
                f"subscription {subscription!r} of segment {segment} is not there: claim it before"
            )
        return state

    def _intend(self, txn: TxnId, nonce: str, timeout_ms: int, where: SubscriptionRef) -> None:
        # Without its intent, nobody would find what the transaction has locked here (INV-6).
        with steps.at(Step.INTENT):
            intents = [ack_intent(where.segment, where.subscription)]
            self._coordinator.intend(txn, nonce, timeout_ms, intents)

    def _count_one(self, *parts: str) -> None:
        # A range of a segment is one record, and a step of its own.
        size = sum(map(len, parts))
        count_acknowledgements(self._store.counters, 1, size, _INTERVALS_PER_STEP)

    def _count(self, chunk: Sequence[AckInterval]) -> None:
        size = sum(len(i.start.padded()) + len(i.end.padded()) for i in chunk)
        count_acknowledgements(self._store.counters, len(chunk), size, _INTERVALS_PER_STEP)

    def _ask(
        self,
        txn: TxnId,
        where: SubscriptionRef,
        ask: Callable[[], AckAnswer],
        passing: frozenset[Code] = frozenset({Code.OK}),
    ) -> AckAnswer:
        """Ask until it is done, with every holder out of the way who may be moved."""
        missing: set[TxnId] = set()
        for _ in range(_COMPLETION_ROUNDS):
            answer = ask()
            while answer.code is Code.MORE:
                answer = ask()
            if answer.code in passing:
                return answer
            if answer.code is not Code.PENDING:
                break
            if not self._coordinator.complete_on_behalf(_holders(answer), missing):
                break
        raise _refused_messages(txn, where, answer)

    def _place_normal(
        self, txn: TxnId, where: SubscriptionRef, chunk: Sequence[AckInterval]
    ) -> list[AckInterval]:
        """Place what nobody has locked; return what open transactions have locked."""
        missing: set[TxnId] = set()
        ends: set[MessagePosition] = set()
        for _ in range(_COMPLETION_ROUNDS):
            answer = self._ask(
                txn,
                where,
                lambda: self._store.subscriptions.ack_individual(txn, where, chunk, normal=True),
            )
            ends = {end for _, end in answer.locked}
            if not self._coordinator.complete_on_behalf(
                {holder for holder, _ in answer.locked}, missing
            ):
                break
        return [interval for interval in chunk if interval.end in ends]


def _chunks(intervals: Sequence[AckInterval]) -> list[Sequence[AckInterval]]:
    step = _INTERVALS_PER_STEP
    return [intervals[at : at + step] for at in range(0, len(intervals), step)]


def require_claimed(subscription: str, query: str, answer: CursorAnswer) -> None:
    """Raise unless a subscription was claimed for a query.

    Raises
    ------
    AcknowledgementConflictError
        If it belongs to another query, or was reset.
    FencedError
        If a newer source of the same query has taken it over.
    DataLossError
        If retention has deleted the segment.
    """
    if answer.code is Code.DELETED:
        raise DataLossError(
            f"subscription {subscription!r} was to begin in a segment that retention has deleted "
            "meanwhile, with all of its rows. Nothing was skipped: raise the topic's retention "
            "(pulsar-txn topic retention), then start again with a new checkpoint"
        )
    if answer.code is Code.CHANGED:
        raise AcknowledgementConflictError(
            f"subscription {subscription!r} was reset, and stands at {answer.position} now: this "
            "is not where the checkpoint goes on, or the reset came while this query ran. Nothing "
            "was read. After a reset to 'here', start the query again; after any other, start one "
            "with a new checkpoint and startingOffsets=subscription"
        )
    if answer.code is Code.OWNED:
        then = "" if query == CLIENT_OWNER else ", then start with startingOffsets=subscription"
        raise AcknowledgementConflictError(
            f"subscription {subscription!r} belongs to {_party(answer.owner)}, this is "
            f"{_party(query)}: a subscription serves one query (the checkpoint's id), or clients. "
            "Use another subscription. If the other side is gone for good: "
            f"pulsar-txn subscription reset <topic> {subscription} --to here{then}"
        )
    if answer.code is Code.FENCED and query == CLIENT_OWNER:
        raise taken_over(subscription)
    if answer.code is Code.FENCED:
        raise FencedError(
            f"subscription {subscription!r} was taken over by a source that started later. It is "
            "used twice in one query (give each its own subscription), or a second driver runs "
            "on this checkpoint. This one stops; nothing is lost"
        )


def _party(owner: str) -> str:
    return "clients" if owner == CLIENT_OWNER else f"query {owner}"


def taken_over(what: object) -> FencedError:
    """Word that another consumer came after this one."""
    return FencedError(
        f"{what} was taken over by a consumer that subscribed later: one consumer at a time "
        "receives for a subscription, and the newest is it. This one gets nothing more, and what "
        "it had not acknowledged in a committed transaction goes to the newer one. Close it; if "
        "both are meant to run, give each its own subscription"
    )


def _holders(answer: AckAnswer) -> list[TxnId]:
    return [] if answer.holder is None else [answer.holder]


def _has_passed(ack: AckRequest, cursor: AckAnswer) -> bool:
    assert cursor.position is not None
    return cursor.position >= MessagePosition.whole(ack.end)


def _acknowledged_before(ack: AckRequest, cursor: AckAnswer) -> bool:
    # The query's own source has moved it. No sink of ours was known when Spark noted this batch as
    # done. Now it runs again, as the store lost what the sink had recorded.
    if cursor.txn and not cursor.sink and not cursor.batch:
        return _has_passed(ack, cursor)
    at_end = cursor.position == MessagePosition.whole(ack.end)
    return at_end and cursor.batch == ack.batch and cursor.sink != ack.sink


def _refused_messages(txn: TxnId, where: SubscriptionRef, answer: AckAnswer) -> Exception:
    """Word why messages were not acknowledged in a transaction."""
    if answer.code is Code.FENCED:
        return taken_over(where)
    if answer.code in (Code.OWNED, Code.UNCLAIMED):
        return _not_owned(where, answer)
    if answer.code is Code.FULL:
        return AcknowledgementsFullError(
            f"{where} holds {answer.ranges} acknowledged ranges: too many messages were "
            "acknowledged one by one behind messages that are not. Acknowledge the oldest ones, "
            "or end the transactions that lock them"
        )
    if answer.code is Code.CURSOR:
        return AcknowledgementConflictError(
            f"{where}: what follows {answer.gap} was not acknowledged (the cursor stands at "
            f"{answer.position}), so a cumulative acknowledgement would skip it. After an abort, "
            "read from the cursor again"
        )
    if answer.code not in (Code.PENDING, Code.DELETED, Code.MISFIT):
        return TransactionConflictError(
            f"{where} takes no acknowledgement of transaction {txn} ({answer.code.lower()}): the "
            "transaction is over"
        )
    if answer.code is Code.PENDING:
        what = f"is acknowledged in transaction {answer.holder}, which is open"
    elif answer.code is Code.DELETED:
        what = "is acknowledged already"
    else:
        what = "is acknowledged in part: its readers do not agree on what came before it"
    return AcknowledgementConflictError(
        f"{where}: message {answer.end} {what}, so {txn} may not acknowledge it. Abort {txn}"
    )


def _not_owned(where: SubscriptionRef, answer: AckAnswer) -> AcknowledgementConflictError:
    if answer.code is Code.UNCLAIMED:
        return AcknowledgementConflictError(f"{where} is not there: claim it before")
    owner = _party(answer.owner) if answer.owner else "nobody"
    return AcknowledgementConflictError(
        f"{where} belongs to {owner}, not to {_party(where.owner)}: it was reset or is used by a "
        "query. Subscribe again, or use another subscription"
    )


_FIRST_TASK = (
    ". Or it is the query's first task that reads, behind micro-batches of which Spark needed no "
    "row. Then reset the subscription to 'here', and start the query with a new checkpoint and "
    "startingOffsets=subscription"
)


def _refused(txn: TxnId, ack: AckRequest, answer: AckAnswer) -> Exception:
    where = f"subscription {ack.subscription!r} of segment {ack.segment}"
    if answer.code is Code.CURSOR:
        cursor = answer.position
        known = cursor is not None and cursor > MessagePosition.whole(ack.start)
        what = "was acknowledged already" if known else "leaves a gap behind the cursor"
        return AcknowledgementConflictError(
            f"{where}: the range ({ack.start}, {ack.end}] {what}, which stands at {cursor}. The "
            "checkpoint and the subscription do not fit (a restored checkpoint, or a subscription "
            f"that was reset): nothing was committed{'' if known else _FIRST_TASK}"
        )
    if answer.code in (Code.OWNED, Code.FENCED):
        try:
            require_claimed(ack.subscription, ack.query, answer)
        except TransactionConflictError as error:
            return error
        except FencedError as error:
            return error
    return TransactionConflictError(
        f"{where} takes no acknowledgement of transaction {txn} ({answer.code.lower()}): the "
        "transaction is over"
    )
