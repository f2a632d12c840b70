"""Segments are split, merged and sealed while rows are written and read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog, _EmbeddedWriter
from pulsar_txn_spark.cli.lineage import bar, lineage
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import (
    OptionError,
    SegmentNotFoundError,
    SegmentSealedError,
    TopologyConflictError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import Receipt, SegmentLog, SegmentRef, SegmentWriter
from pulsar_txn_spark.segments.reading_order import ReadingOrder
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import (
    HASH_SPACE,
    GatedBy,
    SegmentState,
    Topology,
    hash_of,
)
from pulsar_txn_spark.steps import Step
from tests.models.segment_histories import ClientReader, Reader, SourceReader, Task, record_batch

TOPIC = TopicName.parse("changing")
KEYS = 7


@pytest.fixture
def run(run: Components) -> Components:
    run.topics.create(TOPIC, 1)
    return run


def rows(start: int, stop: int) -> pa.RecordBatch:
    return record_batch([(f"key-{n % KEYS}", n) for n in range(start, stop)])


def low_and_high() -> tuple[str, str]:
    """Return two keys, one of each half of the hash space."""
    names = [f"key-{n}" for n in range(KEYS)]
    low = next(name for name in names if hash_of(name.encode()) < HASH_SPACE // 2)
    high = next(name for name in names if hash_of(name.encode()) >= HASH_SPACE // 2)
    return low, high


def require_whole(run: Components, count: int) -> None:
    """Read to the end as micro-batches do, parents before children."""
    reader = Reader(run, TOPIC)
    reader.read_all()
    assert sorted(value for own in reader.found.values() for value in own) == list(range(count))
    for key, own in reader.found.items():
        assert own == sorted(own), f"rows of {key} are out of order"


def test_the_children_of_a_gated_segment_are_created_as_gated(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedSegmentLog, "backend", "pulsar")
    topic = TopicName.parse("gated")
    created: list[tuple[str, str]] = []
    real = run.log.create

    def create(segment: SegmentRef, gate_store: str = "") -> None:
        created.append((segment.id.rpartition("/")[2], gate_store))
        real(segment, gate_store)

    monkeypatch.setattr(run.log, "create", create)
    uuid = run.topics.create(topic, 1, gate=GatedBy.BROKER).gate_store
    run.topics.changes.split(topic, "0")
    names = ["0000-ffff-0", "0000-7fff-1", "8000-ffff-2"]
    assert created == [(name, run.store.identity.uuid) for name in names]
    assert uuid == run.store.identity.uuid


def test_a_topic_is_gated_in_one_step_of_the_store_and_whoever_comes_by_finishes_it(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedSegmentLog, "backend", "pulsar")
    topic = TopicName.parse("gated-later")
    before = run.topics.create(topic, 2)
    created: dict[str, str] = {}
    real = run.log.create

    def create(segment: SegmentRef, gate_store: str = "") -> None:
        created[segment.id.rpartition("/")[2]] = gate_store
        real(segment, gate_store)

    monkeypatch.setattr(run.log, "create", create)

    def dies(_: Topology) -> Topology:
        raise ConnectionError

    with monkeypatch.context() as dying:
        dying.setattr(run.topics.changes, "finish", lambda t: t if not t.unfinished else dies(t))
        with pytest.raises(ConnectionError):
            run.topics.gate(topic)
    half = run.topics.require(topic)
    assert half.gate is GatedBy.BROKER
    assert [s.ref for s in half.active] == [s.ref for s in before.active]
    assert len(half.unfinished) == 2
    uuid = run.store.identity.uuid
    gated = run.topics.changes.split(topic, run.topics.gate(topic).active[0].ref.id)
    names = ["0000-7fff-2", "8000-ffff-3", "0000-3fff-4", "4000-7fff-5"]
    assert created == dict.fromkeys(names, uuid)
    assert not {segment.ref.id for segment in gated.active} & set(before.by_id)


def test_a_topic_is_not_gated_while_a_split_is_half_done(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmbeddedSegmentLog, "backend", "pulsar")
    topic = TopicName.parse("gated-while-split")
    topology = run.topics.create(topic, 1)
    planned = topology.with_planned(topology.active, [0x8000], "abc")
    with pytest.raises(TopologyConflictError):
        planned.with_gate("a1b2", "def")
    run.store.topics.swap(str(topic), topology.version, planned.serialize(), Step.PLAN_CHILDREN)
    gated = run.topics.gate(topic)  # which finishes the split first
    assert [s.descriptor for s in gated.active] == ["0000-7fff-3", "8000-ffff-4"]
    with pytest.raises(TopologyConflictError, match="already"):
        gated.with_gate("a1b2", "def")


def test_a_split_a_merge_and_a_seal_leave_ranges_that_tile(run: Components) -> None:
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


def test_of_two_operators_one_wins_and_the_other_is_told(run: Components) -> None:
    run.topics.changes.split(TOPIC, "0")
    with pytest.raises(TopologyConflictError, match="was replaced by"):
        run.topics.changes.split(TOPIC, "0")


def test_of_two_operators_at_once_one_wins_and_the_other_is_told(run: Components) -> None:
    start = threading.Barrier(2, timeout=30)

    def operate(segment: str, cut: int) -> Topology | TopologyConflictError:
        start.wait()
        try:
            return run.topics.changes.split(TOPIC, segment, at=cut)
        except TopologyConflictError as told:
            return told

    with ThreadPoolExecutor(2) as operators:
        for turn in range(20):
            active = run.topics.require(TOPIC).active
            widest = max(active, key=lambda s: s.hash_end - s.hash_start)
            # Where they cut tells whose plan was followed.
            third = (widest.hash_end - widest.hash_start) // 3
            cuts = [widest.hash_start + third, widest.hash_end - third]
            ends = list(operators.map(operate, [widest.descriptor] * 2, cuts))
            topology = run.topics.require(TOPIC)
            topology.require_tiling()
            assert not topology.unfinished
            assert len(topology.active) == turn + 2
            [loser] = [told for told in ends if isinstance(told, TopologyConflictError)]
            assert "replaced by" in str(loser)
            [winner] = [cut for cut, end in zip(cuts, ends, strict=True) if end is not loser]
            assert winner in {segment.hash_start for segment in topology.active}


def test_who_comes_second_finishes_what_the_first_one_left_half_done(run: Components) -> None:
    half_done(run, seal=False)
    with pytest.raises(TopologyConflictError, match="is being replaced by"):
        run.topics.changes.split(TOPIC, "0")
    topology = run.topics.require(TOPIC)
    assert not topology.unfinished
    assert len(topology.active) == 2


def test_nothing_is_appended_to_a_parent_once_the_topology_says_sealed(run: Components) -> None:
    [parent] = run.topics.require(TOPIC).active
    writer = run.log.writer(parent.ref, "w")
    topology = run.topics.changes.split(TOPIC, "0")
    assert topology.segment("0").state is SegmentState.SEALED
    writer.append(rows(0, 1))  # waits in the writer for company
    with pytest.raises(SegmentSealedError):
        writer.flush()


def test_segments_that_are_no_neighbours_are_not_merged(run: Components) -> None:
    run.topics.changes.split(TOPIC, "0")
    run.topics.changes.split(TOPIC, "1")
    with pytest.raises(OptionError, match="not neighbours"):
        run.topics.changes.merge(TOPIC, ["2", "3"])


def test_two_plans_of_the_same_children_are_told_apart(run: Components) -> None:
    # Without the change's own id the second one would take the first one's record for its own.
    topology = run.topics.require(TOPIC)
    [parent] = topology.active
    one, other = (topology.with_planned([parent], [0x8000], c).serialize() for c in ("a", "b"))
    assert run.store.topics.swap(str(TOPIC), topology.version, one) is not None
    assert run.store.topics.swap(str(TOPIC), topology.version, other) is None


def half_done(run: Components, *, seal: bool) -> Topology:
    topology = run.topics.require(TOPIC)
    [parent] = topology.active
    planned = topology.with_planned([parent], [0x8000], "dead operator")
    run.store.topics.swap(str(TOPIC), topology.version, planned.serialize())
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

    def send(self) -> None:
        self._writer.send()

    def flush(self) -> Receipt:
        return self._writer.flush()

    def acknowledged(self) -> Receipt:
        return self._proved

    def close(self) -> None:
        self._writer.close()


class Overdue(Forgetful):
    """One that says nothing of them either before it is asked for its receipts, at the end."""

    def append(self, found: pa.RecordBatch) -> None:
        self._writer.append(found)
        self._left -= found.num_rows
        if self._left >= 0:
            self._writer.flush()
            self._proved = self._writer.acknowledged()

    def flush(self) -> Receipt:
        raise UnverifiedReceiptError("the receipts were lost")


def forget(
    monkeypatch: pytest.MonkeyPatch, losses: int, after: int, kind: type[Forgetful] = Forgetful
) -> None:
    opened = EmbeddedSegmentLog.writer
    left = [losses]

    def writer(log: EmbeddedSegmentLog, segment: SegmentRef, name: str) -> SegmentWriter:
        found: SegmentWriter = opened(log, segment, name)
        if left[0]:
            left[0] -= 1
            return kind(found, after)
        return found

    monkeypatch.setattr(EmbeddedSegmentLog, "writer", writer)


@pytest.mark.parametrize("after", [0, 25])
@pytest.mark.parametrize("losses", [1, 3])
@pytest.mark.parametrize("at_once", [1, 4])
def test_rows_whose_receipts_are_lost_go_out_again_under_a_new_name(
    run: Components, monkeypatch: pytest.MonkeyPatch, losses: int, after: int, at_once: int
) -> None:
    monkeypatch.setattr(EmbeddedSegmentLog, "at_once", at_once)
    run.topics.changes.split(TOPIC, "0")
    forget(monkeypatch, losses, after)
    task = Task(run, "n")
    for start in range(0, 200, 10):
        task.writers.append(TOPIC, rows(start, start + 10))
    task.commit(task.writers.finish())
    # Of writers that are lost at once, each one moves on to a name of its own.
    assert len(set(task.names)) == 1 + losses
    monkeypatch.undo()
    require_whole(run, 200)


@pytest.mark.parametrize("after", [0, 25])
def test_everything_from_the_first_row_without_a_receipt_on_goes_out_again(
    run: Components, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    forget(monkeypatch, 1, after, Overdue)
    task = Task(run, "n")
    for start in range(0, 100, 10):
        task.writers.append(TOPIC, rows(start, start + 10))
    task.commit(task.writers.finish())
    monkeypatch.undo()
    require_whole(run, 100)


def test_a_log_that_never_proves_anything_fails_the_task(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch, 1000, 0)
    task = Task(run, "n")
    with pytest.raises(UnverifiedReceiptError):
        task.writers.append(TOPIC, rows(0, 10))
    task.writers.close()


def test_a_task_goes_on_however_many_segments_have_lost_their_producers(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, segments, count = TopicName.parse("wide"), 24, 480
    run.topics.create(wide, segments)
    forget(monkeypatch, segments, 0, Overdue)
    task = Task(run, "n")
    task.writers.append(wide, record_batch([(f"key-{n}", n) for n in range(count)]))
    written = task.writers.finish()
    assert len({output.segment.id for output in written}) == segments
    assert sum(output.receipt.messages for output in written) == count
    task.writers.close()


@pytest.mark.parametrize("seal", [False, True])
def test_a_writer_goes_on_whatever_an_operator_has_left_half_done(
    run: Components, seal: bool
) -> None:
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 100))
    half_done(run, seal=seal)
    task.writers.append(TOPIC, rows(100, 200))
    task.commit(task.writers.finish())
    require_whole(run, 200)
    assert (run.topics.require(TOPIC).unfinished == ()) is seal


def test_a_segment_is_split_twice_and_merged_under_one_writer(run: Components) -> None:
    task = Task(run, "n")
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


def commit_over_a_split(run: Components) -> None:
    """Commit a transaction that wrote before and after its segment was split."""
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 10))
    task.writers.finish()
    run.topics.changes.split(TOPIC, "0")
    task.writers.append(TOPIC, rows(10, 20))
    task.commit(task.writers.finish())


def test_the_children_stay_shut_until_the_parent_was_read_in_an_earlier_batch(
    run: Components,
) -> None:
    commit_over_a_split(run)
    topology = run.topics.require(TOPIC)
    parent = topology.segment("0")
    assert parent.sealed_at is not None
    assert ReadingOrder.of(topology, {}).released == {parent.descriptor}
    before_the_end = Position(parent.sealed_at.ledger, parent.sealed_at.entry - 1)
    half_read = ReadingOrder.of(topology, {parent.descriptor: before_the_end})
    assert half_read.released == {parent.descriptor}
    drained = ReadingOrder.of(topology, {parent.descriptor: parent.sealed_at})
    assert drained.released == {s.descriptor for s in topology.active}
    require_whole(run, 20)


def sealed_empty_in_the_middle(run: Components) -> Topology:
    """Let a key's rows lie in a segment and its grandchildren, with nothing in between."""
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 10))
    task.writers.finish()
    for part in ("0", "1", "2"):
        run.topics.changes.split(TOPIC, part)
    task.writers.append(TOPIC, rows(10, 20))
    task.commit(task.writers.finish())
    topology = run.topics.require(TOPIC)
    assert topology.segment("1").sealed_at == topology.segment("2").sealed_at == EARLIEST
    return topology


def test_who_stands_at_the_beginning_of_an_empty_sealed_segment_has_not_read_its_parents(
    run: Components,
) -> None:
    topology = sealed_empty_in_the_middle(run)
    first, end = topology.segment("0"), topology.segment("0").sealed_at
    assert end is not None
    new = {segment.descriptor: EARLIEST for segment in topology.segments}
    order = ReadingOrder.of(topology, new)
    assert order.released == {first.descriptor}
    assert order.passed == set()
    order = ReadingOrder.of(topology, new | {first.descriptor: end})
    assert order.released == {segment.descriptor for segment in topology.active}


def test_who_begins_behind_what_retention_has_removed_has_not_read_the_parents(
    run: Components,
) -> None:
    commit_over_a_split(run)
    run.topics.changes.split(TOPIC, "1")
    topology = run.topics.require(TOPIC)
    [first, child, *_] = topology.segments
    assert child.sealed_at is not None
    assert child.sealed_at > EARLIEST
    at = {s.descriptor: EARLIEST for s in topology.segments} | {child.descriptor: child.sealed_at}
    assert ReadingOrder.of(topology, at).released == {first.descriptor}


def test_a_deleted_segment_does_not_open_its_children_before_its_parents_are_read(
    run: Components,
) -> None:
    topology = sealed_empty_in_the_middle(run)
    first, child = topology.segment("0"), topology.segment("1")
    topology = topology.with_state([child.ref.id], SegmentState.DELETED)
    for new in ({}, {s.descriptor: EARLIEST for s in topology.readable}):
        order = ReadingOrder.of(topology, new)
        assert order.released == {first.descriptor}
        assert order.lost == ()


@pytest.mark.parametrize("kind", [SourceReader, ClientReader])
def test_a_new_reader_gets_each_key_in_order_behind_segments_that_were_sealed_empty(
    redis_path: str, run: Components, kind: type[SourceReader | ClientReader]
) -> None:
    sealed_empty_in_the_middle(run)
    reader = kind({"store.path": redis_path}, TOPIC)
    reader.read_all()
    reader.close()
    assert reader.found == {f"key-{n}": list(range(n, 20, KEYS)) for n in range(KEYS)}


def test_a_merge_waits_for_both_parents(run: Components) -> None:
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


def test_a_deleted_segment_is_lost_only_to_those_who_had_not_read_it(run: Components) -> None:
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
    run: Components,
) -> None:
    run.topics.changes.split(TOPIC, "0")
    assert len(run.topics.create(TOPIC, 1, exist_ok=True).active) == 2


class _Forgetful:
    """A writer whose second batch meets a seal: all of it is in the log, half of it is proved."""

    def __init__(self, inner: SegmentWriter, meanwhile: Callable[[], object]) -> None:
        self._inner, self._meanwhile = inner, meanwhile
        self._batches = 0

    def append(self, rows: pa.RecordBatch) -> None:
        self._batches += 1
        if self._batches == 1:
            self._inner.append(rows)
            return
        half = rows.num_rows // 2
        self._inner.append(rows.slice(0, half))
        self._inner.flush()
        self._known = self._inner.acknowledged()
        self._inner.append(rows.slice(half))
        self._inner.flush()
        self._meanwhile()
        raise SegmentSealedError("sealed before the last receipt came")

    def send(self) -> None:
        self._inner.send()

    def flush(self) -> Receipt:
        return self._inner.flush()

    def acknowledged(self) -> Receipt:
        return self._known if self._batches > 1 else self._inner.acknowledged()

    def close(self) -> None:
        self._inner.close()


class _ForgetfulLog:
    """The log, with a forgetful writer in the first segment."""

    def __init__(self, log: SegmentLog, meanwhile: Callable[[], object]) -> None:
        self._log, self._meanwhile = log, meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def writer(self, segment: SegmentRef, name: str) -> SegmentWriter:
        inner = self._log.writer(segment, name)
        return _Forgetful(inner, self._meanwhile) if segment.id.endswith("-0") else inner


def test_what_reached_a_sealed_segment_without_a_receipt_is_not_read_twice(run: Components) -> None:
    log = _ForgetfulLog(run.log, lambda: run.topics.changes.split(TOPIC, "0"))
    task = Task(replace(run, log=cast("SegmentLog", log)), "n")
    task.writers.append(TOPIC, rows(0, 100))
    task.writers.append(TOPIC, rows(100, 200))
    task.commit(task.writers.finish())
    parent = run.topics.require(TOPIC).segment("0").ref
    assert run.log.measure(parent, EARLIEST, run.log.last_confirmed(parent)).messages == 200
    require_whole(run, 200)


def test_rows_for_a_merged_child_do_not_overtake_those_that_wait_for_a_parent(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high = low_and_high()
    run.topics.changes.split(TOPIC, "0")
    task = Task(run, "n")
    task.writers.append(TOPIC, record_batch([(high, 0)]))  # waits in the task for company
    run.topics.changes.merge(TOPIC, ["1", "2"])
    real = _EmbeddedWriter.append

    def append_and_wait(writer: _EmbeddedWriter, rows: pa.RecordBatch) -> None:
        real(writer, rows)
        writer.flush()

    with monkeypatch.context() as patch:
        patch.setattr(_EmbeddedWriter, "append", append_and_wait)
        task.writers.append(TOPIC, record_batch([(low, 1)]))  # here the task learns of the merge
    task.writers.append(TOPIC, record_batch([(high, 2)]))
    task.commit(task.writers.finish())
    require_whole(run, 3)


def test_a_segment_that_was_terminated_past_us_is_an_error_until_it_gets_a_successor(
    run: Components,
) -> None:
    [parent] = run.topics.require(TOPIC).active
    run.log.seal(parent.ref)
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 100))
    with pytest.raises(SegmentSealedError, match="nobody has planned a successor"):
        task.writers.finish()
    task.abort()
    run.topics.changes.seal(TOPIC, parent.descriptor)
    task = Task(run, "m")
    task.writers.append(TOPIC, rows(0, 100))
    task.commit(task.writers.finish())
    require_whole(run, 100)


def test_a_writer_goes_on_where_its_segment_was_even_deleted_meanwhile(run: Components) -> None:
    low, high = low_and_high()
    run.topics.changes.split(TOPIC, "0")
    task = Task(run, "n")
    task.writers.append(TOPIC, record_batch([(high, 0)]))  # it knows the topic as it is now
    topology = run.topics.changes.split(TOPIC, "1")
    parent = topology.segment("1").ref
    deleted = topology.with_state([parent.id], SegmentState.DELETED)
    run.store.topics.swap(str(TOPIC), topology.version, deleted.serialize())
    run.log.delete(parent)
    task.writers.append(TOPIC, record_batch([(low, 1)]))
    task.commit(task.writers.finish())
    require_whole(run, 2)


def test_a_segment_that_was_deleted_past_us_is_an_error(run: Components) -> None:
    [segment] = run.topics.require(TOPIC).active
    run.log.delete(segment.ref)
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 100))
    with pytest.raises(SegmentNotFoundError):
        task.writers.finish()


def test_a_writer_that_meets_a_seal_leaves_the_rest_to_an_operator_who_is_alive(
    run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(run, "n")
    task.writers.append(TOPIC, rows(0, 100))
    half_done(run, seal=True)
    changes = run.topics.changes
    changes.patience_s = 60.0  # the event ends the wait, not the time
    operator = threading.Timer(0.1, lambda: changes.finish(run.topics.require(TOPIC)))
    operator.start()
    written = task.writers.finish()
    operator.join()
    monkeypatch.setattr(changes, "finish", lambda topology: topology)
    task.commit(written)
    require_whole(run, 100)


@pytest.mark.parametrize("seal", [False, True])
def test_a_sweep_finishes_what_an_operator_has_left_half_done(run: Components, seal: bool) -> None:
    half_done(run, seal=seal)
    assert run.sweeper().sweep().changes_finished == 1
    topology = run.topics.require(TOPIC)
    assert not topology.unfinished
    topology.require_tiling()
    assert [s.descriptor for s in topology.active] == ["0000-7fff-1", "8000-ffff-2"]
    assert run.sweeper().sweep().changes_finished == 0


def test_one_topic_that_cannot_be_finished_does_not_keep_a_sweep_from_the_others(
    run: Components,
) -> None:
    planned = half_done(run, seal=False)
    run.log.delete(planned.segment("0").ref)  # somebody has deleted it past us
    other = TopicName.parse("other")
    run.topics.create(other, 1)
    topology = run.topics.require(other)
    planned = topology.with_planned(topology.active, [], "dead operator")
    run.store.topics.swap(str(other), topology.version, planned.serialize())
    report = run.sweeper().sweep()
    assert report.changes_finished == 1
    [stuck] = report.stuck
    assert str(TOPIC) in stuck


def test_a_lineage_of_thousands_of_generations_is_drawn(run: Components) -> None:
    topology = run.topics.require(TOPIC)
    [first] = topology.segments
    names = [f"{TOPIC.path}/{topology.instance_id}/0000-ffff-{number}" for number in range(3_000)]
    chain = [
        replace(
            first,
            ref=replace(first.ref, id=name),
            parents=tuple(names[number - 1 : number]) if number else (),
            children=tuple(names[number + 1 : number + 2]),
        )
        for number, name in enumerate(names)
    ]
    rows = lineage(replace(topology, segments=tuple(chain)))
    assert [segment.ref.id for _, segment in rows] == names
    assert max(len(lines) for lines, _ in rows) <= 3 * 41


def test_a_drawing_has_each_segment_once_and_below_all_of_its_parents(run: Components) -> None:
    changes = run.topics.changes
    changes.split(TOPIC, "0")
    changes.split(TOPIC, "1")
    topology = changes.merge(TOPIC, ["4", "2"])
    drawn = [f"{lines}{segment.descriptor}" for lines, segment in lineage(topology)]
    assert drawn == [
        "0000-ffff-0",
        "├─ 0000-7fff-1",
        "│  ├─ 0000-3fff-3",
        "│  └─ 4000-7fff-4",
        "└─ 8000-ffff-2",
        "   └─ 4000-ffff-5",
    ]
    assert [bar(segment, 8) for _, segment in lineage(topology)] == [
        "▒▒▒▒▒▒▒▒",
        "▒▒▒▒    ",
        "██      ",
        "  ▒▒    ",
        "    ▒▒▒▒",
        "  ██████",
    ]
