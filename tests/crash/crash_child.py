"""A driver without Spark: it runs whole micro-batches, and the crash suite kills it at any step."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from pulsar_txn_spark import steps
from pulsar_txn_spark.backends.embedded.log import EmbeddedSegmentLog
from pulsar_txn_spark.config import StoreConfig
from pulsar_txn_spark.errors import PulsarTxnError, SegmentLogUnavailableError
from pulsar_txn_spark.position import EARLIEST, MessagePosition, Position
from pulsar_txn_spark.segments.catalog import Topics
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Segment
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.ack_ranges import AckInterval
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite, Winner
from pulsar_txn_spark.store.records import OpLogSettings, SubscriptionRef
from pulsar_txn_spark.store.redis.connection import connect
from pulsar_txn_spark.store.redis.store import RedisStore
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, BatchTransactions, new_nonce
from pulsar_txn_spark.txn.coordinator import TransactionCoordinator, TxnAction, as_record
from pulsar_txn_spark.txn.pending_ack import MetadataPendingAckStore, PlannedRange, ReadPlan
from pulsar_txn_spark.txn.transaction_buffer import MetadataTransactionBuffer, writer_name

INPUT, OUTPUT = TopicName.parse("crash-in"), TopicName.parse("crash-out")
TURNING = TopicName.parse("crash-turning")  # its one segment is sealed in each batch
SUBSCRIPTION, QUERY, SINK = "crash", "query", "sink"
BATCHES, TASKS, ROWS = 2, 2, 3
TIMEOUT_MS = 60_000
MESSAGES = 2_600  # acknowledged every other one: 1,300 ranges, of which one pass gives up 512
LOST_ATTEMPT = 3  # exit code of an attempt that failed, as opposed to a bug in this file


class Driver:
    """What Spark's driver and tasks do in one run of a query.

    Parameters
    ----------
    path : str
        Folder of the embedded server.
    checkpoint : pathlib.Path
        Stands for Spark's commit log: a file for each batch that Spark knows to be done.
    """

    def __init__(self, path: str, checkpoint: Path) -> None:
        client = connect(StoreConfig(path=path))
        self.store = RedisStore(client)
        self.log = EmbeddedSegmentLog(client, self.store.raise_last_seen)
        self.topics = Topics(self.store, self.log)
        self.coordinator = TransactionCoordinator(self.store)
        self.buffer = MetadataTransactionBuffer(self.coordinator)
        self.batches = BatchTransactions(self.coordinator, TIMEOUT_MS)
        self.checkpoint = checkpoint
        self.execution_id = secrets.token_hex(4)

    # -- the input: one entry for each batch ---------------------------------------------------

    @property
    def source(self) -> Segment:
        [segment] = self.topics.require(INPUT).active
        return segment

    def read_input(self, batch: int) -> list[str]:
        start, end = range_of(batch)
        return self.read(self.source, start, end, lambda *_: True)

    def read(self, segment: Segment, start: Position, end: Position, visible: object) -> list[str]:
        return [
            value.decode()
            for rows in self.log.read(
                segment.ref,
                start,
                end,
                visible=visible,  # type: ignore[arg-type]
                columns=frozenset({"value"}),
                max_rows=1000,
            )
            for value in rows.column(0).to_pylist()
        ]

    # -- a run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Run all batches that Spark's commit log does not have."""
        source_epoch = self.store.meta.next_source_epoch()
        for batch in range(BATCHES):
            if not (self.checkpoint / str(batch)).exists():
                self.run_batch(batch, source_epoch)

    def nonce(self, batch: int) -> str:
        """Draw a nonce of the batch's coordinator.

        The first use of a coordinator's tag takes a call more: if chance chose it, so would it how
        often a step is passed.
        """
        wanted = batch % self.store.identity.coordinators
        return next(n for n in iter(new_nonce, None) if self.coordinator.shard(n) == wanted)

    def run_batch(self, batch: int, source_epoch: int) -> None:
        if len(self.topics.require(TURNING).segments) < batch + 2:
            [segment] = self.topics.require(TURNING).active
            self.topics.changes.seal(TURNING, segment.descriptor)
        self.topics.changes.finish(self.topics.require(TURNING))
        key, nonce = BatchKey(SINK, QUERY, batch), self.nonce(batch)
        start, end = range_of(batch)
        # The reading task claims the subscription and registers what it reads.
        self.store.subscriptions.claim_cursor(
            self.source.ref.id, SUBSCRIPTION, QUERY, source_epoch, start
        )
        ranges = (PlannedRange(self.source.ref.id, start, end),)
        plan = ReadPlan(
            f"source-{source_epoch}", source_epoch, SUBSCRIPTION, self.execution_id, ranges
        )
        self.store.queries.register_plan(QUERY, str(batch), plan.source, plan.serialize())
        rows = [value.upper() for value in self.read_input(batch)]
        attempt: Attempt | None = None
        try:
            tasks = []
            for partition in range(TASKS):
                attempt = self.batches.begin(key, nonce)
                tasks.append(self.write(attempt, partition, rows[partition::TASKS]))
            assert attempt is not None
            self.batches.commit(attempt, [tasks], self.execution_id, acknowledge=True)
        except PulsarTxnError:
            if attempt is not None:
                self.batches.abort(attempt, "its job failed")
            raise
        with steps.at(Step.SPARK_COMMIT_LOG):
            (self.checkpoint / str(batch)).touch()
        if steps.reply_is_lost(Step.SPARK_COMMIT_LOG):
            raise SegmentLogUnavailableError("Spark did not learn that its commit log was written")

    def write(self, attempt: Attempt, partition: int, rows: list[str]) -> TaskWrite:
        """Do what a task of the sink does, in the same steps."""
        task = TaskWrite(partition=partition, txn_id=attempt.txn.key)
        if attempt.replay:
            return task
        name = writer_name(attempt.txn, partition, secrets.token_hex(4))
        segments = self.topics.require(OUTPUT).active
        ids = [segment.ref.id for segment in segments]
        self.buffer.admit(attempt.txn, attempt.nonce, TIMEOUT_MS, name, ids)
        writers = [self.log.writer(segment.ref, name) for segment in segments]
        try:
            for writer in writers:
                values = pa.array([row.encode() for row in rows], pa.binary())
                writer.append(pa.record_batch([values], names=["value"]))
            with steps.at(Step.APPEND):
                receipts = [writer.flush() for writer in writers]
            if steps.reply_is_lost(Step.APPEND):
                raise SegmentLogUnavailableError("the receipts were lost")
        finally:
            for writer in writers:
                writer.close()
        # Every other task gathers its records into one entry: both forms, in one transaction.
        self.coordinator.ops.configure(OpLogSettings(enabled=partition % 2 == 1))
        with steps.at(Step.OP_RECORD):
            ops = {f"{name}/{segment_id}": b"record" for segment_id in ids}
            self.coordinator.append_ops(attempt.txn, attempt.nonce, ops)
        for segment_id, receipt in zip(ids, receipts, strict=True):
            assert receipt.last is not None
            last = as_record(receipt.last)
            task.winners.append(Winner(segment=segment_id, writer=name, last=last))
        return task


def range_of(batch: int) -> tuple[Position, Position]:
    """Return which part of the input a batch reads, as Spark's offset log would say."""
    return (Position(1, batch - 1) if batch else EARLIEST), Position(1, batch)


def nth_message(number: int) -> MessagePosition:
    """Return the number-th message (from 1) of a segment with an entry for each."""
    return MessagePosition.whole(Position(1, number - 1) if number else EARLIEST)


def acknowledge(
    path: str, where: SubscriptionRef, *, commit: bool, environment: Mapping[str, str]
) -> None:
    """Acknowledge every other message in a transaction, and end it, as a process of its own."""
    os.environ.update(environment)
    steps._faults = steps.Fault.all_from_environment()
    client = connect(StoreConfig(path=path))
    coordinator = TransactionCoordinator(RedisStore(client))
    txn = coordinator.new_txn("nonce", timeout_ms=TIMEOUT_MS)
    intervals = [AckInterval(nth_message(n - 1), nth_message(n)) for n in range(2, MESSAGES + 1, 2)]
    acks = MetadataPendingAckStore(coordinator)
    acks.acknowledge_individual(txn, "nonce", TIMEOUT_MS, where, intervals)
    coordinator.end_txn(txn, TxnAction.COMMIT if commit else TxnAction.ABORT, nonce="nonce")


def main(path: str, checkpoint: str, environment: Mapping[str, str]) -> None:
    """Run as a process of its own, with the faults that the environment asks for.

    The steps have read theirs when they were imported, in the process that this one is a fork of.
    """
    os.environ.update(environment)
    steps._faults = steps.Fault.all_from_environment()
    try:
        Driver(path, Path(checkpoint)).run()
    except SegmentLogUnavailableError:
        sys.exit(LOST_ATTEMPT)
