"""The transaction buffer of segments: who may append, and how far a reader may read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pulsar_txn_spark import steps
from pulsar_txn_spark.errors import (
    FencedError,
    SegmentSealedError,
    StoreCorruptError,
    TopologyConflictError,
    TransactionConflictError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.metadata_pb2 import OpRecord
from pulsar_txn_spark.store.records import (
    Code,
    Gate,
    OpenAnswer,
    PinAnswer,
    TopologyVersion,
    TxnAnswer,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, require_open
from pulsar_txn_spark.txn.ids import require_own
from pulsar_txn_spark.txn.participants import write_intent

_WRITER_PREFIX = "ptxn"
_WRITER_PARTS = 5
_COMPLETION_ROUNDS = (
    16  # each round gets at least one transaction out of the way; then reading goes on
)


def writer_name(txn: TxnId | None, task_attempt: int, random: str) -> str:
    """Return the name of a writer: one task attempt's identity within a transaction.

    It is the producer name of every entry that the writer appends. So a reader can tell from
    the log alone which transaction an entry belongs to. Of a transaction that has no id yet, it is
    what the store fills in (:meth:`MergedSteps.open`).
    """
    number = f"{txn.tc}-{txn.counter}" if txn is not None else "#"
    return f"{_WRITER_PREFIX}-{number}-{task_attempt}-{random}"


def txn_of_writer(writer: str) -> TxnId | None:
    """Return the transaction of a writer, None for a producer outside of transactions."""
    parts = writer.split("-")
    if len(parts) != _WRITER_PARTS or parts[0] != _WRITER_PREFIX:
        return None
    try:
        return TxnId(int(parts[1]), int(parts[2]))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which entries of a segment a reader skips. A value: executors need no store to apply it.

    Parameters
    ----------
    dropped : mapping of str to Position
        Writer → the last position up to which its entries count (EARLIEST = none).
    floor : mapping of int to int
        TC → transactions with a lower counter are never read.
    """

    dropped: Mapping[str, Position] = field(default_factory=dict)
    floor: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, writer: str, position: Position) -> bool:
        """Tell whether the entry that `writer` put at `position` may be read."""
        kept_to = self.dropped.get(writer)
        if kept_to is not None and position > kept_to:
            return False
        if not self.floor:
            return True
        txn = txn_of_writer(writer)
        return txn is None or txn.counter >= self.floor.get(txn.tc, 0)


@dataclass(frozen=True, slots=True)
class ReadableRange:
    """How far a segment may be read now, and what to skip on the way.

    ``pinned`` says whether there is a pin at all, and ``high`` is the segment's high-position.
    """

    end: Position
    visibility: Visibility
    blocked_by: tuple[TxnId, ...] = ()
    pinned: bool = False
    high: Position = EARLIEST


class MetadataTransactionBuffer:
    """The transaction buffers of all segments, on the metadata store.

    Parameters
    ----------
    coordinator : TransactionCoordinator
        Materializes decisions for readers that are blocked.
    """

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator
        self._segments = coordinator.store.segments

    def admit(
        self, txn: TxnId, nonce: str, timeout_ms: int, writer: str, segments: Sequence[str]
    ) -> None:
        """Let a writer append to segments: intents first, then pins (INV-2).

        Raises
        ------
        TransactionAbortedError, TransactionConflictError, FencedError, TransactionNotFoundError
            If the transaction is not OPEN under this nonce, or the segment is closed to it.
        SegmentSealedError
            If a segment was deleted, which is to say sealed long ago: its children take the rows.
        """
        answers = self._intend_and_pin(txn, nonce, timeout_ms, writer, segments)
        _require_admitted(txn, writer, segments, answers)

    def open(
        self,
        nonce: str,
        timeout_ms: int,
        owner: str,
        name: Callable[[TxnId | None], str],
        segments: Sequence[str],
        opened: Callable[[TxnId], None],
        expected: TopologyVersion | None = None,
    ) -> str:
        """Open a transaction, and let its first writer append: one step where one server is all.

        Parameters
        ----------
        nonce, timeout_ms, owner
            As for :meth:`TransactionCoordinator.new_txn`. Again, with the nonce and the name that
            it was opened with, is the same.
        name : callable
            Returns the writer's name, by :func:`writer_name`.
        segments : sequence of str
        opened : callable
            Gets the transaction's id as soon as there is one, even if the writer is refused.
        expected : TopologyVersion, optional
            Of a topic that was read some time ago: nothing is done by one that has changed since.
            It is checked in the same step.

        Returns
        -------
        str
            The writer's name.

        Raises
        ------
        TransactionAbortedError, TransactionConflictError, FencedError, SegmentSealedError
            As for :meth:`admit`.
        TopologyConflictError
            If the topology may not be the expected one: read it, and open by that.
        """
        store = self._coordinator.store
        answer: OpenAnswer | Literal[Code.CONFLICT] | None = None
        if store.merged.possible:
            unnumbered = name(None)
            intents = [write_intent(segment, unnumbered) for segment in segments]
            # Step 1, begin, step 2, intent, and step 3, pin, as one: in this order in the script.
            with steps.at_once(Step.BEGIN, Step.INTENT, Step.PIN):
                answer = store.merged.open(
                    self._coordinator.shard(nonce),
                    nonce,
                    owner,
                    timeout_ms,
                    intents,
                    unnumbered,
                    segments,
                    expected,
                )
        if answer is Code.CONFLICT or (answer is None and expected is not None):
            raise TopologyConflictError(f"{expected} is not certainly what is there now")
        if answer is None:
            with steps.at(Step.BEGIN):
                txn = self._coordinator.new_txn(nonce, timeout_ms=timeout_ms, owner=owner)
            opened(txn)
            self.admit(txn, nonce, timeout_ms, name(txn), segments)
            return name(txn)
        opened(answer.txn)
        if answer.state is not TxnState.OPEN:
            require_open(answer.txn, TxnAnswer(Code.DECIDED, answer.state))
        _require_admitted(answer.txn, name(answer.txn), segments, answer.pins)
        return name(answer.txn)

    def _intend_and_pin(
        self, txn: TxnId, nonce: str, timeout_ms: int, writer: str, segments: Sequence[str]
    ) -> list[PinAnswer]:
        intents = [write_intent(segment, writer) for segment in segments]
        store = self._coordinator.store
        if store.merged.possible:
            require_own(txn, store.identity.coordinators)
            # Step 2, intent, and step 3, pin, as one: the script pins after it has recorded.
            with steps.at_once(Step.INTENT, Step.PIN):
                merged = store.merged.admit(txn, nonce, timeout_ms, intents, writer, segments)
            if merged is not None:
                answer, pins = merged
                require_open(txn, answer)
                return pins
        # Step 2, intent: durable before the segments are touched.
        with steps.at(Step.INTENT):
            self._coordinator.intend(txn, nonce, timeout_ms, intents)
        # Step 3, pin: from here on no reader passes what is about to be appended.
        with steps.at(Step.PIN):
            return self._segments.pin(txn, writer, segments)

    def append_buffer_to_txn(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        writer: str,
        segment: str,
        append: Callable[[], Position],
    ) -> Position:
        """Append in a transaction: what says so stands before the entry does (INV-2).

        In this order: intent, pin, operation record, entry. The record names segment and writer;
        where the entries lie is known behind the pin's bound only once they are acknowledged.

        Parameters
        ----------
        txn, nonce, timeout_ms, writer
            As for :meth:`admit`, whose errors this raises as well: a write that comes after the
            decision is a TransactionConflictError.
        segment : str
            Where to append.
        append : callable
            Appends under the writer's name, and returns the acknowledged position.
        """
        self.admit(txn, nonce, timeout_ms, writer, [segment])
        record = OpRecord(kind=OpRecord.WRITE, segment=segment, writer=writer)
        with steps.at(Step.OP_RECORD):
            ops = {f"{writer}/{segment}": record.SerializeToString(deterministic=True)}
            self._coordinator.append_ops(txn, nonce, ops)
        return append()

    def get_max_read_position(
        self, segment: str, last_confirmed: Callable[[str], Position]
    ) -> Position:
        """Return how far a segment may be read: no undecided entry lies at or before it."""
        return self.readable([segment], last_confirmed, [EARLIEST], ends_only=True)[0].end

    def is_txn_aborted(self, segment: str, writer: str, position: Position) -> bool:
        """Tell whether the entry of a writer at a position counts as aborted.

        Holds for what lies at or before the maxReadPosition that was read before. It is asked by
        writer, not by TxnId: a task that lost in a committed transaction is skipped, too.
        """
        gate = self._segments.gates([segment])[0]
        return not Visibility(gate.dropped, gate.floor)(writer, position)

    def recover(
        self, segments: Sequence[str], last_confirmed: Callable[[str], Position]
    ) -> list[ReadableRange]:
        """Tell what the buffers of segments hold, from nothing: one gate each, and no header.

        There is no log to replay; what has finished leaves nothing to read here.
        """
        confirmed = [last_confirmed(segment) for segment in segments]
        gates = self._segments.gates(segments)
        return [_readable(g, lac, EARLIEST) for g, lac in zip(gates, confirmed, strict=True)]

    def readable(
        self,
        segments: Sequence[str],
        last_confirmed: Callable[[str], Position],
        starts: Sequence[Position],
        *,
        ends_only: bool = False,
        by_reports: bool = False,
        at_once: bool = False,
    ) -> list[ReadableRange]:
        """Tell how far each segment may be read from `starts` on, completing what blocks it.

        Parameters
        ----------
        segments : sequence of str
            Segment ids.
        last_confirmed : callable
            Returns a LAC of a segment: what the log says, or has said at an earlier moment.
        starts : sequence of Position
            What was read before: an end never falls below it.
        ends_only : bool, optional
            Whether nothing is going to be read by this answer, so that it needs no names.
        by_reports : bool, optional
            Whether a segment's high-position counts as a LAC, too, and its pins as blocking
            wherever they are: nobody knows of entries behind them.
        at_once : bool, optional
            Whether all segments are wanted as they are at one moment: of each transaction all rows,
            or none. LACs are of different moments, so that high-positions count here as well. What
            was committed behind an open transaction's pin is hidden in that segment all the same.
            There may be such rows where a range is blocked, and ends before the high-position.
        """
        missing: set[TxnId] = set()
        to_high = by_reports or at_once
        for _ in range(_COMPLETION_ROUNDS):
            # INV-4: LAC first, then pins, dropped and floor together; neither is ever cached.
            confirmed = [last_confirmed(segment) for segment in segments]
            lows = confirmed if ends_only else starts
            ranges = list(zip(lows, confirmed, strict=True))
            gates = self._segments.gates(
                segments,
                ranges,
                to_lowest_pin=True,
                to_high=to_high and not ends_only,
                at_once=at_once,
                passing=True,
            )
            if to_high:
                confirmed = [max(lac, g.high) for lac, g in zip(confirmed, gates, strict=True)]
            blocked = [
                pin
                for gate, lac in zip(gates, confirmed, strict=True)
                for pin in gate.pins
                if to_high or pin.bound < lac
            ]
            if not blocked or not self._coordinator.complete_pins(blocked, missing):
                break
        return [
            _readable(gate, lac, start, by_reports=by_reports)
            for gate, lac, start in zip(gates, confirmed, starts, strict=True)
        ]


def _require_admitted(
    txn: TxnId, writer: str, segments: Sequence[str], answers: Sequence[PinAnswer]
) -> None:
    """Raise unless a writer has a pin in each segment; see :meth:`admit`."""
    for segment, answer in zip(segments, answers, strict=True):
        if answer.code in (Code.OK, Code.PINNED):
            continue
        if answer.code is Code.DELETED:
            raise SegmentSealedError(
                f"segment {segment} was sealed, read to its end and deleted: its children take "
                "its rows"
            )
        if answer.code is Code.DROPPED:
            raise FencedError(f"writer {writer} was dropped from segment {segment}")
        raise TransactionConflictError(
            f"segment {segment} takes no more writes of transaction {txn} "
            f"({answer.code.lower()} there): the transaction is over"
        )


def _readable(
    gate: Gate, lac: Position, start: Position, *, by_reports: bool = False
) -> ReadableRange:
    end = lac
    if gate.pins:
        lowest = gate.pins[0].bound
        if any(pin.bound < lowest for pin in gate.pins):
            raise StoreCorruptError(f"pins are not in order: {gate.pins}")
        end = min(end, lowest)
    blocked = tuple(sorted({pin.txn for pin in gate.pins if by_reports or pin.bound < lac}))
    visibility, pinned = Visibility(gate.dropped, gate.floor), bool(gate.pins)
    return ReadableRange(max(start, end), visibility, blocked, pinned, gate.high)
