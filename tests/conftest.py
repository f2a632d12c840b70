"""Fixtures around the embedded server. Whatever a test starts ends with the test process."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import redis

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.engine import components as engine_components
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.store.redis import connection, server
from pulsar_txn_spark.store.redis.scripts import SINGLE_STEPS
from tests.support.connections import in_use
from tests.support.redis_servers import StartRedis, redis_servers, until
from tests.support.scenario import World

# Inherited by everything that a test starts, so that a server which some worker starts again is
# covered too, and also when pytest is killed without a chance to clean up.
os.environ[server.OWNER_VARIABLE] = str(os.getpid())


# A thread that is still at work in the background gives its connection back within this.
GIVEN_BACK_WITHIN_S = 10.0


def connections_in_use() -> set[redis.Connection]:
    """Return what is taken from the clients that all tests of this process share."""
    found: set[redis.Connection] = set()
    for client in list(connection._clients.values()):
        if isinstance(client, redis.Redis):
            found |= in_use(client.connection_pool)
    return found


@pytest.fixture(autouse=True)
def _connections_are_given_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that keeps a connection, which others would count as theirs."""
    failed, before = request.session.testsfailed, connections_in_use()
    yield
    if request.session.testsfailed > failed:
        return  # its traceback holds whatever it had opened
    deadline = time.monotonic() + GIVEN_BACK_WITHIN_S
    while not connections_in_use() <= before:
        assert time.monotonic() < deadline, "the test keeps connections to the metadata store"
        gc.collect()
        time.sleep(0.01)


@pytest.fixture(scope="session")
def redis_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the folder of a running embedded server."""
    path = str(tmp_path_factory.mktemp("redis"))
    server.ensure_server(path)
    yield path
    connection.close_all()
    server.stop_server(path)


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Return a way to start processes quickly: forked from one that has imported everything.

    That process has no connection and one thread, and ends with this one.
    """
    context = multiprocessing.get_context("forkserver")
    # pyarrow imports pandas for its first array: most of what a child would take of a processor.
    preload = ["pandas", "tests.crash.client_child", "tests.crash.crash_child"]
    context.set_forkserver_preload(preload)
    return context


@pytest.fixture
def redis_client(redis_path: str) -> redis.Redis:
    """Return a client of the embedded server, which holds nothing yet."""
    client = connection.connect(StoreConfig(path=redis_path))
    assert isinstance(client, redis.Redis)
    client.flushall()
    # A fork that rewrites the log of earlier tests keeps connections open that the server closes.
    until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0)
    engine_components._opened.clear()  # what this process knew of a store that is no more
    return client


@pytest.fixture
def limit_memory(redis_client: redis.Redis) -> Iterator[Callable[[int], None]]:
    """Return what sets how many bytes the embedded server may use: 1 = it is full.

    Its append-only file is not rewritten meanwhile: tests compare how long it is.
    """

    def limit(size: int) -> None:
        redis_client.config_set("maxmemory", str(size))

    percentage = "auto-aof-rewrite-percentage"
    before = str(redis_client.config_get(percentage)[percentage])
    redis_client.config_set(percentage, "0")
    until(lambda: redis_client.info("persistence")["aof_rewrite_in_progress"] == 0)
    yield limit
    limit(0)
    redis_client.config_set(percentage, before)


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[StartRedis]:
    """Return a function that starts a server with some settings and returns its port."""
    with redis_servers(tmp_path) as start:
        yield start


@pytest.fixture
def single_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is opened from now on take single steps, as all do in a cluster.

    Name it by ``usefixtures``: it has to come before the store that a test uses.
    """
    monkeypatch.setenv(SINGLE_STEPS, "1")


@pytest.fixture
def run(redis_path: str, redis_client: redis.Redis) -> Components:
    """Return the components of a process on an empty embedded server."""
    return engine_components.open_components(Options({"store.path": redis_path}, Use.CONNECT))


@pytest.fixture
def world(redis_path: str, redis_client: redis.Redis) -> World:
    """Return what a process sees of an empty store and an empty log in memory."""
    return World(redis_path)
