"""Lets a micro-batch wait for messages, as `minMessagesPerTrigger` and `maxTriggerDelay` say."""

from __future__ import annotations

import time
from collections.abc import Callable


class TriggerDelay:
    """Decides whether a micro-batch waits until there is more to read.

    The first micro-batch of a process never waits, as with Spark's Kafka source.

    Parameters
    ----------
    min_messages : int or None
        Fewer than these wait; None = nothing does.
    max_delay_ms : int
        Longest time between two micro-batches, as long as there is something to read.
    clock : callable, optional
        Returns seconds.
    """

    def __init__(
        self,
        min_messages: int | None,
        max_delay_ms: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._min_messages = min_messages
        self._max_delay_s = max_delay_ms / 1000
        self._clock = clock
        self._last = float("-inf")

    def waits(self, count: Callable[[], int]) -> bool:
        """Tell whether a micro-batch of so many messages waits; if it does not, it begins now."""
        if self._min_messages is None:
            return False
        if self._clock() - self._last < self._max_delay_s and count() < self._min_messages:
            return True
        self._last = self._clock()
        return False
