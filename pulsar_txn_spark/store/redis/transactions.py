"""Transactions, their operation records and staged writes on Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import TimeoutError as RedisTimeoutError

from pulsar_txn_spark import metrics, steps
from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    StoreCorruptError,
)
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.records import (
    Answer,
    Code,
    DueTxns,
    EndedBy,
    OpGroup,
    OpLogSettings,
    OpsAnswer,
    RawOps,
    StageAnswer,
    TcState,
    TxnAnswer,
    TxnHeader,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.store.redis.scripts import (
    NO_REPLY,
    Arg,
    Call,
    Scripts,
    code_of,
    flat,
    pairs,
    text,
)

_OPS_FORGOTTEN = 512  # records deleted in one step: a step must not block the server for long
_CAUSES = {
    EndedBy.OWNER: "owner",
    EndedBy.FENCE: "newer-attempt",
    EndedBy.EXPIRED: "lease-over",
    EndedBy.ADMIN: "administrator",
}


class RedisTransactionStore:
    """Headers of transactions, their intents and indexes: the tag ``{tc<N>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

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
        """Create the header of a nonce's transaction, OPEN; idempotent: it returns it as it is."""
        call = create_call(tc, nonce, [owner, sink, query, batch], timeout_ms, intents)
        return as_created(self._scripts.run(call))

    def of_nonce(self, tc: int, nonce: str) -> TxnId | None:
        """Find the transaction of an attempt nonce."""
        reply = self._scripts.run(Call("txn_of_nonce", f"tc{tc}", ["nonces"], [nonce]))
        return TxnId.parse(text(reply[2])) if code_of(reply) is Code.OK else None

    def intend(self, txn: TxnId, nonce: str, timeout_ms: int, intents: Sequence[str]) -> TxnAnswer:
        """Record participants (none = a heartbeat) and extend the lease (``txn_intend.lua``)."""
        return txn_answer(self._scripts.run(intend_call(txn, nonce, timeout_ms, intents))[1:])

    def end(
        self,
        txn: TxnId,
        state: TxnState,
        outcome: bytes,
        by: EndedBy,
        nonce: str = "",
        counts: Mapping[str, int] | None = None,
    ) -> TxnAnswer:
        """Decide a transaction by one compare-and-set (``txn_end.lua``), not repeated by itself."""
        own = self._scripts.counters.drain()
        added = metrics.total([own, counts or {}])
        call = end_call(txn, state, outcome, by, nonce, added)
        try:
            reply = self._scripts.ask_once(call)
        except NO_REPLY as error:
            raise unknown(txn, error) from error
        if state is TxnState.COMMITTED and steps.reply_is_lost(Step.DECIDE):
            raise unknown(txn, RedisTimeoutError("the reply was lost on purpose"))
        reply = self._scripts.checked(call, reply)
        answer = txn_answer(reply[1:])
        if answer.code is not Code.OK:
            count_refused(self._scripts.counters, own, txn, answer)
        return answer

    def read(self, txn: TxnId) -> TxnHeader | None:
        """Read a header and its intents in one step."""
        [header] = self.read_many([txn])
        return header

    def read_many(self, txns: Sequence[TxnId]) -> list[TxnHeader | None]:
        """Read headers, each with its intents in one step."""
        replies = self._scripts.run_all([read_call(txn) for txn in txns])
        return [as_header(*pair) for pair in zip(txns, replies, strict=True)]

    def list_open(self, tc: int, *, deadline_ms: int | None, limit: int) -> list[tuple[TxnId, int]]:
        """List OPEN transactions with their deadlines, earliest first, due by `deadline_ms`."""
        due = "+inf" if deadline_ms is None else str(deadline_ms)
        call = Call("txn_list", f"tc{tc}", ["idx:txn-by-deadline"], [due, limit])
        with self._scripts.timed(metrics.BY_DEADLINE):
            reply = self._scripts.run(call)
        return [(TxnId.parse(txn), int(deadline)) for txn, deadline in pairs(reply[3:])]

    def list_final(self, tc: int, *, limit: int) -> list[tuple[TxnId, int]]:
        """List decided transactions that still have a header, with finalized_ms, oldest first."""
        call = Call("txn_list", f"tc{tc}", ["idx:txn-by-final-state"], ["+inf", limit])
        with self._scripts.timed(metrics.BY_FINAL_STATE):
            reply = self._scripts.run(call)
        return [
            (TxnId.parse(member.partition("|")[2]), int(finalized))
            for member, finalized in pairs(reply[3:])
        ]

    def list_unmaterialized(self, tc: int, *, limit: int) -> list[TxnId]:
        """List decided transactions that are pending at a participant, oldest decision first."""
        call = Call("txn_list", f"tc{tc}", ["idx:txn-unmaterialized"], ["+inf", limit])
        return [TxnId.parse(txn) for txn, _ in pairs(self._scripts.run(call)[3:])]

    def list_due(
        self, tc: int, *, finalized_ms: int, below: int, offset: int, page: int, limit: int
    ) -> DueTxns:
        """List decided transactions whose headers may go (``txn_due.lua``)."""
        args: list[Arg] = [finalized_ms, below, offset, page, limit]
        reply = self._scripts.run(Call("txn_due", f"tc{tc}", ["idx:txn-by-final-state"], args))
        return DueTxns(
            txns=tuple(TxnId.parse(text(txn)) for txn in reply[5:]),
            seen=int(reply[2]),
            more=bool(reply[3]),
            waiting=int(reply[4]),
        )

    def lowest_open(self, tc: int) -> tuple[int, int]:
        """Return the lowest counter that may still be open in a TC, and the store's clock in ms."""
        keys = ["idx:txn-open", "txn-counter"]
        reply = self._scripts.run(Call("txn_lowest_open", f"tc{tc}", keys, []))
        return int(reply[2]), int(reply[3])

    def tc_state(self, tc: int, *, limit: int) -> TcState:
        """Tell how a TC is doing, with the `limit` oldest decisions that are pending."""
        tag = f"tc{tc}"
        keys = ["idx:txn-open", "idx:txn-by-final-state", "idx:txn-unmaterialized", "metrics"]
        reply = self._scripts.run(Call("tc_state", tag, keys, [f"{{{tag}}}:txn:", limit]))
        oldest, created = text(reply[4]), text(reply[5])
        return TcState(
            now_ms=int(reply[2]),
            open=int(reply[3]),
            oldest_open=(TxnId.parse(oldest), int(created)) if oldest and created else None,
            decided=int(reply[6]),
            unmaterialized=tuple((TxnId.parse(txn), int(at)) for txn, at in pairs(reply[7])),
            counts={name: int(amount) for name, amount in pairs(reply[8])},
        )

    def remove(self, txn: TxnId) -> Answer:
        """Remove the header of a transaction that every participant is through with."""
        [answer] = self.remove_many([txn])
        return answer

    def remove_many(self, txns: Sequence[TxnId]) -> list[Answer]:
        """Remove headers, each in a step of its own."""
        calls = []
        for txn in txns:
            own = [f"txn:{txn.key}", f"intents:{txn.key}", f"txn-op:{txn.key}"]
            keys = [*own, "nonces", "idx:txn-by-final-state", "idx:txn-unmaterialized"]
            keys.append("idx:txn-pulsar")
            calls.append(Call("txn_remove", f"tc{txn.tc}", keys, [txn.key]))
        return [Answer(code_of(reply)) for reply in self._scripts.run_all(calls)]


class RedisOpLogStore:
    """Operation records of transactions: the tag ``{tc<N>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def append(self, txn: TxnId, nonce: str, ops: Mapping[str, bytes]) -> OpsAnswer:
        """Append named operation records, each by itself (``txn_op.lua``)."""
        return as_ops_answer(self._scripts.run(ops_call(txn, nonce, ops)))

    def append_batch(
        self, tc: int, entry: str, batch: bytes, groups: Sequence[OpGroup]
    ) -> OpsAnswer:
        """Append operation records of one TC as one entry (``txn_op_batch.lua``)."""
        tag = f"tc{tc}"
        args: list[Arg] = [f"{{{tag}}}:txn:", f"{{{tag}}}:txn-op:", entry, batch]
        for group in groups:
            args += [group.txn.key, group.nonce, group.reference, group.records]
        keys = [f"op-batch:{entry}", "op-log", "metrics"]
        reply = self._scripts.run(Call("txn_op_batch", tag, keys, args, Step.OP_BATCH))
        return OpsAnswer(tuple(map(txn_answer, reply[3:])), _as_op_log(reply[2]))

    def read(self, txn: TxnId) -> RawOps:
        """Read the operation records of a transaction, and the batches that they are in."""
        tag = f"tc{txn.tc}"
        reply = self._scripts.run(
            Call("txn_ops", tag, [f"txn-op:{txn.key}"], [f"{{{tag}}}:op-batch:"])
        )
        return RawOps(dict(pairs(reply[2])), dict(pairs(reply[3])))

    def read_settings(self, tc: int) -> OpLogSettings | None:
        """Return how a TC's operation records are gathered; None = nobody has set it."""
        return _as_op_log(self._scripts.run(Call("op_log_read", f"tc{tc}", ["op-log"], []))[2:])

    def change_settings(self, tc: int, settings: OpLogSettings) -> None:
        """Change how a TC's operation records are gathered, for every writer and while it runs."""
        limits = [settings.max_records, settings.max_bytes, settings.max_delay_ms]
        self._scripts.run(
            Call("op_log_set", f"tc{tc}", ["op-log"], [int(settings.enabled), *limits])
        )

    def forget(self, txn: TxnId, nonce: str) -> Answer:
        """Delete the operation records of a transaction that every participant has materialized."""
        cursor = "0"
        while True:
            reply = self._scripts.run(forget_call(txn, nonce, cursor))
            if code_of(reply) is not Code.PENDING:
                return Answer(code_of(reply))
            cursor = text(reply[2])


class RedisStageStore:
    """Staged writes of scopes: the tag ``{tc<N>}``."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def declare_attempt(self, tc: int, nonce: str, slot: str, attempt_number: int) -> StageAnswer:
        """Make `attempt_number` the current attempt at a slot (``txn_stage.lua``)."""
        return self._stage(tc, nonce, ["declare", slot, attempt_number, "", nonce])

    def stage(
        self, tc: int, nonce: str, slot: str, attempt_number: int, write: bytes
    ) -> StageAnswer:
        """Stage the result of the current attempt at a slot (``txn_stage.lua``)."""
        return self._stage(tc, nonce, ["stage", slot, attempt_number, write, nonce])

    def _stage(self, tc: int, nonce: str, args: list[Arg]) -> StageAnswer:
        call = Call("txn_stage", f"tc{tc}", [f"stage:{nonce}", "idx:stages"], args)
        reply = self._scripts.run(call)
        current = text(reply[2]) if code_of(reply) is Code.STALE else ""
        return StageAnswer(code_of(reply), int(current) if current else None)

    def read(self, tc: int, nonce: str) -> dict[str, bytes]:
        """Read everything staged under a nonce."""
        reply = self._scripts.run(Call("txn_staged", f"tc{tc}", [f"stage:{nonce}"], []))
        return dict(pairs(reply[2:]))

    def touch(self, tc: int, nonce: str, *, ended: bool = False) -> Answer:
        """Say that a scope is in use, or has ended: then what it has staged goes."""
        keys = [f"stage:{nonce}", "idx:stages"]
        args: list[Arg] = ["end" if ended else "use", nonce]
        return self._scripts.answer(Call("stage_touch", f"tc{tc}", keys, args))

    def sweep(self, tc: int, *, unused_ms: int, limit: int) -> tuple[int, int]:
        """Delete what dead scopes have staged; return how many were read, and deleted."""
        tag = f"tc{tc}"
        args: list[Arg] = [f"{{{tag}}}:stage:", unused_ms, limit]
        reply = self._scripts.run(Call("stage_sweep", tag, ["idx:stages", "nonces"], args))
        return int(reply[2]), int(reply[3])


def create_call(
    tc: int, nonce: str, described: Sequence[str], timeout_ms: int, intents: Sequence[str]
) -> Call:
    """Return the call that creates a header; it is described by owner, sink, query and batch."""
    tag = f"tc{tc}"
    keys = ["txn-counter", "nonces", "idx:txn-by-deadline", "idx:txn-open"]
    args: list[Arg] = [f"{{{tag}}}:txn:", f"{{{tag}}}:intents:", tc, nonce, *described]
    return Call("txn_create", tag, keys, [*args, timeout_ms, *intents], Step.BEGIN)


def as_created(reply: list[Any]) -> tuple[TxnId, TxnState]:
    """Read the reply to the creation of a header."""
    txn, state = TxnId.parse(text(reply[2])), text(reply[3])
    if not state:
        raise StoreCorruptError(
            f"transaction {txn} has a nonce but no header: its outcome cannot be known, and is "
            "not guessed. Restore the metadata store"
        )
    return txn, TxnState(state)


def intend_call(txn: TxnId, nonce: str, timeout_ms: int, intents: Sequence[str]) -> Call:
    """Return the call that records participants."""
    keys = [f"txn:{txn.key}", f"intents:{txn.key}", "idx:txn-by-deadline"]
    args: list[Arg] = [nonce, txn.key, timeout_ms, *intents]
    return Call("txn_intend", f"tc{txn.tc}", keys, args, Step.INTENT if intents else None)


def end_call(
    txn: TxnId,
    state: TxnState,
    outcome: bytes,
    by: EndedBy,
    nonce: str,
    counts: Mapping[str, int],
) -> Call:
    """Return the call that decides a transaction; `counts` are added to the metrics."""
    keys = [
        f"txn:{txn.key}",
        "idx:txn-by-deadline",
        "idx:txn-open",
        "idx:txn-by-final-state",
        "idx:txn-unmaterialized",
        "events",
        "metrics",
    ]
    added = metrics.total([counts, _decided(txn.tc, state, by)])
    # To the script an administrator is one more who may fence.
    ground = EndedBy.FENCE if by is EndedBy.ADMIN else by
    return Call(
        "txn_end", f"tc{txn.tc}", keys, [txn.key, state, outcome, ground, nonce, *flat(added)]
    )


def count_refused(
    counters: metrics.Counters, drained: Mapping[str, int], txn: TxnId, answer: TxnAnswer
) -> None:
    """Count a decision that was refused: what was to be counted with it was not."""
    counters.add(drained)
    result = "conflict" if answer.code is Code.DECIDED else "reject"
    counters.count(metrics.HEADER_CAS, str(txn.tc), result)


def read_call(txn: TxnId, known_intents: Sequence[str] = ()) -> Call:
    """Return the call that reads a header; of the intents only a merged script knows."""
    keys = [f"txn:{txn.key}", f"intents:{txn.key}"]
    return Call("txn_read", f"tc{txn.tc}", keys, list(known_intents))


def ops_call(txn: TxnId, nonce: str, ops: Mapping[str, bytes], *, decides: bool = False) -> Call:
    """Return the call that appends operation records, each by itself.

    With `decides`, the decision follows in the same step.
    """
    keys = [f"txn:{txn.key}", f"txn-op:{txn.key}", "op-log", "metrics"]
    args: list[Arg] = [nonce, "1" if decides else ""]
    for name, record in ops.items():
        args += [name, record]
    return Call("txn_op", f"tc{txn.tc}", keys, args, Step.OP_RECORD)


def as_ops_answer(reply: list[Any]) -> OpsAnswer:
    """Read the reply to operation records."""
    answer = txn_answer(reply[1:])
    return OpsAnswer((answer,), _as_op_log(reply[2:]) if answer.code is Code.OK else None)


def forget_call(txn: TxnId, nonce: str, cursor: str = "0") -> Call:
    """Return the call that deletes operation records from a cursor on."""
    tag = f"tc{txn.tc}"
    keys = [
        f"txn:{txn.key}",
        f"txn-op:{txn.key}",
        f"stage:{nonce}",
        "idx:txn-unmaterialized",
        "idx:stages",
        "metrics",
    ]
    args: list[Arg] = ["materialized", txn.key, f"{{{tag}}}:op-batch:", cursor, _OPS_FORGOTTEN]
    return Call("txn_forget_ops", tag, keys, args)


def _decided(tc: int, state: TxnState, by: EndedBy) -> dict[str, int]:
    """Return what is counted if a transaction is decided so."""
    counters = metrics.Counters()
    counters.count(metrics.HEADER_CAS, str(tc), "ok")
    if state is TxnState.COMMITTED:
        counters.count(metrics.COMMITS, str(tc))
    elif by in _CAUSES:
        counters.count(metrics.ABORTS, str(tc), _CAUSES[by])
    return counters.drain()


def txn_answer(parts: Sequence[Any]) -> TxnAnswer:
    """Read a code and what comes behind it."""
    code, *rest = parts
    code = Code(text(code))
    if code is Code.ALIVE:
        return TxnAnswer(code, deadline_ms=int(rest[0]))
    decided = code is Code.DECIDED
    return TxnAnswer(code, TxnState(text(rest[0])) if decided else None)


def as_header(txn: TxnId, reply: list[Any]) -> TxnHeader | None:
    """Read a header; None if there is none."""
    if text(reply[1]) == Code.ABSENT:
        return None
    fields = dict(pairs(reply[3]))
    finalized = fields.get("finalized_ms")
    return TxnHeader(
        txn=txn,
        state=TxnState(text(fields["state"])),
        nonce=text(fields["nonce"]),
        owner=text(fields["owner"]),
        sink=text(fields["sink"]),
        query=text(fields["query"]),
        batch=text(fields["batch"]),
        deadline_ms=int(fields["deadline_ms"]),
        created_ms=int(fields["created_ms"]),
        finalized_ms=int(finalized) if finalized else None,
        outcome=fields.get("outcome", b""),
        materialized="materialized" in fields,
        now_ms=int(reply[2]),
        intents=frozenset(text(value) for value in reply[4]),
    )


def _as_op_log(values: Sequence[bytes | None]) -> OpLogSettings | None:
    numbers = [int(value) for value in values if value is not None]
    if not numbers:
        return None
    enabled, *limits = numbers
    return OpLogSettings(bool(enabled), *limits)


def unknown(txn: TxnId, error: Exception) -> CommitStateUnknownError:
    """Return the error of a decision without a reply."""
    return CommitStateUnknownError(
        f"no reply to the decision of transaction {txn} ({type(error).__name__}: {error}): it may "
        "or may not have taken effect"
    )
