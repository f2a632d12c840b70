"""The command ``pulsar-txn``: its tree of subcommands, and how an error ends it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import pulsar_txn_spark
from pulsar_txn_spark.cli import (
    doctor,
    job,
    op_log,
    server,
    subscriptions,
    sweep,
    topic_settings,
    topics,
    transactions,
)
from pulsar_txn_spark.cli.command_names import in_commands
from pulsar_txn_spark.cli.commands import Commands
from pulsar_txn_spark.cli.output import error_text, show_error
from pulsar_txn_spark.cli.standard_streams import OutputError, standard_streams
from pulsar_txn_spark.errors import PulsarTxnError

# Python's own traceback is short, and shows no local variables: they may hold a password.
app = Commands(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
    help="Topics, transactions, subscriptions, jobs, sweeps, a check-up, the embedded server.",
)

_GROUPS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {
    "topic": (
        "Segmented topics.",
        {
            "create": topics.topic_create,
            "list": topics.topic_list,
            "describe": topics.topic_describe,
            "split": topics.topic_split,
            "merge": topics.topic_merge,
            "seal": topics.topic_seal,
            "gate": topics.topic_gate,
            "adopt": topics.topic_adopt,
            "delete": topics.topic_delete,
            "properties": topic_settings.topic_properties,
            "set-property": topic_settings.topic_set_property,
            "remove-property": topic_settings.topic_remove_property,
            "retention": topic_settings.topic_retention,
            "scaling": topic_settings.topic_scaling,
        },
    ),
    "txn": (
        "Transactions.",
        {
            "list": transactions.txn_list,
            "show": transactions.txn_show,
            "abort": transactions.txn_abort,
        },
    ),
    "op-log": (
        "Batching of operation records (PIP-160).",
        {"show": op_log.op_log_show, "set": op_log.op_log_set},
    ),
    "subscription": (
        "Subscriptions and their cursors.",
        {
            "list": subscriptions.subscription_list,
            "describe": subscriptions.subscription_describe,
            "reset": subscriptions.subscription_reset,
            "delete": subscriptions.subscription_delete,
        },
    ),
    "job": (
        "Jobs from one file: sources, SQL, sinks.",
        {
            "run": job.run,
            "check": job.check,
            "explain": job.explain,
            "script": job.script,
        },
    ),
    "server": (
        "The embedded server.",
        {
            "start": server.start,
            "stop": server.stop,
            "status": server.status,
        },
    ),
}

for _name, (_help, _functions) in _GROUPS.items():
    _group = Commands(no_args_is_help=True, help=_help)
    for _verb, _function in _functions.items():
        _group.command(_verb)(_function)
    app.add_typer(_group, name=_name)
app.command("sweep")(sweep.sweep)
app.command("doctor")(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pulsar-txn {pulsar_txn_spark.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main(command: Sequence[str] = ()) -> None:
    """Run the command; our own errors are on standard error, with exit code 1.

    Commands have further exit codes of their own; 2 is a wrong argument.

    Parameters
    ----------
    command : sequence of str
        Stands in front of the arguments of the process.
    """
    try:
        with standard_streams():
            app([*command, *sys.argv[1:]])
    except PulsarTxnError as error:
        text = in_commands(error_text(error))
    except OutputError as error:
        text = str(error)
    else:
        return
    show_error(text)
    raise SystemExit(1)
