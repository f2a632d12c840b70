"""Names and prose use the terms of docs/glossary.md, not words that need a dictionary.

The names of tests are sentences: of the words for variables they may use all.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("pulsar_txn_spark", "demo", "benchmarks", "tools", "examples")
JAVA_FOLDER = "jvm_shim/src/main"
TEST_FOLDERS = ("tests", "integration")
KEPT = {
    ("pulsar_txn_spark/cli/doctor.py", "found"),
    ("pulsar_txn_spark/cli/transactions.py", "carried out"),
    ("jvm_shim/src/main/java/pulsartxnspark/store/Scripts.java", "BORN"),
    ("demo/run.py", "run"),
    ("demo/run.py", "_run"),
}
"""Fields of the command line's JSON, a value in Redis, and the demo's class `Run`."""

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
    **dict.fromkeys(("look", "looked", "looks"), "snapshot, poll"),
    "run": "components, execution id, attempt number",
    "through": "is materialized",
    "turn": "round-robin start, topology generation, round",
}
"""As a whole name of a variable, parameter or attribute."""

PHRASES = (
    "again = no harm",
    "again = it goes on",
    "again is no harm",
    "bear witness",
    "birth record",
    "born",
    "carried out",
    "carry it out",
    "chore",
    "give birth",
    "held up",
    "hold up",
    "holds up",
    "incarnation",
    "left alone",
    "no harm",
    "nudge",
    "Pulsar's own domain",
    "stranger",
    "tally",
    "witness",
)
GENERATED = re.compile(r"_pb2\.pyi?$")
APART = (r"\bh[eo]lds?(?: [\w']+){1,2} (?:back|up)\b", r"\bcarr(?:y|ies|ied)(?: \w+){1,2} out\b")
PROSE = re.compile(
    "|".join((*(rf"\b{re.escape(phrase)}(?:e?s)?\b" for phrase in PHRASES), *APART)),
    re.IGNORECASE,
)
"""`APART` has words between the two of a phrase."""


def kept_in(file: Path) -> set[str]:
    own = str(file.relative_to(ROOT))
    return {text for place, text in KEPT if place == own}


def sources(*suffixes: str, folders: tuple[str, ...] = FOLDERS) -> list[Path]:
    return sorted(
        file
        for folder in folders
        for suffix in suffixes
        for file in (ROOT / folder).rglob(f"*{suffix}")
        if not GENERATED.search(file.name)
    )


@lru_cache(maxsize=1)
def parsed(text: str) -> ast.Module:
    """Return the tree of a module; its names and its prose are asked for one after the other."""
    return ast.parse(text)


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
    """Yield line and text of comments and texts, or of a page outside its code."""
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
    elif file.suffix == ".java":
        for number, line in enumerate(text.splitlines(), 1):
            yield number, "".join(re.findall(r"//.*|^\s*/?\*.*|\"[^\"]* [^\"]*\"", line))
    else:
        yield from prose_of_python(text)


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of comments, docstrings, messages and help texts of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(parsed(text)):
        # What has no blank is a value.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"`[^`]*`|\"[^\"]*\"", "", node.value)


def lua_names(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, name and that it is a variable, outside of comments and strings."""
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"'[^']*'", "", line).partition("--")[0]
        for name in re.findall(r"[A-Za-z_]\w*", code):
            yield number, name, True


def java_names(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line, name, and whether it is a variable, outside of comments and strings."""
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"\"[^\"]*\"|//.*|^\s*/?\*.*", "", line)
        for match in re.finditer(r"(\.|::)?\b([A-Za-z_]\w*)\b(\()?", code):
            yield number, match[2], not (match[1] or match[3])


def bad_name(name: str, *, variable: bool) -> str | None:
    """Return what is better, None if the name is good."""
    better = NAMES.get(name.strip("_")) if variable else None
    for word in words_of(name):
        better = better or WORDS.get(word)
    return better


def names_in(file: Path) -> Iterable[tuple[int, str, bool]]:
    """Return line, name, and whether it is a variable; the names of tests count as sentences."""
    text = file.read_text(encoding="utf-8")
    match file.suffix:
        case ".lua":
            return lua_names(file.stem + "\n" + text)
        case ".java":
            return java_names(text)
        case ".py" if file.relative_to(ROOT).parts[0] in TEST_FOLDERS:
            return ((line, name, False) for line, name, _ in names(parsed(text)))
        case ".py":
            return names(parsed(text))
        case _:
            return ()


def bad_names(all_names: Iterable[tuple[int, str, bool]]) -> list[str]:
    return [
        f"{line}: {name}: {better}"
        for line, name, variable in all_names
        if (better := bad_name(name, variable=variable)) is not None
    ]


@pytest.mark.parametrize(
    "file",
    [
        *sources(".py", ".lua"),
        *sources(".java", folders=(JAVA_FOLDER,)),
        *sources(".py", folders=TEST_FOLDERS),
        *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "glossary.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_names_and_prose_use_terms_of_the_field(file: Path) -> None:
    kept = kept_in(file)
    bad = bad_names(item for item in names_in(file) if item[1] not in kept)
    if file != Path(__file__):
        bad += [
            f"{line}: {text}"
            for line, text in prose(file)
            if text not in kept and PROSE.search(text)
        ]
    assert bad == []


def test_a_word_of_the_list_is_noticed() -> None:
    assert bad_names(names(parsed("def f(run, dry_run, more_undone):\n    found = run\n"))) == [
        "1: run: components, execution id, attempt number",
        "1: more_undone: pending",
        "2: found: the noun",
    ]
    assert bad_names(names(parsed("class A:\n    def run(self): ...\n"))) == []
    assert list(java_names('long seen = held("held"); // held\n * held\n')) == [
        (1, "long", True),
        (1, "seen", True),
        (1, "held", False),
    ]
    assert list(java_names("told.run(this::again)")) == [
        (1, "told", True),
        (1, "run", False),
        (1, "this", True),
        (1, "again", False),
    ]
    assert bad_names(lua_names("local held = redis.call('GET', 'held')  -- held\n")) == [
        "1: held: buffered, locked, blocked by, retained by"
    ]
