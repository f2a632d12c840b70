"""The Spark driver is killed at every step of the protocol; the output is exact all the same.

One chain of runs for each sink: every run recovers from the kill of the run before and dies at the
next step of the list, so each kill costs one start of Spark. The steps come from the enumeration
that the product itself uses.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import pulsar_txn_spark
from demo.plain_consumers import PlainConsumers
from integration.support.spark import local_checkpoints, options_of
from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Router
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.records import OpLogSettings
from pulsar_txn_spark.store.redis.server import stop_server
from pulsar_txn_spark.testing.pulsar_server import PulsarServer
from pulsar_txn_spark.testing.redis_server import RedisServer

ENTRIES = 120
ROWS_AN_ENTRY = 5
JOB = Path(__file__).parents[1] / "support" / "crash_job.py"
SEED = int(os.environ.get("CRASH_SEED", secrets.randbelow(1 << 16)))
RUN_TIMEOUT_S = 300  # ten to 25 on a free machine; three other jobs made it 120

# The second time of a task's step is in the other task, the second of a driver's step in the batch
# after the one that is recovered; the first is in the recovery itself.
NTH = {Phase.BEFORE: 2, Phase.AFTER: 1}
# Spark's own commit log has no reply that we could lose: the replay without its last entry is a
# test of its own.
# The job changes no segments: tests/crash/test_crash_steps.py kills at the steps of a change.
OF_A_CHANGE = {Step.PLAN_CHILDREN, Step.SEAL_LOG, Step.ACTIVATE_CHILDREN}
STEPS = [step for step in Step if step not in OF_A_CHANGE]
LOST_REPLIES = [step for step in STEPS if step is not Step.SPARK_COMMIT_LOG]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stop_server(str(tmp_path / "store"))


def load(run: Components, topic: str) -> Counter[str]:
    """Fill the input with many small entries, so that a micro-batch takes few of them."""
    router = Router(run.topics.require(TopicName.parse(topic)))
    writers = {s.ref: run.log.writer(s.ref, "loader") for s in router.segments}
    expected: Counter[str] = Counter()
    for entry in range(ENTRIES):
        segment = router.segments[entry % len(router.segments)]
        values = [f"row-{entry:04d}-{i}" for i in range(ROWS_AN_ENTRY)]
        expected.update(value.upper() for value in values)
        keys = [f"key-{entry % 7}".encode()] * ROWS_AN_ENTRY
        rows = pa.RecordBatch.from_arrays(
            [pa.array([v.encode() for v in values]), pa.array(keys)], names=["value", "key"]
        )
        writers[segment.ref].append(rows)
        writers[segment.ref].flush()
    for writer in writers.values():
        writer.close()
    return expected


def read(run: Components, topic: str, *, committed: bool = True) -> Counter[str]:
    """Read an output straight from the log: what a reader sees now, or all that is there."""
    found: Counter[str] = Counter()
    for segment in run.topics.require(TopicName.parse(topic)).segments:
        lac = run.log.last_confirmed(segment.ref)
        readable = run.buffer.readable(
            [segment.ref.id], {segment.ref.id: lac}.__getitem__, [EARLIEST]
        )[0]
        for batch in run.log.read(
            segment.ref,
            EARLIEST,
            readable.end if committed else lac,
            visible=readable.visibility if committed else (lambda *_: True),
            columns=frozenset({"value"}),
            max_rows=10_000,
        ):
            found.update(value.decode() for value in batch.column(0).to_pylist())
    return found


def start(
    folder: Path, sink: str, limit: int, place: Mapping[str, object], faults: str = ""
) -> tuple[int, str]:
    """Run the job to its end or its death; return its exit code and its last output."""
    log = folder / "job.log"
    environment = {
        **os.environ,
        "PYTHONPATH": str(JOB.parents[2]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    with log.open("wb") as output:
        job = subprocess.Popen(
            # The shell becomes the job; its process group is known before, for the fault to kill.
            [
                "/bin/sh",
                "-c",
                f'{steps.FAULT_PGID}=$$ exec "$0" "$@"',
                sys.executable,
                str(JOB),
                sink,
                str(limit),
                json.dumps({**place, "folder": str(folder)}),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment, steps.FAULT: faults, steps.FAULT_FILE: str(folder / "fault")},
        )
        try:
            code = job.wait(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            code = -1000
    return code, log.read_text(errors="replace")[-4000:]


def fired(folder: Path, step: Step, phase: Phase) -> bool:
    marker = Path(f"{folder / 'fault'}.{step}-{phase}.fired")
    found = marker.exists()
    for file in folder.glob("fault.*"):
        file.unlink()
    return found


def drawn(count: int) -> list[Step]:
    """Draw steps, in any order; the seed is in the name of each test that fails."""
    return random.Random(SEED).sample(STEPS, count)


class Plain:
    """Consumers of pulsar-client, which see what the broker sends while drivers die."""

    def __init__(self, options: Mapping[str, str], topic: str, stack: ExitStack) -> None:
        self._consumers = stack.enter_context(PlainConsumers(options, [topic]))

    def values(self) -> Counter[str]:
        """Return what has come until now."""
        return Counter((value or b"").decode() for _, value in self._consumers.received())

    def all_values(self) -> Counter[str]:
        """Return what has come when all is there."""
        self._consumers.outputs()
        return self.values()


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the options that lead to a broker that gates segments."""
    with (
        RedisServer(tmp_path_factory.mktemp("redis")) as store,
        PulsarServer(store_url=store.url, short_lived=True) as server,
    ):
        yield {
            "store.url": store.url,
            "service.url": server.service_url,
            "admin.url": server.admin_url,
        }


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "place, sink, phase, killed_at",
    [
        # In `make test` each step kills one of the two sinks; `make crash` has all the kills of
        # both, also on Pulsar by each of its transports.
        pytest.param("embedded", "format", Phase.BEFORE, STEPS[::2], id="every-other"),
        pytest.param("embedded", "foreachBatch", Phase.AFTER, STEPS[1::2], id="the-others"),
        *(
            pytest.param(
                place, sink, phase, STEPS, id=f"{place}-{sink}-{phase}", marks=pytest.mark.long
            )
            for place in ("embedded", "wire", "client")
            for sink, phase in itertools.product(("format", "foreachBatch"), NTH)
        ),
        # The broker gates the output, and plain consumers look on. Steps are drawn at random.
        *(
            pytest.param("gated", sink, phase, drawn(5), id=f"gated-{sink}", marks=pytest.mark.long)
            for sink, phase in (("format", Phase.AFTER), ("foreachBatch", Phase.BEFORE))
        ),
    ],
)
def test_a_driver_killed_at_every_step_still_writes_every_row_exactly_once(
    request: pytest.FixtureRequest,
    folder: Path,
    stack: ExitStack,
    place: str,
    sink: str,
    phase: Phase,
    killed_at: Sequence[Step],
) -> None:
    options = {"store.path": str(folder / "store")}
    if place == "gated":
        options = request.getfixturevalue("gated")
    elif place != "embedded":
        options |= options_of(place, request.getfixturevalue("pulsar"))
    # A broker serves many tests: the names are this one's own.
    into, out = (f"crash-{what}-{secrets.token_hex(4)}" for what in ("in", "out"))
    # Both kinds of checkpoints: as Spark writes them, and as it may on a local disk.
    settings = local_checkpoints() if sink == "foreachBatch" else {}
    job = {"options": options, "input": into, "output": out, "settings": settings}
    pulsar_txn_spark.Admin(options).create_topic(into, segments=2)
    gate = "broker" if place == "gated" else "reader"
    pulsar_txn_spark.Admin(options).create_topic(out, segments=2, gate=gate)
    plain = Plain(options, out, stack) if place == "gated" else None
    run = open_components(Options(options, Use.CONNECT))
    expected = load(run, into)
    # Each worker writes its first record on a coordinator by itself, and learns from the answer
    # that further ones are gathered: both forms are in every run.
    for tc in range(run.store.identity.coordinators):
        run.store.op_log.change_settings(tc, OpLogSettings(enabled=True))

    for step in killed_at:
        code, output = start(folder, sink, 10, job, f"{step}:{phase}:{NTH[phase]}")
        assert code == -signal.SIGKILL, f"{step} {phase}: exit code {code}\n{output}"
        assert fired(folder, step, phase), f"{step} {phase} was not reached"
        # Whatever is visible in between is a part of the whole, and nothing is doubled.
        seen = [read(run, out)] if plain is None else [read(run, out), plain.values()]
        for values in seen:
            wrong = values - expected
            assert not wrong, f"after the kill at {step} {phase}: {wrong}"

    faults = ",".join(f"{step}:{Phase.REPLY_LOST}:1" for step in LOST_REPLIES)
    code, output = start(folder, sink, 60, job, faults)  # more batches than there are coordinators
    assert code == 0, output
    for step in LOST_REPLIES:
        assert Path(f"{folder / 'fault'}.{step}-{Phase.REPLY_LOST}.fired").exists(), step

    assert read(run, out) == expected
    if plain is not None:  # a broker shows to nobody what else lies there
        assert plain.all_values() == expected
        return
    physical = read(run, out, committed=False)
    assert physical.total() > expected.total(), "no attempt was aborted: the kills came too early"
