"""What the random suites share."""

from __future__ import annotations

import pytest

from tests.support.redis_servers import StartRedis, start_cluster


@pytest.fixture
def cluster(start_redis: StartRedis) -> str:
    """Return the URL of an empty Redis Cluster of three servers."""
    return f"redis+cluster://127.0.0.1:{start_cluster(start_redis, nodes=3)}"
