"""What the demo draws at random: changes of segments that keep to their limits, and kills."""

from __future__ import annotations

import random

import redis

import pulsar_txn_spark
from demo.plan import KILLS, random_kills
from demo.reshape import MOST_SEGMENTS, reshape


def test_the_demo_splits_merges_and_seals_and_never_makes_too_many_segments(
    redis_path: str, redis_client: redis.Redis
) -> None:
    options = {"store.path": redis_path}
    pulsar_txn_spark.Admin(options).create_topic("reshaped", segments=2)
    chance = random.Random(1)
    kinds, counts = set(), set()
    for _ in range(60):
        done, after = reshape(options, "reshaped", chance)
        kinds.add(done.split()[0])
        counts.add(len(after.active))
        after.require_tiling()
    assert kinds == {"split", "merged", "sealed"}
    assert max(counts) == MOST_SEGMENTS


def test_kills_are_drawn_from_the_plan_each_once_and_the_same_for_a_seed() -> None:
    drawn = random_kills(len(KILLS), seed=3)
    assert {kill.place for kill in drawn} == {kill.place for kill in KILLS}
    assert drawn == random_kills(len(KILLS), seed=3)
    assert len({random_kills(3, seed) for seed in range(20)}) > 10
