"""What a person sees of the demo: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
)
from rich.table import Table
from rich.text import Text


class _Clock(ProgressColumn):
    """The time since the start; rich's own stops when the last flight is through."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.monotonic()

    def render(self, task: Task) -> Text:
        del task
        return Text(f"{time.monotonic() - self._started:5.0f}s", style="dim")


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
            SpinnerColumn(),
            _Clock(),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away: there is nothing more to wait for."""
        self._bar.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def say(self, text: str, style: str | None = None) -> None:
        """Write a line, with the time since the start before it."""
        # A Text: a style given to print() would colour the bar below as well.
        self._console.print(
            Text(f"{self.seconds:6.1f}s  ", style="dim") + Text(text, style=style or ""),
            soft_wrap=True,
        )

    def describe(self, text: str) -> None:
        """Show beside the bar what is going on."""
        self._bar.update(self._task, description=text)

    def busy(self, text: str) -> None:
        """Like :meth:`describe`; where there is no bar, as a line."""
        self.describe(text)
        if not self._console.is_terminal:
            self.say(text)

    def progress(self, done: int, text: str) -> None:
        """Show how many flights are through."""
        self._bar.update(self._task, completed=done)
        self.busy(text if self._console.is_terminal else f"{text}: {done:,} of {self._total:,}")

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        figures: int = 0,
    ) -> None:
        """Write a table; its last so many columns hold figures."""
        table = Table(title=title, title_justify="left", title_style="bold")
        for left in range(len(columns), 0, -1):
            table.add_column(columns[-left], justify="right" if left <= figures else "left")
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print()
        self._console.print(table)
