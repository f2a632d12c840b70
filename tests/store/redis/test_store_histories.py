"""A store that lost acknowledged writes and went on is not taken for the one that was (INV-14)."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyspark.sql.types import StructType

import pulsar_txn_spark
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.engine.components import Components, assemble, open_components
from pulsar_txn_spark.engine.topic_writers import winners_of
from pulsar_txn_spark.errors import StoreRolledBackError, StoreUnavailableError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.metadata_pb2 import Outcome, Pointer
from pulsar_txn_spark.store.records import Seen, SegmentDecision, TxnState, WriterFate
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.store.redis.scripts import SINGLE_STEPS
from pulsar_txn_spark.store.redis.sinks import _SINKS_KEPT
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.batch import BatchKey
from pulsar_txn_spark.txn.committed import batch_is_committed
from pulsar_txn_spark.txn.participants import write_intent
from pulsar_txn_spark.txn.seen import note_segments
from pulsar_txn_spark.txn.sweeper import Sweeper
from pulsar_txn_spark.txn.transaction_buffer import writer_name
from tests.models.segment_histories import Task
from tests.store.redis.test_store_identity import restore, snapshot, wipe
from tests.support.redis_servers import (
    StartRedis,
    append_only_file,
    fail_over,
    start_replicated_cluster,
    until,
)
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, Loss, World, load_scripts

TAG = f"seg:{SEGMENT}"
_KEPT = 64  # ended histories that a tag record names


def change(store: RedisStore, times: int = 1) -> None:
    """Change the segment's tag, by some raises of its high-position."""
    for _ in range(times):
        at = int(store.scripts.client.hincrby("counted-by-the-test", "n", 1))
        store.segments.raise_high(SEGMENT, Position(1, at))


def look(store: RedisStore) -> None:
    store.segments.gates([SEGMENT])


def new_replication_id(client: Any) -> None:
    """Give a server another replication id, as a restart and a promotion do."""
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    client.execute_command("REPLICAOF", "NO", "ONE")


class Restarted:
    """An embedded server whose append-only file can be cut while it is down."""

    def __init__(self, path: Path) -> None:
        self.path = path
        server.ensure_server(str(path))

    def connect(self) -> redis.Redis:
        found = connection.connect(StoreConfig(path=str(self.path)))
        assert isinstance(found, redis.Redis)
        return found

    def size(self) -> int:
        return append_only_file(self.path).stat().st_size

    def restart(self, cut_to: int | None = None) -> None:
        connection.close_all()
        assert server.stop_server(str(self.path))
        if cut_to is not None:
            os.truncate(append_only_file(self.path), cut_to)
        server.ensure_server(str(self.path))


@pytest.fixture
def restarted(tmp_path: Path) -> Any:
    found = Restarted(tmp_path / "store")
    yield found
    connection.close_all()
    server.stop_server(str(found.path))


# --- a restart without the end of the append-only file ------------------------------------------


def test_a_loss_is_found_out_though_others_pushed_the_number_past_it(restarted: Restarted) -> None:
    remembers = RedisStore(restarted.connect())
    change(remembers, 5)
    cut = restarted.size()
    change(remembers, 2)  # acknowledged, and lost
    restarted.restart(cut)
    forgets = RedisStore(restarted.connect())
    change(forgets, 10)
    assert forgets.seen(TAG).seq > remembers.seen(TAG).seq
    remembers.scripts.client = restarted.connect()
    for step in (look, change):
        with pytest.raises(StoreRolledBackError, match=r"lost acknowledged writes, and went on"):
            step(remembers)


def test_a_restart_without_a_loss_is_no_loss(restarted: Restarted) -> None:
    remembers = RedisStore(restarted.connect())
    change(remembers, 3)
    for _ in range(3):
        restarted.restart()
        remembers.scripts.client = restarted.connect()
        change(RedisStore(restarted.connect()), 2)
        look(remembers)
        change(remembers)


def test_a_loss_long_ago_is_found_out_behind_later_restarts(restarted: Restarted) -> None:
    remembers = RedisStore(restarted.connect())
    change(remembers, 3)
    cut = restarted.size()
    change(remembers)
    restarted.restart(cut)
    for _ in range(4):
        change(RedisStore(restarted.connect()), 3)
        restarted.restart()
    remembers.scripts.client = restarted.connect()
    with pytest.raises(StoreRolledBackError):
        look(remembers)


def test_a_lost_pointer_is_found_out_before_its_batch_is_written_twice(
    restarted: Restarted,
) -> None:
    # The finding itself: other queries of one sink push the number of its tag past the driver's.
    world = World(str(restarted.path))
    driver = world.another_process()
    driver.run_batch(BatchKey("sink", "query", 0), "n0", "a")
    cut = restarted.size()
    driver.run_batch(BatchKey("sink", "query", 1), "n1", "b")
    remembered = int(world.client.hget("{sink:sink}:birth", "seq"))
    restarted.restart(cut)
    other = World(str(restarted.path))
    for number in range(8):  # writes of the same tag that have nothing to do with the query
        read = other.store.sinks.read_pointer("sink", f"other-{number}")
        record = Pointer(batch_id=0).SerializeToString()
        assert other.store.sinks.swap_pointer(
            "sink", f"other-{number}", read, record, current="query"
        )
    assert int(other.client.hget("{sink:sink}:birth", "seq")) > remembered
    driver.store.scripts.client = other.client
    with pytest.raises(StoreRolledBackError):
        driver.batches.begin(BatchKey("sink", "query", 1), "n2")


# --- entries of the embedded log ----------------------------------------------------------------

ROWS = TopicName.parse("rows-of-the-embedded-log")


def another_process(run: Components) -> Components:
    """Return the components of a process that has seen nothing yet."""
    store = RedisStore(run.store.scripts.client)
    return assemble(store, EmbeddedSegmentLog(run.store.scripts.client, store.raise_last_seen))


def append(task: Task, *rows: str) -> Outcome:
    """Append rows of a transaction, and return what its commit says."""
    for row in rows:
        task.writers.append(ROWS, pa.record_batch([pa.array([row.encode()])], names=["value"]))
    outcome = Outcome(winners=winners_of(task.writers.finish()))
    note_segments(outcome, task.run.store.seen, {winner.segment for winner in outcome.winners})
    return outcome


@pytest.mark.parametrize("merged", [True, False])
def test_a_transaction_whose_row_was_lost_is_not_committed_though_others_use_its_position(
    run: Components, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    if not merged:
        monkeypatch.setenv(SINGLE_STEPS, "1")
    client = run.store.scripts.client
    segment = run.topics.create(ROWS, 1).active[0].ref.id
    first = another_process(run)
    before, lost = Task(first, "before"), Task(first, "lost")
    first.coordinator.commit(before.txn, before.nonce, append(before, "before"))
    first.buffer.admit(lost.txn, lost.nonce, 60_000, writer_name(lost.txn, 0, "lostr0"), [segment])
    kept = snapshot(client, f"seg:{segment}")
    outcome = append(lost, "lost")
    # A failover to a replica that lacks the row, but not its writer's pin.
    restore(client, f"seg:{segment}", kept)
    new_replication_id(client)
    other = Task(another_process(run), "other")
    behind = append(other, "other")
    assert behind.winners[0].last == outcome.winners[0].last
    other.run.coordinator.commit(other.txn, other.nonce, behind)
    # It is found out by what the outcome says: whoever commits it has seen nothing himself.
    committing = another_process(run).coordinator
    intents = {write_intent(winner.segment, winner.writer) for winner in outcome.winners}
    with pytest.raises(StoreRolledBackError, match="lost acknowledged writes, and went on"):
        committing.commit(lost.txn, lost.nonce, outcome, intents=intents)
    header = run.store.transactions.read(lost.txn)
    assert header is not None
    assert header.state is (TxnState.OPEN if merged else TxnState.COMMITTED)
    if not merged:  # as in a cluster, where the decision is a step of its own
        with pytest.raises(StoreRolledBackError):
            another_process(run).coordinator.materialize(header)


def test_who_has_read_behind_a_row_that_was_lost_is_told_though_others_use_its_position(
    run: Components,
) -> None:
    client = run.store.scripts.client
    ref = run.topics.create(ROWS, 1).active[0].ref
    run.store.segments.raise_high(ref.id, EARLIEST)
    kept: dict[bytes, bytes] = {}
    for row in ("kept", "lost"):
        kept = snapshot(client, f"seg:{ref.id}")
        write_plain(run, ref, row)
    reader = another_process(run)
    reader.store.segments.gates([ref.id])
    restore(client, f"seg:{ref.id}", kept)
    new_replication_id(client)
    other = another_process(run)
    write_plain(other, ref, "other")
    other.store.segments.raise_high(ref.id, Position(1, 1))
    for process in (run, reader):
        with pytest.raises(StoreRolledBackError, match="lost acknowledged writes, and went on"):
            process.store.segments.gates([ref.id])
    other.store.segments.gates([ref.id])


def test_an_append_continues_no_history_of_another_server(run: Components) -> None:
    """The one that has lost writes may have ended it earlier."""
    client = run.store.scripts.client
    ref = run.topics.create(ROWS, 1).active[0].ref
    run.store.segments.raise_high(ref.id, EARLIEST)
    write_plain(run, ref, "counted")
    seen = run.store.seen(f"seg:{ref.id}")
    new_replication_id(client)
    write_plain(run, ref, "not counted")
    assert run.store.seen(f"seg:{ref.id}") == seen
    run.store.segments.raise_high(ref.id, Position(1, 1))
    begun = run.store.seen(f"seg:{ref.id}")
    assert begun.history != seen.history
    write_plain(run, ref, "counted")
    assert run.store.seen(f"seg:{ref.id}") == Seen(begun.seq + 1, begun.history)


def write_plain(run: Components, segment: SegmentRef, row: str) -> None:
    """Append a row outside of transactions."""
    writer = run.log.writer(segment, "plain")
    writer.append(pa.record_batch([pa.array([row.encode()])], names=["value"]))
    writer.flush()
    writer.close()


# --- a failover ---------------------------------------------------------------------------------


def replicate(primary: Any, replica: Any, port: int) -> None:
    replica.execute_command("REPLICAOF", "127.0.0.1", str(port))
    until(lambda: replica.info("replication").get("master_link_status") == "up")
    primary.execute_command("WAIT", "1", "0")


def at(port: int) -> redis.Redis:
    found = connection.connect(StoreConfig(url=f"redis://127.0.0.1:{port}"))
    assert isinstance(found, redis.Redis)
    return found


@pytest.fixture
def pair(start_redis: StartRedis) -> tuple[int, int]:
    """Return a primary and a replica of it, which has everything so far."""
    return start_redis(), start_redis()


def test_a_failover_to_a_replica_that_lagged_is_found_out_though_it_went_on(
    pair: tuple[int, int],
) -> None:
    first, second = pair
    store = RedisStore(at(first))
    change(store, 5)
    replica: Any = redis.Redis(port=second)
    replicate(redis.Redis(port=first), replica, first)
    replica.execute_command("REPLICAOF", "NO", "ONE")
    change(store, 2)  # the replica never gets them
    change(RedisStore(at(second)), 10)
    store.scripts.client = at(second)
    with pytest.raises(StoreRolledBackError):
        look(store)


def test_a_failover_without_a_loss_is_no_loss(pair: tuple[int, int]) -> None:
    first, second = pair
    store = RedisStore(at(first))
    change(store, 5)
    replica: Any = redis.Redis(port=second)
    replicate(redis.Redis(port=first), replica, first)
    replica.execute_command("REPLICAOF", "NO", "ONE")
    change(RedisStore(at(second)), 10)
    store.scripts.client = at(second)
    look(store)
    change(store)


def test_a_primary_that_comes_back_after_it_lost_writes_is_another_history(
    pair: tuple[int, int],
) -> None:
    # Its process never ended, and nobody changed the tag while the other one was the primary.
    first, second = pair
    one: Any = redis.Redis(port=first)
    two: Any = redis.Redis(port=second)
    store = RedisStore(at(first))
    change(store, 5)
    replicate(one, two, first)
    two.execute_command("REPLICAOF", "NO", "ONE")
    change(store, 2)
    two.set("something", "else")
    replicate(two, one, second)
    one.execute_command("REPLICAOF", "NO", "ONE")
    change(RedisStore(at(first)), 10)
    with pytest.raises(StoreRolledBackError):
        look(store)


def test_of_two_primaries_at_once_the_histories_differ(pair: tuple[int, int]) -> None:
    first, second = pair
    one = RedisStore(at(first))
    two: Any = redis.Redis(port=second)
    change(one, 3)
    replicate(redis.Redis(port=first), two, first)
    two.execute_command("REPLICAOF", "NO", "ONE")
    other = RedisStore(at(second))
    for store in (one, other):
        change(store, 4)
    one.scripts.client, other.scripts.client = at(second), at(first)
    change(RedisStore(at(second)), 9)
    change(RedisStore(at(first)), 9)
    for store in (one, other):
        with pytest.raises(StoreRolledBackError):
            look(store)


@pytest.mark.slow
def test_a_failover_of_a_cluster_that_lost_writes_is_found_out(start_redis: StartRedis) -> None:
    first, second = start_replicated_cluster(start_redis)
    one: Any = redis.Redis(port=first)
    config = StoreConfig(url=f"redis+cluster://127.0.0.1:{first}", accept_data_loss=True)
    store = RedisStore(connection.connect(config))
    change(store, 5)
    one.execute_command("WAIT", "1", "0")
    # The replica cannot log in any more, and lags from here on.
    one.config_set("requirepass", "secret")
    one.execute_command("CLIENT", "KILL", "TYPE", "replica")
    change(store, 2)
    connection.close_all()
    fail_over(one, second)
    config = StoreConfig(url=f"redis+cluster://127.0.0.1:{second}", accept_data_loss=True)
    change(RedisStore(connection.connect(config)), 10)
    store.scripts.client = connection.connect(config)
    with pytest.raises(StoreRolledBackError):
        look(store)


def test_a_tag_that_moves_to_another_server_and_back_is_no_loss(pair: tuple[int, int]) -> None:
    # As a slot of a cluster does: the records go, the replication id is the other server's.
    clients = [redis.Redis(port=port) for port in pair]
    store = RedisStore(at(pair[0]))
    change(store, 3)
    for source, target in ((0, 1), (1, 0), (0, 1)):
        old = RedisStore(at(pair[source]))
        look(old)
        for key in clients[source].keys("*"):
            value = clients[source].dump(key)
            assert isinstance(value, bytes)
            clients[target].restore(key, 0, value, replace=True)
            clients[source].delete(key)
        old.scripts.client = at(pair[target])
        change(old, 2)
        store.scripts.client = at(pair[target])
        look(store)


# --- where it is remembered ---------------------------------------------------------------------


@pytest.mark.usefixtures("single_steps")
def test_a_header_remembers_the_history_of_its_segments(world: World) -> None:
    world.store.segments.raise_high(SEGMENT, Position(1, 0))
    backup = snapshot(world.client, TAG)
    attempt = world.batches.begin(BatchKey("sink", "query", 0), "n1")
    task = world.write_batch(attempt, "a")
    world.lose(always={"seg_materialize": Loss.REQUEST})
    with pytest.raises(StoreUnavailableError):
        world.batches.commit(attempt, [[task]], "run", acknowledge=False)
    world.mend()
    outcome = Outcome.FromString(world.header(attempt.txn).outcome)
    assert outcome.histories[TAG] == world.store.seen(TAG).history
    restore(world.client, TAG, backup)
    new_replication_id(world.client)
    for number in range(1, 10):
        world.another_process().store.segments.raise_high(SEGMENT, Position(1, number))
    with pytest.raises(StoreRolledBackError, match=r"is not known|goes to step"):
        world.another_process().batches.begin(BatchKey("sink", "query", 0), "n2")


@pytest.mark.parametrize("pushed", [0, 20], ids=["behind", "overtaken"])
def test_a_checkpoint_is_what_a_restarted_reader_remembers_a_store_by(
    redis_path: str, redis_client: redis.Redis, pushed: int
) -> None:
    topic = "topic://public/default/remembered"
    pulsar_txn_spark.Admin({"store.path": redis_path}).create_topic(topic)
    given = {"store.path": redis_path, "topic": topic, "startingOffsets": "earliest"}
    options = Options({"store.path": redis_path}, Use.CONNECT)
    run = open_components(options)
    segment = run.topics.require(Options(given, Use.READ).get("topic")).active[0].ref.id
    run.store.segments.raise_high(segment, Position(1, 0))
    backup = snapshot(redis_client, f"seg:{segment}")
    run.store.segments.raise_high(segment, Position(1, 1))
    reader = PulsarTxnStreamReader(given, StructType())
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert offset["topics"][topic]["segments"]
    restore(redis_client, f"seg:{segment}", backup)
    new_replication_id(redis_client)
    pulsar_txn_spark.engine.components._opened.clear()
    for number in range(pushed):
        open_components(options).store.segments.raise_high(segment, Position(2, number))
    pulsar_txn_spark.engine.components._opened.clear()
    with pytest.raises(StoreRolledBackError):
        PulsarTxnStreamReader(given, StructType()).latestOffset(offset, ReadAllAvailable())


def test_a_commit_again_after_a_restart_of_the_store_is_the_same(world: World) -> None:
    txn = world.open()
    winner = world.write(txn, "row")
    histories = set()
    for number in range(2):
        new_replication_id(world.client)
        world.store.segments.raise_high(SEGMENT, Position(2, number))
        outcome = Outcome(winners=[winner])
        note_segments(outcome, world.store.seen, [SEGMENT])
        histories.add(outcome.histories[TAG])
        world.coordinator.commit(txn.id, txn.nonce, outcome)
    assert len(histories) == 2
    assert world.visible() == ["row"]


# --- one server of a cluster that lost writes -----------------------------------------------------


@pytest.mark.usefixtures("single_steps")
def test_a_decision_that_its_header_lost_stops_every_attempt_at_the_batch(world: World) -> None:
    key = BatchKey("sink", "query", 0)
    attempt = world.batches.begin(key, "n1")
    task = world.write_batch(attempt, "a")
    kept = snapshot(world.client, f"tc{attempt.txn.tc}")
    # Its server dies behind the materialization, and the replica lacks the decision.
    world.lose(always={"txn_forget_ops": Loss.REQUEST})
    with pytest.raises(StoreUnavailableError):
        world.batches.commit(attempt, [[task]], "run", acknowledge=True)
    restore(world.client, f"tc{attempt.txn.tc}", kept)
    for number in range(2, 5):
        process = world.another_process()
        with pytest.raises(StoreRolledBackError, match="has materialized it as COMMITTED"):
            process.run_batch(key, f"n{number}", "a")
    with pytest.raises(StoreRolledBackError, match="has materialized it as COMMITTED"):
        Sweeper(world.another_process().coordinator, lambda _: None, retention_ms=0).sweep()
    process = world.another_process()
    assert process.visible() == ["a"]
    assert process.state(attempt.txn) is TxnState.ABORTED


@pytest.mark.parametrize("merged", [True, False])
def test_a_commit_does_not_succeed_where_its_header_lost_an_abort(
    world: World, monkeypatch: pytest.MonkeyPatch, merged: bool
) -> None:
    if not merged:
        monkeypatch.setenv(SINGLE_STEPS, "1")
    txn = world.open()
    winner = world.write(txn, "a")
    kept = snapshot(world.client, f"tc{txn.id.tc}")
    world.another_process().abort(txn)
    restore(world.client, f"tc{txn.id.tc}", kept)
    intents = {write_intent(winner.segment, winner.writer)}
    for _ in range(2):
        owner = world.another_process().coordinator
        with pytest.raises(StoreRolledBackError, match="has materialized it as ABORTED"):
            owner.commit(txn.id, txn.nonce, Outcome(winners=[winner]), intents=intents)


@pytest.mark.usefixtures("single_steps")
@pytest.mark.parametrize("lost", [TxnState.ABORTED, TxnState.COMMITTED])
@pytest.mark.parametrize("marked", [SEGMENT, OTHER_SEGMENT])
def test_a_decision_is_materialized_nowhere_if_one_segment_has_the_other_one(
    world: World, marked: str, lost: TxnState
) -> None:
    txn = world.open()
    winners = {name: world.write(txn, name, segment=name) for name in (SEGMENT, OTHER_SEGMENT)}
    # Whoever materialized the lost decision died behind its first segment.
    bound = EARLIEST if lost is TxnState.ABORTED else None
    fate = WriterFate(winners[marked].writer, bound)
    world.store.segments.materialize(txn.id, lost, [SegmentDecision(marked, (fate,))])
    match = f"segment {marked} has materialized it as {lost}"

    def end(process: World) -> None:
        if lost is TxnState.ABORTED:
            process.commit(txn, *winners.values())
        else:
            process.abort(txn)

    for _ in range(2):
        with pytest.raises(StoreRolledBackError, match=match):
            end(world.another_process())
    [other] = {SEGMENT, OTHER_SEGMENT} - {marked}
    assert world.another_process().pinned(other) == [winners[other].writer]
    with pytest.raises(StoreRolledBackError, match=match):
        world.another_process().visible(segment=other)
    with pytest.raises(StoreRolledBackError, match=match):
        Sweeper(world.another_process().coordinator, lambda _: None, retention_ms=0).sweep()


def test_a_segment_says_what_it_has_materialized_also_while_its_topic_is_being_deleted(
    world: World,
) -> None:
    txn = world.open()
    assert world.store.segments.marks(txn.id, [SEGMENT]) == [None]
    fate = WriterFate(world.admit(txn), EARLIEST)
    decision = SegmentDecision(SEGMENT, (fate,))
    world.store.segments.materialize(txn.id, TxnState.ABORTED, [decision])
    for _ in range(2):
        assert world.store.segments.marks(txn.id, [SEGMENT, OTHER_SEGMENT]) == [
            TxnState.ABORTED,
            None,
        ]
        world.store.segments.fence([SEGMENT])


@pytest.mark.usefixtures("single_steps")
def test_a_decision_is_materialized_nowhere_if_one_segment_lost_what_it_has_seen(
    world: World,
) -> None:
    txn = world.open()
    outcome = Outcome(winners=[world.write(txn, "a")])
    kept = snapshot(world.client, TAG)
    other = world.write(txn, "b", segment=OTHER_SEGMENT)
    outcome.winners.append(other)
    change(world.store)
    note_segments(outcome, world.store.seen, [SEGMENT, OTHER_SEGMENT])
    restore(world.client, TAG, kept)
    for _ in range(2):
        process = world.another_process()
        with pytest.raises(StoreRolledBackError, match="lost acknowledged writes"):
            process.coordinator.commit(txn.id, txn.nonce, outcome)
    assert world.another_process().pinned(OTHER_SEGMENT) == [other.writer]


@pytest.mark.usefixtures("single_steps")
@pytest.mark.parametrize("pushed", [0, 20], ids=["behind", "overtaken"])
@pytest.mark.parametrize("first", [True, False])
def test_a_pointer_that_its_server_lost_stops_every_attempt_at_the_batch(
    world: World, pushed: int, first: bool
) -> None:
    if first:
        world.store.sinks.swap_pointer(
            "sink", "other", world.store.sinks.read_pointer("sink", "other"), b"", current=""
        )
    else:
        world.run_batch(BatchKey("sink", "query", 0), "n0", "a")
    kept = snapshot(world.client, "sink:sink")
    key = BatchKey("sink", "query", 0 if first else 1)
    world.run_batch(key, "n1", "b")
    written = world.visible()
    restore(world.client, "sink:sink", kept)
    new_replication_id(world.client)
    for number in range(pushed):  # by other queries of the sink
        other = world.another_process().store.sinks
        read = other.read_pointer("sink", f"other-{number}")
        other.swap_pointer("sink", f"other-{number}", read, b"", current=read.current_query)
    for number in range(2, 5):
        with pytest.raises(StoreRolledBackError, match=r"sink:sink.* lost acknowledged writes"):
            world.another_process().run_batch(key, f"n{number}", "b", run=f"run-{number}")
    assert world.another_process().visible() == written


@pytest.mark.usefixtures("single_steps")
def test_a_query_knows_the_newest_pointer_and_forgets_those_of_sinks_that_it_forgets(
    world: World,
) -> None:
    world.run_batch(BatchKey("sink", "query", 0), "n0", "a")
    newest = world.store.seen("sink:sink")
    queries = world.another_process().store.queries
    assert queries.read_plans_and_note("query", "0", "sink", Seen(newest.seq - 1, "f" * 16)) == {}
    noted = world.client.hgetall("{query:query}:sinks-seen")
    assert noted == {b"sink": f"{newest.seq} {newest.history}".encode()}
    for number in range(_SINKS_KEPT):
        queries.register_sink("query", f"sink-{number}", 1, "run")
    assert not world.client.exists("{query:query}:sinks-seen")


@pytest.mark.usefixtures("single_steps")
def test_a_pointer_is_noted_in_the_round_trip_that_reads_the_plans(world: World) -> None:
    world.store.queries.register_plan("query", "0", "source", b"plan")
    load_scripts(world.client)
    before = world.store.round_trips
    plans = world.store.queries.read_plans_and_note("query", "0", "sink", Seen(1))
    assert world.store.round_trips - before == 1
    assert plans == {"source": b"plan"}


def test_a_transaction_number_that_was_given_again_is_not_taken_for_the_batch(
    world: World,
) -> None:
    key = BatchKey("sink", "query", 0)
    before, first, other = "owner", "n1", "n3"  # all of one coordinator
    tc = world.coordinator.shard(before)
    assert {world.coordinator.shard(nonce) for nonce in (first, other)} == {tc}
    world.abort(world.open(nonce=before))
    tag = f"tc{tc}"
    kept = snapshot(world.client, tag)
    attempt = world.run_batch(key, first, "a")
    restore(world.client, tag, kept)
    process = world.another_process()
    reused = process.open(nonce=other)
    assert reused.id == attempt.txn
    for number in range(2):
        with pytest.raises(StoreRolledBackError, match="belongs to another attempt now"):
            world.another_process().batches.begin(key, f"next-{number}")
    assert process.state(reused) is TxnState.OPEN
    process.commit(reused)
    assert not batch_is_committed(process.store, "query", 0)
    assert process.visible() == ["a"]


# --- records of earlier versions, bounds, and a server that does not tell -----------------------


def test_what_an_earlier_version_remembers_is_compared_by_its_number(world: World) -> None:
    world.store.segments.raise_high(SEGMENT, Position(1, 0))
    world.client.hdel(world.key("birth"), "history", "histories", "server", "registered")
    later = world.another_process()
    later.store.raise_last_seen({TAG: Seen(1)})
    later.store.segments.raise_high(SEGMENT, Position(1, 1))
    assert later.store.seen(TAG).history
    behind = world.another_process()
    behind.store.raise_last_seen({TAG: Seen(99)})
    with pytest.raises(StoreRolledBackError, match="step 99"):
        look(behind.store)


def test_of_many_histories_the_oldest_are_told_by_their_number(world: World) -> None:
    seen: list[Seen] = []
    for number in range(_KEPT + 20):
        new_replication_id(world.client)
        world.store.segments.raise_high(SEGMENT, Position(1, number))
        seen.append(world.store.seen(TAG))
    assert len({state.history for state in seen}) == len(seen)
    assert world.client.hstrlen(world.key("birth"), "histories") < 64 * 40
    process = world.another_process()
    for state in seen:
        process.store.raise_last_seen({TAG: state})
        look(process.store)
    for state in (Seen(seen[-10].seq + 1, seen[-10].history), Seen(seen[40].seq, "f" * 16)):
        process = world.another_process()
        process.store.raise_last_seen({TAG: state})
        with pytest.raises(StoreRolledBackError):
            look(process.store)
    # A name that is not kept any more: its number is all that is compared.
    process = world.another_process()
    process.store.raise_last_seen({TAG: Seen(3, "f" * 16)})
    look(process.store)


def test_without_the_right_to_ask_the_server_the_number_is_compared(world: World) -> None:
    world.client.execute_command("ACL", "SETUSER", "plain", "on", ">pw", "~*", "+@all", "-info")
    try:
        path = world.client.connection_pool.connection_kwargs["path"]
        plain = redis.Redis(unix_socket_path=path, username="plain", password="pw", protocol=2)
        store = RedisStore(plain)
        store.segments.raise_high(SEGMENT, Position(1, 1))
        assert store.seen(TAG) == Seen(2)
        world.store.segments.raise_high(SEGMENT, Position(1, 2))
        history = world.store.seen(TAG).history
        assert history
        store.segments.raise_high(SEGMENT, Position(1, 3))
        assert store.seen(TAG) == Seen(4, history), "it goes on with the history that is there"
    finally:
        world.client.execute_command("ACL", "DELUSER", "plain")


# --- a tag record that was not registered -------------------------------------------------------


def dies_before_it_is_registered(world: World, step: Callable[[World], object]) -> None:
    """Let a process die between the creation of a tag record and what {meta} says of it."""
    process = world.another_process()
    scripts: Any = process.store.scripts
    run_all, tag_state = scripts.run_all, scripts._tag_state

    def stop(name: str, state: str) -> str:
        if state == "born":
            raise KeyboardInterrupt
        return str(tag_state(name, state))

    def stop_all(calls: Any) -> Any:
        if calls[0].name == "tag_state" and calls[0].args[1] == "born":
            raise KeyboardInterrupt
        return run_all(calls)

    scripts._tag_state, scripts.run_all = stop, stop_all
    with pytest.raises(KeyboardInterrupt):
        step(process)


@pytest.mark.parametrize(
    "first",
    [
        lambda world: world.store.segments.raise_high(SEGMENT, Position(1, 1)),
        lambda world: world.store.segments.prepare([SEGMENT]),
    ],
    ids=["used", "prepared"],
)
def test_a_tag_whose_maker_died_before_it_was_registered_is_missed_when_it_is_lost(
    world: World, first: Callable[[World], object]
) -> None:
    dies_before_it_is_registered(world, first)
    txn = world.open(nonce="n")
    world.commit(txn, world.write(txn, "a"))
    wipe(world.client, TAG)
    with pytest.raises(StoreRolledBackError, match="is gone"):
        world.another_process().visible()


def test_a_pointer_whose_maker_died_before_it_was_registered_is_not_initialized_anew(
    world: World,
) -> None:
    key = BatchKey("sink", "query", 0)
    dies_before_it_is_registered(
        world, lambda process: process.store.sinks.read_pointer("sink", "query")
    )
    world.run_batch(key, "n1", "a")
    wipe(world.client, "sink:sink")
    with pytest.raises(StoreRolledBackError, match="is gone"):
        world.another_process().batches.begin(key, "n2")
    assert world.visible() == ["a"]


def test_a_reader_registers_what_it_relies_on_as_well(world: World) -> None:
    dies_before_it_is_registered(
        world, lambda process: process.store.topics.swap("topic://a/b/c", 0, b"record")
    )
    assert world.client.hget("{meta}:tags", "topic:topic://a/b/c") == b"creating"
    world.another_process().store.topics.read("topic://a/b/c")
    assert world.client.hget("{meta}:tags", "topic:topic://a/b/c") == b"born"


# --- any sequence of changes, losses, restarts and looks ----------------------------------------


@dataclass(frozen=True)
class _Memory:
    """A state that somebody has seen, and every change that was made until then."""

    state: Seen
    past: tuple[str, ...]


@pytest.mark.parametrize("seed", range(40))
def test_a_state_passes_exactly_if_it_lies_in_the_past_of_the_tag(world: World, seed: int) -> None:
    """Change, lose the end, restart, and ask: the answer is that of a list of all changes."""
    draw = random.Random(seed)
    past: tuple[str, ...] = ()
    memories: list[_Memory] = []
    backups: list[tuple[tuple[str, ...], dict[bytes, bytes]]] = []
    position = 0
    for _ in range(40):
        action = draw.choice(["change", "change", "change", "back up", "lose", "restart", "ask"])
        if action == "change":
            position += 1
            store = world.another_process().store
            store.segments.raise_high(SEGMENT, Position(1, position))
            past = (*past, secrets.token_hex(4))
            memories.append(_Memory(store.seen(TAG), past))
        elif action == "back up" and past:
            backups.append((past, snapshot(world.client, TAG)))
        elif action == "restart":
            new_replication_id(world.client)
        elif action == "lose" and backups:
            past, records = draw.choice(backups)
            restore(world.client, TAG, records)
            new_replication_id(world.client)
        elif action == "ask" and memories:
            memory = draw.choice(memories)
            process = world.another_process()
            if draw.random() < 0.5:
                look(process.store)  # it has a newer state of its own
            process.store.raise_last_seen({TAG: memory.state})
            found = _outcome(draw.choice([look, _change_by_a_look]), process.store)
            assert found == (past[: len(memory.past)] == memory.past)


def _outcome(step: Callable[[RedisStore], object], store: RedisStore) -> bool:
    try:
        step(store)
    except StoreRolledBackError:
        return False
    return True


def _change_by_a_look(store: RedisStore) -> None:
    """Ask with a script that may change the tag, without a change."""
    store.segments.raise_high(SEGMENT, EARLIEST)
