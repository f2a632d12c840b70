"""Pins, dropped writers and floors of segments on Redis."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pulsar_txn_spark import metrics
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.records import (
    Answer,
    Code,
    FloorAnswer,
    Gate,
    Pin,
    PinAnswer,
    RetainedPositions,
    SegmentAnswer,
    SegmentDecision,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.store.redis.scripts import (
    Arg,
    Call,
    Scripts,
    code_of,
    pairs,
    text,
)

_LOG = logging.getLogger(__name__)
_LOOKS = 100  # at gates that other transactions change meanwhile, where no script reads them all
_PINS_READ = 64  # lowest pins that a gate returns: whoever completes these reads again
_MARKS_REMOVED = 512  # the same, of a segment's resolved marks
_DROPPED_IN_A_GROUP = 64  # a gate reads these and about as many more: some 10 kB
_DROPPED_AT_ONCE = 1_024  # read in one step: a step must not block the server for long
_OF_A_SEGMENT = (
    "pins",
    "pin-order",
    "dropped",
    "resolved",
    "closed",
    "floor",
    "floor-pair",
    "dropped-groups",
    "dropped-floors",
    "dropped-from",
    "state",
    "events",
    "broker-subscriptions",
)
"""Keys of a segment's tag that do not have a subscription's name, without those of its log."""


class RedisSegmentStore:
    """Pins, dropped writers and floors of segments: the tag ``{seg:<id>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def prepare(self, segments: Sequence[str]) -> None:
        """Initialize the tags of segments, all of them in four round trips."""
        tags = [f"seg:{segment}" for segment in segments]

        def marked(state: str) -> list[Call]:
            return [Call("tag_state", "meta", ["tags"], [tag, state]) for tag in tags]

        before = [text(reply[2]) for reply in self._scripts.run_all(marked("creating"))]
        # One that was initialized and is gone is lost: whoever uses it says so.
        tags = [tag for tag, state in zip(tags, before, strict=True) if state != "born"]
        creations = [Call("tag_create", tag, [], []) for tag in tags]
        self._scripts.run_all(creations)
        self._scripts.run_all(marked("born"))
        # Says so in the tag itself: the first to use it need not make sure.
        for call in creations:
            call.registered = True
        self._scripts.run_all(creations)

    def pin(self, txn: TxnId, writer: str, segments: Sequence[str]) -> list[PinAnswer]:
        """Pin a writer in each segment (``seg_pin.lua``)."""
        return [as_pin_answer(r) for r in self._scripts.run_all(pin_calls(txn, writer, segments))]

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
        """Read the gate of each segment. Read the LAC before."""
        names = ("pins", "pin-order", "dropped", "floor", "state")
        keys = [*names, "dropped-groups", "dropped-floors"]
        calls = []
        for number, segment in enumerate(segments):
            bounds = [at.padded() for at in ranges[number]] if ranges is not None else ["", ""]
            tag = f"seg:{segment}"
            pins = 0 if at_once else _PINS_READ  # 0 is all: each may hide rows of a transaction
            args: list[Arg] = [pins, *bounds, f"{{{tag}}}:dropped:"]
            args += [int(to_lowest_pin), int(to_high)]
            if passing and bounds[1] > EARLIEST.padded():  # an empty log has nothing to pass
                args.append(bounds[1])
            calls.append(Call("seg_gate", tag, keys, args))
        with self._scripts.timed(metrics.WRITES_BY_SEGMENT):
            if at_once and len(calls) > 1:
                replies = self._scripts.merged("seg_gates", calls) or self._unchanged(calls)
            else:
                replies = self._scripts.run_all(calls)
        return [_as_gate(reply) for reply in replies]

    def _unchanged(self, calls: Sequence[Call]) -> list[list[Any]]:
        """Run calls until two runs, one behind the other, have the same answers.

        So there was a moment in between at which all of them were true. A segment's high-position
        and its dropped writers only grow: what has changed does not come back.
        """
        before = self._scripts.run_all(calls)
        for _ in range(_LOOKS):
            after = self._scripts.run_all(calls)
            if [reply[1:] for reply in after] == [reply[1:] for reply in before]:
                return after
            before = after
        _LOG.warning(
            "%d segments have changed in each of %d looks, so that no moment shows them all. This "
            "read may contain a part of a transaction that was committed meanwhile",
            len(calls),
            _LOOKS,
        )
        return before

    def materialize(
        self, txn: TxnId, state: TxnState, decisions: Sequence[SegmentDecision]
    ) -> list[Answer]:
        """Materialize a decision, in one step for each segment (``seg_materialize.lua``)."""
        calls = materialize_calls(txn, state, decisions)
        return [Answer(code_of(reply)) for reply in self._scripts.run_all(calls)]

    def close(self, segment: str, tc: int, below: int) -> SegmentAnswer:
        """Close a segment for transactions of a TC below a counter (``seg_close.lua``)."""
        tag = f"seg:{segment}"
        args: list[Arg] = [tc, below, f"{{{tag}}}:pending-acks:", _MARKS_REMOVED]
        keys = ["pins", "closed", "resolved", "subscriptions", f"resolved-order:{tc}"]
        return _as_segment_answer(self._scripts.run(Call("seg_close", tag, keys, args)))

    def raise_floor(
        self, segment: str, tc: int, below: int, confirmed: Position, deleted: Position
    ) -> FloorAnswer:
        """Let dropped writers go that nothing can be left of (``seg_floor.lua``)."""
        tag = f"seg:{segment}"
        names = ("closed", "floor", "floor-pair", "dropped", "state")
        keys = [*names, "dropped-groups", "dropped-floors", "dropped-from"]
        cursor, removed = "0", 0
        while True:
            args: list[Arg] = [tc, below, confirmed.padded(), deleted.padded()]
            args += [f"{{{tag}}}:dropped:", _DROPPED_IN_A_GROUP, cursor, _DROPPED_AT_ONCE]
            reply = self._scripts.run(Call("seg_floor", tag, keys, args))
            if code_of(reply) is not Code.OK:
                return FloorAnswer(Code.OK if removed else code_of(reply), removed=removed)
            floor, more, cursor = map(text, reply[2:])
            removed += int(more)
            if cursor == "0":
                return FloorAnswer(Code.OK, int(floor) if floor else None, removed)

    def is_materialized(self, txn: TxnId, segments: Sequence[str]) -> list[bool]:
        """Tell for each segment whether it has carried a transaction's decision out."""
        return [code_of(reply) is not Code.PENDING for reply in self._marks(txn, segments)]

    def marks(self, txn: TxnId, segments: Sequence[str]) -> list[TxnState | None]:
        """Return for each segment the decision of a transaction that its mark names."""
        return [
            TxnState(text(reply[2])) if code_of(reply) is Code.RESOLVED else None
            for reply in self._marks(txn, segments)
        ]

    def _marks(self, txn: TxnId, segments: Sequence[str]) -> list[list[Any]]:
        args: list[Arg] = [txn.key, txn.tc, txn.counter]
        calls = [
            Call("seg_is_materialized", f"seg:{segment}", ["closed", "resolved"], args)
            for segment in segments
        ]
        return self._scripts.run_all(calls)

    def raise_high(self, segment: str, position: Position) -> None:
        """Note an acknowledged position of a write outside of transactions."""
        self._scripts.run(
            Call("seg_raise", f"seg:{segment}", ["state", "events"], [position.padded()])
        )

    def retained(self, segments: Sequence[str]) -> list[RetainedPositions]:
        """Read of each segment who still needs what of it."""
        calls = [
            Call(
                "seg_retained", f"seg:{segment}", ["subscriptions"], [f"{{seg:{segment}}}:cursor:"]
            )
            for segment in segments
        ]
        return [_as_retained(reply) for reply in self._scripts.run_all(calls)]

    def mark_trimmed(self, segment: str, position: Position) -> Answer:
        """Note that the log may let go what lies up to a position (``seg_trim.lua``)."""
        tag = f"seg:{segment}"
        args: list[Arg] = [position.padded(), f"{{{tag}}}:cursor:"]
        return self._scripts.answer(Call("seg_trim", tag, ["subscriptions", "state"], args))

    def retire(self, segment: str, end: Position, handed_over: Sequence[str]) -> SegmentAnswer:
        """Let nothing be registered in a segment any more (``seg_retire.lua``)."""
        tag = f"seg:{segment}"
        args: list[Arg] = [end.padded(), f"{{{tag}}}:cursor:", f"{{{tag}}}:pending-acks:"]
        keys = ["pins", "subscriptions", "state"]
        call = Call("seg_retire", tag, keys, [*args, *handed_over])
        return _as_segment_answer(self._scripts.run(call))

    def fence(self, segments: Sequence[str]) -> set[TxnId]:
        """Let nothing be registered in segments whose topic goes; return who has pins there."""
        calls = [Call("seg_fence", f"seg:{segment}", ["pins", "state"], []) for segment in segments]
        return {
            TxnId.parse(text(txn)) for reply in self._scripts.run_all(calls) for txn in reply[2:]
        }

    def purge(self, segment: str) -> Answer:
        """Remove what is left of a retired segment whose log is gone (``seg_purge.lua``)."""
        tag = f"seg:{segment}"
        names = ("cursor", "pending-acks", "ack-ranges", "pending-ranges")
        orders = [f"resolved-order:{tc}" for tc in range(self._scripts.identity.coordinators)]
        keys = ["subscriptions", *_OF_A_SEGMENT, *orders]
        args: list[Arg] = [f"{{{tag}}}:{name}:" for name in names]
        args += [f"{{{tag}}}:dropped-groups", f"{{{tag}}}:dropped:"]
        of_brokers = ("broker-subscriptions", "broker-acks:", "broker-acks-owner:")
        args += [f"{{{tag}}}:{name}" for name in of_brokers]
        return self._scripts.answer(Call("seg_purge", tag, keys, args))


def pin_calls(txn: TxnId, writer: str, segments: Sequence[str]) -> list[Call]:
    """Return the calls that pin a writer."""
    keys = ["pins", "pin-order", "dropped", "closed", "resolved", "state"]
    args: list[Arg] = [writer, txn.key, txn.tc, txn.counter, EARLIEST.padded()]
    return [Call("seg_pin", f"seg:{segment}", keys, args, Step.PIN) for segment in segments]


def materialize_calls(
    txn: TxnId, state: TxnState, decisions: Sequence[SegmentDecision]
) -> list[Call]:
    """Return the calls that materialize a decision."""
    keys = ["pins", "pin-order", "dropped", "closed", "resolved", "state", "events"]
    keys += [f"resolved-order:{txn.tc}", "dropped-from"]
    calls = []
    for decision in decisions:
        tag = f"seg:{decision.segment}"
        args: list[Arg] = [txn.key, txn.tc, txn.counter, state]
        args += [decision.high.padded() if decision.high else "", len(decision.fates)]
        for fate in decision.fates:
            args += [fate.writer, "WON" if fate.kept_to is None else fate.kept_to.padded()]
        args.append(len(decision.subscriptions))
        for name in decision.subscriptions:
            args += [
                f"{{{tag}}}:cursor:{name}",
                f"{{{tag}}}:pending-acks:{name}",
                f"{{{tag}}}:ack-ranges:{name}",
                f"{{{tag}}}:pending-ranges:{name}:{txn.key}",
            ]
        calls.append(Call("seg_materialize", tag, keys, args, Step.MATERIALIZE))
    return calls


def as_pin_answer(reply: list[Any]) -> PinAnswer:
    """Read the reply to a pin."""
    code = code_of(reply)
    if code in (Code.OK, Code.PINNED):
        return PinAnswer(code, bound=Position.from_padded(text(reply[2])))
    resolved = code is Code.RESOLVED
    return PinAnswer(code, decision=TxnState(text(reply[2])) if resolved else None)


def _as_segment_answer(reply: list[Any]) -> SegmentAnswer:
    code = code_of(reply)
    return SegmentAnswer(
        code,
        TxnId.parse(text(reply[2])) if code is Code.PENDING else None,
        tuple(map(text, reply[2])) if code is Code.ABSENT else (),
    )


def _split_bound(value: bytes) -> tuple[Position, str]:
    bound, _, rest = text(value).partition("|")
    return Position.from_padded(bound), rest


def _as_gate(reply: list[Any]) -> Gate:
    if text(reply[1]) == Code.PLAIN:
        return Gate(high=_as_high(reply[2]))
    flat = [text(value) for value in reply[2]]
    pins = tuple(
        Pin(Position.from_padded(flat[i]), flat[i + 1], TxnId.parse(flat[i + 2]))
        for i in range(0, len(flat), 3)
    )
    dropped = {writer: _split_bound(value)[0] for writer, value in pairs(reply[3])}
    floor = {int(tc): int(counter) for tc, counter in pairs(reply[4])}
    return Gate(
        pins,
        dropped,
        floor,
        contains_txn=True,
        all_dropped=int(reply[5]),
        high=_as_high(reply[6]),
    )


def _as_high(reply: Any) -> Position:
    padded = text(reply)
    return Position.from_padded(padded) if padded else EARLIEST


def _as_retained(reply: list[Any]) -> RetainedPositions:
    names, queries, released, query_start, sources = (reply[at::5] for at in range(3, 8))
    return RetainedPositions(
        retired=bool(reply[2]),
        released={
            text(name): MessagePosition.from_padded(text(at)).taken_after[0]
            for name, at in zip(names, released, strict=True)
        },
        queries={text(n): text(q) for n, q in zip(names, queries, strict=True)},
        query_start={text(n): text(p) for n, p in zip(names, query_start, strict=True)},
        sources={text(n): int(s) for n, s in zip(names, sources, strict=True)},
    )
