"""Which connections to the metadata store somebody holds."""

from __future__ import annotations

import redis

from pulsar_txn_spark.store.redis.exchange import idle_connections


def in_use(pool: redis.ConnectionPool) -> set[redis.Connection]:
    """Return the connections of a pool that somebody has taken, and is not through with."""
    return set(pool._in_use_connections) - set(idle_connections(pool).idle)
