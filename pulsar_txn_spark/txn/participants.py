"""Intents: what a header knows of its participants, durable before they are touched (INV-6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote_plus


def write_intent(segment: str, writer: str) -> str:
    """Return the intent of a writer in a segment."""
    return f"W|{segment}|{writer}"


def ack_intent(segment: str, subscription: str) -> str:
    """Return the intent of an acknowledgement for a subscription in a segment."""
    return f"A|{segment}|{subscription}"


def pointer_intent(query: str, sink: str) -> str:
    """Return the intent of a sink's pointer."""
    return f"P|{query}|{sink}"


@dataclass(slots=True)
class Participants:
    """The intents of one transaction, by segment.

    Topics and subscriptions of Pulsar's own (kind ``N``) are in `pulsars`, and in nothing else. The
    broker's coordinator ends the transaction there, and keeps the header until it has.
    """

    writers: dict[str, list[str]] = field(default_factory=dict)
    subscriptions: dict[str, list[str]] = field(default_factory=dict)
    pointer: tuple[str, str] | None = None
    pulsars: dict[str, list[str]] = field(default_factory=dict)  # topic -> subscriptions

    @property
    def segments(self) -> list[str]:
        """All segments that take part, sorted."""
        return sorted(self.writers.keys() | self.subscriptions.keys())

    @classmethod
    def of(cls, intents: Iterable[str]) -> Participants:
        """Sort intents out.

        Raises
        ------
        ValueError
            If one of them is of no known kind.
        """
        participants = cls()
        for intent in sorted(intents):
            kind, first, second = intent.split("|", 2)
            if kind == "W":
                participants.writers.setdefault(first, []).append(second)
            elif kind == "A":
                participants.subscriptions.setdefault(first, []).append(second)
            elif kind == "P":
                participants.pointer = (first, second)
            elif kind == "N":
                subscriptions = participants.pulsars.setdefault(unquote_plus(first), [])
                subscriptions += [second] if second else []
            else:
                raise ValueError(f"unknown kind of intent: {intent!r}")
        return participants
