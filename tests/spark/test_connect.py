"""Under Spark Connect a ``foreachBatch`` function tells its query and its attempt by itself."""

from __future__ import annotations

import json
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_txn_spark.errors import OptionError
from pulsar_txn_spark.spark import connect
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
    name = attempt_of_connect(7)
    assert attempt_of_connect(7) == name
    assert attempt_of_connect(8) != name
    assert "|" not in name, "an owner is <process>|<attempt>"


def test_threads_that_write_first_at_once_are_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Barrier(2)

    def draw(size: int) -> str:
        # Neither thread has a name before both have drawn one.
        return f"{both.wait(timeout=30)}-{size}"

    monkeypatch.setattr(connect, "_names", {})
    monkeypatch.setattr(secrets, "token_hex", draw)
    with ThreadPoolExecutor(2) as pool:
        names = list(pool.map(attempt_of_connect, [7, 7]))
    assert names[0] == names[1]


def test_another_process_is_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    own = attempt_of_connect(7)
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a process that is forked
    forked = attempt_of_connect(7)
    assert forked != own
    monkeypatch.undo()
    assert attempt_of_connect(7) == own
