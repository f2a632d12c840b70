"""Keeps what a client has opened on a broker for the next one who needs it in the same process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

MOST = 256
"""So many of a process and configuration wait; beyond that the oldest are closed."""

LONGEST_S = 60.0
"""What nobody has used for so long is closed when something else begins to wait."""


class Reusable(Protocol):
    """What may wait for the next one who needs it."""

    topic: str

    def can_wait(self) -> bool:
        """Tell whether it can be used again, as far as is known."""
        ...

    def leave(self) -> None:
        """Close it."""
        ...


Item = TypeVar("Item", bound=Reusable)


class IdlePool(Generic[Item]):
    """What waits in a client, by topic.

    Parameters
    ----------
    clock : callable
        Returns a time in seconds that never goes back.
    """

    most_of_topic = MOST

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: OrderedDict[Item, float] = OrderedDict()  # oldest first
        self._of_topic: dict[str, list[Item]] = {}  # the same, by topic

    def put(self, item: Item) -> None:
        """Let it wait, or close it if it cannot be used again."""
        if not item.can_wait():
            item.leave()
            return
        now = self._clock()
        with self._lock:
            self._since[item] = now
            own = self._of_topic.setdefault(item.topic, [])
            own.append(item)
            closing = [self._remove(own[0])] if len(own) > self.most_of_topic else []
            while len(self._since) > MOST or now - next(iter(self._since.values())) > LONGEST_S:
                closing.append(self._remove(next(iter(self._since))))
        for unused in closing:
            unused.leave()

    def _take(self, topic: str) -> Item | None:
        """Return what has waited last of a topic and waits no longer, None if nothing waits."""
        with self._lock:
            own = self._of_topic.get(topic)
            return self._remove(own[-1]) if own else None

    def _remove(self, item: Item) -> Item:
        del self._since[item]
        own = self._of_topic[item.topic]
        own.remove(item)
        if not own:
            del self._of_topic[item.topic]
        return item
