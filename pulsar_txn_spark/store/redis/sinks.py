"""Pointers of sinks, and what a query has begun, on Redis."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.records import (
    Code,
    PointerRead,
    Seen,
    SinkEntry,
    TxnHeader,
    TxnId,
)
from pulsar_txn_spark.store.redis.scripts import (
    Arg,
    Call,
    Scripts,
    as_seen,
    pairs,
    text,
)
from pulsar_txn_spark.store.redis.transactions import as_header, read_call

_SINKS_KEPT = 256  # sinks of a query that are remembered: a job has a handful of them
_PLANS_KEPT = 8  # batches whose plans are kept: Spark replays one, the rest is for diagnosis


class RedisSinkStore:
    """Pointers of sinks: the tag ``{sink:<id>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def read_pointer(self, sink: str, query: str) -> PointerRead:
        """Read a sink's pointers."""
        return _as_pointer(self._scripts.run(_pointer_call(sink, query)))

    def read_pointer_and_header(
        self, sink: str, query: str, txn: TxnId
    ) -> tuple[PointerRead, TxnHeader | None]:
        """Read a sink's pointers, and any transaction's header, in one round trip."""
        pointer, header = self._scripts.run_all([_pointer_call(sink, query), read_call(txn)])
        return _as_pointer(pointer), as_header(txn, header)

    def swap_pointer(
        self, sink: str, query: str, expected: PointerRead, pointer: bytes, *, current: str
    ) -> bool:
        """Write a query's pointer, and which query is alive, if both still are what was read."""
        reply = self._scripts.run(swap_call(sink, query, expected, pointer, current))
        return is_swapped(reply, current, pointer)


class RedisQueryStore:
    """What a query's sinks and sources have begun: the tag ``{query:<id>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def register_sink(
        self, query: str, sink: str, batch: int, attempt: str
    ) -> dict[str, SinkEntry]:
        """Register that a sink of a query begins a batch in an attempt (``sink_register.lua``)."""
        reply = self._scripts.run(register_call(query, sink, batch, attempt))
        if reply[2]:
            # The next step on the sink's tag compares it: the pointer is behind, or it is there.
            self._scripts.raise_last_seen({f"sink:{sink}": as_seen(reply[2])})
        return as_others(reply)

    def read_sinks(self, query: str) -> dict[str, SinkEntry]:
        """Read which batch each sink of a query has begun last, and in which attempt."""
        reply = self._scripts.run(Call("sink_list", f"query:{query}", ["sinks"], []), [0, "OK"])
        return _sink_entries(reply[2:])

    def register_plan(self, query: str, batch: str, source: str, plan: bytes) -> None:
        """Register what a source reads in a micro-batch."""
        self._scripts.run(plan_call(query, batch, source, plan))

    def read_plans(self, query: str, batch: str) -> dict[str, bytes]:
        """Read what was registered for a micro-batch."""
        reply = self._scripts.run(_plans_call(query, batch), [0, "OK"])
        return dict(pairs(reply[2:]))

    def read_plans_and_note(
        self, query: str, batch: str, sink: str, seen: Seen
    ) -> dict[str, bytes]:
        """Read plans, and note a state of a sink's tag, in one round trip (``sink_seen.lua``)."""
        calls = [_plans_call(query, batch), seen_call(query, sink, seen)]
        reply, _ = self._scripts.run_all(calls)
        return dict(pairs(reply[2:]))


def _pointer_call(sink: str, query: str) -> Call:
    return Call("pointer_read", f"sink:{sink}", ["pointers", "current"], [query])


def _as_pointer(reply: Sequence[bytes]) -> PointerRead:
    return PointerRead(text(reply[2]), reply[3], reply[4])


def swap_call(
    sink: str, query: str, expected: PointerRead, pointer: bytes, current: str, *more: Arg
) -> Call:
    """Return the call that writes a pointer; `more` is for a merged script."""
    args: list[Arg] = [query, expected.current_query, expected.own, pointer, current]
    # A query that takes over has ended what the current pointer names, and no later batch.
    args += [expected.current, *more]
    return Call("pointer_cas", f"sink:{sink}", ["pointers", "current"], args, Step.BEGIN)


def is_swapped(reply: Sequence[bytes], current: str, pointer: bytes) -> bool:
    """Tell whether a pointer was written: now, or by a request whose reply was lost."""
    if text(reply[1]) == Code.OK:
        return True
    return text(reply[2]) == current and reply[3] == pointer


def register_call(query: str, sink: str, batch: int, attempt: str) -> Call:
    """Return the call that registers that a sink begins a batch."""
    args: list[Arg] = [sink, batch, attempt, _SINKS_KEPT]
    return Call("sink_register", f"query:{query}", ["sinks", "sinks-seen"], args)


def seen_call(query: str, sink: str, seen: Seen) -> Call:
    """Return the call that notes a state of a sink's tag with a query."""
    args: list[Arg] = [sink, seen.seq, seen.history]
    return Call("sink_seen", f"query:{query}", ["sinks-seen"], args)


def _plans_call(query: str, batch: str) -> Call:
    return Call("plan_read", f"query:{query}", [f"plans:{batch}"], [])


def plan_call(query: str, batch: str, source: str, plan: bytes) -> Call:
    """Return the call that registers what a source reads in a micro-batch."""
    tag = f"query:{query}"
    args: list[Arg] = [source, plan, batch, f"{{{tag}}}:plans:", _PLANS_KEPT]
    return Call("plan_register", tag, [f"plans:{batch}", "batches"], args)


def as_others(reply: Sequence[bytes]) -> dict[str, SinkEntry]:
    """Read which other sinks have begun a batch in another attempt."""
    return _sink_entries(reply[3:])


def _sink_entries(values: Sequence[bytes]) -> dict[str, SinkEntry]:
    entries = {}
    for sink, entry in pairs(values):
        batch, _, attempt = text(entry).partition("|")
        entries[sink] = SinkEntry(int(batch), attempt)
    return entries
