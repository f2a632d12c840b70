"""Sweeps: abort what expired, materialize what was decided, collect what nobody needs.

No progress depends on a sweep: whoever is blocked completes the transaction on behalf of its owner
(:meth:`.TransactionCoordinator.complete_on_behalf`). Sweeps keep the metadata small, and finish the
changes of segments that somebody has left half done. Any number may run at once, in any driver;
every step may be repeated.

What goes, and when:

- *operation records* go when every segment of the transaction has materialized it;
- a *header* goes after the retention, when moreover each of its segments is closed for it and the
  sink's pointer knows its decision (INV-6). However slow a participant: no header is forced out;
- *resolved marks* of a segment go when it is closed for them;
- *dropped writers* go when the log has deleted everything that was there when the segment was
  closed for them. The floor then keeps out what a zombie may append later (INV-5).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pulsar_txn_spark.errors import (
    PulsarTxnError,
    SegmentLogError,
    SegmentLogUnreachableError,
    StoreCorruptError,
    StoreFullError,
    StoreRolledBackError,
    StoreUnavailableError,
    TransactionConflictError,
    TransactionError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.store.decoding import outcome_of, pointer_of
from pulsar_txn_spark.store.metadata_pb2 import Pointer
from pulsar_txn_spark.store.records import Code, EndedBy, TxnHeader, TxnId, TxnState
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from pulsar_txn_spark.txn.participants import Participants
from pulsar_txn_spark.unavailable_logs import UnavailableLogs

_LOG = logging.getLogger(__name__)

DEFAULT_RETENTION_MS = 60_000
"""How long a decided header stays at least (PIP-471's example of a retention window)."""

DEFAULT_INTERVAL_S = 30.0
"""Least time between two sweeps of one process: half of the retention, so that headers
go in time."""

DEFAULT_BUSY_S = 10.0
"""How long a sweep that has much to do goes on: a third of the interval. So it keeps up with what
ends meanwhile, and yet ends soon when it is told to."""

STAGE_UNUSED_MS = 86_400_000
"""A day without a sign of life of a scope, before what it has staged goes. It gives one four times
in a lease (`txn.timeoutMs`, at most a day), so that a living one is never taken for dead."""

_AT_A_TIME = 500  # transactions of a TC that a round of a sweep deals with: bounds its memory
_PAGE = 5_000  # index entries that a round reads: bounds what one script costs
# What is wrong with one transaction or segment, and no reason to leave the others alone.
_ONE_IS_BROKEN = (StoreCorruptError, StoreFullError, TransactionError, SegmentLogError, ValueError)
_POINTER_TRIES = 4
_PULSAR_PENDING = (
    "a client of Pulsar's own has opened it, and its broker has not ended it in every topic. It "
    "does so when it opens the coordinator, at the latest when another such client comes"
)
_COMPLETION_ROUNDS = 16  # each gets one transaction out of the way of a segment's closing


@dataclass(slots=True)
class SweepReport:
    """What a sweep has done.

    ``stuck`` names transactions that could not be materialized, or whose header is past its
    retention but could not go, and why. ``waiting`` counts headers past their retention that wait
    for an older transaction of their TC to end. ``stages_removed`` counts the dead scopes of which
    what they had staged went. ``changes_finished`` counts the splits, merges and seals that
    somebody had left half done, ``topics_deleted`` the topics half deleted. ``segments_trimmed``
    and ``segments_deleted`` count those of which the topics' retention has let data go.
    """

    aborted: int = 0
    materialized: int = 0
    headers_removed: int = 0
    segments_closed: int = 0
    dropped_removed: int = 0
    stages_removed: int = 0
    changes_finished: int = 0
    topics_deleted: int = 0
    segments_trimmed: int = 0
    segments_deleted: int = 0
    waiting: int = 0
    stuck: tuple[str, ...] = ()

    def note_stuck(self, what: TxnId | str, why: object) -> None:
        """Add one that could not be dealt with, once."""
        message = f"{what}: {why}"
        if message not in self.stuck:
            self.stuck = (*self.stuck, message)


@dataclass(frozen=True, slots=True)
class SegmentEnds:
    """What the log says of a segment: its LAC, and the highest position that was deleted."""

    confirmed: Position
    deleted: Position


MaintenanceTask = Callable[[SweepReport], None]
"""Something else that a sweep does; it adds to the report what it has done."""


class Sweeper:
    """Runs sweeps over all TCs of a store.

    Parameters
    ----------
    coordinator : TransactionCoordinator
    ends : callable
        Asks the log for a segment's ends, None if the segment is not known (any more).
    retention_ms : int
        How long a decided header stays at least.
    busy_s : float
        How long a sweep goes on while it gets further; it deals with each TC once in any case.
    maintenance_tasks : sequence of callable
        What is looked after besides, after the transactions.
    """

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        ends: Callable[[str], SegmentEnds | None],
        retention_ms: int = DEFAULT_RETENTION_MS,
        busy_s: float = DEFAULT_BUSY_S,
        maintenance_tasks: Sequence[MaintenanceTask] = (),
    ) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._ends = ends
        self._retention_ms = retention_ms
        self._busy_s = busy_s
        self._maintenance_tasks = maintenance_tasks
        # Where in a TC's index to go on, so that headers that cannot go do not hide those behind.
        self._offsets: dict[int, int] = {}
        self._unavailable = UnavailableLogs()

    def sweep(self) -> SweepReport:
        """Sweep every TC once, and those on that have more to do, as far as time allows.

        A maintenance task that fails keeps no other one from its work.

        Raises
        ------
        StoreUnavailableError, StoreRolledBackError
            At once.
        PulsarTxnError
            The first one of a maintenance task, after all of them.
        """
        report = SweepReport()
        self._unavailable.begin()
        until = time.monotonic() + self._busy_s
        busy = list(range(self._store.identity.coordinators))
        while busy:
            busy = [tc for tc in busy if self._sweep_once(tc, report)]
            if time.monotonic() >= until:
                break
        for tc in range(self._store.identity.coordinators):
            self._sweep_stages(tc, report)
        failed: list[PulsarTxnError] = []
        for task in self._maintenance_tasks:
            try:
                task(report)
            except (StoreUnavailableError, StoreRolledBackError):
                raise
            except PulsarTxnError as error:
                failed.append(error)
        self._store.flush_counters()
        if failed:
            raise failed[0]
        return report

    def _sweep_stages(self, tc: int, report: SweepReport) -> None:
        """Delete what scopes have staged that died without a transaction."""
        seen = _AT_A_TIME
        while seen == _AT_A_TIME:
            seen, removed = self._store.stages.sweep(
                tc, unused_ms=STAGE_UNUSED_MS, limit=_AT_A_TIME
            )
            report.stages_removed += removed

    def settle(self, segment: str, report: SweepReport) -> None:
        """Let dropped writers of a segment go of which the log has deleted every entry (INV-5)."""
        for tc in range(self._store.identity.coordinators):
            below, _ = self._store.transactions.lowest_open(tc)
            why = self._close(segment, tc, below, report)
            if why is not None:
                report.note_stuck(f"the trimmed segment {segment}", why)

    def _sweep_once(self, tc: int, report: SweepReport) -> bool:
        """Deal with the oldest of a TC; tell whether another round gets further."""
        expired = self._abort_expired(tc, report)
        return self._collect(tc, report) or expired

    def _abort_expired(self, tc: int, report: SweepReport) -> bool:
        _, now_ms = self._store.transactions.lowest_open(tc)
        expired = self._store.transactions.list_open(tc, deadline_ms=now_ms, limit=_AT_A_TIME)
        before = report.aborted
        for txn, _ in expired:
            try:
                self._coordinator.abort(txn, EndedBy.EXPIRED, cause="its lease was over")
            except TransactionConflictError:
                continue  # its owner came back in between
            except TransactionNotFoundError:
                continue  # another sweep has ended and collected it
            except _ONE_IS_BROKEN as error:
                report.note_stuck(txn, error)
                continue
            report.aborted += 1
        return len(expired) == _AT_A_TIME and report.aborted > before

    def _collect(self, tc: int, report: SweepReport) -> bool:
        # Sweep step 1: F, below which everything is decided.
        below, now_ms = self._store.transactions.lowest_open(tc)
        # Sweep step 2: materialize what is decided.
        pending = self._store.transactions.list_unmaterialized(tc, limit=_AT_A_TIME)
        before = report.materialized
        for txn, header in zip(pending, self._store.transactions.read_many(pending), strict=True):
            self._complete(txn, header, report)
        more_pending = len(pending) == _AT_A_TIME and report.materialized > before
        # Sweep step 3: close the segments, so that nobody registers anything below F there again.
        # The script refuses while anything below F is still registered.
        offset = self._offsets.get(tc, 0)
        page = self._store.transactions.list_due(
            tc,
            finalized_ms=now_ms - self._retention_ms,
            below=below,
            offset=offset,
            page=_PAGE,
            limit=_AT_A_TIME,
        )
        report.waiting += page.waiting
        headers = zip(page.txns, self._store.transactions.read_many(page.txns), strict=True)
        completed = [self._complete(txn, header, report) for txn, header in headers]
        due = [header for header in completed if header is not None]
        segments = {s for header in due for s in Participants.of(header.intents).segments}
        open_ends = {
            segment: why
            for segment in self._unavailable.in_order(sorted(segments))
            if (why := self._close(segment, tc, below, report)) is not None
        }
        # Sweep step 4: headers go whose every participant is through.
        free = []
        for header in due:
            try:
                why = self._retained_by(header, open_ends)
            except _ONE_IS_BROKEN as error:
                why = str(error)
            if why is None:
                free.append(header.txn)
            else:
                report.note_stuck(header.txn, why)
        answers = self._store.transactions.remove_many(free)
        for txn, answer in zip(free, answers, strict=True):
            if answer.code is Code.PENDING:
                report.note_stuck(txn, _PULSAR_PENDING)
        removed = sum(answer.code in (Code.OK, Code.ABSENT) for answer in answers)
        report.headers_removed += removed
        self._offsets[tc] = offset + page.seen - removed if page.more else 0
        # Where nothing could go, the next sweep looks behind: this one would only scan on.
        return more_pending or (page.more and removed > 0)

    def _complete(
        self, txn: TxnId, header: TxnHeader | None, report: SweepReport
    ) -> TxnHeader | None:
        """Materialize a decision; None if its header is gone, or it cannot be materialized."""
        try:
            if header is not None and not header.materialized:
                self._coordinator.materialize(header)
                report.materialized += 1
                header = replace(header, materialized=True)
            if header is not None:
                Participants.of(header.intents)
        except _ONE_IS_BROKEN as error:
            report.note_stuck(txn, error)
            return None
        return header

    def _close(self, segment: str, tc: int, below: int, report: SweepReport) -> str | None:
        """Close a segment; return why it could not be closed."""
        try:
            with self._unavailable.attempt(segment):
                return self._try_close(segment, tc, below, report)
        except SegmentLogUnreachableError:
            raise  # nothing is wrong with this segment, and the next one would wait as long
        except _ONE_IS_BROKEN as error:
            return f"segment {segment} is not closed for it: {error}"

    def _try_close(self, segment: str, tc: int, below: int, report: SweepReport) -> str | None:
        answer = self._store.segments.close(segment, tc, below)
        missing: set[TxnId] = set()
        for _ in range(_COMPLETION_ROUNDS):
            if answer.code is not Code.PENDING:
                break
            # A pin of a transaction below F: it is decided, so to complete it removes the pin.
            assert answer.holder is not None
            self._coordinator.complete_on_behalf([answer.holder], missing)
            answer = self._store.segments.close(segment, tc, below)
        closed = answer.code in (Code.OK, Code.MORE)
        while answer.code is Code.MORE:  # it ends: below `closed` no mark is added any more
            answer = self._store.segments.close(segment, tc, below)
        if answer.code is Code.PENDING:
            return f"segment {segment} is not closed for it: {answer.holder} is in the way"
        report.segments_closed += closed
        # The LAC is read after everything below F was decided and closed here: see seg_floor.lua.
        ends = self._ends(segment)
        if ends is not None:
            floor = self._store.segments.raise_floor(
                segment, tc, below, ends.confirmed, ends.deleted
            )
            report.dropped_removed += floor.removed
        return None

    def _retained_by(self, header: TxnHeader, open_ends: dict[str, str]) -> str | None:
        """Return who still needs a header, None if nobody does."""
        participants = Participants.of(header.intents)
        for segment in participants.segments:
            if segment in open_ends:
                return open_ends[segment]
        if participants.pointer is not None:
            return self._teach(participants.pointer, header)
        return None

    def _teach(self, pointed: tuple[str, str], header: TxnHeader) -> str | None:
        """Write a decision into the sink's pointer; return why the header is needed even so."""
        query, sink = pointed
        for _ in range(_POINTER_TRIES):
            read = self._store.sinks.read_pointer(sink, query)
            pointer = pointer_of(sink, read.own) if read.own else None
            if pointer is None or pointer.txn_id != header.txn.key:
                if moved_on(pointer, header):
                    return None
                return f"an attempt of it may still be about to write the pointer of sink {sink}"
            if pointer.decision != Pointer.UNDECIDED:
                return None
            committed = header.state is TxnState.COMMITTED
            pointer.decision = Pointer.COMMITTED if committed else Pointer.ABORTED
            outcome = outcome_of(header)
            pointer.digest = outcome.digest
            if outcome.HasField("evidence"):
                pointer.evidence.CopyFrom(outcome.evidence)
            record = pointer.SerializeToString(deterministic=True)
            if self._store.sinks.swap_pointer(
                sink, query, read, record, current=read.current_query
            ):
                return None
        return f"the pointer of sink {sink} changes all the time"


def moved_on(pointer: Pointer | None, header: TxnHeader) -> bool:
    """Tell whether a pointer that does not name a transaction can never come to name it.

    Its attempt makes the header, and then writes the pointer over the value that it read before.
    It may sleep in between for longer than lease and retention. Only where the pointer is known to
    have changed since that reading does its compare-and-set fail.
    """
    if header.state is TxnState.COMMITTED:
        return True  # the pointer named it once
    if pointer is None:
        return False
    return pointer.batch_id > int(header.batch) or header.nonce in pointer.retired_nonces


class BackgroundSweeper:
    """Sweeps in a thread of its own, at most once in a while, where a driver happens to be.

    Parameters
    ----------
    sweeper : Sweeper
    interval_s : float
        Least time between two sweeps of this process.
    """

    def __init__(self, sweeper: Sweeper, interval_s: float = DEFAULT_INTERVAL_S) -> None:
        self._sweeper = sweeper
        self._interval_s = interval_s
        self._triggering = threading.Lock()  # the queries of a driver share one sweeper
        self._thread: threading.Thread | None = None
        self._next = time.monotonic() + interval_s

    def trigger(self) -> None:
        """Start a sweep if it is time for one and none runs. Returns at once."""
        with self._triggering:
            self._trigger()

    def _trigger(self) -> None:
        now = time.monotonic()
        if now < self._next or (self._thread is not None and self._thread.is_alive()):
            return
        self._next = now + self._interval_s
        thread = threading.Thread(target=self._sweep, name="pulsar-txn-sweep", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # Whoever triggers it may have committed: that must not look like a failure.
            _LOG.warning("no sweep was started, the next one is tried later: %s", error)
            return
        self._thread = thread

    def _sweep(self) -> None:
        try:
            report = self._sweeper.sweep()
        except PulsarTxnError as error:
            # A failed sweep must not end a query: the next one goes on where this one stopped.
            _LOG.warning("the sweep did not finish: %s", error)
            return
        for stuck in report.stuck:
            _LOG.warning("the sweep could not deal with %s", stuck)
