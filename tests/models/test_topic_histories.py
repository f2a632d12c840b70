"""Topics created, deleted and created again beside everybody else, in random interleavings."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import redis

from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.store.redis import scripts
from pulsar_txn_spark.store.redis.connection import connect
from tests.models.topic_histories import play

HISTORIES = int(os.environ.get("TOPIC_HISTORIES", "16"))
FIRST = int(os.environ.get("TOPIC_HISTORIES_FROM", "0"))
DONE = ("created", "deleted", "committed", "changed", "read", "swept", "listed")
BY_KNOWN_TOPOLOGIES = ("begun by a known topology", "refused by a known topology")


def require_histories(
    config: StoreConfig, monkeypatch: pytest.MonkeyPatch, what: tuple[str, ...]
) -> None:
    """Play histories, in which all of this must have been done."""
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    client, done = connect(config), Counter[str]()
    for seed in range(FIRST, FIRST + HISTORIES):
        client.flushall()
        done += play(seed, config).done
    for action in (*what, "opened and committed"):
        assert done[action], f"nobody has {action}: the histories prove nothing of it"


def test_in_every_history_nothing_of_one_instance_of_a_topic_reaches_into_the_next(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_histories(StoreConfig(path=redis_path), monkeypatch, (*DONE, *BY_KNOWN_TOPOLOGIES))


@pytest.mark.long
def test_in_every_history_on_a_cluster_nothing_of_one_instance_reaches_into_the_next(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_histories(StoreConfig(url=cluster), monkeypatch, DONE)
