"""The control topic of a sink under Pulsar's own transactions: its records, and what they say.

The records of one sink stand in one topic without partitions, so that they have one order. A
reader of that topic sees committed rows only, up to the first open transaction. Everything here is
a function of the records that were read, without any I/O. docs/native-transactions.md has the
protocol.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pulsar_txn_spark.backports import StrEnum
from pulsar_txn_spark.errors import (
    BatchNotRecordedError,
    FencedError,
    StoreCorruptError,
    TransactionConflictError,
)
from pulsar_txn_spark.json_record import has_version
from pulsar_txn_spark.store.metadata_pb2 import Evidence
from pulsar_txn_spark.txn.batch import SinkRules

_VERSION = 1
_FIRST_BATCH = 0
_LONGEST_ERROR = 1000  # characters of a failed attempt's error
_NO_RECORD = (
    ValueError,
    KeyError,
    TypeError,
    OverflowError,
    RecursionError,
    DecodeError,
    binascii.Error,
)
"""What Python says of bytes that are no record."""


class NativeTxn(NamedTuple):
    """A transaction of Pulsar's own."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


class Kind(StrEnum):
    """What a record says of its transaction."""

    BEGUN = "begun"
    """A driver has begun it: every earlier one is fenced."""
    WRITER = "writer"
    """An attempt at a task asks to be the one that writes the task's rows."""
    FAILED = "failed"
    """The attempt that writes a task's rows says what it fails with."""
    CLOSED = "closed"
    """The driver takes no further writers: the micro-batch is about to be committed."""
    COMMITTED = "committed"
    """It is committed, with this batch: the record is part of the transaction itself."""
    BARRIER = "barrier"
    """The driver reads up to here."""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A micro-batch that is committed.

    Parameters
    ----------
    query : str
        Spark's query id.
    batch : int
        Spark's batch id.
    evidence : bytes
        A serialized ``Evidence``: what a replay is compared by.
    """

    query: str
    batch: int
    evidence: bytes = b""

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query}"

    @property
    def decoded(self) -> Evidence:
        """Return the evidence."""
        return Evidence.FromString(self.evidence)


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the control topic.

    Parameters
    ----------
    kind : Kind
    txn : NativeTxn
    task : int
        Of a writer or a failure: index of the task's partition.
    attempt : str
        Of a writer or a failure: names the attempt.
    batch : CommittedBatch or None
        Of a commit.
    error : str
        Of a failure: what the attempt fails with.
    """

    kind: Kind
    txn: NativeTxn
    task: int = -1
    attempt: str = ""
    batch: CommittedBatch | None = None
    error: str = ""

    def encode(self) -> bytes:
        """Return the record as JSON."""
        tree: dict[str, Any] = {"v": _VERSION, "kind": str(self.kind), "txn": list(self.txn)}
        if self.kind in (Kind.WRITER, Kind.FAILED):
            tree |= {"task": self.task, "attempt": self.attempt}
        if self.error:
            tree["error"] = self.error[:_LONGEST_ERROR]
        if self.batch is not None:
            evidence = base64.b64encode(self.batch.evidence).decode()
            tree |= {"query": self.batch.query, "batch": self.batch.batch, "evidence": evidence}
        return json.dumps(tree).encode()

    @classmethod
    def decode(cls, text: bytes) -> Record:
        """Read a record.

        Raises
        ------
        StoreCorruptError
            If it is none, or of a later version.
        """
        try:
            tree = json.loads(text)
            if not has_version(tree, _VERSION):
                raise ValueError("expected an object of that version")
            kind = Kind(tree["kind"])
            batch = None
            if kind is Kind.COMMITTED:
                evidence = base64.b64decode(tree["evidence"], validate=True)
                Evidence.FromString(evidence)
                batch = CommittedBatch(str(tree["query"]), int(tree["batch"]), evidence)
            most, least = tree["txn"]
            return cls(
                kind,
                NativeTxn(int(most), int(least)),
                int(tree.get("task", -1)),
                str(tree.get("attempt", "")),
                batch,
                str(tree.get("error", "")),
            )
        except _NO_RECORD as error:
            raise StoreCorruptError(
                f"expected a record of version {_VERSION} in the control topic, found "
                f"{text[:80]!r}. Somebody else writes to the topic, or a later version of this "
                "package has. Nothing was written; give the sink another sinkId, or use that "
                "version"
            ) from error


@dataclass
class History:
    """What the records say that were read so far.

    Parameters
    ----------
    newest : NativeTxn or None
        The transaction that was begun last.
    last : CommittedBatch or None
        The batch that was committed last.
    """

    newest: NativeTxn | None = None
    last: CommittedBatch | None = None
    closed: bool = False
    """Whether the newest transaction takes no further writers."""
    writers: dict[int, str] = field(default_factory=dict)
    """The attempts that write for the newest transaction, by task: the first that asked."""
    errors: dict[str, str] = field(default_factory=dict)
    """What attempts that write failed with, as far as they could say."""
    last_txn: NativeTxn | None = None
    undecided: set[NativeTxn] = field(default_factory=set)
    """What was begun, and is not known to be decided."""
    committed: set[NativeTxn] = field(default_factory=set)

    def add(self, record: Record) -> None:
        """Take in the next record."""
        txn = record.txn
        if record.kind is Kind.BEGUN:
            self.newest, self.closed, self.writers = txn, False, {}
            self.undecided.add(txn)
        elif record.kind is Kind.COMMITTED:
            self.last, self.last_txn = record.batch, txn
            self.undecided.discard(txn)
            self.committed.add(txn)
        elif txn != self.newest:
            return  # of a driver that was fenced
        elif record.kind is Kind.WRITER:
            self.writers.setdefault(record.task, record.attempt)
        elif record.kind is Kind.FAILED:
            self.errors[record.attempt] = record.error
        elif record.kind is Kind.CLOSED:
            self.closed = True

    def require_newest(self, txn: NativeTxn) -> None:
        """Refuse to go on with a transaction after a newer one has begun.

        Raises
        ------
        FencedError
        """
        if self.newest != txn:
            raise FencedError(
                f"transaction {txn} was fenced by {self.newest}: another driver, or a later "
                "attempt at the batch, has taken the sink over. Nothing of this one becomes "
                "visible"
            )

    def require_writer(self, txn: NativeTxn, task: int, attempt: str) -> None:
        """Refuse an attempt at a task that is not the first, or comes too late.

        Raises
        ------
        FencedError, TransactionConflictError
        """
        self.require_newest(txn)
        first = self.writers.get(task)
        if self.closed or first != attempt:
            why = "it was closed" if self.closed else f"attempt {first} {self._did(first)}"
            raise TransactionConflictError(
                f"attempt {attempt} of task {task} may not write in transaction {txn}: {why}. "
                "Pulsar cannot take back a part of a transaction, so the rows would be there "
                "twice. The micro-batch is aborted unless the other attempt succeeds; start the "
                "query again, which writes the batch anew"
            )

    def _did(self, attempt: str | None) -> str:
        error = self.errors.get(attempt or "")
        if error is None:
            return "may have written its rows"
        return f"had taken its rows to write, and failed with [{error}]"

    def require_writers(self, txn: NativeTxn, succeeded: Mapping[int, str]) -> None:
        """Refuse a commit that would contain rows of attempts that did not succeed.

        Parameters
        ----------
        txn : NativeTxn
        succeeded : mapping of int to str
            Of the tasks that have written, the attempts that Spark took.

        Raises
        ------
        FencedError, TransactionConflictError
        """
        self.require_newest(txn)
        if self.writers != succeeded:
            tasks = sorted(
                task
                for task in self.writers.keys() | succeeded.keys()
                if self.writers.get(task) != succeeded.get(task)
            )
            raise TransactionConflictError(
                f"transaction {txn} has rows of attempts that did not succeed, of tasks {tasks}: "
                "Pulsar cannot take back a part of a transaction. It was aborted. Start the "
                "query again, which writes the batch anew"
            )


class Decision(Enum):
    """What is to be done with a micro-batch."""

    WRITE = "write"
    REPLAY = "replay"
    """It is committed: its rows are consumed, and nothing is written."""


def decide(
    sink: str, last: CommittedBatch | None, query: str, batch: int, rules: SinkRules
) -> Decision:
    """Tell what is to be done with a micro-batch, by what was committed last.

    Raises
    ------
    FencedError
        If a later batch is committed, or one of another query.
    BatchNotRecordedError
        If the batch before is not.
    """
    vouched = rules.first_batch == batch
    if last is None:
        if batch == _FIRST_BATCH or vouched or not rules.every_batch:
            return Decision.WRITE
        raise BatchNotRecordedError(_not_recorded(sink, "nothing", query, batch))
    if last.query != query:
        if batch == _FIRST_BATCH or vouched:
            return Decision.WRITE
        raise FencedError(
            f"sink {sink!r} was last written by another query ({last}), and batch {batch} of query "
            f"{query} is not its first. This query was taken over, or writes to the sink for the "
            "first time. Nothing was written; use another sinkId, or set "
            f"sinkFirstBatch={batch} if what is missing is known to you"
        )
    if batch == last.batch:
        return Decision.REPLAY
    if batch < last.batch:
        raise FencedError(
            f"sink {sink!r}: {last} is committed, and this is batch {batch} of it. The checkpoint "
            "was restored from an older state, or another driver goes on with the query. Nothing "
            "was written; go on with the checkpoint that the committed batch belongs to"
        )
    if batch > last.batch + 1 and rules.every_batch and not vouched:
        raise BatchNotRecordedError(_not_recorded(sink, str(last), query, batch))
    return Decision.WRITE


def _not_recorded(sink: str, last: str, query: str, batch: int) -> str:
    return (
        f"sink {sink!r}: expected batch {batch - 1} of query {query} to be committed in its "
        f"control topic, found {last}: Spark's checkpoint says that the batch is done. The sink "
        "was renamed or moved, or its control topic was deleted. Nothing was written; set "
        f"sinkFirstBatch={batch} if what is missing is known to you"
    )
