"""A slot of a cluster moves to another server: steps on its tags wait, and none is broken off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis
from redis.exceptions import TryAgainError

from pulsar_txn_spark.backports import Self
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import StoreError, StoreUnavailableError
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.records import SubscriptionRef, TxnState
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.txn.pending_ack import CLIENT_OWNER
from tests.store.redis.test_repeated_requests import Step, cases, effect, meaning, prepare
from tests.support.redis_servers import SlotMove, redis_servers, start_cluster
from tests.support.scenario import SCRIPTS, SEGMENT, TIMEOUT_MS, Txn, World, load_scripts

pytestmark = pytest.mark.slow

BEFORE_ALL = MessagePosition.whole(EARLIEST)
WHERE = SubscriptionRef(SEGMENT, "sub", CLIENT_OWNER, 1)
ONE_KEY = {"store_identity"}
"""What touches its tag record alone needs no care: Redis refuses it if that is not there."""

CLUSTER_CASES = [case for case in cases() if case.values[0] not in scripts.MERGED]


@pytest.fixture(scope="module")
def cluster_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return a port of a cluster of two servers, for all tests here."""
    with redis_servers(tmp_path_factory.mktemp("cluster")) as start:
        yield start_cluster(start, nodes=2)


@pytest.fixture
def cluster(cluster_port: int, monkeypatch: pytest.MonkeyPatch) -> redis.RedisCluster:
    """Return a client of an empty cluster, which asks twice before it says that a slot moves."""
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    client: Any = connect(StoreConfig(url=f"redis+cluster://127.0.0.1:{cluster_port}"))
    client.flushall(target_nodes=redis.RedisCluster.PRIMARIES)
    monkeypatch.setattr(client, "RedisClusterRequestTTL", 2)
    load_scripts(client)
    assert isinstance(client, redis.RedisCluster)
    return client


class Moves:
    """Lets slots begin to move when a script is sent to them, and arrive when it is sent again."""

    def __init__(self, world: World, script: str) -> None:
        self._world, self._script = world, script
        self._under_way: dict[str, SlotMove] = {}
        self._before: dict[str, object] = {}
        self.finished = 0
        self._evalsha = scripts._evalsha

    def __enter__(self) -> Self:
        scripts._evalsha = self._passing
        return self

    def __exit__(self, *_: object) -> None:
        scripts._evalsha = self._evalsha
        asked_again = self.finished
        self._finish()
        self.finished = asked_again

    def _passing(self, sha: str, keys: Sequence[str], args: Sequence[scripts.Arg]) -> Any:
        if SCRIPTS[sha] == self._script:
            if keys[0] in self._under_way:
                found = effect(self._world)
                assert found == self._before, "a script that was refused has written"
                self._finish()
            elif not self.finished:
                self._before = effect(self._world)
                self._under_way[keys[0]] = SlotMove(self._world.client, keys[0])
        return self._evalsha(sha, keys, args)

    def _finish(self) -> None:
        while self._under_way:
            self._under_way.popitem()[1].finish()
            self.finished += 1


@pytest.mark.parametrize("script,step", CLUSTER_CASES)
def test_a_step_whose_slot_moves_waits_and_has_the_effect_of_one_that_met_no_move(
    cluster: redis.RedisCluster, script: str, step: Step
) -> None:
    world = World("", client=cluster)
    txn = prepare(world)
    undisturbed, effect_undisturbed = step(world, txn), effect(world)

    cluster.flushall(target_nodes=redis.RedisCluster.PRIMARIES)
    world = World("", client=cluster)
    txn = prepare(world)
    with Moves(world, script) as moves:
        found = step(world, txn)
    if script not in ONE_KEY:
        assert moves.finished, "the script was not refused"
    if script != "store_identity":  # another store has another uuid
        assert meaning(found) == meaning(undisturbed)
    assert effect(world) == effect_undisturbed


def at(entry: int) -> MessagePosition:
    return MessagePosition.whole(Position(1, entry))


def deliverable(world: World, entry: int) -> bool:
    acks = world.store.subscriptions.read_acks(SEGMENT, "sub")
    assert acks is not None
    return acks.deliverable(at(entry))


def acknowledged(world: World, txn: Txn, start: MessagePosition, end: MessagePosition) -> None:
    world.acks.acknowledge_individual(
        txn.id, txn.nonce, TIMEOUT_MS, WHERE, [AckInterval(start, end)]
    )


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let scripts begin in a slot that moves, so that the server breaks them off."""
    whole = scripts._text
    guard = "redis.pcall('EXISTS', KEYS[1], KEYS[1] .. ':none')"
    assert guard in whole("_prelude")
    monkeypatch.setattr(scripts, "_text", lambda *parts: whole(*parts).replace(guard, "1"))
    scripts.script.cache_clear()
    yield
    scripts.script.cache_clear()


@pytest.mark.parametrize("neighbour", [False, True])
def test_a_commit_whose_segment_moves_loses_no_acknowledgement(
    cluster: redis.RedisCluster, neighbour: bool
) -> None:
    commit_while_the_segment_moves(cluster, neighbour, refusal="being moved")


@pytest.mark.usefixtures("unguarded")
@pytest.mark.parametrize("neighbour", [False, True])
def test_what_is_acknowledged_outlives_a_script_that_is_broken_off(
    cluster: redis.RedisCluster, neighbour: bool
) -> None:
    commit_while_the_segment_moves(cluster, neighbour, refusal="non local key|rehashing")


@pytest.mark.usefixtures("unguarded")
def test_what_is_locked_outlives_a_script_that_is_broken_off(cluster: redis.RedisCluster) -> None:
    world = segment_in_use(cluster)
    txn = world.open()
    acknowledged(world, txn, BEFORE_ALL, at(0))
    move = SlotMove(cluster, world.key("birth"))
    try:
        with contextlib.suppress(StoreError):
            acknowledged(world, txn, at(0), at(1))
    finally:
        move.finish()
    acknowledged(world, txn, at(0), at(1))
    world.commit(txn)
    assert [deliverable(world, entry) for entry in range(3)] == [False, False, True]


def segment_in_use(cluster: redis.RedisCluster) -> World:
    """Return a store in which a segment has all keys that its scripts declare: they may begin."""
    world = World("", client=cluster)
    first, lost = world.open(), world.open()
    world.commit(first, world.write(first, "a", "b", "c"))
    world.write(lost, "lost")
    world.abort(lost)
    for tc in range(world.store.identity.coordinators):
        world.store.segments.close(SEGMENT, tc, 1)
    busy = world.open()
    world.write(busy, "open")
    world.acks.claim(WHERE, EARLIEST)
    return world


def commit_while_the_segment_moves(
    cluster: redis.RedisCluster, neighbour: bool, refusal: str
) -> None:
    world = segment_in_use(cluster)
    if neighbour:
        earlier = world.open()
        acknowledged(world, earlier, at(0), at(1))
        world.commit(earlier)
    txn = world.open()
    acknowledged(world, txn, BEFORE_ALL, at(0))
    of_same_tc = world.open()
    while of_same_tc.id.tc != txn.id.tc:
        world.abort(of_same_tc)
        of_same_tc = world.open()
    world.commit(of_same_tc, world.write(of_same_tc, "other"))

    move = SlotMove(cluster, world.key("birth"))
    try:
        with pytest.raises(StoreError, match=refusal):
            world.commit(txn)
        assert world.state(txn) is TxnState.COMMITTED
    finally:
        move.finish()
    world.another_process().coordinator.materialize(world.header(txn), repeat=True)
    assert not deliverable(world, 0), "its processing is committed: it must not come again"
    assert deliverable(world, 1) is not neighbour
    assert deliverable(world, 2)


def test_a_decision_whose_slot_moves_is_not_unknown_as_it_was_not_taken(
    cluster: redis.RedisCluster,
) -> None:
    world = World("", client=cluster)
    txn = world.open()
    with Moves(world, "txn_end") as moves:
        world.commit(txn)
    assert moves.finished
    assert world.state(txn) is TxnState.COMMITTED
    other = world.open()
    move = SlotMove(cluster, f"{{tc{other.id.tc}}}:birth")
    try:
        with pytest.raises(StoreUnavailableError, match="being moved"):
            world.commit(other)
    finally:
        move.finish()
    assert world.state(other) is TxnState.OPEN
    world.commit(other)


def test_a_script_is_refused_by_the_server_to_which_its_slot_is_on_its_way(
    cluster: redis.RedisCluster,
) -> None:
    # Nobody here follows ASK, but a proxy might.
    world = World("", client=cluster)
    world.open()
    call = scripts.Call(
        "seg_raise", f"seg:{SEGMENT}", ["state", "events"], [Position(1, 7).padded()]
    )
    world.store.scripts.run(call)
    asked = scripts._evalsha(
        scripts.script(call.name)[1], call.all_keys, world.store.scripts._args(call)
    )
    move = SlotMove(cluster, call.all_keys[0])
    try:
        for taken in ([call.all_keys[0]], call.all_keys):
            move.take(*taken[-2:])
            with move.new.client() as new:
                new.execute_command("ASKING")
                with pytest.raises(TryAgainError):
                    new.execute_command(*asked)
    finally:
        move.finish()
