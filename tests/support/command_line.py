"""Runs ``pulsar-txn`` in this process, with JSON or on a screen of 80 columns."""

from __future__ import annotations

import json
import secrets
from typing import Any

from typer.testing import CliRunner

from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.store.records import TxnId


def call(*args: str) -> Any:
    result = CliRunner().invoke(main.app, [*args, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def listed(option: str) -> set[str]:
    return {row["topic"] for row in call("topic", "list", "-o", option)}


def open_txn(run: Components) -> TxnId:
    return run.coordinator.new_txn(secrets.token_hex(4), timeout_ms=60_000, sink="a-sink")


def screen(*args: str) -> list[str]:
    result = CliRunner().invoke(main.app, list(args), env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lines: list[str] = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    return lines
