"""What a person sees of the demo: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text


class Display:
    """Tells how far the demo is; a context manager.

    Parameters
    ----------
    total : int
        How many flights the job has to get through.
    console : Console, optional
        Where to write; standard output by default.
    """

    def __init__(self, total: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._started = time.monotonic()
        self._total = total
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("flights", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str, style: str | None = None) -> None:
        """Write a line, with the time since the start before it."""
        elapsed = f"{time.monotonic() - self._started:6.1f}s"
        # A Text: a style given to print() would colour the bar below as well.
        self._console.print(Text(f"{elapsed}  {text}", style=style or ""), soft_wrap=True)

    def progress(self, done: int, what: str) -> None:
        """Show how many flights are through."""
        self._bar.update(self._task, completed=done, description=what)
        if not self._console.is_terminal:
            self.say(f"{what}: {done:,} of {self._total:,} flights")

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Write a table of names and figures."""
        self._console.print(Text(f"\n{title}", style="bold"))
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, figure in rows:
            table.add_row(name, figure)
        self._console.print(table)
