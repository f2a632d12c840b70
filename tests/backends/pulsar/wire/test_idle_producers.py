"""Producers that wait for the next writer: which of them, how many, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from pulsar_txn_spark.backends.pulsar.wire.idle_pool import LONGEST_S, MOST
from pulsar_txn_spark.backends.pulsar.wire.idle_producers import IdleProducers


@dataclass(eq=False)
class Waiting:
    topic: str
    usable: bool = True
    left: int = 0

    def can_wait(self) -> bool:
        return self.usable

    def leave(self) -> None:
        self.left += 1


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class World:
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.idle: IdleProducers[Waiting] = IdleProducers(self.clock)


@pytest.fixture
def world() -> World:
    return World()


def test_a_producer_is_given_to_one_writer_of_its_topic(world: World) -> None:
    first, second, other = Waiting("t"), Waiting("t"), Waiting("u")
    for producer in (first, other, second):
        world.idle.put(producer)
    assert world.idle.take("t") is second  # the one that was used last
    assert world.idle.take("t") is first
    assert world.idle.take("t") is None
    assert world.idle.take("u") is other
    assert not first.left + second.left + other.left


def test_one_that_cannot_be_used_again_is_closed_at_once(world: World) -> None:
    broken = Waiting("t", usable=False)
    world.idle.put(broken)
    assert (broken.left, world.idle.take("t")) == (1, None)


def test_one_that_was_lost_while_it_waited_is_passed_over(world: World) -> None:
    whole, lost = Waiting("t"), Waiting("t")
    world.idle.put(whole)
    world.idle.put(lost)
    lost.usable = False
    assert world.idle.take("t") is whole
    assert world.idle.take("t") is None
    assert (whole.left, lost.left) == (0, 1)


def test_the_oldest_are_closed_where_too_many_wait(world: World) -> None:
    producers = [Waiting(f"t{number}") for number in range(MOST + 2)]
    for producer in producers:
        world.idle.put(producer)
    assert [producer.left for producer in producers] == [1, 1, *[0] * MOST]
    assert world.idle.take("t0") is None
    assert world.idle.take("t2") is producers[2]


def test_those_that_have_waited_long_are_closed_when_another_one_begins_to_wait(
    world: World,
) -> None:
    old, young, last = Waiting("t"), Waiting("u"), Waiting("v")
    world.idle.put(old)
    world.clock.now = 1.0
    world.idle.put(young)
    world.clock.now = LONGEST_S + 1.0
    world.idle.put(last)
    assert (old.left, young.left, last.left) == (1, 0, 0)
    assert world.idle.take("t") is None
