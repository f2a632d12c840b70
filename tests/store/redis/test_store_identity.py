"""The store proves with every step that it is the one that was known: fail closed (INV-11)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.errors import (
    OptionError,
    StoreError,
    StoreRolledBackError,
    StoreUnavailableError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.spark.source.offsets import SourceOffset
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import Code, Seen, SegmentDecision, TxnId, TxnState, WriterFate
from pulsar_txn_spark.store.redis import connection, scripts, server
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.batch import BatchKey
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, TxnStatus
from pulsar_txn_spark.txn.sweeper import SegmentEnds, Sweeper
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, Loss, World, ack


def wipe(client: Any, tag: str) -> None:
    """Delete everything under a hash tag, as an eviction or a lost shard does."""
    keys = client.keys(f"{{{tag}}}:*")
    assert keys
    client.delete(*keys)


def snapshot(client: Any, tag: str) -> dict[bytes, bytes]:
    return {key: client.dump(key) for key in client.keys(f"{{{tag}}}:*")}


def restore(client: Any, tag: str, backup: dict[bytes, bytes]) -> None:
    wipe(client, tag)
    for key, value in backup.items():
        client.restore(key, 0, value)


def written(world: World, value: str = "a") -> None:
    txn = world.open(nonce=f"nonce-{value}")
    world.commit(txn, world.write(txn, value))


# --- identity ---------------------------------------------------------------------------------


def test_a_store_keeps_the_identity_that_it_was_given_first(world: World) -> None:
    identity = world.store.identity
    assert identity.uuid
    assert identity.store_epoch == "1"
    assert identity.coordinators == scripts.COORDINATORS
    assert world.another_process().store.identity == identity


def test_a_new_store_gets_as_many_coordinators_as_it_is_told_and_keeps_them(
    redis_client: redis.Redis,
) -> None:
    assert RedisStore(redis_client, 7).identity.coordinators == 7
    assert RedisStore(redis_client, 7).identity.coordinators == 7
    store = RedisStore(redis_client)
    assert store.identity.coordinators == 7
    coordinator = TransactionCoordinator(store)
    txns = [coordinator.new_txn(f"nonce-{i}") for i in range(60)]
    assert {txn.tc for txn in txns} == set(range(7))


@pytest.mark.parametrize("other", [1, scripts.COORDINATORS + 1])
def test_another_number_of_coordinators_is_refused_with_both_numbers(
    world: World, redis_client: redis.Redis, other: int
) -> None:
    with pytest.raises(OptionError, match=f"is {other}, but .* made with 4 coordinators"):
        RedisStore(redis_client, other)
    options = Options({"store.path": world.path, "store.coordinators": str(other)}, Use.CONNECT)
    with pytest.raises(OptionError, match=r"store\.coordinators"):
        open_components(options)
    assert world.another_process().store.identity == world.store.identity


def test_the_id_of_a_coordinator_has_sixteen_bits(redis_client: redis.Redis) -> None:
    store = RedisStore(redis_client, 1 << 16)
    coordinator = TransactionCoordinator(store)
    shards = {coordinator.shard(f"nonce-{i}") for i in range(2_000)}
    assert max(shards) < 1 << 16
    assert max(shards) > 1 << 15
    txn, _ = store.transactions.create(
        tc=(1 << 16) - 1,
        nonce="n",
        owner="",
        sink="",
        query="",
        batch="",
        timeout_ms=60_000,
        intents=[],
    )
    assert (str(txn), TxnId.parse(txn.key)) == ("(65535,1)", txn)
    coordinator.commit(txn, "n", Outcome())
    assert coordinator.status(txn) is TxnStatus.COMMITTED
    for key in ("65536:1", "-1:1", "1", "1:", ":1", "a:b"):
        with pytest.raises(ValueError):  # noqa: PT011 - int() words most of them
            TxnId.parse(key)


def test_a_counter_is_not_used_again_after_collection_and_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "store")

    def run(nonce: str) -> TxnId:
        world = World(path)
        txn = world.open(nonce)
        world.commit(txn, world.write(txn, "row"))
        sweeper = Sweeper(
            world.coordinator,
            lambda segment: SegmentEnds(world.log.last_confirmed(segment), EARLIEST),
            retention_ms=0,
        )
        assert sweeper.sweep().headers_removed == 1
        assert world.client.keys("*:txn:*") == []
        return txn.id

    try:
        first = run("nonce")
        connection.close_all()
        assert server.stop_server(path)
        # The very nonce of before, which nothing remembers: another transaction all the same.
        assert run("nonce") == TxnId(first.tc, first.counter + 1)
    finally:
        connection.close_all()
        server.stop_server(path)


def test_stores_differ_in_identity(world: World, redis_client: redis.Redis) -> None:
    first = world.store.identity
    redis_client.flushall()
    assert world.another_process().store.identity.uuid != first.uuid


def test_a_store_of_another_schema_is_refused(world: World) -> None:
    world.client.hset("{meta}:birth", "schema", "99")
    with pytest.raises(StoreError, match="schema version 99, this package needs 1"):
        world.another_process()


def test_every_change_raises_the_sequence_number_of_its_tag(world: World) -> None:
    tag = f"seg:{SEGMENT}"
    assert world.store.seen(tag).seq == 0
    txn = world.open()
    world.admit(txn)
    seen = [world.store.seen(tag).seq]
    world.store.segments.gates([SEGMENT])
    assert world.store.seen(tag).seq == seen[0], "reading changes nothing"
    world.abort(txn)
    seen.append(world.store.seen(tag).seq)
    world.store.segments.raise_high(SEGMENT, Position(1, 1))
    seen.append(world.store.seen(tag).seq)
    world.store.segments.gates([SEGMENT], [(EARLIEST, Position(1, 2))], passing=True)
    seen.append(world.store.seen(tag).seq)
    assert seen == sorted(set(seen))


# --- a shard that was wiped -------------------------------------------------------------------


@pytest.mark.parametrize("remembers", [True, False], ids=["this process", "a new process"])
def test_a_wiped_segment_is_found_out(world: World, remembers: bool) -> None:
    written(world)
    wipe(world.client, f"seg:{SEGMENT}")
    process = world if remembers else world.another_process()
    for step in (
        process.visible,
        lambda: process.admit(process.open()),
        lambda: process.store.subscriptions.read_cursors([SEGMENT], "sub"),
        lambda: process.store.segments.raise_high(SEGMENT, Position(1, 1)),
    ):
        with pytest.raises(StoreRolledBackError, match="is gone"):
            step()
    assert world.client.keys(world.key("*")) == [], "something was written to a lost tag"


@pytest.mark.parametrize("remembers", [True, False], ids=["this process", "a new process"])
def test_a_wiped_coordinator_is_found_out(world: World, remembers: bool) -> None:
    txn = world.open(nonce="n")
    wipe(world.client, f"tc{txn.id.tc}")
    process = world if remembers else world.another_process()
    for step in (
        lambda: process.store.transactions.read(txn.id),
        lambda: process.open(nonce="n"),
        lambda: process.commit(txn),
        lambda: process.abort(txn),
    ):
        with pytest.raises(StoreRolledBackError, match="is gone"):
            step()


@pytest.mark.parametrize("remembers", [True, False], ids=["this process", "a new process"])
def test_a_wiped_pointer_is_found_out_before_a_batch_is_written_twice(
    world: World, remembers: bool
) -> None:
    key = BatchKey("sink", "query", 0)
    world.run_batch(key, "n1", "a")
    wipe(world.client, "sink:sink")
    process = world if remembers else world.another_process()
    with pytest.raises(StoreRolledBackError, match="is gone"):
        process.batches.begin(key, "n2")
    assert world.visible() == ["a"]


def test_a_wiped_topology_and_a_wiped_plan_are_no_empty_ones(world: World) -> None:
    world.store.topics.swap("topic://a/b/c", 0, b"record")
    world.store.queries.register_plan("q", "0", "source", b"plan")
    wipe(world.client, "topic:topic://a/b/c")
    wipe(world.client, "query:q")
    process = world.another_process()
    with pytest.raises(StoreRolledBackError, match="is gone"):
        process.store.topics.read("topic://a/b/c")
    with pytest.raises(StoreRolledBackError, match="is gone"):
        process.store.queries.read_plans("q", "0")


def test_a_wiped_identity_is_found_out(world: World) -> None:
    written(world)
    wipe(world.client, "meta")
    with pytest.raises(StoreRolledBackError):
        world.store.meta.list_topics()
    with pytest.raises(StoreRolledBackError):
        world.store.meta.next_source_epoch()
    with pytest.raises(StoreRolledBackError, match="identity is gone"):
        world.store.segments.raise_high(OTHER_SEGMENT, Position(1, 1))
    # A process that comes now takes it for a new store, and every tag tells it otherwise.
    later = world.another_process()
    with pytest.raises(StoreRolledBackError, match="belongs to store"):
        later.visible()


def test_a_tag_that_never_was_reads_as_empty(world: World) -> None:
    assert world.store.topics.read("topic://a/b/none") is None
    assert world.store.queries.read_plans("nobody", "0") == {}
    assert world.store.subscriptions.read_cursors([SEGMENT], "sub") == [None]
    assert world.visible() == []


# --- a shard that was rolled back ---------------------------------------------------------------


def test_a_segment_that_lost_acknowledged_writes_is_found_out(world: World) -> None:
    written(world, "a")
    backup = snapshot(world.client, f"seg:{SEGMENT}")
    written(world, "b")
    restore(world.client, f"seg:{SEGMENT}", backup)
    with pytest.raises(StoreRolledBackError, match=r"is at step \d+, but step \d+ .*seen before"):
        world.visible()


def test_a_process_that_has_seen_nothing_learns_from_others_what_there_was(world: World) -> None:
    written(world, "a")
    backup = snapshot(world.client, f"seg:{SEGMENT}")
    written(world, "b")
    seen = {f"seg:{SEGMENT}": world.store.seen(f"seg:{SEGMENT}")}
    restore(world.client, f"seg:{SEGMENT}", backup)
    process = world.another_process()
    assert process.visible() == ["a", "b"]  # the log is whole; what is known of it is not
    process.store.raise_last_seen(seen)
    with pytest.raises(StoreRolledBackError):
        process.visible()


def test_a_last_seen_sequence_number_is_never_lowered(world: World) -> None:
    written(world)
    tag = f"seg:{SEGMENT}"
    seen = world.store.seen(tag).seq
    world.store.raise_last_seen({tag: Seen(seen - 1), "seg:other": Seen(3)})
    assert world.store.seen(tag).seq == seen
    assert world.store.seen("seg:other").seq == 3


@pytest.mark.usefixtures("single_steps")
def test_a_decision_carries_the_last_seen_sequence_numbers_of_its_segments(world: World) -> None:
    # The header says which state of the segment the commit had seen. One that is older lost pins.
    key = BatchKey("sink", "query", 0)
    world.store.segments.raise_high(SEGMENT, Position(1, 0))
    backup = snapshot(world.client, f"seg:{SEGMENT}")
    attempt = world.batches.begin(key, "n1")
    task = world.write_batch(attempt, "a")
    world.lose(always={"seg_materialize": Loss.REQUEST})
    with pytest.raises(StoreUnavailableError):
        world.batches.commit(attempt, [[task]], "run", acknowledge=False)
    world.mend()
    restore(world.client, f"seg:{SEGMENT}", backup)
    process = world.another_process()
    with pytest.raises(StoreRolledBackError, match="lost acknowledged writes"):
        process.batches.begin(key, "n2")


# --- a store that was replaced ------------------------------------------------------------------


def test_a_tag_of_another_store_is_found_out_and_stays_unchanged(world: World) -> None:
    written(world)
    world.client.hset(world.key("birth"), "uuid", "another")
    before = snapshot(world.client, f"seg:{SEGMENT}")
    with pytest.raises(StoreRolledBackError, match="belongs to store another epoch 1"):
        world.visible()
    txn = world.open()
    with pytest.raises(StoreRolledBackError):
        world.admit(txn)
    decision = SegmentDecision(SEGMENT, (WriterFate("w", EARLIEST),))
    with pytest.raises(StoreRolledBackError):
        world.store.segments.materialize(txn.id, TxnState.ABORTED, [decision])
    assert snapshot(world.client, f"seg:{SEGMENT}") == before


def test_a_store_with_a_new_epoch_is_another_one(world: World) -> None:
    written(world)
    world.client.hset("{meta}:birth", "epoch", "2")  # as somebody does who restores a backup
    process = world.another_process()
    with pytest.raises(StoreRolledBackError, match=r"epoch 1, expected .* epoch 2"):
        process.visible()


def test_a_checkpoint_of_another_store_is_refused_before_anything_is_read(
    world: World, redis_client: redis.Redis
) -> None:
    offset = SourceOffset(world.store.identity.uuid, world.store.identity.store_epoch)
    offset.require_store(world.another_process().store.identity)
    redis_client.flushall()
    with pytest.raises(StoreRolledBackError, match="the checkpoint belongs to metadata store"):
        offset.require_store(world.another_process().store.identity)


def test_a_store_that_was_emptied_under_a_running_process_is_found_out(
    world: World, redis_client: redis.Redis
) -> None:
    written(world)
    redis_client.flushall()
    with pytest.raises(StoreRolledBackError):
        world.visible()
    with pytest.raises(StoreRolledBackError):
        world.open()
    with pytest.raises(StoreRolledBackError):
        world.store.queries.register_plan("q", "0", "source", b"plan")
    assert redis_client.keys("*") == []


# --- tag records --------------------------------------------------------------------------------


def test_tasks_that_touch_a_new_segment_at_the_same_moment_all_get_in(world: World) -> None:
    txn = world.open()
    processes = [world.another_process() for _ in range(8)]
    start = threading.Barrier(len(processes))
    errors: list[Exception] = []

    def task(number: int) -> None:
        start.wait()
        try:
            processes[number].admit(txn, task=number)
        except Exception as error:  # noqa: BLE001 - reported below, in the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=task, args=(n,)) for n in range(len(processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(world.pinned()) == len(processes)


def test_a_tag_that_another_process_initializes_in_between_is_not_taken_for_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.another_process()
    txn = world.open()
    other.store.transactions.read(txn.id)
    tag_state = world.store.scripts._tag_state
    asked: list[str] = []

    def the_other_was_quicker(tag: str, state: str) -> str:
        if not asked:
            asked.append(tag)
            other.admit(txn, task=1)
        return tag_state(tag, state)

    monkeypatch.setattr(world.store.scripts, "_tag_state", the_other_was_quicker)
    writer = world.admit(txn)
    assert asked == [f"seg:{SEGMENT}"]
    assert writer in world.pinned()


def test_an_initialization_that_died_halfway_is_finished_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = world.another_process()
    tag_state = process.store.scripts._tag_state

    def die_before_it_is_initialized(tag: str, state: str) -> str:
        if state == "born":
            raise KeyboardInterrupt
        return tag_state(tag, state)

    monkeypatch.setattr(process.store.scripts, "_tag_state", die_before_it_is_initialized)
    with pytest.raises(KeyboardInterrupt):
        process.store.segments.raise_high(SEGMENT, Position(1, 1))
    written(world)
    assert world.visible() == ["a"]


def test_what_was_prepared_costs_its_first_transaction_nothing(world: World) -> None:
    def admitted(segment: str, *, prepared: bool) -> int:
        process = world.another_process()
        if prepared:
            process.store.segments.prepare([segment])
        before = process.store.round_trips
        process.admit(world.open(), segment=segment)
        return process.store.round_trips - before

    first = admitted("unprepared", prepared=False)
    assert admitted("prepared", prepared=True) == admitted("unprepared", prepared=False) < first


def test_many_segments_are_prepared_in_four_round_trips(world: World) -> None:
    before = world.store.round_trips
    world.store.segments.prepare([f"segment-{number}" for number in range(20)])
    assert world.store.round_trips - before == 4
    world.store.segments.prepare(["segment-0", "segment-new"])  # idempotent
    assert world.store.seen("seg:segment-new").seq == 1


def test_a_prepared_segment_that_is_lost_before_its_first_use_is_found_out(
    world: World, redis_client: redis.Redis
) -> None:
    world.store.segments.prepare([SEGMENT])
    redis_client.delete(f"{{seg:{SEGMENT}}}:birth")
    process = world.another_process()
    process.store.segments.prepare([SEGMENT])
    with pytest.raises(StoreRolledBackError, match="is gone"):
        process.store.segments.raise_high(SEGMENT, Position(1, 1))


def test_a_preparation_that_died_halfway_is_finished_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all = world.store.scripts.run_all
    steps: list[str] = []

    def die_after(steps_left: int) -> Callable[[Any], Any]:
        def run(calls: Any) -> Any:
            if len(steps) == steps_left:
                raise KeyboardInterrupt
            steps.append("done")
            return run_all(calls)

        return run

    for done in range(3):
        steps.clear()
        monkeypatch.setattr(world.store.scripts, "run_all", die_after(done))
        with pytest.raises(KeyboardInterrupt):
            world.store.segments.prepare([f"halfway-{done}"])
        process = world.another_process()
        process.store.segments.raise_high(f"halfway-{done}", Position(1, 1))
        process.store.segments.prepare([f"halfway-{done}"])


# --- no reply -----------------------------------------------------------------------------------


def unreachable_steps(world: World) -> list[Callable[[], Any]]:
    txn = world.open()
    return [
        world.open,
        lambda: world.store.transactions.read(txn.id),
        lambda: world.store.segments.gates([SEGMENT]),
        lambda: world.store.segments.gates([SEGMENT, OTHER_SEGMENT]),
        lambda: world.admit(txn),
        lambda: world.store.subscriptions.place_acks(txn.id, [ack(EARLIEST, Position(1, 1))]),
        lambda: RedisStore(world.store.scripts.client),
    ]


def test_a_store_that_does_not_answer_is_unavailable_after_a_bounded_number_of_tries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    for step in unreachable_steps(world):
        network = world.lose(always={"*": Loss.REQUEST})
        with pytest.raises(StoreUnavailableError, match="no reply from the metadata store"):
            step()
        assert network.calls.total() <= 2 * scripts._LOST_REPLY_TRIES
        world.mend()


def test_a_script_that_the_server_has_forgotten_is_sent_again(world: World) -> None:
    world.client.script_flush()
    txn = world.open()
    world.client.script_flush()
    world.buffer.admit(txn.id, txn.nonce, 60_000, "w", [SEGMENT, OTHER_SEGMENT])
    world.client.script_flush()
    assert len(world.store.segments.gates([SEGMENT, OTHER_SEGMENT])) == 2
    world.client.script_flush()
    world.commit(txn)
    assert world.pinned() == []


def test_a_step_that_the_server_refuses_is_an_error_with_its_reason(world: World) -> None:
    txn = world.open()
    world.client.delete(world.key("pins"))
    world.client.set(world.key("pins"), "not a hash")
    with pytest.raises(StoreError, match=r"refused a step.*WRONGTYPE"):
        world.admit(txn)


def test_a_batch_of_steps_is_one_round_trip(world: World) -> None:
    txn = world.open()
    segments = [SEGMENT, OTHER_SEGMENT]
    world.buffer.admit(txn.id, txn.nonce, 60_000, "w", segments)
    before = world.store.round_trips
    answers = world.store.segments.pin(txn.id, "w", segments)
    assert [answer.code for answer in answers] == [Code.PINNED, Code.PINNED]
    assert world.store.round_trips == before + 1
