"""A sink under Pulsar's own transactions on a real broker: drivers that die, tasks that double.

A driver that dies leaves nothing in memory that counts. So most of these tests stop it between two
calls, in this process; one kills Spark.
"""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar as pulsar_client
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import pulsar_txn_spark
from integration.spark.test_crash_steps import NTH, fired, load, start
from integration.support.admin_rest import AdminRest
from integration.support.spark import NO_PANDAS_3, Lab, forget_last_commit, options_of, until
from pulsar_txn_spark.backends.pulsar.native_topic_log import PulsarTopicLog
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.coordinator import Ended
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.engine import native_sink
from pulsar_txn_spark.engine.components import open_components
from pulsar_txn_spark.engine.native_sink import NativeBatch, NativeSink
from pulsar_txn_spark.errors import (
    FencedError,
    PulsarTxnError,
    TransactionAbortedError,
    TransactionConflictError,
)
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.steps import Phase, Step
from pulsar_txn_spark.store.redis.server import stop_server
from pulsar_txn_spark.testing.pulsar_server import Broker
from pulsar_txn_spark.txn.batch import SinkRules
from pulsar_txn_spark.txn.native_history import CommittedBatch, Decision, decide

pytestmark = pytest.mark.filterwarnings(NO_PANDAS_3)

QUIET = pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Warn)
QUERY = "query"
TASKS = 2
TIMEOUT_MS = 60_000


class DiedError(Exception):
    """The driver is gone."""


class World:
    """A sink, its topic, and a consumer that knows nothing of this package."""

    def __init__(self, broker: Broker, api: AdminRest) -> None:
        name = f"public/default/native-{uuid.uuid4().hex[:8]}"
        api("PUT", f"persistent/{name}/partitions", 3)
        self.topic = TopicName.of_any_domain(f"persistent://{name}")
        self.config = PulsarConfig(broker.service_url, broker.admin_url)
        self.id = f"sink-{name}"
        self._client = pulsar_client.Client(broker.service_url, logger=QUIET)
        self._consumer = self._client.subscribe(
            str(self.topic), "all", initial_position=pulsar_client.InitialPosition.Earliest
        )
        self._messages: dict[bytes, str] = {}  # one that is delivered again is the same one

    @property
    def sink(self) -> NativeSink:
        """Return what a new driver or worker has."""
        return NativeSink(self.config, "public/default", self.id)

    def write(self, batch: NativeBatch, task: int, attempt: str, *values: str) -> bool:
        """Be an attempt at a task."""
        writer = self.sink.writer(batch, task, attempt)
        try:
            rows = {"value": [v.encode() for v in values], "key": [v.encode() for v in values]}
            writer.append(self.topic, pa.RecordBatch.from_pydict(rows))
            writer.finish()
        finally:
            writer.close()
        return writer.wrote

    def drive(self, number: int, dies: str = "", again: bool = False) -> Decision:
        """Be the driver of a micro-batch, up to where it dies."""
        sink = self.sink

        def step(name: str) -> None:
            if name == dies:
                raise DiedError

        batch = sink.begin(TIMEOUT_MS)
        step("begun")
        decision = decide(self.id, batch.last, QUERY, number, SinkRules())
        if decision is Decision.REPLAY:
            sink.abort(batch)
            return decision
        writers = {}
        for task in range(TASKS):
            self.write(batch, task, f"a{task}", *(f"{number}-{task}-{i}" for i in range(5)))
            writers[task] = f"a{task}"
            step(f"task {task}")
        sink.close_batch(batch, writers)
        step("closed")
        committed = CommittedBatch(QUERY, number)
        if dies == "record":
            end = sink._coordinators.end
            sink._coordinators.end = _dies  # type: ignore[method-assign,assignment]
            try:
                sink.commit(batch, committed)
            finally:
                sink._coordinators.end = end  # type: ignore[method-assign]
        sink.commit(batch, committed)
        step("committed")
        return decision

    def rows(self, *numbers: int) -> Counter[str]:
        """Return what these micro-batches write."""
        return Counter(f"{n}-{t}-{i}" for n in numbers for t in range(TASKS) for i in range(5))

    def consume(self, expected: int) -> Counter[str]:
        """Return all that the consumer got so far, once it is that many, and nothing more comes."""
        while len(self._messages) < expected:
            self._take(20_000)
        with suppress(pulsar_client.Timeout):
            while True:
                self._take(200)
        return Counter(self._messages.values())

    def _take(self, timeout_ms: int) -> None:
        message = self._consumer.receive(timeout_ms)
        self._messages[message.message_id().serialize()] = message.data().decode()
        self._consumer.acknowledge(message)

    def close(self) -> None:
        self._client.close()


def _dies(*_: object, **__: object) -> None:
    raise DiedError


@pytest.fixture
def world(pulsar: Broker, api: AdminRest) -> Iterator[World]:
    found = World(pulsar, api)
    yield found
    found.close()


@pytest.fixture
def lab(spark: SparkSession, embedded: dict[str, str], pulsar: Broker, tmp_path: Path) -> Lab:
    where = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url}
    return Lab(spark, embedded | where, tmp_path)


def test_batches_follow_each_other_and_a_consumer_sees_each_row_once(world: World) -> None:
    for number in range(3):
        assert world.drive(number) is Decision.WRITE
    assert world.consume(30) == world.rows(0, 1, 2)
    assert world.drive(2) is Decision.REPLAY
    with pytest.raises(FencedError, match="restored from an older state"):
        world.drive(1)
    assert world.consume(30) == world.rows(0, 1, 2)


@pytest.mark.parametrize("dies", ["begun", "task 0", "task 1", "closed", "record", "committed"])
def test_a_driver_that_dies_anywhere_is_followed_by_one_that_writes_each_row_once(
    world: World, dies: str
) -> None:
    world.drive(0)
    with pytest.raises(DiedError):
        world.drive(1, dies)
    decision = world.drive(1)
    assert decision is (Decision.REPLAY if dies == "committed" else Decision.WRITE)
    world.drive(2)
    assert world.consume(30) == world.rows(0, 1, 2)


def test_a_commit_whose_reply_is_lost_is_found_in_the_control_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.drive(0)
    sink = world.sink
    end, lost = sink._coordinators.end, [True]

    def end_and_lose_the_reply(txn: TxnBits, *, commit: bool) -> Ended:
        ended = end(txn, commit=commit)
        if commit and lost:
            lost.clear()
            raise RefusedError("Timeout", "lost on purpose")
        return ended

    monkeypatch.setattr(sink._coordinators, "end", end_and_lose_the_reply)
    world.drive(1)
    assert not lost
    assert world.consume(20) == world.rows(0, 1)
    assert world.drive(1) is Decision.REPLAY


def same_key(value: bytes) -> pa.RecordBatch:
    """Return rows of one partition, more than are buffered."""
    return pa.RecordBatch.from_pydict({"value": [value] * 30_000, "key": [b"k"] * 30_000})


def test_of_two_drivers_the_one_that_begins_last_wins_and_the_other_writes_nothing(
    world: World,
) -> None:
    world.drive(0)
    old = world.sink.begin(TIMEOUT_MS)
    assert world.write(old, 0, "a0", "zombie 1")
    late = world.sink.writer(old, 1, "a1")
    late.append(world.topic, same_key(b"zombie 2" * 9))
    world.sink.close_batch(old, {0: "a0", 1: "a1"})
    world.drive(1)
    # Its topic takes part already, and the coordinator is not asked again: the broker may take it.
    with suppress(PulsarTxnError):
        late.append(world.topic, same_key(b"zombie 3" * 9))
        late.finish()
    late.close()
    with pytest.raises(TransactionAbortedError):
        world.sink.commit(old, CommittedBatch(QUERY, 1))
    with pytest.raises(FencedError):
        world.write(old, 2, "a2", "zombie 4")
    with pytest.raises(FencedError):
        world.sink.close_batch(old, {0: "a0", 1: "a1"})
    world.drive(2)
    assert world.consume(30) == world.rows(0, 1, 2)


def test_rows_of_a_failed_attempt_keep_the_batch_from_committing_until_it_is_written_anew(
    world: World,
) -> None:
    world.drive(0)
    batch = world.sink.begin(TIMEOUT_MS)
    assert world.write(batch, 0, "first", "1-0-0")
    with pytest.raises(TransactionConflictError, match="attempt first may have written"):
        world.write(batch, 0, "second", "1-0-0")
    assert world.write(batch, 1, "other", "1-1-0")
    # Spark took an attempt that had no rows.
    with pytest.raises(TransactionConflictError, match=r"of tasks \[0\]"):
        world.sink.close_batch(batch, {1: "other"})
    with pytest.raises(TransactionConflictError, match="it was closed"):
        world.write(batch, 2, "late", "1-2-0")
    world.sink.abort(batch)
    world.drive(1)
    assert world.consume(20) == world.rows(0, 1)


def test_a_batch_that_takes_longer_than_its_timeout_is_aborted_and_written_anew(
    world: World, api: AdminRest
) -> None:
    world.drive(0)
    batch = world.sink.begin(1000)
    assert world.write(batch, 0, "a0", "1-0-0")
    admin = PulsarTopicLog(world.config)
    until(lambda: not admin.knows_transaction(*batch.txn))
    world.sink.close_batch(batch, {0: "a0"})
    with pytest.raises(TransactionAbortedError, match=r"txn\.timeoutMs"):
        world.sink.commit(batch, CommittedBatch(QUERY, 1))
    world.drive(1)
    assert world.consume(20) == world.rows(0, 1)


def test_topics_and_coordinators_that_move_in_the_middle_of_a_batch_do_no_harm(
    world: World, api: AdminRest
) -> None:
    world.drive(0)
    batch = world.sink.begin(TIMEOUT_MS)
    assert world.write(batch, 0, "a0", *(f"1-0-{i}" for i in range(5)))
    api.unload(f"{world.topic}")
    api("PUT", "namespaces/pulsar/system/unload")
    assert world.write(batch, 1, "a1", *(f"1-1-{i}" for i in range(5)))
    world.sink.close_batch(batch, {0: "a0", 1: "a1"})
    world.sink.commit(batch, CommittedBatch(QUERY, 1))
    world.drive(2)
    assert world.consume(30) == world.rows(0, 1, 2)


def test_what_no_longer_counts_is_let_go_of(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_sink, "_TRIM_RECORDS", 8)
    reads: list[int] = []
    up_to = native_sink._Reading.up_to

    def counted(reading: Any, *arguments: Any) -> None:
        before = reading.count
        up_to(reading, *arguments)
        reads.append(reading.count - before)

    monkeypatch.setattr(native_sink._Reading, "up_to", counted)
    for number in range(8):
        world.drive(number)
    assert max(reads) <= 8 + 2 * (TASKS + 3)
    assert world.drive(7) is Decision.REPLAY


def test_a_stream_of_spark_writes_an_ordinary_topic_and_replays_nothing(
    world: World, lab: Lab, tmp_path: Path
) -> None:
    source = lab.topic(2)
    checkpoint = lab.checkpoint()

    def drain(*values: str) -> None:
        lab.produce(source, *values)
        lab.drain(
            lab.sink(
                lab.source(source, maxMessagesPerTrigger=3),
                str(world.topic),
                checkpoint,
                transactions="native",
            )
        )

    drain(*(f"v{i}" for i in range(10)))
    drain(*(f"w{i}" for i in range(10)))
    expected = Counter([*(f"v{i}" for i in range(10)), *(f"w{i}" for i in range(10))])
    assert world.consume(20) == expected
    forget_last_commit(checkpoint)
    drain("x")
    assert world.consume(21) == expected + Counter(["x"])


KILLED_AT = (Step.BEGIN, Step.INTENT, Step.APPEND, Step.DECIDE, Step.SPARK_COMMIT_LOG)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("phase", NTH)
def test_a_driver_of_spark_killed_at_every_step_writes_every_row_exactly_once(
    world: World, pulsar: Broker, tmp_path: Path, phase: Phase
) -> None:
    options = {"store.path": str(tmp_path / "store")} | options_of("wire", pulsar)
    source = f"crash-{uuid.uuid4().hex[:8]}"
    job = {"options": options, "input": source, "output": str(world.topic)}
    pulsar_txn_spark.Admin(options).create_topic(source, segments=2)
    expected = load(open_components(Options(options, Use.CONNECT)), source)
    try:
        for step in KILLED_AT:
            code, output = start(tmp_path, "native", 10, job, f"{step}:{phase}:{NTH[phase]}")
            assert code == -signal.SIGKILL, f"{step} {phase}: exit code {code}\n{output}"
            assert fired(tmp_path, step, phase), f"{step} {phase} was not reached"
        code, output = start(tmp_path, "native", 60, job, f"{Step.DECIDE}:{Phase.REPLY_LOST}:1")
        assert code == 0, output
        assert fired(tmp_path, Step.DECIDE, Phase.REPLY_LOST)
        assert world.consume(expected.total()) == expected
    finally:
        stop_server(str(tmp_path / "store"))
