"""Tables and JSON on standard output, how values look in a table, and errors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pulsar_txn_spark.backports import UTC
from pulsar_txn_spark.errors import PulsarTxnError
from pulsar_txn_spark.position import EARLIEST


def show(
    rows: Sequence[dict[str, Any]],
    *,
    as_json: bool,
    title: str,
    columns: Sequence[str],
    whole: Sequence[str] = (),
) -> None:
    """Print rows on standard output, as a table or as JSON.

    Parameters
    ----------
    rows : sequence of dict
        JSON has all their keys.
    as_json : bool
    title : str
        One line above the table; empty = none.
    columns : sequence of str
        The keys that the table shows.
    whole : sequence of str
        The columns whose cells are not broken into lines.
    """
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    if title:  # Table(title=...) would break it at the width of the table
        typer.echo(title)
    table = Table()
    for column in columns:
        table.add_column(_HEADERS.get(column, column), overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(Text(_cell(row[column])) for column in columns))
    Console().print(table)


def show_error(text: str) -> None:
    """Print an error on standard error, as it stands."""
    console = Console(stderr=True, emoji=False)
    console.print(f"error: {text}", style="red", markup=False, soft_wrap=True)


def error_text(error: PulsarTxnError) -> str:
    """Return the message of an error, and its notes."""
    return ". ".join([str(error), *getattr(error, "__notes__", [])])


_HEADERS = {"beyond retention to": "expired to", "last confirmed": "end"}
"""Shorter names of columns, so that a table fits into 80 columns."""


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    if value == str(EARLIEST):
        return "start"
    return "" if value is None else str(value)


_KIB = 1024


def readable_bytes(number: int | None) -> str | None:
    """Return a number of bytes with its unit, such as ``1.5 GiB``."""
    if number is None or number < _KIB:
        return None if number is None else f"{number} B"
    size = float(number)
    for unit in ("KiB", "MiB", "GiB"):
        size /= _KIB
        if size < _KIB:
            return f"{size:.1f} {unit}"
    return f"{size / _KIB:.1f} TiB"


def iso_time(ms: int | None) -> str | None:
    """Return milliseconds since 1970 in ISO 8601, in UTC."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def short_time(time: str | None) -> str | None:
    """Return a time in ISO 8601 without its fraction and zone, for a table."""
    return time and time[:19].replace("T", " ")
