"""A second driver, executors of their own: speculation, lost executors, two drivers at once."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.support.spark import (
    NO_PANDAS_3,
    QUERY_SECONDS,
    Lab,
    Meeting,
    ended,
    failure,
    on_value,
    until,
)
from pulsar_txn_spark.position import EARLIEST

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)


class Driver:
    """The process of ``cluster_driver.py``."""

    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._log = folder / "driver.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "integration.support.cluster_driver"),
                    *(str(folder), json.dumps(options)),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def ask(self, job: str, **arguments: object) -> None:
        """Start a job."""
        assert self._process.stdin is not None
        print(json.dumps({"job": job, **arguments}), file=self._process.stdin, flush=True)

    def wait(self, meeting: Meeting) -> None:
        """Wait until a task of the job has come to a meeting; the job must not end before."""
        assert self._process.stdout is not None
        either: list[Any] = [meeting, self._process.stdout]
        ready, _, _ = select.select(either, [], [], QUERY_SECONDS)
        assert meeting in ready, self.answer() if ready else "waited in vain"
        meeting.wait()

    def answer(self) -> dict[str, Any]:
        """Wait for the job's end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._log.read_text(errors="replace")[-4000:]
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def driver(embedded: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    process = Driver(tmp_path_factory.mktemp("driver"), embedded)
    yield process
    process.close()


def test_of_two_drivers_on_one_checkpoint_one_is_fenced_and_the_output_is_exact(
    lab: Lab, driver: Driver
) -> None:
    source, out = lab.topic(), lab.topic(2)
    lab.produce(source, "a")
    df = lab.source(source, subscription="s", startingOffsets="subscription")
    lab.drain(lab.sink(df, out, lab.checkpoint()))
    lab.produce_each(source, "b", "stop", "c")
    with Meeting() as meeting:
        stopping = on_value(df, "stop", meeting.point())
        query = lab.sink(stopping, out, lab.checkpoint()).trigger(availableNow=True).start()
        meeting.wait()
        # The first driver is in the middle of its batch; the second takes that batch over.
        driver.ask("take_over", source=source, out=out, checkpoint=str(lab.checkpoint()))
        assert driver.answer() == {}
        assert lab.visible(out) == ["a", "b", "c", "stop"]
        meeting.release()
        error = failure(lambda: ended(query))
    # Its transaction was aborted, and then the retry of its task found the subscription taken.
    assert "FencedError" in error
    assert "a second driver runs on this checkpoint" in error
    lab.produce(source, "d")
    lab.drain(lab.sink(df, out, lab.checkpoint()))
    assert lab.visible(out) == ["a", "b", "c", "d", "stop"]
    assert lab.cursor(source, "s") == lab.end(source)


def test_of_two_attempts_that_run_side_by_side_one_counts(lab: Lab, driver: Driver) -> None:
    out = lab.topic(2)
    with Meeting() as meeting:
        driver.ask("speculate", out=out, rows=600, marks=str(lab.folder), port=meeting.port)
        driver.wait(meeting)
        until(lambda: any(lab.end_of(ref) > EARLIEST for ref in lab.segments(out)))
        # That attempt is still alive when the write commits without it.
        assert driver.answer() == {}
    found = [[int(part) for part in value.split("-")[:2]] for value in lab.visible(out)]
    assert sorted(number for _, number in found) == list(range(600))
    assert len({attempt for attempt, number in found if number < 300}) == 1
    stored = lab.physical(out)
    assert stored.rows - stored.aborted_rows == 600
    assert stored.aborted_rows > 0


def test_a_stage_that_is_run_again_with_other_rows_counts_once(lab: Lab, driver: Driver) -> None:
    out = lab.topic(2)
    with Meeting() as meeting:
        driver.ask("lose_an_executor", out=out, rows=600, marks=str(lab.folder), port=meeting.port)
        driver.wait(meeting)
        until(lambda: any(lab.end_of(ref) > EARLIEST for ref in lab.segments(out)))
        meeting.release()
        assert driver.answer() == {}
    maps = {mark.name.removeprefix("map-") for mark in lab.folder.glob("map-*")}
    assert len(maps) > 2, "no map task was run again"
    found = [value.split("-")[:2] for value in lab.visible(out)]
    assert sorted(int(number) for _, number in found) == list(range(600))
    assert {drawn for drawn, _ in found} < maps
    assert lab.physical(out).aborted_rows > 0
