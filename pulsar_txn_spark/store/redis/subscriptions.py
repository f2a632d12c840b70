"""Cursors and acknowledgements on Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pulsar_txn_spark import metrics
from pulsar_txn_spark.errors import (
    StoreCorruptError,
)
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.ack_ranges import AckedRange, AckInterval, SubscriptionState
from pulsar_txn_spark.store.records import (
    AckAnswer,
    AckRequest,
    Answer,
    Code,
    Cursor,
    CursorAnswer,
    CursorStart,
    SubscriptionRef,
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
from pulsar_txn_spark.store.redis.sinks import plan_call

_RANGES_KEPT = 10_000  # acknowledged ranges of a subscription: 1 MB that a replay reads in one step


class RedisSubscriptionStore:
    """Cursors and acknowledgements in segments: the tag ``{seg:<id>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def inherit_cursor(
        self,
        segment: str,
        subscription: str,
        query: str,
        query_start: str = "",
        source_epoch: int = 0,
    ) -> Answer:
        """Let a subscription stand before a segment's first entry (``cursor_inherit.lua``)."""
        keys = [f"cursor:{subscription}", "subscriptions"]
        args: list[Arg] = [query, EARLIEST.padded(), subscription, query_start, source_epoch]
        return self._scripts.answer(Call("cursor_inherit", f"seg:{segment}", keys, args))

    def release_cursors(
        self, subscription: str, query: str, positions: Mapping[str, Position]
    ) -> list[Answer]:
        """Note for each segment up to where nobody asks again (``cursor_release.lua``)."""
        calls = [
            Call(
                "cursor_release",
                f"seg:{segment}",
                [f"cursor:{subscription}"],
                [query, position.padded()],
            )
            for segment, position in positions.items()
        ]
        return [Answer(code_of(reply)) for reply in self._scripts.run_all(calls)]

    def delete_cursor(
        self, segment: str, subscription: str, unused_since: tuple[str, int] | None = None
    ) -> Answer:
        """Delete a subscription in a segment (``cursor_delete.lua``)."""
        keys = [
            f"cursor:{subscription}",
            f"pending-acks:{subscription}",
            "subscriptions",
            f"ack-ranges:{subscription}",
        ]
        args: list[Arg] = [subscription]
        if unused_since is not None:
            args += [*unused_since, EARLIEST.padded()]
        return self._scripts.answer(Call("cursor_delete", f"seg:{segment}", keys, args))

    def names(self, segment: str) -> list[str]:
        """Return the names of a segment's subscriptions, sorted."""
        reply = self._scripts.run(
            Call("subscription_list", f"seg:{segment}", ["subscriptions"], [])
        )
        return sorted(text(value) for value in reply[2:])

    def read_cursors(self, segments: Sequence[str], subscription: str) -> list[Cursor | None]:
        """Read a subscription's cursor in each segment."""
        calls = [
            Call("cursor_read", f"seg:{segment}", [f"cursor:{subscription}"], [])
            for segment in segments
        ]
        with self._scripts.timed(metrics.ACKS_BY_SUBSCRIPTION):
            replies = self._scripts.run_all(calls)
        return [_as_cursor(reply[2:]) for reply in replies]

    def claim_cursor(
        self,
        segment: str,
        subscription: str,
        query: str,
        source_epoch: int,
        start: Position,
    ) -> CursorAnswer:
        """Claim a subscription for a query (``cursor_claim.lua``)."""
        keys = [f"cursor:{subscription}", "subscriptions"]
        args: list[Arg] = [query, source_epoch, start.padded(), subscription, "", ""]
        return _as_cursor_answer(
            self._scripts.run(Call("cursor_claim", f"seg:{segment}", keys, args))
        )

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
        calls = _claim_calls(subscription, query, source_epoch, starts, asks_only=asks_only)
        return [_as_cursor_answer(reply) for reply in self._scripts.run_all(calls)]

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
        calls = _claim_calls(subscription, query, source_epoch, starts, asks_only=True)
        replies = self._scripts.run_all([*calls, plan_call(query, batch, source, plan)])
        return [_as_cursor_answer(reply) for reply in replies[: len(calls)]]

    def create_cursors(
        self, subscription: str, starts: Mapping[str, CursorStart], query_start: str = ""
    ) -> list[CursorAnswer]:
        """Create the cursors that are absent, in this order (``cursor_create.lua``).

        A request that fails ends it: no cursor comes without those before it, on whichever servers.
        """
        calls = [
            Call(
                "cursor_create",
                f"seg:{segment}",
                [f"cursor:{subscription}", "subscriptions", "state"],
                [start.position.padded(), subscription, query_start, "1" if start.may_skip else ""],
            )
            for segment, start in starts.items()
        ]
        return [_as_cursor_answer(self._scripts.run(call)) for call in calls]

    def reset_cursor(
        self,
        segment: str,
        subscription: str,
        to: CursorStart | None,
        seen: Cursor | None,
        source_epoch: int = 0,
    ) -> CursorAnswer:
        """Put a cursor elsewhere, owned by nobody, unless it has changed (``cursor_reset.lua``)."""
        keys = [
            f"cursor:{subscription}",
            f"pending-acks:{subscription}",
            "subscriptions",
            f"ack-ranges:{subscription}",
            "state",
        ]
        args: list[Arg] = [
            subscription,
            to.position.padded() if to else "",
            seen.cursor_version if seen else "",
            seen.acknowledged.padded() if seen else "",
            "1" if to and to.may_skip else "",
            source_epoch,
        ]
        return _as_cursor_answer(
            self._scripts.run(Call("cursor_reset", f"seg:{segment}", keys, args))
        )

    def place_acks(self, txn: TxnId, acks: Sequence[AckRequest]) -> list[AckAnswer]:
        """Place pending acknowledgements (``ack_place.lua``)."""
        replies = self._scripts.run_all(place_calls(txn, acks))
        return [as_range_answer(reply) for reply in replies]

    def ack_individual(
        self,
        txn: TxnId,
        where: SubscriptionRef,
        intervals: Sequence[AckInterval],
        *,
        normal: bool = False,
    ) -> AckAnswer:
        """Lock single messages for a transaction (``ack_individual.lua``)."""
        args: list[Arg] = ["normal" if normal else "txn", _RANGES_KEPT]
        for interval in intervals:
            args += [interval.start.padded(), interval.end.padded()]
        return _as_message_answer(self._scripts.run(_ack_call("ack_individual", txn, where, args)))

    def ack_cumulative(
        self, txn: TxnId, where: SubscriptionRef, interval: AckInterval
    ) -> AckAnswer:
        """Lock everything up to a message for a transaction (``ack_cumulative.lua``)."""
        args: list[Arg] = [interval.start.padded(), interval.end.padded()]
        return _as_message_answer(self._scripts.run(_ack_call("ack_cumulative", txn, where, args)))

    def read_acks(self, segment: str, subscription: str) -> SubscriptionState | None:
        """Read what a subscription has acknowledged; None if nobody has claimed it."""
        keys = [
            f"cursor:{subscription}",
            f"pending-acks:{subscription}",
            f"ack-ranges:{subscription}",
        ]
        reply = self._scripts.run(Call("ack_read", f"seg:{segment}", keys, []))
        return None if text(reply[1]) == Code.UNCLAIMED else _as_acks(reply)


def _as_cursor_answer(reply: list[Any]) -> CursorAnswer:
    code, rest = code_of(reply), [text(value) for value in reply[2:]]
    if code in _REFUSED:
        return CursorAnswer(code, **_REFUSED[code](rest))
    position = MessagePosition.from_padded(rest[0]) if rest else None
    return CursorAnswer(code, position, claims=rest[2:] == ["1"])


def place_calls(txn: TxnId, acks: Sequence[AckRequest]) -> list[Call]:
    """Return the calls that place pending acknowledgements."""
    return [
        Call(
            "ack_place",
            f"seg:{ack.segment}",
            [
                f"cursor:{ack.subscription}",
                f"pending-acks:{ack.subscription}",
                "closed",
                "resolved",
            ],
            [
                txn.key,
                txn.tc,
                txn.counter,
                ack.query,
                ack.start.padded(),
                ack.end.padded(),
                ack.sink,
                ack.batch,
                ack.source_epoch,
            ],
            Step.PENDING_ACK,
        )
        for ack in acks
    ]


def as_range_answer(reply: list[Any]) -> AckAnswer:
    """Read the answer of ``ack_place.lua``."""
    if code_of(reply) is not Code.CURSOR:
        return _as_message_answer(reply)
    position, sink, batch, txn = map(text, reply[2:])
    where = MessagePosition.from_padded(position)
    return AckAnswer(Code.CURSOR, where, sink=sink, batch=batch, txn=txn)


def _as_message_answer(reply: list[Any]) -> AckAnswer:
    """Read the answer of ``ack_individual.lua`` or ``ack_cumulative.lua``."""
    code, rest = code_of(reply), [text(value) for value in reply[2:]]
    fields = (_REFUSED | _OF_MESSAGES).get(code)
    return AckAnswer(code, **fields(rest)) if fields else AckAnswer(code)


_Fields = Callable[[list[str]], dict[str, Any]]
_REFUSED: dict[Code, _Fields] = {
    Code.OWNED: lambda rest: {"owner": rest[0]},
    Code.FENCED: lambda rest: {"source_epoch": int(rest[0])},
    Code.PENDING: lambda rest: {"holder": TxnId.parse(rest[0])},
}
"""What a refusal says behind its code, as fields of the answer."""
_OF_MESSAGES: dict[Code, _Fields] = {
    Code.OK: lambda rest: {
        "locked": tuple(zip(map(TxnId.parse, rest[::2]), _positions(rest[1::2]), strict=True))
    },
    Code.PENDING: lambda rest: {
        "holder": TxnId.parse(rest[0]),
        "end": next(iter(_positions(rest[1:])), None),
    },
    Code.DELETED: lambda rest: {"end": _positions(rest)[0]},
    Code.MISFIT: lambda rest: {"end": _positions(rest)[0]},
    Code.CURSOR: lambda rest: dict(zip(("position", "gap"), _positions(rest), strict=True)),
    Code.RESOLVED: lambda rest: {"decision": TxnState(rest[0])},
    Code.FULL: lambda rest: {"ranges": int(rest[0])},
}
"""The same, of acknowledgements of messages."""


def _positions(values: Sequence[str]) -> list[MessagePosition]:
    return [MessagePosition.from_padded(value) for value in values]


def _ack_call(name: str, txn: TxnId, where: SubscriptionRef, args: Sequence[Arg]) -> Call:
    keys = [
        f"cursor:{where.subscription}",
        f"pending-acks:{where.subscription}",
        "closed",
        "resolved",
        f"ack-ranges:{where.subscription}",
        f"pending-ranges:{where.subscription}:{txn.key}",
    ]
    head: list[Arg] = [txn.key, txn.tc, txn.counter, where.owner, where.source_epoch]
    return Call(name, f"seg:{where.segment}", keys, [*head, *args], Step.PENDING_ACK)


def _claim_calls(
    subscription: str,
    query: str,
    source_epoch: int,
    starts: Mapping[str, Position],
    *,
    asks_only: bool,
) -> list[Call]:
    keys = [f"cursor:{subscription}", "subscriptions"]
    asks = "1" if asks_only else ""
    return [
        Call(
            "cursor_claim",
            f"seg:{segment}",
            keys,
            [query, source_epoch, start.padded(), subscription, "1", asks],
        )
        for segment, start in starts.items()
    ]


def _as_interval(start: str, end: str) -> AckInterval:
    return AckInterval(MessagePosition.from_padded(start), MessagePosition.from_padded(end))


def _as_acks(reply: list[Any]) -> SubscriptionState:
    ranges = []
    for member in reply[5]:
        start, end, holder = text(member).split(" ")
        ranges.append(AckedRange(_as_interval(start, end), holder))
    for txn, record in pairs(reply[4]):
        ack = json.loads(record)
        if "last" in ack:  # a query holds one range, which stands in the record itself
            ranges.append(AckedRange(_as_interval(ack["start"], ack["last"]), txn))
    cursor = MessagePosition.from_padded(text(reply[2]))
    return SubscriptionState(cursor, int(reply[3]), tuple(sorted(ranges)))


def _as_cursor(flat: Sequence[bytes]) -> Cursor | None:
    fields = {name: text(value) for name, value in pairs(flat)}
    if not fields:
        return None
    try:
        position, taken = MessagePosition.from_padded(fields["position"]).taken_after
        upto = fields.get("released", fields["position"])
        released = MessagePosition.from_padded(upto).taken_after[0]
        begun = fields.get("begun")
        return Cursor(
            position=position,
            query=fields["query"],
            cursor_version=int(fields["generation"]),
            txn=fields.get("txn", ""),
            sink=fields.get("sink", ""),
            batch=fields.get("batch", ""),
            taken=taken,
            source_epoch=int(fields.get("source", "0")),
            released=released,
            query_start=fields.get("planted", ""),
            begun=Position.from_padded(begun) if begun else None,
        )
    except KeyError as error:
        raise StoreCorruptError(f"a cursor lacks its field {error}") from error
