"""What takes the place of values in a job file: variables of the environment, and ``--set``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pulsar_txn_spark.job.keys import SECTION, Kind
from pulsar_txn_spark.job.problems import Place, Problem, nearest
from pulsar_txn_spark.job.substitution import escaped
from pulsar_txn_spark.job.tables import Entry, Table, Tables
from pulsar_txn_spark.options import documented, environment_words, passthrough_keys

PREFIX = "PULSAR_TXN__"
"""Begins each variable; two underscores also stand between section, name and key."""

_NEAR = 0.6


def apply_environment(
    tables: Tables, environment: Mapping[str, str], problems: list[Problem]
) -> None:
    """Replace values by those of the variables ``PULSAR_TXN__SECTION__KEY``.

    A section that there may be several of has its name before the key:
    ``PULSAR_TXN__SOURCE__FLIGHTS__TOPIC``.
    """
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX):
            continue
        place = Place(variable)
        section, *rest = variable.removeprefix(PREFIX).lower().split("__")
        table = _table(tables, section, rest, place, problems, _words)
        if table is None:
            continue
        key = "_".join(rest[1:] if table.section.several else rest)
        known = {_words(name): name for name in _keys(table)}
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=_NEAR)
            hint = f": did you mean {_variable(table, near[0])}?" if near else ""
            if table.section.name == "spark" and not near:
                hint = ": a setting that the file does not have is given by --set spark.…=…"
            problems.append(Problem(place, table.title, f"no key of this section{hint}"))
            continue
        table.put(known[key], Entry(escaped(value), place, is_from_environment=True))


def apply_arguments(tables: Tables, pairs: Sequence[str], problems: list[Problem]) -> None:
    """Replace values by those of ``--set section.key=value``."""
    for number, pair in enumerate(pairs, 1):
        path, separator, value = pair.partition("=")
        path = path.strip()
        if not separator or "." not in path:
            text = (
                f"number {number} of them: expected SECTION.KEY=VALUE, such as "
                "job.trigger=availableNow or source.flights.topic=other (its text is not shown: "
                "it may hold a secret)"
            )
            problems.append(Problem(Place("--set"), "", text))
            continue
        place = Place(f"--set {path}")
        section, *rest = path.split(".")
        table = _table(tables, section, rest, place, problems, str)
        if table is None:
            continue
        key = ".".join(rest[1:] if table.section.several else rest)
        if table.section.name == "spark":
            key = f"spark.{key}"
        known = {name.lower(): name for name in _keys(table)}
        table.put(known.get(key.lower(), key), Entry(value, place))


def _table(
    tables: Tables,
    section: str,
    rest: Sequence[str],
    place: Place,
    problems: list[Problem],
    spell: type[str] | object,
) -> Table | None:
    """Return the section that an override is about, None with a problem if there is none."""
    kind = SECTION.get(section)
    if kind is None:
        near = nearest(section, SECTION)
        known = ", ".join(SECTION)
        text = f"unknown section {section!r}{near or f'. Known are {known}'}"
        problems.append(Problem(place, "", text))
        return None
    if not kind.several:
        return tables.one(section)
    if len(rest) < len(("name", "key")):
        text = f"expected the name of a {kind.title} before the key"
        problems.append(Problem(place, "", text))
        return None
    assert callable(spell)
    names = {spell(table.text("name") or ""): table for table in tables.of(section)}
    if rest[0] not in names:
        known = ", ".join(sorted(name for name in names if name)) or "none that has a name"
        near = nearest(rest[0], names)
        text = f"the file has no {kind.title} of this name{near or f' (there is {known})'}"
        problems.append(Problem(place, "", text))
        return None
    return names[rest[0]]


def _words(key: str) -> str:
    words = environment_words(key).lower()
    return "".join(letter if letter.isalnum() else "_" for letter in words)


def _variable(table: Table, key: str) -> str:
    name = [_words(table.text("name") or "")] if table.section.several else []
    return PREFIX + "__".join([table.section.name, *name, key]).upper()


def _keys(table: Table) -> Iterator[str]:
    """Yield all keys that a section may have, and those that it has."""
    yield from table.entries
    for key in table.section.keys:
        yield from (f"{key.name}.{name}" for name in key.fields)
        if key.kind is not Kind.TABLE:
            yield key.name
    if table.section.name in {"options", "transaction", "source"}:
        yield from _option_keys()


def _option_keys() -> Iterable[str]:
    return [*(option.key for option in documented()), *passthrough_keys()]
