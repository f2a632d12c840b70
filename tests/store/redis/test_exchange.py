"""Commands on idle connections: every answer goes to who asked, and no old one to anybody."""

from __future__ import annotations

import gc
import select
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis import exchange
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.exchange import IdleConnections, Part, pack, socket_of

THREADS, CALLS = 8, 100
PATIENCE_MS = 10_000  # what comes, comes at once: this is how long a failing test takes


@pytest.fixture
def idle(redis_client: redis.Redis) -> Iterator[IdleConnections]:
    found = IdleConnections(redis_client.connection_pool)
    yield found
    for connection in found.idle:
        redis_client.connection_pool.release(connection)


@pytest.mark.parametrize(
    "command",
    [
        ["PING"],
        ["EVALSHA", "0" * 40, 2, "{tc0}:birth", "{tc0}:txn:0:1", b"", -1, 1 << 53],
        ["SET", "schl\u00fcssel \u2603", b"\x00\r\n$3\r\nabc"],
        ["X", *range(300)],
    ],
)
@pytest.mark.parametrize("in_c", [True, False])
def test_a_command_is_packed_as_redis_py_packs_it(
    command: list[Part], in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_c:
        monkeypatch.setattr(exchange, "_IN_C", None)
    assert (exchange._IN_C is not None) is in_c
    packer: Any = redis.Connection()  # type: ignore[no-untyped-call]
    assert pack(command) == b"".join(packer.pack_command(*command))


def test_every_thread_gets_the_answers_to_what_it_asked(idle: IdleConnections) -> None:
    def ask(thread: int) -> None:
        for number in range(CALLS):
            asked = [f"{thread} {number} {part}" for part in range(number % 3 + 1)]
            answers = idle.call_all([["ECHO", text] for text in asked])
            assert answers == [text.encode() for text in asked]

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(ask, range(THREADS)))
    assert 1 <= len(idle.idle) <= THREADS


def test_an_error_of_the_server_stands_in_the_place_of_its_answer(idle: IdleConnections) -> None:
    first, refused, last = idle.call_all([["ECHO", "a"], ["NO-SUCH-COMMAND"], ["ECHO", "b"]])
    assert (first, last) == (b"a", b"b")
    assert isinstance(refused, ResponseError)
    with pytest.raises(ResponseError, match="NO-SUCH-COMMAND"):
        idle.call("NO-SUCH-COMMAND")
    [connection] = idle.idle
    assert idle.call("ECHO", "c") == b"c"
    assert idle.idle == (connection,), "it was not lost"


def test_a_connection_that_was_closed_while_it_was_idle_is_replaced(
    idle: IdleConnections, redis_client: redis.Redis
) -> None:
    assert idle.call("ECHO", "a") == b"a"
    redis_client.client_kill_filter(_type="normal", skipme=True)
    assert idle.call("ECHO", "b") == b"b", "nothing was sent on a connection that is gone"
    redis_client.connection_pool.disconnect()
    assert idle.call("ECHO", "c") == b"c"


def test_an_answer_that_nobody_has_read_is_given_to_nobody(idle: IdleConnections) -> None:
    connection: Any = idle.take()
    connection.send_packed_command([pack(["ECHO", "old"])], check_health=False)
    poll = select.poll()
    poll.register(socket_of(connection), select.POLLIN)
    assert poll.poll(PATIENCE_MS)
    idle.give_back(connection)
    assert idle.call("ECHO", "new") == b"new"


def test_a_connection_whose_answer_is_late_is_not_used_again(
    redis_path: str, redis_client: redis.Redis
) -> None:
    client = connect(StoreConfig(path=redis_path, timeout_ms=200))
    assert isinstance(client, redis.Redis)
    idle = IdleConnections(client.connection_pool)
    assert idle.call("SET", "k", "a") == b"OK"
    redis_client.client_pause(60_000, all=False)
    try:
        with pytest.raises(RedisTimeoutError):
            idle.call("SET", "k", "b")
        assert idle.idle == ()
    finally:
        redis_client.client_unpause()
    assert idle.call("ECHO", "b") == b"b"
    client.connection_pool.release(idle.take())


def test_a_fork_takes_none_of_its_parent_s_connections(idle: IdleConnections) -> None:
    idle.call("PING")
    [of_parent] = idle.idle
    idle._pid = -1  # as a fork finds it
    connection = idle.take()
    assert connection is not of_parent
    idle.give_back(connection)
    assert idle.idle == (connection,)
    idle.give_back(of_parent)


def test_without_its_client_there_is_no_connection() -> None:
    pool = redis.ConnectionPool()
    idle = IdleConnections(pool)
    del pool
    gc.collect()
    with pytest.raises(RedisConnectionError, match="closed"):
        idle.take()
