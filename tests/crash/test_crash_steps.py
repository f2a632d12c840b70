"""Killed before, after, or without an answer at every step of the protocol: exactly once.

The steps come from the product's own list, so that a new one cannot be forgotten. How often a step
is passed is counted first, then the driver is killed at each of these passages.
"""

from __future__ import annotations

import signal
from collections import Counter
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pyarrow as pa
import pytest
import redis

from pulsar_txn_spark import steps
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.redis.scripts import SINGLE_STEPS
from tests.crash.crash_child import (
    BATCHES,
    INPUT,
    LOST_ATTEMPT,
    OUTPUT,
    ROWS,
    SUBSCRIPTION,
    TURNING,
    Driver,
    main,
    range_of,
)

NEVER = 1_000_000
MERGED_STEPS = (Step.INTENT, Step.PIN, Step.DECIDE, Step.MATERIALIZE)
"""Steps that are part of another one on one server, and in a cluster are taken by themselves."""
CHILD_TIMEOUT_S = 60
FAILS_THE_ATTEMPT = {Step.APPEND, Step.SPARK_COMMIT_LOG}
"""Where a lost answer cannot be asked for again; every other one is answered by the store."""


class Crashes:
    """One query, with its input, its checkpoint and its output."""

    def __init__(
        self, path: str, folder: Path, processes: ForkServerContext, *, single: bool
    ) -> None:
        self.path, self.folder, self.processes = path, folder, processes
        self.environment = {SINGLE_STEPS: "1" if single else ""}
        self.checkpoint = folder / "commits"
        self.checkpoint.mkdir()
        self.driver = Driver(path, self.checkpoint)
        self.driver.topics.create(INPUT, 1)
        self.driver.topics.create(OUTPUT, 2)
        self.driver.topics.create(TURNING, 1)
        writer = self.driver.log.writer(self.driver.source.ref, "loader")
        for batch in range(BATCHES):
            rows = [f"row-{batch}-{i}".encode() for i in range(ROWS)]
            writer.append(pa.record_batch([pa.array(rows, pa.binary())], names=["value"]))
            writer.flush()  # an entry for each batch
        writer.close()

    def start(self, step: Step, phase: Phase, nth: int) -> int | None:
        """Run the query until it is through or dies, and return its exit code."""
        environment = {
            **self.environment,
            steps.FAULT: f"{step}:{phase}:{nth}",
            steps.FAULT_FILE: str(self.folder / "fault"),
        }
        child = self.processes.Process(
            target=main, args=(self.path, str(self.checkpoint), environment)
        )
        child.start()
        child.join(CHILD_TIMEOUT_S)
        if child.is_alive():
            child.kill()
            child.join()
        return child.exitcode

    def passages(self, step: Step, phase: Phase) -> int:
        file = self.folder / f"fault.{step}-{phase}.count"
        return file.stat().st_size if file.exists() else 0

    def fired(self, step: Step, phase: Phase) -> bool:
        marker = self.folder / f"fault.{step}-{phase}.fired"
        found = marker.exists()
        for file in self.folder.glob("fault.*"):
            file.unlink()
        return found

    def visible(self) -> list[Counter[str]]:
        """Return what a reader from earliest sees in each segment of the output."""
        found = []
        segments = {s.ref.id: s for s in self.driver.topics.require(OUTPUT).active}
        readable = self.driver.buffer.readable(
            list(segments),
            lambda id_: self.driver.log.last_confirmed(segments[id_].ref),
            [EARLIEST] * len(segments),
        )
        for segment, what in zip(segments.values(), readable, strict=True):
            rows = self.driver.read(segment, EARLIEST, what.end, what.visibility)
            found.append(Counter(rows))
        return found

    def require_whole_batches(self) -> None:
        """Each batch is there once and whole, in both segments, or not at all."""
        one, other = self.visible()
        assert one == other
        batches = {row.split("-")[1] for row in one}
        assert one == Counter(f"ROW-{batch}-{i}" for batch in batches for i in range(ROWS))

    def require_everything_once(self) -> None:
        expected = Counter(f"ROW-{b}-{i}" for b in range(BATCHES) for i in range(ROWS))
        assert self.visible() == [expected, expected]
        turned = self.driver.topics.require(TURNING)
        turned.require_tiling()
        assert turned.unfinished == ()
        assert len(turned.segments) == BATCHES + 1, "each batch seals one segment, once"
        source = self.driver.source.ref.id
        [cursor] = self.driver.store.subscriptions.read_cursors([source], SUBSCRIPTION)
        assert cursor is not None
        assert cursor.position == range_of(BATCHES - 1)[1]
        segments = [source, *(s.ref.id for s in self.driver.topics.require(OUTPUT).active)]
        assert [gate.pins for gate in self.driver.store.segments.gates(segments)] == [(), (), ()]
        for tc in range(self.driver.store.identity.coordinators):
            assert self.driver.store.transactions.list_open(tc, deadline_ms=None, limit=9) == []


def passages_of(crashes: Crashes, step: Step, phase: Phase) -> int:
    """Run once undisturbed, and count how often a step is passed."""
    assert crashes.start(step, phase, NEVER) == 0
    crashes.require_everything_once()
    return crashes.passages(step, phase)


def kill_and_recover(crashes: Crashes, step: Step, phase: Phase, nth: int) -> None:
    expected = {-signal.SIGKILL}
    if phase is Phase.REPLY_LOST:
        expected = {LOST_ATTEMPT if step in FAILS_THE_ATTEMPT else 0}
    code = crashes.start(step, phase, nth)
    assert crashes.fired(step, phase), f"{step} {phase} {nth} was not reached"
    assert code in expected
    crashes.require_whole_batches()
    # The recovery dies in the same way, on its own first passage. It may have none left.
    crashes.start(step, phase, 1)
    crashes.fired(step, phase)
    crashes.require_whole_batches()
    assert crashes.start(step, phase, NEVER) == 0
    crashes.require_everything_once()
    # Spark's commit log loses its last entry: the replay writes nothing.
    (crashes.checkpoint / str(BATCHES - 1)).unlink()
    assert crashes.start(step, phase, NEVER) == 0
    crashes.require_everything_once()


@pytest.mark.crash
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "step, single",
    [
        *(pytest.param(step, False, id=step) for step in Step),
        *(pytest.param(step, True, id=f"single {step}") for step in MERGED_STEPS),
    ],
)
def test_a_driver_that_dies_at_any_passage_of_a_step_leaves_every_row_exactly_once(
    redis_path: str,
    redis_client: redis.Redis,
    tmp_path: Path,
    processes: ForkServerContext,
    step: Step,
    phase: Phase,
    *,
    single: bool,
) -> None:
    (tmp_path / "count").mkdir()
    counting = Crashes(redis_path, tmp_path / "count", processes, single=single)
    passages = passages_of(counting, step, phase)
    assert passages >= BATCHES, "a step that nobody passes proves nothing"
    # Every passage of the first batch, and the last one of all; those in between are alike.
    for nth in [*range(1, -(-passages // BATCHES) + 1), passages]:
        redis_client.flushall()
        folder = tmp_path / f"kill-{nth}"
        folder.mkdir()
        crashes = Crashes(redis_path, folder, processes, single=single)
        kill_and_recover(crashes, step, phase, nth)
