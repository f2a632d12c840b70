"""What is wrong with a job file, each with its place: all of it is collected before it is shown."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pulsar_txn_spark.errors import JobFileError


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was said.

    Parameters
    ----------
    origin : str
        The file, a variable of the environment, or an argument.
    line : int or None
        Within a file, counted from 1.
    """

    origin: str
    line: int | None = None

    def __str__(self) -> str:
        """Return it as compilers write it."""
        return self.origin if self.line is None else f"{self.origin}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Parameters
    ----------
    place : Place
    subject : str
        The section and the key that it is about; may be empty.
    text : str
        What is wrong, and what to do.
    missing : bool
        Whether the file may be right, and what it names is not there.
    """

    place: Place
    subject: str
    text: str
    missing: bool = False

    def __str__(self) -> str:
        """Return one line."""
        subject = f" {self.subject}:" if self.subject else ""
        return f"{self.place}:{subject} {self.text}"


def error_of(problems: Iterable[Problem], hidden: Callable[[str], str]) -> JobFileError:
    """Return the error that names all problems, in the order of the file.

    Parameters
    ----------
    problems : iterable of Problem
    hidden : callable
        Takes secrets out of a text.
    """
    ordered = sorted(problems, key=lambda problem: problem.place.line or 0)
    count = "1 problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    lines = [*map(str, ordered), f"{count}; nothing was started"]
    return JobFileError(hidden("\n".join(lines)))


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ``: did you mean …?`` if one of the known words is like this one, else nothing."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f": did you mean {by_lower[near[0]]!r}?" if near else ""
