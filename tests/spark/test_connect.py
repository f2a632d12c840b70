"""Under Spark Connect a ``foreachBatch`` function tells its query and its attempt by itself."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.spark.checkpoint import LocalCheckpoint
from pulsar_txn_spark.spark.connect import attempt_of_connect, is_connect, query_of_connect


def session(*queries: str) -> Any:
    """Return a session with active queries."""
    active = [SimpleNamespace(id=query) for query in queries]
    return SimpleNamespace(streams=SimpleNamespace(active=active))


@pytest.fixture
def checkpoint(tmp_path: Path) -> LocalCheckpoint:
    (tmp_path / "metadata").write_text(json.dumps({"id": "own"}))
    checkpoint = LocalCheckpoint.at(str(tmp_path))
    assert checkpoint is not None
    return checkpoint


def test_a_client_of_connect_has_no_context() -> None:
    assert is_connect(session())
    assert not is_connect(SimpleNamespace(_sc=object()))
    assert not is_connect(None)


def test_the_checkpoint_names_the_query(checkpoint: LocalCheckpoint) -> None:
    # A session that Spark cloned for the function manages no query.
    assert query_of_connect(session(), checkpoint) == "own"
    assert query_of_connect(session("other", "own"), checkpoint) == "own"


def test_the_only_query_of_the_session_runs_the_function() -> None:
    assert query_of_connect(session("only"), None) == "only"


@pytest.mark.parametrize("queries", [(), ("first", "second")])
def test_a_query_that_cannot_be_told_is_refused(queries: tuple[str, ...]) -> None:
    with pytest.raises(OptionError, match=f"{len(queries)} queries.*checkpointLocation"):
        query_of_connect(session(*queries), None)


def test_the_checkpoint_of_another_query_is_refused(checkpoint: LocalCheckpoint) -> None:
    with pytest.raises(OptionError, match=r"query own, which does not run.*first or second"):
        query_of_connect(session("first", "second"), checkpoint)


def test_all_writes_of_a_process_in_a_batch_are_one_attempt() -> None:
    with ThreadPoolExecutor(2) as pool:
        names = set(pool.map(attempt_of_connect, [7, 7]))
    assert names == {attempt_of_connect(7)}
    assert attempt_of_connect(8) not in names
    (name,) = names
    assert "|" not in name, "an owner is <process>|<attempt>"


def test_another_process_is_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    own = attempt_of_connect(7)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a process that is forked
    forked = attempt_of_connect(7)
    assert forked != own
    monkeypatch.undo()
    assert attempt_of_connect(7) == own
