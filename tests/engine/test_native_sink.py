"""A sink under Pulsar's own transactions, against a broker and a coordinator in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pulsar_txn_spark.backends.pulsar import control_topic
from pulsar_txn_spark.backends.pulsar.control_topic import CONTROL_PROPERTY, ControlTopic
from pulsar_txn_spark.backends.pulsar.pulsar_pb2 import BaseCommand
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.batch import decode
from pulsar_txn_spark.backends.pulsar.wire.coordinator import WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.frames import decode_entry
from pulsar_txn_spark.backends.pulsar.wire.reader import WireEntry, WireEntryFeed
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine import native_sink
from pulsar_txn_spark.engine.native_sink import NativeBatch, NativeSink
from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    FencedError,
    OptionError,
    SegmentLogError,
    SegmentLogUnavailableError,
    TransactionAbortedError,
    TransactionConflictError,
    TransactionDomainError,
    UnverifiedReceiptError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.segments.topology import hash_of
from pulsar_txn_spark.txn.native_history import CommittedBatch, Kind, Record
from tests.support.fake_pulsar import INVALID_STATUS, TXN_NOT_FOUND, Topic
from tests.support.native_world import (
    PARTITIONS,
    QUERY,
    SCALABLE_TOPIC,
    SEGMENTS,
    TASKS,
    TOPIC,
    ScalableWorld,
    World,
)

ANOTHERS = (
    TXN_NOT_FOUND,
    "Client (spark) is neither the owner of the transaction nor a super user",
)
"""What a coordinator says of a transaction that it has forgotten, or that is another role's."""

BIG = b"x" * (native_sink._BUFFERED_BYTES + 1)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(monkeypatch)
    yield found
    found.close()


def test_a_batch_is_one_transaction_with_its_record_in_it(world: World) -> None:
    sink, batch = world.begin_and_write(0)
    assert world.committed() == Counter()
    world.commit(sink, batch, 0)
    assert world.committed() == Counter(world.values_of(0))
    assert world.coordinator.committed == {batch.txn}
    kinds = [(record.kind, txn) for record, txn in world.records()]
    plain = (Kind.BEGUN, Kind.WRITER, Kind.WRITER, Kind.CLOSED)
    assert kinds == [*((kind, None) for kind in plain), (Kind.COMMITTED, tuple(batch.txn))]
    producers = [c.producer for c in world.broker.heard if c.type == BaseCommand.PRODUCER]
    assert {p.topic for p in producers if p.txn_enabled} >= {world.control}
    assert world.last() == CommittedBatch(QUERY, 0)


def test_every_topic_takes_part_before_anything_of_the_transaction_is_sent_to_it(
    world: World,
) -> None:
    world.drive(0)
    part: set[str] = set()
    named: dict[int, str] = {}
    for command in world.broker.heard:
        if command.type == BaseCommand.ADD_PARTITION_TO_TXN:
            part.update(command.addPartitionToTxn.partitions)
        elif command.type == BaseCommand.PRODUCER and command.producer.txn_enabled:
            assert command.producer.topic in part
            named[command.producer.producer_id] = command.producer.topic
    assert world.control in named.values()
    assert {ref.log_name for ref in PARTITIONS} & set(named.values())


@pytest.mark.parametrize("dies", ["begun", "written", "closed"])
def test_the_next_attempt_ends_what_a_dead_driver_left_open(world: World, dies: str) -> None:
    world.drive(0)
    sink, dead = world.begin_and_write(1) if dies != "begun" else (world.sink(), None)
    if dead is None:
        dead = sink.begin(60_000)
    if dies == "closed":
        sink.close_batch(dead, {task: f"a{task}" for task in range(TASKS)})
    world.drive(1)
    assert dead.txn not in world.coordinator.open
    assert dead.txn not in world.coordinator.committed
    assert world.committed() == Counter(world.values_of(0) + world.values_of(1))


def test_a_record_whose_transaction_is_still_committing_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.drive(0)
    world.patience_s = 0.3
    sink, batch = world.begin_and_write(1)
    world.patience_s = 5

    def on_end(txn: tuple[int, int], commit: bool) -> str | None:
        decided = txn in world.coordinator.committing
        return "committing" if txn == batch.txn and commit and not decided else None

    def die(_batch: NativeBatch) -> None:
        raise SegmentLogUnavailableError("the driver is gone")

    world.coordinator.on_end = on_end
    monkeypatch.setattr(sink, "_find_out", die)
    with pytest.raises(SegmentLogUnavailableError, match="is gone"):
        world.commit(sink, batch, 1)
    assert world.coordinator.committing == {batch.txn}
    assert world.committed() == Counter(world.values_of(0))
    assert world.last() == CommittedBatch(QUERY, 1)
    assert world.committed() == Counter(world.values_of(0) + world.values_of(1))


def test_a_commit_without_a_reply_is_decided_by_the_record_and_nothing_else(world: World) -> None:
    world.drive(0)
    world.patience_s = 0.5
    sink, batch = world.begin_and_write(1)
    lost = ["lost"]
    world.coordinator.on_end = lambda _txn, commit: lost.pop() if commit and lost else None
    world.commit(sink, batch, 1)
    assert world.last() == CommittedBatch(QUERY, 1)
    sink, batch = world.begin_and_write(2)
    sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
    # It is forgotten, and was aborted: not found is not committed.

    def forget(txn: tuple[int, int], _commit: bool) -> None:
        world.coordinator.open.pop(txn, None)

    world.coordinator.on_end = forget
    with pytest.raises(TransactionAbortedError, match="was aborted"):
        sink.commit(batch, CommittedBatch(QUERY, 2))
    world.coordinator.on_end = lambda _txn, _commit: None
    assert world.last() == CommittedBatch(QUERY, 1)
    assert world.committed() == Counter(world.values_of(0) + world.values_of(1))


def test_a_commit_of_which_nobody_can_say_anything_is_unknown(world: World) -> None:
    world.patience_s = 0.5
    sink, batch = world.begin_and_write(0)
    sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
    world.coordinator.on_end = lambda _txn, _commit: (20, "no coordinator")
    with pytest.raises(CommitStateUnknownError, match="Start the query again"):
        sink.commit(batch, CommittedBatch(QUERY, 0))
    world.coordinator.on_end = lambda _txn, _commit: None
    assert world.last() is None


def test_a_record_that_was_sent_behind_the_next_drivers_is_read_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.drive(0)
    sink, batch = world.begin_and_write(1)
    sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
    append, pending = ControlTopic.append, [True]

    def commit_behind(control: ControlTopic, record: bytes, *txn: Any) -> Position:
        at = append(control, record, *txn)
        if pending and Record.decode(record).kind is Kind.BEGUN:
            pending.clear()
            sink.commit(batch, CommittedBatch(QUERY, 1))
        return at

    monkeypatch.setattr(control_topic.ControlTopic, "append", commit_behind)
    assert world.last() == CommittedBatch(QUERY, 1)


def test_an_attempt_that_was_overtaken_can_neither_write_nor_close_nor_commit(world: World) -> None:
    old_sink, old = world.begin_and_write(0)
    world.drive(0)
    with pytest.raises(FencedError):
        world.write(old, 2, "late", b"late")
    with pytest.raises(FencedError):
        old_sink.close_batch(old, {task: f"a{task}" for task in range(TASKS)})
    with pytest.raises(TransactionAbortedError):
        old_sink.commit(old, CommittedBatch(QUERY, 0))
    assert world.committed() == Counter(world.values_of(0))


def test_of_two_drivers_that_begin_at_once_the_last_record_wins(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, append = world.sink(), ControlTopic.append
    others: list[NativeBatch] = []

    def append_late(control: ControlTopic, record: bytes, *txn: Any) -> Position:
        at = append(control, record, *txn)
        if not others and Record.decode(record).kind is Kind.BEGUN:
            others.append(None)  # type: ignore[arg-type]
            others[:] = [world.sink().begin(60_000)]
        return at

    monkeypatch.setattr(control_topic.ControlTopic, "append", append_late)
    batch = sink.begin(60_000)
    assert batch.txn not in world.coordinator.open, "the other one has aborted it"
    with pytest.raises(FencedError):
        sink.close_batch(batch, {})
    assert others[0].txn in world.coordinator.open


def test_a_driver_that_was_overtaken_does_not_end_the_newer_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin_and_write(0)  # its driver is dead
    append, newer = ControlTopic.append, list[tuple[NativeSink, NativeBatch]]()
    first = iter([True])

    def overtaken(control: ControlTopic, record: bytes, *txn: Any) -> Position:
        if Record.decode(record).kind is Kind.BARRIER and next(first, False):
            sink, batch = world.begin_and_write(0)
            newer.append((sink, batch))
            sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
            # Its commit record lies in its transaction, whose end is on its way.
            sink._coordinators.add_partitions(TxnBits(*batch.txn), [world.control])
            committed = Record(Kind.COMMITTED, batch.txn, batch=CommittedBatch(QUERY, 0))
            append(control, committed.encode(), TxnBits(*batch.txn))
        return append(control, record, *txn)

    monkeypatch.setattr(control_topic.ControlTopic, "append", overtaken)
    with pytest.raises(FencedError):
        world.sink().begin(60_000)
    [(sink, batch)] = newer
    assert batch.txn in world.coordinator.open
    sink.commit(batch, CommittedBatch(QUERY, 0))
    assert world.committed() == Counter(world.values_of(0))


def test_a_task_is_taken_only_when_its_first_rows_are_sent(world: World) -> None:
    batch = world.sink().begin(60_000)
    failing = world.sink().writer(batch, 0, "failing")
    failing.append(TOPIC, pa.RecordBatch.from_pydict({"value": [b"small"]}))
    failing.append(TOPIC, pa.RecordBatch.from_pydict({"value": pa.array([], pa.binary())}))
    failing.close()
    assert not failing.wrote
    assert world.write(batch, 0, "second", b"row")
    empty = world.sink().writer(batch, 1, "empty")
    assert empty.finish() == 0
    assert not empty.wrote
    world.sink().close_batch(batch, {0: "second"})


def test_a_second_attempt_at_a_task_writes_nothing_and_the_batch_cannot_commit(
    world: World,
) -> None:
    sink = world.sink()
    batch = sink.begin(60_000)
    failing = world.sink().writer(batch, 0, "failing")
    failing.append(TOPIC, pa.RecordBatch.from_pydict({"value": [BIG[: 1 << 19]] * 3}))
    assert failing.wrote
    failing.finish()
    failing.close()
    entries = [len(world.broker.topic(ref.log_name).entries) for ref in PARTITIONS]
    with pytest.raises(TransactionConflictError, match="attempt failing may have written"):
        world.write(batch, 0, "second", b"row")
    assert entries == [len(world.broker.topic(ref.log_name).entries) for ref in PARTITIONS]
    with pytest.raises(TransactionConflictError, match="did not succeed"):
        sink.close_batch(batch, {})
    sink.abort(batch)
    assert world.committed() == Counter()


def test_no_attempt_begins_to_write_once_the_transaction_is_closed(world: World) -> None:
    sink, batch = world.begin_and_write(0)
    sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
    with pytest.raises(TransactionConflictError, match="it was closed"):
        world.write(batch, 5, "speculative", b"twice")
    sink.commit(batch, CommittedBatch(QUERY, 0))
    assert world.committed() == Counter(world.values_of(0))


def test_an_entry_without_a_receipt_fails_its_attempt(world: World) -> None:
    batch = world.sink().begin(60_000)
    names = {ref.log_name for ref in PARTITIONS}

    def act(_number: int, _name: str) -> str | None:
        data = [c for c in world.broker.heard if c.type == BaseCommand.PRODUCER]
        return "store-cut" if data[-1].producer.topic in names else None

    world.broker.on_send = act
    with pytest.raises(UnverifiedReceiptError):
        world.write(batch, 0, "a0", b"row")


def test_a_transaction_that_is_over_takes_no_further_topics(world: World) -> None:
    batch = world.sink().begin(60_000)
    del world.coordinator.open[batch.txn]
    with pytest.raises(TransactionAbortedError, match=r"longer than txn\.timeoutMs"):
        world.write(batch, 0, "a0", b"row")


def test_what_no_longer_counts_is_let_go_of_once_and_the_rest_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_sink, "_TRIM_RECORDS", 8)
    for number in range(6):
        world.drive(number)
    assert world.admin.kept.entry > 0
    assert world.last() == CommittedBatch(QUERY, 5)
    first, _ = world.records()[world.admin.kept.entry + 1]
    assert first.kind is Kind.COMMITTED


def test_the_control_topic_is_marked_once_it_keeps_its_data(world: World) -> None:
    world.drive(0)
    assert world.admin.calls == [
        "create_subscription",
        "keep_all_data",
        "retain_nothing",
        "mark",
    ]
    assert world.admin.marks[world.control] == {CONTROL_PROPERTY: "s"}
    world.admin.marks[world.control] = {CONTROL_PROPERTY: "somebody"}
    with pytest.raises(OptionError, match="sink 'somebody'"):
        world.sink().begin(60_000)


@pytest.mark.parametrize("scalable", [False, True])
def test_a_control_topic_whose_subscription_would_expire_is_refused_at_each_start(
    monkeypatch: pytest.MonkeyPatch, scalable: bool
) -> None:
    world = ScalableWorld(monkeypatch) if scalable else World(monkeypatch)
    world.drive(0)

    def refuse(topic: str) -> None:
        raise SegmentLogError(f"{topic} would lose data")

    monkeypatch.setattr(world.admin, "require_no_expiry", refuse, raising=False)
    with pytest.raises(SegmentLogError, match="would lose data"):
        world.sink().begin(60_000)
    world.close()


def test_a_control_topic_that_stays_blocked_fails_the_attempt_and_is_freed(world: World) -> None:
    world.drive(0)
    world.patience_s = 0.5
    # Of nobody who has said so: an entry of a transaction that no record names.
    foreign = (0, 999)
    control = world.broker.topic(world.control)
    world.coordinator.open[foreign] = {world.control}
    control.txns[len(control.entries)] = foreign
    control.entries.append(control.entries[-1])
    with pytest.raises(SegmentLogUnavailableError, match="a transaction is still open in it"):
        world.sink().begin(60_000)
    added = [c for c in world.broker.heard if c.type == BaseCommand.ADD_PARTITION_TO_TXN]
    assert list(added[-1].addPartitionToTxn.partitions) == [world.control]
    assert set(world.coordinator.open) == {foreign}


def test_a_transaction_of_another_role_is_no_reason_to_go_on(world: World) -> None:
    world.drive(0)
    _, other = world.begin_and_write(1)
    said = "Client (x) is neither the owner of the transaction nor a super user"
    world.coordinator.on_end = lambda txn, _commit: (24, said) if txn == other.txn else None
    with pytest.raises(TransactionAbortedError, match="belongs to another role"):
        world.sink().begin(60_000)
    assert set(world.coordinator.open) == {other.txn}


def test_the_transport_client_has_no_transactions() -> None:
    config = PulsarConfig("pulsar://x", "http://x", transport="client")
    with pytest.raises(OptionError, match="the option 'transport' says so"):
        NativeSink(config, "public/default", "s")


# --- into scalable topics -----------------------------------------------------------------------


@pytest.fixture
def scalable(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScalableWorld]:
    found = ScalableWorld(monkeypatch)
    yield found
    found.close()


def test_a_batch_into_a_scalable_topic_is_a_transaction_of_its_coordinators(
    scalable: ScalableWorld,
) -> None:
    scalable.drive(0)
    sink, batch = scalable.begin_and_write(1)
    scalable.admin.calls.clear()
    assert scalable.committed() == Counter(scalable.values_of(0))
    scalable.commit(sink, batch, 1)
    expected = Counter([*scalable.values_of(0), *scalable.values_of(1)])
    assert scalable.committed() == expected
    assert scalable.last() == CommittedBatch(QUERY, 1)
    assert scalable.control.startswith("segment://public/default/__pulsar_txn_spark-sink-")
    assert {p.newTxn.scalable for p in scalable.broker.heard if p.type == BaseCommand.NEW_TXN} == {
        True
    }


def test_rows_go_to_the_segments_that_own_their_keys(scalable: ScalableWorld) -> None:
    values = [b"%d" % number for number in range(50)]
    sink = scalable.sink()
    batch = sink.begin(60_000)
    scalable.write(batch, 0, "a0", *values)
    for ref, first in zip(SEGMENTS, (0, 32_768), strict=True):
        topic = scalable.broker.topic(ref.log_name)
        own = [
            value
            for at, (body, messages) in enumerate(topic.entries)
            if topic.txns[at] == tuple(batch.txn)
            for value in decode(bytes(decode_entry(body)[1]), messages)["value"].to_pylist()
        ]
        assert own == [v for v in values if first <= hash_of(v) < first + 32_768]


def test_a_transaction_has_ended_in_a_segment_before_the_first_row_is_sent_there(
    scalable: ScalableWorld,
) -> None:
    sink, batch = scalable.begin_and_write(0)
    for ref in SEGMENTS:
        topic = scalable.broker.topic(ref.log_name)
        if not topic.entries:
            continue
        first, *rest = (topic.txns[at] for at in range(len(topic.entries)))
        assert first != tuple(batch.txn)
        assert first not in scalable.coordinator.open
        assert first not in scalable.coordinator.committed
        assert set(rest) <= {tuple(batch.txn)} | scalable.coordinator.known
    scalable.commit(sink, batch, 0)
    assert scalable.committed() == Counter(scalable.values_of(0))


def test_a_record_that_is_shown_of_an_open_transaction_does_not_count_as_a_commit(
    scalable: ScalableWorld,
) -> None:
    scalable.drive(0)
    sink, batch = scalable.begin_and_write(1)
    # As a broker of 5.0.0-M1 shows it that has just loaded the segment.
    shown = Record(Kind.COMMITTED, batch.txn, batch=CommittedBatch(QUERY, 1))
    sink._control.append(shown.encode())
    with pytest.raises(TransactionAbortedError, match="never committed"):
        scalable.sink().begin(60_000)
    assert batch.txn not in scalable.coordinator.open
    assert scalable.committed() == Counter(scalable.values_of(0))


def load_again(world: ScalableWorld, name: str) -> None:
    """Load a segment as 5.0.0-M1 does: where no transaction has ended, all open ones are shown."""
    txns, coordinator = world.broker.topic(name).txns.values(), world.coordinator
    if all(txn in coordinator.open for txn in txns):
        for txn in set(txns):
            coordinator.open[txn].discard(name)
            coordinator.committed.add(txn)


def test_the_record_of_a_first_commit_is_not_shown_before_it_is_decided(
    scalable: ScalableWorld,
) -> None:
    sink, batch = scalable.begin_and_write(0)
    sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
    record = Record(Kind.COMMITTED, batch.txn, batch=CommittedBatch(QUERY, 0))
    sink._coordinators.add_partitions(TxnBits(*batch.txn), [scalable.control])
    sink._control.append(record.encode(), TxnBits(*batch.txn))
    # The driver dies here, and the broker; the transaction's time is over, and it is forgotten.
    load_again(scalable, scalable.control)
    del scalable.coordinator.open[batch.txn]
    assert scalable.last() is None, "the batch has to be written again"
    scalable.drive(0)
    assert scalable.last() == CommittedBatch(QUERY, 0)


def test_a_process_ends_a_transaction_in_the_control_topic_once_and_only_until_the_first_commit(
    scalable: ScalableWorld,
) -> None:
    def ended() -> int:
        txns = scalable.broker.topic(scalable.control).txns.values()
        return len({txn for txn in txns if txn not in scalable.coordinator.open})

    sink = scalable.sink()
    first = sink.begin(60_000)
    assert ended() == 1
    assert first.txn in scalable.coordinator.open
    sink.abort(first)
    sink.abort(sink.begin(60_000))
    assert ended() == 1
    scalable.drive(0)  # another process
    before = ended()
    scalable.sink().begin(60_000)
    assert ended() == before


def test_who_dies_while_a_transaction_is_ended_in_the_control_topic_is_in_nobodys_way(
    scalable: ScalableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(_self: object, _txn: object, *, commit: bool) -> None:
        raise RuntimeError(f"died before END_TXN, commit={commit}")

    with monkeypatch.context() as dying:
        dying.setattr(WireCoordinators, "end", dies)
        with pytest.raises(RuntimeError, match="died before END_TXN"):
            scalable.sink().begin(60_000)
    assert len(scalable.coordinator.open) == 1
    scalable.drive(0)
    assert scalable.coordinator.open == {}
    assert scalable.committed() == Counter(scalable.values_of(0))


def test_no_record_outweighs_an_abort_that_the_coordinator_has_confirmed(
    scalable: ScalableWorld,
) -> None:
    sink, batch = scalable.begin_and_write(0)
    sink.close_batch(batch, {task: f"a{task}" for task in range(TASKS)})
    shown = Record(Kind.COMMITTED, batch.txn, batch=CommittedBatch(QUERY, 0))
    sink._control.append(shown.encode())
    refused = (INVALID_STATUS, "expected OPEN, found ABORTING")
    scalable.coordinator.on_end = lambda _txn, commit: refused if commit else None
    with pytest.raises(TransactionAbortedError, match="was aborted"):
        sink.commit(batch, CommittedBatch(QUERY, 0))


def test_a_commit_that_its_coordinator_has_forgotten_counts_whoever_owns_it(
    scalable: ScalableWorld,
) -> None:
    scalable.drive(0)
    committed = set(scalable.coordinator.committed)
    scalable.coordinator.on_end = lambda txn, _commit: ANOTHERS if txn in committed else None
    scalable.drive(1)
    assert scalable.last() == CommittedBatch(QUERY, 1)


def test_a_commit_whose_record_comes_late_is_not_taken_for_another_roles_open_transaction(
    scalable: ScalableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    scalable.drive(0)
    committed = set(scalable.coordinator.committed)
    scalable.coordinator.on_end = lambda txn, _commit: ANOTHERS if txn in committed else None
    monkeypatch.setattr(control_topic, "WireEntryFeed", LateFeed)
    scalable.drive(1)
    assert scalable.last() == CommittedBatch(QUERY, 1)


def test_an_open_transaction_of_another_role_stops_a_driver(
    scalable: ScalableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    scalable.drive(0)
    monkeypatch.setattr(control_topic, "WireEntryFeed", LateFeed)
    other = scalable.sink().begin(60_000)
    scalable.coordinator.on_end = lambda txn, _commit: ANOTHERS if txn == other.txn else None
    with pytest.raises(TransactionAbortedError, match="belongs to another role"):
        scalable.drive(1)


class LateFeed(WireEntryFeed):
    """Has an entry only when it is asked for the second time, as where a broker is slow."""

    _asked = False

    def next_entry(self, previous: Position) -> WireEntry | None:
        self._asked = not self._asked
        return None if self._asked else super().next_entry(previous)


def test_the_control_topic_of_a_scalable_sink_is_its_own_and_is_never_split(
    scalable: ScalableWorld,
) -> None:
    scalable.drive(0)
    assert scalable.admin.calls == ["create", "never_scale", "require_no_expiry"]
    assert list(scalable.admin.marks.values()) == [{CONTROL_PROPERTY: "s"}]
    scalable.admin.segments = 3
    with pytest.raises(OptionError, match="was split: expected one segment, found 3"):
        scalable.drive(1)
    scalable.admin.segments = 1
    for marks in scalable.admin.marks.values():
        marks[CONTROL_PROPERTY] = "other"
    with pytest.raises(OptionError, match="is that of sink 'other'"):
        scalable.drive(1)


def test_what_no_longer_counts_in_a_segment_is_acknowledged(
    scalable: ScalableWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_sink, "_TRIM_RECORDS", 4)
    scalable.drive(0)
    scalable.drive(1)
    scalable.drive(2)
    topic = scalable.broker.topic(scalable.control)
    (acknowledged,) = topic.cursors.values()
    records = [record for record, _ in scalable.records()]
    kept = records[acknowledged + 1 :]
    assert kept[0].kind is Kind.COMMITTED
    assert kept[0].batch == CommittedBatch(QUERY, 1)
    assert scalable.last() == CommittedBatch(QUERY, 2)


def test_no_transaction_covers_scalable_topics_and_others(
    scalable: ScalableWorld, world: World
) -> None:
    for found, other in ((scalable, TOPIC), (world, SCALABLE_TOPIC)):
        sink = found.sink()
        batch = sink.begin(60_000)
        writer = sink.writer(batch, 0, "a0")
        writer.append(other, pa.RecordBatch.from_pydict({"value": [b"x"]}))
        with pytest.raises(TransactionDomainError, match="spans both"):
            writer.finish()
        writer.close()


def test_a_transaction_does_not_go_on_in_another_topic_of_the_same_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged in the topic before is gone: nothing of it would be committed."""
    [ref] = world.partitions[:1]
    monkeypatch.setattr(world, "partitions", [ref])
    sink = world.sink()
    batch = sink.begin(60_000)
    writer = sink.writer(batch, 0, "a0")
    rows = [b"%d" % number + b"x" * 300 for number in range(8_000)]  # more than is gathered
    writer.append(world.topic, pa.RecordBatch.from_pydict({"value": rows}))
    [producer] = writer._writers.values()
    producer._wait(producer._ledger.is_settled)
    assert producer._ledger.total.messages > 0
    world.broker.topics[ref.log_name] = Topic()  # deleted, and made anew for the next producer
    monkeypatch.setattr(world.broker, "ledger", world.broker.ledger + 1)
    for peer in world.broker.peers:
        for number, (topic, _) in list(peer._producers.items()):
            if topic == ref.log_name:
                peer.close_producer(number)
    producer._ledger.wait(lambda: producer._producer.lost is not None)
    writer.append(world.topic, pa.RecordBatch.from_pydict({"value": [b"new"]}))
    with pytest.raises(UnverifiedReceiptError):
        writer.finish()
    writer.close()
