"""Measures two revisions of this repository in turn: ``python -m benchmarks.revisions --help``.

The base is checked out into a temporary folder and uses this virtual environment. Each pair runs
the same benchmarks in the base and in this folder. Every second pair is in the other order, so that
a machine that drifts favours neither. What counts is the ratio within a pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

Figures = Mapping[tuple[str, str], tuple[str, float]]
"""(case, side) -> (unit, median)."""

HERE = Path(__file__).parents[1]
_WIDTH = 160  # of the table in a file
_SHOWN_LINES = 40  # of benchmarks that have failed


@dataclass(frozen=True, slots=True)
class Compared:
    """A side of a case in both revisions.

    Parameters
    ----------
    case, side, unit : str
    base, head : float
        Medians over the pairs.
    ratios : tuple of float
        Head divided by base, of each pair.
    """

    case: str
    side: str
    unit: str
    base: float
    head: float
    ratios: tuple[float, ...]


def compare_pairs(pairs: Sequence[tuple[Figures, Figures]]) -> list[Compared]:
    """Compare what every run of every pair has measured.

    Parameters
    ----------
    pairs : sequence of (Figures, Figures)
        Of the base and of this folder.
    """
    runs = [figures for pair in pairs for figures in pair]
    common = [key for key in runs[0] if all(key in figures for figures in runs)]
    return [
        Compared(
            *key,
            unit=runs[0][key][0],
            base=statistics.median(base[key][1] for base, _ in pairs),
            head=statistics.median(head[key][1] for _, head in pairs),
            ratios=tuple(head[key][1] / base[key][1] for base, head in pairs),
        )
        for key in common
    ]


def read_figures(target: Path) -> Figures:
    """Read the medians out of a file that the benchmarks have written."""
    rows = json.loads(target.read_text())
    return {(row["case"], row["side"]): (row["unit"], row["median"]) for row in rows}


@contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """Check a revision out beside this one, for as long as it is used."""
    git = ("git", "-C", str(HERE), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), revision], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def _measure(root: Path, target: Path, backend: str, arguments: Sequence[str]) -> Figures:
    """Run the benchmarks of one revision on one backend."""
    command = [sys.executable, "-m", "benchmarks", "--backend", backend, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root), "BENCH_JSON": str(target)}
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-_SHOWN_LINES:])
        raise SystemExit(f"the benchmarks of {root} have failed ({done.returncode}):\n{last}")
    return read_figures(target)


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions", description=__doc__)
    parser.add_argument("base", help="the revision that this folder is compared with")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--backend", action="append", choices=("embedded", "pulsar"))
    chosen, passed_on = parser.parse_known_args()
    if chosen.pairs < 1:
        parser.error("expected at least one pair")
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
    with tempfile.TemporaryDirectory(prefix="revisions-") as name:
        folder = Path(name)
        with checked_out(chosen.base, folder / "base") as base:
            for backend in chosen.backend or ("embedded", "pulsar"):
                pairs = []
                for number in range(chosen.pairs):
                    roots = {"base": base, "head": HERE}
                    measured: dict[str, Figures] = {}
                    for side in sorted(roots, reverse=number % 2 == 1):
                        target = folder / f"{backend}-{number}-{side}.json"
                        measured[side] = _measure(roots[side], target, backend, passed_on)
                        console.print(f"[dim]{backend}, pair {number + 1}: {side} measured[/]")
                    pairs.append((measured["base"], measured["head"]))
                _print(console, backend, chosen.base, compare_pairs(pairs))
    return 0


def _print(console: Console, backend: str, base: str, compared: Sequence[Compared]) -> None:
    """Print a row for each side of each case."""
    table = Table(title=f"{backend}: this folder beside {base}", title_justify="left")
    for heading in ("case", "side", "unit"):
        table.add_column(heading, no_wrap=True)
    for heading in ("base", "head", "median ratio", "lowest", "highest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in compared:
        ratios = (statistics.median(row.ratios), min(row.ratios), max(row.ratios))
        figures = (f"{row.base:,.1f}", f"{row.head:,.1f}", *(f"{ratio:.2f}" for ratio in ratios))
        table.add_row(row.case, row.side, row.unit, *figures)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
