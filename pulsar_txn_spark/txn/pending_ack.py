"""Pending acknowledgements: what a transaction consumed, and the plans that say so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pulsar_txn_spark import steps
from pulsar_txn_spark.errors import (
    AcknowledgementConflictError,
    FencedError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.metadata_pb2 import Plan
from pulsar_txn_spark.store.protocol import AckRequest, Answer, Code, TxnId
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, as_position, as_record
from pulsar_txn_spark.txn.participants import ack_intent

_HELP_ROUNDS = 8


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
    incarnation : int
        Rises with every start of any source; of several on one subscription the highest is alive.
    subscription : str
        Empty if the source acknowledges nothing.
    run_id : str
        Names the attempt at the micro-batch in which a task registered the plan; empty if unknown.
    ranges : tuple of PlannedRange
    """

    source: str
    incarnation: int
    subscription: str
    run_id: str
    ranges: tuple[PlannedRange, ...]

    def serialize(self) -> bytes:
        """Return the plan as a record."""
        plan = Plan(
            source=self.source,
            subscription=self.subscription,
            run_id=self.run_id,
            incarnation=self.incarnation,
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
        return cls(plan.source, plan.incarnation, plan.subscription, plan.run_id, ranges)

    @property
    def content(self) -> str:
        """What is read and for whom, whoever reads it: equal in every replay of a batch."""
        ranges = sorted(f"{r.segment} {r.start} {r.end}" for r in self.ranges)
        return "\n".join([self.subscription, *ranges])


def plans_of_attempt(plans: Iterable[ReadPlan], run_id: str) -> list[ReadPlan]:
    """Choose, of all plans that were registered for a batch, those that this attempt has read.

    Plans of other runs (a driver that died, a second one on the same checkpoint) do not count where
    the run can be told. Where it cannot, all count: a replay reads the same ranges again, so that
    they do not differ.

    Raises
    ------
    FencedError
        If a segment was read by two sources, or over different ranges, for one subscription.
    """
    everything = list(plans)
    own = [plan for plan in everything if run_id and plan.run_id == run_id]
    source_counts = bool(own)
    own = own or everything
    seen: dict[tuple[str, str], tuple[PlannedRange, str]] = {}
    for plan in own:
        source = plan.source if source_counts else ""
        for item in plan.ranges if plan.subscription else ():
            other = seen.setdefault((plan.subscription, item.segment), (item, source))
            if other != (item, source):
                raise FencedError(
                    f"subscription {plan.subscription!r} was read twice in one micro-batch: it is "
                    "used twice in one query (a self-join or a union: give each side its own "
                    "subscription), or two drivers run on one checkpoint. Nothing was committed"
                )
    return own


def acknowledgements(
    plans: Iterable[ReadPlan], *, query: str, sink: str, batch: str
) -> list[AckRequest]:
    """Return what plans acknowledge: each segment of a subscription once, by its newest source."""
    newest: dict[tuple[str, str], AckRequest] = {}
    for plan in sorted(plans, key=lambda p: p.incarnation):
        for item in plan.ranges if plan.subscription else ():
            newest[plan.subscription, item.segment] = AckRequest(
                segment=item.segment,
                subscription=plan.subscription,
                query=query,
                source_incarnation=plan.incarnation,
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

    def acknowledge(
        self, txn: TxnId, nonce: str, timeout_ms: int, acks: Sequence[AckRequest]
    ) -> list[AckRequest]:
        """Place pending acknowledgements; the cursors move if and when `txn` commits (INV-9).

        Returns
        -------
        list of AckRequest
            Those placed. Not among them is what another transaction of the same micro-batch (to
            another sink) has acknowledged already.

        Raises
        ------
        AcknowledgementConflictError
            If the range does not start at the cursor, or another transaction holds the cursor.
        FencedError
            If a newer source has taken the subscription over.
        """
        if not acks:
            return []
        # Step 1: intents, so that whoever decides or helps finds the cursors again.
        with steps.at(Step.INTENT):
            intents = [ack_intent(ack.segment, ack.subscription) for ack in acks]
            self._coordinator.intend(txn, nonce, timeout_ms, intents)
        # Step 2: the pending acks.
        placed: list[AckRequest] = []
        with steps.at(Step.PENDING_ACK):
            for ack, answer in zip(acks, self._store.place_acks(txn, acks), strict=True):
                if self._settle(txn, ack, answer):
                    placed.append(ack)
        return placed

    def _settle(self, txn: TxnId, ack: AckRequest, answer: Answer) -> bool:
        """Make one acknowledgement stand, where it may; False if it stands already."""
        missing: set[TxnId] = set()
        for _ in range(_HELP_ROUNDS):
            if answer.code is Code.OK:
                return True
            if answer.code is Code.CURSOR and _acknowledged_by_sibling(ack, answer.values):
                return False
            if answer.code is Code.UNCLAIMED:
                # The task that reads this segment never ran (Spark did not need its rows).
                claim = self._store.claim_cursor(
                    ack.segment, ack.subscription, ack.query, ack.source_incarnation, ack.start
                )
                require_claimed(ack.subscription, ack.query, claim)
            elif answer.code is Code.PENDING:
                holder = TxnId.parse(answer.values[0])
                if not self._coordinator.help([holder], missing):
                    raise AcknowledgementConflictError(
                        f"subscription {ack.subscription!r} of segment {ack.segment}: transaction "
                        f"{holder} is open and acknowledges there, so {txn} may not. Two queries "
                        "use one subscription, or an earlier run is still alive"
                    )
            else:
                raise _refused(txn, ack, answer)
            answer = self._store.place_acks(txn, [ack])[0]
        raise _refused(txn, ack, answer)


def require_claimed(subscription: str, query: str, answer: Answer) -> None:
    """Raise unless a subscription was claimed for a query.

    Raises
    ------
    AcknowledgementConflictError
        If it belongs to another query.
    FencedError
        If a newer source of the same query has taken it over.
    """
    if answer.code is Code.OWNED:
        raise AcknowledgementConflictError(
            f"subscription {subscription!r} belongs to query {answer.values[0]}, this is query "
            f"{query}: a subscription serves one query (the checkpoint's id). Use another "
            "subscription, or reset this one if the other query is gone for good"
        )
    if answer.code is Code.FENCED:
        raise FencedError(
            f"subscription {subscription!r} was taken over by a source that started later: it is "
            "used twice in one query (give each its own subscription), or a second driver runs "
            "on this checkpoint. This one stops; nothing is lost"
        )


def _acknowledged_by_sibling(ack: AckRequest, cursor: tuple[str, ...]) -> bool:
    position, sink, batch, _ = cursor
    return position == ack.end.padded() and batch == ack.batch and sink != ack.sink


def _refused(txn: TxnId, ack: AckRequest, answer: Answer) -> Exception:
    where = f"subscription {ack.subscription!r} of segment {ack.segment}"
    if answer.code is Code.CURSOR:
        cursor = Position.from_padded(answer.values[0])
        what = (
            "was acknowledged already" if cursor > ack.start else "leaves a gap behind the cursor"
        )
        return AcknowledgementConflictError(
            f"{where}: the range ({ack.start}, {ack.end}] {what}, which stands at {cursor}. The "
            "checkpoint and the subscription do not fit (a restored checkpoint, or a subscription "
            "that was reset): nothing was committed"
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
