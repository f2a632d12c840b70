"""Fixtures around the embedded server. Whatever a test starts ends with the test process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis
from hypothesis import settings

from pulsar_txn_spark import runtime
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store import connection, server
from tests.scenario import World

# Inherited by everything that a test starts, so that a server which some worker starts again is
# covered too, and also when pytest is killed without a chance to clean up.
os.environ[server.OWNER_VARIABLE] = str(os.getpid())

# The same examples in every run; the first one also pays for imports, so there is no deadline.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def redis_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the folder of a running embedded server."""
    path = str(tmp_path_factory.mktemp("redis"))
    server.ensure_server(path)
    yield path
    connection.close_all()
    server.stop_server(path)


@pytest.fixture
def redis_client(redis_path: str) -> redis.Redis:
    """Return a client of the embedded server, which holds nothing yet."""
    client = connection.connect(StoreConfig(path=redis_path))
    assert isinstance(client, redis.Redis)
    client.flushall()
    runtime._opened.clear()  # what this process knew of a store that is no more
    return client


@pytest.fixture
def world(redis_path: str, redis_client: redis.Redis) -> World:
    """Return what a process sees of an empty store and an empty log in memory."""
    return World(redis_path)
