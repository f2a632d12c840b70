"""``pulsar-txn server``: starts and stops the embedded server, and shows its state."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pulsar_txn_spark.cli.commands import AsJson, OptionPairs, options_of
from pulsar_txn_spark.cli.output import readable_bytes, show
from pulsar_txn_spark.errors import OptionError, StoreUnavailableError
from pulsar_txn_spark.options import Options, Use
from pulsar_txn_spark.store.redis.server import ensure_server, stop_server
from pulsar_txn_spark.store.redis.server_status import ServerState, ServerStatus, server_status

STOPPED_EXIT_CODE = 3
"""Of ``status``, as systemctl and the Linux Standard Base have it: the server is not running."""

UNUSABLE_EXIT_CODE = 4
"""Of ``status``: there is a server, but it cannot be used (now)."""

PathOption = Annotated[
    Path | None,
    typer.Option(
        "--path",
        metavar="FOLDER",
        readable=False,  # what cannot be read is an answer of the commands
        help="Folder of the server's data, as store.path. The user's default folder otherwise.",
    ),
]


def start(path: PathOption = None, option: OptionPairs = [], as_json: AsJson = False) -> None:
    """Start the embedded server of a folder, unless it runs.

    It runs until it is stopped: it outlives this command, and every query.
    """
    folder = _folder(path, option)
    before = _own(folder)
    ensure_server(folder)
    done = "already running" if before.state is ServerState.RUNNING else "started"
    _show_status(server_status(folder), as_json=as_json, done=done)


def stop(path: PathOption = None, option: OptionPairs = [], as_json: AsJson = False) -> None:
    """Stop the embedded server of a folder. Its data stays.

    Stop the queries first: whatever uses the folder starts the server again. A server that is not
    running is no error.
    """
    folder = _folder(path, option)
    _own(folder)
    done = "stopped" if stop_server(folder) else "was not running"
    _show_status(server_status(folder), as_json=as_json, done=done)


def status(path: PathOption = None, option: OptionPairs = [], as_json: AsJson = False) -> None:
    """Show the embedded server of a folder: its pid, version, memory, persistence, connections.

    The exit code is 0 if it runs, 3 if it is stopped, and 4 if it cannot be used. Then it loads its
    data, it does not answer, or it was not started for this folder.
    """
    current = server_status(_folder(path, option))
    _show_status(current, as_json=as_json)
    if current.state is ServerState.STOPPED:
        raise typer.Exit(STOPPED_EXIT_CODE)
    if current.state is not ServerState.RUNNING:
        raise typer.Exit(UNUSABLE_EXIT_CODE)


def _folder(path: Path | None, option: list[str]) -> str | None:
    pairs = option if path is None else [*option, f"store.path={path}"]
    config = Options(options_of(pairs), Use.CONNECT).store
    if config.url is not None:
        raise OptionError(
            "the option 'store.url' is set, and 'pulsar-txn server' manages embedded servers only. "
            "Name the folder of one with --path, or use the tools of that Redis"
        )
    return config.path


def _own(folder: str | None) -> ServerStatus:
    """Return the status of a folder's server, and refuse one that was not started for it.

    Raises
    ------
    StoreUnavailableError
    """
    current = server_status(folder)
    if current.state is ServerState.FOREIGN:
        raise StoreUnavailableError(
            f"a server listens at {current.socket} that was not started for this folder: nobody "
            "holds the folder's server.lock. Stop it with the tool that started it, or choose "
            "another folder with --path"
        )
    return current


def _show_status(current: ServerStatus, *, as_json: bool, done: str | None = None) -> None:
    row: dict[str, Any] = asdict(current)
    if done is not None:
        row = {"done": done, **row}
    if as_json:
        typer.echo(json.dumps(row, indent=2))
        return
    for name in ("memory_bytes", "aof_bytes"):
        row[name.removesuffix("_bytes")] = readable_bytes(row.pop(name))
    pairs = [
        {"": name.replace("_", " "), "server": value}
        for name, value in row.items()
        if value is not None
    ]
    show(pairs, as_json=False, title="", columns=["", "server"], whole=[""])
