"""Spares an idle source the polls that would find nothing.

Spark requests the latest offset of an idle source a hundred times a second. A poll that has found
nothing beyond its start is not repeated until an event concerns one of its segments. Every poll
that does run reads every gate (INV-4). A superfluous event therefore costs one poll. Some
changes send no event and are noticed a second later. These are the end of a lease, the end of a
trigger's delay, and a new topic that matches a pattern. Rows that another producer wrote to a
segment's topic are noticed later still (:mod:`.snapshot_schedule`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.store.records import TxnId
from pulsar_txn_spark.txn.watcher import SegmentWatcher


class IdleWatch:
    """Remembers a poll that found nothing, and watches for what could change that.

    Parameters
    ----------
    components : Components
    """

    def __init__(self, components: Components) -> None:
        self._components = components
        self._watcher: SegmentWatcher | None = None
        self._nothing_beyond: Mapping[str, Any] | None = None

    def unchanged_since(self, start: Mapping[str, Any]) -> bool:
        """Tell whether there is certainly nothing new beyond `start`."""
        if start == self._nothing_beyond and self._is_quiet():
            return True
        self._nothing_beyond = None
        return False

    def before_poll(self) -> None:
        """Forget the events up to now: a complete poll comes next."""
        self._is_quiet()

    def _is_quiet(self) -> bool:
        """Tell whether nothing has happened since this was asked before."""
        watcher = self._watcher
        try:
            # Without any segment, as before the first topic of a pattern, only topics can be due.
            return watcher is not None and not watcher.poll() and not watcher.topics_were_due
        except PulsarTxnError:
            # The poll that comes now asks the store itself: it reports what is still wrong, and
            # watches anew.
            self.close()
            return False

    def watch(self, segments: Collection[SegmentRef], topics: Iterable[str]) -> None:
        """Watch these segments and topics from now on; call it before reading the segments' ends.

        A segment or topic that was not watched before leads to one more poll: a topic may have
        changed since its topology was read. Producers of a native topic send no events, so with
        one of those nothing is watched, and nothing is spared.

        Raises
        ------
        StoreUnavailableError, StoreRolledBackError
        """
        if any(segment.in_pulsar_domain for segment in segments):
            self.close()
            return
        if self._watcher is None:
            self._watcher = self._components.watcher()
        self._watcher.follow([segment.id for segment in segments], list(topics))

    def after_poll(
        self, start: Mapping[str, Any], blocked_by: Mapping[str, Iterable[TxnId]], *, is_empty: bool
    ) -> None:
        """Note whether a poll has found nothing, and which transactions block which segment."""
        self._nothing_beyond = dict(start) if is_empty else None
        if self._watcher is not None:
            for segment, txns in blocked_by.items():
                self._watcher.blocked_by(segment, txns)

    def close(self) -> None:
        """Watch nothing any more; until :meth:`watch`, nothing is spared."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            with suppress(PulsarTxnError):
                watcher.close()
