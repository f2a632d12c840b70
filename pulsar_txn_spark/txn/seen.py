"""What a decision has seen of its tags: whoever looks later must find it in their past.

A task notes the same of the tags that it has changed. Its process is not that of the commit, which
could not tell a store that lost the task's writes from one that never had them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pulsar_txn_spark.store.metadata_pb2 import Outcome, TaskWrite
from pulsar_txn_spark.store.records import Seen


def note_segments(outcome: Outcome, seen: Callable[[str], Seen], segments: Iterable[str]) -> None:
    """Put the newest states of segments into a decision; `seen` returns that of a tag."""
    note_tags(outcome, seen, (f"seg:{segment}" for segment in segments))


def note_tags(
    record: Outcome | TaskWrite, seen: Callable[[str], Seen], tags: Iterable[str]
) -> None:
    """Put the newest states of tags into a record; `seen` returns that of a tag."""
    for tag in sorted(set(tags)):
        state = seen(tag)
        record.last_seen[tag] = state.seq
        if state.history:
            record.histories[tag] = state.history


def noted_in(record: Outcome | TaskWrite) -> dict[str, Seen]:
    """Return the states that a record names, by tag."""
    return {tag: Seen(seq, record.histories.get(tag, "")) for tag, seq in record.last_seen.items()}
