"""What a source need not ask for while nothing happens.

Spark asks an idle source for its latest offset a hundred times a second. A source that has found
nothing beyond its start need not look again before something happens to its segments; every look
that it does take is a whole one (INV-4). So a wake-up that came too often costs a look, and one
that does not come (a lease that ended, a topic that matches a pattern only now, rows that a
stranger's producer wrote to a segment's topic) a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pulsar_txn_spark.engine.components import Runtime
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.txn.watcher import SegmentWatcher


class IdleWatch:
    """Remembers a look that found nothing, and watches for what could change that.

    Parameters
    ----------
    run : Runtime
    """

    def __init__(self, run: Runtime) -> None:
        self._run = run
        self._watcher: SegmentWatcher | None = None
        self._nothing_beyond: Mapping[str, Any] | None = None

    def still(self, start: Mapping[str, Any]) -> bool:
        """Tell whether there is certainly nothing new beyond `start`."""
        if self._watcher is None or start != self._nothing_beyond:
            return False
        try:
            if not self._watcher.poll():
                return True
        except PulsarTxnError:
            # What is wrong is found by the look that comes now, and reported by it.
            self.close()
        self._nothing_beyond = None
        return False

    def begin(self) -> None:
        """Forget what has happened up to now: a look at everything comes next.

        Raises
        ------
        StoreUnavailableError, StoreRolledBackError
        """
        if self._watcher is not None:
            self._watcher.poll()

    def before(self, segments: Collection[SegmentRef], topics: Iterable[str]) -> None:
        """Watch these segments and topics from now on; call it before looking at the segments.

        What is new among them is looked at once more: a topic may have changed since its topology
        was read. Who writes to a topic of Pulsar's own domain announces nothing: with one of those
        every question is a look.

        Raises
        ------
        StoreUnavailableError, StoreRolledBackError
        """
        if any(segment.in_pulsar_domain for segment in segments):
            self.close()
            return
        if self._watcher is None:
            self._watcher = self._run.watcher()
        self._watcher.follow([segment.id for segment in segments], list(topics))

    def after(
        self, start: Mapping[str, Any], held: Mapping[str, Iterable[TxnId]], *, nothing: bool
    ) -> None:
        """Note what a look has found: whether anything, and who holds which segment."""
        self._nothing_beyond = dict(start) if nothing else None
        if self._watcher is not None:
            for segment, txns in held.items():
                self._watcher.held(segment, txns)

    def close(self) -> None:
        """Watch nothing any more; until :meth:`before`, every question is a look."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with suppress(PulsarTxnError):
                watcher.close()
