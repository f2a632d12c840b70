"""``register`` gives Spark's processes the files of --py-files, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import SparkFiles
from pyspark.sql import SparkSession

import pulsar_txn_spark
from pulsar_txn_spark.spark import registration
from pulsar_txn_spark.spark.datasource import PulsarTxnDataSource


class Session:
    """Keeps what a registration was given."""

    def __init__(self, environment: dict[str, str], error: Exception | None = None) -> None:
        self.sparkContext = SimpleNamespace(environment=environment)
        self.dataSource = self
        self.registered: list[tuple[Any, str | None]] = []
        self._error = error

    def register(self, source: Any) -> None:
        self.registered.append((source, self.sparkContext.environment.get("PYTHONPATH")))
        if self._error is not None:
            raise self._error


def registered(session: Session) -> str | None:
    """Register, and return the path that the format's processes will have."""
    pulsar_txn_spark.register(cast("SparkSession", session))
    [(source, path)] = session.registered
    assert source is PulsarTxnDataSource
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put two files of --py-files on the path, between others."""
    root = tmp_path / "files"
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(root))
    own = [str(root / "package.zip"), str(root)]
    monkeypatch.setattr(sys, "path", ["", own[0], "/elsewhere", own[1], f"{root}-of-another"])
    return own


def test_the_processes_get_what_came_with_py_files_and_nothing_else(files: list[str]) -> None:
    session = Session({"A": "b"})
    assert registered(session) == os.pathsep.join(files)
    assert session.sparkContext.environment == {"A": "b"}


def test_what_the_user_has_set_stays(files: list[str]) -> None:
    session = Session({"PYTHONPATH": "/mine"})
    assert registered(session) == os.pathsep.join([*files, "/mine"])
    assert session.sparkContext.environment == {"PYTHONPATH": "/mine"}


def test_a_registration_that_fails_leaves_nothing_behind(files: list[str]) -> None:
    session = Session({}, RuntimeError("no"))
    with pytest.raises(RuntimeError, match="no"):
        registered(session)
    assert session.sparkContext.environment == {}


def test_a_remote_session_takes_what_is_installed_on_its_server(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "is_remote", lambda: True)
    session = Session({})
    assert registered(session) is None


def test_threads_that_register_at_once_do_not_see_each_others_path(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    second, may_end = threading.Event(), threading.Event()
    session = Session({})
    register = session.register

    def slow(source: Any) -> None:
        register(source)
        second.set()
        may_end.wait(timeout=0.5)  # until the other one is here as well, if it can be

    monkeypatch.setattr(session, "register", slow)

    def register_second() -> None:
        second.wait(timeout=30)
        pulsar_txn_spark.register(cast("SparkSession", session))
        may_end.set()

    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(register_second)
        pulsar_txn_spark.register(cast("SparkSession", session))
        other.result()
    assert [path for _, path in session.registered] == [os.pathsep.join(files)] * 2
    assert session.sparkContext.environment == {}
