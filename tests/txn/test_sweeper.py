"""Sweeps keep the metadata small, and never take what somebody still needs (INV-5, INV-6)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from pyspark.sql.types import StructType

import pulsar_txn_spark
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import (
    OptionError,
    PulsarTxnError,
    SegmentLogUnavailableError,
    SegmentLogUnreachableError,
    StoreCorruptError,
    StoreError,
    StoreRolledBackError,
    TransactionNotFoundError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.records import Code, TxnState
from pulsar_txn_spark.store.redis import segments
from pulsar_txn_spark.txn import sweeper as sweeper_module
from pulsar_txn_spark.txn.batch import BatchKey
from pulsar_txn_spark.txn.participants import write_intent
from pulsar_txn_spark.txn.sweeper import BackgroundSweeper, SegmentEnds, Sweeper, SweepReport
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, TIMEOUT_MS, Txn, World, ack

DELETED: dict[str, Position] = {}


@pytest.fixture(autouse=True)
def nothing_deleted() -> None:
    DELETED.clear()


def sweep(world: World, retention_ms: int = 0) -> SweepReport:
    def ends(segment: str) -> SegmentEnds:
        return SegmentEnds(world.log.last_confirmed(segment), DELETED.get(segment, EARLIEST))

    return Sweeper(world.coordinator, ends, retention_ms).sweep()


def headers(world: World) -> list[str]:
    return sorted(key.decode() for key in world.client.keys("*:txn:*"))


def test_an_expired_transaction_is_aborted_and_its_rows_stay_invisible(world: World) -> None:
    txn = world.open()
    world.write(txn, "a")
    world.expire(txn)
    assert sweep(world, retention_ms=60_000).aborted == 1
    assert world.state(txn) is TxnState.ABORTED
    assert world.visible() == []
    assert world.pinned() == []


def test_a_transaction_that_is_alive_stays_unchanged(world: World) -> None:
    txn = world.open()
    world.write(txn, "a")
    report = sweep(world)
    assert (report.aborted, report.headers_removed) == (0, 0)
    assert world.state(txn) is TxnState.OPEN


def test_a_decided_header_goes_with_its_intents_nonce_and_indexes(world: World) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    assert sweep(world).headers_removed == 1
    left = {key.decode().partition(":")[2] for key in world.client.keys("{tc*")}
    assert left <= {"birth", "txn-counter", "events", "metrics"}  # a bounded stream
    assert world.visible() == ["a"]


def test_a_header_stays_for_its_retention(world: World) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    assert sweep(world, retention_ms=60_000).headers_removed == 0
    assert world.state(txn) is TxnState.COMMITTED


def test_a_decision_that_nobody_materialized_is_materialized_first(world: World) -> None:
    txn = world.open()
    world.decide(txn, world.write(txn, "a"))
    report = sweep(world)
    assert (report.materialized, report.headers_removed) == (1, 1)
    assert world.pinned() == []
    assert world.visible() == ["a"]


def test_a_header_stays_while_an_older_transaction_of_its_tc_is_open(world: World) -> None:
    older = world.open("nonce-0")
    tc = world.coordinator.shard("nonce-0")
    same = next(n for n in (f"n{i}" for i in range(99)) if world.coordinator.shard(n) == tc)
    younger = world.open(same)
    world.commit(younger, world.write(younger, "a"))
    assert sweep(world).headers_removed == 0
    world.abort(older)
    assert sweep(world).headers_removed == 2


def test_a_pin_request_that_arrives_after_the_header_went_is_refused(world: World) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    sweep(world)
    late = writer_name(txn.id, 7, "late")
    assert [a.code for a in world.store.segments.pin(txn.id, late, [SEGMENT])] == [Code.CLOSED]
    assert world.pinned() == []


def test_a_pending_acknowledgement_that_arrives_after_the_header_went_is_refused(
    world: World,
) -> None:
    end = Position(1, 0)
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 1, EARLIEST)
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    sweep(world)
    answers = world.store.subscriptions.place_acks(txn.id, [ack(EARLIEST, end)])
    assert [a.code for a in answers] == [Code.CLOSED]


def test_the_zombie_that_wakes_after_the_dropped_record_went_stays_invisible(world: World) -> None:
    zombie = world.open()
    world.write(zombie, "lost")
    world.abort(zombie)
    assert len(world.dropped()) == 1
    sweep(world)
    assert len(world.dropped()) == 1, "its entry is still in the log"
    DELETED[SEGMENT] = world.log.last_confirmed(SEGMENT)
    # The sweep works when something of the TC has ended since; the pair noted before is finished.
    again = world.open(zombie.nonce + "x")
    while again.id.tc != zombie.id.tc:
        again = world.open(again.nonce + "x")
    world.commit(again, world.write(again, "seen"))
    sweep(world)
    assert world.dropped() == {}
    world.log.append(SEGMENT, writer_name(zombie.id, 0, "abcd"), "from the grave")
    assert world.visible() == ["seen"]


@pytest.mark.parametrize("reader_was_there", [True, False], ids=["reading on", "from earliest"])
def test_the_zombie_that_wakes_after_all_of_it_finds_every_door_shut(
    world: World, reader_was_there: bool
) -> None:
    zombie = world.open("zombie")
    name = world.write(zombie, "lost").writer
    world.expire(zombie)
    sweep(world)  # aborted, materialized, closed, collected
    assert world.store.transactions.read(zombie.id) is None
    DELETED[SEGMENT] = world.log.last_confirmed(SEGMENT)
    start = DELETED[SEGMENT] if reader_was_there else EARLIEST
    later = in_one_tc(world, 2) if zombie.id.tc == 0 else [world.open("zombie")]
    for txn in later:
        world.commit(txn, world.write(txn, "seen"))
    sweep(world)  # the floor rises, the dropped writer is forgotten
    assert world.dropped() == {}
    assert headers(world) == []

    # A week later, on a server where nothing remembers it: it asks for everything once more.
    late = world.another_process()
    for step in (
        lambda: late.admit(zombie),
        lambda: late.coordinator.heartbeat(zombie.id, zombie.nonce, TIMEOUT_MS),
        lambda: late.coordinator.append_ops(zombie.id, zombie.nonce, {"op": b""}),
        lambda: late.commit(zombie),
    ):
        with pytest.raises(TransactionNotFoundError):
            step()
    [pinned] = late.store.segments.pin(
        zombie.id, name, [SEGMENT]
    )  # a request that was on its way for hours
    assert pinned.code is Code.CLOSED
    late.log.append(SEGMENT, name, "from the grave")
    late.log.append(SEGMENT, writer_name(zombie.id, 9, "anew"), "from the grave as well")
    assert late.pinned() == []
    assert world.visible(start=start) == ["seen"] * len(later)
    assert late.another_process().visible(start=start) == ["seen"] * len(later)


def test_a_dropped_record_stays_until_the_log_has_deleted_its_entries(world: World) -> None:
    txn = world.open()
    world.write(txn, "lost")
    world.log.append(SEGMENT, "plain", "seen")
    world.abort(txn)
    for _ in range(3):
        sweep(world)
    assert headers(world) == []
    assert world.visible() == ["seen"]


def test_the_pointer_learns_the_decision_before_the_header_goes(world: World) -> None:
    key = BatchKey("s", "q", 0)
    world.run_batch(key, "n1", "a")
    assert sweep(world).headers_removed == 1
    attempt = world.run_batch(key, "n2", "a")
    assert attempt.replay
    assert world.visible() == ["a"]


def test_teaching_a_retired_pointer_does_not_bring_its_query_back(world: World) -> None:
    world.run_batch(BatchKey("s", "old", 0), "n1", "a")
    world.run_batch(BatchKey("s", "new", 0), "n2", "b")
    sweep(world)
    assert world.store.sinks.read_pointer("s", "old").current_query == "new"


def test_sweeping_twice_at_once_does_no_harm(world: World) -> None:
    other = world.another_process()
    for nonce in ("a", "b", "c"):
        txn = world.open(nonce)
        world.commit(txn, world.write(txn, nonce))
    reports = [sweep(world), sweep(other)]
    assert sum(report.headers_removed for report in reports) == 3
    assert world.visible() == ["a", "b", "c"]


def test_a_new_reader_from_earliest_after_all_collection_sees_exactly_what_committed(
    world: World,
) -> None:
    expected = []
    for number in range(12):
        txn = world.open(f"n{number}")
        winner = world.write(txn, f"v{number}")
        if number % 3:
            world.commit(txn, winner)
            expected.append(f"v{number}")
        else:
            world.abort(txn)
        if number % 4 == 3:
            sweep(world)
    sweep(world)
    assert headers(world) == []
    assert world.another_process().visible() == expected


def test_a_commit_after_the_header_went_is_told_so(world: World) -> None:
    txn = world.open()
    world.write(txn, "a")
    world.expire(txn)
    sweep(world)
    with pytest.raises(TransactionNotFoundError, match="no header"):
        world.commit(txn)


def test_a_segment_is_not_closed_over_a_pin(world: World) -> None:
    txn = world.open()
    world.admit(txn)
    answer = world.store.segments.close(SEGMENT, txn.id.tc, txn.id.counter + 1)
    assert (answer.code, answer.holder) == (Code.PENDING, txn.id)


def test_a_segment_is_not_closed_over_a_pending_acknowledgement(world: World) -> None:
    world.store.subscriptions.claim_cursor(SEGMENT, "sub", "q", 1, EARLIEST)
    txn = world.open()
    world.acks.acknowledge(txn.id, txn.nonce, TIMEOUT_MS, [ack(EARLIEST, Position(1, 0))])
    answer = world.store.segments.close(SEGMENT, txn.id.tc, txn.id.counter + 1)
    assert (answer.code, answer.holder) == (Code.PENDING, txn.id)


def test_the_floor_is_the_one_noted_first_not_that_of_a_later_pair(world: World) -> None:
    first, second = world.open("n0"), None
    world.write(first, "lost")
    world.abort(first)
    tc = first.id.tc
    world.store.segments.close(SEGMENT, tc, first.id.counter + 1)
    noted = world.log.last_confirmed(SEGMENT)
    world.store.segments.raise_floor(SEGMENT, tc, first.id.counter + 1, noted, EARLIEST)
    names = (n for n in (f"m{i}" for i in range(99)) if world.coordinator.shard(n) == tc)
    second = world.open(next(names))
    world.write(second, "lost too")
    world.abort(second)
    world.store.segments.close(SEGMENT, tc, second.id.counter + 1)
    later = world.log.last_confirmed(SEGMENT)
    answer = world.store.segments.raise_floor(SEGMENT, tc, second.id.counter + 1, later, noted)
    assert (answer.floor, answer.removed) == (first.id.counter + 1, 1)
    assert [w for w in world.dropped() if f"-{second.id.counter}-" in w], "its entry is there"


def test_a_broker_that_answers_with_an_older_last_position_makes_no_committed_row_invisible(
    world: World,
) -> None:
    # After the unload of a bundle its former owner may still be asked.
    txn = world.open()
    world.commit(txn, world.write(txn, "committed"))
    tc, below = txn.id.tc, txn.id.counter + 1
    world.store.segments.close(SEGMENT, tc, below)
    answer = world.store.segments.raise_floor(SEGMENT, tc, below, EARLIEST, EARLIEST)
    assert (answer.floor, answer.removed) == (None, 0)
    assert world.visible() == ["committed"]


def test_a_zombie_whose_header_went_may_not_write(world: World) -> None:
    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    sweep(world)
    assert world.store.transactions.read(txn.id) is None
    with pytest.raises(TransactionNotFoundError):
        world.buffer.admit(txn.id, txn.nonce, TIMEOUT_MS, "w", [SEGMENT])


# --- one that is stuck, and the others ----------------------------------------------------------


def in_one_tc(world: World, count: int) -> list[Txn]:
    """Open transactions in TC 0, oldest first."""
    nonces = (f"same-{i}" for i in range(1_000))
    own = (nonce for nonce in nonces if world.coordinator.shard(nonce) == 0)
    return [world.open(next(own)) for _ in range(count)]


def test_headers_that_cannot_go_hide_no_others_and_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper_module, "_AT_A_TIME", 2)
    first, second, third, fourth = in_one_tc(world, 4)
    for txn in (first, second):
        world.commit(txn, world.write(txn, "stuck", segment=OTHER_SEGMENT))
    for txn in (third, fourth):
        world.commit(txn, world.write(txn, "row"))

    def ends(segment: str) -> SegmentEnds:
        if segment == OTHER_SEGMENT:
            raise StoreCorruptError("the topology is broken")
        return SegmentEnds(world.log.last_confirmed(segment), EARLIEST)

    process = Sweeper(world.coordinator, ends, 0)
    report = process.sweep()
    assert report.headers_removed == 0
    assert [name.partition(":")[0] for name in report.stuck] == [str(first.id), str(second.id)]
    assert all("the topology is broken" in why for why in report.stuck)
    assert process.sweep().headers_removed == 2
    assert world.store.transactions.read(third.id) is None
    assert len(process.sweep().stuck) == 2, "it begins anew at the oldest"


def test_an_outcome_that_cannot_be_read_is_named_and_does_not_block_the_others(
    world: World,
) -> None:
    damaged, other = in_one_tc(world, 2)
    world.decide(damaged, world.write(damaged, "damaged", segment=OTHER_SEGMENT))
    world.decide(other, world.write(other, "row"))
    header = f"{{tc{damaged.id.tc}}}:txn:{damaged.id.key}"
    world.client.hset(header, "outcome", b"\xff\xff")
    report = sweep(world)
    assert report.headers_removed == 1
    assert any("the outcome of transaction" in why for why in report.stuck)
    assert world.visible() == ["row"]


def test_a_decision_that_cannot_be_materialized_does_not_block_the_others(
    world: World,
) -> None:
    broken, sound = in_one_tc(world, 2)
    world.decide(broken)
    world.client.sadd(f"{{tc{broken.id.tc}}}:intents:{broken.id.key}", "X|of no|known kind")
    world.decide(sound, world.write(sound, "row"))
    report = sweep(world)
    assert report.headers_removed == 1
    assert any(str(broken.id) in why and "unknown kind" in why for why in report.stuck)
    assert world.state(broken) is TxnState.COMMITTED
    assert world.visible() == ["row"]


def test_what_is_decided_is_materialized_within_the_retention_and_found_without_the_finished(
    world: World,
) -> None:
    finished, decided = in_one_tc(world, 2)
    world.commit(finished, world.write(finished, "a"))
    world.decide(decided, world.write(decided, "b"))
    assert world.store.transactions.list_unmaterialized(0, limit=9) == [decided.id]
    assert sweep(world, retention_ms=60_000).materialized == 1
    assert world.store.transactions.list_unmaterialized(0, limit=9) == []
    assert len(headers(world)) == 2


def test_headers_that_wait_for_an_older_open_transaction_are_counted(world: World) -> None:
    older, younger = in_one_tc(world, 2)
    world.commit(younger, world.write(younger, "a"))
    report = sweep(world)
    assert (report.waiting, report.headers_removed, report.stuck) == (1, 0, ())
    world.abort(older)
    report = sweep(world)
    assert (report.waiting, report.headers_removed) == (0, 2)


def test_a_header_that_an_older_version_decided_is_materialized_when_it_is_due(
    world: World,
) -> None:
    (txn,) = in_one_tc(world, 1)
    world.decide(txn, world.write(txn, "row"))
    world.client.delete("{tc0}:idx:txn-unmaterialized")
    assert sweep(world).headers_removed == 1
    assert world.visible() == ["row"]


def test_ids_are_refused_where_a_double_could_not_tell_them_apart(world: World) -> None:
    (txn,) = in_one_tc(world, 1)
    world.client.set("{tc0}:txn-counter", 2**53 - 2)
    last, *_ = (n for n in (f"m{i}" for i in range(99)) if world.coordinator.shard(n) == 0)
    assert world.open(last).id.counter == 2**53 - 1
    with pytest.raises(StoreError, match="used up its transaction ids"):
        in_one_tc(world, 2)
    assert world.state(txn) is TxnState.OPEN


def test_a_maintenance_task_that_fails_keeps_no_other_from_its_work(world: World) -> None:
    done: list[int] = []
    raised: list[PulsarTxnError] = [SegmentLogUnreachableError("first"), OptionError("second")]

    def failing(_: SweepReport) -> None:
        done.append(len(done))
        raise raised[len(done) - 1]

    tasks = [failing, failing, lambda _: done.append(2)]
    sweeper = Sweeper(world.coordinator, lambda _: None, maintenance_tasks=tasks)
    with pytest.raises(SegmentLogUnreachableError, match="first"):
        sweeper.sweep()
    assert done == [0, 1, 2]
    done.clear()
    raised[0] = StoreRolledBackError("another history")
    with pytest.raises(StoreRolledBackError):
        sweeper.sweep()
    assert done == [0], "a store that is not the known one ends the sweep"


def test_a_segment_that_its_broker_refuses_is_asked_for_once_in_a_sweep(world: World) -> None:
    asked: list[str] = []

    def ends(segment: str) -> SegmentEnds:
        asked.append(segment)
        raise SegmentLogUnavailableError("the admin API refuses us (403)")

    for number in range(8):
        txn = world.open(f"nonce-{number}")
        world.commit(txn, world.write(txn, "row"))
    sweeper = Sweeper(world.coordinator, ends, 0)
    assert len(sweeper.sweep().stuck) == 8
    assert asked == [SEGMENT]
    sweeper.sweep()
    assert asked == [SEGMENT] * 2


# --- as much as there is ------------------------------------------------------------------------


@pytest.fixture
def two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeper_module, "_AT_A_TIME", 2)


def sweeper_of(world: World, busy_s: float = 60) -> Sweeper:
    def ends(segment: str) -> SegmentEnds:
        return SegmentEnds(world.log.last_confirmed(segment), EARLIEST)

    return Sweeper(world.coordinator, ends, retention_ms=0, busy_s=busy_s)


@pytest.mark.usefixtures("two_at_a_time")
def test_one_sweep_goes_on_until_everything_that_is_due_is_gone(world: World) -> None:
    txns = in_one_tc(world, 15)
    expired, unmaterialized, finished = txns[:5], txns[5:10], txns[10:]
    for txn in expired:
        world.expire(txn)
    for number, txn in enumerate(unmaterialized):
        world.decide(txn, world.write(txn, f"late-{number}"))
    for number, txn in enumerate(finished):
        world.commit(txn, world.write(txn, f"row-{number}"))
    report = sweeper_of(world).sweep()
    assert (report.aborted, report.materialized, report.headers_removed) == (5, 5, 15)
    assert headers(world) == []
    assert len(world.visible()) == 10


@pytest.mark.usefixtures("two_at_a_time")
def test_a_sweep_deals_with_each_tc_once_and_stops_when_its_time_is_over(world: World) -> None:
    for number in range(24):
        txn = world.open(f"n{number}")
        world.commit(txn, world.write(txn, "row"))
    tcs = {world.coordinator.shard(f"n{number}") for number in range(24)}
    assert sweeper_of(world, busy_s=0).sweep().headers_removed == 2 * len(tcs)
    assert sweeper_of(world).sweep().headers_removed == 24 - 2 * len(tcs)


@pytest.mark.usefixtures("two_at_a_time")
def test_a_sweep_that_gets_no_further_leaves_what_is_behind_to_the_next_one(world: World) -> None:
    txns = in_one_tc(world, 10)
    stuck = txns[1:4]
    for at, txn in enumerate(txns):
        world.commit(txn, *([] if txn in stuck else [world.write(txn, "row")]))
        world.client.zadd("{tc0}:idx:txn-by-final-state", {f"COMMITTED|{txn.id.key}": at + 1})
    for txn in stuck:
        world.client.sadd(f"{{tc0}}:intents:{txn.id.key}", "X|of no|known kind")
    process = sweeper_of(world)
    reports = [process.sweep() for _ in range(2)]
    assert [(found.headers_removed, len(found.stuck)) for found in reports] == [(1, 3), (6, 0)]


# --- what it costs ------------------------------------------------------------------------------

FINISHED = """
for i = 1, tonumber(ARGV[2]) do
  local counter = string.format('%.0f', redis.call('INCR', KEYS[1]))
  local txn = ARGV[1] .. ':' .. counter
  redis.call('HSET', '{tc' .. ARGV[1] .. '}:txn:' .. txn, 'state', 'COMMITTED', 'nonce', txn,
    'owner', '', 'sink', '', 'query', '', 'batch', '', 'deadline_ms', '1', 'created_ms', '1',
    'finalized_ms', ARGV[3], 'outcome', '', 'materialized', '1')
  redis.call('SADD', '{tc' .. ARGV[1] .. '}:intents:' .. txn, ARGV[4])
  redis.call('HSET', KEYS[2], txn, txn)
  redis.call('ZADD', KEYS[3], ARGV[3], 'COMMITTED|' .. txn)
end
"""
MANY = 100_000


def finish_many(world: World, counter: str, finalized_ms: int) -> None:
    """Leave behind what finished transactions leave until they are collected."""
    for tc in range(4):
        keys = [f"{{tc{tc}}}:{key}" for key in (counter, "nonces", "idx:txn-by-final-state")]
        intent = write_intent(SEGMENT, "w")
        world.client.eval(FINISHED, 3, *keys, tc, MANY // 4, finalized_ms, intent)
    leave_marks(world, MANY)


def leave_marks(world: World, count: int, segment: str = SEGMENT) -> None:
    """Leave in a segment what finished transactions leave there."""
    keys = [f"{i % 4}:{100 + i}" for i in range(count)]
    world.client.hset(world.key("resolved", segment), mapping=dict.fromkeys(keys, "COMMITTED"))
    for tc in range(4):
        own = {key: int(key.partition(":")[2]) for key in keys[tc::4]}
        world.client.zadd(world.key(f"resolved-order:{tc}", segment), own)


def commands(world: World, step: Callable[[], object]) -> dict[str, int]:
    """Count what the server has executed for a step, in scripts as well."""
    world.client.config_resetstat()
    step()
    stats = world.client.info("commandstats")
    # A sweep delivers counts: one for each bucket of a histogram that some time fell into.
    left_out = {"cmdstat_info", "cmdstat_hincrby"}
    return {name: found["calls"] for name, found in stats.items() if name not in left_out}


def least_us(world: World, step: Callable[[], object], times: int = 5) -> float:
    """Return what the quickest of several runs of a step has cost the server."""
    found = []
    for _ in range(times):
        world.client.config_resetstat()
        step()
        stats = world.client.info("commandstats")
        found.append(sum(command["usec"] for command in stats.values()))
    return float(min(found))


@pytest.mark.parametrize("younger", [False, True], ids=["not due yet", "behind older open ones"])
@pytest.mark.slow
def test_a_hundred_thousand_finished_transactions_cost_what_ten_open_ones_cost(
    world: World, monkeypatch: pytest.MonkeyPatch, younger: bool
) -> None:
    # What older open ones hold is paged, and nothing else of it is read.
    monkeypatch.setattr(sweeper_module, "_PAGE", 50)
    name, store = "topic://public/default/read", {"store.path": world.path}
    pulsar_txn_spark.Admin(store).create_topic(name, segments=1)
    topic = open_components(Options(store, Use.CONNECT)).topics.require(TopicName.parse(name))
    segment = topic.active[0].ref.id
    for tc in range(4):
        world.client.set(f"{{tc{tc}}}:txn-counter", MANY)
    for i in range(10):
        txn = world.open(f"open-{i}")
        world.write(txn, f"v{i}")
        world.admit(txn, segment=segment)
    assert {world.coordinator.shard(f"open-{i}") for i in range(10)} == set(range(4))

    def recover() -> object:
        process = world.another_process()
        return process.buffer.recover([SEGMENT], world.log.last_confirmed)

    def read() -> object:
        assert world.visible() == []
        return world.buffer.get_max_read_position(SEGMENT, world.log.last_confirmed)

    def ask() -> None:
        options = {**store, "topic": name, "startingOffsets": "earliest"}
        reader = PulsarTxnStreamReader(options, StructType())
        start = reader.initialOffset()
        found = reader.latestOffset(start, ReadAllAvailable())
        assert found["topics"] == start["topics"]
        reader.stop()

    steps: dict[str, Callable[[], object]] = {
        "sweep": lambda: sweep(world, 60_000),
        "recover": recover,
        "read": read,
        "source": ask,
    }
    for step in steps.values():
        step()  # loads the scripts, and initializes tags
    before = {name: commands(world, step) for name, step in steps.items()}
    few = {name: least_us(world, step) for name, step in steps.items()}
    # Either the retention alone keeps their headers, or an open one of their TC alone does.
    finish_many(world, *(("txn-counter", 1) if younger else ("older-counter", 1 << 52)))
    leave_marks(world, MANY // 10, segment)
    assert {name: commands(world, step) for name, step in steps.items()} == before
    many = {name: least_us(world, step) for name, step in steps.items()}
    assert {name: us for name, us in many.items() if us > 5 * few[name] + 5_000} == {}, (
        f"reading all of any of it takes tens of milliseconds; with few it was {few}"
    )
    assert sweep(world, 60_000).headers_removed == 0


def test_closing_a_segment_does_not_cost_more_the_more_transactions_have_finished(
    world: World,
) -> None:
    world.write(world.open(), "row")
    counters = iter(range(1, 100))

    def close() -> object:
        return world.store.segments.close(SEGMENT, 0, next(counters))

    few = least_us(world, close)
    leave_marks(world, MANY)
    many = least_us(world, close)
    assert many < 10 * few + 5_000, "reading every mark takes tens of milliseconds"


def test_what_closing_removes_is_removed_in_bounded_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_MARKS_REMOVED", 2)
    txns = in_one_tc(world, 5)
    for txn in txns:
        world.commit(txn, world.write(txn, "row"))
    below = txns[-1].id.counter
    codes = [world.store.segments.close(SEGMENT, 0, below).code for _ in range(4)]
    assert codes == [Code.MORE, Code.MORE, Code.ALREADY, Code.ALREADY]
    assert world.client.hkeys(world.key("resolved")) == [txns[-1].id.key.encode()]
    assert world.client.zrange(world.key("resolved-order:0"), 0, -1) == [txns[-1].id.key.encode()]
    assert sweeper_of(world).sweep().headers_removed == 5
    assert not world.client.exists(world.key("resolved"), world.key("resolved-order:0"))


def test_nothing_of_a_transaction_that_was_collected_is_left_in_a_segment(world: World) -> None:
    for txn in in_one_tc(world, 3):
        world.commit(txn, world.write(txn, "row"))
    assert sweeper_of(world).sweep().headers_removed == 3
    left = {key.decode().rpartition("}:")[2] for key in world.client.keys("{seg:*")}
    assert left == {"birth", "closed", "floor-pair", "state", "events"}


def test_a_header_that_is_not_materialized_everywhere_is_not_removed(world: World) -> None:
    # Whoever asks may have read the header before: the step itself looks (INV-6).
    txn = world.open()
    world.decide(txn, world.write(txn, "a"))
    assert world.store.transactions.remove(txn.id).code is Code.STALE
    assert world.state(txn) is TxnState.COMMITTED
    assert world.visible() == ["a"], "the header was there to be materialized"
    assert world.store.transactions.remove(txn.id).code is Code.OK
    assert world.store.transactions.remove(txn.id).code is Code.ABSENT
    still_open = world.open()
    assert world.store.transactions.remove(still_open.id).code is Code.OPEN


def test_a_sweep_that_no_thread_can_be_started_for_fails_no_commit_and_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    txn = world.open()
    world.commit(txn, world.write(txn, "a"))
    sweeps = BackgroundSweeper(sweeper_of(world), interval_s=0)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(threading.Thread, "start", refuse)
        sweeps.trigger()
    assert "can't start new thread" in caplog.text
    sweeps.trigger()
    assert sweeps._thread is not None
    sweeps._thread.join()
    assert headers(world) == []


class Alive:
    """A sweep's thread that lets two callers ask for it at once, if they can."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)
        self.met = False

    def is_alive(self) -> bool:
        with suppress(threading.BrokenBarrierError):
            self._both.wait(timeout=1)
            self.met = True
        return False


def test_of_two_threads_that_trigger_a_sweep_at_once_one_starts_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = BackgroundSweeper(sweeper_of(world), interval_s=0)
    before = Alive()
    monkeypatch.setattr(sweeps, "_thread", before)
    with ThreadPoolExecutor(2) as pool:
        for triggered in [pool.submit(sweeps.trigger), pool.submit(sweeps.trigger)]:
            triggered.result()
    assert not before.met
    assert sweeps._thread is not None
    sweeps._thread.join()
