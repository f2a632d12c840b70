"""How objects are closed that may be closed twice, or at the end of a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType

from pulsar_txn_spark.backports import Self


class Closing(ABC):
    """What is closed by ``close()``, or at the end of a ``with`` block; idempotent."""

    _closed = False

    def close(self) -> None:
        """Let go of everything it holds; a second call does nothing."""
        if not self._closed:
            # First the word: who looks for it while this goes on begins nothing new.
            self._closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Close it, for the first time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
