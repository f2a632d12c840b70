"""Gates that are read at once show several segments as they were at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pulsar_txn_spark.store.redis import segments as segments_module
from pulsar_txn_spark.store.redis.scripts import Call, Scripts
from tests.support.scenario import OTHER_SEGMENT, SEGMENT, World

BOTH = (SEGMENT, OTHER_SEGMENT)
Single = pytest.mark.parametrize("single", [False, True], ids=["merged", "single"])


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Let something happen between the gates of two segments, as often as they are read."""

    def torn(happens: Callable[[], None]) -> None:
        together = Scripts._run_together

        def one_by_one(scripts: Scripts, calls: Sequence[Call]) -> list[list[Any]]:
            if [call.name for call in calls] != ["seg_gate"] * len(BOTH):
                return together(scripts, calls)
            first = together(scripts, calls[:1])
            happens()
            return first + together(scripts, calls[1:])

        monkeypatch.setattr(Scripts, "_run_together", one_by_one)

    return torn


def committing(world: World, times: int) -> Callable[[], None]:
    """Return what commits a transaction over both segments, the first times that it is called."""

    def each() -> Iterator[None]:
        for _ in range(times):
            txn = world.open()
            winners = [world.write(txn, "a", segment=segment) for segment in BOTH]
            world.commit(txn, *winners)
            yield

    commits = each()
    return lambda: next(commits, None)


@Single
def test_a_commit_between_two_gates_is_seen_in_both_or_in_neither(
    world: World, between: Callable[[Callable[[], None]], None], *, single: bool
) -> None:
    world.store.scripts._single_steps = single
    committing(world.another_process(), 1)()
    between(committing(world.another_process(), 1))
    gates = world.store.segments.gates(BOTH)
    assert len({gate.high for gate in gates}) == 2, "gates that are read one by one"
    between(committing(world.another_process(), 2))
    gates = world.store.segments.gates(BOTH, at_once=True)
    assert len({gate.high for gate in gates}) == 1


def test_one_redis_reads_all_gates_in_one_step(world: World) -> None:
    world.store.segments.gates(BOTH)
    before = world.store.round_trips
    world.store.segments.gates(BOTH, at_once=True)
    assert world.store.round_trips - before == 1


def test_gates_that_change_all_the_time_are_read_with_a_warning(
    world: World,
    between: Callable[[Callable[[], None]], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(segments_module, "_LOOKS", 3)
    world.store.scripts._single_steps = True
    between(committing(world.another_process(), 99))
    assert len(world.store.segments.gates(BOTH, at_once=True)) == 2
    [record] = caplog.records
    assert "2 segments have changed in each of 3 looks" in record.getMessage()
