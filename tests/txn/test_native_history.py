"""What the records of a control topic say, and what a driver may do by them."""

from __future__ import annotations

import json

import pytest

from pulsar_txn_spark.errors import (
    BatchNotRecordedError,
    FencedError,
    PulsarTxnError,
    StoreCorruptError,
    TransactionConflictError,
)
from pulsar_txn_spark.store.metadata_pb2 import Evidence
from pulsar_txn_spark.txn.batch import SinkRules
from pulsar_txn_spark.txn.native_history import (
    CommittedBatch,
    Decision,
    History,
    Kind,
    NativeTxn,
    Record,
    decide,
)

A, B = NativeTxn(1, 10), NativeTxn(1, 11)
BATCH = CommittedBatch("q", 7, Evidence(planned=b"\x00digest", rows=3).SerializeToString())


def history(*records: Record) -> History:
    found = History()
    for record in records:
        found.add(Record.decode(record.encode()))
    return found


def test_records_are_read_as_they_were_written() -> None:
    for record in (
        Record(Kind.BEGUN, A),
        Record(Kind.WRITER, A, 3, "5-abc"),
        Record(Kind.FAILED, A, 3, "5-abc", error="OSError: gone"),
        Record(Kind.CLOSED, A),
        Record(Kind.BARRIER, A),
        Record(Kind.COMMITTED, A, batch=BATCH),
    ):
        assert Record.decode(record.encode()) == record
    assert BATCH.decoded.rows == 3


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"v": 2, "kind": "begun", "txn": [1, 2]}',
        b'{"v": 1, "kind": "other", "txn": [1, 2]}',
        b'{"v": 1, "kind": "begun", "txn": [1]}',
        b'{"v": true, "kind": "begun", "txn": [1, 2]}',
        b'{"v": 1, "kind": "begun", "txn": [1e400, 2]}',
        b"[" * 100_000,
        b'{"v": 1, "kind": "committed", "txn": [1, 2], "query": "q", "batch": 1, "evidence": "?"}',
        json.dumps(
            {
                "v": 1,
                "kind": "committed",
                "txn": [1, 2],
                "query": "q",
                "batch": 1,
                "evidence": "/w==",
            }
        ).encode(),
    ],
)
def test_what_is_no_record_is_refused(text: bytes) -> None:
    with pytest.raises(StoreCorruptError, match="Somebody else writes to the topic"):
        Record.decode(text)


def test_who_begins_last_fences_all_others() -> None:
    found = history(Record(Kind.BEGUN, A), Record(Kind.BEGUN, B), Record(Kind.CLOSED, A))
    found.require_newest(B)
    assert not found.closed
    assert found.undecided == {A, B}
    with pytest.raises(FencedError, match="taken the sink over"):
        found.require_newest(A)
    with pytest.raises(FencedError):
        found.require_writers(A, {})
    with pytest.raises(FencedError):
        found.require_writer(A, 0, "a")


def test_the_first_attempt_that_asks_writes_a_task() -> None:
    found = history(
        Record(Kind.BEGUN, A),
        Record(Kind.WRITER, B, 0, "stranger"),
        Record(Kind.WRITER, A, 0, "first"),
        Record(Kind.WRITER, A, 0, "second"),
        Record(Kind.WRITER, A, 1, "other"),
    )
    found.require_writer(A, 0, "first")
    found.require_writer(A, 1, "other")
    with pytest.raises(TransactionConflictError, match="attempt first may have written"):
        found.require_writer(A, 0, "second")
    with pytest.raises(TransactionConflictError):
        found.require_writer(A, 2, "unknown")
    found.require_writers(A, {0: "first", 1: "other"})


def test_a_refused_attempt_says_what_the_one_before_failed_with() -> None:
    found = history(
        Record(Kind.BEGUN, A),
        Record(Kind.WRITER, A, 0, "first"),
        Record(Kind.FAILED, B, 0, "first", error="of a driver that was fenced"),
        Record(Kind.FAILED, A, 0, "first", error="OSError: " + "x" * 2000),
        Record(Kind.WRITER, A, 0, "second"),
    )
    with pytest.raises(TransactionConflictError, match=r"failed with .OSError: x{991}]"):
        found.require_writer(A, 0, "second")


@pytest.mark.parametrize(
    "succeeded",
    [
        {},
        {0: "second"},
        {0: "first", 1: "unknown"},
    ],
)
def test_a_commit_needs_exactly_the_attempts_that_wrote(succeeded: dict[int, str]) -> None:
    found = history(Record(Kind.BEGUN, A), Record(Kind.WRITER, A, 0, "first"))
    with pytest.raises(TransactionConflictError, match="attempts that did not succeed"):
        found.require_writers(A, succeeded)


def test_nobody_writes_once_the_driver_has_closed_the_transaction() -> None:
    found = history(
        Record(Kind.BEGUN, A), Record(Kind.CLOSED, A), Record(Kind.WRITER, A, 0, "late")
    )
    with pytest.raises(TransactionConflictError):
        found.require_writer(A, 0, "late")


def test_the_next_transaction_starts_without_writers() -> None:
    found = history(
        Record(Kind.BEGUN, A),
        Record(Kind.WRITER, A, 0, "first"),
        Record(Kind.CLOSED, A),
        Record(Kind.COMMITTED, A, batch=BATCH),
        Record(Kind.BEGUN, B),
    )
    assert found.last == BATCH
    assert found.committed == {A}
    assert found.undecided == {B}
    assert found.writers == {}
    assert not found.closed


STRICT = SinkRules()


@pytest.mark.parametrize(
    "last, query, batch, rules, expected",
    [
        (None, "q", 0, STRICT, Decision.WRITE),
        (None, "q", 3, STRICT, BatchNotRecordedError),
        (None, "q", 3, SinkRules(first_batch=3), Decision.WRITE),
        (None, "q", 3, SinkRules(first_batch=2), BatchNotRecordedError),
        (None, "q", 3, SinkRules(every_batch=False), Decision.WRITE),
        (BATCH, "q", 7, STRICT, Decision.REPLAY),
        (BATCH, "q", 7, SinkRules(first_batch=7), Decision.REPLAY),
        (BATCH, "q", 8, STRICT, Decision.WRITE),
        (BATCH, "q", 9, STRICT, BatchNotRecordedError),
        (BATCH, "q", 9, SinkRules(first_batch=9), Decision.WRITE),
        (BATCH, "q", 9, SinkRules(every_batch=False), Decision.WRITE),
        (BATCH, "q", 6, STRICT, FencedError),
        (BATCH, "q", 0, SinkRules(first_batch=0), FencedError),
        (BATCH, "other", 0, STRICT, Decision.WRITE),
        (BATCH, "other", 7, STRICT, FencedError),
        (BATCH, "other", 7, SinkRules(first_batch=7), Decision.WRITE),
        (BATCH, "other", 7, SinkRules(every_batch=False), FencedError),
    ],
)
def test_a_batch_is_written_replayed_or_refused_by_what_was_committed_last(
    last: CommittedBatch | None,
    query: str,
    batch: int,
    rules: SinkRules,
    expected: Decision | type[PulsarTxnError],
) -> None:
    if isinstance(expected, Decision):
        assert decide("sink", last, query, batch, rules) is expected
        return
    with pytest.raises(expected, match="sink 'sink'"):
        decide("sink", last, query, batch, rules)
