"""Names and prose use the terms of docs/glossary.md, not words that need a dictionary."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("pulsar_txn_spark", "demo", "benchmarks", "tools", "examples")
KEPT = {
    ("pulsar_txn_spark/cli/doctor.py", "found"),
    ("demo/run.py", "run"),
    ("demo/run.py", "_run"),
}
"""A field of the JSON that the command line prints; the demo has a class `Run`."""

WORDS = {
    "birth": "tag record",
    "born": "initialized",
    "chore": "maintenance task",
    "chores": "maintenance tasks",
    "held": "buffered, locked, blocked by, retained by",
    "incarnation": "topic instance id, source epoch",
    "lives": "lifecycle",
    "nudge": "trigger",
    "planted": "initial cursor",
    "stranger": "external",
    "tally": "counters",
    "unborn": "not initialized",
    "undone": "pending",
    "witness": "last seen sequence number",
}
"""Anywhere in a name."""

NAMES = {
    **dict.fromkeys(("alone", "asked", "found", "given", "one", "told"), "the noun"),
    "again": "idempotent",
    "holds": "contains, retained by",
    "run": "components, execution id, attempt number",
    "through": "is materialized",
    "turn": "round-robin start, topology generation, round",
}
"""As a whole name of a variable, parameter or attribute."""

PHRASES = (
    "again = no harm",
    "again = it goes on",
    "bear witness",
    "born",
    "chore",
    "give birth",
    "incarnation",
    "left alone",
    "no harm",
    "nudge",
    "of Pulsar's own domain",
    "stranger",
    "tally",
    "witness",
)
GENERATED = re.compile(r"_pb2\.pyi?$")
PROSE = re.compile("|".join(rf"\b{re.escape(phrase)}s?\b" for phrase in PHRASES), re.IGNORECASE)


def sources(*suffixes: str) -> list[Path]:
    return sorted(
        file
        for folder in FOLDERS
        for suffix in suffixes
        for file in (ROOT / folder).rglob(f"*{suffix}")
        if not GENERATED.search(file.name)
    )


def names(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Yield line, name, and whether it is a variable, of all that a file defines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name, False
            case ast.arg():
                yield node.lineno, node.arg, True
            case ast.Name(ctx=ast.Store()) as name:
                yield name.lineno, name.id, True
            case ast.Attribute(ctx=ast.Store()) as attribute:
                yield attribute.lineno, attribute.attr, True
            case _:
                pass


def words_of(name: str) -> list[str]:
    """Split a name at its underscores and capital letters."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of comments and docstrings, or of a page outside its code."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        text = re.sub(
            r"```.*?```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL
        )
        for number, line in enumerate(text.splitlines(), 1):
            yield number, re.sub(r"`[^`]*`", "", line)
    elif file.suffix == ".lua":
        for number, line in enumerate(text.splitlines(), 1):
            yield number, re.sub(r"'[^']*'", "", line.partition("--")[2])
    else:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield getattr(node, "lineno", 1), re.sub(r"`[^`]*`", "", docstring)


def bad_names(text: str) -> list[str]:
    bad = []
    for line, name, variable in names(ast.parse(text)):
        better = NAMES.get(name.strip("_")) if variable else None
        for word in words_of(name):
            better = better or WORDS.get(word)
        if better is not None:
            bad.append(f"{line}: {name}: {better}")
    return bad


@pytest.mark.parametrize("file", sources(".py"), ids=lambda file: str(file.relative_to(ROOT)))
def test_names_are_terms_of_the_field(file: Path) -> None:
    kept = {name for place, name in KEPT if place == str(file.relative_to(ROOT))}
    bad = bad_names(file.read_text(encoding="utf-8"))
    assert [line for line in bad if line.split(": ")[1] not in kept] == []


@pytest.mark.parametrize(
    "file",
    [
        *sources(".py", ".lua"),
        *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "glossary.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_prose_uses_terms_of_the_field(file: Path) -> None:
    assert [f"{line}: {text}" for line, text in prose(file) if PROSE.search(text)] == []


def test_a_word_of_the_list_is_noticed() -> None:
    assert bad_names("def f(run, dry_run, more_undone):\n    found = run\n") == [
        "1: run: components, execution id, attempt number",
        "1: more_undone: pending",
        "2: found: the noun",
    ]
    assert bad_names("class A:\n    def run(self): ...\n") == []
