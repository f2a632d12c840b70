"""Operation records: one by one or gathered into entries, never lost and never in the way."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark import steps
from pulsar_txn_spark.errors import (
    FencedError,
    OptionError,
    StoreCorruptError,
    StoreUnavailableError,
    TransactionAbortedError,
)
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.metadata_pb2 import BatchedOpRecords
from pulsar_txn_spark.store.records import EndedBy, OpLogSettings, TxnId
from pulsar_txn_spark.store.redis import scripts, transactions
from pulsar_txn_spark.txn.op_log import OpAddress, OpLog, Trigger, read_ops
from tests.support.scenario import Loss, Txn, World

NEVER_MS = 10_000  # no delay that could stand in for the trigger that is meant
SOON_S = 5.0


class Counts:
    """An observer that remembers what it was told."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, Trigger, int, int, float]] = []

    def batch_stored(
        self, tc: int, trigger: Trigger, records: int, size: int, oldest_waited_s: float
    ) -> None:
        self.stored.append((tc, trigger, records, size, oldest_waited_s))

    @property
    def triggers(self) -> list[tuple[Trigger, int]]:
        return [(trigger, records) for _, trigger, records, _, _ in self.stored]


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def log(world: World, counts: Counts) -> Iterator[OpLog]:
    """Return the log of the world's coordinator, which writes entries of three records."""
    found = world.coordinator.ops
    found.observer = counts
    found.configure(OpLogSettings(enabled=True, max_records=3, max_delay_ms=NEVER_MS))
    yield found
    found.close()


def open_in(world: World, tc: int) -> Txn:
    """Open a transaction on a certain TC: only those share an entry."""
    while (txn := world.open()).id.tc != tc:
        pass
    return txn


def names(world: World, txn: Txn) -> list[str]:
    return [op.name for op in read_ops(world.store.op_log, txn.id)]


def entries(world: World, tc: int) -> list[str]:
    return [key.decode().rpartition(":")[2] for key in world.client.keys(f"{{tc{tc}}}:op-batch:*")]


# --- gathering --------------------------------------------------------------------------------


def test_records_of_several_transactions_make_one_entry_and_each_knows_its_place(
    world: World, log: OpLog
) -> None:
    one, other = open_in(world, 0), open_in(world, 0)
    first = log.submit(one.id, one.nonce, {"a": b"1"})
    second = log.submit(other.id, other.nonce, {"b": b"2"})
    third = log.submit(one.id, one.nonce, {"c": b"3"})
    [entry] = {address.entry for f in (first, second, third) for address in f.result(SOON_S)}
    assert entries(world, 0) == [entry]
    assert first.result() == (OpAddress(one.id, entry, 0, 3),)
    assert second.result() == (OpAddress(other.id, entry, 1, 3),)
    assert [(op.name, op.record, op.address) for op in read_ops(world.store.op_log, one.id)] == [
        ("a", b"1", OpAddress(one.id, entry, 0, 3)),
        ("c", b"3", OpAddress(one.id, entry, 2, 3)),
    ]
    assert [op.record for op in read_ops(world.store.op_log, other.id)] == [b"2"]


def test_an_entry_begins_with_magic_and_version(world: World, log: OpLog) -> None:
    txn = open_in(world, 0)
    log.append(txn.id, txn.nonce, {"a": b"1", "b": b"2", "c": b"3"})
    [entry] = entries(world, 0)
    value = world.client.hget(f"{{tc0}}:op-batch:{entry}", "entry")
    assert value[:4] == bytes.fromhex("0e010001")
    items = BatchedOpRecords.FromString(value[4:]).items
    assert [(item.txn_id, item.name, item.record) for item in items] == [
        (txn.id.key, "a", b"1"),
        (txn.id.key, "b", b"2"),
        (txn.id.key, "c", b"3"),
    ]


def test_nobody_is_answered_before_the_entry_is_stored(world: World, log: OpLog) -> None:
    txn = open_in(world, 0)
    first = log.submit(txn.id, txn.nonce, {"a": b""})
    second = log.submit(txn.id, txn.nonce, {"b": b""})
    assert names(world, txn) == []
    assert not first.done()
    assert not second.done()
    log.append(txn.id, txn.nonce, {"c": b""})
    assert names(world, txn) == ["a", "b", "c"]
    first.result(SOON_S)
    second.result(SOON_S)


def test_each_threshold_writes_the_entry_and_is_counted(
    world: World, log: OpLog, counts: Counts
) -> None:
    txn = open_in(world, 0)

    def settings(**limits: int) -> None:
        log.configure(OpLogSettings(enabled=True, **{"max_delay_ms": NEVER_MS, **limits}))

    settings(max_records=2)
    log.append(txn.id, txn.nonce, {"r1": b"", "r2": b""})
    settings(max_bytes=10)
    log.append(txn.id, txn.nonce, {"s1": b"12345", "s2": b"12345"})
    settings(max_delay_ms=1)
    log.append(txn.id, txn.nonce, {"d": b""})
    settings(max_bytes=10)
    waiting = log.submit(txn.id, txn.nonce, {"w": b"1"})
    log.append(txn.id, txn.nonce, {"l": b"larger than any entry"})
    waiting.result(SOON_S)
    waiting = log.submit(txn.id, txn.nonce, {"c": b""})
    log.close()
    waiting.result(SOON_S)
    assert counts.triggers == [
        (Trigger.RECORDS, 2),
        (Trigger.SIZE, 2),
        (Trigger.DELAY, 1),
        (Trigger.SIZE, 1),
        (Trigger.FORCE, 1),
        (Trigger.FORCE, 1),
    ]
    tc, _, _, size, waited_s = counts.stored[2]
    [entry] = [op.address.entry for op in read_ops(world.store.op_log, txn.id) if op.name == "d"]
    assert tc == 0
    assert size == world.client.hstrlen(f"{{tc0}}:op-batch:{entry}", "entry")
    assert 0.001 <= waited_s < SOON_S


def test_more_records_than_an_entry_takes_make_several_and_all_are_waited_for(
    world: World, log: OpLog, counts: Counts
) -> None:
    log.configure(OpLogSettings(enabled=True, max_records=3, max_delay_ms=1))
    txn = open_in(world, 0)
    addresses = log.append(txn.id, txn.nonce, {str(i): b"" for i in range(8)})
    assert [(a.batch_index, a.batch_size) for a in addresses] == [
        *((i, 3) for i in range(3)),
        *((i, 3) for i in range(3)),
        *((i, 2) for i in range(2)),
    ]
    assert len(names(world, txn)) == 8


def test_whoever_brings_more_than_there_is_room_for_waits(
    world: World, log: OpLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = open_in(world, 0)
    locked, write = threading.Event(), world.store.op_log.append_batch

    def slow(*args: Any) -> Any:
        locked.wait(SOON_S)
        return write(*args)

    monkeypatch.setattr(world.store.op_log, "append_batch", slow)
    with ThreadPoolExecutor(1) as pool:
        # 3 are being written, 4 x 3 wait, and the last one has to.
        submitting = pool.submit(log.submit, txn.id, txn.nonce, {f"{i:02}": b"" for i in range(16)})
        with pytest.raises(TimeoutError):
            submitting.result(0.05)
        locked.set()
        log.submit(txn.id, txn.nonce, {"16": b"", "17": b""})
        submitting.result(SOON_S).result(SOON_S)
    assert len(names(world, txn)) == 18


# --- each transaction by itself ---------------------------------------------------------------


def test_a_transaction_that_is_over_takes_nothing_from_the_others_in_the_entry(
    world: World, log: OpLog
) -> None:
    alive, over, fenced = (open_in(world, 0) for _ in range(3))
    world.abort(over)
    kept = log.submit(alive.id, alive.nonce, {"a": b"1"})
    refused = log.submit(over.id, over.nonce, {"b": b"2"})
    foreign = log.submit(fenced.id, "another's nonce", {"c": b"3"})
    assert kept.result(SOON_S)[0].batch_index == 0
    with pytest.raises(TransactionAbortedError):
        refused.result(SOON_S)
    with pytest.raises(FencedError):
        foreign.result(SOON_S)
    assert names(world, alive) == ["a"]
    assert names(world, over) == names(world, fenced) == []


def test_of_two_owners_of_one_transaction_in_an_entry_only_one_counts(
    world: World, log: OpLog
) -> None:
    txn = open_in(world, 0)
    log.configure(OpLogSettings(enabled=True, max_records=2, max_delay_ms=NEVER_MS))
    zombie = log.submit(txn.id, "a zombie's nonce", {"zombie": b""})
    log.append(txn.id, txn.nonce, {"owner": b""})
    with pytest.raises(FencedError):
        zombie.result(SOON_S)
    assert names(world, txn) == ["owner"]


def test_an_entry_goes_with_the_last_transaction_that_has_a_record_in_it(
    world: World, log: OpLog
) -> None:
    one, other = open_in(world, 0), open_in(world, 0)
    waiting = log.submit(one.id, one.nonce, {"a": b"", "b": b""})
    log.append(other.id, other.nonce, {"c": b""})
    waiting.result(SOON_S)
    world.abort(one)
    assert names(world, one) == []
    assert names(world, other) == ["c"]
    assert len(entries(world, 0)) == 1
    world.commit(other)
    assert entries(world, 0) == []


def test_an_entry_of_refused_records_only_is_not_stored(world: World, log: OpLog) -> None:
    over = open_in(world, 0)
    world.abort(over)
    with pytest.raises(TransactionAbortedError):
        log.append(over.id, over.nonce, {"a": b"", "b": b"", "c": b""})
    assert entries(world, 0) == []


def test_records_are_forgotten_in_bounded_steps(
    world: World, log: OpLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_OPS_FORGOTTEN", 10)
    log.configure(OpLogSettings(enabled=True, max_records=1, max_delay_ms=NEVER_MS))
    txn = open_in(world, 0)
    # Enough for a hash table: a small hash is scanned as a whole, whatever is asked for.
    log.append(txn.id, txn.nonce, {str(i): b"" for i in range(600)})
    network = world.lose()
    world.abort(txn)
    assert 20 < network.calls["txn_forget_ops"] < 100
    assert entries(world, 0) == []
    assert world.client.keys("{tc0}:txn-op:*") == []
    assert world.header(txn).materialized


@pytest.mark.parametrize("enabled", [False, True], ids=["one by one", "gathered"])
def test_a_transaction_takes_as_many_operation_records_as_there_are(
    world: World, log: OpLog, enabled: bool
) -> None:
    log.configure(OpLogSettings(enabled=enabled))
    txn = open_in(world, 0)
    for chunk in range(5):
        log.append(txn.id, txn.nonce, {f"{chunk}-{i:04}": b"x" * 20 for i in range(1_000)})
    assert len(names(world, txn)) == 5_000
    world.abort(txn)
    assert names(world, txn) == []
    assert entries(world, 0) == []


# --- both forms, switched while it runs -------------------------------------------------------


def test_both_forms_stand_side_by_side_and_a_name_counts_once(world: World, log: OpLog) -> None:
    txn = open_in(world, 0)
    log.configure(OpLogSettings(enabled=False))
    assert log.append(txn.id, txn.nonce, {"a": b"1"}) == (OpAddress(txn.id, "a", 0, 1),)
    log.configure(OpLogSettings(enabled=True, max_records=2, max_delay_ms=NEVER_MS))
    log.append(txn.id, txn.nonce, {"b": b"2", "a": b"1"})
    log.configure(OpLogSettings(enabled=False))
    log.append(txn.id, txn.nonce, {"c": b"3"})
    assert [(op.name, op.record) for op in read_ops(world.store.op_log, txn.id)] == [
        ("a", b"1"),
        ("b", b"2"),
        ("c", b"3"),
    ]
    world.abort(txn)
    assert names(world, txn) == []


def test_switching_it_off_writes_what_was_gathered(
    world: World, log: OpLog, counts: Counts
) -> None:
    txn = open_in(world, 0)
    waiting = log.submit(txn.id, txn.nonce, {"a": b""})
    log.configure(OpLogSettings(enabled=False))
    waiting.result(SOON_S)
    assert counts.triggers == [(Trigger.FORCE, 1)]


def test_it_is_off_until_somebody_switches_it_on(world: World) -> None:
    txn = world.open()
    world.coordinator.append_ops(txn.id, txn.nonce, {"a": b""})
    assert world.client.keys("*:op-batch:*") == []
    assert names(world, txn) == ["a"]


def test_a_setting_in_the_store_reaches_running_writers_with_their_next_answer(
    world: World, counts: Counts
) -> None:
    log, txn = world.coordinator.ops, open_in(world, 2)
    log.observer = counts
    log.append(txn.id, txn.nonce, {"a": b""})
    assert world.store.op_log.read_settings(2) is None
    other = world.another_process().store
    other.op_log.change_settings(
        2, OpLogSettings(enabled=True, max_records=2, max_delay_ms=NEVER_MS)
    )
    log.append(txn.id, txn.nonce, {"b": b""})  # by itself still, but the answer says it
    log.append(txn.id, txn.nonce, {"c": b"", "d": b""})
    assert counts.triggers == [(Trigger.RECORDS, 2)]
    other.op_log.change_settings(2, OpLogSettings(enabled=False))
    log.append(txn.id, txn.nonce, {"e": b"", "f": b""})
    log.append(txn.id, txn.nonce, {"g": b""})
    assert counts.triggers == [(Trigger.RECORDS, 2), (Trigger.RECORDS, 2)]
    assert names(world, txn) == ["a", "b", "c", "d", "e", "f", "g"]
    assert world.store.op_log.read_settings(2) == OpLogSettings(enabled=False)
    log.close()


def test_the_limits_are_those_of_pip_160_and_have_bounds() -> None:
    found = OpLogSettings()
    assert (found.enabled, found.max_records) == (False, 512)
    assert (found.max_bytes, found.max_delay_ms) == (4 * 1024 * 1024, 1)
    wrongs: list[dict[str, Any]] = [{"max_records": 0}, {"max_bytes": 0}, {"max_delay_ms": -1}]
    for wrong in wrongs:
        with pytest.raises(OptionError, match=next(iter(wrong))):
            replace(found, **wrong)


# --- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", list(Loss))
def test_an_entry_whose_answer_is_lost_is_there_once(
    world: World, log: OpLog, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    txn = open_in(world, 0)
    network = world.lose({"txn_op_batch": [loss, loss]})
    log.append(txn.id, txn.nonce, {"a": b"", "b": b"", "c": b""})
    world.mend()
    assert network.calls["txn_op_batch"] == 3
    assert len(entries(world, 0)) == 1
    assert names(world, txn) == ["a", "b", "c"]


def test_a_thread_that_does_not_start_leaves_nobody_waiting(
    world: World, log: OpLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    txn = open_in(world, 0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            log.submit(txn.id, txn.nonce, {"refused": b""})
    log.submit(txn.id, txn.nonce, {"a": b"", "b": b"", "c": b""}).result(SOON_S)
    assert names(world, txn) == ["a", "b", "c"]


def test_a_store_that_does_not_answer_is_every_callers_error(
    world: World, log: OpLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    one, other = open_in(world, 0), open_in(world, 0)
    world.lose(always={"txn_op_batch": Loss.REQUEST})
    waiting = [
        log.submit(one.id, one.nonce, {"a": b"", "b": b""}),
        log.submit(other.id, other.nonce, {"c": b""}),
    ]
    for future in waiting:
        with pytest.raises(StoreUnavailableError):
            future.result(SOON_S)
    world.mend()
    log.append(one.id, one.nonce, {"a": b"", "b": b"", "c": b""})
    assert names(world, one) == ["a", "b", "c"], "the thread has gone on"


def test_an_observer_that_fails_does_not_stop_the_writing(world: World, log: OpLog) -> None:
    log.observer = object()  # type: ignore[assignment]
    txn = open_in(world, 0)
    for _ in range(2):
        log.append(txn.id, txn.nonce, {"a": b"", "b": b"", "c": b""})


@pytest.mark.parametrize(
    "damage,what",
    [
        (lambda key, w: w.client.delete(key), "missing"),
        (lambda key, w: w.client.hset(key, "entry", b"\x0e\x01\x00\x02"), "version 2, expected 1"),
        (lambda key, w: w.client.hset(key, "entry", b"\x0e\x01\x00\x01\xff"), "damaged"),
        (lambda key, w: w.client.hset(key, "entry", b"\x0e\x01\x00\x01"), "0 records, expected 3"),
    ],
)
def test_a_batch_that_cannot_be_read_is_reported_and_not_skipped(
    world: World, log: OpLog, damage: Callable[[str, World], Any], what: str
) -> None:
    txn = open_in(world, 0)
    log.append(txn.id, txn.nonce, {"a": b"", "b": b"", "c": b""})
    [entry] = entries(world, 0)
    damage(f"{{tc0}}:op-batch:{entry}", world)
    with pytest.raises(StoreCorruptError, match=what):
        read_ops(world.store.op_log, txn.id)


def test_what_would_be_taken_for_a_batch_is_not_accepted_as_a_record(world: World) -> None:
    txn = world.open()
    for ops in ({"a": b"\x0e\x01"}, {"batch:a": b""}):
        with pytest.raises(ValueError, match="taken for a batch"):
            world.coordinator.append_ops(txn.id, txn.nonce, ops)


def die_with_two_records(path: str, fault: str, file: str, txns: list[tuple[str, str]]) -> None:
    """Run as a process: two callers' records make one entry, and the process dies at it."""
    os.environ.update({steps.FAULT: fault, steps.FAULT_FILE: file})
    steps._faults = steps.Fault.all_from_environment()
    log = World(path).coordinator.ops
    log.configure(OpLogSettings(enabled=True, max_records=2, max_delay_ms=NEVER_MS))
    for key, nonce in txns:
        log.submit(TxnId.parse(key), nonce, {"op": b"record"})
    threading.Event().wait()


@pytest.mark.crash
@pytest.mark.parametrize("phase", [Phase.BEFORE, Phase.AFTER])
def test_a_crash_between_two_records_of_one_entry_leaves_both_or_none(
    world: World, redis_path: str, tmp_path: Path, processes: ForkServerContext, phase: Phase
) -> None:
    txns = [open_in(world, 0), open_in(world, 0)]
    arguments = (
        redis_path,
        f"{Step.OP_BATCH}:{phase}:1",
        str(tmp_path / "fault"),
        [(txn.id.key, txn.nonce) for txn in txns],
    )
    child = processes.Process(target=die_with_two_records, args=arguments)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    expected = [] if phase is Phase.BEFORE else ["op"]
    assert [names(world, txn) for txn in txns] == [expected, expected]
    # Whoever repairs it: the attempts end, and nothing of them stays behind.
    for txn in txns:
        world.coordinator.abort(txn.id, EndedBy.FENCE, cause="its process died")
    assert entries(world, 0) == []
    assert world.client.keys("{tc0}:txn-op:*") == []
