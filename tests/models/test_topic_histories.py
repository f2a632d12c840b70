"""Topics created, deleted and created again beside everybody else, in random interleavings."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import redis

from pulsar_txn_spark.store.redis import scripts
from tests.models.topic_histories import play

HISTORIES = int(os.environ.get("TOPIC_HISTORIES", "16"))
FIRST = int(os.environ.get("TOPIC_HISTORIES_FROM", "0"))


def test_in_every_history_nothing_of_one_instance_of_a_topic_reaches_into_the_next(
    redis_path: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_LOST_REPLY_PAUSE_S", 0.0)
    done: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + HISTORIES):
        redis_client.flushall()
        done += play(seed, redis_path).done
    opened = ("opened and committed", "begun by a known topology", "refused by a known topology")
    for what in ("created", "deleted", "committed", "changed", "read", "swept", "listed", *opened):
        assert done[what], f"nobody has {what}: the histories prove nothing of it"
