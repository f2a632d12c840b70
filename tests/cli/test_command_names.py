"""Messages on the command line name its commands, not functions of Python."""

from __future__ import annotations

import pytest

import pulsar_txn_spark
from pulsar_txn_spark.cli import main
from pulsar_txn_spark.cli.command_names import COMMANDS, in_commands


def test_an_error_names_the_commands_own_subcommands_and_no_calls_of_python(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pulsar-txn", "topic", "describe", "nobody", "-o", option])
    with pytest.raises(SystemExit):
        main.main()
    shown = capsys.readouterr().err
    assert "'pulsar-txn topic create'" in shown
    assert "pulsar_txn_spark." not in shown


def test_each_method_of_admin_is_named_by_a_command_that_there_is() -> None:
    subcommands = {"sweep --every 30 --metrics-port PORT"}
    for group in main.app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            subcommands.add(f"{group.name} {command.name}")
    assert set(COMMANDS.values()) <= subcommands
    methods = {name for name in vars(pulsar_txn_spark.Admin) if not name.startswith("_")}
    assert {*methods, "serve_metrics"} == set(COMMANDS)
    for text in ("Admin(options).delete_topic(t)", "Admin.delete_topic"):
        assert in_commands(f"see pulsar_txn_spark.{text}.") == ("see 'pulsar-txn topic delete'.")
