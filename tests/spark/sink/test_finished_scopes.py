"""What a process remembers of the scopes that it has finished."""

from __future__ import annotations

import pytest

from pulsar_txn_spark.errors import TransactionConflictError
from pulsar_txn_spark.spark.sink import finished_scopes
from pulsar_txn_spark.spark.sink.finished_scopes import FinishedScopes
from pulsar_txn_spark.txn.batch import BatchKey

KEY = BatchKey("sink", "query", 3)


def test_only_the_same_attempt_at_the_same_batch_of_a_sink_and_query_is_refused() -> None:
    finished = FinishedScopes()
    finished.note(KEY, "attempt")
    with pytest.raises(TransactionConflictError, match="written already in batch 3"):
        finished.require_first(KEY, "attempt")
    finished.require_first(KEY, "another")
    for key in (
        BatchKey("other", "query", 3),
        BatchKey("sink", "other", 3),
        BatchKey("sink", "query", 4),
    ):
        finished.require_first(key, "attempt")


def test_nothing_is_refused_where_the_attempt_is_not_known() -> None:
    finished = FinishedScopes()
    finished.note(KEY, "")
    finished.require_first(KEY, "")


def test_no_more_sinks_are_remembered_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished_scopes, "_SINKS_NOTED", 2)
    finished = FinishedScopes()
    for name in ("first", "second", "third"):
        finished.note(BatchKey(name, "query", 0), "attempt")
    finished.require_first(BatchKey("first", "query", 0), "attempt")
    for name in ("second", "third"):
        with pytest.raises(TransactionConflictError):
            finished.require_first(BatchKey(name, "query", 0), "attempt")
