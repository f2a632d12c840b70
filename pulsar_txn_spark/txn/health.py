"""How the coordinators are doing: what metrics show and ``pulsar-txn doctor`` judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_txn_spark.store.protocol import MetadataStore, TcState, TxnId
from pulsar_txn_spark.txn.participants import Participants

STUCK_AFTER_MS = 60_000
"""A decision is carried out in milliseconds by whoever made it; after so long nobody is at it."""

LOOKED_AT = 500  # oldest decisions of a TC that are not carried out: as many as a sweep takes
_FOLLOWED_UP = 20  # headers of a TC whose participants are asked
_MOST_TOLD = 100


@dataclass(frozen=True, slots=True)
class StuckParticipant:
    """A segment that has not carried a decision out: its header waits for it (INV-6)."""

    txn: TxnId
    segment: str
    decided_ms_ago: int


def tc_states(store: MetadataStore) -> list[TcState]:
    """Read the state of every TC: one request each."""
    return [store.tc_state(tc, limit=LOOKED_AT) for tc in range(store.identity.coordinators)]


def stuck_participants(
    store: MetadataStore, states: Sequence[TcState], after_ms: int = STUCK_AFTER_MS
) -> list[StuckParticipant]:
    """Find the segments that decided headers wait for, oldest decisions first.

    Costs nothing where every decision is carried out. At most 20 headers of each TC are looked
    into, and at most 100 participants are told.
    """
    found: list[StuckParticipant] = []
    for state in states:
        due = [(txn, at) for txn, at in state.undone if at + after_ms <= state.now_ms]
        for txn, at in due[:_FOLLOWED_UP]:
            header = store.read_txn(txn)
            if header is None or header.materialized:
                continue
            segments = Participants.of(header.intents).segments
            through = store.through(txn, segments) if segments else []
            found += [
                StuckParticipant(txn, segment, state.now_ms - at)
                for segment, done in zip(segments, through, strict=True)
                if not done
            ]
    return sorted(found, key=lambda one: -one.decided_ms_ago)[:_MOST_TOLD]
