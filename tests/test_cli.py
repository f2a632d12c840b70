"""The command line does what it says, in a table or in JSON, and its errors are one line."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from pulsar_txn_spark import cli
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.position import EARLIEST
from pulsar_txn_spark.runtime import Runtime, runtime
from pulsar_txn_spark.store.protocol import OpLogSettings, TxnId


@pytest.fixture
def option(redis_path: str, redis_client: redis.Redis) -> str:
    return f"store.path={redis_path}"


@pytest.fixture
def topic() -> str:
    return f"topic://public/default/{secrets.token_hex(4)}"


@pytest.fixture
def run(redis_path: str, redis_client: redis.Redis) -> Runtime:
    return runtime(Options({"store.path": redis_path}, Use.CONNECT))


def call(*args: str) -> Any:
    result = CliRunner().invoke(cli.app, [*args, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def open_txn(run: Runtime) -> TxnId:
    return run.coordinator.new_txn(secrets.token_hex(4), timeout_ms=60_000, sink="a-sink")


def test_a_topic_is_created_described_listed_and_deleted(option: str, topic: str) -> None:
    created = call("topic", "create", topic, "--segments", "3", "-o", option)
    assert [row["hashes"] for row in created] == ["0000-5554", "5555-aaa9", "aaaa-ffff"]
    assert call("topic", "describe", topic, "-o", option) == created
    assert {"topic": topic} in call("topic", "list", "-o", option)
    result = CliRunner().invoke(cli.app, ["topic", "delete", topic, "--yes", "-o", option])
    assert result.exit_code == 0
    assert {"topic": topic} not in call("topic", "list", "-o", option)


def test_an_open_transaction_is_listed_shown_and_aborted(option: str, run: Runtime) -> None:
    txn = open_txn(run)
    listed = {row["transaction"]: row for row in call("txn", "list", "-o", option)}
    assert listed[str(txn)]["sink"] == "a-sink"
    assert call("txn", "abort", str(txn), "-o", option) == [
        {"transaction": str(txn), "state": "ABORTED"}
    ]
    shown = call("txn", "show", str(txn), "-o", option)
    assert (shown["state"], shown["cause"]) == ("ABORTED", "an administrator aborted it")
    assert str(txn) not in {r["transaction"] for r in call("txn", "list", "-o", option)}
    assert str(txn) in {r["transaction"] for r in call("txn", "list", "--decided", "-o", option)}


def test_a_subscription_is_listed_described_and_reset(
    option: str, topic: str, run: Runtime
) -> None:
    (segment,) = call("topic", "create", topic, "--segments", "1", "-o", option)
    run.store.claim_cursor(segment["segment"], "sub", "a-query", 1, EARLIEST)
    assert call("subscription", "list", topic, "-o", option) == [{"subscription": "sub"}]
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert (row["query"], row["cursor"], row["backlog messages"]) == ("a-query", "-1:-1", 0)
    args = ["subscription", "reset", topic, "sub", "--to", "latest", "-o", option]
    assert CliRunner().invoke(cli.app, args, catch_exceptions=False).exit_code == 0
    (row,) = call("subscription", "describe", topic, "sub", "-o", option)
    assert (row["query"], row["generation"]) == ("", 2)


def test_properties_are_set_and_removed_but_for_the_systems_own(option: str, topic: str) -> None:
    call("topic", "create", topic, "-o", option)
    assert call("topic", "set-property", topic, "team", "a", "-o", option) == [
        {"property": "__contains_txn_messages", "value": "false"},
        {"property": "team", "value": "a"},
    ]
    call("topic", "remove-property", topic, "team", "-o", option)
    assert call("topic", "properties", topic, "-o", option) == [
        {"property": "__contains_txn_messages", "value": "false"}
    ]


def test_the_gathering_of_operation_records_is_shown_and_changed(option: str, run: Runtime) -> None:
    shown = call("op-log", "show", "-o", option)
    assert [row["coordinator"] for row in shown] == list(range(run.store.identity.coordinators))
    assert {row["enabled"] for row in shown} == {False}
    args = ("--on", "--max-records", "100", "--max-delay-ms", "2", "-o", option)
    for row in call("op-log", "set", *args):
        assert row["enabled"]
        assert (row["max_records"], row["max_bytes"], row["max_delay_ms"]) == (100, 1 << 22, 2)
    assert run.store.read_op_log(3) == OpLogSettings(True, 100, 1 << 22, 2)
    assert not any(row["enabled"] for row in call("op-log", "set", "--off", "-o", option))


def test_a_sweep_collects_what_is_decided(option: str, run: Runtime) -> None:
    txn = open_txn(run)
    call("txn", "abort", str(txn), "-o", option)
    report = call("sweep", "--retention-ms", "0", "-o", option)
    assert report["headers_removed"] >= 1
    assert run.store.read_txn(txn) is None


@pytest.mark.parametrize(
    "args, expected",
    [
        (["topic", "describe", "not-there"], "topic://public/default/not-there does not exist"),
        (["topic", "create", "persistent://a/b/c"], "expected topic://"),
        (["topic", "create", "x", "--segments", "0"], "expected 1 to 1024 segments, found 0"),
        (["txn", "show", "(0,99999999)"], "has no header"),
        (["topic", "set-property", "x", "__contains_txn_messages", "false"], "cannot be set"),
        (["topic", "remove-property", "x", "__contains_txn_messages"], "cannot be removed"),
        (["op-log", "set", "--on", "--max-records", "0"], "expected 1 to 4096, found 0"),
        (["txn", "show", "nonsense"], "expected a transaction as '(tc,counter)'"),
        (["txn", "show", "(77,1)"], "there is no TC 77"),
        (["topic", "list", "-o", "nonsense"], "expected -o KEY=VALUE"),
        (["topic", "list", "-o", "store.pth=x"], "did you mean 'store.path'"),
    ],
)
def test_an_error_is_one_line_on_standard_error(
    option: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["pulsar-txn", *args, "-o", option])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    printed = capsys.readouterr()
    assert exit_.value.code == 1
    assert printed.err.startswith("error: ")
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_tables_show_the_same_for_people(option: str, topic: str) -> None:
    call("topic", "create", topic, "-o", option)
    result = CliRunner().invoke(cli.app, ["topic", "describe", topic, "-o", option])
    assert result.exit_code == 0
    assert topic in result.output
    assert "active" in result.output
