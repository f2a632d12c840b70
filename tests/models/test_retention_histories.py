"""Random histories of writes, splits, merges, reads, crashes and sweeps that keep nothing.

Two queries with subscriptions read by the driver's side of the real source, one of them lazily.
Whatever happens, each reads every committed row once and each key's rows in order; a batch that is
replayed reads the same; and in the end everything that was read is gone.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from pyspark.sql.types import StructType

from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import TopologyConflictError
from pulsar_txn_spark.segments.retention import Retention, RetentionSweep
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.source.idle import IdleWatch
from pulsar_txn_spark.spark.source.partition import SegmentRange, SourcePartition
from pulsar_txn_spark.spark.source.stream import PulsarTxnStreamReader
from pulsar_txn_spark.spark.versions import ReadAllAvailable
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from pulsar_txn_spark.store.records import AckRequest, Code, EndedBy
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore
from pulsar_txn_spark.txn.sweeper import SweepReport
from tests.models.segment_histories import Task
from tests.segments.test_changes import rows
from tests.segments.test_retention import Crash, Dying

TOPIC = TopicName.parse("changing")
STEPS = 60
HISTORIES = 6
Row = tuple[str, int]


class Killed(Exception):  # noqa: N818 — not an error of anybody's
    pass


class Query:
    """A streaming query, as Spark runs it: offset log, batch, commit log."""

    def __init__(self, run: Components, path: str, name: str) -> None:
        self.run, self.path, self.name = run, path, name
        self.offsets: list[dict[str, Any]] = []
        self.committed = 0  # batches in Spark's commit log
        self.output: list[list[Row]] = []
        self.restart()
        self.offsets.append(self.reader.initialOffset())

    def restart(self) -> None:
        options = {
            "store.path": self.path,
            "topic": str(TOPIC),
            "subscription": self.name,
            "startingOffsets": "earliest",
        }
        self.reader = PulsarTxnStreamReader(options, StructType())

    def trigger(self, dies: str = "") -> bool:
        """Run a micro-batch, or die in it; tell whether there was one."""
        if self.committed + 1 == len(self.offsets):
            start = self.offsets[-1]
            end = self.reader.latestOffset(start, ReadAllAvailable())
            if end == start:
                return False
            self.offsets.append(end)
            if self.committed:
                self.reader.commit(start)
        self._die(dies, "planned")
        start, end = self.offsets[-2:]
        planned = self.reader.partitions(start, end)
        partitions = [p for p in planned if isinstance(p, SourcePartition)]
        for partition in partitions:
            self._claim(partition)
        found = [row for p in partitions for one in p.ranges for row in self._read(one)]
        self._die(dies, "read")
        if len(self.output) > self.committed:
            assert found == self.output[-1], "a replay reads the same"
        else:
            self._acknowledge(partitions)
            self.output.append(found)
        self._die(dies, "decided")
        self.committed += 1
        return True

    def _die(self, dies: str, here: str) -> None:
        if dies == here:
            self.restart()
            raise Killed

    def _claim(self, partition: SourcePartition) -> None:
        assert partition.plan is not None
        starts = {**dict(partition.starts), **{r.segment.id: r.start for r in partition.ranges}}
        answers = self.run.store.subscriptions.claim_cursors(
            self.name, self.name, partition.plan.source_epoch, starts
        )
        # Of a segment that was deleted nothing is left to be read.
        assert {answer.code for answer in answers} <= {Code.OK, Code.DELETED}

    def _read(self, range_: SegmentRange) -> list[Row]:
        batches = self.run.log.read(
            range_.segment,
            range_.start,
            range_.end,
            visible=range_.visibility,
            columns=frozenset({"value", "key"}),
            max_rows=1000,
        )
        found = [row for batch in batches for row in batch.to_pylist()]
        return [(row["key"].decode(), int(row["value"])) for row in found]

    def _acknowledge(self, partitions: list[SourcePartition]) -> None:
        coordinator = self.run.coordinator
        nonce = f"{self.name}-{len(self.output)}"
        txn = coordinator.new_txn(nonce, timeout_ms=60_000)
        acks = [
            AckRequest(
                one.segment.id,
                self.name,
                self.name,
                p.plan.source_epoch,
                one.start,
                one.end,
                "s",
                str(len(self.output)),
            )
            for p in partitions
            if p.plan is not None
            for one in p.ranges
        ]
        MetadataPendingAckStore(coordinator).acknowledge(txn, nonce, 60_000, acks)
        coordinator.commit(txn, nonce, Outcome())


class History:
    def __init__(self, run: Components, path: str, seed: int) -> None:
        self.run, self.random = run, random.Random(seed)
        self.expected: list[Row] = []
        self.number = 0
        self.tasks: list[tuple[Task, list[Row]]] = []
        run.topics.create(TOPIC, 1 + seed % 2)
        run.store.topics.change_property(
            str(TOPIC), "__retention", Retention(size_bytes=0).serialize()
        )
        self.queries = [Query(run, path, "eager"), Query(run, path, "lazy")]
        for _ in range(2):
            self.write()
        for query in self.queries:  # from its first batch on it is known
            assert query.trigger()
        self.deleted = 0

    # -- what may happen -----------------------------------------------------------------------

    def begin(self) -> None:
        if len(self.tasks) < 3:
            self.tasks.append((Task(self.run, f"task-{self.number}-{len(self.tasks)}"), []))
            self.continue_writing()

    def continue_writing(self) -> None:
        if not self.tasks:
            return
        task, own = self.random.choice(self.tasks)
        count = self.random.randint(1, 20)
        task.writers.append(TOPIC, rows(self.number, self.number + count))
        task.writers.finish()  # in the log now, so that the log's order is that of the numbers
        own += [(f"key-{n % 7}", n) for n in range(self.number, self.number + count)]
        self.number += count

    def end(self, *, commit: bool = False) -> None:
        if not self.tasks:
            return
        task, own = self.tasks.pop(self.random.randrange(len(self.tasks)))
        if not commit and self.random.random() < 0.3:
            task.writers.close()
            self.run.coordinator.abort(task.txn, EndedBy.OWNER, nonce=task.nonce, cause="a test")
        else:
            task.commit(task.writers.finish())
            self.expected += own

    def write(self) -> None:
        self.begin()
        self.end(commit=True)

    def change(self) -> None:
        changes = self.run.topics.changes
        active = self.run.topics.require(TOPIC).active
        one = self.random.randrange(len(active))
        kind = self.random.choice(["split", "merge", "seal"])
        try:
            if kind == "merge" and one + 1 < len(active):
                changes.merge(TOPIC, [s.descriptor for s in active[one : one + 2]])
            elif kind == "split" and len(active) < 5:
                changes.split(TOPIC, active[one].descriptor)
            else:
                changes.seal(TOPIC, active[one].descriptor)
        except TopologyConflictError:
            pytest.fail("nobody else changes it")

    def read(self) -> None:
        query = self.queries[self.random.random() < 0.25]
        with contextlib.suppress(Killed):
            query.trigger(self.random.choice(["", "", "", "planned", "read", "decided"]))

    def sweep(self) -> None:
        sweeper, report = self.run.sweeper(0), SweepReport()

        def settle(segment: str) -> None:
            sweeper.settle(segment, report)

        done = self.run.retention().sweep(settle)
        assert done.failed == {}
        assert report.stuck == ()
        self.deleted += len(done.deleted)

    def sweep_and_die(self) -> None:
        plan = [self.random.randint(1, 8)]
        after = self.random.random() < 0.5
        mortal = RetentionSweep(
            Dying(self.run.store, plan, after=after),
            Dying(self.run.log, plan, after=after),
            self.run.retention()._readable_to,
            "the one that dies",
        )
        try:
            mortal.sweep(lambda _: None)
        except Crash:
            self.run.store.topics.change_property(str(TOPIC), "__upkeep", None)

    def collect(self) -> None:
        assert self.run.sweeper(0).sweep().stuck == ()

    # -- and what has to hold ------------------------------------------------------------------

    def play(self) -> None:
        turns = [self.write, self.begin, self.continue_writing, self.end, self.change]
        turns += [self.read] * 4 + [self.sweep, self.sweep_and_die, self.collect]
        for _ in range(STEPS):
            self.random.choice(turns)()
        while self.tasks:
            self.end()
        for _ in range(2):  # the second batch says of the first one that it is done
            self.write()
            for query in self.queries:
                while query.trigger():
                    pass

    def require_everything_once_and_in_order(self) -> None:
        for query in self.queries:
            found = [row for batch in query.output for row in batch]
            assert sorted(found) == sorted(self.expected), query.name
            for key in {key for key, _ in found}:
                own = [value for one, value in found if one == key]
                assert own == sorted(own), f"{query.name}: rows of {key} are out of order"

    def require_that_what_was_read_is_gone(self) -> None:
        for _ in self.run.topics.require(TOPIC).segments:  # from the roots on
            self.sweep()
        topology = self.run.topics.require(TOPIC)
        assert [str(s) for s in topology.segments if s.sealed and not s.erased] == []
        kept = sum(
            self.run.log.measure(
                s.ref, self.run.log.trimmed_to(s.ref), self.run.log.last_confirmed(s.ref)
            ).entries
            for s in topology.active
        )
        assert kept <= 2 * len(topology.active), "what the last batches have read"


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_happens_a_subscription_reads_every_row_once_and_nothing_is_kept(
    redis_path: str, run: Components, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # A waiting source looks when something happens, or once a second: here it always looks.
    monkeypatch.setattr(IdleWatch, "unchanged_since", lambda *_: False)
    history = History(run, redis_path, seed)
    history.play()
    history.require_everything_once_and_in_order()
    history.require_that_what_was_read_is_gone()
    assert history.deleted > 0
