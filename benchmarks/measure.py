"""Runs of a benchmark, interleaved so that a drift of the machine cancels, and their results."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path


class SideError(RuntimeError):
    """One side of a case cannot be measured; the others can."""


@dataclass(slots=True)
class Series:
    """What one side of a case measured; the first run, which is a cold one, apart."""

    unit: str
    first: float | None = None
    runs: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of all runs but the first."""
        return statistics.median(self.runs)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the results: a side of a case, and perhaps its ratio to another side.

    Parameters
    ----------
    case, side, unit : str
    median : float
    runs : tuple of float
        Without the first one.
    ratio_to : str or None
        Another side of the same case.
    ratio : float or None
        This median divided by that one's.
    first : float or None
        The first run; a row of its own in JSON, with ``/first-run`` behind the side.
    """

    case: str
    side: str
    unit: str
    median: float
    runs: tuple[float, ...]
    ratio_to: str | None = None
    ratio: float | None = None
    first: float | None = None


def interleave(
    sides: Mapping[str, Callable[[], float]],
    repetitions: int,
    unit: str,
    report: Callable[[str, float], None],
    dropped: Callable[[str, SideError], None] | None = None,
) -> dict[str, Series]:
    """Run each side once cold and then `repetitions` times, as A B, B A, A B and so on.

    A side that raises a :class:`SideError` is left out from then on, with all its runs.

    Parameters
    ----------
    sides : mapping of str to callable
        Each returns its figure.
    repetitions : int
    unit : str
        Of the figures.
    report : callable
        Gets side and figure after each run.
    dropped : callable or None
        Gets each side that is left out, and why; None = the error goes on.
    """
    series = {side: Series(unit) for side in sides}
    for repetition in range(repetitions + 1):
        order = list(series) if repetition % 2 == 0 else list(series)[::-1]
        for side in order:
            try:
                figure = sides[side]()
            except SideError as error:
                if dropped is None:
                    raise
                dropped(side, error)
                del series[side]
                continue
            report(side, figure)
            if repetition == 0:
                series[side].first = figure
            else:
                series[side].runs.append(figure)
    return series


def compare(
    case: str, series: Mapping[str, Series], ratios: Mapping[str, tuple[str, ...]]
) -> list[Result]:
    """Turn the series of a case into rows.

    Parameters
    ----------
    case : str
    series : mapping of str to Series
        By side.
    ratios : mapping of str to tuple of str
        Side -> the sides that it is compared with, a row each; those not measured are left out.
    """
    rows = []
    for side, own in series.items():
        plain = Result(case, side, own.unit, own.median, tuple(own.runs), first=own.first)
        others = [other for other in ratios.get(side, ()) if other in series]
        rows += [
            replace(plain, ratio_to=other, ratio=own.median / series[other].median)
            for other in others
        ] or [plain]
    return rows


def in_pairs(
    case: str, series: Mapping[str, Series], against: Mapping[str, tuple[str, ...]]
) -> list[Result]:
    """Turn the series of a case into rows, whose ratios are medians of those of paired runs.

    Runs that followed each other are compared, so that a drift of the machine cancels.

    Parameters
    ----------
    case : str
    series : mapping of str to Series
        By side, each of as many runs.
    against : mapping of str to tuple of str
        Side -> the sides that it is compared with, as for :func:`compare`.
    """
    rows = compare(case, series, against)
    return [
        row
        if row.ratio_to is None
        else replace(
            row,
            ratio=statistics.median(
                own / other for own, other in zip(row.runs, series[row.ratio_to].runs, strict=True)
            ),
        )
        for row in rows
    ]


class Results:
    """What was measured so far, in a file after each case: a failure later on does not lose it.

    Parameters
    ----------
    target : Path or None
        The file; None = no file.
    """

    def __init__(self, target: Path | None) -> None:
        self._target = target
        self.rows: list[Result] = []

    def add(self, results: Sequence[Result]) -> None:
        """Take the rows of a case."""
        self.rows += results
        if self._target is not None:
            write_json(self._target, self.rows)


def write_json(path: Path, results: Sequence[Result]) -> None:
    """Write rows of {case, side, unit, median, runs, ratio_to, ratio}: all of them or none."""
    rows: list[dict[str, object]] = []
    seen: set[tuple[str, str]] = set()
    for result in results:
        rows.append(_row(result))
        if result.first is not None and (result.case, result.side) not in seen:
            side = f"{result.side}/first-run"
            once = (result.first,)
            rows.append(_row(Result(result.case, side, result.unit, result.first, once)))
        seen.add((result.case, result.side))
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)


def _row(result: Result) -> dict[str, object]:
    return {
        "case": result.case,
        "side": result.side,
        "unit": result.unit,
        "median": result.median,
        "runs": list(result.runs),
        "ratio_to": result.ratio_to,
        "ratio": result.ratio,
    }
