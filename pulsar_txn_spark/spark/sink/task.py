"""What one task of a sink does: begin or join, route, append, prove, report."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.components import Runtime, runtime
from pulsar_txn_spark.engine.lease import Lease, Leases
from pulsar_txn_spark.engine.topic_writers import TopicWriters, Written, op_records, winners_of
from pulsar_txn_spark.errors import (
    OptionError,
    SchemaError,
    SegmentLogUnavailableError,
)
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.checkpoint import wants_fingerprint
from pulsar_txn_spark.spark.context import (
    TaskFacts,
    deliver_if_overdue,
    name_of_attempt,
    spare_collections,
)
from pulsar_txn_spark.spark.rows import to_row_batch, topics_of
from pulsar_txn_spark.spark.sink.fingerprint import RowsGiven
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite
from pulsar_txn_spark.txn.batch import Attempt, BatchKey, BatchTransactions, SinkRules
from pulsar_txn_spark.txn.transaction_buffer import writer_name


@dataclass(frozen=True)
class WriteResult(WriterCommitMessage):
    """What a task tells the driver. Only that of the attempt that Spark took counts.

    Parameters
    ----------
    attempt : Attempt or None
        None without transactions.
    record : bytes
        A serialized ``TaskWrite``.
    run : str
        Names the attempt at the micro-batch that the task ran in; empty if unknown.
    """

    attempt: Attempt | None
    record: bytes
    run: str


@dataclass(frozen=True)
class WriteTarget:
    """Where and on whose behalf tasks write; made on the driver, pickled to the tasks.

    Parameters
    ----------
    options : Options
    nonce : str
        The attempt's nonce, made once per batch attempt.
    sink : str or None
        Sink id; None = the default.
    query : str or None
        Query id, where the driver knows it; None = the task's.
    batch : int or None
        Batch id, where the driver knows it; None = the task's.
    driver : str
        Names the driver's process, as part of the header's owner and of the attempt's name.
    rules : SinkRules
        How the query writes to the sink.
    sink_kind : str
        Tells the default sink ids of several writes in one batch apart.
    readable : str
        Id of the query whose checkpoint the driver can read; a replay of it is told by that.
    """

    options: Options
    nonce: str
    sink: str | None
    query: str | None = None
    batch: int | None = None
    driver: str = ""
    rules: SinkRules = field(default_factory=SinkRules)
    sink_kind: str = ""
    readable: str = ""

    def key(self, facts: TaskFacts) -> BatchKey:
        """Return the key of the batch that a task belongs to.

        Raises
        ------
        OptionError
            If the write belongs to a transaction of a micro-batch that cannot be told.
        """
        query = facts.query or self.query or ""
        batch = self.batch if self.batch is not None else facts.batch
        if query and batch < 0:
            raise OptionError(
                "the write runs in a thread in which Spark has lost the id of the micro-batch (a "
                "thread pool in foreachBatch): write in foreachBatch's own thread, or with "
                "pulsar_txn_spark.transactional, which knows the batch"
            )
        if self.batch is not None and not query:
            raise OptionError(
                "the query's id cannot be told in this thread (a thread pool in foreachBatch under "
                "Spark Connect): write in foreachBatch's own thread"
            )
        if not query:
            return BatchKey("", "", 0)
        default = f"{query}/{self.sink_kind}" if self.sink_kind else query
        return BatchKey(self.sink or default, query, batch)


def run_write_task(target: WriteTarget, batches: Iterator[pa.RecordBatch]) -> WriteResult:
    """Write a task's rows and return what the driver needs to commit them.

    Steps: 1. begin or join the transaction; 2. intents and pins (INV-2); 3. append; 4. wait for
    every receipt; 5. operation records. In a replay the rows are consumed and nothing is written.
    """
    spare_collections("write")
    options = target.options
    run = runtime(options)
    before = run.store.round_trips
    facts = TaskFacts.of_task()
    attempt_name = name_of_attempt(facts.run, target.driver)
    random = secrets.token_hex(6)
    if not options.get("transactions"):
        writers = TopicWriters(
            run, lambda turn: f"ptxs-{facts.attempt}-{random}r{turn}", None, facts.partition
        )
        given = RowsGiven(fingerprint=False)
        written = _write(writers, options, batches, given, lambda: None)
        for one in written:
            if one.receipt.last is not None:
                run.store.segments.raise_high(one.segment.id, one.receipt.last)
        deliver_if_overdue(run)  # there will be no commit that could take the counts along
        return WriteResult(None, _task_write(facts, None, written, given), attempt_name)
    timeout_ms = options.get("txn.timeoutMs")
    transactions = BatchTransactions(run.coordinator, timeout_ms)
    # Step 1, begin.
    attempt = transactions.begin(
        target.key(facts), target.nonce, f"{target.driver}|{attempt_name}", target.rules
    )
    fingerprint = wants_fingerprint(
        options, query=attempt.key.query, readable=target.readable, replay=attempt.replay
    )
    given = RowsGiven(fingerprint=fingerprint)
    if attempt.replay:
        # A stateful query needs its rows consumed, or its state stores would not commit.
        for batch in batches:
            given.skip(batch)
        record = _task_write(facts, attempt, [], given, run, before)
        return WriteResult(attempt, record, attempt_name)

    def name(generation: int) -> str:
        suffix = f"r{generation}" if generation else ""
        return writer_name(attempt.txn, facts.attempt, f"{random}{suffix}")

    def admit(writer: str, segments: Sequence[str]) -> None:
        run.buffer.admit(attempt.txn, attempt.nonce, timeout_ms, writer, segments)

    heartbeat = partial(run.coordinator.heartbeat, attempt.txn, attempt.nonce, timeout_ms)
    lease = Lease(timeout_ms, heartbeat)
    with Leases().kept(lease):
        writers = TopicWriters(run, name, admit, facts.partition)
        # Step 2, intent, to step 4, append.
        written = _write(writers, options, batches, given, lease.require)
        # Step 5, op-record.
        ops = op_records(written)
        if ops:
            with steps.at(Step.OP_RECORD):
                run.coordinator.append_ops(attempt.txn, attempt.nonce, ops)
    return WriteResult(
        attempt, _task_write(facts, attempt, written, given, run, before), attempt_name
    )


def _write(
    writers: TopicWriters,
    options: Options,
    batches: Iterator[pa.RecordBatch],
    given: RowsGiven,
    require_lease: Callable[[], None],
) -> list[Written]:
    default: TopicName | None = options.get("topic")
    parsed: dict[str, TopicName] = {}
    with writers:
        for batch in batches:
            if not batch.num_rows:
                continue
            require_lease()
            rows = to_row_batch(batch)
            topics = topics_of(batch)
            given.add(rows, topics)
            if topics is None:
                assert default is not None  # checked with the schema
                writers.append(default, rows)
                continue
            for text, part in _by_topic(topics, rows):
                if text is None and default is None:
                    raise SchemaError(
                        "a row's '__topic' is null and there is no default: give the option "
                        "'topic', or fill the column. Nothing of this batch becomes visible"
                    )
                if text is None:
                    topic = default
                else:
                    topic = parsed.get(text)
                    if topic is None:
                        topic = parsed[text] = options.domains.segmented(text)
                assert topic is not None
                writers.append(topic, part)
        with steps.at(Step.APPEND):
            written = writers.finish()
        if steps.reply_is_lost(Step.APPEND):
            raise SegmentLogUnavailableError("the receipts were lost on purpose")
    return written


def _by_topic(
    topics: pa.Array, rows: pa.RecordBatch
) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    encoded = pc.dictionary_encode(topics, null_encoding="encode")
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    for index, name in enumerate(names):
        yield name, rows.filter(pc.equal(encoded.indices, index))


def _task_write(
    facts: TaskFacts,
    attempt: Attempt | None,
    written: Sequence[Written],
    given: RowsGiven,
    run: Runtime | None = None,
    trips_before: int = 0,
) -> bytes:
    result = TaskWrite(
        partition=facts.partition,
        txn_id=attempt.txn.key if attempt else "",
        messages=sum(one.receipt.messages for one in written),
        bytes=sum(one.receipt.bytes for one in written),
        rows=given.rows,
        fingerprint=given.fingerprint,
    )
    if attempt is not None and attempt.before:
        result.before.ParseFromString(attempt.before)
    result.winners.extend(winners_of(written))
    if run is not None:
        result.round_trips = run.store.round_trips - trips_before
        result.tally.update(run.store.tally.take())
    return result.SerializeToString(deterministic=True)
