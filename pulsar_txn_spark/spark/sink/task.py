"""What a task of a sink does: begin or join the transaction, route, append, record, report."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_txn_spark import steps
from pulsar_txn_spark.engine.components import Components, open_components
from pulsar_txn_spark.engine.lease import Lease, Leases
from pulsar_txn_spark.engine.topic_writers import (
    Admit,
    TopicWriters,
    Written,
    op_records,
    winners_of,
)
from pulsar_txn_spark.errors import SchemaError, SegmentLogUnavailableError
from pulsar_txn_spark.options import Options
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.spark.checkpoint import wants_fingerprint
from pulsar_txn_spark.spark.context import (
    TaskFacts,
    flush_counters_if_overdue,
    freeze_loaded_modules,
    unique_execution_id,
)
from pulsar_txn_spark.spark.rows import to_row_batch, topics_of
from pulsar_txn_spark.spark.sink.fingerprint import InputRows
from pulsar_txn_spark.spark.sink.job import TaskCommitMessage, WriteJob
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.store.metadata_pb2 import TaskWrite
from pulsar_txn_spark.txn.batch import Attempt
from pulsar_txn_spark.txn.seen import note_tags
from pulsar_txn_spark.txn.transaction_buffer import writer_name


def run_write_task(job: WriteJob, batches: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
    """Write a task's rows and return what the driver needs to commit them.

    Steps: 1. begin or join the transaction; 2. intents; 3. pins (INV-2); 4. append, and wait for
    every receipt; 5. operation records. In a replay the rows are consumed and nothing is written.

    Raises
    ------
    OptionError, SchemaError, TransactionConflictError, TransactionAbortedError, FencedError
    StoreRolledBackError
        If the executor reaches another metadata store than the driver.
    StoreUnavailableError, SegmentLogUnavailableError
    """
    freeze_loaded_modules("write")
    components = open_components(job.options)
    components.require_store(job.store_uuid)
    task = _WriteTask(job, components, TaskFacts.of_task())
    if not job.options.get("transactions"):
        return task.write_without_transaction(batches)
    # Step 1, begin.
    attempt = task.begin()
    rows = InputRows(
        fingerprint=wants_fingerprint(
            job.options,
            query=attempt.key.query,
            readable=job.checkpoint_query_id,
            replay=attempt.replay,
        )
    )
    if attempt.replay:
        # A stateful query needs its rows consumed, or its state stores would not commit.
        for batch in batches:
            rows.skip(batch)
        return task.message(attempt, [], rows)
    return task.message(attempt, task.write(attempt, batches, rows), rows)


class _WriteTask:
    """One attempt at a task.

    Parameters
    ----------
    job : WriteJob
    components : Components
    facts : TaskFacts
    """

    def __init__(self, job: WriteJob, components: Components, facts: TaskFacts) -> None:
        self._job, self._components, self._facts = job, components, facts
        self._execution_id = unique_execution_id(facts.execution_id, job.driver)
        self._round_trips_before = components.store.round_trips
        self._random = secrets.token_hex(6)
        self._timeout_ms: int = job.options.get("txn.timeoutMs")

    def begin(self) -> Attempt:
        """Begin the transaction of the batch, or join it."""
        owner = f"{self._job.driver}|{self._job.attempt or self._execution_id}"
        return self._job.transactions().begin(
            self._job.key(self._facts), self._job.nonce, owner, self._job.rules
        )

    def write(
        self, attempt: Attempt, batches: Iterator[pa.RecordBatch], rows: InputRows
    ) -> list[Written]:
        """Write the rows, and keep the lease of the transaction meanwhile."""
        coordinator, txn, nonce = self._components.coordinator, attempt.txn, attempt.nonce

        def name(topology_generation: int) -> str:
            suffix = f"r{topology_generation}" if topology_generation else ""
            return writer_name(txn, self._facts.attempt, f"{self._random}{suffix}")

        def admit(topology_generation: int, segments: Sequence[str]) -> None:
            writer = name(topology_generation)
            self._components.buffer.admit(txn, nonce, self._timeout_ms, writer, segments)

        heartbeat = partial(coordinator.heartbeat, txn, nonce, self._timeout_ms)
        lease = Lease(self._timeout_ms, heartbeat)
        with Leases().kept(lease):
            writers = self._writers(name, admit)
            # Step 2, intent, to step 4, append.
            written = _append(writers, self._job.options, batches, rows, lease.require)
            # Step 5, op-record.
            ops = op_records(written)
            if ops:
                with steps.at(Step.OP_RECORD):
                    coordinator.append_ops(txn, nonce, ops)
        return written

    def _writers(self, name: Callable[[int], str], admit: Admit | None) -> TopicWriters:
        partition, topology = self._facts.partition, self._job.topology
        return TopicWriters(self._components, name, admit, partition, topology)

    def write_without_transaction(self, batches: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Write rows that are visible at once."""

        def name(topology_generation: int) -> str:
            return f"ptxs-{self._facts.attempt}-{self._random}r{topology_generation}"

        writers = self._writers(name, None)
        rows = InputRows(fingerprint=False)
        written = _append(writers, self._job.options, batches, rows, lambda: None)
        for output in written:
            if output.receipt.last is not None:
                self._components.store.segments.raise_high(output.segment.id, output.receipt.last)
        # No commit follows that could flush the counters.
        flush_counters_if_overdue(self._components)
        return self.message(None, written, rows)

    def message(
        self, attempt: Attempt | None, written: Sequence[Written], rows: InputRows
    ) -> TaskCommitMessage:
        """Return what the driver needs to know."""
        record = TaskWrite(
            partition=self._facts.partition,
            txn_id=attempt.txn.key if attempt else "",
            messages=sum(output.receipt.messages for output in written),
            bytes=sum(output.receipt.bytes for output in written),
            rows=rows.count,
            fingerprint=rows.fingerprint,
            winners=winners_of(written),
        )
        if attempt is not None:
            if attempt.before:
                record.before.ParseFromString(attempt.before)
            store = self._components.store
            # Also where it wrote nothing: it has begun the transaction, or joined it.
            tags = [f"tc{attempt.txn.tc}", *(f"seg:{output.segment.id}" for output in written)]
            if attempt.key.streaming:
                tags.append(f"sink:{attempt.key.sink}")
            note_tags(record, store.seen, tags)
            record.round_trips = store.round_trips - self._round_trips_before
            record.counters.update(store.counters.drain())
        return TaskCommitMessage(
            attempt, record.SerializeToString(deterministic=True), self._execution_id
        )


def _append(
    writers: TopicWriters,
    options: Options,
    batches: Iterator[pa.RecordBatch],
    rows: InputRows,
    require_lease: Callable[[], None],
) -> list[Written]:
    """Append the rows to their topics, and wait for every receipt."""
    topics = Topics(options)
    with writers:
        for batch in batches:
            if not batch.num_rows:
                continue
            require_lease()
            row_batch = to_row_batch(batch)
            names = topics_of(batch)
            rows.add(row_batch, names)
            for topic, part in topics.route(row_batch, names):
                writers.append(topic, part)
        with steps.at(Step.APPEND):
            written = writers.finish()
        if steps.reply_is_lost(Step.APPEND):
            raise SegmentLogUnavailableError("the receipts were lost on purpose")
    return written


class Topics:
    """The topics of rows: the option ``topic``, or what the column ``__topic`` names."""

    def __init__(self, options: Options) -> None:
        self._default: TopicName | None = options.get("topic")
        self._domains, self._native = options.domains, options.native
        self._by_name: dict[str, TopicName] = {}

    def route(
        self, rows: pa.RecordBatch, names: pa.Array | None
    ) -> Iterator[tuple[TopicName, pa.RecordBatch]]:
        """Split a row batch by topic; `names` are those that the rows name."""
        if names is None:
            yield self._topic(None), rows
            return
        encoded = pc.dictionary_encode(names, null_encoding="encode")
        # A topic has several names: none, a short and a full one. Its rows stay in order (INV-10).
        named: dict[TopicName, list[int]] = {}
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            named.setdefault(self._topic(name), []).append(index)
        for topic, indexes in named.items():
            if len(named) == 1:
                yield topic, rows
                continue
            is_its = (pc.equal(encoded.indices, index) for index in indexes)
            yield topic, rows.filter(reduce(pc.or_, is_its))

    def _topic(self, name: str | None) -> TopicName:
        if name is None:
            if self._default is None:
                raise SchemaError(
                    "a row's '__topic' is null and there is no default: give the option "
                    "'topic', or fill the column. Nothing of this batch becomes visible"
                )
            return self._default
        if name not in self._by_name:
            domains = self._domains
            self._by_name[name] = domains.native(name) if self._native else domains.segmented(name)
        return self._by_name[name]
