"""``pulsar-txn txn``: transactions are listed, shown and aborted."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pulsar_txn_spark.cli import main
from pulsar_txn_spark.engine.components import Components
from pulsar_txn_spark.errors import TransactionDomainError
from pulsar_txn_spark.store.metadata_pb2 import Outcome
from tests.support.command_line import call, open_txn


def test_an_open_transaction_is_listed_shown_and_aborted(option: str, run: Components) -> None:
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


def test_an_administrator_who_is_too_late_is_told_so(
    option: str,
    run: Components,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    txn = run.coordinator.new_txn("nonce", timeout_ms=60_000)
    run.coordinator.commit(txn, "nonce", Outcome())
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "txn", "abort", str(txn), "-o", option])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    assert exit_.value.code == 1
    assert "was committed before" in capsys.readouterr().err
    lost = open_txn(run)
    for _ in range(2):
        (row,) = call("txn", "abort", str(lost), "-o", option)
        assert row["state"] == "ABORTED"


def test_a_transaction_that_only_pulsar_knows_is_one_of_the_other_kind(
    option: str, run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run.topics, "pulsar_knows", lambda most, least: (most, least) == (0, 77))
    result = CliRunner().invoke(main.app, ["txn", "abort", "(0,77)", "-o", option])
    assert isinstance(result.exception, TransactionDomainError)
    assert "leastSigBits=77" in str(result.exception)
    own = open_txn(run)
    assert call("txn", "abort", str(own), "-o", option)[0]["state"] == "ABORTED"


def test_of_very_many_transactions_the_first_and_the_oldest_are_listed(
    option: str, run: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_txn_spark.cli.transactions._LISTED", 2)
    count = run.store.identity.coordinators
    begun = [
        run.coordinator.new_txn(f"n{n}", timeout_ms=90_000 - 1_000 * n) for n in range(5 * count)
    ]
    own = [txn for txn in begun if txn.tc == begun[0].tc]
    assert len(own) > 3, "so that the oldest, which has the longest lease, is none of the first"
    result = CliRunner().invoke(main.app, ["txn", "list", "--json", "-o", option])
    listed = {row["transaction"] for row in json.loads(result.stdout)}
    assert {str(txn) for txn in own} & listed == {str(txn) for txn in (own[0], *own[-2:])}
    assert f"coordinator {own[0].tc} has more open transactions: 2 are listed" in result.stderr
    for txn in begun:
        run.coordinator.commit(txn, f"n{begun.index(txn)}", Outcome())
    result = CliRunner().invoke(main.app, ["txn", "list", "--json", "--decided", "-o", option])
    assert f"coordinator {own[0].tc} has more decided transactions" in result.stderr
    assert "open" not in result.stderr
