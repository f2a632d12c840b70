"""What a segment's topic says of itself in its properties, and what a process remembers of it.

A task of Spark lasts for one micro-batch, its process for many. So what one task has read of a
topic serves the next ones, as long as the connection to the topic's broker lives. A broker that was
restarted, and a topic that went to another broker, are asked again. That the topic is still the
same one is proven by each receipt: no two topics of a cluster have a ledger in common. For the
first receipt of a ledger the topic's properties are read, behind the append.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef


class Trim(NamedTuple):
    """A trim that was begun: its property, up to where it goes, and the ledger that comes next."""

    name: str
    given_up: Position
    ledger: int


class Origin(NamedTuple):
    """Up to where data was given up, and the ledger that comes next; and what trims add to it."""

    given_up: Position
    ledger: int
    trims: tuple[Trim, ...] = ()

    @classmethod
    def parse(cls, text: str, trims: Mapping[str, str]) -> Origin:
        """Read the property ``pulsar_txn_spark.origin``, and those of trims by their names."""
        begun = (Trim(name, *_position_and_ledger(trim)) for name, trim in trims.items())
        return cls(*_position_and_ledger(text), tuple(begun))

    def gone(self, first_ledger: int) -> Position:
        """Return up to where data is gone if that is the first ledger that is there."""
        for trim in self.trims:
            if trim.ledger == first_ledger:
                return trim.given_up
        if first_ledger <= self.ledger:
            return self.given_up
        # In the middle of a trim, or removed by somebody else.
        return Position(first_ledger, -1)

    def tells_of(self, first_ledger: int) -> bool:
        """Tell whether no trim that was begun later can have led to that first ledger."""
        return first_ledger <= max([self.ledger, *(trim.ledger for trim in self.trims)])

    def unfinished(self, first_ledger: int) -> Trim | None:
        """Return the longest trim of which the broker has still to remove ledgers."""
        longest = max(self.trims, key=lambda trim: trim.ledger, default=None)
        return longest if longest is not None and first_ledger < longest.ledger else None

    def outdated(self, first_ledger: int) -> list[str]:
        """Return the properties of trims that no first ledger is going to ask for any more."""
        return [trim.name for trim in self.trims if trim.ledger < first_ledger]


def _position_and_ledger(text: str) -> tuple[Position, int]:
    position, _, ledger = text.partition(",")
    return Position.parse(position), int(ledger)


@dataclass(slots=True)
class KnownTopic:
    """What is known of a segment's topic.

    Parameters
    ----------
    read_at : float
        When its properties were asked for, by the monotonic clock, in seconds.
    origin : Origin, optional
        None if nothing was ever written.
    gated : bool
        Whether the brokers gate it. A topic is created so, or never is.
    contains_txn : str
        The property of PIP-373 as it was last seen, or set.
    ledgers : set of int
        Those that are its own for certain.
    """

    read_at: float
    origin: Origin | None
    gated: bool
    contains_txn: str
    ledgers: set[int] = field(default_factory=set)


class KnownTopics:
    """What was learned of topics while a connection to their broker was open."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._topics: dict[SegmentRef, KnownTopic] = {}

    def get(self, segment: SegmentRef) -> KnownTopic | None:
        """Return what is known of the segment's topic."""
        return self._topics.get(segment)

    def learn(self, segment: SegmentRef, topic: KnownTopic) -> None:
        """Note what is known of a topic, unless it was read before the connection was opened."""
        if topic.read_at >= self._since:
            self._topics[segment] = topic

    def forget(self, segment: SegmentRef) -> None:
        """Let the topic be asked again."""
        self._topics.pop(segment, None)
