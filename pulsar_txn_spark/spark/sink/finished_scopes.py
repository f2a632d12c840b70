"""Which scopes this process has finished: in one attempt, a second one of a sink is no replay.

The store cannot tell it in a replay: the sink's pointer names the attempt that has committed.
"""

from __future__ import annotations

from pulsar_txn_spark.txn.batch import BatchKey, second_write

_SINKS_NOTED = 1024  # one entry each; who writes to more at a time is not checked in replays


class FinishedScopes:
    """The last batch of each sink that this process has finished, and the attempt at it."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[int, str]] = {}

    def require_first(self, key: BatchKey, attempt: str) -> None:
        """Require that this attempt has not finished the batch in the sink before.

        Raises
        ------
        TransactionConflictError
        """
        if attempt and self._last.get((key.sink, key.query)) == (key.batch, attempt):
            raise second_write(key)

    def note(self, key: BatchKey, attempt: str) -> None:
        """Remember what was finished; the sink that was noted first may be forgotten."""
        self._last[key.sink, key.query] = (key.batch, attempt)
        while len(self._last) > _SINKS_NOTED:
            self._last.pop(next(iter(self._last)), None)


FINISHED = FinishedScopes()
