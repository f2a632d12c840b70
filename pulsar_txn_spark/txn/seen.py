"""What a decision has seen of its tags: whoever looks later must find it in their past."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.protocol import MetadataStore
from pulsar_txn_spark.store.records import Seen


def note_segments(outcome: Outcome, store: MetadataStore, segments: Iterable[str]) -> None:
    """Put the newest states of segments that this process has seen into a decision."""
    for segment in sorted(set(segments)):
        tag = f"seg:{segment}"
        seen = store.seen(tag)
        outcome.last_seen[tag] = seen.seq
        if seen.history:
            outcome.histories[tag] = seen.history


def noted_in(outcome: Outcome) -> dict[str, Seen]:
    """Return the states that a decision has seen, by tag."""
    return {
        tag: Seen(seq, outcome.histories.get(tag, "")) for tag, seq in outcome.last_seen.items()
    }
