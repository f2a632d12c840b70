"""Segments are split, merged and sealed while rows are written and read."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark.errors import (
    OptionError,
    TopologyConflictError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.runtime import Runtime, runtime
from pulsar_txn_spark.segments.embedded_log import EmbeddedSegmentLog
from pulsar_txn_spark.segments.log import Receipt, SegmentRef, SegmentWriter
from pulsar_txn_spark.segments.reading_order import ReadingOrder
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState, Topology
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Winner
from pulsar_txn_spark.topic_writer import TopicWriters, Written
from pulsar_txn_spark.txn.buffer import writer_name
from pulsar_txn_spark.txn.coordinator import as_record

TOPIC = TopicName.parse("changing")
KEYS = 7


@pytest.fixture
def run(redis_path: str, redis_client: redis.Redis) -> Runtime:
    found = runtime(Options({"store.path": redis_path}, Use.CONNECT))
    found.topics.create(TOPIC, 1)
    return found


def rows(start: int, stop: int) -> pa.RecordBatch:
    values = [f"{n}".encode() for n in range(start, stop)]
    keys = [f"key-{n % KEYS}".encode() for n in range(start, stop)]
    return pa.RecordBatch.from_arrays([pa.array(values), pa.array(keys)], names=["value", "key"])


class Task:
    """One task of a transaction of its own."""

    def __init__(self, run: Runtime, nonce: str = "n") -> None:
        self.run, self.nonce = run, nonce
        self.txn = run.coordinator.new_txn(nonce, timeout_ms=60_000)
        self.names: list[str] = []

        def name(generation: int) -> str:
            return writer_name(self.txn, 0, f"{nonce}r{generation}")

        def admit(writer: str, segments: Sequence[str]) -> None:
            self.names.append(writer)
            run.buffer.admit(self.txn, nonce, 60_000, writer, segments)

        self.writers = TopicWriters(run, name, admit, 0)

    def commit(self, written: list[Written]) -> None:
        self.writers.close()
        winners = [
            Winner(
                segment=w.segment.id,
                writer=w.writer,
                last=as_record(w.receipt.last),
                bound=as_record(w.receipt.last) if w.bounded else None,
            )
            for w in written
            if w.receipt.last is not None
        ]
        self.run.coordinator.commit(self.txn, self.nonce, Outcome(winners=winners))


def read_all(run: Runtime) -> list[tuple[str, int]]:
    """Read to the end as micro-batches do, parents before children."""
    found: list[tuple[str, int]] = []
    at: dict[str, Position] = {}
    for _ in range(20):
        topology = run.topics.require(TOPIC)
        order = ReadingOrder.of(topology, at)
        released = [s for s in topology.readable if s.descriptor in order.released]
        for segment in released:
            start = at.get(segment.descriptor, EARLIEST)
            lac = run.log.last_confirmed(segment.ref)
            [readable] = run.buffer.readable(
                [segment.ref.id], {segment.ref.id: lac}.__getitem__, [start]
            )
            for batch in run.log.read(
                segment.ref,
                start,
                readable.end,
                visible=readable.visibility,
                columns=frozenset({"value", "key"}),
                max_rows=100,
            ):
                found += [(row["key"].decode(), int(row["value"])) for row in batch.to_pylist()]
            at[segment.descriptor] = readable.end
    return found


def require_whole(run: Runtime, count: int) -> None:
    found = read_all(run)
    assert sorted(value for _, value in found) == list(range(count))
    for key in {key for key, _ in found}:
        own = [value for one, value in found if one == key]
        assert own == sorted(own), f"rows of {key} are out of order"


def test_a_split_a_merge_and_a_seal_leave_ranges_that_tile(run: Runtime) -> None:
    changes = run.topics.changes
    assert [s.descriptor for s in changes.split(TOPIC, "0").active] == [
        "0000-7fff-1",
        "8000-ffff-2",
    ]
    changes.split(TOPIC, "1", at=0x1234)
    changes.merge(TOPIC, ["4", "2"])
    topology = changes.seal(TOPIC, "5")
    assert [s.descriptor for s in topology.active] == ["0000-1233-3", "1234-ffff-6"]
    topology.require_tiling()
    assert {s.state for s in topology.segments} == {SegmentState.ACTIVE, SegmentState.SEALED}


def test_of_two_operators_one_wins_and_the_other_is_told(run: Runtime) -> None:
    run.topics.changes.split(TOPIC, "0")
    with pytest.raises(TopologyConflictError, match="was replaced by"):
        run.topics.changes.split(TOPIC, "0")


def test_segments_that_are_no_neighbours_are_not_merged(run: Runtime) -> None:
    run.topics.changes.split(TOPIC, "0")
    run.topics.changes.split(TOPIC, "1")
    with pytest.raises(OptionError, match="not neighbours"):
        run.topics.changes.merge(TOPIC, ["2", "3"])


def test_two_plans_of_the_same_children_are_told_apart(run: Runtime) -> None:
    # Without the change's own id the second one would take the first one's record for its own.
    topology = run.topics.require(TOPIC)
    [parent] = topology.active
    one, other = (topology.with_planned([parent], [0x8000], c).serialize() for c in ("a", "b"))
    assert run.store.swap_topology(str(TOPIC), topology.version, one) is not None
    assert run.store.swap_topology(str(TOPIC), topology.version, other) is None


def half_done(run: Runtime, *, seal: bool) -> Topology:
    topology = run.topics.require(TOPIC)
    [parent] = topology.active
    planned = topology.with_planned([parent], [0x8000], "dead operator")
    run.store.swap_topology(str(TOPIC), topology.version, planned.serialize())
    if seal:
        run.log.seal(parent.ref)
    return run.topics.require(TOPIC)


class Forgetful:
    """A writer whose entries from some number of rows on are stored, but never acknowledged."""

    def __init__(self, writer: SegmentWriter, after: int) -> None:
        self._writer, self._left = writer, after
        self._proved = writer.acknowledged()

    def append(self, found: pa.RecordBatch) -> None:
        self._writer.append(found)
        receipt = self._writer.flush()
        self._left -= receipt.messages
        if self._left < 0:
            raise UnverifiedReceiptError("the receipt was lost")
        self._proved = self._writer.acknowledged()

    def flush(self) -> Receipt:
        return self._writer.flush()

    def acknowledged(self) -> Receipt:
        return self._proved

    def close(self) -> None:
        self._writer.close()


def forget(monkeypatch: pytest.MonkeyPatch, losses: int, after: int) -> None:
    opened = EmbeddedSegmentLog.writer
    left = [losses]

    def writer(log: EmbeddedSegmentLog, segment: SegmentRef, name: str) -> SegmentWriter:
        found: SegmentWriter = opened(log, segment, name)
        if left[0]:
            left[0] -= 1
            return Forgetful(found, after)
        return found

    monkeypatch.setattr(EmbeddedSegmentLog, "writer", writer)


@pytest.mark.parametrize("after", [0, 25])
@pytest.mark.parametrize("losses", [1, 3])
def test_rows_whose_receipts_are_lost_go_out_again_under_a_new_name(
    run: Runtime, monkeypatch: pytest.MonkeyPatch, losses: int, after: int
) -> None:
    run.topics.changes.split(TOPIC, "0")
    forget(monkeypatch, losses, after)
    task = Task(run)
    for start in range(0, 200, 10):
        task.writers.append(TOPIC, rows(start, start + 10))
    task.commit(task.writers.finish())
    assert len(set(task.names)) == 1 + losses
    monkeypatch.undo()
    require_whole(run, 200)


def test_a_log_that_never_proves_anything_fails_the_task(
    run: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch, 1000, 0)
    task = Task(run)
    with pytest.raises(UnverifiedReceiptError):
        task.writers.append(TOPIC, rows(0, 10))
    task.writers.close()


@pytest.mark.parametrize("seal", [False, True])
def test_a_writer_goes_on_whatever_an_operator_has_left_half_done(run: Runtime, seal: bool) -> None:
    task = Task(run)
    task.writers.append(TOPIC, rows(0, 100))
    half_done(run, seal=seal)
    task.writers.append(TOPIC, rows(100, 200))
    task.commit(task.writers.finish())
    require_whole(run, 200)
    assert (run.topics.require(TOPIC).unfinished == ()) is seal


def test_a_segment_is_split_twice_and_merged_under_one_writer(run: Runtime) -> None:
    task = Task(run)
    changes = run.topics.changes
    task.writers.append(TOPIC, rows(0, 100))
    task.writers.finish()  # acknowledged in the parent: that stays
    task.writers.append(TOPIC, rows(100, 200))
    changes.split(TOPIC, "0")
    task.writers.append(TOPIC, rows(200, 300))
    task.writers.finish()
    task.writers.append(TOPIC, rows(300, 400))
    changes.split(TOPIC, "1")
    task.writers.append(TOPIC, rows(400, 500))
    changes.merge(TOPIC, ["4", "2"])
    task.writers.append(TOPIC, rows(500, 600))
    written = task.writers.finish()
    assert len(set(task.names)) >= 3, "each change gets a new name"
    task.commit(written)
    require_whole(run, 600)


def test_the_children_stay_shut_until_the_parent_was_read_in_an_earlier_batch(
    run: Runtime,
) -> None:
    task = Task(run)
    task.writers.append(TOPIC, rows(0, 10))
    task.writers.finish()
    run.topics.changes.split(TOPIC, "0")
    task.writers.append(TOPIC, rows(10, 20))
    task.commit(task.writers.finish())
    topology = run.topics.require(TOPIC)
    parent = topology.segment("0")
    assert parent.sealed_at is not None
    assert ReadingOrder.of(topology, {}).released == {parent.descriptor}
    drained = ReadingOrder.of(topology, {parent.descriptor: parent.sealed_at})
    assert drained.released == {s.descriptor for s in topology.active}
    require_whole(run, 20)


def test_a_merge_waits_for_both_parents(run: Runtime) -> None:
    topology = run.topics.changes.split(TOPIC, "0")
    for segment in topology.active:
        writer = run.log.writer(segment.ref, "w")
        writer.append(rows(0, 1))
        writer.flush()
        writer.close()
    topology = run.topics.changes.merge(TOPIC, ["1", "2"])
    one, other = topology.segment("1"), topology.segment("2")
    assert one.sealed_at is not None
    assert other.sealed_at is not None
    at = {one.descriptor: one.sealed_at}
    assert ReadingOrder.of(topology, at).released == {other.descriptor}
    at[other.descriptor] = other.sealed_at
    assert ReadingOrder.of(topology, at).released == {topology.segment("3").descriptor}


def test_a_deleted_segment_is_lost_only_to_those_who_had_not_read_it(run: Runtime) -> None:
    parent = run.topics.require(TOPIC).segment("0")
    writer = run.log.writer(parent.ref, "w")
    writer.append(rows(0, 1))
    writer.flush()
    writer.close()
    topology = run.topics.changes.split(TOPIC, "0")
    topology = topology.with_state([parent.ref.id], SegmentState.DELETED)
    end = topology.segment("0").sealed_at
    assert end is not None
    assert ReadingOrder.of(topology, {parent.descriptor: end}).lost == ()
    lost = ReadingOrder.of(topology, {parent.descriptor: EARLIEST}).lost
    assert [s.descriptor for s in lost] == [parent.descriptor]
    child = topology.active[0].descriptor
    assert ReadingOrder.of(topology, {child: EARLIEST}).lost == ()
    assert ReadingOrder.of(topology, {}, known=False).lost == ()


def test_a_topic_that_was_split_still_counts_as_created_with_its_first_segments(
    run: Runtime,
) -> None:
    run.topics.changes.split(TOPIC, "0")
    assert len(run.topics.create(TOPIC, 1, exist_ok=True).active) == 2
