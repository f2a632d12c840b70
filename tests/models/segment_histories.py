"""Random histories of a topic whose segments change, and what has to hold in each of them.

A history is a list of moves: tasks write, commit, abort or die; operators split, merge and seal,
and may be killed at each step of it, or not hear of its effect; readers go on in micro-batches of
any size. One is there from the beginning, others come later and begin at the earliest position: the
Spark source, and a client's consumer with a new subscription. After every move the ranges tile, and
each reader has seen a prefix of each key's committed rows; in the end it has seen all of them.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import hypothesis
import pyarrow as pa
from hypothesis import HealthCheck
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from pulsar_txn_spark import client, steps
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.engine.topic_writers import TopicWriters, Written
from pulsar_txn_spark.errors import OptionError, ReceiveTimeoutError, TopologyConflictError
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.reading_order import ReadingOrder
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment, Topology
from pulsar_txn_spark.spark.source.partition import SegmentRange, SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.store.records import EndedBy, TxnState
from pulsar_txn_spark.txn.batch import new_nonce
from pulsar_txn_spark.txn.coordinator import as_record
from pulsar_txn_spark.txn.transaction_buffer import writer_name

Rows = list[tuple[str, int]]
"""Key and value."""

# To make a failing history smaller takes minutes: it is for whoever looks for the cause.
PHASES = tuple(hypothesis.Phase) if os.environ.get("SHRINK") else (hypothesis.Phase.generate,)
DRAWN = hypothesis.settings(phases=PHASES, suppress_health_check=list(HealthCheck))
"""How histories are drawn."""

WRITERS, KEYS_EACH, MOST_SEGMENTS, MOST_TURNS, NEWCOMERS = 2, 3, 5, 200, 2


def record_batch(rows: Sequence[tuple[str, int]]) -> pa.RecordBatch:
    """Return rows as a log takes them."""
    keys = pa.array([key.encode() for key, _ in rows], pa.binary())
    values = pa.array([str(value).encode() for _, value in rows], pa.binary())
    return pa.RecordBatch.from_arrays([values, keys], names=["value", "key"])


class Task:
    """One task of a transaction of its own."""

    def __init__(self, run: Components, nonce: str) -> None:
        self.run, self.nonce = run, nonce
        self.txn = run.coordinator.new_txn(nonce, timeout_ms=60_000)
        self.names: list[str] = []

        def name(generation: int) -> str:
            return writer_name(self.txn, 0, f"{nonce}r{generation}")

        def admit(generation: int, segments: Sequence[str]) -> None:
            writer = name(generation)
            self.names.append(writer)
            run.buffer.admit(self.txn, nonce, 60_000, writer, segments)

        self.writers = TopicWriters(run, name, admit, 0)

    def commit(self, written: list[Written]) -> None:
        """Commit what the task reports."""
        self.writers.close()
        winners = [
            Winner(
                segment=one.segment.id,
                writer=one.writer,
                last=as_record(one.receipt.last),
                bound=as_record(one.receipt.last) if one.bounded else None,
            )
            for one in written
            if one.receipt.last is not None
        ]
        self.run.coordinator.commit(self.txn, self.nonce, Outcome(winners=winners))

    def abort(self) -> None:
        """Abort, as whoever comes by does when the task's lease is over."""
        self.writers.close()
        self.run.coordinator.abort(self.txn, EndedBy.OWNER, nonce=self.nonce, cause="a test")


class AnyReader(Protocol):
    """Reads committed rows from the beginning."""

    found: dict[str, list[int]]

    def read(self, most: int | None = None) -> bool:
        """Read one micro-batch, of at most about so many rows; False = there is nothing."""
        ...

    def read_all(self) -> None:
        """Read to the end."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class Reader:
    """Reads committed rows in micro-batches; all that it knows is how far it got."""

    def __init__(self, run: Components, topic: TopicName) -> None:
        self._run, self._topic = run, topic
        self._at: dict[str, Position] = {}
        self.found: dict[str, list[int]] = defaultdict(list)

    def topology(self) -> Topology:
        """Return the topic as it is now."""
        return self._run.topics.require(self._topic)

    def read(self, most: int | None = None) -> bool:
        """Read one micro-batch of at most so many entries' rows; False = there is nothing."""
        run = self._run
        topology = self.topology()
        order = ReadingOrder.of(topology, self._at)
        assert not order.lost
        new: Rows = []
        seen: set[str] = set()
        moved = False
        for segment in topology.readable:
            if segment.descriptor not in order.released:
                continue
            start = self._at.get(segment.descriptor, EARLIEST)
            confirmed = run.log.last_confirmed(segment.ref)
            [range_] = run.buffer.readable(
                [segment.ref.id], {segment.ref.id: confirmed}.__getitem__, [start]
            )
            end = range_.end
            if start == end:
                continue
            if most is not None:
                end = run.log.limit(segment.ref, start, end, most, None)
            own: Rows = []
            for batch in run.log.read(
                segment.ref,
                start,
                end,
                visible=range_.visibility,
                columns=frozenset({"value", "key"}),
                max_rows=100,
            ):
                own += [(row["key"].decode(), int(row["value"])) for row in batch.to_pylist()]
            keys = {key for key, _ in own}
            # The tasks of one micro-batch run side by side: two of them must not have one key.
            assert not keys & seen
            seen |= keys
            new += own
            self._at[segment.descriptor] = end
            moved = True
        for key, value in new:
            self.found[key].append(value)
        return moved

    def read_all(self) -> None:
        """Read to the end."""
        for _ in range(MOST_TURNS):
            if not self.read():
                return
        raise AssertionError("the reader never came to an end")

    def close(self) -> None:
        """Hold nothing."""


class SourceReader:
    """Reads as Spark does: the driver's side of the source plans, tasks read side by side."""

    def __init__(self, given: Mapping[str, str], topic: TopicName) -> None:
        options = {
            **given,
            "topic": str(topic),
            "startingOffsets": "earliest",
            "maxMessagesPerTrigger": "4",
            "maxPartitions": "2",
        }
        self._reader = PulsarTxnStreamReader(options, StructType())
        self._at: dict[str, Any] = self._reader.initialOffset()
        self._run = self._reader._planner.components
        self.found: dict[str, list[int]] = defaultdict(list)

    def read(self, most: int | None = None) -> bool:
        """Read one micro-batch; a bounded one has the size that the options ask for."""
        limit = ReadAllAvailable() if most is None else self._reader.getDefaultReadLimit()
        # A waiting source looks when something happens, or once a second: here it always looks.
        self._reader._idle._nothing_beyond = None
        end = self._reader.latestOffset(self._at, limit)
        if end == self._at:
            return False
        new: Rows = []
        seen: set[str] = set()
        for partition in self._reader.partitions(self._at, end):
            assert isinstance(partition, SourcePartition)
            own = [row for range_ in partition.ranges for row in self._rows(range_)]
            keys = {key for key, _ in own}
            # The tasks of one micro-batch run side by side: two of them must not have one key.
            assert not keys & seen
            seen |= keys
            new += own
        for key, value in new:
            self.found[key].append(value)
        self._at = end
        return True

    def _rows(self, range_: SegmentRange) -> Rows:
        batches = self._run.log.read(
            range_.segment,
            range_.start,
            range_.end,
            visible=range_.visibility,
            columns=frozenset({"value", "key"}),
            max_rows=100,
        )
        found = [row for batch in batches for row in batch.to_pylist()]
        return [(row["key"].decode(), int(row["value"])) for row in found]

    def read_all(self) -> None:
        """Read to the end."""
        for _ in range(MOST_TURNS):
            if not self.read():
                return
        raise AssertionError("the source never came to an end")

    def close(self) -> None:
        """Let go of the connection that it watches with."""
        self._reader.stop()


class ClientReader:
    """Reads as a client's consumer does, with a subscription of its own."""

    def __init__(self, given: Mapping[str, str], topic: TopicName) -> None:
        self._consumer = client.connect(given).consumer(str(topic), new_nonce())
        self.found: dict[str, list[int]] = defaultdict(list)

    def read(self, most: int | None = None) -> bool:
        """Receive so many messages."""
        received = 0
        while most is None or received < most:
            try:
                message = self._consumer.receive(timeout_ms=0)
            except ReceiveTimeoutError:
                break
            assert message.key is not None
            assert message.value is not None
            self.found[message.key.decode()].append(int(message.value))
            received += 1
        return bool(received)

    def read_all(self) -> None:
        """Receive until there is nothing."""
        self.read()

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


# -- moves -------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@dataclass(frozen=True)
class Fault:
    """Where a process dies, or does not hear of an effect, during one move."""

    step: Step
    phase: Phase


@dataclass(frozen=True)
class Write:
    writer: int
    rows: int
    fault: Fault | None = None


@dataclass(frozen=True)
class End:
    """A task commits, aborts, or dies without a word (`committed` None)."""

    writer: int
    committed: bool | None
    fault: Fault | None = None


@dataclass(frozen=True)
class Change:
    """A split (at a part of the range), a merge with the neighbour, or a seal (`part` 0)."""

    segment: int
    part: int
    merge: bool
    fault: Fault | None = None


@dataclass(frozen=True)
class Read:
    most: int | None


@dataclass(frozen=True)
class ReadAlone:
    """One of the readers goes on; the others fall behind."""

    reader: int
    most: int


@dataclass(frozen=True)
class Unload:
    """The log's server lets a segment go, and loads it again."""

    segment: int


@dataclass(frozen=True)
class Sweep:
    """Somebody comes by who finishes what is half done."""


@dataclass(frozen=True)
class Shuffle:
    """Changes one after the other, with no rows in between: some segments are sealed empty."""

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Arrive:
    """A new reader comes and begins at the earliest position."""

    in_spark: bool


Move = Write | End | Change | Shuffle | Read | ReadAlone | Unload | Arrive | Sweep

_CHANGE_STEPS = (Step.PLAN_CHILDREN, Step.SEAL_LOG, Step.ACTIVATE_CHILDREN)
_STEPS = (Step.INTENT, Step.PIN, Step.DECIDE, Step.MATERIALIZE, *_CHANGE_STEPS)


def _faults(chosen: tuple[Step, ...]) -> st.SearchStrategy[Fault]:
    return st.builds(Fault, st.sampled_from(chosen), st.sampled_from(Phase))


_WRITERS = st.integers(0, WRITERS - 1)
_WRITE = st.builds(Write, _WRITERS, st.integers(1, 9))
_COMMIT = st.builds(End, _WRITERS, st.just(True))
_CHANGE = st.builds(Change, st.integers(0, 9), st.integers(0, 7), st.booleans())
_READ = st.builds(Read, st.sampled_from([None, 1, 2, 3, 5, 8]))
_MOVE: st.SearchStrategy[Move] = st.one_of(
    # What is named twice comes twice as often: most of a history is ordinary.
    *(_WRITE, _WRITE, _WRITE, _COMMIT, _COMMIT, _READ, _READ, _READ, _CHANGE, _CHANGE),
    st.builds(Write, _WRITERS, st.integers(1, 9), _faults(_STEPS)),
    st.builds(End, _WRITERS, st.just(True), _faults(_STEPS)),
    st.builds(End, _WRITERS, st.sampled_from([False, None])),
    st.builds(Change, st.integers(0, 9), st.integers(0, 7), st.booleans(), _faults(_CHANGE_STEPS)),
    st.builds(Shuffle, st.lists(_CHANGE, min_size=2, max_size=4).map(tuple)),
    st.builds(Arrive, st.booleans()),
    st.just(Sweep()),
)


def moves(least: int, most: int) -> st.SearchStrategy[list[Move]]:
    """Return histories of so many moves."""
    return st.lists(_MOVE, min_size=least, max_size=most)


_SHORT_WRITE = st.builds(Write, _WRITERS, st.integers(1, 3))
_READ_ALONE = st.builds(ReadAlone, st.integers(0, NEWCOMERS), st.integers(1, 3))
_ROUND: st.SearchStrategy[list[Move]] = st.tuples(
    *(_SHORT_WRITE, _SHORT_WRITE, _COMMIT, _READ_ALONE, _READ_ALONE, _READ_ALONE),
    st.one_of(
        *(_COMMIT, _COMMIT, _COMMIT, _SHORT_WRITE, _SHORT_WRITE, _SHORT_WRITE, _READ_ALONE),
        st.builds(End, _WRITERS, st.sampled_from([False, None])),
        st.just(Arrive(in_spark=True)),
        st.builds(Unload, st.integers(0, 9)),
    ),
).map(list)


def quiet_moves(rounds: int) -> st.SearchStrategy[list[Move]]:
    """Return histories in which segments do not change: a few rows at a time, one reader at a time.

    Parameters
    ----------
    rounds : int
        Of seven moves each.
    """
    made = st.lists(_ROUND, min_size=rounds, max_size=rounds)
    return made.map(lambda found: list(itertools.chain.from_iterable(found)))


@contextmanager
def struck_by(fault: Fault | None) -> Iterator[None]:
    """Let a fault strike once, in this process."""
    if fault is None:
        yield
        return
    armed = [fault]

    def strikes(step: Step, phase: Phase) -> bool:
        return bool(armed) and armed[0] == Fault(step, phase) and bool(armed.pop())

    def reach(step: Step, phase: Phase) -> None:
        if strikes(step, phase):
            raise Killed

    before = steps.reach, steps.reply_is_lost
    steps.reach = reach
    steps.reply_is_lost = lambda step: strikes(step, Phase.REPLY_LOST)
    try:
        yield
    finally:
        steps.reach, steps.reply_is_lost = before


@dataclass
class History:
    """One topic, those who write to it, those who change it, and those who read all the time."""

    run: Components
    options: Mapping[str, str]
    topic: TopicName
    committed: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    unload: Callable[[str], None] = lambda _log_name: None

    def __post_init__(self) -> None:
        self.readers: list[AnyReader] = [Reader(self.run, self.topic)]
        self.run.topics.changes.patience_s = 0.0  # whoever began a change and is not done is dead
        self._open: dict[int, tuple[Task, Rows]] = {}
        self._next = 0

    def play(self, made: Sequence[Move]) -> None:
        """Make each move, end what is open, and see that nothing is missing; let go of it all."""
        try:
            for move in made:
                self.go(move)
            self.finish()
        finally:
            self.close()

    def go(self, move: Move) -> None:
        """Make one move, and see that everything holds."""
        self._make(move)
        self.run.topics.require(self.topic).require_tiling()
        for reader in self.readers:
            for key, found in reader.found.items():
                assert found == self.committed[key][: len(found)], (key, reader)

    def _make(self, move: Move) -> None:
        match move:
            case Write():
                self._write(move)
            case End():
                self._end(move)
            case Change():
                self._change(move)
            case Shuffle(changes):
                for change in changes:
                    self._change(change)
            case Read() | ReadAlone():
                self._read(move)
            case Unload(nth):
                active = self.run.topics.require(self.topic).active
                self.unload(active[nth % len(active)].ref.log_name)
            case Arrive(in_spark) if len(self.readers) <= NEWCOMERS:
                self._arrive(in_spark=in_spark)
            case Sweep():
                _, failed = self.run.topics.finish_changes()
                assert not failed
                assert not self.run.topics.require(self.topic).unfinished

    def finish(self) -> None:
        """End what is open; then nothing may be missing, doubled or out of order."""
        for writer in range(WRITERS):
            self._end(End(writer, committed=True))
        self.readers.append(Reader(self.run, self.topic))
        for in_spark in (True, False):
            self._arrive(in_spark=in_spark)
        for reader in self.readers:
            reader.read_all()
            expected = {key: rows for key, rows in self.committed.items() if rows}
            assert reader.found == expected, reader

    def close(self) -> None:
        """Let everybody go."""
        for task, _ in self._open.values():
            task.writers.close()
        for reader in self.readers:
            reader.close()

    def _arrive(self, *, in_spark: bool) -> None:
        kind = SourceReader if in_spark else ClientReader
        self.readers.append(kind(self.options, self.topic))

    def _write(self, move: Write) -> None:
        if move.writer not in self._open:
            self._open[move.writer] = (Task(self.run, new_nonce()), [])
        task, written = self._open[move.writer]
        # Of one key only one task writes at a time: between two there is no order.
        rows = [
            (f"{move.writer}-{n % KEYS_EACH}", n) for n in range(self._next, self._next + move.rows)
        ]
        self._next += move.rows
        written += rows
        try:
            with struck_by(move.fault):
                task.writers.append(self.topic, record_batch(rows))
        except Killed:
            self._dead(move.writer)

    def _end(self, move: End) -> None:
        if move.writer not in self._open:
            return
        task, rows = self._open[move.writer]
        if not move.committed:
            self._dead(move.writer)
            return
        try:
            with struck_by(move.fault):
                task.commit(task.writers.finish())
        except Killed:
            self._dead(move.writer)
        else:
            self._count(rows)
            del self._open[move.writer]

    def _dead(self, writer: int) -> None:
        """A task is no more: its transaction is what was decided last, or aborted."""
        task, rows = self._open.pop(writer)
        header = self.run.store.transactions.read(task.txn)
        assert header is not None
        task.writers.close()
        if header.state is TxnState.COMMITTED:
            self._count(rows)
        elif header.state is TxnState.OPEN:
            task.abort()

    def _count(self, rows: Rows) -> None:
        for key, value in rows:
            self.committed[key].append(value)

    def _read(self, move: Read | ReadAlone) -> None:
        readers = self.readers
        if isinstance(move, ReadAlone):
            readers = [readers[move.reader % len(readers)]]
        for reader in readers:
            reader.read(move.most)

    def _change(self, move: Change) -> None:
        changes = self.run.topics.changes
        active = self.run.topics.require(self.topic).active
        one: Segment = active[move.segment % len(active)]
        try:
            with struck_by(move.fault):
                if move.merge and one is not active[-1]:
                    following = active[active.index(one) + 1]
                    changes.merge(self.topic, [following.descriptor, one.descriptor])
                elif move.part and len(active) < MOST_SEGMENTS:
                    width = one.hash_end - one.hash_start + 1
                    cut = one.hash_start + width * move.part // 8
                    changes.split(self.topic, one.descriptor, at=cut)
                else:
                    changes.seal(self.topic, one.descriptor)
        except (Killed, OptionError):
            return  # dead, or a range too small to be cut there
        except TopologyConflictError:
            # The one before us was dead half way: that is finished now.
            assert not self.run.topics.require(self.topic).unfinished
