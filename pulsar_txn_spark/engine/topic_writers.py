"""Writing the rows of one task to segmented topics that may change while it writes.

A writer that meets a sealed segment sends everything from its first unacknowledged row on, by key,
to the children, in the same transaction. Per topic, that is:

1. the topology in which the children are active is read; a change that was left half done is
   finished first;
2. *every* segment that takes no rows any more is left, also where this task has not met the seal
   yet. A row for a merged child must not overtake one that still waits for its parent;
3. of each of them, what was acknowledged stays under the old name, which is bounded there. If
   nothing was, the name is no winner and is dropped from the start;
4. the rest is routed anew and goes out under a new name, intent and pin first (INV-2).

Where receipts are missing after a lost connection, or prove nothing, the segment stays, and only
3 and 4 are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from pulsar_txn_spark.closing import Closing
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import (
    SegmentLogUnavailableError,
    SegmentNotFoundError,
    SegmentSealedError,
    TopologyConflictError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.segments.log import Receipt, SegmentRef, SegmentWriter
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import (
    GatedBy,
    Router,
    SegmentState,
    Topology,
    key_groups_of,
)
from pulsar_txn_spark.store.metadata_pb2 import OpRecord, Winner
from pulsar_txn_spark.store.records import TopologyVersion
from pulsar_txn_spark.txn.coordinator import as_record

_MOST_CHANGES = 1024
"""Changes of one topic that a task follows: more of them in one batch mean that something runs
wild."""

_MOST_LOSSES = 16
"""How often in a row a task goes on in a segment under a new name, where nothing of it was proven.
With more of them it is better off if Spark repeats it elsewhere."""

_ENDED = (
    SegmentSealedError,
    SegmentNotFoundError,
    SegmentLogUnavailableError,
    UnverifiedReceiptError,
)
"""Errors after which the rows without a receipt may go elsewhere, or under another name. Whether a
segment has ended is for the topology to say: a deleted one was sealed before."""

Admit = Callable[[int, Sequence[str]], None]
"""``admit(topology_generation, segments)``: lets the writer of that generation append to segments,
intents and pins first. It may be what gives the writer its name."""

Expect = Callable[[TopologyVersion], bool]
"""``expect(version)``: whether the next `Admit` checks that a topology is still of that version. It
raises a TopologyConflictError where it is not, and lets nobody append."""


@dataclass(frozen=True, slots=True)
class Written:
    """What one writer has put into one segment.

    With `bounded`, only its entries up to ``receipt.last`` count: those after it, if any, went out
    again under another name.
    """

    segment: SegmentRef
    writer: str
    receipt: Receipt
    bounded: bool = False


_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def winners_of(written: Sequence[Written]) -> list[Winner]:
    """Return the writers that count, as a commit names them.

    A writer without any receipt is no winner: it is dropped from the start.
    """
    winners = []
    for segment in written:
        if segment.receipt.last is not None:
            last = as_record(segment.receipt.last)
            bound = last if segment.bounded else None
            winners.append(
                Winner(segment=segment.segment.id, writer=segment.writer, last=last, bound=bound)
            )
    return winners


def op_records(written: Sequence[Written]) -> dict[str, bytes]:
    """Return the operation records of what was written, by name."""
    return {f"{w.writer}/{w.segment.id}": _op_record(w) for w in written if w.receipt.entries}


def _op_record(written: Written) -> bytes:
    receipt = written.receipt
    record = OpRecord(
        kind=OpRecord.WRITE,
        segment=written.segment.id,
        writer=written.writer,
        messages=receipt.messages,
        bytes=receipt.bytes,
    )
    if receipt.first is not None and receipt.last is not None:
        record.first.CopyFrom(as_record(receipt.first))
        record.last.CopyFrom(as_record(receipt.last))
    return record.SerializeToString(deterministic=True)


class TopicWriters(Closing):
    """The writers of one task, over all the topics that it has rows for.

    Parameters
    ----------
    components : Components
    name : callable
        Returns the task's writer name of a topology generation: 0, and one more after each change.
    admit : callable or None
        None without transactions.
    round_start : int
        Where the round of rows without a key begins.
    known : Topology, optional
        A topic as it was found a moment ago, which is not looked up again. A segment of it that
        takes no rows any more is met as any other one that has ended.
    expect : callable, optional
        Where it is given, a topic that this process has read before is not looked up again.
    renews : bool
        Whether rows that may be in the log, but have no receipt, go out again by a new writer. In a
        transaction those of the old one do not count. Without one they would be there twice.
    """

    def __init__(
        self,
        components: Components,
        name: Callable[[int], str],
        admit: Admit | None,
        round_start: int,
        known: Topology | None = None,
        expect: Expect | None = None,
        *,
        renews: bool = True,
    ) -> None:
        self._components = components
        self._name = name
        self._admit = admit
        self._round_start = round_start
        self._known = known
        self._expect = expect
        self._renews = renews
        self._outputs: dict[TopicName, _Output] = {}

    def append(self, topic: TopicName, rows: pa.RecordBatch) -> None:
        """Queue rows for a topic.

        Raises
        ------
        TopicNotFoundError, SegmentLogError, TransactionError, StoreError
        """
        output = self._outputs.get(topic)
        if output is None:
            known = self._known if self._known is not None and self._known.topic == topic else None
            last = self._components.topics.last_read(topic) if self._expect is not None else None
            checked = last is not None and bool(last.active) and self._expects(last)
            output = _Output(
                self._components,
                topic,
                self._name,
                self._admit,
                self._round_start,
                last if checked else known,
                checked=checked,
                renews=self._renews,
            )
            self._outputs[topic] = output
        output.append(rows)

    def _expects(self, topology: Topology) -> bool:
        version = TopologyVersion(str(topology.topic), topology.version)
        return self._expect is not None and self._expect(version)

    def finish(self) -> list[Written]:
        """Wait for every receipt; same errors as :meth:`append`."""
        for output in self._outputs.values():
            output.send()
        for output in self._outputs.values():
            output.finish()
        return [written for output in self._outputs.values() for written in output.written()]

    @property
    def has_moved(self) -> bool:
        """Whether rows had to go elsewhere. How often, and what they left, is kept to the end."""
        return any(output.has_moved for output in self._outputs.values())

    @property
    def is_open(self) -> bool:
        """Whether a writer is open. It waits for nothing, so that a finalizer may ask."""
        return not self._closed and any(output.is_open for output in self._outputs.values())

    def _close(self) -> None:
        """Let go of all connections."""
        for output in self._outputs.values():
            output.close()


class _Open:
    """An open writer, and the rows that it has no receipt of yet."""

    def __init__(self, segment: SegmentRef, name: str, writer: SegmentWriter) -> None:
        self.segment = segment
        self.name = name
        self._writer = writer
        self._unproved: deque[pa.RecordBatch] = deque()
        self._proved = 0  # rows of those that are no longer in there
        self._appended = 0
        self._failed = False
        self._unsent: Exception | None = None

    def append(self, rows: pa.RecordBatch) -> None:
        # Kept before they are sent: an error says nothing of which rows it has hit.
        self._unproved.append(rows)
        self._appended += rows.num_rows
        self._guarded(lambda: self._writer.append(rows))
        self._forget_proved(self._writer.acknowledged())

    def send(self) -> None:
        """Send what is queued; an error after which its rows may go elsewhere is met by flush."""
        try:
            self._guarded(self._writer.send)
        except _ENDED as error:
            self._unsent = error

    def flush(self) -> None:
        if self._unsent is not None:
            raise self._unsent
        self._guarded(self._writer.flush)
        self._forget_proved(self._writer.acknowledged())
        if self._unproved:
            raise UnverifiedReceiptError(
                f"writer {self.name} of segment {self.segment.id}: expected receipts of "
                f"{self._appended} rows, found {self._writer.acknowledged().messages}"
            )

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException:
            self._failed = True
            raise

    def _forget_proved(self, receipt: Receipt) -> None:
        while self._unproved and self._proved + self._unproved[0].num_rows <= receipt.messages:
            self._proved += self._unproved.popleft().num_rows

    def leave(self) -> tuple[Written, list[pa.RecordBatch]]:
        """End here; return what counts, and the rows that have to go elsewhere."""
        try:
            if not self._failed:
                with suppress(*_ENDED):
                    self.flush()
            # Read once: a receipt that comes later counts for nothing, its rows go out again.
            receipt = self._writer.acknowledged()
        finally:
            self.close()  # nobody else knows it any more
        self._forget_proved(receipt)
        rest = list(self._unproved)
        if rest and receipt.messages > self._proved:
            rest[0] = rest[0].slice(receipt.messages - self._proved)
        return Written(self.segment, self.name, receipt, bounded=bool(rest)), rest

    def written(self) -> Written:
        return Written(self.segment, self.name, self._writer.acknowledged())

    def close(self) -> None:
        self._writer.close()


def _flushed(opened: _Open) -> Exception | None:
    """Wait for a writer's receipts; return an error after which its rows may go elsewhere."""
    try:
        opened.flush()
    except _ENDED as error:
        return error
    return None


class _Output:
    """One topic's side of a task: a router, and a writer for each segment that gets rows."""

    def __init__(
        self,
        components: Components,
        topic: TopicName,
        name: Callable[[int], str],
        admit: Admit | None,
        round_start: int,
        known: Topology | None,
        *,
        checked: bool,
        renews: bool,
    ) -> None:
        self._components = components
        self._topic = topic
        self._name = name
        self._admit = admit
        self._round_start = round_start
        self._renews = renews
        self._topology_generation = 0
        self._losses: dict[str, int] = {}  # by segment id, since its last receipt
        self._open: dict[str, _Open] = {}
        self._left: list[Written] = []
        self._is_checked = checked  # by the first admission
        self._begin(known or components.topics.require(topic))

    def _begin(self, topology: Topology) -> None:
        self._topology = topology
        if not self._topology.active:
            # An adoption that was left half done.
            self._topology = self._components.topics.changes.finish(self._topology)
        self._router = Router(self._topology, self._round_start)

    # -- writing -----------------------------------------------------------------------------

    def append(self, rows: pa.RecordBatch) -> None:
        """Queue rows, and whatever has to go out again before them."""
        waiting = deque([rows])
        while waiting:
            waiting.extendleft(reversed(self._place(waiting.popleft())))

    def send(self) -> None:
        """Send what is queued to all segments, so that their receipts are waited for at once."""
        for opened in self._open.values():
            opened.send()

    def finish(self) -> None:
        """Wait for every receipt, wherever the rows have to go for it."""
        waiting = list(self._open.values())
        while waiting:
            unproved: list[pa.RecordBatch] = []
            for opened, error in zip(waiting, self._each(waiting, _flushed), strict=True):
                # What one error has set in motion may have left the others as well.
                if error is not None and self._open.get(opened.segment.id) is opened:
                    unproved += self._follow_topology(opened.segment, error)
            for rows in unproved:
                self.append(rows)
            waiting = list(self._open.values()) if unproved else []

    def written(self) -> list[Written]:
        """Return what counts of all writers, those included that were left."""
        return [*self._left, *(opened.written() for opened in self._open.values())]

    @property
    def has_moved(self) -> bool:
        return self._topology_generation > 0

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def close(self) -> None:
        for opened in self._open.values():
            opened.close()

    def _place(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Hand rows to the segments that own them; return those that have to be placed anew."""
        parts = list(self._routed(rows))
        try:
            met = self._connect([segment for segment, _ in parts])
        except TopologyConflictError:
            if not self._is_checked:
                raise
            # Nothing was done by the topology of an earlier transaction.
            self._is_checked = False
            self._begin(self._components.topics.require(self._topic))
            return [rows]
        if met is not None:
            return [*self._follow_topology(*met), rows]
        for index, (segment, part) in enumerate(parts):
            try:
                self._open[segment.id].append(part)
            except _ENDED as error:
                # The part itself is among the rows that the writer has no receipt of.
                behind = [later for _, later in parts[index + 1 :]]
                return [*self._follow_topology(segment, error), *behind]
        return []

    def _routed(self, rows: pa.RecordBatch) -> Iterator[tuple[SegmentRef, pa.RecordBatch]]:
        names = rows.schema.names
        keys = rows.column(names.index("key")) if "key" in names else None
        routed = self._router.route(keys, rows.num_rows)
        segments = self._router.segments
        counts = np.bincount(routed)
        used = np.flatnonzero(counts).tolist()
        gated = self._topology.gate is GatedBy.BROKER
        if len(used) == 1 and not gated:
            yield segments[used[0]].ref, rows
            return
        # One stable sort, then slices: rows of a segment stay in order and are copied once.
        if gated:
            # A batch takes keys of one group only: see WireSegmentWriter.
            order = np.lexsort((key_groups_of(rows), routed))
        else:
            order = np.argsort(routed, kind="stable")
        # Not pa.array: its first call in a process imports pandas, 0.2 s of the first batch.
        indices = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)])
        ordered = rows.take(indices)
        start = 0
        for index, count in zip(used, counts[used].tolist(), strict=True):
            yield segments[index].ref, ordered.slice(start, count)
            start += count

    def _connect(self, segments: Sequence[SegmentRef]) -> tuple[SegmentRef, Exception] | None:
        """Open a writer for each segment that has none; return the first end that this meets."""
        new = [segment for segment in segments if segment.id not in self._open]
        if not new:
            return None
        if self._admit is not None:
            try:
                self._admit(self._topology_generation, [segment.id for segment in new])
                self._is_checked = False
            except SegmentSealedError as error:
                # Deleted since this task has read the topology.
                active = {s.ref.id for s in self._components.topics.require(self._topic).active}
                gone = [segment for segment in new if segment.id not in active]
                if not gone:
                    raise
                return gone[0], error
        name = self._name(self._topology_generation)
        errors = self._each(new, partial(self._open_writer, name))
        return next(((s, error) for s, error in zip(new, errors, strict=True) if error), None)

    def _open_writer(
        self, name: str, segment: SegmentRef
    ) -> SegmentSealedError | SegmentNotFoundError | None:
        try:
            writer = self._components.log.writer(segment, name)
        except (SegmentSealedError, SegmentNotFoundError) as error:
            return error
        self._open[segment.id] = _Open(segment, name, writer)
        return None

    def _each(self, items: Sequence[_Item], action: Callable[[_Item], _Result]) -> list[_Result]:
        """Do the same for each of them, several at once where each one waits for a server."""
        at_once = min(len(items), self._components.log.at_once)
        if at_once <= 1:
            return [action(item) for item in items]
        with ThreadPoolExecutor(at_once, "pulsar-txn-segment") as pool:
            return list(pool.map(action, items))

    # -- segments that end -------------------------------------------------------------------

    def _follow_topology(self, segment: SegmentRef, error: Exception) -> list[pa.RecordBatch]:
        """Follow the topology to where a segment's rows go now; return the rows without receipt.

        Raises
        ------
        SegmentSealedError, SegmentNotFoundError, SegmentLogUnavailableError
            The given error, if the segment has no successor.
        """
        if isinstance(error, UnverifiedReceiptError):
            return self._renew(segment, error)
        if isinstance(error, SegmentLogUnavailableError) and not self._renews:
            raise error  # its rows may be in the log, whatever became of the segment since
        topology = self._successors(segment, error)
        self._topology_generation += 1
        if self._topology_generation > _MOST_CHANGES:
            raise error
        self._topology = topology
        self._router = Router(topology, self._round_start)
        active = {segment.ref.id for segment in topology.active}
        rest: list[pa.RecordBatch] = []
        for id_ in [id_ for id_ in self._open if id_ not in active]:
            written, unproved = self._open.pop(id_).leave()
            self._left.append(written)
            rest += unproved
        return rest

    def _renew(self, segment: SegmentRef, error: UnverifiedReceiptError) -> list[pa.RecordBatch]:
        """Leave a writer of which nobody can tell what it has written; return what has no receipt.

        What lies behind its last receipt is dropped by the bound, so that it may go out again.

        Raises
        ------
        UnverifiedReceiptError
            If that has happened too often, or the rows may not be there twice.
        """
        if not self._renews:
            raise error
        losses = self._losses.get(segment.id, 0) + 1
        if losses > _MOST_LOSSES:
            raise error
        self._topology_generation += 1
        written, unproved = self._open.pop(segment.id).leave()
        self._losses[segment.id] = losses if written.receipt.last is None else 0
        self._left.append(replace(written, bounded=True))
        return unproved

    def _successors(self, segment: SegmentRef, error: Exception) -> Topology:
        topics = self._components.topics
        # A topic of the same name is not this one's successor. What was written before is gone. A
        # transaction that went on there would be torn (INV-12).
        topology = topics.lifecycle.reread(self._topology, "this task wrote to it")
        if isinstance(error, SegmentSealedError):
            # Whoever began the change may be dead: then it is finished here.
            topology = topics.changes.await_or_finish(topology)
        successor = topology.by_id.get(segment.id)
        if successor is not None and successor.state is SegmentState.ACTIVE:
            if not isinstance(error, SegmentSealedError):
                raise error  # the log is out of reach or gone, but nothing says that it was sealed
            raise SegmentSealedError(
                f"segment {segment.id} of {segment.topic} is sealed in the log ({error}), but "
                "nobody has planned a successor: it was terminated past pulsar_txn_spark. Give it "
                f"one (pulsar-txn topic seal {segment.topic} {successor.descriptor}); the query "
                "goes on when it is started again"
            ) from error
        return topology
