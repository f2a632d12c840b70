"""The sections of a job file as flat tables of values, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath

from pulsar_txn_spark.backports import tomllib
from pulsar_txn_spark.errors import JobFileError
from pulsar_txn_spark.job.keys import SECTION, SECTIONS, Section
from pulsar_txn_spark.job.places import Path, Places
from pulsar_txn_spark.job.problems import Place, Problem, nearest

Value = str | bool | int | float | list[str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A value as it was given.

    Parameters
    ----------
    value : str, bool, int, float or list of str
    place : Place
    content : int
        The line on which a text of several lines begins; 0 outside of a file.
    is_from_environment : bool
        Whether it may be a secret as it stands.
    """

    value: Value
    place: Place
    content: int = 0
    is_from_environment: bool = False

    @property
    def text(self) -> str:
        """As an option of Spark has it."""
        if isinstance(self.value, bool):
            return str(self.value).lower()
        return ",".join(self.value) if isinstance(self.value, list) else str(self.value)


@dataclass(slots=True)
class Table:
    """One section.

    Parameters
    ----------
    section : Section
    place : Place
    entries : dict of str to Entry
        By key, with dots between the names of nested tables.
    number : int
        Among the sections of its name, counted from 1.
    """

    section: Section
    place: Place
    entries: dict[str, Entry] = field(default_factory=dict)
    number: int = 1

    @property
    def title(self) -> str:
        """As messages name it."""
        name = self.text("name")
        return f"{self.section.title} {name!r}" if name else self.section.title

    def get(self, key: str) -> Entry | None:
        """Return the entry of a key, in any case."""
        return next((e for name, e in self.entries.items() if name.lower() == key.lower()), None)

    def text(self, key: str) -> str | None:
        """Return the text of a key; None without one."""
        entry = self.get(key)
        return None if entry is None else entry.text

    def put(self, key: str, entry: Entry) -> None:
        """Set a key, in the place of one that differs in its case only."""
        for name in [name for name in self.entries if name.lower() == key.lower()]:
            del self.entries[name]
        self.entries[key] = entry


@dataclass(slots=True)
class Tables:
    """All sections of a file, in its order."""

    file: str
    tables: list[Table]

    def of(self, section: str) -> list[Table]:
        """Return the sections of a name."""
        return [table for table in self.tables if table.section.name == section]

    def one(self, section: str) -> Table:
        """Return the only section of a name, an empty one if there is none."""
        for table in self.of(section):
            return table
        empty = Table(SECTION[section], Place(self.file, 1))
        self.tables.append(empty)
        return empty


_AT = re.compile(r"\(at line (\d+), column (\d+)\)")


def read_tables(path: FilePath, shown: str, problems: list[Problem]) -> Tables:
    """Read the sections of a file.

    Raises
    ------
    JobFileError
        If the file cannot be read, or is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobFileError(f"{shown}: the job file cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise JobFileError(f"{shown}: the job file is no text in UTF-8") from None
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT.search(str(error))
        place = f"{shown}:{at[1]}:{at[2]}" if at else shown
        what = str(error).partition(" (at")[0]
        raise JobFileError(
            f"{place}: the job file is no valid TOML: {what[:1].lower()}{what[1:]}"
        ) from None
    return Tables(shown, list(_sections(tree, Places(text), shown, problems)))


def _sections(
    tree: Mapping[str, object], places: Places, shown: str, problems: list[Problem]
) -> Iterator[Table]:
    for name, content in tree.items():
        place = Place(shown, places.line((name,)) or places.line((name, 0)))
        section = SECTION.get(name)
        if section is None:
            problems.append(Problem(place, "", _unknown_section(name, content)))
            continue
        tables = content if isinstance(content, list) else [content]
        if section.several != isinstance(content, list) or not all(
            isinstance(table, dict) for table in tables
        ):
            problems.append(Problem(place, "", f"{name!r} is a section: write {section.title}"))
            continue
        for number, table in enumerate(tables):
            path: Path = (name, number) if section.several else (name,)
            where = Place(shown, places.line(path))
            read = Table(section, where, number=number + 1)
            for key, entry in _leaves(table, path, "", places, shown, problems):
                read.entries[_setting(key) if name == "spark" else key] = entry
            yield read


def _setting(key: str) -> str:
    return key if key.startswith("spark.") else f"spark.{key}"


def _unknown_section(name: str, content: object) -> str:
    for section in SECTIONS:
        if not isinstance(content, dict | list) and section.key(name) is not None:
            return f"{name!r} stands outside of a section: put it below {section.title}"
    near = nearest(name, SECTION)
    known = ", ".join(section.title for section in SECTIONS)
    return f"unknown section {name!r}{near or f'. Known are {known}'}"


def _leaves(
    tree: Mapping[str, object],
    path: Path,
    prefix: str,
    places: Places,
    shown: str,
    problems: list[Problem],
) -> Iterator[tuple[str, Entry]]:
    for name, value in tree.items():
        key, inner = f"{prefix}{name}", (*path, name)
        place = Place(shown, places.line(inner))
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if isinstance(value, dict):
            yield from _leaves(value, inner, f"{key}.", places, shown, problems)
        elif isinstance(value, str | bool | int | float) or is_list:
            yield key, Entry(value, place, places.content(inner) or 0)  # type: ignore[arg-type]
        else:
            problems.append(
                Problem(
                    place,
                    SECTION[str(path[0])].title,
                    f"{key!r} has to be a text, a number, true, false or a list of texts",
                )
            )
