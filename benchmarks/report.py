"""The table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.measure import Result
from benchmarks.micro_batch import MILLISECONDS

EXACT = 10  # below it, decimals matter


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= EXACT else f"{value:,.2f}"


def print_results(console: Console, header: str, results: Sequence[Result]) -> None:
    """Print every case and side, with spread, first run, ratios and differences."""
    title = Text(f"{header}\nmedian of the runs after the first one")
    table = Table(title=title, title_justify="left")
    for heading in ("case", "side", "unit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median", "lowest", "highest", "first run"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("compared", no_wrap=True)
    previous = ("", "")
    for result in results:
        if previous[0] and result.case != previous[0]:
            table.add_section()
        ratio = _compared(result)
        if (result.case, result.side) == previous:
            table.add_row("", "", "", "", "", "", "", ratio)
            continue
        table.add_row(
            "" if result.case == previous[0] else result.case,
            result.side,
            result.unit,
            *(_figure(x) for x in (result.median, min(result.runs), max(result.runs))),
            "" if result.first is None else _figure(result.first),
            ratio,
        )
        previous = (result.case, result.side)
    console.print(table)


def _compared(result: Result) -> str:
    if result.ratio is None:
        return ""
    if result.unit != MILLISECONDS:
        return f"{result.ratio:.2f} of {result.ratio_to}"
    more = result.median - result.median / result.ratio
    return f"{more:+.{0 if abs(more) >= EXACT else 2}f} ms to {result.ratio_to}"


def print_counts(console: Console, title: str, counts: Mapping[str, Mapping[str, float]]) -> None:
    """Print means by name, a column for each side."""
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for side in counts:
        table.add_column(side, justify="right", no_wrap=True)
    for name in dict.fromkeys(name for column in counts.values() for name in column):
        cells = [column.get(name) for column in counts.values()]
        table.add_row(name, *("" if cell is None else f"{cell:,.1f}" for cell in cells))
    console.print(table)
