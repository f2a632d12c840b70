"""What a segment's topic says of itself in its properties, and what a process remembers of it.

A task of Spark lasts for one micro-batch, its process for many. So what one task has read of a
topic serves the next ones, as long as the connection to the topic's broker lives. A broker that was
restarted, and a topic that went to another broker, are asked again. That the topic is still the
same one is proven by each receipt: no two topics of a cluster have a ledger in common. For the
first receipt of a ledger the topic's properties are read, behind the append.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.log import SegmentRef


class Origin(NamedTuple):
    """Up to where data was given up, and the ledger that comes next; and what a trim adds to it."""

    given_up: Position
    ledger: int
    trim: tuple[Position, int] | None = None

    @classmethod
    def parse(cls, text: str, trim: str | None) -> Origin:
        """Read the properties ``pulsar_txn_spark.origin`` and ``pulsar_txn_spark.trim``."""
        return cls(*_position_and_ledger(text), _position_and_ledger(trim) if trim else None)

    def gone(self, first_ledger: int) -> Position:
        """Return up to where data is gone if that is the first ledger that is there."""
        for given_up, ledger in filter(None, [self.trim, (self.given_up, self.ledger)]):
            if first_ledger == ledger:
                return given_up
        if first_ledger < self.ledger:
            return self.given_up
        # In the middle of a trim, or removed by somebody else.
        return Position(first_ledger, -1)

    def unfinished(self, first_ledger: int) -> bool:
        """Tell whether the broker has still to remove ledgers."""
        return self.trim is not None and first_ledger < self.trim[1]


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
