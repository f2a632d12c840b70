"""The state of each message of a subscription, as a table and as ranges (PIP-31).

An acknowledgement is never of a message alone, but of the interval ``(previous, message]``. There
`previous` is the last visible message before it, or where its reader started. What is not visible
(aborted entries) goes with the message behind it. So intervals of consecutive messages touch, and
the cursor can tell that nothing was left out (INV-9).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.position import MessagePosition


class AckState(StrEnum):
    """State of a message in a subscription."""

    PENDING = "PENDING"
    """Not acknowledged: delivered, or to be delivered."""
    PENDING_ACK = "PENDING_ACK"
    """Acknowledged in a transaction that is still pending: not to be delivered again."""
    DELETED = "DELETED"
    """Acknowledged for good."""


class AckEvent(StrEnum):
    """What happens to a message. *This* transaction is the one that has locked it, if any has."""

    ACK_IN_THIS = "acknowledged in this transaction"
    ACK_IN_OTHER = "acknowledged in another transaction"
    ACK_NORMAL = "acknowledged outside of transactions"
    NACK = "negatively acknowledged"
    COMMIT = "this transaction commits"
    ABORT = "this transaction aborts"


class AckResult(StrEnum):
    """What the one who acknowledges hears."""

    DONE = "done"
    CONFLICT = "conflict"
    DROPPED = "dropped"
    """Nothing happened, and that is no error."""


class AckMove(NamedTuple):
    """Where an event leads, and what is answered."""

    state: AckState
    result: AckResult


def _moves(state: AckState, **moves: tuple[AckState, AckResult]) -> _Moves:
    return {(state, AckEvent[name]): AckMove(*move) for name, move in moves.items()}


_Moves = dict[tuple[AckState, AckEvent], AckMove]
_P, _A, _D = AckState.PENDING, AckState.PENDING_ACK, AckState.DELETED

ACK_TRANSITIONS: Mapping[tuple[AckState, AckEvent], AckMove] = {
    **_moves(
        _P,
        ACK_IN_THIS=(_A, AckResult.DONE),
        ACK_IN_OTHER=(_A, AckResult.DONE),
        ACK_NORMAL=(_D, AckResult.DONE),
        NACK=(_P, AckResult.DROPPED),
        COMMIT=(_P, AckResult.DROPPED),
        ABORT=(_P, AckResult.DROPPED),
    ),
    **_moves(
        _A,
        # PIP-31 calls this a conflict too; but a lost reply is answered by asking again.
        ACK_IN_THIS=(_A, AckResult.DONE),
        ACK_IN_OTHER=(_A, AckResult.CONFLICT),
        ACK_NORMAL=(_A, AckResult.DROPPED),
        NACK=(_A, AckResult.DROPPED),
        COMMIT=(_D, AckResult.DONE),
        ABORT=(_P, AckResult.DONE),
    ),
    **_moves(
        _D,
        ACK_IN_THIS=(_D, AckResult.CONFLICT),
        ACK_IN_OTHER=(_D, AckResult.CONFLICT),
        ACK_NORMAL=(_D, AckResult.DROPPED),
        NACK=(_D, AckResult.DROPPED),
        COMMIT=(_D, AckResult.DROPPED),
        ABORT=(_D, AckResult.DROPPED),
    ),
}
"""The state machine of a message, whole: every event in every state. The scripts are tested
against it."""


class AckInterval(NamedTuple):
    """``(start, end]`` of a segment, in messages."""

    start: MessagePosition
    end: MessagePosition

    def __str__(self) -> str:
        return f"({self.start}, {self.end}]"


def in_order(intervals: Iterable[AckInterval]) -> list[AckInterval]:
    """Sort intervals, each once.

    Raises
    ------
    ValueError
        If one of them is empty, or two overlap.
    """
    ordered = sorted(set(intervals))
    for interval in ordered:
        if interval.end <= interval.start:
            raise ValueError(f"expected an interval (start, end] with start < end: {interval}")
    for left, right in pairwise(ordered):
        if right.start < left.end:
            raise ValueError(f"the intervals {left} and {right} of one acknowledgement overlap")
    return ordered


class AckedRange(NamedTuple):
    """A range that was acknowledged: for good, or in the transaction that has locked it."""

    interval: AckInterval
    holder: str
    """Key of a transaction, empty if the range is DELETED."""


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """What a subscription has acknowledged in a segment, read in one step.

    Parameters
    ----------
    cursor : MessagePosition
        Everything up to here is DELETED.
    cursor_version : int
        Rises with every reset of the subscription.
    ranges : tuple of HeldRange
        What is acknowledged behind the cursor: disjoint, ascending.
    """

    cursor: MessagePosition
    cursor_version: int
    ranges: tuple[AckedRange, ...] = ()
    _ends: tuple[MessagePosition, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the ranges."""
        object.__setattr__(self, "_ends", tuple(acked.interval.end for acked in self.ranges))

    def holder_of(self, message: MessagePosition) -> str | None:
        """Return who holds a message; None if nobody does, empty if it is DELETED."""
        if message <= self.cursor:
            return ""
        at = bisect_left(self._ends, message)
        if at < len(self.ranges) and self.ranges[at].interval.start < message:
            return self.ranges[at].holder
        return None

    def state_of(self, message: MessagePosition) -> AckState:
        """Return the state of a message."""
        holder = self.holder_of(message)
        if holder is None:
            return AckState.PENDING
        return AckState.PENDING_ACK if holder else AckState.DELETED

    def deliverable(self, message: MessagePosition) -> bool:
        """Tell whether a message may be delivered (again)."""
        return self.state_of(message) is AckState.PENDING

    def has_deleted(self, interval: AckInterval) -> bool:
        """Tell whether all of an interval is acknowledged for good."""
        end = max(interval.start, self.cursor)
        for deleted in self.deleted:
            if deleted.start > end:
                break
            end = max(end, deleted.end)
        return end >= interval.end

    @property
    def deleted(self) -> tuple[AckInterval, ...]:
        """What is acknowledged for good behind the cursor."""
        return tuple(acked.interval for acked in self.ranges if not acked.holder)

    @property
    def pending(self) -> dict[str, list[AckInterval]]:
        """What each transaction (its key) holds."""
        by_transaction: dict[str, list[AckInterval]] = {}
        for acked in self.ranges:
            if acked.holder:
                by_transaction.setdefault(acked.holder, []).append(acked.interval)
        return by_transaction
