"""Random histories of checkpoints: copied, restored to older states, two drivers on copies of one.

The query reads files (a source of another kind), a topic of ours, or both; some inputs make no row;
some queries make other rows each time, some write to the sink only where they have rows. The real
transactions, with drivers and tasks as Spark runs them. Whatever happens, a batch that its driver
takes for done is in the sink as that driver's checkpoint has it, once. ``CHECKPOINT_HISTORIES`` in
the environment asks for more runs, ``CHECKPOINT_SEED`` for one.
"""

from __future__ import annotations

import json
import os
import random
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa
import pytest

from pulsar_txn_spark.errors import FencedError, TransactionConflictError, TransactionError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST, Position
from pulsar_txn_spark.spark.checkpoint import planned_batch, wants_fingerprint
from pulsar_txn_spark.spark.sink.fingerprint import InputRows
from pulsar_txn_spark.spark.source.offsets import SourceOffset
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, SinkRules
from pulsar_txn_spark.txn.pending_ack import PlannedRange, ReadPlan, require_claimed
from pulsar_txn_spark.txn.replay_evidence import Compared, EvidenceRule, PlannedBatch
from pulsar_txn_spark.txn.sweeper import Sweeper
from tests.support.scenario import SEGMENT, World

RUNS = int(os.environ.get("CHECKPOINT_HISTORIES", "80"))
BLOCKS = 4
FIRST_SEED = 20_261_122
QUERY = "query"
INPUT = f"{SEGMENT}-in"
ACTIONS = 14
TASKS = 2


@dataclass
class Checkpoint:
    """What Spark keeps: how far each batch reads, and which batches are done."""

    ends: dict[int, tuple[int, int]] = field(default_factory=dict)  # files, rows of the topic
    records: dict[int, bytes] = field(default_factory=dict)
    done: int = -1

    def planned(self, batch: int) -> PlannedBatch | None:
        record = self.records.get(batch)
        return None if record is None else planned_batch(record, "uuid")

    def inputs(self, batch: int) -> list[str]:
        low, high = self.ends.get(batch - 1, (0, 0)), self.ends[batch]
        files = [f"file-{n}" for n in range(low[0], high[0])]
        return files + [f"topic-{n}" for n in range(low[1], high[1])]

    def restore(self, batch: int) -> None:
        """Go back to when a batch was the last that was done."""
        self.ends = {n: end for n, end in self.ends.items() if n <= batch}
        self.records = {n: record for n, record in self.records.items() if n <= batch}
        self.done = min(self.done, batch)


def makes_row(name: str) -> bool:
    return int(name.partition("-")[2]) % 2 == 0


class History:
    """One query, its input, and every driver that runs on a copy of its checkpoint."""

    def __init__(self, seed: int, world: World) -> None:
        self.world = world
        self.random = random.Random(seed)
        draw = self.random.random
        self.kind = self.random.choice(["files", "topic", "both"])
        self.readable = draw() < 0.6
        self.random_rows = draw() < 0.4 and (self.readable or self.kind == "topic")
        # Without Spark's offsets nobody can tell what a batch consumed that wrote nothing.
        self.sometimes = draw() < 0.5 and self.readable
        # A cursor that no transaction moves would be moved by the source, which is not here.
        self.subscribed = draw() < 0.5 and not self.sometimes
        self.compared = Compared.AUTO
        if not self.readable and self.random_rows:
            self.compared = Compared.OFFSETS
        self.files, self.rows, self.clock, self.runs = 0, 0, 0, 0
        self.copies = [Checkpoint()]
        self.drivers: list[tuple[Checkpoint, Iterator[None]]] = []
        self.committed: dict[int, list[str]] = {}
        self.trace: list[str] = []

    # -- Spark -------------------------------------------------------------------------------

    def plan(self, checkpoint: Checkpoint, batch: int) -> bool:
        """Plan a batch, as Spark writes it down before it runs; False if there is nothing new."""
        low = checkpoint.ends.get(batch - 1, (0, 0))
        high = tuple(
            self.random.randint(at, end) if self.random.random() < 0.3 else end
            for at, end in zip(low, (self.files, self.rows), strict=True)
        )
        if low == high:
            return False
        self.clock += 1
        lines = ["v1", json.dumps({"batchTimestampMs": self.clock})]
        if self.kind != "topic":
            lines.append(json.dumps({"logOffset": high[0]}))
        if self.kind != "files":
            offset = SourceOffset("uuid", "1").to_json()
            lines.append(json.dumps({**offset, "topics": {"t": high[1]}}))
        checkpoint.ends[batch] = (high[0], high[1])
        checkpoint.records[batch] = "\n".join(lines).encode()
        return True

    def driver(self, checkpoint: Checkpoint) -> Iterator[None]:
        """Run a driver, batch after batch; it may be stopped at every ``yield``."""
        self.runs += 1
        execution_id = f"run-{self.runs}"
        while True:
            batch = checkpoint.done + 1
            if batch not in checkpoint.ends and not self.plan(checkpoint, batch):
                return
            yield
            rows = [name for name in checkpoint.inputs(batch) if makes_row(name)]
            writes = bool(rows) or not self.sometimes
            if writes:
                yield from self.write(checkpoint, batch, execution_id, rows)
            checkpoint.done = batch
            if writes:  # else it was compared with nothing; it is when it writes again
                self.check(checkpoint)

    def write(
        self, checkpoint: Checkpoint, batch: int, execution_id: str, rows: list[str]
    ) -> Iterator[None]:
        self.register(checkpoint, batch, execution_id)
        key = BatchKey("sink", QUERY, batch)
        nonce = f"{self.random.getrandbits(64):x}"
        rules = SinkRules(every_batch=not self.sometimes)
        shares: list[list[str]] = [[] for _ in range(TASKS)]
        for row in rows:
            self.random.choice(shares).append(row)
        tasks = []
        for number, share in enumerate(shares):
            attempt = self.world.batches.begin(key, nonce, f"driver|{execution_id}", rules)
            tasks.append(self.task(attempt, number, share))
            yield
        rule = EvidenceRule(self.compared)
        if self.readable:
            rule = EvidenceRule(self.compared, checkpoint.planned, promised=True)
        self.world.batches.commit(attempt, [tasks], execution_id, acknowledge=True, rule=rule)
        if not attempt.replay:
            assert batch not in self.committed, f"INV-7: batch {batch} was committed twice"
            self.committed[batch] = rows
        yield

    def register(self, checkpoint: Checkpoint, batch: int, execution_id: str) -> None:
        low, high = (checkpoint.ends.get(n, (0, 0))[1] for n in (batch - 1, batch))
        if low == high:
            return
        start = Position(1, low - 1) if low else EARLIEST
        ranges = (PlannedRange(INPUT, start, Position(1, high - 1)),)
        subscription = "sub" if self.subscribed else ""
        number = int(execution_id.partition("-")[2])
        if subscription:
            claim = self.world.store.subscriptions.claim_cursor(
                INPUT, subscription, QUERY, number, start
            )
            require_claimed(subscription, QUERY, claim)
        plan = ReadPlan(f"source of {execution_id}", number, subscription, execution_id, ranges)
        self.world.store.queries.register_plan(QUERY, str(batch), plan.source, plan.serialize())

    def task(self, attempt: Attempt, partition: int, rows: list[str]) -> TaskWrite:
        rows = list(rows)
        self.random.shuffle(rows)
        if self.random_rows:
            rows = [f"{row}~{self.random.getrandbits(32)}" for row in rows]
        options = Options({"replayEvidence": self.compared.value}, Use.WRITE | Use.STREAM)
        readable = QUERY if self.readable else ""
        wanted = wants_fingerprint(options, query=QUERY, readable=readable, replay=attempt.replay)
        consumed = InputRows(fingerprint=wanted)
        consumed.skip(pa.RecordBatch.from_arrays([pa.array(rows, pa.string())], names=["value"]))
        task = TaskWrite(partition=partition, txn_id=attempt.txn.key)
        if rows and not attempt.replay:
            task = self.world.write_batch(attempt, *rows)
            task.partition = partition
        task.rows = consumed.count
        if consumed.fingerprint is not None:
            task.fingerprint = consumed.fingerprint
        if attempt.before:
            task.before.ParseFromString(attempt.before)
        return task

    # -- what happens ------------------------------------------------------------------------

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.3:
            self.files += self.random.randint(0, 3) if self.kind != "topic" else 0
            self.rows += self.random.randint(0, 3) if self.kind != "files" else 0
        elif draw < 0.4:
            self.copies.append(deepcopy(self.random.choice(self.copies)))
            self.trace.append(f"checkpoint {len(self.copies) - 1} is a copy")
        elif draw < 0.5:
            # Nobody runs on a checkpoint while it is restored.
            at = self.random.randrange(len(self.copies))
            self.drivers = [one for one in self.drivers if one[0] is not self.copies[at]]
            self.copies[at].restore(max(-1, self.copies[at].done - self.random.randint(0, 2)))
            self.trace.append(f"checkpoint {at} is restored to batch {self.copies[at].done}")
        elif draw < 0.6:
            Sweeper(self.world.coordinator, lambda _: None, retention_ms=0).sweep()
        else:
            at = self.random.randrange(len(self.copies))
            checkpoint = self.copies[at]
            self.drivers.append((checkpoint, self.driver(checkpoint)))
            self.trace.append(f"a driver starts on checkpoint {at} behind {checkpoint.done}")
        for _ in range(self.random.randint(0, 12)):
            if self.drivers:
                self.turn(self.random.randrange(len(self.drivers)))

    def turn(self, at: int) -> None:
        """Let a driver take a step; now and then it dies instead."""
        checkpoint, running = self.drivers[at]
        number = next(n for n, copy in enumerate(self.copies) if copy is checkpoint)
        try:
            if self.random.random() < 0.06 or next(running, self) is self:
                del self.drivers[at]
        except TransactionError as error:
            del self.drivers[at]
            self.trace.append(f"on checkpoint {number}: {type(error).__name__}: {error}")

    def run(self) -> None:
        for _ in range(ACTIONS):
            self.step()
        visible = sorted(value.partition("~")[0] for value in self.world.visible())
        wanted = sorted(name for rows in self.committed.values() for name in rows)
        assert visible == wanted, "what is visible is what was committed"
        assert len(set(visible)) == len(visible), "an input is there twice"

    def check(self, checkpoint: Checkpoint) -> None:
        """What this driver takes for done is in the sink as its checkpoint has it."""
        batches = range(checkpoint.done + 1)
        own = sorted(n for batch in batches for n in checkpoint.inputs(batch) if makes_row(n))
        found = sorted(name for batch in batches for name in self.committed.get(batch, []))
        assert own == found, f"lost or doubled behind batch {checkpoint.done}: {own} but {found}"


def seeds(block: int) -> list[int]:
    only = os.environ.get("CHECKPOINT_SEED")
    if only:
        return [int(only)] if block == 0 else []
    return [FIRST_SEED + block + BLOCKS * number for number in range(RUNS // BLOCKS)]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_history_of_checkpoints_loses_or_doubles_a_row(world: World, block: int) -> None:
    for seed in seeds(block):
        world.client.flushall()
        history = History(seed, World(world.path))
        try:
            history.run()
        except BaseException as error:
            kind = f"{history.kind}, readable={history.readable}, random={history.random_rows}"
            error.add_note(f"CHECKPOINT_SEED={seed} ({kind}, sometimes={history.sometimes})")
            error.add_note("\n".join(history.trace[-40:]))
            raise


def test_a_driver_that_is_alone_is_refused_nothing(world: World) -> None:
    """Neither crashes nor lost entries of Spark's commit log need an answer from anybody."""
    for seed in range(FIRST_SEED, FIRST_SEED + RUNS // 6):
        world.client.flushall()
        history = History(seed, World(world.path))
        checkpoint, draw = history.copies[0], history.random.random
        for _ in range(8):
            history.files += 2 if history.kind != "topic" else 0
            history.rows += 2 if history.kind != "files" else 0
            if checkpoint.done == max(checkpoint.ends, default=None) and draw() < 0.3:
                checkpoint.done -= 1  # its last entry was lost
            deque(islice(history.driver(checkpoint), history.random.randint(1, 9)), maxlen=0)
        try:
            list(history.driver(checkpoint))
        except (FencedError, TransactionConflictError) as error:
            error.add_note(f"seed {seed}")
            raise
        history.check(checkpoint)
