"""A broker whose bookie never stays registered is started again before anybody uses it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from pulsar_txn_spark.testing import pulsar_server
from pulsar_txn_spark.testing.pulsar_server import PulsarServer

BOOKIE = "ResourceLockImpl Lock on resource /ledgers/available/127.0.0.1:1 was invalidated."
BUNDLE = "ResourceLockImpl Lock on resource /namespace/public/default/0x0_0x1 was invalidated."
SERVER = """
import pathlib, signal, sys
starts = pathlib.Path("starts")
number = len(starts.read_text()) if starts.exists() else 0
print(sys.argv[1:][number], flush=True)
starts.write_text("x" * (number + 1))
signal.pause()
"""


@pytest.mark.parametrize(
    "logged, starts",
    [(["fine"], 1), ([BUNDLE], 1), ([BOOKIE, "fine"], 2), ([BOOKIE, BOOKIE, BUNDLE], 3)],
)
def test_a_broker_is_killed_until_its_bookie_stays_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[str], starts: int
) -> None:
    server: Any = PulsarServer(startup_timeout_s=20)
    server._folder, server._ports = tmp_path, [1, 2, 3]
    server._command = [sys.executable, "-c", SERVER, *logged]
    started = tmp_path / "starts"

    def prepare(*_: object) -> None:
        if not started.exists() or len(started.read_text()) < len(logged):
            raise OSError("refused")

    monkeypatch.setattr(pulsar_server, "prepare", prepare)
    monkeypatch.setattr(pulsar_server, "POLL_SECONDS", 0.01)
    server.resume()
    assert len(started.read_text()) == starts
    server.stop()
