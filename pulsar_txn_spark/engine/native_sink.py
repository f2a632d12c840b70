"""A sink under Pulsar's own transactions: one transaction for a micro-batch, over all its tasks.

The metadata store takes no part. What decides is the transaction's coordinator, and the order of
the records in the sink's control topic; docs/native-transactions.md has the protocol and its
numbered steps.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_txn_spark import steps
from pulsar_txn_spark.backends.pulsar.admin_api import PulsarAdmin
from pulsar_txn_spark.backends.pulsar.control_topic import ControlTopic, ScalableControlTopic
from pulsar_txn_spark.backends.pulsar.native_topic_log import PulsarTopicLog
from pulsar_txn_spark.backends.pulsar.partitioning import Partitions, partitions_of
from pulsar_txn_spark.backends.pulsar.scalable_topic_log import ScalableTopicLog
from pulsar_txn_spark.backends.pulsar.transport import choose_and_say
from pulsar_txn_spark.backends.pulsar.txn_bits import TxnBits
from pulsar_txn_spark.backends.pulsar.wire.client import CLIENTS, WireClient
from pulsar_txn_spark.backends.pulsar.wire.connection import RefusedError
from pulsar_txn_spark.backends.pulsar.wire.coordinator import Ended, WireCoordinators
from pulsar_txn_spark.backends.pulsar.wire.producer import WireSegmentWriter, WireWriterSettings
from pulsar_txn_spark.config import PulsarConfig
from pulsar_txn_spark.errors import (
    CommitStateUnknownError,
    OptionError,
    PulsarTxnError,
    SegmentLogUnavailableError,
    TransactionAbortedError,
    TransactionDomainError,
)
from pulsar_txn_spark.position import Position
from pulsar_txn_spark.process_lock import ProcessLock
from pulsar_txn_spark.segments.log import SegmentRef
from pulsar_txn_spark.segments.topic_name import TopicName
from pulsar_txn_spark.segments.topology import Router
from pulsar_txn_spark.steps import Step
from pulsar_txn_spark.txn.native_history import (
    CommittedBatch,
    History,
    Kind,
    NativeTxn,
    Record,
)

_LOG = logging.getLogger(__name__)
_TRIM_RECORDS = 256  # so many are read when a batch begins; then what no longer counts is let go
_BUFFERED_BYTES = 1 << 20  # of a task's rows: below, an attempt that fails has written nothing
_ENDING_TRIES = 3
_ABORTED_MS = 60_000  # of a transaction that is aborted at once


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """An attempt at a micro-batch; pickled to its tasks.

    Parameters
    ----------
    sink : str
    txn : NativeTxn
    begun : Position
        Of the record that it was begun with.
    last : CommittedBatch or None
        What the sink had committed last when the attempt began.
    """

    sink: str
    txn: NativeTxn
    begun: Position
    last: CommittedBatch | None


@dataclass(frozen=True, slots=True)
class _Connections:
    client: WireClient
    admin: PulsarAdmin
    coordinators: WireCoordinators
    topics: PulsarTopicLog | ScalableTopicLog
    controls: dict[tuple[str, str], ControlTopic] = field(default_factory=dict)
    resolved: set[str] = field(default_factory=set)
    """Segments of scalable topics in which a transaction has ended."""


_opened: dict[tuple[int, PulsarConfig, bool], _Connections] = {}
_lock = ProcessLock()


def _connections(config: PulsarConfig, *, scalable: bool = False) -> _Connections:
    """Return the connections of this process; a forked worker uses none of its parent's."""
    key = (os.getpid(), config, scalable)
    with _lock:
        opened = _opened.get(key)
        if opened is None:
            topics = ScalableTopicLog(config) if scalable else PulsarTopicLog(config)
            client = CLIENTS.acquire(config)
            coordinators = WireCoordinators(client, scalable=scalable)
            opened = _opened[key] = _Connections(client, topics.admin, coordinators, topics)
    return opened


class NativeSink:
    """A sink under Pulsar's own transactions.

    Parameters
    ----------
    config : PulsarConfig
    namespace : str
        ``tenant/namespace`` of the control topic.
    sink : str
        The sink's id.
    scalable : bool
        Whether it writes scalable topics of Pulsar 5. No transaction covers these and others.

    Raises
    ------
    OptionError
        If an option is malformed, or needs the transport ``client``.
    """

    def __init__(
        self, config: PulsarConfig, namespace: str, sink: str, *, scalable: bool = False
    ) -> None:
        transport, why = choose_and_say(config)
        if transport != "wire":
            raise OptionError(
                "transactions=native needs the transport 'wire': pulsar-client has no "
                f"transactions, and it was chosen because {why}"
            )
        self._config, self._sink, self._scalable = config, sink, scalable
        opened = _connections(config, scalable=True) if scalable else _connections(config)
        self._resolved = opened.resolved
        self._client, self._topics = opened.client, opened.topics
        self._coordinators = opened.coordinators
        control = opened.controls.get((namespace, sink))
        if control is None:
            kind = ScalableControlTopic if scalable else ControlTopic
            control = kind(opened.client, opened.admin, namespace, sink)
            opened.controls[namespace, sink] = control
        self._control = control

    def check_access(self, topic: TopicName) -> None:
        """Raise unless rows can be written to a topic.

        Raises
        ------
        TopicNotFoundError, TransactionDomainError, SegmentLogUnavailableError
        """
        for segment in self.route(topic, 0).partitions:
            self._topics.check_access(segment)

    # --- the driver, before the tasks -----------------------------------------------------------

    def begin(self, timeout_ms: int) -> NativeBatch:
        """Begin a transaction, and end what earlier attempts have left behind.

        Steps: 1. NEW_TXN. 2. A record, which fences every earlier driver. 3. The records up to it
        are read. 4. Transactions that may be open are aborted, and their ends awaited. 5. Then the
        control topic is read again, up to a record behind these ends.

        While nothing of a scalable sink is committed, a process ends its first transaction in the
        control topic, and begins another one: see :meth:`_resolve`. Whoever dies in between leaves
        a transaction that the next attempt aborts, as it leaves one in any other step.

        Raises
        ------
        FencedError, SegmentLogError, TransactionAbortedError
        """
        self._control.create()
        with steps.at(Step.BEGIN):
            # Native step 1, new-txn.
            txn = self._new(timeout_ms)
            # Native step 2, begun.
            begun = self._control.append(Record(Kind.BEGUN, txn).encode())
        reading = _Reading(self._control, History(), self._control.kept_from())
        ended: set[NativeTxn] = set()
        refused: set[NativeTxn] = set()

        def end_hiding() -> None:
            # Perhaps nothing is hidden, and the broker is slow. A transaction that cannot be ended
            # may be one that is committed: its record is still to come, or native step 4
            # refuses it.
            for other in reading.history.undecided - ended - refused - {txn}:
                try:
                    self._end_other(other)
                    ended.add(other)
                except TransactionAbortedError:
                    refused.add(other)

        try:
            # Native step 3, read.
            reading.up_to(begun, end_hiding)
            # Native step 4, end-others.
            for other in reading.history.undecided - ended - {txn}:
                self._end_other(other)
                ended.add(other)
            # Native step 5, read behind their ends.
            if ended:
                barrier = self._control.append(Record(Kind.BARRIER, txn).encode())

                def end_older() -> None:
                    # A newer attempt may have begun since: its transaction is none to be ended.
                    reading.history.require_newest(txn)
                    end_hiding()

                reading.up_to(barrier, end_older)
            reading.history.require_newest(txn)
            self._require_decided(reading.history.last_txn)
            resolves = self._scalable and reading.history.last_txn is None
            if resolves and self._control.name not in self._resolved:
                self._resolve_control(txn)
                return self.begin(timeout_ms)
        except PulsarTxnError:
            self._give_up(txn)
            raise
        if reading.last_commit is not None and (ended or reading.count > _TRIM_RECORDS):
            self._control.trim(reading.last_commit)
        return NativeBatch(self._sink, txn, begun, reading.history.last)

    def _require_decided(self, txn: NativeTxn | None) -> None:
        """Raise unless the transaction that was committed last, by its record, is committed.

        A broker of 5.0.0-M1 may show records of an open transaction after a restart.

        Raises
        ------
        TransactionAbortedError
        """
        if not self._scalable or txn is None:
            return
        with _Explaining(f"find out how transaction {txn} ended"):
            try:
                ended = self._coordinators.end(TxnBits(*txn), commit=False)
            except RefusedError as refused:
                if refused.result == "TransactionNotFound":
                    return  # forgotten, some time after its end
                raise
        if ended is Ended.AS_ASKED:
            raise TransactionAbortedError(
                f"the broker has shown a record of transaction {txn} in {self._control.name}, "
                "which was never committed: it was open. Nothing was written, and that "
                "transaction is aborted; start the query again"
            )

    def _new(self, timeout_ms: int) -> NativeTxn:
        try:
            return NativeTxn(*self._coordinators.begin(self._sink, timeout_ms))
        except RefusedError as refused:
            raise _explained(refused, "begin a transaction") from None

    def _end_other(self, txn: NativeTxn) -> None:
        """Abort a transaction of an earlier attempt, or wait until its commit is through."""
        with _Explaining(f"end transaction {txn} of an earlier attempt"):
            for _ in range(_ENDING_TRIES):
                ended = self._coordinators.end(TxnBits(*txn), commit=False)
                if ended is not Ended.OTHERWISE:
                    return
                # It is being committed. Whoever says so too is answered when it is through.
                ended = self._coordinators.end(TxnBits(*txn), commit=True)
                if ended is not Ended.OTHERWISE:
                    return
            raise RefusedError("InvalidTxnStatus", "it neither commits nor aborts")

    def _give_up(self, txn: NativeTxn) -> None:
        """Abort a transaction as far as possible; its end on the control topic frees readers.

        A broker clears away what belongs to transactions that ended before, when one ends.
        """
        try:
            self._coordinators.add_partitions(TxnBits(*txn), [self._control.name])
            self._coordinators.end(TxnBits(*txn), commit=False)
        except RefusedError as refused:
            _LOG.warning("transaction %s was not aborted now: %s", txn, refused.detail)

    # --- a task ---------------------------------------------------------------------------------

    def writer(self, batch: NativeBatch, task: int, attempt: str) -> NativeTaskWriter:
        """Return what writes the rows of an attempt at a task."""
        return NativeTaskWriter(self, batch, task, attempt)

    def take_task(self, batch: NativeBatch, task: int, attempt: str) -> None:
        """Become the only attempt that writes a task's rows.

        Raises
        ------
        FencedError, TransactionConflictError
        """
        record = Record(Kind.WRITER, batch.txn, task, attempt)
        position = self._control.append(record.encode())
        reading = _Reading(self._control, History(newest=batch.txn), batch.begun)

        def blocked() -> None:
            # Only what is being committed hides records, or another driver's: no more waiting.
            reading.history.require_newest(batch.txn)
            if reading.history.closed:
                reading.history.require_writer(batch.txn, task, attempt)

        reading.up_to(position, blocked)
        reading.history.require_writer(batch.txn, task, attempt)

    def leave_error(self, batch: NativeBatch, task: int, attempt: str, error: str) -> None:
        """Tell later attempts at a task why the one that writes its rows fails, if that can be.

        Spark reports the last attempt only, and that one says that it may not write.
        """
        record = Record(Kind.FAILED, batch.txn, task, attempt, error=error)
        try:
            self._control.append(record.encode())
        except PulsarTxnError as unsaid:
            _LOG.warning("attempt %s of task %d leaves no error: %s", attempt, task, unsaid)

    def open(self, batch: NativeBatch, segment: SegmentRef, name: str) -> WireSegmentWriter:
        """Let a partition take part in the transaction, and open a producer there.

        Raises
        ------
        TransactionAbortedError, SegmentLogError
        """
        with _Explaining(f"add {segment.log_name} to transaction {batch.txn}"):
            if self._scalable and segment.id not in self._resolved:
                self._resolve(segment)
            self._coordinators.add_partitions(TxnBits(*batch.txn), [segment.log_name])
        return self._producer(segment, name, TxnBits(*batch.txn))

    def _producer(self, segment: SegmentRef, name: str, txn: TxnBits) -> WireSegmentWriter:
        return WireSegmentWriter(
            segment,
            name,
            self._client,
            WireWriterSettings.of(self._config),
            before_report=lambda _last: None,
            bits=txn,
            native=True,
        )

    def _resolve(self, segment: SegmentRef) -> None:
        """Let a transaction of one row be aborted in a segment of a scalable topic.

        Where none has ended yet, a broker of 5.0.0-M1 that loads the segment takes open
        transactions for decided, and shows their rows.
        """
        txn = self._coordinators.begin(self._sink, _ABORTED_MS)
        self._coordinators.add_partitions(txn, [segment.log_name])
        writer = self._producer(segment, f"pulsar-txn-spark-{secrets.token_hex(8)}", txn)
        try:
            writer.append(pa.record_batch({"value": pa.array([b""], pa.binary())}))
            writer.flush()
        finally:
            writer.close()
            self._coordinators.end(txn, commit=False)
        self._resolved.add(segment.id)

    def _resolve_control(self, txn: NativeTxn) -> None:
        """Let a transaction that was begun there be aborted in the control topic, with a record.

        So that no broker shows the record of the first commit before it is decided.
        """
        with _Explaining(f"abort transaction {txn} in {self._control.name}"):
            self._coordinators.add_partitions(TxnBits(*txn), [self._control.name])
            self._control.append(Record(Kind.BARRIER, txn).encode(), TxnBits(*txn))
            self._coordinators.end(TxnBits(*txn), commit=False)
        self._resolved.add(self._control.name)

    def route(self, topic: TopicName, first: int) -> Route:
        """Return what sends rows to a topic's partitions, or active segments.

        Parameters
        ----------
        topic : TopicName
        first : int
            Where the round of rows without a key begins.

        Raises
        ------
        TopicNotFoundError, TransactionDomainError, SegmentLogUnavailableError
        """
        if topic.scalable is not self._scalable:
            kinds = ("scalable", "ordinary") if topic.scalable else ("ordinary", "scalable")
            raise TransactionDomainError(
                f"topic {topic} is a {kinds[0]} one, the sink's 'topic' is of the {kinds[1]} ones: "
                "no transaction of Pulsar's spans both. Nothing was written; use a sink for each"
            )
        layout = self._topics.layout(topic)
        if topic.scalable:
            router = Router(layout, first)
            return Route([segment.ref for segment in router.segments], router.route)
        refs = [segment.ref for segment in layout.segments]
        keyless = itertools.count(first + 1)  # a batch of rows without a key goes to the next

        def route(keys: pa.Array | None, rows: int) -> Partitions:
            return partitions_of(keys, rows, len(refs), next(keyless))

        return Route(refs, route)

    # --- the driver, after the tasks ------------------------------------------------------------

    def close_batch(self, batch: NativeBatch, writers: Mapping[int, str]) -> None:
        """Take no further writers, and require that those there are have all succeeded.

        Parameters
        ----------
        batch : NativeBatch
        writers : mapping of int to str
            Of the tasks that have written, the attempts that Spark took.

        Raises
        ------
        FencedError, TransactionConflictError
        """
        # Native step 9, closed.
        closed = self._control.append(Record(Kind.CLOSED, batch.txn).encode())
        reading = _Reading(self._control, History(newest=batch.txn), batch.begun)
        reading.up_to(closed, lambda: reading.history.require_newest(batch.txn))
        reading.history.require_writers(batch.txn, writers)

    def commit(self, batch: NativeBatch, committed: CommittedBatch) -> None:
        """Commit the transaction, with the record by which a replay is recognized.

        Raises
        ------
        TransactionAbortedError
            If it was aborted: by a newer attempt, or because its time was over.
        CommitStateUnknownError
            If nobody answers; the next attempt finds out.
        """
        bits = TxnBits(*batch.txn)
        # Native step 10, record.
        with _Explaining(f"add the control topic to transaction {batch.txn}"):
            self._coordinators.add_partitions(bits, [self._control.name])
        record = Record(Kind.COMMITTED, batch.txn, batch=committed)
        self._control.append(record.encode(), bits)
        # Native step 11, end-txn.
        if not self._ends(bits):
            self._find_out(batch)

    def _ends(self, txn: TxnBits) -> bool:
        """Ask for the commit; return whether the coordinator says that it is done."""
        try:
            with steps.at(Step.DECIDE):
                ended = self._coordinators.end(txn, commit=True)
        except RefusedError as refused:
            _LOG.warning("whether %s is committed is not known yet: %s", txn, refused.detail)
            return False
        return ended is Ended.AS_ASKED and not steps.reply_is_lost(Step.DECIDE)

    def _find_out(self, batch: NativeBatch) -> None:
        """Return if a transaction is committed, as its coordinator says, or else its record."""
        try:
            committed = self._asked_again(TxnBits(*batch.txn))
            if committed is None:
                barrier = self._control.append(Record(Kind.BARRIER, batch.txn).encode())
                reading = _Reading(self._control, History(newest=batch.txn), batch.begun)
                reading.up_to(barrier, lambda: None)
                committed = batch.txn in reading.history.committed
        except (RefusedError, PulsarTxnError) as error:
            raise CommitStateUnknownError(
                f"transaction {batch.txn} may or may not be committed: Pulsar does not answer "
                f"({error}). Start the query again: it reads the control topic {self._control.name}"
            ) from error
        if not committed:
            raise TransactionAbortedError(_aborted(batch.txn))

    def _asked_again(self, txn: TxnBits) -> bool | None:
        """Return whether a coordinator has committed or aborted; None if it has forgotten."""
        for _ in range(_ENDING_TRIES):
            ended = self._coordinators.end(txn, commit=True)
            if ended is not Ended.OTHERWISE:
                return True if ended is Ended.AS_ASKED else None
            # It is aborted, or being so: answered when that is through. No record says more.
            if self._coordinators.end(txn, commit=False) is Ended.AS_ASKED:
                return False
        return None

    def abort(self, batch: NativeBatch) -> None:
        """Abort the transaction, as far as that can be done now."""
        try:
            self._coordinators.end(TxnBits(*batch.txn), commit=False)
        except RefusedError as refused:
            _LOG.warning("transaction %s was not aborted now: %s", batch.txn, refused.detail)


@dataclass(frozen=True, slots=True)
class Route:
    """Sends rows to partitions, or to segments of a scalable topic.

    Parameters
    ----------
    partitions : list of SegmentRef
    choose : Callable
        Returns the index of each row's partition, of its key or of None and of how many rows
        there are.
    """

    partitions: list[SegmentRef]
    choose: Callable[[pa.Array | None, int], npt.NDArray[Any]]


class NativeTaskWriter:
    """Writes the rows of an attempt at a task, which it takes before the first row is sent.

    Parameters
    ----------
    sink : NativeSink
    batch : NativeBatch
    task : int
        Index of the task's partition.
    attempt : str
        Names the attempt; no other has that name.
    """

    def __init__(self, sink: NativeSink, batch: NativeBatch, task: int, attempt: str) -> None:
        self._sink, self._batch, self._task, self._attempt = sink, batch, task, attempt
        self._buffered: list[tuple[TopicName, pa.RecordBatch]] = []
        self._buffered_bytes = 0
        self._routes: dict[TopicName, Route] = {}
        self._writers: dict[str, WireSegmentWriter] = {}
        self._may_have_taken = False
        self.wrote = False
        """Whether the attempt has taken the task: some of its rows may be in the transaction."""

    def append(self, topic: TopicName, rows: pa.RecordBatch) -> None:
        """Queue rows."""
        if not rows.num_rows:
            return
        if self.wrote:
            self._send(topic, rows)
            return
        self._buffered.append((topic, rows))
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes > _BUFFERED_BYTES:
            self._release()

    def finish(self) -> int:
        """Wait for every receipt; return how many rows were written.

        Raises
        ------
        FencedError, TransactionConflictError, TransactionAbortedError, SegmentLogError
        """
        if self._buffered:
            self._release()
        with steps.at(Step.APPEND):
            messages = sum(writer.flush().messages for writer in self._writers.values())
        if steps.reply_is_lost(Step.APPEND):
            raise SegmentLogUnavailableError("the receipts were lost on purpose")
        return messages

    def leave_error(self, error: Exception) -> None:
        """Tell later attempts what this one fails with, if it may have taken the task."""
        if self._may_have_taken:
            said = f"{type(error).__name__}: {error}"
            self._sink.leave_error(self._batch, self._task, self._attempt, said)

    def close(self) -> None:
        """Release the producers."""
        for writer in self._writers.values():
            writer.close()

    def _release(self) -> None:
        # Native step 6, take the task. From here on no other attempt can.
        self._may_have_taken = True
        with steps.at(Step.INTENT):
            self._sink.take_task(self._batch, self._task, self._attempt)
        self.wrote = True
        buffered, self._buffered = self._buffered, []
        for topic, rows in buffered:
            self._send(topic, rows)

    def _send(self, topic: TopicName, rows: pa.RecordBatch) -> None:
        route = self._routes.get(topic)
        if route is None:  # asked once: a key stays where its first row of the task went
            route = self._routes[topic] = self._sink.route(topic, self._task)
        column = rows.schema.get_field_index("key")
        keys = rows.column(column) if column >= 0 else None
        chosen = route.choose(keys, rows.num_rows)
        for number in np.unique(chosen).tolist():
            part = rows if (chosen == number).all() else rows.filter(pa.array(chosen == number))
            self._writer(route.partitions[number]).append(part)

    def _writer(self, segment: SegmentRef) -> WireSegmentWriter:
        writer = self._writers.get(segment.log_name)
        if writer is None:
            # Native steps 7 and 8, add-partition and send.
            name = f"pulsar-txn-spark-{self._batch.txn.least}-{self._task}-{secrets.token_hex(6)}"
            writer = self._sink.open(self._batch, segment, name)
            self._writers[segment.log_name] = writer
        return writer


class _Reading:
    """Reads a control topic on, from where it has got to."""

    def __init__(self, control: ControlTopic, history: History, start: Position) -> None:
        self._control, self.history, self._at = control, history, start
        self.count = 0
        self.last_commit: Position | None = None

    def up_to(self, end: Position, blocked: Callable[[], None]) -> None:
        def take(text: bytes, position: Position) -> None:
            record = Record.decode(text)
            self.history.add(record)
            self.count += 1
            if record.kind is Kind.COMMITTED:
                self.last_commit = position

        self._control.read(self._at, end, take, blocked)
        self._at = end


class _Explaining:
    """Turns what a coordinator refuses into an error of the package."""

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RefusedError):
            raise _explained(error, self._doing) from None


def _explained(refused: RefusedError, doing: str) -> PulsarTxnError:
    said = f"{refused.result}: {refused.detail}" if refused.detail else refused.result
    if refused.result == "NotAllowedError":
        return OptionError(
            f"cannot {doing}: the brokers have no transactions ({said}); set "
            "transactionCoordinatorEnabled=true there, or write a segmented topic, whose "
            "transactions need none"
        )
    if refused.result in ("TransactionNotFound", "InvalidTxnStatus"):
        return TransactionAbortedError(
            f"cannot {doing}: it is over ({said}). A newer attempt aborted it, or it took longer "
            "than txn.timeoutMs, or it belongs to another role. Nothing of it becomes visible"
        )
    return SegmentLogUnavailableError(
        f"cannot {doing}: the transaction coordinator does not answer ({said}); look into the "
        "broker's log. A coordinator with maxActiveTransactionsPerCoordinator open transactions "
        "does not answer either"
    )


def _aborted(txn: NativeTxn) -> str:
    return (
        f"transaction {txn} was aborted: a newer attempt has taken the sink over, or the "
        "micro-batch took longer than txn.timeoutMs, which Pulsar cannot extend. Nothing of it "
        "becomes visible; raise txn.timeoutMs if batches take that long, and start the query again"
    )
