"""What a decision has seen of its tags: whoever looks later must find it in their past."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import Seen


def note_segments(outcome: Outcome, seen: Callable[[str], Seen], segments: Iterable[str]) -> None:
    """Put the newest states of segments into a decision; `seen` returns that of a tag."""
    for segment in sorted(set(segments)):
        tag = f"seg:{segment}"
        state = seen(tag)
        outcome.last_seen[tag] = state.seq
        if state.history:
            outcome.histories[tag] = state.history


def noted_in(outcome: Outcome) -> dict[str, Seen]:
    """Return the states that a decision has seen, by tag."""
    return {
        tag: Seen(seq, outcome.histories.get(tag, "")) for tag, seq in outcome.last_seen.items()
    }
