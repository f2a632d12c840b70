"""How the coordinators are doing: what metrics show and ``pulsar-txn doctor`` judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_txn_spark.store.decoding import pointer_of
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import TcState, TxnId, TxnState
from pulsar_txn_spark.txn.participants import Participants
from pulsar_txn_spark.txn.sweeper import moved_on

STUCK_AFTER_MS = 60_000
"""Whoever decides materializes within milliseconds; after so long nobody is at it."""

LOOKED_AT = 500  # oldest pending decisions of a TC: as many as a sweep takes
LEFT_AFTER_MS = 600_000
"""Past the retention and many sweeps: no attempt still makes its pointer after so long."""

_PAGE = 5_000  # decided headers of a TC that are read: as many as a round of a sweep
_FOLLOWED_UP = 20  # headers of a TC whose participants are asked
_MOST_RETURNED = 100


@dataclass(frozen=True, slots=True)
class StuckParticipant:
    """A segment in which a decision is pending: its header waits for it (INV-6)."""

    txn: TxnId
    segment: str
    decided_ms_ago: int


@dataclass(frozen=True, slots=True)
class RetainedHeader:
    """An aborted header that stays: its attempt never wrote the pointer, and may yet (INV-6)."""

    txn: TxnId
    sink: str
    query: str


def tc_states(store: MetadataStore) -> list[TcState]:
    """Read the state of every TC: one request each."""
    return [
        store.transactions.tc_state(tc, limit=LOOKED_AT)
        for tc in range(store.identity.coordinators)
    ]


def stuck_participants(
    store: MetadataStore, states: Sequence[TcState], after_ms: int = STUCK_AFTER_MS
) -> list[StuckParticipant]:
    """Find the segments that decided headers wait for, oldest decisions first.

    Costs nothing where no decision is pending. At most 20 headers of each TC are looked
    into, and at most 100 participants are returned.
    """
    participants: list[StuckParticipant] = []
    for state in states:
        due = [(txn, at) for txn, at in state.unmaterialized if at + after_ms <= state.now_ms]
        for txn, at in due[:_FOLLOWED_UP]:
            header = store.transactions.read(txn)
            if header is None or header.materialized:
                continue
            segments = Participants.of(header.intents).segments
            materialized = store.segments.is_materialized(txn, segments) if segments else []
            participants += [
                StuckParticipant(txn, segment, state.now_ms - at)
                for segment, done in zip(segments, materialized, strict=True)
                if not done
            ]
    return sorted(participants, key=lambda participant: -participant.decided_ms_ago)[
        :_MOST_RETURNED
    ]


def retained_by_pointers(
    store: MetadataStore, after_ms: int = LEFT_AFTER_MS
) -> list[RetainedHeader]:
    """Find aborted headers that no sweep may remove, because a pointer may still come to name them.

    Their attempts died between the header and the pointer, and their queries never came back. At
    most 20 aborted headers of each TC are looked into, of the 500 oldest that are due.
    """
    headers: list[RetainedHeader] = []
    for tc in range(store.identity.coordinators):
        below, now_ms = store.transactions.lowest_open(tc)
        due = store.transactions.list_due(
            tc, finalized_ms=now_ms - after_ms, below=below, offset=0, page=_PAGE, limit=LOOKED_AT
        )
        aborted = [
            (header, pointed)
            for header in store.transactions.read_many(due.txns)
            if header is not None
            and header.state is TxnState.ABORTED
            and (pointed := Participants.of(header.intents).pointer) is not None
        ]
        for header, (query, sink) in aborted[:_FOLLOWED_UP]:
            own = store.sinks.read_pointer(sink, query).own
            pointer = pointer_of(sink, own) if own else None
            named = pointer is not None and pointer.txn_id == header.txn.key
            if not named and not moved_on(pointer, header):
                headers.append(RetainedHeader(header.txn, sink, query))
    return headers
