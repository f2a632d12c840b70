"""Segments are split, merged and sealed under running queries: exact, and each key in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from demo.audit import in_order
from integration.support.spark import (
    NO_PANDAS_3,
    Lab,
    Meeting,
    copied,
    ended,
    failure,
    on_value,
    restored,
    until,
)
from pulsar_txn_spark import Admin, steps
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.engine.topic_writers import TopicWriters
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import SegmentState
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.txn.batch import new_nonce

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

KEYS = 11


def produce(run: Components, topic: str, start: int, stop: int) -> None:
    """Write numbered rows of some keys, outside of transactions."""
    values = [f"{n}".encode() for n in range(start, stop)]
    keys = [f"key-{n % KEYS}".encode() for n in range(start, stop)]
    name = new_nonce()
    writers = TopicWriters(run, lambda generation: f"produce-{name}r{generation}", None, 0)
    rows = pa.RecordBatch.from_arrays([pa.array(values), pa.array(keys)], names=["value", "key"])
    writers.append(TopicName.parse(topic), rows)
    for written in writers.finish():
        assert written.receipt.last is not None
        run.store.segments.raise_high(written.segment.id, written.receipt.last)
    writers.close()


def found_in(run: Components, topic: str) -> list[int]:
    """Return the numbers that a reader sees; each key's rows must be in order."""
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for key, value in in_order(run, TopicName.parse(topic)):
        assert value is not None
        by_key[key].append(int(value))
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"rows of {key!r} are out of order"
        assert all(f"key-{n % KEYS}".encode() == key for n in numbers)
    return sorted(n for numbers in by_key.values() for n in numbers)


def job(lab: Lab, source: str, out: str, checkpoint: str = "checkpoint", **options: object) -> Any:
    df = lab.stream(source, **options).select("value", "__key")
    return lab.sink(df, out, lab.checkpoint(checkpoint))


@pytest.mark.parametrize(
    "any_lab",
    ["embedded", *(pytest.param(one, marks=pytest.mark.long) for one in ("wire", "client"))],
    indirect=True,
)
def test_a_job_goes_on_while_its_input_and_its_output_change(any_lab: Lab) -> None:
    lab, run = any_lab, any_lab.run
    source, out = lab.topic(), lab.topic()
    from_, to = TopicName.parse(source), TopicName.parse(out)
    changes = run.topics.changes
    rounds: list[Callable[[], object]] = [
        lambda: changes.split(from_, "0"),
        lambda: changes.split(to, "0", by_load=True),
        lambda: (changes.split(from_, "1"), changes.seal(to, "1")),
        lambda: changes.merge(to, [s.descriptor for s in run.topics.require(to).active]),
        lambda: changes.merge(from_, [s.descriptor for s in run.topics.require(from_).active]),
        lambda: changes.seal(from_, run.topics.require(from_).active[0].descriptor),
    ]
    query = job(lab, source, out, subscription="s", startingOffsets="earliest").start()
    try:
        for number, change in enumerate(rounds):
            produce(run, source, number * 200, number * 200 + 100)
            change()
            produce(run, source, number * 200 + 100, number * 200 + 200)
        until(lambda: query.exception() is not None or len(found_in(run, out)) >= 1200)
        assert query.exception() is None
    finally:
        query.stop()
    assert found_in(run, out) == list(range(1200))
    for topic in (from_, to):
        run.topics.require(topic).require_tiling()
    # The subscription has followed to the end of every segment.
    for segment in run.topics.require(from_).readable:
        [cursor] = run.store.subscriptions.read_cursors([segment.ref.id], "s")
        end = run.log.last_confirmed(segment.ref)
        assert end == EARLIEST or (cursor is not None and cursor.position == end)


def test_segments_change_between_planning_and_writing_and_again_in_the_same_batch(
    any_lab: Lab,
) -> None:
    lab, run = any_lab, any_lab.run
    source, out = lab.topic(), lab.topic()
    to, changes = TopicName.parse(out), any_lab.run.topics.changes
    produce(run, source, 0, 600)
    df = lab.stream(source).selectExpr("string(value) AS value", "__key")
    with (
        lab.setting("spark.sql.execution.arrow.maxRecordsPerBatch", 20),
        Meeting() as before,
        Meeting() as amid,
    ):
        df = on_value(on_value(df, "0", before.point()), "300", amid.point())
        query = lab.sink(df, out, lab.checkpoint()).trigger(availableNow=True).start()
        before.wait()
        changes.split(to, "0")
        before.release()
        amid.wait()
        changes.split(to, "1")
        changes.merge(to, ["4", "2"])
        amid.release()
        ended(query)
    assert found_in(run, out) == list(range(600))
    assert [s.descriptor for s in run.topics.require(to).active] == ["0000-3fff-3", "4000-ffff-5"]


def test_the_end_of_a_transaction_on_sealed_segments_appends_nothing_and_does_not_stall(
    any_lab: Lab,
) -> None:
    lab, run = any_lab, any_lab.run
    out = lab.topic()
    name = TopicName.parse(out)
    winner, loser = lab.open_txn(out, "a", "b"), lab.open_txn(out, "c")
    [parent] = run.topics.require(name).active
    run.topics.changes.split(name, "0")
    end = run.log.last_confirmed(parent.ref)
    assert lab.rows_of(parent.ref) == []
    winner.commit()
    loser.abort()
    assert [row["value"] for row in lab.rows_of(parent.ref)] == [b"a", b"b"]
    assert (
        run.log.last_confirmed(parent.ref) == end == run.topics.require(name).segment("0").sealed_at
    )
    # Its end is materialized in full: nobody waits for a sealed segment.
    for txn in (winner.txn, loser.txn):
        header = run.store.transactions.read(txn)
        assert header is not None
        assert header.materialized
    assert lab.values(out) == ["a", "b"]


def test_a_query_goes_on_from_an_old_checkpoint_after_several_changes(lab: Lab) -> None:
    run = lab.run
    source, out = lab.topic(2), lab.topic()
    from_, changes = TopicName.parse(source), lab.run.topics.changes
    produce(run, source, 0, 100)
    writer = job(lab, source, out)
    lab.drain(writer)
    produce(run, source, 100, 200)  # unread when its segments are sealed
    changes.split(from_, "0")
    produce(run, source, 200, 300)
    changes.merge(from_, ["3", "1"])
    produce(run, source, 300, 400)
    changes.seal(from_, "4")
    changes.split(from_, "2")
    produce(run, source, 400, 500)
    lab.drain(writer)
    assert found_in(run, out) == list(range(500))
    lab.drain(writer)  # and the checkpoint that has seen it all is as good
    produce(run, source, 500, 600)
    lab.drain(writer)
    assert found_in(run, out) == list(range(600))


def test_a_batch_that_was_planned_before_a_change_is_replayed_after_it(lab: Lab) -> None:
    run = lab.run
    source, out = lab.topic(), lab.topic()
    from_, changes = TopicName.parse(source), lab.run.topics.changes
    produce(run, source, 0, 100)
    df = lab.stream(source).selectExpr("string(value) AS value", "__key")

    def burst() -> None:
        raise ValueError("no row today")

    broken = lab.sink(on_value(df, "50", burst), out, lab.checkpoint())
    assert "no row today" in failure(lambda: lab.drain(broken))
    changes.split(from_, "0")
    changes.split(TopicName.parse(out), "0")
    produce(run, source, 100, 200)
    lab.drain(lab.sink(df, out, lab.checkpoint()))
    assert found_in(run, out) == list(range(200))


@pytest.mark.long
def test_another_query_takes_a_subscription_over_where_it_stands_in_the_children(lab: Lab) -> None:
    run = lab.run
    source, out, later = lab.topic(), lab.topic(), lab.topic()
    from_ = TopicName.parse(source)
    produce(run, source, 0, 100)
    options = {"subscription": "s", "startingOffsets": "subscription"}
    writer = job(lab, source, out, **options)
    lab.drain(writer)
    run.topics.changes.split(from_, "0")
    produce(run, source, 100, 200)
    lab.drain(writer)
    produce(run, source, 200, 300)
    Admin(lab.options).reset_subscription(source, "s", to="here")
    lab.drain(job(lab, source, later, "another", **options))
    assert found_in(run, out) == list(range(200))
    assert found_in(run, later) == list(range(200, 300))


def test_a_batch_read_sees_the_rows_of_all_generations(lab: Lab) -> None:
    run, source = lab.run, lab.topic()
    produce(run, source, 0, 50)
    run.topics.changes.split(TopicName.parse(source), "0")
    produce(run, source, 50, 100)
    assert sorted(map(int, lab.values(source))) == list(range(100))


@pytest.mark.long
def test_a_segment_that_was_deleted_unread_is_a_data_loss_and_a_read_one_leaves_the_checkpoint(
    lab: Lab,
) -> None:
    run = lab.run
    source, out = lab.topic(), lab.topic()
    name = TopicName.parse(source)
    produce(run, source, 0, 100)
    lab.drain(job(lab, source, out))
    copied(lab.checkpoint(), lab.checkpoint("old"))
    produce(run, source, 100, 200)
    run.topics.changes.split(name, "0")
    produce(run, source, 200, 300)
    lab.drain(job(lab, source, out))
    topology = run.topics.require(name)
    parent = topology.segment("0")
    run.log.delete(parent.ref)
    deleted = topology.with_state([parent.ref.id], SegmentState.DELETED)
    assert run.store.topics.swap(str(name), topology.version, deleted.serialize()) is not None
    produce(run, source, 300, 400)
    lab.drain(job(lab, source, out))
    assert found_in(run, out) == list(range(400))
    last = max((lab.checkpoint() / "offsets").glob("[0-9]*"), key=lambda f: int(f.name))
    assert parent.descriptor not in last.read_text()
    # The copy had not read it to its end.
    restored(lab.checkpoint(), lab.checkpoint("old"))
    assert "then deleted" in failure(lambda: lab.drain(job(lab, source, out)))


JOB = Path(__file__).parents[1] / "support" / "segments_job.py"
RUN_SECONDS = 120


@pytest.mark.crash
@pytest.mark.parametrize(
    "step, phase",
    [
        pytest.param(Step.SEAL_LOG, Phase.AFTER, id="sealed", marks=pytest.mark.long),
        pytest.param(
            Step.ACTIVATE_CHILDREN, Phase.BEFORE, id="before-activate", marks=pytest.mark.long
        ),
        pytest.param(Step.ACTIVATE_CHILDREN, Phase.AFTER, id="activated", marks=pytest.mark.long),
        pytest.param(Step.PLAN_CHILDREN, Phase.AFTER, id="planned"),
    ],
)
def test_a_driver_killed_amid_a_change_is_as_good_as_none(
    lab: Lab, step: Step, phase: Phase
) -> None:
    run = lab.run
    source, out = lab.topic(), lab.topic()
    produce(run, source, 0, 2000)
    fault = {
        steps.FAULT: f"{step}:{phase}:1",
        steps.FAULT_FILE: str(lab.folder / "fault"),
        "PYTHONPATH": str(JOB.parents[2]),
    }

    def start(environment: dict[str, str]) -> int:
        log = (lab.folder / "job.log").open("ab")
        with log:
            process = subprocess.Popen(
                # The shell becomes the job; its group is known before, for the fault to kill.
                [
                    *("/bin/sh", "-c", f'{steps.FAULT_PGID}=$$ exec "$0" "$@"'),
                    *(sys.executable, str(JOB), str(lab.folder)),
                    *(lab.options["store.path"], source, out),
                ],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                return process.wait(RUN_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise

    assert start(fault) == -signal.SIGKILL, (lab.folder / "job.log").read_text()[-4000:]
    assert (lab.folder / f"fault.{step}-{phase}.fired").exists()
    assert len(found_in(run, out)) < 2000
    assert start({"PYTHONPATH": str(JOB.parents[2])}) == 0, (lab.folder / "job.log").read_text()[
        -4000:
    ]
    assert found_in(run, out) == list(range(2000))
    run.topics.require(TopicName.parse(out)).require_tiling()
