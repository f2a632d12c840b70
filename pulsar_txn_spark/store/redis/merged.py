"""Steps of several tags that are one step where one Redis holds all tags."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from redis.exceptions import TimeoutError as RedisTimeoutError

from pulsar_txn_spark import metrics, steps
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.metadata_pb2 import Pointer
from pulsar_txn_spark.store.records import (
    AckAnswer,
    AckRequest,
    BeginAnswer,
    Code,
    CommitAnswer,
    EndedBy,
    OpenAnswer,
    PinAnswer,
    PointerRead,
    SegmentDecision,
    TopologyVersion,
    TxnAnswer,
    TxnId,
    TxnState,
)
from pulsar_txn_spark.store.redis.scripts import NO_REPLY, Scripts, code_of
from pulsar_txn_spark.store.redis.segments import as_pin_answer, materialize_calls, pin_calls
from pulsar_txn_spark.store.redis.sinks import (
    as_others,
    is_swapped,
    register_call,
    swap_call,
)
from pulsar_txn_spark.store.redis.subscriptions import as_range_answer, place_calls
from pulsar_txn_spark.store.redis.topics import is_current_call
from pulsar_txn_spark.store.redis.transactions import (
    as_created,
    as_header,
    as_ops_answer,
    count_refused,
    create_call,
    end_call,
    forget_call,
    intend_call,
    ops_call,
    read_call,
    txn_answer,
    unknown,
)

_TXN_ID_KEY = bytes([Pointer.TXN_ID_FIELD_NUMBER << 3 | 2])
"""What stands in a serialized ``Pointer`` before its ``txn_id``, and before the length of that."""


class RedisMergedSteps:
    """The steps that one script may take; see `MERGED` in :mod:`.scripts`."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    @property
    def possible(self) -> bool:
        """Whether one server holds all tags."""
        return self._scripts.merges

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
        """Register a sink, create the header of its batch, and let the sink's pointer name it."""
        described = [owner, sink, query, str(batch)]
        calls = [
            register_call(query, sink, batch, attempt),
            create_call(tc, nonce, described, timeout_ms, intents),
            swap_call(sink, query, expected, pointer, query, _TXN_ID_KEY),
        ]
        replies = self._scripts.merged("txn_begin", calls)
        if replies is None:
            return None
        others = as_others(replies[0])
        if len(replies) == 1:
            return BeginAnswer(others)
        txn, state = as_created(replies[1])
        key = txn.key.encode()
        named = pointer + _TXN_ID_KEY + bytes([len(key)]) + key
        swapped = len(replies) == len(calls) and is_swapped(replies[2], query, named)
        return BeginAnswer(others, txn, state, swapped)

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
        """Create a header with its intents, then pin a writer; no pin unless it is OPEN.

        Nothing is done unless the topology is the `expected` one. In intents and writer,
        ``ptxn-#-`` stands for ``ptxn-<tc>-<counter>-``.
        """
        create = create_call(tc, nonce, [owner, "", "", ""], timeout_ms, intents)
        pins = pin_calls(TxnId(tc, 0), writer, segments)
        checks = [] if expected is None else [is_current_call(expected)]
        replies = self._scripts.merged("txn_open", [*checks, create, *pins])
        if replies is None:
            return None
        if checks and code_of(replies.pop(0)) is not Code.OK:
            return Code.CONFLICT
        txn, state = as_created(replies[0])
        return OpenAnswer(txn, state, [as_pin_answer(reply) for reply in replies[1:]])

    def admit(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        intents: Sequence[str],
        writer: str,
        segments: Sequence[str],
    ) -> tuple[TxnAnswer, list[PinAnswer]] | None:
        """Record intents, then pin a writer; no pin where the intents were refused."""
        intend = intend_call(txn, nonce, timeout_ms, intents)
        replies = self._scripts.merged("txn_admit", [intend, *pin_calls(txn, writer, segments)])
        if replies is None:
            return None
        return txn_answer(replies[0][1:]), [as_pin_answer(reply) for reply in replies[1:]]

    def acknowledge(
        self,
        txn: TxnId,
        nonce: str,
        timeout_ms: int,
        intents: Sequence[str],
        acks: Sequence[AckRequest],
    ) -> tuple[TxnAnswer, list[AckAnswer]] | None:
        """Record intents, then place acknowledgements; none where the intents were refused."""
        intend = intend_call(txn, nonce, timeout_ms, intents)
        replies = self._scripts.merged("txn_acknowledge", [intend, *place_calls(txn, acks)])
        if replies is None:
            return None
        return txn_answer(replies[0][1:]), [as_range_answer(reply) for reply in replies[1:]]

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
        """Store operation records, decide for COMMITTED, and materialize it."""
        own = self._scripts.counters.drain()
        added = metrics.total([own, counts])
        calls = [ops_call(txn, nonce, ops, decides=True)] if ops else []
        decides = len(calls)
        calls += [
            end_call(txn, TxnState.COMMITTED, outcome, EndedBy.OWNER, nonce, added),
            read_call(txn, sorted(intents)),
            *materialize_calls(txn, TxnState.COMMITTED, decisions),
            forget_call(txn, nonce),
        ]
        try:
            replies = self._scripts.merged("txn_commit", calls, once=True)
        except NO_REPLY as error:
            raise unknown(txn, error) from error
        if replies is None:
            self._scripts.counters.add(own)
            return None
        if steps.reply_is_lost(Step.DECIDE):
            raise unknown(txn, RedisTimeoutError("the reply was lost on purpose"))
        stored = as_ops_answer(replies[0]) if ops else None
        answer = txn_answer(replies[min(decides, len(replies) - 1)][1:])
        if len(replies) <= decides + 1 or answer.code is not Code.OK:
            count_refused(self._scripts.counters, own, txn, answer)
            return CommitAnswer(answer, stored)
        if len(replies) == len(calls) and code_of(replies[-1]) is Code.OK:
            return CommitAnswer(answer, stored, materialized=True)
        return CommitAnswer(answer, stored, as_header(txn, replies[decides + 1]))
