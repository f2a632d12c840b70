"""A network drops the idle connections to a store: a step loses one try, however many they were."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import redis

from pulsar_txn_spark.backends.embedded.append_lane import AppendLane, Request
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import TxnState
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.exchange import IdleConnections, idle_connections, socket_of
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator
from tests.support.forgetful_network import ForgetfulNetwork
from tests.support.redis_servers import StartRedis, start_cluster

IDLE = 8  # more than any step has tries
TIMEOUT_MS = 300


@pytest.fixture(params=["reset", "silence"])
def network(start_redis: StartRedis, request: pytest.FixtureRequest) -> Iterator[ForgetfulNetwork]:
    with ForgetfulNetwork(start_redis(), resets=request.param == "reset") as network:
        yield network


@pytest.fixture
def client(network: ForgetfulNetwork, monkeypatch: pytest.MonkeyPatch) -> redis.Redis:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    client = connect(StoreConfig(url=f"redis://127.0.0.1:{network.port}", timeout_ms=TIMEOUT_MS))
    assert isinstance(client, redis.Redis)
    return client


def let_idle(client: redis.Redis) -> IdleConnections:
    """Return connections of which many are idle."""
    idle = idle_connections(client.connection_pool)
    for connection in [idle.take() for _ in range(IDLE)]:
        idle.give_back(connection)
    assert len(idle.idle) == IDLE
    return idle


def test_a_step_is_answered_although_the_network_has_dropped_all_idle_connections(
    client: redis.Redis, network: ForgetfulNetwork
) -> None:
    store = RedisStore(client)
    let_idle(client)
    network.forget()
    assert store.meta.list_topics() == []


def test_a_transaction_commits_although_the_network_has_dropped_all_idle_connections(
    client: redis.Redis, network: ForgetfulNetwork
) -> None:
    coordinator = TransactionCoordinator(RedisStore(client))
    txn = coordinator.new_txn("nonce")
    let_idle(client)
    network.forget()
    coordinator.commit(txn, "nonce", Outcome(), intents=())
    header = coordinator.store.transactions.read(txn)
    assert header is not None
    assert header.state is TxnState.COMMITTED


def test_a_writer_of_the_embedded_log_leaves_no_connection_that_the_network_has_dropped(
    client: redis.Redis, network: ForgetfulNetwork
) -> None:
    idle = let_idle(client)
    lane = AppendLane(idle, ["PING"])
    network.forget()
    with pytest.raises((redis.ConnectionError, redis.TimeoutError)):
        ping(lane)
    assert not idle.idle
    assert ping(lane) == [b"PONG"]


def ping(lane: AppendLane) -> list[object]:
    """Send a command, and return what it is answered."""
    replies: list[object] = []
    lane.send(["PING"], Request(0, replies.append, replies.append, lambda: True))
    lane.wait(lambda: bool(replies))
    return replies


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="macOS has another name for it")
@pytest.mark.parametrize("cluster", [False, True])
def test_an_idle_connection_is_kept_alive_and_a_dropped_one_found_out_within_a_minute(
    start_redis: StartRedis, cluster: bool
) -> None:
    if cluster:
        url = f"redis+cluster://127.0.0.1:{start_cluster(start_redis)}"
    else:
        url = f"redis://127.0.0.1:{start_redis()}"
    client = connect(StoreConfig(url=url))
    if isinstance(client, redis.RedisCluster):
        [node] = client.get_primaries()  # type: ignore[no-untyped-call]
        client = client.get_redis_connection(node)
    connection = client.connection_pool.get_connection()
    sock = socket_of(connection)
    after_s, every_s, times = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    client.connection_pool.release(connection)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert after_s + every_s * times <= 60
