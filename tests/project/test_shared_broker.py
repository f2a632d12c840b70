"""The processes that share the tests out share one broker, which ends with the test run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.shared_broker import shared_broker
from pulsar_txn_spark.testing.pulsar_server import (
    ADMIN_URL_VARIABLE,
    SERVICE_URL_VARIABLE,
    Broker,
    NoBrokerError,
)

END_S = 60.0

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Name a broker by the environment: it takes no time to start, and is not asked."""
    broker = Broker("pulsar://127.0.0.1:1", "http://127.0.0.1:2", "environment")
    monkeypatch.setenv(SERVICE_URL_VARIABLE, broker.service_url)
    monkeypatch.setenv(ADMIN_URL_VARIABLE, broker.admin_url)
    return broker


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """Stand for the test run: a process that ends when its input does."""
    command = [sys.executable, "-I", "-S", "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process


def test_all_that_ask_get_the_same_broker_and_it_ends_with_the_test_run(
    tmp_path: Path, named: Broker, owner: subprocess.Popen[bytes]
) -> None:
    brokers: list[Broker] = []
    pids: list[int] = []

    def ask() -> None:
        brokers.append(shared_broker(tmp_path, owner.pid))
        pids.append(int((tmp_path / "broker.pid").read_text()))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert brokers == [named] * 3
    assert len(set(pids)) == 1
    os.kill(pids[0], 0)  # it is there
    assert owner.stdin is not None
    owner.stdin.close()
    deadline = time.monotonic() + END_S
    while os.waitpid(pids[0], os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline, "the broker's process outlives the test run"
        time.sleep(0.01)


def test_a_broker_that_does_not_start_is_an_error_with_the_reason(
    tmp_path: Path,
    named: Broker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ADMIN_URL_VARIABLE)
    with pytest.raises(RuntimeError, match="expected both of"):
        shared_broker(tmp_path, os.getpid())


def test_who_asks_when_there_is_none_learns_why(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text(json.dumps("no 'mvn' on the PATH"))
    with pytest.raises(NoBrokerError, match="no 'mvn'"):
        shared_broker(tmp_path, os.getpid())
