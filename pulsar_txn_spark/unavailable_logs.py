"""Lets a pass over topics or segments go on although the logs of some are not available."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pulsar_txn_spark.errors import SegmentLogUnavailableError, SegmentLogUnreachableError

PATIENCE_S = 30.0
"""How long a pass waits in all for logs that are not available: about ten that answer 503."""

_REMEMBERED = 10_000  # bounds the memory


class UnavailableLogs:
    """Which logs were not available, and how long a pass has waited for them.

    A topic that its broker refuses keeps no other from being looked at. Passes look at such topics
    last. A pass that has waited for long ends early, and the next one begins with what is left.
    """

    def __init__(self) -> None:
        self._failed: dict[str, tuple[float, str]] = {}  # when, and why; the latest one last
        self.begin()

    def begin(self) -> None:
        """Begin a pass."""
        self._began = time.monotonic()
        self._waited_s = 0.0

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return names in the order in which a pass looks at them."""
        never = (-math.inf, "")
        return sorted(names, key=lambda name: self._failed.get(name, never)[0])

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Look at a topic or segment, unless it would fail again.

        Raises
        ------
        SegmentLogUnavailableError
            Without an attempt, if one of this pass has failed, or the pass has waited for too long.
        """
        at, why = self._failed.get(name, (-math.inf, ""))
        if at > self._began:
            raise SegmentLogUnavailableError(why)
        if self._waited_s > PATIENCE_S:
            raise SegmentLogUnavailableError(
                f"it was not looked at, as others were not available for {self._waited_s:.0f} s. "
                "The next sweep of this process begins with it"
            )
        began = time.monotonic()
        try:
            yield
        except SegmentLogUnreachableError:
            raise
        except SegmentLogUnavailableError as error:
            now = time.monotonic()
            self._waited_s += now - began
            self._failed.pop(name, None)
            if len(self._failed) >= _REMEMBERED:
                del self._failed[next(iter(self._failed))]
            self._failed[name] = (now, str(error))
            raise
        self._failed.pop(name, None)
