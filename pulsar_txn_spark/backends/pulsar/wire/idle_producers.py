"""Keeps producers open for the next writer of their topics.

Each transaction has writers of its own, whose names are in their entries. A producer of that name
would cost a broker a request for each of them. With deduplication, the broker would keep the name
for six hours or more, too. So a writer of a transaction takes a producer that waits here, and gives
it back once all of its entries have receipts.

The entries of one producer have ascending sequence ids, whichever writers they are of.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

MOST = 256
"""Producers of a process and configuration that wait; beyond that the oldest are closed."""

LONGEST_S = 60.0
"""Producers that nobody has used for so long are closed when another one begins to wait."""


class ReusableProducer(Protocol):
    """A producer that may wait for the next writer."""

    topic: str

    def can_wait(self) -> bool:
        """Tell whether another writer may use it, as far as is known."""
        ...

    def leave(self) -> None:
        """Close it."""
        ...


Producer = TypeVar("Producer", bound=ReusableProducer)


class IdleProducers(Generic[Producer]):
    """The producers of a client that wait: of a topic as many as were in use at once.

    Parameters
    ----------
    clock : callable
        Returns a time in seconds that never goes back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Producer, float] = OrderedDict()  # since when; oldest first

    def take(self, topic: str) -> Producer | None:
        """Return a producer of a topic that waits no longer, None if there is none."""
        with self._lock:
            of_topic = [producer for producer in self._waiting if producer.topic == topic]
            for producer in reversed(of_topic):
                del self._waiting[producer]
                if producer.can_wait():
                    return producer
        return None

    def put(self, producer: Producer) -> None:
        """Let a producer wait, or close it if it cannot be used again."""
        if not producer.can_wait():
            producer.leave()
            return
        now = self._clock()
        closing = []
        with self._lock:
            self._waiting[producer] = now
            while len(self._waiting) > MOST or now - self._longest() > LONGEST_S:
                closing.append(self._waiting.popitem(last=False)[0])
        for unused in closing:
            unused.leave()

    def _longest(self) -> float:
        return next(iter(self._waiting.values()))
